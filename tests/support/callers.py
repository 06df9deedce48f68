"""Reviews whose caller waits for a time of the test."""

import contextlib
import time
from collections.abc import Iterator

from webhook.reviews import worker_threads


@contextlib.contextmanager
def caller_waits(seconds: float) -> Iterator[None]:
    """Inside the context, the caller's time-out is `seconds`."""
    token = worker_threads._deadline.set(time.monotonic() + worker_threads.usable(seconds))
    try:
        yield
    finally:
        worker_threads._deadline.reset(token)
