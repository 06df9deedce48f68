"""Makes the C library return freed memory to the kernel.

Large bodies: glibc raises its mmap threshold when a large block is freed, up to 32 MiB. Later blocks come from the
heap, and small allocations above them prevent their release: a few reviews of 8 MiB left 100 MiB in use. With a fixed
threshold, each large block returns to the kernel when it is freed (mallopt(3)).

Small blocks: those of closed TLS connections stay in the heap below others that are in use. malloc_trim(3) returns the
whole pages among them.
"""

import asyncio
import contextlib
import ctypes
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BLOCK: Final = 256 * 1024
_ARENAS: Final = 2
"""For the event loop and the lane; each arena keeps its own freed memory."""
_EVERY: Final = 10.0
"""Seconds between two trims. One takes 1 to 4 ms for a heap of 24 MiB, and 50 ms for one of 200 MiB."""


def _function(name: str) -> Callable[..., Any] | None:
    """A function of the C library; None if it has none of this name, as musl."""
    try:
        found: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found


def give_back_large_blocks() -> bool:
    """Set fixed thresholds in the C library's allocator; False if it has no mallopt."""
    mallopt = _function("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)) and bool(mallopt(_M_ARENA_MAX, _ARENAS))


def trimmer() -> Callable[[], object] | None:
    """Returns free pages of the heap to the kernel; None if the C library has no malloc_trim."""
    malloc_trim = _function("malloc_trim")
    return None if malloc_trim is None else functools.partial(malloc_trim, 0)


@contextlib.asynccontextmanager
async def trimming(trim: Callable[[], object] | None, seconds: float = _EVERY) -> AsyncIterator[None]:
    """Call `trim` at an interval while the context is open; with None, do nothing."""
    if trim is None:
        yield
        return

    async def repeat() -> None:
        while True:
            trim()
            await asyncio.sleep(seconds)

    task = asyncio.create_task(repeat(), name="memory")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
