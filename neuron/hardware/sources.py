"""Where the figures of the instance catalogue are stated, and how sure they are."""

import dataclasses
import enum
from typing import Final

FIGURES: Final = ("name", "devices", "cores", "lnc", "memory", "topology", "groups", "ultraserver")
"""The figures of an instance type: its name, Neuron devices, cores of a device, logical NeuronCores, memory of a
device, connections, device groups, sizes of UltraServers."""


class Confidence(enum.StrEnum):
    """How sure a figure is."""

    HIGH = "high"
    """AWS states it for this type, or a node shows it."""
    MEDIUM = "medium"
    """AWS states it for the generation, or one table alone states it."""
    LOW = "low"
    """Sources contradict each other, or none states it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where a figure is stated."""

    text: str
    confidence: Confidence


_HARDWARE: Final = "AWS Neuron documentation, hardware pages"
_KERNEL_DRIVER: Final = "AWS Neuron kernel driver 2.31, platform map"
_MAPS: Final = "connected-device-maps-over-efa-for-neuron (aws-neuron)"

HARDWARE: Final = Source(_HARDWARE, Confidence.HIGH)
GENERATION: Final = Source(f"{_HARDWARE}, for the generation", Confidence.MEDIUM)
LNC: Final = Source("AWS Neuron documentation, logical NeuronCore configuration", Confidence.HIGH)
KERNEL_DRIVER: Final = Source(_KERNEL_DRIVER, Confidence.HIGH)
DEVICE_MAPS: Final = Source(_MAPS, Confidence.HIGH)
NO_MAP: Final = Source(f"{_MAPS} has no map of it", Confidence.LOW)
COUNT_OF_MAP: Final = Source(f"{_MAPS}: a map of 16 devices", Confidence.MEDIUM)
DOUBTFUL_COUNT: Final = Source(f"{_KERNEL_DRIVER}: a map of 16 devices; the name is in no other list", Confidence.LOW)
NOT_STATED: Final = Source("no source states it", Confidence.LOW)

RING_ONLY: Final = Source(
    "AWS Neuron documentation, scheduler extension: a ring; the kernel driver asks the firmware", Confidence.MEDIUM
)
CHAIN_OF_DRIVER: Final = Source(
    f"{_KERNEL_DRIVER}: a chain; AWS Neuron documentation, scheduler extension: a ring", Confidence.MEDIUM
)
TORUS_OF_DRIVER: Final = Source(f"{_KERNEL_DRIVER}: a torus; {_HARDWARE}: Trn3 has a switch", Confidence.LOW)
SWITCH: Final = Source(f"{_HARDWARE}, and {_KERNEL_DRIVER}", Confidence.HIGH)

ULTRASERVERS: Final = Source("AWS Neuron documentation, UltraServers on EKS", Confidence.HIGH)
ULTRASERVERS_NOT_STATED: Final = Source(
    "AWS's UltraServer operator serves Trn3 with sets of 1, 2 and 4 nodes; no source states the types", Confidence.LOW
)

CHART: Final = Source("AWS Neuron Helm chart 1.10, and the kernel driver's platform map", Confidence.HIGH)
CHART_ONLY: Final = Source("AWS Neuron Helm chart 1.10 alone", Confidence.LOW)
DEVELOPMENT_NAME: Final = Source(f"{_KERNEL_DRIVER}, or {_MAPS}; AWS does not offer it", Confidence.LOW)

RESOURCE_SLICES: Final = Source("ResourceSlices of the cluster", Confidence.HIGH)
POLICY_FILE: Final = Source("an InstanceTypeCatalog of the policy files", Confidence.HIGH)


def documented(**others: Source) -> dict[str, Source]:
    """The sources of a type that AWS documents. `others`: of the figures that its hardware pages do not state."""
    return {**dict.fromkeys(FIGURES, HARDWARE), "lnc": LNC, **others}


def of_trn2e() -> dict[str, Source]:
    """The sources of trn2e.48xlarge, which only a map of device groups names."""
    found = dict.fromkeys(FIGURES, GENERATION)
    one_table = Source(f"{_MAPS} alone; AWS does not offer it", Confidence.LOW)
    return found | {"name": one_table, "devices": COUNT_OF_MAP, "groups": DEVICE_MAPS, "ultraserver": NOT_STATED}


def of_trn3(counted: Source) -> dict[str, Source]:
    """The sources of a Trn3 type. `counted`: of its number of devices."""
    return {
        "devices": counted,
        "cores": GENERATION,
        "lnc": LNC,
        "memory": GENERATION,
        "ultraserver": ULTRASERVERS_NOT_STATED,
    }
