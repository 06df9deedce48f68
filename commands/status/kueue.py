"""Reads how Kueue is set up, and checks whether it counts the claims of converted pods.

Sources: Kueue's tags v0.14.0 to v0.19.2: `pkg/dra/claims.go` and `mapper.go` (which claims it refuses, how it counts),
`pkg/features/kube_features.go` (gates), `apis/config/v1beta2` (its Configuration).
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeAlias

import yaml

from cluster.resources import CONFIG_MAPS, DEPLOYMENTS
from commands.cluster.reader import ClusterReader, Seen, Unseen, is_missing, items
from commands.present import listed
from commands.status.lines import StatusCheck, StatusLine
from conversion.objects.queues import device_class_mappings
from neuron import names
from neuron.api.fields import mapping, mappings, sequence, text
from runtime.api_server import ApiServerError
from runtime.text import cited, named

CHECK: Final = StatusCheck("Kueue")
NAMESPACE: Final = "kueue-system"
CONFIG: Final = "kueue-manager-config"
MANAGER: Final = "kueue-controller-manager"
FILE: Final = "controller_manager_config.yaml"
"""Key of the ConfigMap. Kueue's manifests and chart use these names."""

_GROUP: Final = "/apis/kueue.x-k8s.io"
_TIMEOUT: Final = 15.0
_LONGEST: Final = 1 << 20
"""Bytes of a ConfigMap's value, at most."""

Version: TypeAlias = tuple[int, int, int]
_IMAGE: Final = re.compile(r":v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?:[-+@]|$)", re.ASCII)
_GATED: Final[Version] = (0, 18, 0)
"""The first version in which the gate has another name, and is on by default."""
_COMPLETE: Final[Version] = (0, 18, 2)
_REFUSALS: Final[tuple[tuple[Version, Version, str], ...]] = (
    ((0, 0, 0), (0, 14, 0), "counts no claims"),
    ((0, 15, 0), _GATED, "refuses claims with selectors, which every generated claim has"),
    (_GATED, _COMPLETE, "refuses claims with constraints or device settings, so those for connected devices"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class KueueSetup:
    """An installation of Kueue.

    Attributes:
        version: by the image of its manager; None if it does not say.
        mapped: by DeviceClass, the resource under which a ClusterQueue counts its claims.
        capacities: by DeviceClass, the capacities of our driver that are counted instead of devices.
        gates: feature gates that are set.
        unreadable: why the Configuration cannot be read; empty if it can.
    """

    version: Version | None = None
    mapped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    capacities: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    unreadable: str = ""

    @property
    def gate(self) -> str:
        """Name of the feature gate for claims."""
        return "DynamicResourceAllocation" if self.version and self.version < _GATED else "KueueDRAIntegration"

    @property
    def counts_claims(self) -> bool:
        """Whether the gate is on."""
        return self.gates.get(self.gate, not (self.version and self.version < _GATED))

    @property
    def refusals(self) -> tuple[str, ...]:
        """What its version does not do with generated claims; empty if it counts all without alternatives."""
        version = self.version
        return tuple(what for first, end, what in _REFUSALS if version and first <= version < end)

    @property
    def counted(self) -> frozenset[str]:
        """DeviceClasses whose claims it counts."""
        return frozenset(self.mapped) if self.counts_claims and not self.refusals else frozenset()


async def read(reader: ClusterReader) -> Seen[KueueSetup]:
    """How Kueue is set up; an empty tuple if the cluster does not have it."""
    try:
        await reader.server.request("GET", _GROUP, timeout=_TIMEOUT)
    except ApiServerError as error:
        return () if is_missing(error) else Unseen(f"{_GROUP} cannot be read: {error}.")
    config = await reader.get(CONFIG_MAPS, NAMESPACE, CONFIG)
    if isinstance(config, Unseen):
        return config
    manager = await reader.get(DEPLOYMENTS, NAMESPACE, MANAGER)
    if isinstance(manager, Unseen):
        return manager
    return (read_setup(*(each[0] if each else {} for each in (config, manager))),)


def read_setup(config: Mapping[str, object], manager: Mapping[str, object]) -> KueueSetup:
    """The set-up by the ConfigMap and the Deployment of the manager; either may be empty."""
    spec = mapping(mapping(mapping(manager.get("spec")).get("template")).get("spec"))
    containers = tuple(mappings(spec.get("containers")))
    images = [match for each in containers if (match := _IMAGE.search(text(each.get("image"))))]
    version = (int(images[0][1]), int(images[0][2]), int(images[0][3])) if images else None
    arguments = [str(argument) for each in containers for argument in sequence(each.get("args"))]
    gates = {name: value for argument in arguments for name, value in _gates(argument)}
    data = mapping(config.get("data")).get(FILE)
    if not isinstance(data, str):
        where = f"ConfigMap {NAMESPACE}/{CONFIG} has no {FILE}" if config else f"there is no {NAMESPACE}/{CONFIG}"
        return KueueSetup(version, gates=gates, unreadable=where)
    try:
        document = yaml.load(data[:_LONGEST], yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = str(getattr(error, "problem", None) or type(error).__name__)
        return KueueSetup(version, gates=gates, unreadable=f"{FILE} of {NAMESPACE}/{CONFIG} is not YAML: {problem}")
    settings = mapping(document)
    gates |= {
        str(name): value for name, value in mapping(settings.get("featureGates")).items() if value in (True, False)
    }
    mapped: dict[str, str] = {}
    capacities: dict[str, tuple[str, ...]] = {}
    for entry in mappings(mapping(settings.get("resources")).get("deviceClassMappings")):
        sources = [mapping(each.get("capacity")) for each in mappings(entry.get("sources"))]
        ours = tuple(text(each.get("name")) for each in sources if text(each.get("driver")) == names.DRIVER)
        for each in sequence(entry.get("deviceClassNames")):
            mapped.setdefault(str(each), text(entry.get("name")))
            if ours:
                capacities[str(each)] = ours
    return KueueSetup(version, mapped, capacities, gates)


def check(seen: Seen[KueueSetup], classes: Collection[str]) -> Iterator[StatusLine]:
    """Check whether Kueue counts the claims of converted pods. Says nothing of a cluster without Kueue.

    Args:
        classes: DeviceClasses that these claims request.
    """
    if isinstance(seen, Unseen):
        yield CHECK.unseen(seen)
        return
    for setup in seen:
        yield from _check(setup, classes)


def counted_classes(seen: Seen[KueueSetup]) -> frozenset[str]:
    """DeviceClasses whose claims Kueue counts, as far as is known."""
    return frozenset(name for setup in items(seen) for name in setup.counted)


def classes_of(templates: Seen[Mapping[str, object]]) -> frozenset[str]:
    """DeviceClasses that generated templates request, and the default one."""
    found = {names.DEVICE_CLASS}
    for each in items(templates):
        devices = mapping(mapping(mapping(each.get("spec")).get("spec")).get("devices"))
        for request in mappings(devices.get("requests")):
            leaves = [mapping(request.get("exactly")), *mappings(request.get("firstAvailable"))]
            found.update(text(leaf.get("deviceClassName")) for leaf in leaves)
    return frozenset(found - {""})


def _check(setup: KueueSetup, classes: Collection[str]) -> Iterator[StatusLine]:
    kueue = f"{CHECK} {'.'.join(map(str, setup.version or ()))}".rstrip()
    upgrade = f"Upgrade Kueue to {'.'.join(map(str, _COMPLETE))} or later."
    enable = f"Enable it in featureGates of {NAMESPACE}/{CONFIG}."
    if not setup.counts_claims and setup.version and setup.version < _GATED:
        text_ = f"the feature gate {setup.gate} is off: {kueue} admits workloads with claims, and does not count these."
        # With the gate, it would refuse them.
        yield CHECK.note(text_, upgrade if setup.refusals else enable)
        return
    for what in setup.refusals:
        yield CHECK.note(f"{kueue} {what}.", upgrade)
    if not setup.counts_claims:
        text_ = f"the feature gate {setup.gate} is off: {kueue} admits no workload with claims."
        yield CHECK.note(text_, enable)
    if setup.unreadable:
        yield CHECK.unknown(f"{setup.unreadable}: it is not known what Kueue counts.")
        return
    missing = sorted(set(classes) - set(setup.mapped))
    if missing:
        text_ = f"{kueue} has no mapping for {listed(map(named, missing))}: it admits no workload with such claims."
        entries = device_class_mappings(classes, setup.mapped)
        fix = f"Put {', '.join(entries)} into resources.deviceClassMappings of {NAMESPACE}/{CONFIG}, and restart Kueue."
        yield CHECK.note(text_, fix)
    for name, capacities in sorted(setup.capacities.items()):
        for each in capacities:
            if each != names.CAPACITY_CORES:
                shown = cited(each, 63)
                text_ = f"the mapping of {named(name)} counts capacity {shown}, which our driver does not publish."
                yield CHECK.note(text_, f"Write {names.CAPACITY_CORES}, without a domain.")
    counted = [
        f"{named(each)} as {named(setup.mapped[each])}{' by capacity' if each in setup.capacities else ''}"
        for each in sorted(classes)
        if each in setup.mapped
    ]
    if counted and not setup.refusals and setup.counts_claims:
        yield CHECK.well(f"{kueue} counts claims of {listed(counted)}.")


def _gates(argument: str) -> Iterator[tuple[str, bool]]:
    if argument.startswith("--feature-gates="):
        for each in argument.partition("=")[2].split(","):
            name, _, value = each.partition("=")
            yield name.strip(), value.strip().lower() == "true"
