"""Claims share a device: each has its own cores, keeps them, and its containers see exactly these."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.sysfs import NeuronDevice
from kubeletplugin.prepare.checkpoint import Share, uid_before
from kubeletplugin.prepare.decide import DeviceHeldError, PrepareError
from kubeletplugin.prepare.preparer import Preparer
from neuron.hardware.instances import Topology
from tests.kubeletplugin.fakes import Node, allocated, config, devices, match, restored, result, share, spec_name, uid


@pytest.fixture
def inf1(tmp_path: Path) -> Node:
    """Four devices with four cores each."""
    return Node(tmp_path, "inf1.6xlarge")


def held(preparer: Preparer, number: int) -> dict[str, tuple[int, ...] | None]:
    """Cores that a claim holds by device; None for a whole device."""
    return {device.device: device.cores for device in preparer.checkpoint().claims[uid(number)].devices}


def environments(node: Node, number: int) -> dict[str, list[str]]:
    """Variables in a claim's spec, by the name of their CDI device."""
    spec = json.loads((node.cdi_dir / spec_name(number)).read_text())
    edits = {device["name"]: device["containerEdits"].get("env") for device in spec["devices"]}
    return {name.removeprefix(f"{uid(number)}_"): env for name, env in edits.items() if env}


def test_four_claims_share_a_device_and_see_their_own_core(inf1: Node) -> None:
    preparer = inf1.preparer()
    for number in range(4):
        [answer] = preparer.prepare(allocated(number, share(2, 1, share_id=f"id-{number}")), inf1.view())
        assert answer.share_id == f"id-{number}"
        assert held(preparer, number) == {"neuron-device-2": (number,)}
        assert environments(inf1, number) == {"n0": [f"NEURON_RT_VISIBLE_CORES={8 + number}"]}
    preparer.unprepare(uid(1))
    preparer.prepare(allocated(5, share(2, 1)), inf1.view())
    assert held(preparer, 5) == {"neuron-device-2": (1,)}


def test_a_shared_device_that_is_allocated_whole_is_a_whole_device(inf1: Node) -> None:
    preparer = inf1.preparer()
    [answer] = preparer.prepare(allocated(1, share(0, 4, share_id="all")), inf1.view())
    assert (answer.share_id, held(preparer, 1), environments(inf1, 1)) == ("all", {"neuron-device-0": None}, {})


def test_nine_cores_are_two_devices_and_the_first_core_of_the_next(inf1: Node) -> None:
    results = (share(0, 4, "w/s0"), share(1, 4, "w/s0"), share(2, 1, "c"))
    claim = allocated(1, *results, constraints=[match("w/s0", "c"), match("w/s1", "c")])
    preparer = inf1.preparer()
    preparer.prepare(claim, inf1.view())
    assert held(preparer, 1)["neuron-device-2"] == (0,)
    assert environments(inf1, 1) == {"w": ["NEURON_RT_VISIBLE_CORES=0-8"], "c": ["NEURON_RT_VISIBLE_CORES=0-8"]}


@pytest.mark.parametrize(
    ("name", "whole", "part", "expected"),
    [
        ("inf1.6xlarge", (2, 3), 1, "7-15"),
        ("inf2.48xlarge", (0, 1), 11, "0,1,2,3,23"),
        ("inf2.48xlarge", (10, 11), 0, "0,20,21,22,23"),
        ("inf2.24xlarge", (4, 5), 0, "0,8,9,10,11"),
        ("inf2.24xlarge", (4,), 3, "7-9"),
    ],
)
def test_a_share_is_next_to_its_whole_devices(
    tmp_path: Path, name: str, whole: tuple[int, ...], part: int, expected: str
) -> None:
    """Behind them the low cores, before them the high ones, also across the link of a ring's ends."""
    node = Node(tmp_path, name)
    cores = 4 if name.startswith("inf1") else 2
    results = [share(index, cores, "w") for index in whole]
    claim = allocated(1, share(part, 1, "c"), *results, constraints=[match()])
    node.preparer().prepare(claim, node.view())
    assert environments(node, 1)["c"] == [f"NEURON_RT_VISIBLE_CORES={expected}"]


def test_a_chain_whose_ends_are_linked_is_a_ring(tmp_path: Path) -> None:
    node = Node(tmp_path, "inf2.24xlarge")
    view = node.view()
    first, *middle, last = view.hardware.devices
    ends = (_linked(first, 5), *middle, _linked(last, 0))
    ring = dataclasses.replace(view, hardware=dataclasses.replace(view.hardware, devices=ends))
    unknown = tuple(dataclasses.replace(device, connected=None) for device in view.hardware.devices)
    silent = dataclasses.replace(view, hardware=dataclasses.replace(view.hardware, devices=unknown))
    assert view.instance is not None
    silent_ring = dataclasses.replace(silent, instance=dataclasses.replace(view.instance, topology=Topology.RING))
    assert (view.wraps, ring.wraps, silent.wraps, silent_ring.wraps) == (False, True, False, True)


def _linked(device: NeuronDevice, other: int) -> NeuronDevice:
    return dataclasses.replace(device, connected=(device.connected or frozenset()) | {other})


def test_requests_that_no_constraint_connects_have_variables_of_their_own(inf1: Node) -> None:
    results = (share(0, 2, "a"), share(0, 2, "b"), share(1, 4, "d"))
    claim = allocated(1, *results, constraints=[match("b", "x"), {"requests": ["a", "b"], "distinctAttribute": "x/y"}])
    inf1.preparer().prepare(claim, inf1.view())
    assert environments(inf1, 1) == {"a": ["NEURON_RT_VISIBLE_CORES=0-1"], "b": ["NEURON_RT_VISIBLE_CORES=2-3"]}


def test_constraints_in_a_row_connect_all_their_requests(inf1: Node) -> None:
    results = (share(0, 2, "a"), share(1, 4, "b"), share(2, 4, "c"))
    claim = allocated(1, *results, constraints=[match("b", "c"), match("a", "b")])
    inf1.preparer().prepare(claim, inf1.view())
    assert set(environments(inf1, 1)) == {"a", "b", "c"}
    assert environments(inf1, 1)["c"] == ["NEURON_RT_VISIBLE_CORES=2-11"]


@pytest.mark.parametrize(("lnc", "expected"), [(1, "0-1"), (2, "0")])
def test_cores_are_numbered_as_the_runtime_numbers_them(tmp_path: Path, lnc: int, expected: str) -> None:
    node = Node(tmp_path, "trn2.3xlarge")
    claim = allocated(1, share(0, 2), config=[config("NeuronConfig", logicalNeuronCore=lnc)])
    node.preparer().prepare(claim, node.view())
    assert environments(node, 1) == {"n0": [f"NEURON_LOGICAL_NC_CONFIG={lnc}", f"NEURON_RT_VISIBLE_CORES={expected}"]}


def test_logical_cores_count_from_the_first_device_of_the_host(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2.48xlarge")
    node.preparer().prepare(allocated(1, share(3, 4)), node.view())
    assert environments(node, 1) == {"n0": ["NEURON_RT_VISIBLE_CORES=12-13"]}, "with the type's default of 2"


def test_admin_access_sees_shares_and_holds_none(inf1: Node) -> None:
    preparer = inf1.preparer()
    preparer.prepare(allocated(1, share(0, 2)), inf1.view())
    watching = [share(index, 0, "all", share_id=f"w{index}", adminAccess=True) for index in range(4)]
    answers = preparer.prepare(allocated(2, *watching), inf1.view())
    assert [answer.share_id for answer in answers] == ["w0", "w1", "w2", "w3"]
    assert environments(inf1, 2) == {}
    preparer.prepare(allocated(3, share(0, 2)), inf1.view())
    preparer.prepare(allocated(4, share(1, 4)), inf1.view())


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(result("neuron-device-2", "look", adminAccess=True), id="behind"),
        pytest.param(result("neuron-device-1", "look", adminAccess=True), id="same"),
        pytest.param(share(1, 2, "look", adminAccess=True), id="a-part-of-the-same"),
    ],
)
def test_admin_access_of_the_same_claim_gets_no_cores_and_changes_none(inf1: Node, look: Any) -> None:
    claim = allocated(1, look, share(1, 2, "a"), constraints=[match()])
    inf1.preparer().prepare(claim, inf1.view())
    assert environments(inf1, 1) == {"a": ["NEURON_RT_VISIBLE_CORES=4-5"]}


# --- refusals -------------------------------------------------------------------------------------------------


def prepare_error(node: Node, claim: Any, preparer: Preparer | None = None) -> tuple[str, bool]:
    """The message, and whether the driver waits for another claim."""
    with pytest.raises(PrepareError) as caught:
        (preparer or node.preparer()).prepare(claim, node.view())
    return str(caught.value), isinstance(caught.value, DeviceHeldError)


def test_more_cores_than_are_free_are_refused_with_their_holders(inf1: Node) -> None:
    preparer = inf1.preparer()
    preparer.prepare(allocated(1, share(0, 2)), inf1.view())
    preparer.prepare(allocated(2, share(0, 1)), inf1.view())
    assert prepare_error(inf1, allocated(3, share(0, 2)), preparer) == (
        "Device neuron-device-0 has 1 of 4 cores free, and the claim needs 2: the others are still prepared for "
        f"ns/claim-1 (UID {uid(1)}), ns/claim-2 (UID {uid(2)}). They become free when the kubelet has stopped the pods "
        "that used them; the kubelet tries again by itself.",
        True,
    )


@pytest.mark.parametrize(("first", "free"), [(3, 1), (4, 0)], ids=["share", "whole"])
def test_a_claim_with_more_cores_than_a_device_has_is_refused(inf1: Node, first: int, free: int) -> None:
    too_many = allocated(4, share(1, first, "a"), share(1, 3, "b"))
    said = f"{free} of 4 cores free, and the claim needs 3: the others are still prepared for this claim."
    with pytest.raises(DeviceHeldError, match=said) as caught:
        inf1.preparer().prepare(too_many, inf1.view())
    assert not caught.value.holder


@pytest.mark.parametrize("first", ["whole", "share"])
def test_whole_devices_and_shares_exclude_each_other(inf1: Node, first: str) -> None:
    claims = {"whole": allocated(1, share(0, 4)), "share": allocated(2, share(0, 1))}
    preparer = inf1.preparer()
    preparer.prepare(claims.pop(first), inf1.view())
    [second] = claims.values()
    said, waits = prepare_error(inf1, second, preparer)
    assert waits
    assert said.startswith("Device neuron-device-0 is still prepared for ResourceClaim ns/claim-")


def test_a_claim_from_before_sharing_keeps_its_whole_device(inf1: Node) -> None:
    preparer = inf1.preparer()
    preparer.prepare(allocated(1, *devices(0)), inf1.view())
    assert (
        "is still prepared for ResourceClaim ns/claim-1" in prepare_error(inf1, allocated(2, share(0, 1)), preparer)[0]
    )


def test_claims_on_one_device_agree_on_the_size_of_logical_cores(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2.3xlarge")
    preparer = node.preparer()
    preparer.prepare(allocated(1, share(0, 2)), node.view())
    one = [config("NeuronConfig", logicalNeuronCore=1)]
    assert prepare_error(node, allocated(2, share(0, 2), config=one), preparer) == (
        f"Device neuron-device-0 is shared with ResourceClaim ns/claim-1 (UID {uid(1)}), which uses it with "
        "logicalNeuronCore 2; this claim uses 1. Claims on one device need the same size: set it to the same value, or "
        "request whole devices.",
        False,
    )
    preparer.prepare(allocated(3, share(0, 2)), node.view())
    mixed = allocated(4, share(0, 2, "a"), share(0, 2, "b"), config=[_lnc(1)])
    preparer.unprepare(uid(1))
    preparer.unprepare(uid(3))
    assert (
        "is shared with request a of this claim, which uses it with logicalNeuronCore 2"
        in prepare_error(node, mixed, preparer)[0]
    )


def _lnc(value: int) -> dict[str, Any]:
    """For request b."""
    return config("NeuronConfig", requests=("b",), logicalNeuronCore=value)


REFUSED: dict[str, tuple[str, Any, str]] = {
    "half-a-logical-core": (
        "trn2.3xlarge",
        allocated(1, share(0, 1)),
        "Device neuron-device-0 is allocated with 1 physical cores, which is no multiple of logicalNeuronCore 2. "
        "Request a multiple of 2, or set logicalNeuronCore to 1.",
    ),
    "nothing": (
        "inf1.6xlarge",
        allocated(1, share(0, 0)),
        "Device neuron-device-0 is allocated with no cores: neuroncores 0 is for requests with adminAccess. Request at "
        "least 1, or leave out neuroncores for the whole device.",
    ),
    "two-sizes": (
        "trn2.48xlarge",
        allocated(1, share(0, 2, "a"), share(1, 8, "b"), config=[_lnc(1)], constraints=[match()]),
        "The requests a, b are used together, but their logicalNeuronCore differs (1, 2): set one value for all of "
        "them.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shares_that_the_node_cannot_serve_are_refused(tmp_path: Path, name: str) -> None:
    instance_type, claim, said = REFUSED[name]
    node = Node(tmp_path, instance_type)
    assert prepare_error(node, claim) == (said, False)
    assert node.spec_names() == []


def test_a_share_of_an_unknown_number_of_cores_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, "inf1.6xlarge")
    view = node.view()
    silent = tuple(dataclasses.replace(device, cores=None) for device in view.hardware.devices)
    unknown = dataclasses.replace(view, hardware=dataclasses.replace(view.hardware, devices=silent), instance=None)
    with pytest.raises(PrepareError) as caught:
        node.preparer().prepare(allocated(1, share(0, 1)), unknown)
    assert str(caught.value) == (
        "Device neuron-device-0 is allocated with 1 cores, but neither sysfs nor the catalogue says how many it has: "
        "check that the driver can read core_count."
    )


@pytest.mark.parametrize(
    ("cores", "known", "total"),
    [(None, True, 4), (2, True, 2), (4, False, 4)],
    ids=["catalogue", "sysfs", "unknown-type"],
)
def test_a_device_has_as_many_cores_as_sysfs_says_or_else_the_catalogue(
    inf1: Node, cores: int | None, known: bool, total: int
) -> None:
    view, preparer = inf1.view(), inf1.preparer()
    told = tuple(dataclasses.replace(device, cores=cores) for device in view.hardware.devices)
    hardware = dataclasses.replace(view.hardware, devices=told)
    view = dataclasses.replace(view, hardware=hardware, instance=view.instance if known else None)
    for number in range(total):
        preparer.prepare(allocated(number, share(2, 1)), view)
        assert environments(inf1, number) == {"n0": [f"NEURON_RT_VISIBLE_CORES={2 * total + number}"]}
    with pytest.raises(DeviceHeldError, match=f"0 of {total} cores free"):
        preparer.prepare(allocated(total, share(2, 1)), view)


# --- what stays -----------------------------------------------------------------------------------------------


def test_a_restart_and_lost_specs_leave_every_core_where_it_was(inf1: Node) -> None:
    preparer = inf1.preparer()
    claims = [allocated(number, share(0, 1, share_id=f"id-{number}")) for number in range(1, 4)]
    for claim in claims:
        preparer.prepare(claim, inf1.view())
    preparer.unprepare(uid(1))
    before = {name: (inf1.cdi_dir / name).read_text() for name in inf1.spec_names()}
    for name in before:
        (inf1.cdi_dir / name).unlink()
    again = inf1.preparer()
    again.recover()
    assert {name: (inf1.cdi_dir / name).read_text() for name in inf1.spec_names()} == before
    assert again.prepare(claims[2], inf1.view()) == preparer.prepare(claims[2], inf1.view())
    assert held(again, 3) == {"neuron-device-0": (2,)}


def test_a_damaged_checkpoint_is_rebuilt_from_the_specs_with_the_same_cores(inf1: Node) -> None:
    preparer = inf1.preparer()
    for number in (1, 2):
        preparer.prepare(allocated(number, share(0, 1)), inf1.view())
    preparer.unprepare(uid(1))
    (inf1.state_dir / "checkpoint.json").write_bytes(b"garbage")
    again = inf1.preparer()
    again.recover()
    assert held(again, 2) == {"neuron-device-0": (1,)}
    said, waits = prepare_error(inf1, allocated(3, share(0, 1)), again)
    assert waits
    assert said == (
        "Device neuron-device-0 may be in use: the driver still restores which claims are prepared, because its state "
        "was lost. The kubelet tries again by itself."
    )
    with pytest.raises(DeviceHeldError) as caught:
        again.prepare(allocated(3, share(0, 1)), inf1.view())
    assert not caught.value.holder
    again.complete([], [], inf1.view())
    again.prepare(allocated(3, share(0, 1)), inf1.view())
    assert held(again, 3) == {"neuron-device-0": (0,)}


def _lose(node: Node, *numbers: int) -> None:
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    for number in numbers:
        (node.cdi_dir / spec_name(number)).write_text("{}")


def test_cores_of_a_lost_claim_are_given_to_no_other_claim(inf1: Node) -> None:
    preparer = inf1.preparer()
    lost = [allocated(number, share(0, 1)) for number in (1, 2)]
    told = [preparer.prepare(claim, inf1.view()) for claim in lost]
    _lose(inf1, 1, 2)
    again = inf1.preparer()
    again.recover()
    recovery = again.complete(restored(inf1.view(), *lost), lost, inf1.view())
    assert recovery.errors == ()
    assert recovery.notes[1] == (
        "The cores that claim ns/claim-1 uses of neuron-device-0 are not known: no other claim gets cores of this "
        "device until its pods have ended."
    )
    assert [held(again, number) for number in (1, 2)] == [{"neuron-device-0": None}] * 2
    for number, [answer] in zip((1, 2), told, strict=True):
        known = json.loads((inf1.cdi_dir / spec_name(number)).read_text())
        names = {f"{known['kind']}={each['name']}" for each in known["devices"]}
        assert set(answer.cdi_device_ids) - names, "the runtime starts no container of it, which would see all cores"
    said, waits = prepare_error(inf1, allocated(3, share(0, 1)), again)
    assert waits
    assert said == (
        f"Device neuron-device-0 is shared with ResourceClaim ns/claim-1 (UID {uid(1)}), and the driver lost which of "
        "its cores that claim uses. No other claim gets cores of this device until the pods of that claim have ended."
    )
    again.prepare(allocated(4, share(1, 1)), inf1.view())
    for number in (1, 2):
        again.unprepare(uid(number))
    again.prepare(allocated(3, share(0, 1)), inf1.view())


def test_a_running_claim_is_restored_beside_one_whose_cores_are_in_doubt(inf1: Node) -> None:
    preparer = inf1.preparer()
    claims = [allocated(number, share(0, 1, share_id=f"s{number}")) for number in (1, 2, 3)]
    for claim in claims:
        preparer.prepare(claim, inf1.view())
    known = preparer.checkpoint().claims.values()
    gone, running, _ = (
        dataclasses.replace(
            claim,
            allocation="",
            devices=tuple(dataclasses.replace(each, share=Share(f"s{n}", certain=False)) for each in claim.devices),
        )
        for n, claim in enumerate(known, 1)
    )
    _lose(inf1, 1, 2)
    preparer.complete([gone], [], inf1.view())
    assert held(preparer, 1) == {"neuron-device-0": None}
    _lose(inf1, 2)
    preparer.complete([running], claims[1:], inf1.view())
    assert set(preparer.checkpoint().claims) == {uid(1), uid(2), uid(3)}


def test_a_claim_whose_cores_are_lost_gets_others_when_its_containers_have_ended(inf1: Node) -> None:
    lost, waiting = allocated(1, share(0, 2, share_id="lost")), allocated(2, share(0, 1, share_id="waiting"))
    inf1.preparer().prepare(lost, inf1.view())
    _lose(inf1, 1)
    again = inf1.preparer()
    again.complete(restored(inf1.view(), lost), [lost], inf1.view())
    with pytest.raises(DeviceHeldError, match=r"shared with ResourceClaim ns/claim-1 .*, and the driver lost which"):
        again.prepare(waiting, inf1.view())
    with pytest.raises(
        DeviceHeldError, match=r"shared with ResourceClaim ns/claim-1 .*, and the driver lost which"
    ) as e:
        again.prepare(lost, inf1.view())
    assert (e.value.holder, e.value.ended) == (uid_before(uid(1)), True)
    assert again.release(again.checkpoint().claims[uid_before(uid(1))])
    again.prepare(waiting, inf1.view())
    again.prepare(lost, inf1.view())
    assert held(again, 1) == {"neuron-device-0": (2, 3)}


def test_a_claim_that_is_allocated_again_waits_for_the_containers_of_its_earlier_shares(inf1: Node) -> None:
    """No pod has a right to them, but containers may run on."""
    preparer = inf1.preparer()
    preparer.prepare(allocated(2, share(0, 1, share_id="mine")), inf1.view())
    again = allocated(2, share(0, 2, share_id="another"))
    preparer.prepare(again, inf1.view())
    assert held(preparer, 2) == {"neuron-device-0": (2, 3)}
    with pytest.raises(DeviceHeldError) as caught:
        preparer.prepare(allocated(2, *devices(0)), inf1.view())
    assert (caught.value.holder, caught.value.ended) == (uid_before(uid(2)), True)
    assert preparer.release(preparer.checkpoint().claims[uid_before(uid(2))])
    preparer.prepare(allocated(2, *devices(0)), inf1.view())
    assert held(preparer, 2) == {"neuron-device-0": None}


def test_a_device_of_another_driver_version_without_cores_is_a_whole_one(inf1: Node) -> None:
    other = result("neuron-device-0", shareID="x", consumedCapacity={"memory": "8Gi"})
    preparer = inf1.preparer()
    [answer] = preparer.prepare(allocated(1, other), inf1.view())
    assert (answer.share_id, held(preparer, 1)) == ("x", {"neuron-device-0": None})
