"""Shares survive a rollback to an older version of the driver, and an upgrade from it, while pods use them.

The older versions are their own code, taken from the repository's history, and files that they wrote.
"""

import dataclasses
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.files import DiskFiles
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare.checkpoint import (
    API_VERSION,
    API_VERSION_SHARES,
    CheckpointStore,
    PreparedClaim,
    Share,
    encode,
)
from kubeletplugin.prepare.decide import DeviceHeldError, PrepareError
from kubeletplugin.prepare.environment import read_visible_cores, visible_cores
from kubeletplugin.prepare.preparer import Preparer
from neuron.api.allocation import AllocatedClaim
from tests.kubeletplugin.fakes import Node, allocated, config, devices, match, share, uid

TYPE = "inf1.6xlarge"
"""Four devices with four cores each, in a chain."""
RECORDED = Path(__file__).parent / "recorded"
ROOT = Path(__file__).parents[2]

WITH_SHARES = "18f08a8"
WITHOUT_SHARES = "ff565bc"
VERSIONS = {"with shares": WITH_SHARES, "without shares": WITHOUT_SHARES}

WHOLE = allocated(1, *devices(3))
TWO = allocated(2, share(0, 2, share_id="share-two"))
ONE = allocated(3, share(0, 1, share_id="share-one"))
NINE = allocated(4, *devices(1, request="w"), share(2, 1, "c", share_id="share-nine"), constraints=[match("w", "c")])
CLAIMS = (WHOLE, TWO, ONE, NINE)

# Modules have the names of those versions.
ACTS = """
import sys
from pathlib import Path
from typing import Any
from kubeletplugin.cdi import SpecFiles
from kubeletplugin.files import DiskFiles
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare import Preparer

root, boot_id = Path(sys.argv[1]), sys.argv[2]
specs = SpecFiles(DiskFiles(), root / "cdi", boot_id, root / "dev")
preparer = Preparer(DiskFiles(), state_dir=root / "state", specs=specs, boot_id=boot_id)
recovery = preparer.recover()
print(recovery.errors)
# It writes the checkpoint, as with every claim that comes or goes.
preparer.unprepare(sys.argv[3])
"""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Pods use whole devices, and shares."""
    node = Node(tmp_path, TYPE)
    preparer = node.preparer()
    for claim in (*CLAIMS, allocated(9, share(0, 1, share_id="gone"))):
        preparer.prepare(claim, node.view())
    return node


def older(version: str, directory: Path) -> Path:
    """The code of an older version, from the history."""
    command = ["git", "-C", str(ROOT), "archive", version, "kubeletplugin", "neuron", "runtime"]
    archive = directory / "older.tar"
    with archive.open("wb") as out:
        found = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    if found.returncode:
        pytest.skip(f"no history here: {found.stderr.decode().strip()}")
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "older", filter="data")
    return directory / "older"


def run(code: Path, node: Node) -> str:
    """The older version starts on the node, and a claim ends."""
    command = [sys.executable, "-c", ACTS, str(node.root), node.boot_id, uid(9)]
    environment = {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, env=environment, cwd=code, check=True, capture_output=True, text=True).stdout


def held(preparer: Preparer) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...] | None]]]:
    """Devices and cores of each claim."""
    claims = preparer.checkpoint().claims.values()
    return {claim.uid: [(device.indices, device.cores) for device in claim.devices] for claim in claims}


def started(node: Node) -> Preparer:
    """This version starts, and its first sweep reads the claims."""
    preparer = node.preparer()
    preparer.recover()
    if preparer.checkpoint().incomplete:
        preparer.complete(CLAIMS, node.view())
    preparer.restore_shares(CLAIMS, node.view())
    return preparer


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_a_rollback_and_an_upgrade_lose_no_share(node: Node, tmp_path: Path, version: str) -> None:
    preparer = node.preparer()
    before = {key: value for key, value in held(preparer).items() if key != uid(9)}
    code = older(version, tmp_path)
    assert "has apiVersion 'checkpoint.neuron.aws.com/v2'" in run(code, node), "it does not take it for one of its own"
    preparer = started(node)
    assert held(preparer) == before
    shares = [device.share for claim in preparer.checkpoint().claims.values() for device in claim.devices]
    assert all(each is None or each.certain for each in shares)
    # The core that is free is given, and no other.
    preparer.prepare(allocated(5, share(0, 1)), node.view())
    assert held(preparer)[uid(5)] == [((0,), (3,))]
    with pytest.raises(DeviceHeldError):
        preparer.prepare(allocated(6, *devices(0)), node.view())
    answers = [preparer.prepare(claim, node.view()) for claim in CLAIMS]
    assert [[answer.share_id for answer in each] for each in answers] == [
        [None],
        ["share-two"],
        ["share-one"],
        [None, "share-nine"],
    ]
    assert held(preparer) | before == held(preparer), "the kubelet asks again, and gets the same"


@pytest.mark.parametrize("name", ["checkpoint-shares-v1.json", "checkpoint-shares-dropped.json"])
def test_files_of_older_versions_keep_their_shares(node: Node, name: str) -> None:
    """The first as the last version without `v2` wrote it, the second after a version without shares."""
    before = {key: value for key, value in held(node.preparer()).items() if key != uid(9)}
    shutil.copy(RECORDED / name, node.state_dir / "checkpoint.json")
    preparer = started(node)
    assert held(preparer) == before
    assert all(claim.allocation for claim in preparer.checkpoint().claims.values())


def test_only_a_checkpoint_with_shares_has_the_newer_version(node: Node) -> None:
    checkpoint = node.preparer().checkpoint()
    assert f'"apiVersion":"{API_VERSION_SHARES}"' in encode(checkpoint).decode()
    whole = dataclasses.replace(checkpoint, claims={uid(1): checkpoint.claims[uid(1)]})
    assert f'"apiVersion":"{API_VERSION}"' in encode(whole).decode()


def dropped(node: Node, *claims: AllocatedClaim, environment: bool = True) -> Preparer:
    """Claims as a version without shares leaves them."""
    preparer = node.preparer()
    for claim in claims:
        preparer.prepare(claim, node.view())
    checkpoint = preparer.checkpoint()

    def without(claim: PreparedClaim) -> PreparedClaim:
        held = tuple(dataclasses.replace(device, share=None) for device in claim.devices)
        variables = claim.environment if environment else {}
        return dataclasses.replace(claim, devices=held, allocation="older", environment=variables)

    changed = {key: without(claim) for key, claim in checkpoint.claims.items()}
    CheckpointStore(DiskFiles(), node.state_dir).save(dataclasses.replace(checkpoint, claims=changed))
    return node.preparer()


def test_a_claim_without_variables_holds_its_whole_device(tmp_path: Path) -> None:
    """A version without shares prepared it: its containers may use any core."""
    node = Node(tmp_path, TYPE)
    preparer = dropped(node, ONE, environment=False)
    again, doubt, *_ = preparer.restore_shares([ONE], node.view())
    assert again == "Claim ns/claim-3 has its shares again."
    assert doubt.startswith("The cores that claim ns/claim-3 uses of neuron-device-0 are not known")
    [device] = preparer.checkpoint().claims[uid(3)].devices
    assert device.share == Share("share-one", None, 1, certain=False)
    with pytest.raises(PrepareError, match=r"is shared with ResourceClaim ns/claim-3 .*, and the driver lost which"):
        preparer.prepare(allocated(5, share(0, 1)), node.view())


def test_a_prepare_call_before_the_first_sweep_gets_the_same_cores(tmp_path: Path) -> None:
    node = Node(tmp_path, TYPE)
    preparer = dropped(node, TWO, ONE)
    assert [answer.share_id for answer in preparer.prepare(ONE, node.view())] == ["share-one"]
    assert held(preparer)[uid(3)] == [((0,), (2,))]


def test_a_share_of_all_cores_and_logical_cores_are_restored(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2.3xlarge")
    lnc = config("NeuronConfig", logicalNeuronCore=2)
    claims = [
        allocated(1, share(0, 4, share_id="a"), config=[lnc]),
        allocated(2, share(0, 2, share_id="b"), config=[lnc]),
    ]
    expected = node.preparer()
    for claim in claims:
        expected.prepare(claim, node.view())
    before = held(expected)
    preparer = dropped(node, *claims)
    preparer.restore_shares(claims, node.view())
    assert held(preparer) == before
    whole = Node(tmp_path / "whole", TYPE)
    full = allocated(1, share(0, 4, share_id="full"))
    preparer = dropped(whole, full)
    preparer.restore_shares([full], whole.view())
    [device] = preparer.checkpoint().claims[uid(1)].devices
    assert device.share == Share("full")


@pytest.mark.parametrize("numbers", [(0,), (0, 1, 2), (3, 9), (0, 1, 2, 3, 4, 5, 6, 7, 8)])
def test_variables_are_read_back(numbers: tuple[int, ...]) -> None:
    assert read_visible_cores(visible_cores(numbers)) == numbers


@pytest.mark.parametrize("value", ["", "all", "1-", "-1", "1,,2", "99999"])
def test_other_values_of_the_variable_give_no_cores(value: str) -> None:
    assert read_visible_cores(value) == ()


def of_requests(size: int, *requests: str) -> JsonObject:
    return config("NeuronConfig", requests=requests, logicalNeuronCore=size)


TRN2 = "trn2.3xlarge"
"""One device with eight cores, two for each logical core by default."""
TOGETHER = {
    "two of one device": (TYPE, (share(0, 2, "a"), share(0, 2, "b")), {"constraints": [match("a", "b")]}),
    "before a whole device": (TYPE, (share(1, 2, "c"), *devices(2, request="w")), {"constraints": [match("c", "w")]}),
    "all cores": (TRN2, (share(0, 8, "a"),), {"config": [of_requests(2)]}),
    "size of its request": (TRN2, (share(0, 4, "a"),), {"config": [of_requests(1, "a"), of_requests(2, "b")]}),
    "and a device": (TYPE, (share(0, 1, "a"), *devices(1, request="w")), {}),
}


@pytest.mark.parametrize(("instance_type", "results", "more"), TOGETHER.values(), ids=TOGETHER)
@pytest.mark.parametrize("environment", [True, False], ids=["known", "in doubt"])
def test_each_share_is_restored_as_it_was(
    tmp_path: Path, instance_type: str, results: tuple[JsonObject, ...], more: Any, environment: bool
) -> None:
    node = Node(tmp_path, instance_type)
    claim = allocated(1, *results, **more)
    before = node.preparer()
    before.prepare(claim, node.view())
    expected = before.checkpoint().claims[uid(1)]
    preparer = dropped(node, claim, environment=environment)
    notes = preparer.restore_shares([claim, allocated(2, share(3, 1))], node.view())
    assert notes[0] == "Claim ns/claim-1 has its shares again."
    restored = preparer.checkpoint().claims[uid(1)]
    if environment:
        assert dataclasses.replace(restored, asked=expected.asked) == expected
    sizes = [each.share and (each.share.id, each.share.logical_neuron_core) for each in restored.devices]
    assert sizes == [each.share and (each.share.id, each.share.logical_neuron_core) for each in expected.devices]
    assert preparer.mend() == (), "the CDI spec has the shares, too"
    assert preparer.restore_shares([claim], node.view()) == ()


def test_a_claim_that_was_never_decided_still_has_to_be(tmp_path: Path) -> None:
    node = Node(tmp_path, TYPE)
    claim = allocated(3, share(0, 1))
    preparer = dropped(node, allocated(1, *devices(0)))
    [device] = preparer.checkpoint().claims[uid(1)].devices
    running = [PreparedClaim(uid(3), "ns", "claim-3", "", (device,))]
    preparer.complete([], node.view(), running)
    with pytest.raises(DeviceHeldError, match="still prepared for ResourceClaim ns/claim-1"):
        preparer.prepare(claim, node.view())


def test_a_share_of_a_device_of_unknown_size_is_in_doubt(tmp_path: Path) -> None:
    node = Node(tmp_path, TRN2)
    claim = allocated(1, share(0, 4, share_id="x"), config=[of_requests(2)])
    preparer = dropped(node, claim)
    view = node.view()
    [device] = view.hardware.devices
    hardware = dataclasses.replace(view.hardware, devices=(dataclasses.replace(device, cores=None),))
    preparer.restore_shares([claim], dataclasses.replace(view, hardware=hardware, instance=None))
    [restored] = preparer.checkpoint().claims[uid(1)].devices
    assert restored.share == Share("x", None, 2, certain=False)
