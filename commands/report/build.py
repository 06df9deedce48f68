"""Makes a report from objects: inventory, assessments, audit, plan. Pure; the caller reads the objects."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cluster.store import Store
from commands.objects.manifest_files import ReadProblem
from commands.objects.manifests import Manifest
from commands.present import listed
from commands.report import plan
from commands.report.assess import Assessment, Assessor, NotReadableError
from commands.report.inventory import Found, Inventory, Root
from commands.report.model import (
    LOG,
    Audit,
    AuditViolation,
    Cause,
    Fate,
    Heading,
    NeuronNodes,
    Obstacle,
    PodsNow,
    Reference,
    Report,
    Shadowed,
    Workload,
    most_pods_first,
)
from commands.report.plan import Places
from conversion.asks.conversion_context import ConversionOptions
from conversion.decide import located
from neuron.api.fields import mapping
from neuron.findings import Finding
from policies.applying.steering import finder
from policies.judging.verdicts import PolicyOutcome, Verdict, objections
from policies.patching.json_patch import patched
from runtime.text import named

if TYPE_CHECKING:
    from commands.devices.node_devices import ClusterDevices
    from commands.objects.file_policies import FilePolicies


class ReportBuilder:
    """Takes objects one by one; keeps the assessments, not the objects."""

    def __init__(
        self,
        options: ConversionOptions,
        view: Store,
        policies: "FilePolicies | None" = None,
        cluster: "ClusterDevices | None" = None,
        counted_classes: Collection[str] = (),
    ) -> None:
        """Prepare. `counted_classes`: DeviceClasses whose claims Kueue is known to count."""
        self._options = options
        self._view = view
        self._places = None if cluster is None else Places(cluster, view.device_classes)
        self._neuron_nodes = None if cluster is None or self._places is None else _nodes(cluster, self._places)
        self._inventory = Inventory(None if policies is None else finder(policies.loaded))
        self._assessor = Assessor(options, view, policies, self._neuron_nodes, self._places, counted_classes)
        self._auditor: Auditor | None = None
        if policies is not None and policies.validating:
            self._auditor = Auditor(policies, view)
        self._workloads: list[Workload] = []
        self._unreadable: list[str] = []
        self.notes: list[str] = []
        self.problems: list[ReadProblem] = []
        self.unaudited: list[str] = []

    @property
    def audits(self) -> bool:
        """Whether there are policies for validation."""
        return self._auditor is not None

    def take(self, found: Found) -> None:
        """Take an object of any kind."""
        root = self._inventory.take(found)
        if root is not None:
            self._assess(root, None)

    def judge(self, manifest: Manifest) -> None:
        """Judge an object that is no workload by the policies, such as a ResourceClaimTemplate."""
        if self._auditor is not None and manifest.namespace not in self._options.excluded_namespaces:
            uid = str(mapping(manifest.data.get("metadata")).get("uid") or "")
            version = str(manifest.data.get("apiVersion") or "")
            ref = Reference(manifest.group, manifest.kind, manifest.namespace, manifest.name, uid, version)
            self._auditor.object(ref, manifest)

    def build(self, heading: Heading, shadowed: tuple[Shadowed, ...] = ()) -> Report:
        """The report about all objects that were taken."""
        pods_of = self._inventory.pods_of()
        for root in self._inventory.rest():
            self._assess(root, pods_of(root.uid))
        on_nodes = self._inventory.on_nodes()
        workloads = self._with_pods(pods_of)
        quotas, device_class = self._view.quotas, self._options.device_class
        steps = plan.steps(workloads, quotas, device_class, self._neuron_nodes, self._places, on_nodes)
        order = {step.namespace: at for at, step in enumerate(steps)}

        def place(each: Workload) -> tuple[int, str, bool, str, str]:
            ref = each.ref
            return order.get(ref.namespace, len(order)), ref.namespace, not each.blocked, ref.kind, ref.name

        workloads.sort(key=place)
        nodes = self._neuron_nodes
        if nodes is not None:
            idle = sorted(node for node in nodes.plugin if node not in on_nodes and node not in nodes.driver)
            nodes = dataclasses.replace(nodes, idle=tuple(idle))
        if unread := [*self._inventory.unreadable, *self._unreadable]:
            self.problems.append(ReadProblem(listed(unread), 0, 0, "not readable, and left out"))
        return Report(
            heading.origin,
            heading.made,
            heading.version,
            tuple(workloads),
            steps,
            nodes,
            None if self._auditor is None else self._auditor.result(tuple(self.unaudited)),
            _by_workload(shadowed, workloads),
            tuple(self.notes),
            tuple(self.problems),
            self._inventory.finished,
        )

    def _with_pods(self, pods_of: Callable[[str], PodsNow]) -> list[Workload]:
        """The workloads with their pods. One whose pods all have claims, and whose next pods get them, is converted."""
        if self._neuron_nodes is None and not self._inventory.saw_pods:
            return list(self._workloads)
        found = []
        for each in self._workloads:
            now = each.now or pods_of(each.ref.uid)
            done = each.fate is Fate.CONVERTS and not each.blocked and now.converted and not now.plugin
            found.append(dataclasses.replace(each, now=now, fate=Fate.CONVERTED if done else each.fate))
        return found

    def _assess(self, root: Root, now: PodsNow | None) -> None:
        try:
            assessment = self._assessor.assess(root, now)
        except NotReadableError:
            self._unreadable.append(f"{root.found.kind} of {root.found.source or 'the cluster'}")
            return
        if assessment is not None:
            self._workloads.append(self._audited(assessment))

    def _audited(self, assessment: Assessment) -> Workload:
        """The workload with the policies that would deny it."""
        workload = assessment.workload
        if self._auditor is None or workload.ref.namespace in self._options.excluded_namespaces:
            return workload
        denied = self._auditor.workload(assessment)
        if not denied:
            return workload
        fate = Fate.REFUSED if workload.fate is Fate.CONVERTS else workload.fate
        return dataclasses.replace(workload, fate=fate, obstacles=(*workload.obstacles, *denied))


def _nodes(cluster: "ClusterDevices", places: Places) -> NeuronNodes:
    found = cluster.map.nodes
    plugin = {node.name: node.plugin.devices for node in found if node.plugin is not None}
    driver = {
        node.name: len(node.devices) for node in found if node.whole or any(each.offered for each in node.devices)
    }
    return NeuronNodes(plugin, driver, places.free(), {node.name: node.instance_type for node in found})


def _by_workload(found: Sequence[Shadowed], workloads: Iterable[Workload]) -> tuple[Shadowed, ...]:
    """The same by workload: names of pods begin with the name of their controller."""
    names: dict[tuple[str, str], str] = {}
    for each in workloads:
        names[each.ref.namespace, each.ref.name] = f"{named(each.ref.kind)} {named(each.ref.name)}"
    sums: Counter[tuple[str, str, str, tuple[str, ...], str, str]] = Counter()
    for one in found:
        shown = named(one.name) if one.source == LOG else one.name
        parts = one.name.rstrip("-").split("-")
        heads = ("-".join(parts[:end]) for end in range(len(parts), 0, -1))
        name = next((names[one.namespace, head] for head in heads if (one.namespace, head) in names), shown)
        sums[one.namespace, name, one.outcome, one.codes, one.source, one.note] += one.pods
    return most_pods_first(
        Shadowed(namespace, name, outcome, codes, count, source, note)
        for (namespace, name, outcome, codes, source, note), count in sums.items()
    )


# --- existing objects, judged by the policies for validation, as on CREATE --------------------------------------------

# A workload is judged itself, and through the pods that it would create, converted. The words for results are those of
# PolicyReports: `fail` is a violation that a policy denies or audits, `warn` one that it only warns of, `error` a
# policy that cannot be evaluated, `skip` an exception that admits the object.


_ACTIONS: Final = {PolicyOutcome.DENY: "Deny", PolicyOutcome.WARN: "Warn", PolicyOutcome.AUDIT: "Audit"}


class Auditor:
    """Collects the results of one report."""

    def __init__(self, policies: "FilePolicies", view: Store) -> None:
        self._policies = policies
        self._view = view
        self._objects = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._violations: list[AuditViolation] = []

    def workload(self, assessment: Assessment) -> list[Obstacle]:
        """Judge a workload and its pods; returns what would deny them."""
        manifest, ref = assessment.manifest, assessment.workload.ref
        denied: list[Obstacle] = []
        matched = False
        for each in assessment.judged:
            pod = patched(each.place.template, each.decision.patch)
            verdicts = self._policies.pod_verdicts(manifest, pod, each.decision, self._view)
            path = each.place.field_path("")
            matched = self._note(ref, path, verdicts) or matched
            denied += (_obstacle(located(each.place, finding)) for finding in _denials(verdicts))
        if (manifest.group, manifest.kind) != ("", "Pod"):
            verdicts = self._policies.object_verdicts(manifest, self._view)
            matched = self._note(ref, "", verdicts) or matched
            denied += map(_obstacle, _denials(verdicts))
        self._objects += matched
        return denied

    def object(self, ref: Reference, manifest: Manifest) -> None:
        """Judge an object that is no workload, such as a ResourceClaimTemplate."""
        self._objects += self._note(ref, "", self._policies.object_verdicts(manifest, self._view))

    def result(self, unread: tuple[str, ...] = ()) -> Audit:
        """The results so far. `unread`: resources that could not be read."""
        return Audit(self._policies.validating, self._objects, dict(self._counts), tuple(self._violations), unread)

    def _note(self, ref: Reference, path: str, verdicts: tuple[Verdict, ...]) -> bool:
        matched = False
        for verdict in verdicts:
            if verdict.outcome is PolicyOutcome.NO_MATCH:
                continue
            matched = True
            if verdict.outcome is PolicyOutcome.ALLOW:
                self._counts[ref.namespace, "pass"] += 1
                continue
            for violation in _violations(ref, path, verdict):
                self._counts[ref.namespace, violation.result] += 1
                self._violations.append(violation)
        return matched


def _violations(ref: Reference, path: str, verdict: Verdict) -> Iterator[AuditViolation]:
    rule, exemption = verdict.rule, verdict.exemption
    if verdict.outcome is PolicyOutcome.EXCEPT:
        who = f"'{exemption.name}' of {exemption.owner}" if exemption else ""
        message = f"exception {who} admits it".replace("  ", " ")
        yield AuditViolation(ref, path, rule.name, rule.severity, "skip", message)
        return
    action = _ACTIONS[verdict.outcome]
    for each in verdict.violations:
        result = "error" if each.failed else "warn" if action == "Warn" else "fail"
        yield AuditViolation(ref, path, rule.name, rule.severity, result, each.message, action)


def _denials(verdicts: Iterable[Verdict]) -> Iterator[Finding]:
    """The first finding of each policy that denies."""
    return (objections(verdict)[0] for verdict in verdicts if verdict.outcome is PolicyOutcome.DENY)


def _obstacle(finding: Finding) -> Obstacle:
    return Obstacle(Cause.POLICY, finding, blocks=True)
