"""Computes the attributes of connected device groups, `resource.aws.com/devicegroup<size>_id`, as AWS does.

Source: `connected-device-maps-over-efa-for-neuron` (aws-neuron). A group of 4, 8 or 16 consists of that many
consecutive device ids, starting at a multiple of its size. Its id is a hash of the PCI addresses of the EFA interfaces
nearest to its devices. All nodes of an instance family publish the same ids; a constraint on them connects devices only
because a claim is allocated on one node.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from neuron import names

GROUP_SIZES: Final = (4, 8, 16)
"""Sizes of groups with an id. A group of 1 is a device; it has the address of its EFA interface instead."""

_ID_LENGTH: Final = 16

_TRN1: Final = (
    "0000:10:1a.0 0000:10:1a.0 0000:a0:1a.0 0000:a0:1a.0 0000:20:19.0 0000:20:19.0 0000:90:19.0 0000:90:19.0 "
    "0000:20:1a.0 0000:20:1a.0 0000:90:1a.0 0000:90:1a.0 0000:10:19.0 0000:10:19.0 0000:a0:19.0 0000:a0:19.0"
)
_TRN1N: Final = (
    "0000:10:17.0 0000:10:1a.0 0000:a0:17.0 0000:a0:1a.0 0000:20:19.0 0000:20:18.0 0000:90:19.0 0000:90:18.0 "
    "0000:20:17.0 0000:20:1a.0 0000:90:17.0 0000:90:1a.0 0000:10:19.0 0000:10:18.0 0000:a0:19.0 0000:a0:18.0"
)
_TRN2: Final = (
    "0000:c9:00.0 0000:b4:00.0 0000:b3:00.0 0000:ca:00.0 0000:6c:00.0 0000:57:00.0 0000:56:00.0 0000:6d:00.0 "
    "0000:98:00.0 0000:83:00.0 0000:82:00.0 0000:99:00.0 0000:f5:00.0 0000:e0:00.0 0000:df:00.0 0000:f6:00.0"
)
_TRN3: Final = (
    "0000:be:00.0 0000:a9:00.0 0000:a8:00.0 0000:bf:00.0 0000:61:00.0 0000:4c:00.0 0000:4b:00.0 0000:62:00.0 "
    "0000:8d:00.0 0000:78:00.0 0000:77:00.0 0000:8e:00.0 0000:ea:00.0 0000:d5:00.0 0000:d4:00.0 0000:eb:00.0"
)
_TRN3_DEV: Final = (
    "0000:a9:00.0 0000:a8:00.0 0000:bf:00.0 0000:be:00.0 0000:d5:00.0 0000:d4:00.0 0000:eb:00.0 0000:ea:00.0 "
    "0000:4c:00.0 0000:4b:00.0 0000:62:00.0 0000:61:00.0 0000:78:00.0 0000:77:00.0 0000:8e:00.0 0000:8d:00.0"
)

_EFA_OF_DEVICE: Final[Mapping[str, tuple[str, ...]]] = {
    instance_type: tuple(addresses.split())
    for addresses, instance_types in (
        (_TRN1, ("trn1.32xlarge",)),
        (_TRN1N, ("trn1n.32xlarge",)),
        (_TRN2, ("trn2.48xlarge", "trn2e.48xlarge", "trn2u.48xlarge")),
        (_TRN3, ("trn3.48xlarge", "trn3p.48xlarge", "trn3pd98.48xlarge", "trn3s.48xlarge")),
        (_TRN3_DEV, ("trn3-dev0.48xlarge", "trn3-dev1.48xlarge")),
    )
    for instance_type in instance_types
}
"""PCI address of the EFA interface nearest to each device, by device id. Types with one device or without EFA
(trn1.2xlarge, trn2.3xlarge, inf) are not listed: they have no groups."""


def nearest_efa(instance_type: str, device_id: int) -> str | None:
    """PCI address of the EFA interface nearest to a device; None if AWS publishes no map."""
    addresses = _EFA_OF_DEVICE.get(instance_type, ())
    return addresses[device_id] if 0 <= device_id < len(addresses) else None


def group_id(instance_type: str, device_id: int, size: int) -> str | None:
    """The id that all devices of one group share.

    Args:
        instance_type: e.g. `trn2.48xlarge`.
        device_id: index of a device on its node.
        size: one of `GROUP_SIZES`.

    Returns:
        16 hexadecimal digits; None if AWS publishes no map.
    """
    addresses = _EFA_OF_DEVICE.get(instance_type, ())
    if not 0 <= device_id < len(addresses):
        return None
    start = device_id // size * size
    members = sorted(set(addresses[start : start + size]))
    return hashed(",".join(members))


def interfaces(instance_type: str, size: int) -> int:
    """EFA interfaces of one group of `size` devices; 0 if AWS publishes no map.

    Neighbouring devices can share an interface: on trn1 a group of 4 has 2.
    """
    return len(set(_EFA_OF_DEVICE.get(instance_type, ())[:size]))


def described(instance_type: str, size: int) -> str:
    """What a group has, for messages, such as `a group of 4 devices of trn1.32xlarge has 2 EFA interfaces`."""
    group = "one device" if size == 1 else f"a group of {size} devices"
    count = interfaces(instance_type, size)
    return f"{group} of {instance_type} has {count} EFA interface{'' if count == 1 else 's'}"


def hashed(text: str) -> str:
    """16 hexadecimal digits of a text's hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:_ID_LENGTH]


def group_attributes(instance_type: str, device_id: int) -> dict[str, str]:
    """A device's group attributes by qualified name; empty if AWS publishes no map."""
    efa = nearest_efa(instance_type, device_id)
    if efa is None:
        return {}
    attributes = {names.device_group_attribute(1): efa}
    for size in GROUP_SIZES:
        identifier = group_id(instance_type, device_id, size)
        if identifier is not None:
            attributes[names.device_group_attribute(size)] = identifier
    return attributes
