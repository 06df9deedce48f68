"""A clock for code that gets one."""

import asyncio


class Clock:
    """A clock that tests, and `sleep`, advance."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)
