"""What a run skipped, by reason."""

import collections
from collections.abc import Iterable

import pytest


def by_reason(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Lines with a number and a reason each, most first."""
    counts = collections.Counter(
        each.longrepr[2].removeprefix("Skipped: ") for each in reports if isinstance(each.longrepr, tuple)
    )
    return [f"{number:5} {reason}" for reason, number in sorted(counts.items(), key=lambda found: (-found[1], found))]
