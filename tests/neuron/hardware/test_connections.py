"""Every type publishes what a claim needs to get connected devices."""

import dataclasses

import pytest

from neuron.hardware import connections, device_groups
from neuron.hardware.instances import Catalogue, InstanceType, Topology

NEW = InstanceType("trn9.48xlarge", "trn9", 16, 8, (1, 2), 2, None, Topology.SWITCH, (1, 2, 4))


def known(name: str) -> InstanceType:
    entry = Catalogue().get(name)
    assert entry is not None
    return entry


def groups(entry: InstanceType, size: int) -> list[set[int]]:
    found: dict[str, set[int]] = {}
    for device_id in range(16):
        value = connections.attributes(entry, device_id, 16)[f"resource.aws.com/devicegroup{size}_id"]
        found.setdefault(value, set()).add(device_id)
    return list(found.values())


def test_groups_of_a_policy_file_are_published() -> None:
    assert set(connections.attributes(NEW, 0, 16)) == {f"resource.aws.com/devicegroup{size}_id" for size in (2, 4)}
    assert groups(NEW, 4) == [set(range(start, start + 4)) for start in (0, 4, 8, 12)]
    assert len(groups(NEW, 2)) == 8


def test_values_are_equal_on_all_nodes_of_a_type_and_differ_between_sizes() -> None:
    again = connections.attributes(dataclasses.replace(NEW), 5, 16)
    assert connections.attributes(NEW, 5, 16) == again
    assert len(set(again.values())) == len(again)
    assert all(len(value) == 16 for value in again.values())


def test_group_ids_are_those_of_the_map_that_aws_publishes() -> None:
    trn2 = known("trn2.48xlarge")
    assert connections.attributes(trn2, 6, 16) == device_groups.group_attributes("trn2.48xlarge", 6)
    wider = dataclasses.replace(trn2, groups=(2, 4, 8, 16))
    added = connections.attributes(wider, 6, 16)
    assert added.items() > device_groups.group_attributes("trn2.48xlarge", 6).items()
    assert groups(wider, 2)[0] == {0, 1}


@pytest.mark.parametrize("name", ["inf2.xlarge", "trn1.2xlarge", "trn3n.48xlarge"])
def test_types_without_groups_have_no_attribute(name: str) -> None:
    assert connections.attributes(known(name), 0, 16) == {}


@pytest.mark.parametrize("topology", [Topology.RING, Topology.CHAIN])
def test_the_length_of_a_ring_or_chain_can_be_that_of_the_node(topology: Topology) -> None:
    unknown = InstanceType("odd.large", "odd", None, 2, (1,), 1, None, topology)
    stated = dataclasses.replace(unknown, devices=6)
    assert connections.attributes(unknown, 3, 6) == connections.attributes(stated, 3, 1) != {}
    assert connections.attributes(unknown, 0, 1) == {}
