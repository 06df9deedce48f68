"""The order of test files and of the tests in them: long files first, or a random order that a seed repeats."""

import random
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

LONG: Final = (
    "test_migrate",
    "test_certificates",
    "test_faults",
    "test_soak",
    "test_driver_faults",
    "test_driver_lifecycle",
    "test_reapply",
    "test_prune",
    "test_driver_start",
    "test_inferentia",
    "test_chart",
    "test_attacks",
)
"""Files that take about a minute or more. They start first, so that workers end at about the same time."""


class Test(Protocol):
    """What is needed of a collected test."""

    @property
    def file(self) -> str:
        """Name of its file without suffix."""

    @property
    def in_order(self) -> bool:
        """Whether each test of the file begins where the one before ended."""


T = TypeVar("T", bound=Test)


def _by_file(tests: Sequence[T]) -> dict[str, list[T]]:
    files: dict[str, list[T]] = {}
    for test in tests:
        files.setdefault(test.file, []).append(test)
    return files


def long_first(tests: Sequence[T]) -> list[T]:
    """The same tests; each file stays together."""
    places = {file: place for place, file in enumerate(LONG)}
    return sorted(tests, key=lambda test: places.get(test.file, len(LONG)))


def shuffled(tests: Sequence[T], seed: int) -> list[T]:
    """The same tests, with files in random order, and tests in random order within each file that allows it."""
    dice = random.Random(seed)  # noqa: S311 - an order, not a secret
    files = list(_by_file(tests).values())
    dice.shuffle(files)
    for each in files:
        if not any(test.in_order for test in each):
            dice.shuffle(each)
    return [test for each in files for test in each]
