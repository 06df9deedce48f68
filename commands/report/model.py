"""The content of a report. Frozen values without behaviour beyond sums; every renderer reads these."""

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from commands.cluster.reader import Object
from commands.objects.manifest_files import ReadProblem
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding, Severity
from runtime.text import counted, named


class Fate(enum.StrEnum):
    """What becomes of a workload's pods."""

    CONVERTS = "converts"
    """Its next pods are converted."""
    REFUSED = "refused"
    """Its next pods are denied."""
    STAYS = "stays"
    """Its pods keep the limits of the device plugin: an annotation, a policy or the pod itself says so."""
    CONVERTED = "converted"
    """Its pods have claims already."""
    UNKNOWN = "unknown"
    """The place of its pod templates is not known. Its pods are converted at admission."""


class Prospect(enum.StrEnum):
    """What a workload comes to as the cluster is now: one for each workload."""

    CONVERTED = "converted"
    CONVERTS = "converts"
    WAITS = "waits"
    """Its pods are converted, and then no scheduler can place them."""
    BLOCKED = "blocked"
    """Its pods are denied, or do not run as they are."""
    STAYS = "stays"
    UNKNOWN = "unknown"


class Cause(enum.StrEnum):
    """The kind of an obstacle."""

    COUNTS = "device counts"
    SELECTION = "node selection"
    SETTINGS = "device settings"
    POD = "pod spec"
    QUOTA = "quota"
    LIMIT_RANGE = "LimitRange"
    QUEUE = "queue"
    KARPENTER = "Karpenter"
    CORES = "pinned cores"
    SCHEDULER = "schedulerName"
    NODES = "nodes"
    POLICY = "policy"


_WAITING: Final = frozenset({Cause.SELECTION, Cause.QUOTA, Cause.QUEUE, Cause.KARPENTER, Cause.NODES})
"""Obstacles for which a pod is pending."""


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that blocks a workload, or that changes for it.

    Attributes:
        finding: the text; the path is that in the object.
        blocks: whether the workload cannot run converted until it is settled.
    """

    cause: Cause
    finding: Finding
    blocks: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """An object, and where it was read. `source` is the file, or empty for a cluster."""

    group: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    api_version: str = ""
    source: str = ""
    line: int = 0

    @property
    def fields(self) -> dict[str, str]:
        """What names the object in JSON, and in report objects."""
        return {"apiVersion": self.api_version, "kind": self.kind, "namespace": self.namespace, "name": self.name}

    def __str__(self) -> str:
        """`Kind namespace/name`."""
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{named(self.kind)} {named(name)}" if name else named(self.kind)


@dataclasses.dataclass(frozen=True, slots=True)
class Devices:
    """Neuron devices and cores of pods.

    Attributes:
        devices: whole devices.
        cores: cores that are requested as cores: of the device plugin, or of shared devices.
    """

    devices: int = 0
    cores: int = 0

    def __add__(self, other: "Devices") -> "Devices":
        return Devices(self.devices + other.devices, self.cores + other.cores)

    def __mul__(self, pods: int) -> "Devices":
        return Devices(self.devices * pods, self.cores * pods)

    def __str__(self) -> str:
        """`16 devices`, `4 cores`, `16 devices + 4 cores`."""
        parts = [counted(self.devices, "device")] if self.devices or not self.cores else []
        return " + ".join([*parts, counted(self.cores, "core")] if self.cores else parts)


NO_DEVICES: Final = Devices()


@dataclasses.dataclass(frozen=True, slots=True)
class PodsNow:
    """Pods of a workload that exist: those of the device plugin, those with claims, and the nodes of the former."""

    plugin: int = 0
    converted: int = 0
    pending: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class PodNeed:
    """What the pods of equal templates need of a node. Compared by identity.

    Attributes:
        pod: with the node selection and the tolerations only.
        claims: the specs of its claims.
    """

    pod: Object
    claims: tuple[ClaimSpec, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TemplatePods:
    """The pods of one pod template.

    Attributes:
        path: field path of the template.
        pods: number of pods; None: not known, such as those of a DaemonSet in a file.
        before: devices of one pod with the device plugin.
        after: devices of one pod after conversion; None if it is not converted.
        templates: names of its ResourceClaimTemplates after conversion.
        types: instance types that can serve it, if conversion names them.
        need: what a pod needs of a node after conversion; None without a cluster, or if it is not converted.
    """

    path: str
    pods: int | None
    before: Devices
    after: Devices | None
    templates: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    need: PodNeed | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def known_pods(self) -> int:
        """Number of pods; 1 if it is not known."""
        return 1 if self.pods is None else self.pods


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """The assessment of one workload.

    Attributes:
        why: reason for the fate, as a clause; empty where the obstacles have it.
        mode: the mode of conversion that applies, and what sets it, such as `shadow (namespace)`.
        groups: its pod templates with plugin resources.
        now: its pods that exist; None without a cluster.
        obstacles: in the order of the object.
    """

    ref: Reference
    fate: Fate
    why: str
    mode: str
    groups: tuple[TemplatePods, ...]
    now: PodsNow | None
    obstacles: tuple[Obstacle, ...]

    @property
    def blocked(self) -> bool:
        return self.fate is Fate.REFUSED or any(each.blocks for each in self.obstacles)

    @property
    def prospect(self) -> Prospect:
        if self.fate is Fate.REFUSED or any(each.blocks and each.cause not in _WAITING for each in self.obstacles):
            return Prospect.BLOCKED
        return Prospect.WAITS if self.blocked else Prospect(self.fate.value)

    @property
    def pods(self) -> int | None:
        """Number of its pods; None if it is not known for one of its templates."""
        counts = [group.pods for group in self.groups]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def before(self) -> Devices:
        """Devices of all pods. A template with an unknown number of pods counts once."""
        return total(group.before * group.known_pods for group in self.groups)

    @property
    def after(self) -> Devices | None:
        """The same after conversion; None if it is not converted."""
        if self.fate is not Fate.CONVERTS and self.fate is not Fate.CONVERTED:
            return None
        return total((group.after or group.before) * group.known_pods for group in self.groups)

    @property
    def templates(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for group in self.groups for name in group.templates))


RESULTS: Final = ("pass", "fail", "warn", "error", "skip")
"""The words of PolicyReports for what a policy says."""


@dataclasses.dataclass(frozen=True, slots=True)
class AuditViolation:
    """A policy's result about an existing object that is not `pass`.

    Attributes:
        path: pod template that was judged; empty for the object itself.
        result: fail, warn, error or skip (an exception admits the object), as in a PolicyReport.
        action: Deny, Warn or Audit; empty for skip.
    """

    ref: Reference
    path: str
    policy: str
    severity: str
    result: str
    message: str
    action: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Audit:
    """The results of policies about existing objects.

    Attributes:
        objects: number of objects that at least one policy matches.
        counts: results by namespace (empty: cluster-scoped) and result.
        violations: all results but pass.
        unread: resources that could not be read, with the reason.
    """

    policies: tuple[str, ...]
    objects: int
    counts: Mapping[tuple[str, str], int]
    violations: tuple[AuditViolation, ...]
    unread: tuple[str, ...] = ()

    def count(self, result: str) -> int:
        return sum(count for (_, each), count in self.counts.items() if each == result)


@dataclasses.dataclass(frozen=True, slots=True)
class MigrationStep:
    """One step of the migration: a namespace.

    Attributes:
        namespace: its name; empty for objects without one.
        ready: whether no workload of it is blocked.
        workloads: number of workloads that convert.
        blocked: number of workloads that are blocked.
        staying: number of workloads that keep the device plugin.
        pods: pods that convert.
        before: devices that leave the device plugin.
        after: devices that the DRA driver must have free.
        note: what has to be changed for it, such as a quota; empty for nothing.
        nodes: nodes on which no pod of the device plugin runs after this step, and did before.
        freed: devices of these nodes.
        free: devices that the driver has free before this step, by instance type, if nodes move as they become free;
            None without a cluster.
        needs: `after` by the instance types that serve it, such as `inf2.8xlarge or inf2.xlarge`; empty without a
            cluster.
        short: devices of the pods for which no node has a free place. 0 if that is not known.
    """

    namespace: str
    ready: bool
    workloads: int
    blocked: int
    staying: int
    pods: int
    before: Devices
    after: Devices
    note: str = ""
    nodes: tuple[str, ...] = ()
    freed: int = 0
    free: Mapping[str, int] | None = None
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    short: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronNodes:
    """The cluster's Neuron nodes, as far as they were read.

    Attributes:
        plugin: nodes on which the device plugin offers devices: number of devices.
        driver: nodes on which the DRA driver publishes devices: number of devices.
        free: devices of the driver that no claim holds, by instance type.
        types: instance type of each node.
        idle: nodes of the device plugin on which no pod uses it.
    """

    plugin: Mapping[str, int]
    driver: Mapping[str, int]
    free: Mapping[str, int]
    types: Mapping[str, str]
    idle: tuple[str, ...] = ()

    @property
    def mixed(self) -> tuple[str, ...]:
        """Nodes on which both offer devices."""
        return tuple(sorted(self.plugin.keys() & self.driver.keys()))


LOG: Final = "log of the webhook"


@dataclasses.dataclass(frozen=True, slots=True)
class Shadowed:
    """What the webhook reported of pods that were really created.

    Attributes:
        name: the beginning of their names.
        outcome: would-be-converted, would-be-denied, or denied.
        source: the log, or the Event, which anybody who may create Events in the namespace could have written.
        note: text of the Event; empty for log lines, which have codes only.
    """

    namespace: str
    name: str
    outcome: str
    codes: tuple[str, ...]
    pods: int
    source: str = LOG
    note: str = ""


_MOST_SHADOWED: Final = 1000
"""Entries of a report; those with the most pods are kept."""


def most_pods_first(found: Iterable[Shadowed]) -> tuple[Shadowed, ...]:
    return tuple(sorted(found, key=lambda each: (-each.pods, each.namespace, each.name, each.outcome))[:_MOST_SHADOWED])


@dataclasses.dataclass(frozen=True, slots=True)
class Heading:
    """Where a report comes from.

    Attributes:
        origin: the files, or the address of the API server.
        made: the time, RFC 3339.
        version: of this program.
    """

    origin: str
    made: str
    version: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report(Heading):
    """A whole report.

    Attributes:
        workloads: in the order of the plan: by namespace, kind and name.
        neuron_nodes: the cluster's nodes; None without a cluster.
        audit: of existing objects; None without policies.
        shadowed: what the webhook saw.
        notes: facts about the whole report.
        problems: what could not be read: the report is not complete.
        finished: Jobs and pods that have ended, which are left out.
    """

    workloads: tuple[Workload, ...]
    steps: tuple[MigrationStep, ...]
    neuron_nodes: NeuronNodes | None = None
    audit: Audit | None = None
    shadowed: tuple[Shadowed, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[ReadProblem, ...] = ()
    finished: int = 0

    @property
    def fates(self) -> Counter[Fate]:
        return Counter(each.fate for each in self.workloads)

    @property
    def blocked(self) -> int:
        return sum(each.blocked for each in self.workloads)

    @property
    def before(self) -> Devices:
        """Devices of the workloads that are not converted yet."""
        return total(each.before for each in self.workloads if each.fate is not Fate.CONVERTED)

    @property
    def after(self) -> Devices:
        """Devices of the workloads that convert."""
        return total(each.after for each in self.workloads if each.fate is Fate.CONVERTS and each.after is not None)

    @property
    def denied(self) -> int:
        """Results of the audit for which the API server would now deny the object."""
        return sum(each.action == "Deny" for each in self.audit.violations) if self.audit else 0


@dataclasses.dataclass(frozen=True, slots=True)
class Topic:
    """Workloads that share one obstacle: code and message.

    Attributes:
        blocks: whether it blocks.
        workloads: that have it, in order.
    """

    cause: Cause
    code: str
    message: str
    fix: str
    blocks: bool
    severity: Severity
    workloads: tuple[Reference, ...]


_BY_FAMILIES: Final = "NEU216"
"""The finding that `--families` settles for all workloads."""


def topics(workloads: Iterable[Workload]) -> tuple[Topic, ...]:
    """Obstacles of all workloads: those that block first, then what one flag settles, then by number of workloads."""
    found: dict[tuple[Cause, str, str, str, bool, Severity], dict[Reference, None]] = {}
    for workload in workloads:
        for each in workload.obstacles:
            finding = each.finding
            key = (each.cause, finding.code, finding.message, finding.fix, each.blocks, finding.severity)
            found.setdefault(key, {})[workload.ref] = None
    made = [Topic(*key, tuple(refs)) for key, refs in found.items()]

    def order(each: Topic) -> tuple[object, ...]:
        return not each.blocks, each.code != _BY_FAMILIES, -len(each.workloads), each.code, each.message

    return tuple(sorted(made, key=order))


def total(parts: Iterable[Devices]) -> Devices:
    return sum(parts, Devices())
