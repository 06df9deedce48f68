"""Shares of cores (KEP-5075): publishes the cores of a device as capacity that several claims can consume.

A claim that requests no capacity consumes all cores, so it gets a whole device, as if nothing were shared.
"""

from typing import Final, Literal

from kubeletplugin.discover.sysfs import NodeHardware
from kubeletplugin.ports import JsonObject
from neuron import names
from neuron.hardware import capacities
from neuron.hardware.instances import InstanceType

Setting = Literal["auto", "on", "off"]
"""auto: devices of rings and chains, and devices that are alone on their node."""

FIELDS: Final = ("allowMultipleAllocations", "requestPolicy")
"""Fields of a device that the API server drops if the feature is disabled."""

MOST_CORES: Final = 128
"""A request policy has at most 10 values: 0, and the powers of two up to this number, and one that is none."""


def setting(configured: Setting, label: str | None) -> Setting:
    """The setting in force on a node: that of its label, if it is `on` or `off`."""
    return "on" if label == "on" else "off" if label == "off" else configured


def shares(setting: Setting, instance: InstanceType | None) -> bool:
    """Whether the devices of a type are published as shared.

    Pods for parts of a device are frequent on Inferentia: where nothing is shared, four of ten that ran with the device
    plugin are refused at a load of 0.9 (docs/benchmarks.md). `allocationMode: All` leaves out shared devices that are
    used up, so nodes whose pods request `All` are not shared: AWS documents that mode for Trainium nodes with several
    devices.
    """
    return setting == "on" or (setting == "auto" and instance is not None and not instance.grouped)


def physical_cores(hardware: NodeHardware, instance: InstanceType | None, index: int) -> int | None:
    """Physical cores of a device: from sysfs, else from the catalogue; None if neither says it."""
    device = hardware.device(index)
    found = device.cores if device is not None else None
    return found or (instance.cores_per_device if instance is not None else None)


def share(device: JsonObject, cores: int | None) -> None:
    """Let several claims share the cores of a device of a ResourceSlice, which is changed in place.

    A device whose number of cores is not known, or too large for a request policy, is not shared.
    """
    if cores is None or not 0 < cores <= MOST_CORES:
        return
    policy = {"default": str(cores), "validValues": [str(value) for value in capacities.share_sizes(cores)]}
    device["allowMultipleAllocations"] = True
    device.setdefault("capacity", {})[names.CAPACITY_CORES] = {"value": str(cores), "requestPolicy": policy}
