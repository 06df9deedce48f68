"""Killed before, in the middle of and after every write, the next start converges.

Every point of death is tried: nothing leaks, nothing is lost, nothing is handed out twice, and doing it again ends
where doing it undisturbed would have ended.
"""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.prepare.decide import PrepareError
from tests.kubeletplugin.crash import CLAIM, OTHER, PHASES, SCENARIOS, node_at, run, steps_of
from tests.kubeletplugin.fakes import Node, allocated, devices, spec_name, uid
from tests.support import forked
from tests.support.faults import Outcome

_NUMBER = re.compile(rb'(?<=_n0_)[0-9]+(?=\.json)|(?<=number\\":)[0-9]+|(?<=generation\\":)[0-9]+')
DAMAGED_BEFORE = {"recover-damaged", "recover-damaged-shares", "complete"}


def state(node: Node) -> tuple[set[str], dict[str, bytes]]:
    """Prepared claims and spec files, without the numbers of preparations: each call has a new one."""
    specs = {name: _NUMBER.sub(b"N", (node.cdi_dir / name).read_bytes()) for name in node.spec_names()}
    return set(node.preparer().checkpoint().claims), specs


def check_trustworthy(node: Node) -> None:
    """No leftover, no spec without its claim, no claim without its spec."""
    claims, specs = state(node)
    assert not [path for path in node.root.rglob("*.tmp") if "emulated" not in path.parts]
    if not node.preparer().checkpoint().incomplete:
        claims = {claim for claim in claims if not claim.endswith("-before")}
        assert set(specs) == {f"neuron.aws.com-claim_{claim}.json" for claim in claims}
    for claim in claims:
        assert node.specs().read(claim).uid == claim


def check_no_core_twice(node: Node) -> None:
    """No two claims have a core of a device."""
    held = [
        (each.indices, core)
        for claim in node.preparer().checkpoint().claims.values()
        for each in claim.devices
        for core in each.cores or ()
    ]
    assert len(held) == len(set(held))


def check_nothing_twice(node: Node) -> None:
    """A device is free exactly if no prepared claim holds it, and none is while claims may be missing."""
    preparer = node.preparer()
    incomplete = preparer.checkpoint().incomplete
    held = {
        index for claim in preparer.checkpoint().claims.values() for each in claim.devices for index in each.indices
    }
    for index in range(4):
        probe = allocated(7, *devices(index))
        try:
            preparer.prepare(probe, node.view())
        except PrepareError:
            assert incomplete or index in held
        else:
            assert not incomplete
            assert index not in held
            preparer.unprepare(probe.uid)


@pytest.mark.fault
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_node_recovers_from_a_crash_at_any_write(
    tmp_path: Path, scenario: str, phase: str, report_fault: Callable[[Outcome], None]
) -> None:
    expected = node_at(tmp_path / "undisturbed", scenario)
    steps = steps_of(expected, scenario)
    assert steps >= 3
    longest = 0.0
    for step in range(steps):
        node = node_at(tmp_path / f"killed-{step}", scenario)
        child = forked.CONTEXT.Process(target=run, args=(node.root, node.boot_id, scenario, step, phase))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL, f"step {step}"
        killed = time.monotonic()
        recovery = node.preparer().recover()
        if scenario not in DAMAGED_BEFORE:
            assert recovery.errors == (), "a crash left a damaged file"
        check_trustworthy(node)
        if not scenario.startswith("recover-rebooted"):
            assert OTHER.uid in node.preparer().checkpoint().claims, "an innocent claim was lost"
        check_nothing_twice(node)
        check_no_core_twice(node)
        SCENARIOS[scenario].act(node.preparer(), node)
        longest = max(longest, time.monotonic() - killed)
        check_trustworthy(node)
        claims, specs = state(node)
        assert claims == SCENARIOS[scenario].prepared
        ours = str(node.root).encode(), str(expected.root).encode()
        assert {name: content.replace(*ours) for name, content in specs.items()} == state(expected)[1]
    # Each killed call has no answer; the kubelet makes it again. What is lost ends the test above.
    report_fault(Outcome("driver killed before, in and after every write", "claims", steps, steps, 0, longest))


def test_a_claim_can_be_unprepared_after_a_crash_during_prepare(tmp_path: Path) -> None:
    """The pod may be deleted before the kubelet tries again; it unprepares what it never saw prepared."""
    steps = steps_of(node_at(tmp_path / "undisturbed", "prepare"), "prepare")
    for step in range(steps):
        node = node_at(tmp_path / f"killed-{step}", "prepare")
        child = forked.CONTEXT.Process(target=run, args=(node.root, node.boot_id, "prepare", step, "after"))
        child.start()
        child.join()
        preparer = node.preparer()
        preparer.recover()
        preparer.unprepare(CLAIM.uid)
        assert state(node)[0] == {uid(2)}
        assert node.spec_names() == [spec_name(2)]
