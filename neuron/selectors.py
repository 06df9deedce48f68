"""CEL of generated device selectors.

All lookups have a guard: a missing attribute is a run-time error, and an error on one device of one node ends the
scheduling of the pod (dynamic-resource-allocation/cel).
"""

from collections.abc import Sequence

from neuron import names

_ATTRIBUTES = f'device.attributes["{names.DRIVER}"]'


def single_device() -> str:
    """Excludes whole nodes: without it the allocator gave a `count: 1` request an UltraServer node.

    A device without the attribute matches: drivers before UltraServers did not publish it.
    """
    attribute = names.ATTRIBUTE_RESOURCE_TYPE
    return f'!("{attribute}" in {_ATTRIBUTES}) || {_ATTRIBUTES}.{attribute} == "{names.RESOURCE_TYPE_DEVICE}"'


def whole_node() -> str:
    """Selects whole UltraServer nodes."""
    attribute = names.ATTRIBUTE_RESOURCE_TYPE
    return f'"{attribute}" in {_ATTRIBUTES} && {_ATTRIBUTES}.{attribute} == "{names.RESOURCE_TYPE_NODE}"'


def device_ids(ids: Sequence[int]) -> str:
    """Selects devices by their index on the node."""
    attribute = names.ATTRIBUTE_DEVICE_ID
    listed = ", ".join(map(str, ids))
    return f'"{attribute}" in {_ATTRIBUTES} && {_ATTRIBUTES}.{attribute} in [{listed}]'


def instance_types(types: Sequence[str]) -> str:
    """Selects EC2 instance types. `types` are names of the catalogue or the cluster, not user input."""
    attribute = names.ATTRIBUTE_INSTANCE_TYPE
    lookup = f"{_ATTRIBUTES}.{attribute}"
    quoted = [f'"{name}"' for name in types]
    test = f"{lookup} == {quoted[0]}" if len(quoted) == 1 else f"{lookup} in [{', '.join(quoted)}]"
    return f'"{attribute}" in {_ATTRIBUTES} && {test}'
