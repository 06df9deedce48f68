"""ResourceSlices of every version as one type: pools, devices, counters, and errors that name the path."""

from typing import Any

import pytest

from neuron import names
from neuron.api.fields import WrongFormError
from neuron.api.slices import Capacity, Slice, incomplete, newest, read_slice
from neuron.api.taints import Taint
from neuron.hardware.device_shapes import Version

FIELDS: dict[str, Any] = {
    "attributes": {"deviceId": {"int": 0}, "x.y/ok": {"bool": True}, "v": {"version": "1.2.3"}, "l": {"list": []}},
    "capacity": {"neuroncores": {"value": "4", "requestPolicy": {"validValues": ["1", "4"]}}, "newer": {"range": {}}},
    "allowMultipleAllocations": True,
    "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}],
    "taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}],
    "newer": 1,
}


def body(*devices: dict[str, Any], pool: str = "a", **of_pool: int) -> dict[str, Any]:
    return {"spec": {"driver": names.DRIVER, "pool": {"name": pool, **of_pool}, "devices": list(devices)}}


def slice_of(pool: str, generation: int, parts: int = 1) -> Slice:
    return read_slice(body(pool=pool, generation=generation, resourceSliceCount=parts))


@pytest.mark.parametrize("device", [{"name": "d0", **FIELDS}, {"name": "d0", "basic": FIELDS}], ids=["v1", "v1beta1"])
def test_a_device_is_equal_in_all_versions(device: dict[str, Any]) -> None:
    [found] = read_slice(body(device)).devices
    assert found.attributes == {"neuron.aws.com/deviceId": 0, "x.y/ok": True, "neuron.aws.com/v": Version("1.2.3")}
    assert (found.text("v"), found.text("deviceId"), found.attribute("absent")) == ("1.2.3", "", None)
    assert found.capacity == {"neuroncores": Capacity("4", valid=("1", "4"))}
    assert (found.shared, found.counters) == (True, {"s/c": 1})
    assert found.taints == (Taint("k", "", "NoExecute"),)
    assert found.is_single


@pytest.mark.parametrize(
    ("box", "value"),
    [
        ({"ints": [0, 1]}, (0, 1)),
        ({"strings": ["pci0000:00"]}, ("pci0000:00",)),
        ({"bools": [True, False]}, (True, False)),
        ({"versions": ["1.2.3", "2.0.0"]}, (Version("1.2.3"), Version("2.0.0"))),
        ({"ints": []}, None),
        ({"ints": [0, True]}, None),
        ({"strings": [1]}, None),
        ({"ints": "0"}, None),
        ({"int": True}, None),
        ({"floats": [1.5]}, None),
    ],
    ids=["ints", "strings", "bools", "versions", "empty", "mixed", "wrong type", "no list", "bool as int", "newer"],
)
def test_list_type_attributes_are_tuples(box: dict[str, Any], value: object) -> None:
    [device] = read_slice(body({"name": "d0", "attributes": {"several": box}})).devices
    assert device.attribute("several") == value
    if value is not None:
        assert list(map(type, device.attribute("several"))) == list(map(type, value))  # type: ignore[arg-type, call-overload]


def test_what_is_absent_or_null_is_empty() -> None:
    found = read_slice({"spec": {"driver": "d", "pool": {"name": "a"}, "devices": None, "sharedCounters": None}})
    assert found == Slice("d", "a", 0, 0, "a")
    counters = [{"name": "s", "counters": {"c": {"value": "2k"}}}]
    spec = {**body()["spec"], "nodeName": "n", "sharedCounters": counters}
    assert read_slice({"spec": spec}) == Slice(names.DRIVER, "a", 0, 0, "n", (), {"s/c": 2000})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({}, "Object missing required field `spec`"),
        ([], "Expected `object`, got `array`"),
        ({"spec": {"driver": "d", "pool": {"name": 1}}}, "Expected `str`, got `int` - at `$.spec.pool.name`"),
        (body({}), "Object missing required field `name` - at `$.spec.devices[0]`"),
        (
            body({"name": "d", "consumesCounters": [{"counters": {"c": {"value": "x"}}}]}),
            "the value of a counter is not a quantity",
        ),
    ],
)
def test_another_form_is_refused_with_its_path(item: object, message: str) -> None:
    with pytest.raises(WrongFormError) as refused:
        read_slice(item)
    assert str(refused.value) == message


def test_pools() -> None:
    old, new, other = slice_of("a", 1), slice_of("a", 2, 2), slice_of("b", 1)
    assert newest([old, new, other]) == [new, other]
    assert incomplete([new, other]) == {"a": (1, 2)}
