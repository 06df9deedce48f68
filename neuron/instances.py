"""The instance catalogue: devices, cores and topology of each EC2 instance type.

Sources: the AWS Neuron documentation (neuron-hardware pages) and AWS's device-group maps. A figure that no source
states is None until ResourceSlices show it (`Catalogue.observed`).
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Final


class Topology(enum.StrEnum):
    """How the devices of one node are connected."""

    SINGLE = "single"
    RING = "ring"
    TORUS = "torus"
    SWITCH = "switch"


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceType:
    """One EC2 instance type.

    Attributes:
        name: e.g. `trn2.48xlarge`.
        family: e.g. `trn2`.
        devices: Neuron devices of a node; None if not documented.
        cores_per_device: physical NeuronCores of a device.
        logical_neuron_cores: allowed LNC settings (physical cores that form a logical one).
        default_logical_neuron_core: LNC in force if it is not set.
        memory_gib: device memory in GiB.
        topology: how the devices are connected.
        groups: sizes for which the driver publishes `devicegroup<size>_id`, ascending.
        ultraserver_nodes: sizes of the UltraServer sets that a node can be part of; empty if none.
        accelerator: value of Karpenter's `instance-accelerator-name` label, if known.
        single_devices: whether nodes publish their devices one by one.
        whole_node: whether UltraServer nodes publish the whole node. Without shared counters (Kubernetes 1.34 and 1.35)
            a node publishes one of both.
    """

    name: str
    family: str
    devices: int | None
    cores_per_device: int | None
    logical_neuron_cores: tuple[int, ...]
    default_logical_neuron_core: int
    memory_gib: int | None
    topology: Topology
    groups: tuple[int, ...] = ()
    ultraserver_nodes: tuple[int, ...] = ()
    accelerator: str | None = None
    single_devices: bool = True
    whole_node: bool = True

    @property
    def configures_logical_neuron_core(self) -> bool:
        """Whether the driver accepts a NeuronConfig: it refuses one if there is only one LNC setting."""
        return len(self.logical_neuron_cores) > 1

    @property
    def counts(self) -> tuple[int, ...]:
        """Device counts of one request that are always connected, ascending.

        One device, the published groups, and the whole node (Neuron scheduler extension).
        """
        whole = () if self.devices is None else (self.devices,)
        return tuple(sorted({1, *self.groups, *whole}))

    def cores(self, lnc: int | None) -> int | None:
        """Cores of one device as the runtime counts them, at the LNC in force (None: the default)."""
        if self.cores_per_device is None:
            return None
        return self.cores_per_device // (lnc or self.default_logical_neuron_core)


def _inf1(name: str, devices: int) -> InstanceType:
    topology = Topology.SINGLE if devices == 1 else Topology.RING
    return InstanceType(name, "inf1", devices, 4, (1,), 1, 8, topology, accelerator="inferentia")


def _inf2(name: str, devices: int) -> InstanceType:
    topology = Topology.SINGLE if devices == 1 else Topology.RING
    return InstanceType(name, "inf2", devices, 2, (1,), 1, 32, topology, accelerator="inferentia2")


_GROUPS: Final = (4, 8, 16)


def _trn1(name: str, family: str, devices: int) -> InstanceType:
    topology, groups = (Topology.SINGLE, ()) if devices == 1 else (Topology.TORUS, _GROUPS)
    return InstanceType(name, family, devices, 2, (1,), 1, 32, topology, groups, accelerator="trainium")


def _trn2(name: str, family: str, devices: int, ultraserver_nodes: tuple[int, ...] = ()) -> InstanceType:
    topology, groups = (Topology.SINGLE, ()) if devices == 1 else (Topology.TORUS, _GROUPS)
    return InstanceType(
        name, family, devices, 8, (1, 2), 2, 96, topology, groups, ultraserver_nodes, accelerator="trainium2"
    )


def _trn3(name: str, groups: tuple[int, ...] = ()) -> InstanceType:
    # AWS has not published which names have 16 devices and which have 4.
    return InstanceType(name, "trn3", None, 8, (1, 2), 2, 144, Topology.SWITCH, groups)


TYPES: Final = (
    # Families in order of preference; in each family the largest first: refusals name the first candidate, and
    # "trn1.2xlarge does not support 7 devices" would not help.
    _trn1("trn1.32xlarge", "trn1", 16),
    _trn1("trn1.2xlarge", "trn1", 1),
    _trn1("trn1n.32xlarge", "trn1n", 16),
    _trn2("trn2.48xlarge", "trn2", 16),
    _trn2("trn2.3xlarge", "trn2", 1),
    _trn2("trn2u.48xlarge", "trn2u", 16, ultraserver_nodes=(1, 2, 4)),
    _trn3("trn3.48xlarge", _GROUPS),
    _trn3("trn3p.48xlarge", _GROUPS),
    _trn3("trn3pd98.48xlarge", _GROUPS),
    _trn3("trn3s.48xlarge", _GROUPS),
    _trn3("trn3-dev0.48xlarge", _GROUPS),
    _trn3("trn3-dev1.48xlarge", _GROUPS),
    _trn3("trn3n.48xlarge"),
    _trn3("trn3s-es.48xlarge"),
    _trn3("trn3e.24xlarge"),
    _trn3("trn3en.24xlarge"),
    _inf2("inf2.48xlarge", 12),
    _inf2("inf2.24xlarge", 6),
    _inf2("inf2.8xlarge", 1),
    _inf2("inf2.xlarge", 1),
    _inf1("inf1.24xlarge", 16),
    _inf1("inf1.6xlarge", 4),
    _inf1("inf1.2xlarge", 1),
    _inf1("inf1.xlarge", 1),
)

DEFAULT_FAMILIES: Final = ("trn1", "trn1n", "trn2", "trn2u", "trn3")
"""Candidates if nothing selects families and no ResourceSlice was ever seen. One request serves all of them, because
all publish the same device-group attributes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One instance type in ResourceSlices.

    Attributes:
        devices: of a node; 0 if single devices were never seen.
        groups: published group sizes.
        single_devices: whether a node published single devices when slices of the type were seen last.
        whole_node: whether a node published the whole node then.
    """

    devices: int
    groups: tuple[int, ...] = ()
    single_devices: bool = True
    whole_node: bool = False


class Catalogue:
    """Instance types by name, in the order of preference. Immutable."""

    def __init__(self, types: Iterable[InstanceType] = TYPES) -> None:
        self._types = {entry.name: entry for entry in types}

    def __iter__(self) -> Iterator[InstanceType]:
        return iter(self._types.values())

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def get(self, name: str) -> InstanceType | None:
        """The type of that name, or None."""
        return self._types.get(name)

    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(self._types)

    def families(self) -> tuple[str, ...]:
        """All families, in order."""
        return tuple(dict.fromkeys(entry.family for entry in self))

    def extended(self, types: Iterable[InstanceType]) -> "Catalogue":
        """A catalogue with `types`, which replace types of the same name or follow at the end."""
        return Catalogue((self._types | {entry.name: entry for entry in types}).values())

    def observed(self, observations: Mapping[str, Observation]) -> "Catalogue":
        """A catalogue with unknown figures filled from ResourceSlices.

        Known figures stay: a node with a broken device publishes fewer devices. A type that is not in the catalogue is
        added, if it publishes devices; its cores stay unknown.
        """
        additions: list[InstanceType] = []
        for name, seen in sorted(observations.items()):
            known = self._types.get(name)
            if known is not None and known.ultraserver_nodes:
                if (seen.single_devices, seen.whole_node) != (True, True):
                    changed = dataclasses.replace(known, single_devices=seen.single_devices, whole_node=seen.whole_node)
                    additions.append(changed)
            elif not seen.devices:
                continue
            elif known is None:
                family = name.partition(".")[0]
                topology = Topology.SINGLE if seen.devices == 1 else Topology.SWITCH
                additions.append(InstanceType(name, family, seen.devices, None, (), 1, None, topology, seen.groups))
            elif known.devices is None:
                groups = known.groups or seen.groups
                additions.append(dataclasses.replace(known, devices=seen.devices, groups=groups))
        return self.extended(additions) if additions else self
