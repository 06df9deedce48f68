"""Bounds on wall-clock time, which a busy machine exceeds without a fault: asserted if KUBECEL_TIMED is set.

Without it, the same tests run: what they do has to end, and to have the right outcome, on any machine.
"""

import os
from typing import Final

TIMED: Final = bool(os.environ.get("KUBECEL_TIMED"))
"""Whether this run asserts times: on a machine that does nothing else."""


def assert_below(seconds: float, most: float, why: str = "") -> None:
    """Assert that something took less than `most` seconds, if this run asserts times."""
    assert seconds < most or not TIMED, f"{seconds:.2f} s, and {most} s is the most{why and ': '}{why}"
