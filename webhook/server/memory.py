"""How the C library gives memory back, for a process that reads bodies of megabytes.

glibc raises its threshold for mmap whenever a large block is freed, up to 32 MiB. Later blocks come from the heap, and
what is allocated above them keeps their memory: a few reviews of 8 MiB left 100 MiB behind. With a fixed threshold,
each large block goes back to the kernel when it is freed (mallopt(3)).
"""

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BLOCK: Final = 256 * 1024
_ARENAS: Final = 2
"""One for the event loop, one for the lane; each keeps freed memory of its own."""


def give_back_large_blocks() -> bool:
    """Fix the thresholds of the C library's allocator; False where it has none, as musl."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)) and bool(mallopt(_M_ARENA_MAX, _ARENAS))
