"""Asks the allocator's model which devices of one node a claim gets, and if none, why. Pure.

A reason is found by asking again: with nothing held, without taints, without constraints.
"""

import dataclasses
from collections.abc import Iterable
from typing import Final

from commands.devices.allocator_inputs import Hardware
from commands.explain.verdicts import Block, Blocked
from neuron import names
from neuron.allocator.search import AllocatorClaim, AllocatorDevice, AllocatorResult, SearchTooLongError
from neuron.api.taints import prevents_allocation
from neuron.check.device_index import SelectorError
from neuron.findings import few
from neuron.hardware.device_shapes import DEVICE_ID
from runtime.text import cited, named, number_ranges

_MOST_SHOWN: Final = 8
"""Devices, or ranges of devices, in a message."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A claim on the devices of one node."""

    hardware: Hardware
    held: tuple[AllocatorResult, ...]
    claim: AllocatorClaim
    counters_leak: bool

    def key(self) -> object:
        """Equal for nodes that give the same answer: names, use, taints and what the claim reads of the devices."""
        read = [constraint.attribute for constraint in self.claim.constraints]
        parts = [part for request in self.claim.requests for part in request.alternatives]
        try:
            devices = tuple(
                (
                    device.name,
                    device.shared,
                    device.taints,
                    tuple(device.attributes.get(name) for name in read),
                    tuple(part.selects(device) for part in parts),
                    tuple((name, each.value) for name, each in device.capacity.items()),
                )
                for device in self.hardware.devices
            )
        except SelectorError:
            return object()  # Equal to no other.
        held = sorted((each.device, each.admin_access, tuple(sorted(each.consumed.items()))) for each in self.held)
        return devices, tuple(held), tuple(sorted(self.hardware.counters.items()))

    def answer(self) -> tuple[AllocatorResult, ...] | Blocked:
        """The devices, or why there are none."""
        try:
            found = self._try()
            return self._why() if found is None else found
        except SearchTooLongError:
            reason = "not decided: the search for devices takes too long, as it may in the scheduler"
            return Blocked(Block.TOO_LONG, reason)
        except SelectorError as error:
            return Blocked(Block.SELECTOR_FAILS, f"a selector of the claim fails on its devices: {cited(error)}")

    def _try(
        self, *, empty: bool = False, untainted: bool = False, loose: bool = False, sound: bool = False
    ) -> tuple[AllocatorResult, ...] | None:
        """What the claim gets: with nothing held, without taints, without constraints, or by a repaired scheduler."""
        hardware = self.hardware
        if untainted:
            bare = tuple(dataclasses.replace(device, taints=()) for device in hardware.devices)
            hardware = dataclasses.replace(hardware, devices=bare)
        leak = self.counters_leak and not sound
        node = hardware.node(() if empty else self.held, counters_leak=leak)
        return node.allocate(AllocatorClaim(self.claim.requests) if loose else self.claim)

    def _why(self) -> Blocked:
        if self._try(empty=True, untainted=True, sound=True) is None:
            return self._never()
        if self._try(empty=True) is None or self._try(untainted=True) is not None:
            return self._tainted()
        if self.counters_leak and self._try(sound=True) is not None:
            reason = (
                "the scheduler loses count of the node's devices (kubernetes/kubernetes#140436): groups stay hidden"
                " while another device of the node is in use"
            )
            return Blocked(Block.COUNTERS, reason)
        devices, needed = self._free(), self._needed()
        free = len(devices)
        if self._try(loose=True) is not None:
            connected = f"no {needed} of them are connected" if needed else "not connected as the claim requires"
            return Blocked(Block.NOT_CONNECTED, f"{free} devices are free, {connected}")
        if 0 < needed <= free:
            which = _ranges(devices)
            reason = f"{free} devices are free ({which}), and the claim names no {needed} of them together"
            return Blocked(Block.NOT_CONNECTED, reason)
        need = f", the pod needs {needed}" if needed else ""
        return Blocked(Block.HELD, f"{free} of {len(self._admitted())} devices free{need}")

    def _never(self) -> Blocked:
        for request in self.claim.requests:
            parts = request.alternatives
            if not any(part.selects(device) for device in self.hardware.devices for part in parts):
                return Blocked(
                    Block.WRONG_TYPE, f"wrong type: request {named(request.name)} admits none of its devices"
                )
        has, needed = len(self._admitted()), self._needed()
        if self._try(empty=True, untainted=True, loose=True, sound=True) is not None:
            return Blocked(Block.TOO_FEW, f"it has no {needed or ''} devices that are connected".replace("  ", " "))
        return Blocked(Block.TOO_FEW, f"it has {has} devices" + (f", the pod needs {needed}" if needed else ""))

    def _tainted(self) -> Blocked:
        keys = {taint.key for device in self.hardware.devices for taint in device.taints}
        if keys == {names.TAINT_DEVICE_PLUGIN}:
            return Blocked(Block.PLUGIN, "the device plugin still owns its devices: the driver holds them back (taint)")
        return Blocked(Block.TAINTED, "devices that the pod needs are tainted")

    def _admitted(self) -> list[str]:
        """Devices that a request may get."""
        parts = [part for request in self.claim.requests for part in request.alternatives]
        return [each.name for each in self.hardware.devices if any(part.selects(each) for part in parts)]

    def _free(self) -> list[AllocatorDevice]:
        """The devices that the claim may get and that no claim holds."""
        node = self.hardware.node(self.held)
        admitted = set(self._admitted())
        parts = [part for request in self.claim.requests for part in request.alternatives]
        tolerations = [each for part in parts for each in part.tolerations]
        return [
            device
            for device in self.hardware.devices
            if device.name in admitted and not prevents_allocation(device.taints, tolerations)
            if not node.in_use(device) and not node.consumed(device)
        ]

    def _needed(self) -> int:
        """Whole devices that the pod needs; 0 if its requests differ by alternative, or are for shares or all."""
        counts = [{part.count for part in request.alternatives} for request in self.claim.requests]
        shares = any(part.capacity for request in self.claim.requests for part in request.alternatives)
        if shares or any(len(each) != 1 or None in each for each in counts):
            return 0
        return sum(count for each in counts for count in each if count is not None)


def _ranges(devices: Iterable[AllocatorDevice]) -> str:
    """Ids of devices, such as `0-3, 6`; names of those without an id."""
    ids = [each.attributes.get(DEVICE_ID) for each in devices]
    numbers = sorted(each for each in ids if isinstance(each, int))
    if len(numbers) < len(ids):
        return few([named(each.name) for each in devices], _MOST_SHOWN)
    return few(number_ranges(numbers), _MOST_SHOWN)
