"""Kills the process at a chosen write: SIGKILL allows no clean-up."""

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare.checkpoint import uid_before
from kubeletplugin.prepare.preparer import Preparer
from tests.kubeletplugin.fakes import Node, allocated, config, devices, restored, share, uid

PHASES: Final = ("before", "between", "after")
"""When to die: before a step, after half of it (half the bytes of a write), after it."""

TYPE: Final = "trn3e.24xlarge"
CLAIM = allocated(1, *devices(0), config=[config("NeuronConfig", logicalNeuronCore=1)])
ELSEWHERE = allocated(1, *devices(1, 2))
OTHER = allocated(2, *devices(3))
SHARED: Final = "inf1.6xlarge"
SHARE = allocated(1, share(0, 2, share_id="share-one"))
OTHER_SHARE = allocated(2, share(0, 1, share_id="share-two"))
COUNTED: Final = "trn2u.48xlarge"


@dataclasses.dataclass
class MortalFiles(DiskFiles):
    """Counts the steps that change the disk, and kills its process at one of them."""

    step: int = -1
    phase: str = ""
    steps: int = 0

    def _around(self, act: Callable[[], None], half: Callable[[], None] | None = None) -> None:
        here = self.steps == self.step
        self.steps += 1
        if here and self.phase == "before":
            self._die()
        if here and self.phase == "between":
            if half is not None:
                half()
            self._die()
        act()
        if here:
            self._die()

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write(self, path: Path, data: bytes) -> None:
        def half() -> None:
            path.write_bytes(data[: len(data) // 2])

        self._around(lambda: super(MortalFiles, self).write(path, data), half)

    def rename(self, source: Path, target: Path) -> None:
        self._around(lambda: super(MortalFiles, self).rename(source, target))

    def remove(self, path: Path) -> None:
        self._around(lambda: super(MortalFiles, self).remove(path))

    def sync_directory(self, directory: Path) -> None:
        self._around(lambda: super(MortalFiles, self).sync_directory(directory))


def _prepared(node: Node) -> None:
    preparer = node.preparer()
    preparer.recover()
    preparer.prepare(OTHER, node.view())


def _both(node: Node) -> None:
    _prepared(node)
    node.preparer().prepare(CLAIM, node.view())


def _damaged(node: Node) -> None:
    _both(node)
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")


def _torn(node: Node) -> None:
    _damaged(node)
    (node.cdi_dir / f"neuron.aws.com-claim_{uid(1)}.json").write_text("{}")
    node.preparer().recover()


def _rebooted(node: Node) -> None:
    node.boot_id = "before"
    _both(node)
    node.boot_id = "after"


def _rebooted_shares(node: Node) -> None:
    node.boot_id = "before"
    _both_shared(node)
    node.boot_id = "after"


def _leaked(node: Node) -> None:
    _both(node)
    path = node.cdi_dir / f"neuron.aws.com-claim_{uid(1)}.json"
    path.with_name(path.name.replace(uid(1), uid(9))).write_bytes(path.read_bytes())
    path.unlink()


def _prepare(preparer: Preparer, node: Node) -> None:
    preparer.prepare(CLAIM, node.view())


def _prepare_elsewhere(preparer: Preparer, node: Node) -> None:
    preparer.prepare(ELSEWHERE, node.view())


def _unprepare(preparer: Preparer, _node: Node) -> None:
    preparer.unprepare(uid(1))


def _recover(preparer: Preparer, _node: Node) -> None:
    preparer.recover()


def _complete(preparer: Preparer, node: Node) -> None:
    preparer.complete(restored(node.view(), CLAIM, OTHER), [CLAIM, OTHER], node.view())


def _mend(preparer: Preparer, _node: Node) -> None:
    preparer.mend()


def _without_specs(node: Node) -> None:
    _both(node)
    for name in node.spec_names():
        (node.cdi_dir / name).unlink()


def _shared(node: Node) -> None:
    node.preparer().prepare(OTHER_SHARE, node.view())


def _both_shared(node: Node) -> None:
    _shared(node)
    node.preparer().prepare(SHARE, node.view())


def _damaged_shares(node: Node) -> None:
    _both_shared(node)
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")


def _prepare_share(preparer: Preparer, node: Node) -> None:
    preparer.prepare(SHARE, node.view())


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What was there, what is done when death comes, and which claims are prepared when it is done again."""

    before: Callable[[Node], None]
    act: Callable[[Preparer, Node], None]
    prepared: frozenset[str]
    instance_type: str = TYPE


ONE, TWO = uid(1), uid(2)
SCENARIOS: Final = {
    "prepare": Scenario(_prepared, _prepare, frozenset({ONE, TWO})),
    "prepare-reallocated": Scenario(_both, _prepare_elsewhere, frozenset({ONE, TWO, uid_before(ONE)})),
    "unprepare": Scenario(_both, _unprepare, frozenset({TWO})),
    "recover-damaged": Scenario(_damaged, _recover, frozenset({ONE, TWO})),
    "recover-leaked": Scenario(_leaked, _recover, frozenset({ONE, TWO})),
    "recover-rebooted": Scenario(_rebooted, _recover, frozenset()),
    "complete": Scenario(_torn, _complete, frozenset({ONE, TWO})),
    "mend": Scenario(_without_specs, _mend, frozenset({ONE, TWO})),
    # Several claims on one device.
    "prepare-share": Scenario(_shared, _prepare_share, frozenset({ONE, TWO}), SHARED),
    "unprepare-share": Scenario(_both_shared, _unprepare, frozenset({TWO}), SHARED),
    "recover-damaged-shares": Scenario(_damaged_shares, _recover, frozenset({ONE, TWO}), SHARED),
    "recover-rebooted-shares": Scenario(_rebooted_shares, _recover, frozenset(), SHARED),
    # A node whose devices and whole consume counters.
    "prepare-counted": Scenario(_prepared, _prepare, frozenset({ONE, TWO}), COUNTED),
}


def node_at(root: Path, scenario: str) -> Node:
    """The node of a scenario, set up before it."""
    node = Node(root, SCENARIOS[scenario].instance_type)
    SCENARIOS[scenario].before(node)
    return node


def run(root: Path, boot_id: str, scenario: str, step: int, phase: str) -> None:
    """Do a scenario's act in this process, and die on the way."""
    node = Node(root, SCENARIOS[scenario].instance_type, boot_id=boot_id, files=MortalFiles(step, phase))
    SCENARIOS[scenario].act(node.preparer(), node)


def steps_of(node: Node, scenario: str) -> int:
    """How many steps a scenario's act takes."""
    files = MortalFiles()
    undisturbed = dataclasses.replace(node, files=files)
    SCENARIOS[scenario].act(undisturbed.preparer(), undisturbed)
    return files.steps
