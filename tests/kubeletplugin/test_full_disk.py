"""A disk that is full from any write on: the call fails, nothing is lost, and the call succeeds when there is space."""

import dataclasses
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.files import DiskFiles
from tests.kubeletplugin.crash import OTHER, SCENARIOS, node_at
from tests.kubeletplugin.fakes import Node
from tests.kubeletplugin.test_crash import check_nothing_twice, check_trustworthy, state
from tests.support.faults import Outcome


@dataclasses.dataclass
class FullFiles(DiskFiles):
    """A file system without space from a write on: half of the bytes of a write fit. Removal and renaming need none."""

    first: int
    writes: int = 0
    full: bool = True

    def write(self, path: Path, data: bytes) -> None:
        here = self.writes
        self.writes += 1
        if self.full and here >= self.first:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().write(path, data)


def writes_of(node: Node, scenario: str) -> int:
    """How many files a scenario's act writes."""
    files = FullFiles(first=0, full=False)
    SCENARIOS[scenario].act(dataclasses.replace(node, files=files).preparer(), node)
    return files.writes


@pytest.mark.fault
@pytest.mark.parametrize(
    ("scenario", "restarts"), [*((each, False) for each in SCENARIOS), ("prepare", True), ("unprepare", True)]
)
def test_a_full_disk_loses_no_state(
    tmp_path: Path, scenario: str, restarts: bool, report_fault: Callable[[Outcome], None]
) -> None:
    expected = node_at(tmp_path / "undisturbed", scenario)
    writes = writes_of(expected, scenario)
    assert writes >= 1
    failed, longest = 0, 0.0
    for first in range(writes):
        node = node_at(tmp_path / f"full-{first}", scenario)
        files = FullFiles(first)
        preparer = dataclasses.replace(node, files=files).preparer()
        try:
            SCENARIOS[scenario].act(preparer, node)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - other errors of a full disk are reported, not raised
            failed += 1
        if not scenario.startswith(("recover-damaged", "recover-rebooted", "complete")):
            assert OTHER.uid in node.preparer().checkpoint().claims, "an innocent claim was lost"
        files.full = False
        there = time.monotonic()
        if restarts:
            preparer = node.preparer()
            preparer.recover()
        SCENARIOS[scenario].act(preparer, node)
        longest = max(longest, time.monotonic() - there)
        check_trustworthy(node)
        check_nothing_twice(node)
        claims, specs = state(node)
        assert claims == SCENARIOS[scenario].prepared
        ours = str(node.root).encode(), str(expected.root).encode()
        assert {name: content.replace(*ours) for name, content in specs.items()} == state(expected)[1]
    name = "disk full at every write of checkpoint and CDI spec"
    report_fault(Outcome(name, "claims", writes, failed, 0, longest))
