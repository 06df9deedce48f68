"""The letters of the claims of a node: in a drawing, a letter and not only a colour says which claim holds a device."""

import dataclasses
import string
from collections.abc import Iterable, Sequence
from typing import Final

from commands.devices.devices import Device, Holding, NodeMap, State

LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
MANY: Final = "*"
"""The letter of claims after the first 52, and of a device that several claims share."""
COLOURS: Final = 8
"""Claims that can be told apart by colour; the ninth has that of the first."""

MARKS: Final = {State.FREE: "·", State.UNHEALTHY: "✗", State.TAINTED: "!", State.PLUGIN: "P"}
ASCII_MARKS: Final = {**MARKS, State.FREE: ".", State.UNHEALTHY: "x"}
WORDS: Final = {
    State.FREE: "free",
    State.HELD: "held",
    State.PARTLY: "partly held",
    State.UNHEALTHY: "unhealthy",
    State.TAINTED: "tainted",
    State.PLUGIN: "with the device plugin",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A claim on a node.

    Attributes:
        colour: 0 to `COLOURS` - 1.
        devices: indices of the devices that it holds.
        cores: cores that it holds of shared devices; 0 if it holds whole devices.
    """

    letter: str
    colour: int
    holding: Holding
    devices: tuple[int, ...]
    cores: int


def entries(node: NodeMap) -> tuple[Entry, ...]:
    """The claims of a node in the order of their devices."""
    held: dict[str, list[tuple[Device, Holding]]] = {}
    for device in node.devices:
        for holding in device.holders:
            held.setdefault(holding.uid or holding.name, []).append((device, holding))
    return tuple(
        Entry(
            LETTERS[number] if number < len(LETTERS) else MANY,
            number % COLOURS,
            pairs[0][1],
            tuple(device.index for device, _ in pairs),
            sum(holding.cores or 0 for _, holding in pairs),
        )
        for number, pairs in enumerate(held.values())
    )


def by_device(found: Iterable[Entry]) -> dict[int, list[Entry]]:
    """The claims that hold each device, by its index."""
    holders: dict[int, list[Entry]] = {}
    for entry in found:
        for index in entry.devices:
            holders.setdefault(index, []).append(entry)
    return holders


def held(entry: Entry) -> str:
    """What a claim holds: `devices 0-3`, `device 9, 1 core` or `the whole node`."""
    if entry.holding.whole_node:
        return "the whole node"
    devices = f"device{'' if len(entry.devices) == 1 else 's'} {ranges(entry.devices)}"
    return f"{devices}, {entry.cores} core{'' if entry.cores == 1 else 's'}" if entry.cores else devices


def few(texts: Sequence[str], most: int = 3) -> str:
    """At most `most` of the texts, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def ranges(indices: Iterable[int]) -> str:
    """Indices as `0-3, 9`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
