"""Where the Neuron devices are on the PCI bus: root complex and NUMA node of each, from sysfs.

The kernel driver shows its devices as virtual ones, without a link to their PCI functions. So the function of device N
is known only in two cases: the node has one device and one Neuron function; or AWS documents the addresses of the
instance type, and the node has Neuron functions at these addresses only.

Vendor and device ids: those that the kernel driver binds to.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from neuron.hardware import pci_addresses

DEVICES: Final = Path("bus/pci/devices")
VENDOR: Final = "0x1d0f"
NEURON_FUNCTIONS: Final = frozenset(
    {"0x7064", "0x7065", "0x7066", "0x7067", "0x7164", "0x7264", "0x7364"}  # inf1 (four), trn1, inf2, trn2
)

_ROOT: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", re.ASCII)
_FUNCTION: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The place of one device.

    Attributes:
        root: its PCIe root complex, e.g. `pci0000:c8`; None if it is not known.
        numa_node: the NUMA node; None if it is not known, or if the machine has none.
        address: its PCI address, e.g. `0000:cc:00.0`; None if it is not known.
    """

    root: str | None = None
    numa_node: int | None = None
    address: str | None = None


def places(sysfs_root: Path, instance_type: str | None, indices: Collection[int]) -> dict[int, Place]:
    """The place of each device whose PCI function is known, by the device's index; also of one that has vanished.

    Args:
        sysfs_root: usually `/sys`.
        instance_type: EC2 type of the node, if it is known.
    """
    functions = neuron_functions(sysfs_root / DEVICES)
    found = _assigned(functions, instance_type, indices)
    return {index: _place(path.resolve()) for index, path in found.items()}


def _assigned(functions: Mapping[str, Path], instance_type: str | None, indices: Collection[int]) -> dict[int, Path]:
    if len(indices) == len(functions) == 1:
        return dict(zip(indices, functions.values(), strict=True))
    documented = pci_addresses.ADDRESSES.get(instance_type or "", ())
    if not functions.keys() <= set(documented):
        return {}
    return {index: functions[address] for index, address in enumerate(documented) if address in functions}


def neuron_functions(directory: Path) -> dict[str, Path]:
    """The PCI functions of Neuron devices, by address."""
    try:
        entries = [path for path in directory.iterdir() if _FUNCTION.fullmatch(path.name)]
    except OSError:
        return {}
    return {
        path.name: path
        for path in entries
        if _text(path / "vendor") == VENDOR and _text(path / "device") in NEURON_FUNCTIONS
    }


def _place(function: Path) -> Place:
    root = next((part for part in function.parts if _ROOT.fullmatch(part)), None)
    number = _text(function / "numa_node")
    known = number.isascii() and number.isdecimal()  # -1: the firmware tells none
    return Place(root, int(number) if known else None, function.name)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""
