"""CEL of generated device selectors.

Every lookup is guarded: a missing attribute is a run-time error, and one error on one device of one node aborts the
scheduling of the pod everywhere (dynamic-resource-allocation/cel).
"""

from collections.abc import Sequence

from neuron import names

_ATTRIBUTES = f'device.attributes["{names.DRIVER}"]'


def single_device() -> str:
    """Not a whole node: `count: 1` without it was given an UltraServer node when that came first.

    A device without the attribute is a device: drivers before UltraServers did not publish it.
    """
    attribute = names.ATTRIBUTE_RESOURCE_TYPE
    return f'!("{attribute}" in {_ATTRIBUTES}) || {_ATTRIBUTES}.{attribute} == "{names.RESOURCE_TYPE_DEVICE}"'


def whole_node() -> str:
    """An entire UltraServer node."""
    attribute = names.ATTRIBUTE_RESOURCE_TYPE
    return f'"{attribute}" in {_ATTRIBUTES} && {_ATTRIBUTES}.{attribute} == "{names.RESOURCE_TYPE_NODE}"'


def instance_types(types: Sequence[str]) -> str:
    """One of these EC2 instance types. They come from the catalogue or the cluster, never from free text."""
    attribute = names.ATTRIBUTE_INSTANCE_TYPE
    lookup = f"{_ATTRIBUTES}.{attribute}"
    quoted = [f'"{name}"' for name in types]
    test = f"{lookup} == {quoted[0]}" if len(quoted) == 1 else f"{lookup} in [{', '.join(quoted)}]"
    return f'"{attribute}" in {_ATTRIBUTES} && {test}'
