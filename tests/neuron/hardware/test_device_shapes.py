"""The devices that exist: those of the catalogue as the driver publishes them, those of a cluster as few shapes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.claims.device_index import DeviceIndex
from cluster.kinds.resource_slices import Census
from kubeletplugin.discover.devices import shares_cores
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.discover.sysfs import NeuronDevice, NodeHardware, Place
from kubeletplugin.publish.slices import NodeDevices, desired_slices
from neuron import names
from neuron.hardware.connections import PCI_ADDRESSES
from neuron.hardware.device_shapes import (
    OPERATOR_ATTRIBUTES,
    DeviceShape,
    Varying,
    Version,
    catalogue_shapes,
    qualified,
)
from policies.judging.selectors import DeviceSelectors
from tests.support.validation import CATALOGUE, INDEX, TRN1, TRN2, on, published, shapes_of

CATALOGUED = [entry.name for entry in CATALOGUE if entry.devices]


class _Counted:
    """A selector that counts how often it is evaluated."""

    def __init__(self, expression: str) -> None:
        self._inner = DeviceSelectors().compile(expression)
        self.source = expression
        self.evaluations = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def evaluate(self, *arguments: Any, **named: Any) -> bool:
        self.evaluations += 1
        return self._inner.evaluate(*arguments, **named)


def catalogued(instance_type: str) -> list[DeviceShape]:
    return [shape for shape in catalogue_shapes(CATALOGUE) if shape.instance_type == instance_type]


OPERATED = {f"{names.DRIVER}/{attribute}" for attribute in OPERATOR_ATTRIBUTES}
"""Attributes of AWS's UltraServer operator: this driver does not publish them."""


class TestCatalogue:
    @pytest.mark.parametrize("instance_type", CATALOGUED)
    def test_devices_are_those_that_the_kubelet_plugin_publishes(self, instance_type: str) -> None:
        entry = CATALOGUE.get(instance_type)
        assert entry is not None
        devices = tuple(NeuronDevice(index) for index in range(entry.devices or 0))
        known = devices if entry.devices == 1 or entry.name in PCI_ADDRESSES else ()
        places = {device.index: Place("pci0000:c8", 1) for device in known}
        hardware = NodeHardware(instance_type, "2.25.4.0", devices, places=places)
        facts = NodeFacts("node", "uid", instance_type, {1: "nn-1", 2: "nn-2", 3: "nn-3"}, "cr-1")
        wanted = []
        found = NodeDevices(hardware, entry, shares_cores=shares_cores("auto", entry))
        for content in desired_slices(facts, found, "1.0.0"):
            read = shapes_of(content.content)
            wanted += [
                (dict(each.fixed), set(each.others), dict(each.capacity), each.shares)
                for each in (read.devices if read else ())
            ]
        have = [
            (dict(shape.fixed), set(shape.varying) - OPERATED, dict(shape.capacity), shape.shares)
            for shape in catalogued(instance_type)
            # What is not known may be published, and this driver does not.
            if entry.ultraserver_nodes is not None or shape.resource_type == "neuron_device"
        ]
        assert sorted(have, key=str) == sorted(wanted, key=str)

    def test_a_type_with_an_unknown_device_count_gets_the_largest_count(self) -> None:
        kinds = [shape.resource_type for shape in catalogued("trn3en.24xlarge")]
        assert kinds.count("neuron_device") == 16

    def test_a_type_with_unknown_ultraservers_may_publish_the_whole_node(self) -> None:
        kinds = [shape.resource_type for shape in catalogued("trn3.48xlarge")]
        assert (kinds.count("neuron_device"), kinds.count("neuron_node")) == (16, 1)

    def test_an_ultraserver_node_has_a_device_of_its_own(self) -> None:
        kinds = [shape.resource_type for shape in catalogued("trn2u.48xlarge")]
        assert (kinds.count("neuron_device"), kinds.count("neuron_node")) == (16, 1)


def slice_with(*devices: dict[str, Any]) -> dict[str, Any]:
    return {
        "driver": "neuron.aws.com",
        "devices": [{"name": f"d{index}", "attributes": each} for index, each in enumerate(devices)],
    }


class TestSlices:
    def test_reads_every_type_of_value(self) -> None:
        attributes = {
            "instanceType": {"string": TRN2},
            "deviceId": {"int": 3},
            "spare": {"bool": False},
            "draDriverVersion": {"version": "1.2.3"},
            "resource.aws.com/devicegroup4_id": {"string": "abc"},
            "several": {"strings": ["b", "a"]},
            "newer": {"quantity": "1Gi"},
        }
        read = shapes_of(slice_with(attributes))
        assert read is not None
        [device] = read.devices
        assert dict(device.fixed) == {
            "neuron.aws.com/instanceType": TRN2,
            "neuron.aws.com/deviceId": 3,
            "resource.aws.com/devicegroup4_id": "abc",
        }
        assert device.others == tuple(f"neuron.aws.com/{name}" for name in ("draDriverVersion", "several", "spare"))
        assert (TRN2, "neuron.aws.com/draDriverVersion", Version("1.2.3")) in read.values
        assert (TRN2, "neuron.aws.com/several", ("b", "a")) in read.values

    def test_v1beta1_is_read_too(self) -> None:
        fields = {"attributes": {"deviceId": {"int": 1}}, "capacity": {"memory": {"value": "96Gi"}}}
        current = {"driver": "neuron.aws.com", "devices": [{"name": "d0", **fields}]}
        older = {"driver": "neuron.aws.com", "devices": [{"name": "d0", "basic": fields}]}
        assert shapes_of(older) == shapes_of(current)

    def test_valid_capacities_are_read_and_others_ignored(self) -> None:
        capacity = {"memory": {"value": "96Gi"}, "other.example.com/x": {"value": "2"}, "odd": "1", "empty": {}}
        read = shapes_of({"driver": "neuron.aws.com", "devices": [{"name": "d0", "capacity": capacity}]})
        assert read is not None
        [device] = read.devices
        assert device.capacity == (("neuron.aws.com/memory", "96Gi"), ("other.example.com/x", "2"))

    @pytest.mark.parametrize(
        ("policy", "shares"),
        [
            ({"default": "4", "validValues": ["0", "1", "2", "4"]}, (0, 1, 2, 4)),
            ({"default": "4"}, ()),
            ({"validValues": ["x"]}, ()),
            (None, ()),
        ],
    )
    def test_reads_the_shares_of_a_device(self, policy: Any, shares: tuple[int, ...]) -> None:
        capacity = {"neuroncores": {"value": "4", "requestPolicy": policy}}
        device = {"name": "d0", "allowMultipleAllocations": True, "capacity": capacity}
        shared = shapes_of({"driver": "neuron.aws.com", "devices": [device]})
        alone = shapes_of({"driver": "neuron.aws.com", "devices": [{**device, "allowMultipleAllocations": False}]})
        assert [each.shares for read in (shared, alone) for each in (read.devices if read else ())] == [shares, None]

    @pytest.mark.parametrize(
        "spec",
        [{"driver": "gpu.nvidia.com", "devices": [{}]}, {"driver": "neuron.aws.com"}, slice_with()],
        ids=["another driver", "counters only", "no devices"],
    )
    def test_slices_without_neuron_devices_are_ignored(self, spec: dict[str, Any]) -> None:
        assert shapes_of(spec) is None


class TestCensus:
    def test_nodes_that_differ_in_nothing_but_their_place_are_one_shape_per_device(self) -> None:
        census = Census()
        for number in range(200):
            census.replace(None, shapes_of(published(TRN2, node=f"nn-{number}")))
        assert len(census.shapes()) == 16
        [varying] = {shape.varying["neuron.aws.com/networkNodeLayer1"] for shape in census.shapes()}
        assert varying.values is not None
        assert len(varying.values) == 200

    def test_the_census_is_empty_after_all_slices_are_removed(self) -> None:
        census = Census()
        slices = [shapes_of(published(TRN2)), shapes_of(published(TRN1)), shapes_of(published(TRN2, node="b"))]
        assert all(census.replace(None, each) for each in slices)
        assert all(census.replace(each, None) for each in reversed(slices))
        assert census.shapes() == ()

    def test_an_equal_node_changes_nothing(self) -> None:
        census = Census()
        first = shapes_of(published(TRN2))
        assert census.replace(None, first)
        assert not census.replace(None, shapes_of(published(TRN2)))
        assert not census.replace(first, None)
        assert not census.replace(first, shapes_of(published(TRN2)))

    def test_a_changed_slice_removes_its_old_values(self) -> None:
        census = Census()
        before, after = shapes_of(published(TRN2)), shapes_of(published(TRN2, driver_version="2.26.5.0"))
        census.replace(None, before)
        assert census.replace(before, after)
        versions = census.shapes()[0].varying["neuron.aws.com/neuronDriverVersion"].values
        assert versions == frozenset({"2.26.5.0"})

    def test_an_attribute_with_thousands_of_values_may_have_any_value(self) -> None:
        census = Census()
        for number in range(4100):
            device = {"instanceType": {"string": TRN2}, "serial": {"string": str(number)}}
            census.replace(None, shapes_of(slice_with(device)))
        [shape] = census.shapes()
        assert shape.varying["neuron.aws.com/serial"] == Varying(None)

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=30))
    def test_the_order_of_changes_does_not_matter(self, changes: list[tuple[int, int, bool]]) -> None:
        census, stored = Census(), {}
        for node, version, present in changes:
            after = shapes_of(published(TRN2, 2, driver_version=f"2.{version}.0.0")) if present else None
            census.replace(stored.get(node), after)
            stored[node] = after
        fresh = Census()
        for each in stored.values():
            fresh.replace(None, each)
        assert described(census) == described(fresh)


def described(census: Census) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Shapes in an order that does not depend on how sets are printed."""
    return sorted(
        (
            str(sorted(shape.fixed.items(), key=str)),
            sorted((name, sorted(map(str, varying.values or ()))) for name, varying in shape.varying.items()),
        )
        for shape in census.shapes()
    )


class TestIndex:
    def test_a_capacity_tells_shapes_apart(self) -> None:
        selector = _Counted("device.capacity['neuron.aws.com'].memory.compareTo(quantity('80Gi')) >= 0")
        index = DeviceIndex(catalogue_shapes(CATALOGUE))
        match = index.match(selector)
        families = {name.partition(".")[0] for name in index.types(match.matched)}
        assert {family[:4] for family in families} == {"trn2", "trn3"}
        assert match.failing == 0, "every type of the catalogue has documented memory"
        assert selector.evaluations < 10

    def test_a_selector_that_iterates_over_capacities_is_evaluated_on_every_shape(self) -> None:
        index = DeviceIndex(catalogue_shapes(CATALOGUE))
        match = index.match(
            DeviceSelectors().compile("device.capacity['neuron.aws.com'].exists(name, name == 'memory')")
        )
        assert match.matched == index.everything

    def test_a_selector_is_evaluated_once_for_shapes_that_it_cannot_distinguish(self) -> None:
        selector = _Counted(on(TRN2))
        index = DeviceIndex(catalogue_shapes(CATALOGUE))
        assert index.types(index.match(selector).matched) == (TRN2,)
        assert selector.evaluations == len(CATALOGUE.names())

    def test_cost_does_not_grow_with_nodes(self) -> None:
        counts = []
        for nodes in (1, 300):
            census = Census()
            for number in range(nodes):
                census.replace(None, shapes_of(published(TRN2, node=f"nn-{number}")))
            selector = _Counted(on(TRN2))
            DeviceIndex([*catalogue_shapes(CATALOGUE), *census.shapes()]).match(selector)
            counts.append(selector.evaluations)
        assert counts[0] == counts[1]

    def test_a_selector_that_iterates_over_attributes_is_evaluated_on_every_shape(self) -> None:
        selector = _Counted("device.attributes['neuron.aws.com'].exists(name, name == 'topology_x')")
        matched = INDEX.types(DeviceIndex(INDEX.shapes).match(selector).matched)
        assert selector.evaluations >= len(INDEX.shapes)
        assert TRN2 in matched
        assert "trn2u.48xlarge" not in matched

    def test_devices_of_a_node_are_not_counted_twice(self) -> None:
        census = Census()
        census.replace(None, shapes_of(published(TRN2)))
        index = DeviceIndex([*catalogue_shapes(CATALOGUE), *census.shapes()])
        assert index.devices(index.everything, TRN2) == 16
        assert INDEX.devices(INDEX.everything, "trn2u.48xlarge") == 16

    def test_groups_are_counted_by_value(self) -> None:
        name = "resource.aws.com/devicegroup8_id"
        assert INDEX.groups(INDEX.everything, name, TRN2) == 8
        assert INDEX.groups(INDEX.everything, qualified("networkNodeLayer1"), TRN2) == 16
        assert INDEX.groups(INDEX.everything, "resource.aws.com/devicegroup16_id", "inf2.48xlarge") == 0

    def test_a_device_is_in_the_groups_of_all_values_of_a_list(self) -> None:
        group = names.device_group_attribute(4)
        lists = [{"strings": ["a", "b"]}, {"strings": ["b"]}, {"string": "b"}, {"strings": ["a", "c"]}]
        census = Census()
        read = shapes_of(
            slice_with(
                *[
                    {"instanceType": {"string": TRN2}, "deviceId": {"int": index}, group: each}
                    for index, each in enumerate(lists)
                ]
            )
        )
        census.replace(None, read)
        index = DeviceIndex(census.shapes())
        assert index.groups(index.everything, group, TRN2) == 3
