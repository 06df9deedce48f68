"""PCI addresses of the Neuron devices of an instance type, by device index.

Source: the samples of `neuron-ls` in the AWS Neuron documentation. Only these types have a documented list.
"""

from collections.abc import Mapping
from typing import Final

from neuron.hardware.instances import InstanceType

ADDRESSES: Final[Mapping[str, tuple[str, ...]]] = {
    "trn1.32xlarge": (
        *("0000:10:1c.0", "0000:10:1d.0", "0000:a0:1c.0", "0000:a0:1d.0"),
        *("0000:20:1b.0", "0000:20:1c.0", "0000:90:1b.0", "0000:90:1c.0"),
        *("0000:20:1d.0", "0000:20:1e.0", "0000:90:1d.0", "0000:90:1e.0"),
        *("0000:10:1e.0", "0000:10:1b.0", "0000:a0:1e.0", "0000:a0:1b.0"),
    ),
    "trn2.48xlarge": (
        *("0000:cc:00.0", "0000:b5:00.0", "0000:b6:00.0", "0000:cb:00.0"),
        *("0000:6f:00.0", "0000:58:00.0", "0000:59:00.0", "0000:6e:00.0"),
        *("0000:9b:00.0", "0000:84:00.0", "0000:85:00.0", "0000:9a:00.0"),
        *("0000:f8:00.0", "0000:e1:00.0", "0000:e2:00.0", "0000:f7:00.0"),
    ),
}


def tells(entry: InstanceType) -> bool:
    """Whether a node of this type can tell which device has which PCI function: one device, or a documented list."""
    return entry.devices == 1 or entry.name in ADDRESSES
