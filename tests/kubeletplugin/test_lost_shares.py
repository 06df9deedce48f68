"""What containers' variables tell of the shares of a lost state, and shares that nobody tells."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.files import DiskFiles
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare.cdi import read_visible_cores, visible_cores
from kubeletplugin.prepare.checkpoint import CheckpointStore, PreparedDevice, uid_before
from kubeletplugin.prepare.decide import DeviceHeldError, as_told
from neuron.api.allocation import AllocatedClaim
from tests.kubeletplugin.fakes import Node, allocated, config, devices, match, share, uid

TYPE = "inf1.6xlarge"
"""Four devices with four cores each, in a chain."""


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


def decided(node: Node, claim: AllocatedClaim) -> tuple[tuple[PreparedDevice, ...], dict[str, dict[str, str]]]:
    """Devices and variables of a claim."""
    preparer = node.preparer()
    preparer.prepare(claim, node.view())
    prepared = preparer.checkpoint().claims[claim.uid]
    return prepared.devices, prepared.environment


@pytest.mark.parametrize(("instance_type", "results", "more"), TOGETHER.values(), ids=TOGETHER)
def test_variables_tell_each_share_as_it_was(
    tmp_path: Path, instance_type: str, results: tuple[JsonObject, ...], more: Any
) -> None:
    node = Node(tmp_path, instance_type)
    claim = allocated(1, *results, **more)
    before, variables = decided(node, claim)
    assert as_told(claim, variables, node.view()).devices == tuple(each for each in before if each.share is not None)
    untold = as_told(claim, {}, node.view()).devices
    assert [each.cores for each in untold] == [None for each in before if each.share is not None and each.cores is None]


def test_a_share_of_a_device_of_unknown_size_is_not_told(tmp_path: Path) -> None:
    node = Node(tmp_path, TRN2)
    claim = allocated(1, share(0, 4, share_id="x"))
    view = node.view()
    [device] = view.hardware.devices
    hardware = dataclasses.replace(view.hardware, devices=(dataclasses.replace(device, cores=None),))
    unknown = dataclasses.replace(view, hardware=hardware, instance=None)
    assert as_told(claim, {"n0": {"NEURON_RT_VISIBLE_CORES": "0-1"}}, unknown).devices == ()


def test_a_share_that_the_kubelet_does_not_tell_is_prepared_when_its_containers_have_ended(tmp_path: Path) -> None:
    """A claim of which only the kubelet knew after a lost state, and that has its object again."""
    node = Node(tmp_path, TYPE)
    claim = allocated(1, share(0, 1, share_id="one"))
    preparer = node.preparer()
    preparer.prepare(claim, node.view())
    checkpoint = preparer.checkpoint()
    [device] = checkpoint.claims[uid(1)].devices
    told = dataclasses.replace(
        checkpoint.claims[uid(1)], allocation="", environment={}, devices=(dataclasses.replace(device, share=None),)
    )
    CheckpointStore(DiskFiles(), node.state_dir).save(checkpoint.with_claim(told))
    preparer = node.preparer()
    with pytest.raises(DeviceHeldError, match=r"still prepared for ResourceClaim ns/claim-1 ") as caught:
        preparer.prepare(claim, node.view())
    assert caught.value.ended, "its containers may have any cores"
    assert preparer.release(preparer.checkpoint().claims[uid_before(uid(1))])
    assert [answer.share_id for answer in preparer.prepare(claim, node.view())] == ["one"]
