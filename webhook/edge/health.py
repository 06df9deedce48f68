"""`/livez` and `/readyz`.

Readiness is a table of named checks, which read memory and do not block. Liveness has no checks: an answer shows that
the event loop runs. The text has the format of the API server's own endpoints (`[+]name ok`), also with `?verbose`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

Check = Callable[[], tuple[bool, str]]
"""Returns whether the check passes, and a detail for the answer; the detail may be empty."""


@dataclasses.dataclass(slots=True)
class Lifecycle:
    """State of the process; written by the server, read by endpoints.

    Attributes:
        serving: the listener accepts connections.
        draining: the process was told to stop. Answers carry `Connection: close`, so clients reconnect elsewhere.
    """

    serving: bool = False
    draining: bool = False

    def check_serving(self) -> tuple[bool, str]:
        """Passes while the listener is open."""
        return self.serving, "" if self.serving else "not listening"

    def check_shutdown(self) -> tuple[bool, str]:
        """Fails after the process was told to stop. The API server has a check of the same name."""
        return not self.draining, "shutting down" if self.draining else ""


class HealthEndpoint:
    """Answers 200 if every check passes, else 503 with the list of checks."""

    def __init__(self, name: str, checks: Mapping[str, Check], lifecycle: Lifecycle) -> None:
        """`name` is "livez" or "readyz"; checks are listed in their order."""
        self._name = name
        self._checks = checks
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (ASGI)."""
        headers = {"Connection": "close"} if self._lifecycle.draining else {}
        if scope["method"] not in ("GET", "HEAD"):
            message = f"/{self._name} is read with GET."
            refusal = JSONResponse({"message": message}, 405, {"Allow": "GET, HEAD", **headers})
            await refusal(scope, receive, send)
            return
        verbose = "verbose" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        status, text = self.report(verbose=verbose)
        await PlainTextResponse(text, status, {"Cache-Control": "no-store", **headers})(scope, receive, send)

    def report(self, *, verbose: bool) -> tuple[int, str]:
        """HTTP status and text of the answer."""
        lines = []
        well = True
        for name, check in self._checks.items():
            passed, detail = check()
            well = well and passed
            verdict = f"[+]{name} ok" if passed else f"[-]{name} failed"
            lines.append(f"{verdict}: {detail}" if detail else verdict)
        if well and not verbose:
            return 200, "ok"
        lines.append(f"{self._name} check {'passed' if well else 'failed'}")
        return 200 if well else 503, "\n".join(lines) + "\n"
