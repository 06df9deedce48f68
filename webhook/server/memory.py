"""Makes the C library return the memory of large bodies to the kernel.

glibc raises its mmap threshold when a large block is freed, up to 32 MiB. Later blocks come from the heap, and small
allocations above them prevent their release: a few reviews of 8 MiB left 100 MiB in use. With a fixed threshold, each
large block returns to the kernel when it is freed (mallopt(3)).
"""

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BLOCK: Final = 256 * 1024
_ARENAS: Final = 2
"""For the event loop and the lane; each arena keeps its own freed memory."""


def give_back_large_blocks() -> bool:
    """Set fixed thresholds in the C library's allocator; False if it has no mallopt, as musl."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)) and bool(mallopt(_M_ARENA_MAX, _ARENAS))
