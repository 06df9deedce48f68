"""An API server with prepared answers, in place of a connection."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from runtime.api_server import UnreachableError


class PreparedAnswers:
    """Gives these answers in turn; the last one repeats. Bytes are sent as they are, other values as JSON.

    Attributes:
        asked: method and path of each request.
        members: what else each request had.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.members: list[dict[str, Any]] = []

    async def request(self, method: str, path: str, **members: Any) -> bytes:
        """An answer, or an exception that is one."""
        self.asked.append((method, path))
        self.members.append(members)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    def stream(self, path: str, **_: Any) -> Any:
        """Nothing is watched."""
        raise AssertionError(path)


class UncalledServer:
    """An API server that must not be called."""

    async def request(self, method: str, path: str, **_: object) -> bytes:
        """Nothing is asked."""
        raise UnreachableError(f"{method} {path}")

    def stream(self, path: str, **_: object) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Nothing is watched."""
        raise UnreachableError(path)
