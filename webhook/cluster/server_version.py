"""Watches the version of the control plane: that of the API servers, the oldest of those that answered lately.

No API tells the version of the scheduler. It is never newer than that of an API server, and it can be older for minutes
during an upgrade: the API servers are upgraded first. So an older version counts for an hour after it was seen last.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from neuron.known_faults import oldest
from runtime.api_errors import ApiServerError
from runtime.api_server import ApiServer
from runtime.served_versions import kubernetes_version

PAUSE: Final = 300.0
"""Seconds between two questions."""
RETRY: Final = 15.0
"""Seconds until the next question while no API server has answered."""
KEPT: Final = 3600.0
"""Seconds for which a version counts after it was seen last."""
_TIMEOUT: Final = 5.0


class ServerVersion:
    """Asks the API server for its version again and again.

    Attributes:
        asked: set after the first question, with or without an answer.
    """

    def __init__(
        self,
        server: ApiServer,
        tell: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`tell` receives the version in force after each answer. `clock`: monotonic seconds."""
        self._server = server
        self._tell = tell
        self._clock = clock
        self._sleep = sleep
        self._seen: dict[str, float] = {}
        self.asked = asyncio.Event()

    async def run(self) -> None:
        """Read the version repeatedly until cancelled."""
        while True:
            await self.ask()
            await self._sleep(PAUSE if self._seen else RETRY)

    async def ask(self) -> None:
        """Read the version once. Without an answer, the known version stays."""
        try:
            version = await kubernetes_version(self._server, _TIMEOUT)
        except ApiServerError:
            version = ""
        if version:
            now = self._clock()
            self._seen[version] = now
            self._seen = {each: when for each, when in self._seen.items() if now - when <= KEPT}
            self._tell(oldest(self._seen))
        self.asked.set()
