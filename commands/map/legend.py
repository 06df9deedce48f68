"""The letters of the claims of a node: in a drawing, a letter and not only a colour says which claim holds a device."""

import dataclasses
import string
from collections.abc import Iterable
from typing import Final

from commands.devices.devices import Device, DeviceState, HeldDevice, NodeMap
from neuron.findings import few
from runtime.text import number_ranges

LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
MANY: Final = "*"
"""The letter of claims after the first 52, and of a device that several claims share."""
COLOURS: Final = 8
"""Claims that can be told apart by colour; the ninth has that of the first."""

MARKS: Final = {DeviceState.FREE: "·", DeviceState.UNHEALTHY: "✗", DeviceState.TAINTED: "!", DeviceState.PLUGIN: "P"}
ASCII_MARKS: Final = {**MARKS, DeviceState.FREE: ".", DeviceState.UNHEALTHY: "x"}
WORDS: Final = {
    DeviceState.FREE: "free",
    DeviceState.HELD: "held",
    DeviceState.PARTLY: "partly held",
    DeviceState.UNHEALTHY: "unhealthy",
    DeviceState.TAINTED: "tainted",
    DeviceState.PLUGIN: "with the device plugin",
}


@dataclasses.dataclass(frozen=True, slots=True)
class LegendEntry:
    """A claim on a node.

    Attributes:
        colour: 0 to `COLOURS` - 1.
        devices: indices of the devices that it holds.
        cores: cores that it holds of shared devices; 0 if it holds whole devices.
    """

    letter: str
    colour: int
    holding: HeldDevice
    devices: tuple[int, ...]
    cores: int


def entries(node: NodeMap) -> tuple[LegendEntry, ...]:
    """The claims of a node in the order of their devices."""
    held: dict[str, list[tuple[Device, HeldDevice]]] = {}
    for device in node.devices:
        for holding in device.holders:
            held.setdefault(holding.uid or holding.name, []).append((device, holding))
    return tuple(
        LegendEntry(
            LETTERS[number] if number < len(LETTERS) else MANY,
            number % COLOURS,
            pairs[0][1],
            tuple(device.index for device, _ in pairs),
            sum(holding.cores or 0 for _, holding in pairs),
        )
        for number, pairs in enumerate(held.values())
    )


def by_device(found: Iterable[LegendEntry]) -> dict[int, list[LegendEntry]]:
    """The claims that hold each device, by its index."""
    holders: dict[int, list[LegendEntry]] = {}
    for entry in found:
        for index in entry.devices:
            holders.setdefault(index, []).append(entry)
    return holders


def held(entry: LegendEntry) -> str:
    """What a claim holds: `devices 0-3`, `device 9, 1 core` or `the whole node`."""
    if entry.holding.whole_node:
        return "the whole node"
    devices = f"device{'' if len(entry.devices) == 1 else 's'} {ranges(entry.devices)}"
    return f"{devices}, {entry.cores} core{'' if entry.cores == 1 else 's'}" if entry.cores else devices


def users(holding: HeldDevice, most: int = 3) -> str:
    """Who uses a claim: `pod a, b`, `no pod`, or `PodGroup g, pod a, b`."""
    groups = f"PodGroup {few(holding.groups, most)}, " if holding.groups else ""
    return groups + (f"pod {few(holding.pods, most)}" if holding.pods else "no pod")


def ranges(indices: Iterable[int]) -> str:
    """Indices as `0-3, 9`."""
    return ", ".join(number_ranges(indices))
