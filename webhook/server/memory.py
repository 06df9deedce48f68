"""Makes the C library return freed memory to the kernel.

Large bodies: glibc raises its mmap threshold when a large block is freed, up to 32 MiB. Later blocks come from the
heap, and small allocations above them prevent their release: a few reviews of 8 MiB left 100 MiB in use. With a fixed
threshold, each large block returns to the kernel when it is freed (mallopt(3)).

Small blocks: those of closed TLS connections stay in the heap below others that are in use. malloc_trim(3) returns the
whole pages among them.
"""

import asyncio
import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from webhook.server.certificates import Work

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BLOCK: Final = 1024 * 1024
"""Bytes; mmap takes over from here. It must be above the buffers of small reviews: uvloop reads TLS into blocks of
256 KiB, and a system call and page faults for each of them cost a quarter of the throughput. Blocks below are in the
heap, whose free pages `trimming` returns."""
_ARENAS: Final = 2
"""For the event loop and the lane; each arena keeps its own freed memory."""
_EVERY: Final = 10.0
"""Seconds between two trims. One takes 1 to 4 ms for a heap of 24 MiB, and 50 ms for one of 200 MiB."""


def _function(name: str) -> Callable[..., object] | None:
    """A function of the C library; None if it has none of this name, as musl."""
    try:
        found: Callable[..., object] = getattr(ctypes.CDLL(None), name)
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


async def trimming(trim: Callable[[], object], seconds: float = _EVERY) -> None:
    """Call `trim` at an interval, until cancelled."""
    while True:
        trim()
        await asyncio.sleep(seconds)


def upkeep() -> "Work":
    """What to run beside the server; nothing if the C library has no malloc_trim."""
    trim = trimmer()
    return {} if trim is None else {"memory": functools.partial(trimming, trim)}
