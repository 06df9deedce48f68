"""The clock of the system."""

import asyncio
import time


class SystemClock:
    """`ports.Clock` with the system's time."""

    def now(self) -> float:
        """See `ports.Clock`."""
        return time.time()

    def monotonic(self) -> float:
        """See `ports.Clock`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See `ports.Clock`."""
        await asyncio.sleep(seconds)
