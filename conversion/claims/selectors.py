"""CEL of generated device selectors.

All lookups have a guard: a missing attribute is a run-time error, and an error on one device of one node ends the
scheduling of the pod (dynamic-resource-allocation/cel).
"""

import functools
import re
from collections.abc import Sequence
from typing import Final

from neuron import names

_ATTRIBUTES: Final = f'device.attributes["{names.DRIVER}"]'
_AND: Final = " && "
_OR: Final = " || "


def single_device() -> str:
    """Excludes whole nodes: without it the allocator gave a `count: 1` request an UltraServer node.

    A device without the attribute matches: drivers before UltraServers did not publish it.
    """
    attribute = names.ATTRIBUTE_RESOURCE_TYPE
    return f'!("{attribute}" in {_ATTRIBUTES}) || {_ATTRIBUTES}.{attribute} == "{names.RESOURCE_TYPE_DEVICE}"'


_SINGLE_DEVICE: Final = single_device()


def whole_node() -> str:
    """Selects whole UltraServer nodes."""
    return _one_of(names.ATTRIBUTE_RESOURCE_TYPE, [f'"{names.RESOURCE_TYPE_NODE}"'])


def single_devices(types: Sequence[str] = (), ids: Sequence[int] = ()) -> str:
    """Selects single devices of EC2 instance types, by their index on the node. Empty: any type, any index.

    It is one expression: for each selector and device the allocator converts all attributes of the device, which costs
    more than to evaluate the expression. The parts that exclude most devices come first.

    Args:
        types: names of the catalogue or the cluster, not user input.
        ids: indexes on the node.
    """
    return _single_devices(tuple(types), tuple(ids))


@functools.lru_cache(maxsize=1024)
def _single_devices(types: tuple[str, ...], ids: tuple[int, ...]) -> str:
    """One text for all templates that have it: lists of pods have thousands of them."""
    parts = []
    if ids:
        parts.append(_one_of(names.ATTRIBUTE_DEVICE_ID, _ids(ids), always_list=True))
    if types:
        parts.append(instance_types(types))
    return _AND.join([*parts, f"({_SINGLE_DEVICE})"]) if parts else _SINGLE_DEVICE


def single_devices_at(places: Sequence[tuple[Sequence[str], Sequence[int]]]) -> str:
    """Selects single devices by instance type, and of each type by index. Cost and guards as `single_devices`.

    Args:
        places: types with their indexes on the node; without indexes, all devices of the types.
    """
    if len(places) == 1:
        return single_devices(*places[0])
    return _single_devices_at(tuple([(tuple(types), tuple(ids)) for types, ids in places]))


@functools.lru_cache(maxsize=1024)
def _single_devices_at(places: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]) -> str:
    tests = [
        _AND.join([*([_test(names.ATTRIBUTE_DEVICE_ID, _ids(ids), always_list=True)] if ids else ()), _types(types)])
        for types, ids in places
    ]
    guards = [_guard(names.ATTRIBUTE_DEVICE_ID), _guard(names.ATTRIBUTE_INSTANCE_TYPE)]
    return _AND.join([*guards, f"({_OR.join(tests)})", f"({_SINGLE_DEVICE})"])


def other_driver() -> str:
    """Excludes all Neuron devices, whatever the DeviceClass of the request selects."""
    return f'device.driver != "{names.DRIVER}"'


def instance_types(types: Sequence[str]) -> str:
    """Selects EC2 instance types. `types` are names of the catalogue or the cluster, not user input."""
    return _one_of(names.ATTRIBUTE_INSTANCE_TYPE, [f'"{name}"' for name in types])


def _one_of(attribute: str, values: Sequence[str], *, always_list: bool = False) -> str:
    return f"{_guard(attribute)}{_AND}{_test(attribute, values, always_list=always_list)}"


def _guard(attribute: str) -> str:
    return f'"{attribute}" in {_ATTRIBUTES}'


def _test(attribute: str, values: Sequence[str], *, always_list: bool = False) -> str:
    lookup = f"{_ATTRIBUTES}.{attribute}"
    single = len(values) == 1 and not always_list
    return f"{lookup} == {values[0]}" if single else f"{lookup} in [{', '.join(values)}]"


def _types(types: Sequence[str]) -> str:
    return _test(names.ATTRIBUTE_INSTANCE_TYPE, [f'"{name}"' for name in types])


def _ids(ids: Sequence[int]) -> list[str]:
    return [str(index) for index in ids]


def _pattern(attribute: str, value: str) -> str:
    return rf"{re.escape(f'{_ATTRIBUTES}.{attribute} ')}(?:== {value}|in \[{value}(?:, {value})*\])"


_GUARD_OF_ID, _GUARD_OF_TYPE = (
    re.escape(_guard(attribute) + _AND) for attribute in (names.ATTRIBUTE_DEVICE_ID, names.ATTRIBUTE_INSTANCE_TYPE)
)
_ID: Final = _pattern(names.ATTRIBUTE_DEVICE_ID, "[0-9]+")
_TYPE: Final = _pattern(names.ATTRIBUTE_INSTANCE_TYPE, '"[A-Za-z0-9._-]+"')
_PLACE: Final = rf"(?:{_ID}{re.escape(_AND)})?{_TYPE}"
_SINGLE_DEVICES: Final = re.compile(
    rf"(?:(?:{_GUARD_OF_ID}{_ID}{re.escape(_AND)})?(?:{_GUARD_OF_TYPE}{_TYPE}{re.escape(_AND)})?"
    rf"|{_GUARD_OF_ID}{_GUARD_OF_TYPE}\({_PLACE}(?:{re.escape(_OR)}{_PLACE})+\){re.escape(_AND)})"
    + re.escape(f"({_SINGLE_DEVICE})"),
    re.ASCII,
)
_LONGEST: Final = 4096
"""Characters of an expression that is compared."""


def selects_single_devices(expression: str) -> bool:
    """Whether `single_devices` or `single_devices_at` can make an expression, which then matches no whole node."""
    return expression == _SINGLE_DEVICE or (
        len(expression) <= _LONGEST and _SINGLE_DEVICES.fullmatch(expression) is not None
    )
