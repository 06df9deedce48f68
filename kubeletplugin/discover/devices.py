"""Names and taints of the node's devices in ResourceSlices."""

import re
from typing import Final

from neuron import names
from neuron.api.taints import Taint

NODE_DEVICE: Final = names.NODE_DEVICE
"""Name of the device that stands for a whole UltraServer node."""

_DEVICE_NAME: Final = re.compile(r"neuron-?device-?([0-9]{1,3})", re.ASCII)


HELD_TAINT: Final = Taint(names.TAINT_HELD, "kept", "NoSchedule")
"""Taint of a device that is or may be in use, although no claim has it."""

CORDONED_TAINT: Final = Taint(names.TAINT_CORDONED, "admin", "NoSchedule")
"""Taint of a device that an administrator has cordoned."""


def device_name(index: int) -> str:
    """A device's name in the pool."""
    return f"neuron-device-{index}"


def device_index(name: str) -> int | None:
    """The index in a device's name, in both spellings of AWS; None for other names."""
    match = _DEVICE_NAME.fullmatch(name)
    return int(match[1]) if match else None
