"""Assesses one workload: what its pods become, and what stands in the way. Pure.

The decisions are the webhook's own, with the mode `convert` where neither pod, namespace nor policy sets one: a report
answers what conversion would do, also while the webhook is in shadow mode or not installed.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson
from msgspec import structs

from commands.objects.manifests import Manifest, manifests_of
from commands.report import obstacles, replicas
from commands.report.inventory import Root
from commands.report.model import Cause, Devices, Estate, Fate, Group, Obstacle, PodsNow, Reference, Workload
from neuron import names
from neuron.check.claims import ClaimContext
from neuron.demand.templates import Template
from neuron.findings import Finding, Severity
from neuron.hardware.instances import Catalogue
from policies.judging.fields import mapping
from policies.judging.holdings import of_claim
from policies.judging.knowledge import DeviceKnowledge
from policies.judging.tally import Concurrent
from runtime.remembered import Remembered
from webhook.decisions import check_workloads, leader_worker_sets, modes, pods
from webhook.decisions.claim_context import claim_context
from webhook.decisions.conversion_context import ConversionContext, ConversionOptions, conversion_context
from webhook.decisions.convert_pods import convert
from webhook.decisions.decision import Decision, Outcome
from webhook.decisions.modes import Mode
from webhook.decisions.own_claims import find_claims
from webhook.decisions.pod_demand import PodDemand
from webhook.decisions.pod_places import find_pods
from webhook.decisions.pod_templates import POD_TEMPLATES, Path, path_text
from webhook.decisions.ports import NamespaceFacts, WorldView
from webhook.decisions.steering import NO_STEERING, Steering, combined

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies

_REFUSING_WARNINGS: Final = frozenset({"NEU205"})
"""Warnings of conversion that say that another component denies the converted pod."""
_LEGACY: Final = frozenset(names.LEGACY_RESOURCES)
_MOST_REMEMBERED: Final = 16 * 1024 * 1024
_STAYS: Final = {
    "mode-off-by-pod": f"annotation {names.ANNOTATION_CONVERT} of the pod turns conversion off",
    "mode-off-by-namespace": f"annotation {names.ANNOTATION_CONVERT} of the namespace turns conversion off",
    "mode-off-by-policy": "a policy turns conversion off",
    "excluded-namespace": "the namespace is excluded",
    "mirror-pod": "a kubelet runs it from a file on its node",
    "node-name": "nodeName is set, so no scheduler would allocate a claim",
    "served-by-extended-resource-name": "the scheduler serves the resource by a DeviceClass with extendedResourceName",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A pod template and the decision about its pods, for the audit.

    Attributes:
        path: of the template in the object.
        template: as in the object.
        decision: of conversion.
    """

    path: Path
    template: dict[str, Any]
    decision: Decision


@dataclasses.dataclass(frozen=True, slots=True)
class Assessment:
    """A workload, and what the audit needs of it."""

    workload: Workload
    manifest: Manifest
    judged: tuple[Judged, ...]


class NotReadableError(Exception):
    """An object cannot be read; the message is the reason."""


class Assessor:
    """Assesses the workloads of one report. Equal pod templates of one namespace share one decision."""

    def __init__(
        self,
        options: ConversionOptions,
        view: WorldView,
        policies: "FilePolicies | None" = None,
        estate: Estate | None = None,
    ) -> None:
        """Prepare.

        Args:
            options: as for the webhook; the mode becomes `convert`.
            view: of the files, or of the cluster.
            policies: that steer conversion, or None.
            estate: the cluster's nodes, or None.
        """
        self._options = dataclasses.replace(options, mode=Mode.CONVERT)
        self._view = view
        self._policies = policies
        self._estate = estate
        catalogue = policies.catalogue if policies else Catalogue()
        self._context: ConversionContext = conversion_context(self._options, catalogue, view)
        self._decisions: Remembered[Any, Decision] = Remembered(_MOST_REMEMBERED)
        self._claims: ClaimContext | None = None
        self._amounts: dict[str, Devices] = {}
        self._types_of: dict[int, tuple[Decision, tuple[str, ...]]] = {}

    def assess(self, root: Root, now: PodsNow | None = None) -> Assessment | None:
        """The assessment; None for an object whose pods do not request plugin resources.

        Raises:
            NotReadableError: the object is not JSON, or is nested too deeply.
        """
        manifest = _manifest(root)
        ref = _reference(root, manifest)
        known = (manifest.group, manifest.kind) in POD_TEMPLATES
        judged: list[Judged] = []
        groups: list[Group] = []
        found: list[Obstacle] = []
        mode = ""
        for path, template in manifest.pod_templates():
            try:
                pod = pods.view(template)
                claiming = find_claims(pod, manifest.namespace, self._view, self._options.device_class)
                demand = PodDemand.of(pod, claiming)
                if demand.is_empty:
                    continue
                facts = self._view.namespace(manifest.namespace)
                steering, faults = self._steering(manifest, template)
                # Policies judge the patched pod. Without them other resources do not matter, and many pods are equal.
                view = pod if self._policies else _only_neuron(demand)
                decision = self._decide(view, manifest.namespace, facts, claiming, steering)
                mode = mode or _mode(pod, facts, steering, self._options)
            except pods.UnreadableError as error:
                found.append(_unreadable(path, manifest.kind, error))
                continue
            judged.append(Judged(path, template, decision))
            found += (
                _under(path, each) for each in self._obstacles(manifest, path, template, demand, decision, faults)
            )
            groups.append(self._group(root, manifest, path, demand, decision, now))
        if not groups and not found:
            return None if known else self._unknown(ref, manifest, now)
        found += self._of_group_set(manifest)
        fate, why = _fate(judged)
        workload = Workload(ref, fate, why, mode, tuple(groups), now, tuple(dict.fromkeys(found)))
        return Assessment(workload, manifest, tuple(judged))

    def _unknown(self, ref: Reference, manifest: Manifest, now: PodsNow | None) -> Assessment | None:
        """An object of a kind whose pod templates are not known."""
        place = next(find_pods(manifest.data), None)
        if place is None:
            return None
        why = f"{place.field_path('')}: its pods are converted when they are created"
        return Assessment(Workload(ref, Fate.UNKNOWN, why, "", (), now, ()), manifest, ())

    def _decide(
        self, pod: pods.Pod, namespace: str, facts: NamespaceFacts, claiming: tuple[str, ...], steering: Steering
    ) -> Decision:
        if namespace in self._options.excluded_namespaces:
            return Decision(Outcome.UNCHANGED, "excluded-namespace")
        key = (pod.key(), namespace if steering.templates else "", facts, claiming, steering)
        decision = self._decisions.get(key)
        if decision is None:
            decision = convert(pod, facts, self._context, claiming, steering)
            if decision.outcome is Outcome.SHADOWED:
                decision = convert(_forced(pod), facts, self._context, claiming, _unlocked(steering))
            if self._policies is not None:
                decision = self._policies.checked(decision, namespace, self._options, self._view)
            self._decisions.put(key, decision, 4096)
        return decision

    def _steering(self, manifest: Manifest, template: dict[str, Any]) -> tuple[Steering, list[Finding]]:
        if self._policies is None:
            return NO_STEERING, []
        return self._policies.steer(manifest, template, self._view)

    def _obstacles(
        self,
        manifest: Manifest,
        path: Path,
        template: Mapping[str, Any],
        demand: PodDemand,
        decision: Decision,
        faults: list[Finding],
    ) -> Iterator[Obstacle]:
        """The obstacles of one pod template, with paths in the pod."""
        for finding in (*decision.errors, *decision.warnings, *faults):
            blocks = finding.severity is Severity.ERROR or finding.code in _REFUSING_WARNINGS
            yield Obstacle(obstacles.cause_of(finding), finding, blocks=blocks)
        if decision.outcome is Outcome.UNCHANGED:
            return
        types = self._types(decision)
        yield from obstacles.pinned_cores(demand)
        yield from obstacles.queues(manifest.group, manifest.kind, manifest.data, path_text(path), template)
        yield from obstacles.karpenter(template, types, self._estate)
        yield from obstacles.nodes(types, self._estate)

    def _group(
        self, root: Root, manifest: Manifest, path: Path, demand: PodDemand, decision: Decision, now: PodsNow | None
    ) -> Group:
        count: int | None
        if root.owner is not None:
            count = None if now is None else now.plugin + now.converted
        else:
            count = replicas.pods_of(manifest.group, manifest.kind, manifest.data, path)
        named = [*(each.name for each in decision.templates), *(need.mapped.name for need in decision.needs)]
        templates = tuple(dict.fromkeys(named))
        after = None
        if decision.templates:
            after = sum((self._held(each) for each in decision.templates), Devices())
        return Group(path_text(path), count, _before(demand), after, templates, self._types(decision))

    def _types(self, decision: Decision) -> tuple[str, ...]:
        """`_types_in` of the decision's patch, for equal patches once."""
        if not decision.patch:
            return ()
        key = id(decision)
        known = self._types_of.get(key)
        if known is None or known[0] is not decision:
            known = self._types_of[key] = (decision, _types_in(decision))
        return known[1]

    def _held(self, template: Template) -> Devices:
        """What the claim of a template holds. A share of a device is counted in cores."""
        if template.name not in self._amounts:
            spec = mapping(template.spec.get("spec"))
            classes = dict.fromkeys(_classes(spec), True)
            holding = of_claim(spec, DeviceKnowledge(self._context.catalogue, classes))
            self._amounts[template.name] = Devices(holding.devices, 0)
        return self._amounts[template.name]

    def _of_group_set(self, manifest: Manifest) -> Iterator[Obstacle]:
        """What is wrong with a LeaderWorkerSet as a whole: NEU212 and NEU710."""
        if manifest.kind != "LeaderWorkerSet" or manifest.namespace in self._options.excluded_namespaces:
            return
        facts = self._view.namespace(manifest.namespace)
        if self._claims is None:
            self._claims = claim_context(self._options, self._context.catalogue, self._view)
        context = check_workloads.TemplateContext(facts, self._context, self._claims)
        try:
            workload = leader_worker_sets.decode(orjson.dumps(manifest.data))
            named = leader_worker_sets.named_templates(workload)
            modes_of = leader_worker_sets.ultraserver_modes(named, manifest.namespace, self._view)
            placed = leader_worker_sets.place(workload, modes_of, facts, Mode.CONVERT)
            sizes = {
                mode for each in workload.templates for mode in check_workloads.ultraserver_modes(each, {}, context)
            }
        except pods.UnreadableError:
            return  # Reported for the pod template.
        for finding in (*placed.warnings, *check_workloads.check_size(manifest.kind, manifest.data, sizes)):
            yield Obstacle(Cause.SETTINGS, finding, blocks=False)


def _manifest(root: Root) -> Manifest:
    found = root.found
    try:
        data = orjson.loads(found.raw)
    except orjson.JSONDecodeError as error:
        raise NotReadableError(str(error)) from error
    data.setdefault("apiVersion", found.api_version)
    data.setdefault("kind", found.kind)
    if root.running and isinstance(data.get("spec"), dict):
        # A scheduler has set it: the next pod of this kind is scheduled, and converted, again.
        data["spec"].pop("nodeName", None)
    return next(manifests_of(data))


def _reference(root: Root, manifest: Manifest) -> Reference:
    found, owner = root.found, root.owner
    if owner is None:
        api_version = str(manifest.data.get("apiVersion"))
        return Reference(
            found.group, found.kind, manifest.namespace, manifest.name, root.uid, api_version, found.source, found.line
        )
    api_version = f"{owner.group}/{owner.version}" if owner.group else owner.version
    return Reference(
        owner.group, owner.kind, manifest.namespace, owner.name, owner.uid, api_version, found.source, found.line
    )


def _before(demand: PodDemand) -> Devices:
    """Devices and cores that one pod requests of the device plugin, as they are held at one time."""
    held = Concurrent()
    for each in demand.containers:
        init = each.section == "initContainers" and each.container.restartPolicy != "Always"
        amount = each.ask.amount
        held.add(0 if each.ask.in_cores else amount, amount if each.ask.in_cores else 0, init=init)
    return Devices(held.devices, held.cores)


def _classes(spec: Mapping[str, Any]) -> Iterator[str]:
    for request in mapping(spec.get("devices")).get("requests") or ():
        for each in (mapping(request.get("exactly")), *(request.get("firstAvailable") or ())):
            if each.get("deviceClassName"):
                yield str(each["deviceClassName"])


def _types_in(decision: Decision) -> tuple[str, ...]:
    """Instance types to which conversion restricts the pod; empty if it adds no restriction."""
    text = orjson.dumps([operation.get("value") for operation in decision.patch])
    if names.LABEL_INSTANCE_TYPE.encode() not in text:
        return ()
    found: dict[str, None] = {}
    waiting: list[Any] = orjson.loads(text)
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            if part.get("key") == names.LABEL_INSTANCE_TYPE and isinstance(part.get("values"), list):
                found |= dict.fromkeys(str(each).removeprefix(names.SAGEMAKER_PREFIX) for each in part["values"])
            waiting += part.values()
    return tuple(found)


def _only_neuron(demand: PodDemand) -> pods.Pod:
    """The pod without CPU, memory and other resources of its containers, on which no finding depends."""
    sections: dict[str, list[pods.Container]] = {"initContainers": [], "containers": []}
    for each in demand.containers:
        resources = each.resources or {}
        kept = {
            field: {name: amount for name, amount in (resources.get(field) or {}).items() if name in _LEGACY}
            for field in ("limits", "requests")
        }
        reduced = orjson.dumps({**kept, "claims": resources.get("claims")})
        sections[each.section].append(structs.replace(each.container, resources=msgspec.Raw(reduced)))
    pod = demand.pod
    return structs.replace(pod, spec=structs.replace(pod.spec, **sections))


def _forced(pod: pods.Pod) -> pods.Pod:
    """The pod with an annotation that asks for conversion: what shadow mode prevents."""
    metadata = pod.metadata or pods.Metadata()
    annotations = structs.replace(pod.annotations, convert=Mode.CONVERT.value)
    return structs.replace(pod, metadata=structs.replace(metadata, annotations=annotations))


def _unlocked(steering: Steering) -> Steering:
    """The steering without shadow mode."""
    return structs.replace(steering, mode=None if steering.mode is None else Mode.CONVERT)


def _mode(pod: pods.Pod, facts: NamespaceFacts, steering: Steering, options: ConversionOptions) -> str:
    settings = combined(modes.resolve(pod.annotations, facts, Mode(options.mode)), steering)
    if settings.source == "flag":
        return ""
    source = f"policy {steering.policy}" if settings.source == "policy" else settings.source
    return f"{settings.mode} ({source})"


def _fate(judged: list[Judged]) -> tuple[Fate, str]:
    """What becomes of the workload: of its pod templates, the one with the most trouble decides."""
    outcomes = {each.decision.outcome: each.decision for each in judged}
    if Outcome.DENIED in outcomes or not judged:
        return Fate.REFUSED, ""
    if Outcome.CONVERTED in outcomes:
        return Fate.CONVERTS, ""
    if Outcome.RESTORED in outcomes or any(each.decision.reason == "already-converted" for each in judged):
        return Fate.CONVERTED, ""
    reason = outcomes[Outcome.UNCHANGED].reason if Outcome.UNCHANGED in outcomes else ""
    return Fate.STAYS, _STAYS.get(reason, reason)


def _unreadable(path: Path, kind: str, error: Exception) -> Obstacle:
    where, message = pods.place(error)
    text = f"the pod template is not readable: {message}."
    finding = Finding("NEU114", where, text, f"Compare it with the API reference of {kind}.")
    return _under(path, Obstacle(Cause.POD, finding, blocks=True))


def _under(path: Path, obstacle: Obstacle) -> Obstacle:
    """The obstacle with its path in the workload."""
    return dataclasses.replace(obstacle, finding=check_workloads.under(path_text(path), obstacle.finding))
