"""The order of test files and of the tests in them: long files first, and both parts in a random order with a seed.

A worker takes a file at a time, or a part of it (`unit`).
"""

import random
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeVar

LONG: Final = (
    "test_migrate",
    "test_tutorials",
    "test_soak",
    "test_certificates",
    "test_driver_faults",
    "test_driver_start",
    "test_driver_lifecycle",
    "test_inferentia",
    "test_prune",
    "test_faults",
    "test_chart",
    "test_status_of_installation",
    "test_status",
    "test_report",
    "test_driver_load",
    "test_large_cluster",
    "test_driver_lost_state",
    "test_allocator_model",
    "test_explain_agreement",
    "test_independence",
)
"""Files that take about half a minute or more. They start first, so that workers end at about the same time."""
APART: Final[Mapping[str, str]] = {
    "test_certificates::test_a_stopped_replica_delays_a_rotation_for_a_limited_time_and_catches_up": "stopped",
    "test_driver_faults::test_the_kubelet_restarts": "kubelet",
    "test_driver_start::test_pods_run_within_seconds_over_an_upgrade_with_overlap": "upgrade",
    "test_prune::test_continuous_prunes_never_leave_a_pod_without_its_claim": "endless",
    "test_soak::test_a_rolling_restart_with_surge_and_drain": "replicas",
    "test_soak::test_sigterm_under_load": "replicas",
    "test_soak::test_a_frozen_replica_fails_only_requests_in_progress": "replicas",
    "test_tutorials::test_the_commands_of_a_tutorial_print_its_output": "",
}
"""Tests that a worker takes apart from the rest of their file, and the name of their unit; empty: each case alone."""


def unit(nodeid: str) -> str:
    """What one worker runs together with a test: tests of one unit share fixtures of the module."""
    path, _, name = nodeid.partition("::")
    file = path.rpartition("/")[2].removesuffix(".py")
    part = APART.get(f"{file}::{name.partition('[')[0]}")
    if part is None:
        return path
    return f"{path}::{part or name}"


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
    """The same tests, with files in random order, and tests in random order within each file that allows it.

    Long files come before the others, for the same reason as in `long_first`.
    """
    dice = random.Random(seed)  # noqa: S311 - an order, not a secret
    files = list(_by_file(tests).items())
    dice.shuffle(files)
    files.sort(key=lambda each: each[0] not in LONG)
    for _, each in files:
        if not any(test.in_order for test in each):
            dice.shuffle(each)
    return [test for _, each in files for test in each]
