"""The instance catalogue: devices, cores and topology of each EC2 instance type.

Each figure has its source (`sources`). A figure that no source states is unknown until ResourceSlices show it
(`Catalogue.observed`), and nothing is refused because of it.
"""

import dataclasses
import difflib
import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from neuron.hardware import sources
from neuron.hardware.device_groups import GROUP_SIZES
from neuron.hardware.sources import Source
from neuron.hardware.windows import Line

_LETTERS: Final = re.compile("[a-z]+")
_LONGEST: Final = 64
"""Characters of a word that can be a misspelt type: comparison takes quadratic time."""


def _alike(part: str, kind: str) -> bool:
    """Whether letters may stand for those of a family: trainium or tnr for trn."""
    return part.startswith(kind) or difflib.SequenceMatcher(None, part, kind).ratio() > 0.5


class Topology(enum.StrEnum):
    """How the devices of one node are connected."""

    SINGLE = "single"
    RING = "ring"
    """Device i is connected with i - 1 and i + 1, the last one with the first."""
    CHAIN = "chain"
    """A ring without the connection of the last device with the first."""
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
        groups: sizes for which the driver publishes `devicegroup<size>_id`, ascending.
        groups_known: whether `groups` is complete. If not, it is unknown whether 4, 8 or 16 devices can be requested.
        ultraserver_nodes: sizes of the UltraServer sets that a node can be part of; empty if none; None: not known.
        accelerator: value of Karpenter's `instance-accelerator-name` label, if known.
        offered: whether AWS offers the type, or the cluster has it. Others (development names, samples, names that
            stand in one table only) are never suggested.
        released: whether it is a candidate where only its family is known. Others are candidates only if the cluster
            has them or the pod names them: those that are not offered, and trn3e, which needs other requests than the
            types beside it.
        shares_cores: whether its nodes let several claims share the cores of one device; only ResourceSlices tell.
        windows: whether its nodes publish window attributes, if it is consecutive. False if ResourceSlices show nodes
            without them.
        single_devices: whether nodes publish their devices one by one.
        whole_node: whether UltraServer nodes publish the whole node. Without shared counters (Kubernetes 1.34 and 1.35)
            a node publishes one of both.
        counters: whether single devices consume shared counters; only ResourceSlices tell.
        tries_orders: whether the scheduler tries the devices of a request in every order
            (`neuron.allocator.search_cost`); None if the version of the control plane is not known.
        node_lnc: the default size of a logical NeuronCore on all nodes that were seen, if it is not that of the type.
            The device plugin sets it in containers; the runtime in containers of claims does not know it.
        sources: where each figure is stated, by the name in `neuron.hardware.sources`. Types with equal figures are
            equal.
        may_try_orders: whether the scheduler may be one that tries the devices of a request in every order. If the
            version is not known: nodes that share cores or have counters are in clusters of 1.36 or later.
        consecutive: whether a number of devices means consecutive ones, and any number is possible.
        grouped: whether device groups connect the devices of a node, rather than windows or nothing.
        line: the devices of a node in their order; None if they form no ring or chain of a known length.
        configures_logical_neuron_core: whether the driver accepts a NeuronConfig: it refuses one if there is only one
            LNC setting.
        counts: device counts of one request that are connected without more, or by a group attribute, ascending: one
            device, the published groups, and the whole node (Neuron scheduler extension). The windows of `line` are
            not counted.
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
    groups_known: bool = True
    ultraserver_nodes: tuple[int, ...] | None = ()
    accelerator: str | None = None
    offered: bool = True
    released: bool = True
    shares_cores: bool = False
    windows: bool = True
    single_devices: bool = True
    whole_node: bool = True
    counters: bool = False
    tries_orders: bool | None = None
    node_lnc: int | None = None
    sources: Mapping[str, Source] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    may_try_orders: bool = dataclasses.field(init=False, compare=False, repr=False)
    consecutive: bool = dataclasses.field(init=False, compare=False, repr=False)
    grouped: bool = dataclasses.field(init=False, compare=False, repr=False)
    line: Line | None = dataclasses.field(init=False, compare=False, repr=False)
    configures_logical_neuron_core: bool = dataclasses.field(init=False, compare=False, repr=False)
    counts: tuple[int, ...] = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Compute what is read for each candidate of each demand once."""
        consecutive = self.topology in (Topology.RING, Topology.CHAIN)
        devices = self.devices or 1
        tries_orders = not (self.shares_cores or self.counters) if self.tries_orders is None else self.tries_orders
        computed = {
            "may_try_orders": tries_orders,
            "consecutive": consecutive,
            "grouped": not consecutive and self.topology is not Topology.SINGLE,
            "line": Line(devices, wraps=self.topology is Topology.RING) if consecutive and devices > 1 else None,
            "configures_logical_neuron_core": len(self.logical_neuron_cores) > 1,
            "counts": tuple(sorted({1, *self.groups, devices})),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    def cores(self, lnc: int | None) -> int | None:
        """Cores of one device as the runtime counts them, at the LNC in force (None: the default)."""
        if self.cores_per_device is None:
            return None
        return self.cores_per_device // (lnc or self.default_logical_neuron_core)


_TOPOLOGY_OF_TRN3: Final = {
    sources.KERNEL_DRIVER: sources.SWITCH,
    sources.DOUBTFUL_COUNT: sources.TORUS_OF_DRIVER,
}


def _is_offered(stated: Mapping[str, Source]) -> bool:
    return stated["name"].confidence is sources.Confidence.HIGH


def _inf1(name: str, devices: int) -> InstanceType:
    topology = Topology.SINGLE if devices == 1 else Topology.CHAIN
    stated = sources.documented(**({"topology": sources.RING_ONLY} if devices > 1 else {}))
    return InstanceType(name, "inf1", devices, 4, (1,), 1, 8, topology, accelerator="inferentia", sources=stated)


def _inf2(name: str, devices: int, topology: Topology = Topology.SINGLE) -> InstanceType:
    stated = sources.documented(**({"topology": sources.CHAIN_OF_DRIVER} if topology is Topology.CHAIN else {}))
    return InstanceType(name, "inf2", devices, 2, (1,), 1, 32, topology, accelerator="inferentia2", sources=stated)


def _trn1(name: str, family: str, devices: int) -> InstanceType:
    topology, groups = (Topology.SINGLE, ()) if devices == 1 else (Topology.TORUS, GROUP_SIZES)
    stated = sources.documented(**({"groups": sources.DEVICE_MAPS} if groups else {}))
    return InstanceType(name, family, devices, 2, (1,), 1, 32, topology, groups, accelerator="trainium", sources=stated)


def _trn2(
    name: str,
    family: str,
    devices: int,
    ultraserver_nodes: tuple[int, ...] | None = (),
    *,
    stated: Mapping[str, Source] | None = None,
) -> InstanceType:
    topology, groups = (Topology.SINGLE, ()) if devices == 1 else (Topology.TORUS, GROUP_SIZES)
    if stated is None:
        stated = sources.documented(**({"groups": sources.DEVICE_MAPS} if groups else {}))
        stated |= {"ultraserver": sources.ULTRASERVERS} if ultraserver_nodes else {}
    return InstanceType(
        name,
        family,
        devices,
        8,
        (1, 2),
        2,
        96,
        topology,
        groups,
        ultraserver_nodes=ultraserver_nodes,
        accelerator="trainium2",
        offered=_is_offered(stated),
        released=_is_offered(stated),
        sources=stated,
    )


def _trn3(
    name: str,
    devices: int | None,
    counted: Source,
    *,
    mapped: bool = False,
    topology: Topology = Topology.SWITCH,
    named: Source = sources.DEVELOPMENT_NAME,
) -> InstanceType:
    """A Trn3 type. `counted`: who states the number of devices; `mapped`: whether AWS publishes a map of its groups."""
    topology = Topology.SINGLE if devices == 1 else topology
    stated = {
        **sources.of_trn3(counted),
        "name": named,
        "topology": _TOPOLOGY_OF_TRN3.get(counted, sources.GENERATION),
        "groups": counted if devices == 1 else sources.DEVICE_MAPS if mapped else sources.NO_MAP,
    }
    return InstanceType(
        name,
        "trn3",
        devices,
        8,
        (1, 2),
        2,
        144,
        topology,
        GROUP_SIZES if mapped else (),
        groups_known=mapped or devices == 1,
        ultraserver_nodes=() if devices == 1 else None,
        offered=_is_offered(stated),
        released=_is_offered(stated) and mapped,
        sources=stated,
    )


TYPES: Final = (
    # Families in order of preference; in each family the largest first: refusals name the first candidate, and
    # "trn1.2xlarge does not support 7 devices" would not help.
    _trn1("trn1.32xlarge", "trn1", 16),
    _trn1("trn1.2xlarge", "trn1", 1),
    _trn1("trn1n.32xlarge", "trn1n", 16),
    _trn2("trn2.48xlarge", "trn2", 16),
    _trn2("trn2.3xlarge", "trn2", 1),
    _trn2("trn2u.48xlarge", "trn2u", 16, ultraserver_nodes=(1, 2, 4)),
    _trn3("trn3.48xlarge", 16, sources.KERNEL_DRIVER, mapped=True, named=sources.CHART),
    _trn3("trn3p.48xlarge", 16, sources.DOUBTFUL_COUNT, mapped=True, topology=Topology.TORUS),
    _trn3("trn3pd98.48xlarge", 16, sources.COUNT_OF_MAP, mapped=True),
    _trn3("trn3s.48xlarge", 16, sources.COUNT_OF_MAP, mapped=True),
    _trn3("trn3-dev0.48xlarge", 16, sources.KERNEL_DRIVER, mapped=True),
    _trn3("trn3-dev1.48xlarge", 16, sources.KERNEL_DRIVER, mapped=True),
    _trn3("trn3s-es.48xlarge", 16, sources.KERNEL_DRIVER),
    _trn3("trn3sn.48xlarge", 16, sources.KERNEL_DRIVER),
    _trn3("trn3sn-es.48xlarge", 16, sources.KERNEL_DRIVER),
    _trn3("trn3n.48xlarge", None, sources.NOT_STATED, named=sources.CHART_ONLY),
    _trn3("trn3e.24xlarge", 4, sources.KERNEL_DRIVER, named=sources.CHART),
    _trn3("trn3e-dev0.24xlarge", 4, sources.KERNEL_DRIVER),
    _trn3("trn3en.24xlarge", None, sources.NOT_STATED, named=sources.CHART_ONLY),
    _trn3("trn3pd98.3xlarge", 1, sources.KERNEL_DRIVER),
    _trn3("trn3s-es.3xlarge", 1, sources.KERNEL_DRIVER),
    _trn3("trn3sn.3xlarge", 1, sources.KERNEL_DRIVER),
    _trn3("trn3sn-es.3xlarge", 1, sources.KERNEL_DRIVER),
    _trn2("trn2e.48xlarge", "trn2", 16, ultraserver_nodes=None, stated=sources.of_trn2e()),
    _inf2("inf2.48xlarge", 12, Topology.RING),
    _inf2("inf2.24xlarge", 6, Topology.CHAIN),
    _inf2("inf2.8xlarge", 1),
    _inf2("inf2.xlarge", 1),
    _inf1("inf1.24xlarge", 16),
    _inf1("inf1.6xlarge", 4),
    _inf1("inf1.2xlarge", 1),
    _inf1("inf1.xlarge", 1),
)

DEFAULT_FAMILIES: Final = ("trn1", "trn1n", "trn2", "trn2u", "trn3")
"""Families that a standalone server is told to have. One request serves all of them, because all publish the same
device-group attributes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One instance type that the cluster has or had.

    Attributes:
        devices: of a node, by its ResourceSlices; 0 if these never had single devices, or only Nodes were seen.
        groups: published group sizes.
        shares_cores: whether claims can share the cores of its devices.
        windows: whether its devices have window attributes; for other types than rings and chains, no matter.
        labels: values of the Nodes' instance-type labels; SageMaker HyperPod writes `ml.<type>`.
        single_devices: whether a node published single devices when slices of the type were seen last.
        whole_node: whether a node published the whole node then.
        counters: whether its single devices consumed shared counters then.
        counts_cores: whether all its devices had the capacity `neuroncores` then.
        pooled: whether Karpenter or EKS Auto Mode made all of its Nodes that were seen, and there were some.
        default_lnc: the size of a logical NeuronCore that files of all of its nodes set; None if they do not.
    """

    devices: int
    groups: tuple[int, ...] = ()
    shares_cores: bool = False
    windows: bool = True
    labels: tuple[str, ...] = ()
    single_devices: bool = True
    whole_node: bool = False
    counters: bool = False
    counts_cores: bool = False
    pooled: bool = False
    default_lnc: int | None = None


class Catalogue:
    """Instance types by name, in the order of preference. Immutable."""

    def __init__(self, types: Iterable[InstanceType] = TYPES) -> None:
        self._types = {entry.name: entry for entry in types}
        self._families = tuple(dict.fromkeys(entry.family for entry in self._types.values()))

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

    def suggestions(self, word: str) -> tuple[str, ...]:
        """Names that a message may suggest for a word: of types that AWS offers, or that the cluster has.

        Without those whose letters are others: who writes p5.48xlarge does not mean trn3.48xlarge.
        """
        parts = _LETTERS.findall(word[:_LONGEST])
        kinds = {match[0] for entry in self if (match := _LETTERS.match(entry.name))}
        alike = tuple(kind for kind in kinds if any(_alike(part, kind) for part in parts))
        return tuple(entry.name for entry in self if entry.offered and entry.name.startswith(alike))

    def families(self) -> tuple[str, ...]:
        """All families, in order."""
        return self._families

    def extended(self, types: Iterable[InstanceType]) -> "Catalogue":
        """A catalogue with `types`, which replace types of the same name or follow at the end."""
        return Catalogue((self._types | {entry.name: entry for entry in types}).values())

    def scheduled(self, *, tries_orders: bool | None) -> "Catalogue":
        """A catalogue for a scheduler that tries the devices of a request in every order, or not; None: unknown."""
        changed = [
            dataclasses.replace(entry, tries_orders=tries_orders)
            for entry in self
            if entry.tries_orders is not tries_orders
        ]
        return self.extended(changed) if changed else self

    def observed(self, observations: Mapping[str, Observation]) -> "Catalogue":
        """A catalogue with unknown figures filled from ResourceSlices; types that were seen count as released.

        Known figures stay: a node with a broken device publishes fewer devices. A type that is not in the catalogue is
        added, unless its nodes publish only themselves as a whole; its cores stay unknown. A type that was not seen
        shares cores and has windows as all those that were: one driver publishes them. Types with several devices that
        are no ring or chain are a kind of their own.
        """
        published = {name: seen for name, seen in observations.items() if seen.devices}
        kinds: dict[bool, list[Observation]] = {True: [], False: []}
        for name, seen in published.items():
            known = self._types.get(name)
            kinds[seen.devices > 1 if known is None else known.grouped].append(seen)
        additions: list[InstanceType] = []
        for entry in self:
            alike = kinds[entry.grouped]
            found = entry
            if entry.name in observations and not (entry.released and entry.offered):
                found = dataclasses.replace(found, released=True, offered=True)
            if entry.name in published:
                alike = [published[entry.name]]
                (seen,) = alike
                if entry.devices is None:
                    found = dataclasses.replace(found, devices=seen.devices, sources=_seen(found, "devices"))
                if entry.devices is None or not entry.groups_known:
                    groups, stated = entry.groups or seen.groups, _seen(found, "groups")
                    found = dataclasses.replace(found, groups=groups, groups_known=True, sources=stated)
            shares = bool(alike) and all(each.shares_cores for each in alike)
            windows = all(each.windows for each in alike)
            counters = entry.name in published and published[entry.name].counters
            if (shares, windows, counters) != (found.shares_cores, found.windows, found.counters):
                found = dataclasses.replace(found, shares_cores=shares, windows=windows, counters=counters)
            lnc = published[entry.name].default_lnc if entry.name in published else None
            if lnc in entry.logical_neuron_cores and lnc != entry.default_logical_neuron_core:
                found = dataclasses.replace(found, node_lnc=lnc)
            found = _with_offers(found, observations.get(entry.name))
            if found is not entry:
                additions.append(found)
        for name, seen in sorted(observations.items()):
            if name not in self._types and (seen.devices or not seen.whole_node):
                topology = Topology.SINGLE if seen.devices == 1 else Topology.SWITCH
                family = name.partition(".")[0]
                found = InstanceType(name, family, seen.devices or None, None, (), 1, None, topology, seen.groups)
                found = dataclasses.replace(found, sources=_seen(found, "name", "devices", "topology", "groups"))
                additions.append(
                    dataclasses.replace(
                        found,
                        shares_cores=seen.shares_cores,
                        windows=seen.windows,
                        counters=seen.counters,
                    )
                )
        return self.extended(additions) if additions else self


def _seen(entry: InstanceType, *figures: str) -> Mapping[str, Source]:
    """The sources of a type of which the cluster's ResourceSlices show some figures."""
    return {**entry.sources, **dict.fromkeys(figures, sources.RESOURCE_SLICES)}


def _with_offers(entry: InstanceType, seen: Observation | None) -> InstanceType:
    """The type with what its UltraServer nodes publish; as it is, if no ResourceSlices were seen."""
    if seen is None or not entry.ultraserver_nodes or not (seen.devices or seen.whole_node):
        return entry
    if (seen.single_devices, seen.whole_node) == (entry.single_devices, entry.whole_node):
        return entry
    return dataclasses.replace(entry, single_devices=seen.single_devices, whole_node=seen.whole_node)
