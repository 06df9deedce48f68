"""Assesses one workload: what its pods become, and what stands in the way. Pure.

The decisions are the webhook's own, with the mode `convert` where neither pod, namespace nor policy sets one: a report
answers what conversion would do, also while the webhook is in shadow mode or not installed.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from cluster.store import Store
from commands.objects.decider import Decider
from commands.objects.manifests import Manifest, manifests_of
from commands.present import listed
from commands.report.inventory import Root
from commands.report.model import (
    Cause,
    Devices,
    Fate,
    NeuronNodes,
    Obstacle,
    PodNeed,
    PodsNow,
    Reference,
    TemplatePods,
    Workload,
)
from commands.report.plan import Fit, Places
from conversion.asks.conversion_context import ConversionOptions
from conversion.asks.pod_demand import PodDemand
from conversion.asks.steering import Mode
from conversion.claims.templates import Template
from conversion.decide import Part, located
from conversion.objects.kinds import KINDS
from conversion.patches.decision import Decision, Outcome
from neuron import names
from neuron.api.claim_reader import claim_spec
from neuron.api.fields import mapping
from neuron.findings import Finding, Severity, warning
from policies.judging.device_counts import of_claim
from policies.judging.knowledge import DeviceKnowledge
from policies.judging.tally import Concurrent
from policies.patching.json_patch import patched
from runtime.text import counted

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies


_NO_NODE: Final = "NEU903"
"""A warning that blocks: no node is made for the converted pod."""
_STAYS: Final = {
    "mode-off-by-pod": f"annotation {names.ANNOTATION_CONVERT} of the pod turns conversion off",
    "mode-off-by-namespace": f"annotation {names.ANNOTATION_CONVERT} of the namespace turns conversion off",
    "mode-off-by-policy": "a policy turns conversion off",
    "excluded-namespace": "the namespace is excluded",
    "not-neuron": "its pods request no resource that conversion knows",
    "mirror-pod": "a kubelet runs it from a file on its node",
    "unknown-type": "its instance type is not in the catalogue",
    "autoscaled": "no node is made for its claim",
    "node-name": "nodeName is set, so no scheduler would allocate a claim",
    "served-by-extended-resource-name": "the scheduler serves the resource by a DeviceClass with extendedResourceName",
}


_BY_TEMPLATE: Final = "it uses the template of a ClaimTemplate"


_DECIDED_LATER: Final = {Fate.CONVERTS: "converted", Fate.REFUSED: "refused"}
"""What becomes of the pods of an object whose kind is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Assessment:
    """A workload, and what the audit needs of it."""

    workload: Workload
    manifest: Manifest
    judged: tuple[Part, ...]


class NotReadableError(Exception):
    """An object cannot be read; the message is the reason."""


class Assessor:
    """Assesses the workloads of one report. Equal pod templates of one namespace share one decision."""

    def __init__(
        self,
        options: ConversionOptions,
        view: Store,
        policies: "FilePolicies | None" = None,
        neuron_nodes: NeuronNodes | None = None,
        places: Places | None = None,
        counted_classes: Collection[str] = (),
        *,
        past_shadow: bool = True,
    ) -> None:
        """Prepare.

        Args:
            options: as for the webhook; with `past_shadow` the mode becomes `convert`.
            view: of the files, or of the cluster.
            policies: that steer conversion, or None.
            neuron_nodes: the cluster's nodes, or None.
            places: the same nodes, as pods find place on them.
            counted_classes: DeviceClasses whose claims Kueue is known to count.
            past_shadow: whether to decide as if shadow mode were `convert`.
        """
        self._options = dataclasses.replace(options, mode=Mode.CONVERT) if past_shadow else options
        self._view = view
        self._neuron_nodes = neuron_nodes
        self._places = places
        self._needs: dict[int, tuple[Decision, PodNeed | None]] = {}
        self._equal_needs: dict[bytes, PodNeed] = {}
        self._decider = Decider(self._options, view, policies, past_shadow=past_shadow, counted_classes=counted_classes)
        self._amounts: dict[str, Devices] = {}

    def assess(self, root: Root, now: PodsNow | None = None) -> Assessment | None:
        """The assessment; None for an object whose pods do not request plugin resources.

        Raises:
            NotReadableError: the object is not JSON, or is nested too deeply.
        """
        manifest = _manifest(root)
        ref = _reference(root, manifest)
        decided = self._decider.decide(manifest)
        judged: list[Part] = []
        groups: list[TemplatePods] = []
        found: list[Obstacle] = []
        mode = ""
        for part in decided.parts:
            if part.decision.reason == "unreadable":
                found += (Obstacle(Cause.POD, each, blocks=True) for each in part.findings)
                continue
            demand = None if part.facts.pod is None else PodDemand.of(part.facts.pod, ())
            refused = any(each.severity is Severity.ERROR for each in part.findings)
            names_some = bool(part.facts.steering.named)
            if demand is None or (demand.is_empty and not part.answer.findings and not refused and not names_some):
                continue
            mode = mode or _mode(part)
            judged.append(part)
            found += self._obstacles(manifest.namespace, part)
            groups.append(self._group(root, manifest, part, demand, now))
        if not groups and not found and not any(each.code == "NEU129" for each in decided.form):
            return None
        found += (_obstacle(each) for each in (*decided.form, *decided.own) if each.severity is not Severity.NOTE)
        fate, why = _fate(judged)
        if any(each.severity is Severity.ERROR for each in decided.form):
            fate, why = Fate.REFUSED, ""
        elif (manifest.group, manifest.kind) not in KINDS and judged and fate in _DECIDED_LATER:
            why = f"{judged[0].place.field_path('')}: its pods are {_DECIDED_LATER[fate]} when created"
            fate = Fate.UNKNOWN
        workload = Workload(ref, fate, why, mode, tuple(groups), now, tuple(dict.fromkeys(found)))
        return Assessment(workload, self._decider.created(manifest).stored, tuple(judged))

    def _obstacles(self, namespace: str, part: Part) -> Iterator[Obstacle]:
        """The obstacles of one pod, with paths in the object."""
        yield from map(_obstacle, part.findings)
        if part.decision.outcome is Outcome.UNCHANGED or self._places is None or self._neuron_nodes is None:
            return
        need = self._need(namespace, part)
        if need is not None:
            for each in _node_obstacles(self._places.fit(need), self._neuron_nodes):
                yield dataclasses.replace(each, finding=located(part.place, each.finding))

    def _group(
        self, root: Root, manifest: Manifest, part: Part, demand: PodDemand, now: PodsNow | None
    ) -> TemplatePods:
        path, decision = part.place.path, part.decision
        count: int | None
        if root.owner is not None:
            count = None if now is None else now.plugin + now.converted
        else:
            count = pods_of(manifest.group, manifest.kind, manifest.data, path)
        named = [*(each.name for each in decision.templates), *(need.mapped.name for need in decision.needs)]
        templates = tuple(dict.fromkeys(named))
        after = None
        if decision.templates:
            after = sum((self._held(each) for each in decision.templates), Devices())
        need = self._need(manifest.namespace, part)
        return TemplatePods(
            part.place.field_path(""), count, _before(demand), after, templates, _types_in(decision), need
        )

    def _need(self, namespace: str, part: Part) -> PodNeed | None:
        """What the converted pod needs of a node; None without a cluster, without a claim, or if a claim is not known.

        Pods with one decision have one node selection: the decision depends on it.
        """
        decision = part.decision
        if self._places is None or not (decision.templates or decision.needs):
            return None
        known = self._needs.get(id(decision))
        if known is None or known[0] is not decision:
            known = self._needs[id(decision)] = decision, self._read_need(namespace, part)
        return known[1]

    def _read_need(self, namespace: str, part: Part) -> PodNeed | None:
        decision = part.decision
        specs = [claim_spec(mapping(each.spec.get("spec"))) for each in decision.templates]
        mapped = [self._view.claim_template(namespace, each.mapped.name) for each in decision.needs]
        if None in mapped:
            return None
        spec = mapping(patched(part.place.template, decision.patch).get("spec"))
        selection = {key: spec[key] for key in ("nodeSelector", "affinity", "tolerations") if spec.get(key)}
        bodies = [orjson.dumps(each.spec) for each in decision.templates]
        names_ = [f"{namespace}/{each.mapped.name}".encode() for each in decision.needs]
        # One text of its length: orjson leaves at least 4 KiB to each that it made.
        key = b"\n".join((orjson.dumps(selection, option=orjson.OPT_SORT_KEYS), *bodies, *names_))
        if key not in self._equal_needs:
            claims = (*specs, *(each for each in mapped if each is not None))
            self._equal_needs[key] = PodNeed({"spec": selection}, claims)
        return self._equal_needs[key]

    def _held(self, template: Template) -> Devices:
        """What the claim of a template holds. A share of a device is counted in cores."""
        if template.name not in self._amounts:
            spec = mapping(template.spec.get("spec"))
            parts = (part for request in claim_spec(spec).requests for part in request.alternatives)
            classes = {part.device_class: True for part in parts if part.device_class}
            holding = of_claim(spec, DeviceKnowledge(self._decider.conversion.catalogue, classes))
            self._amounts[template.name] = Devices(holding.devices, 0)
        return self._amounts[template.name]


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
    made = next(manifests_of(data))
    return dataclasses.replace(made, form=found.form or made.form)


def _reference(root: Root, manifest: Manifest) -> Reference:
    found, owner = root.found, root.owner
    if owner is None:
        group, kind, name, uid = found.group, found.kind, manifest.name, root.uid
        api_version = str(manifest.data.get("apiVersion"))
    else:
        group, kind, name, uid = owner.group, owner.kind, owner.name, owner.uid
        api_version = f"{owner.group}/{owner.version}" if owner.group else owner.version
    return Reference(group, kind, manifest.namespace, name, uid, api_version, found.source, found.line)


def _before(demand: PodDemand) -> Devices:
    """Devices and cores that one pod requests of the device plugin, as they are held at one time."""
    held = Concurrent()
    for each in demand.containers:
        init = each.section == "initContainers" and each.container.restartPolicy != "Always"
        amount = each.ask.amount
        held.add(0 if each.ask.in_cores else amount, amount if each.ask.in_cores else 0, init=init)
    return Devices(held.devices, held.cores)


def _types_in(decision: Decision) -> tuple[str, ...]:
    """Instance types to which conversion restricts the pod; empty if it adds no restriction."""
    if not decision.patch:
        return ()
    text = orjson.dumps([operation.get("value") for operation in decision.patch])
    if names.LABEL_INSTANCE_TYPE.encode() not in text:
        return ()
    found: dict[str, None] = {}
    waiting: list[object] = orjson.loads(text)
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            if part.get("key") == names.LABEL_INSTANCE_TYPE and isinstance(part.get("values"), list):
                found |= dict.fromkeys(str(each).removeprefix(names.SAGEMAKER_PREFIX) for each in part["values"])
            waiting += part.values()
    return tuple(found)


def _obstacle(finding: Finding) -> Obstacle:
    blocks = finding.severity is Severity.ERROR or finding.code == _NO_NODE
    return Obstacle(cause_of(finding), finding, blocks=blocks)


def _mode(part: Part) -> str:
    settings = part.answer.settings
    if settings is None or settings.source == "flag":
        return ""
    source = f"policy {part.facts.steering.decided_by('mode')}" if settings.source == "policy" else settings.source
    return f"{settings.mode} ({source})"


def _fate(judged: list[Part]) -> tuple[Fate, str]:
    """What becomes of the workload: of its pod templates, the one with the most trouble decides."""
    outcomes = {each.decision.outcome: each.decision for each in judged}
    refused = any(finding.severity is Severity.ERROR for each in judged for finding in each.findings)
    if Outcome.DENIED in outcomes or refused or not judged:
        return Fate.REFUSED, ""
    if Outcome.CONVERTED in outcomes:
        return Fate.CONVERTS, ""
    if Outcome.RESTORED in outcomes or any(each.decision.reason == "already-converted" for each in judged):
        return Fate.CONVERTED, ""
    if Outcome.MUTATED in outcomes:
        return Fate.CONVERTED, _BY_TEMPLATE
    reason = outcomes[Outcome.UNCHANGED].reason if Outcome.UNCHANGED in outcomes else ""
    return Fate.STAYS, _STAYS.get(reason, reason)


# --- numbers of pods --------------------------------------------------------------------------------------------------


# The number is what the object asks for. A product of the numbers on the way to the template: the Jobs of a JobSet and
# the pods of each, the groups of a LeaderWorkerSet and the pods of each.
_MOST: Final = 1_000_000


_TRAINER: Final = "trainer.kubeflow.org"


_NO_PODS: Final = frozenset({("", "PodTemplate"), (_TRAINER, "TrainingRuntime"), (_TRAINER, "ClusterTrainingRuntime")})
"""Other objects make the pods of these templates."""


def pods_of(group: str, kind: str, data: Mapping[str, object], path: Sequence[str | int]) -> int | None:
    """Number of pods of one template; None if the object does not say it.

    Args:
        path: of the pod template in the object.
    """
    if (group, kind) == ("", "Pod"):
        return 1
    if (group, kind) in _NO_PODS:
        return 0
    if kind == "DaemonSet":
        return _whole(mapping(data.get("status")).get("desiredNumberScheduled"), None)
    if kind == "LeaderWorkerSet":
        return _of_groups(data, path)
    spec = mapping(data.get("spec"))
    if spec.get("suspend") is True and kind == "CronJob":
        return 0
    count = 1
    at: Any = data
    for step in path:
        at = at[step]
        if isinstance(at, dict):
            count = min(_MOST, count * _here(at))
    return count


def _here(part: Mapping[str, object]) -> int:
    """The factor of one part of the object: `replicas`, or `parallelism` bounded by `completions`."""
    replicas = _whole(part.get("replicas"), 1)
    parallelism = _whole(part.get("parallelism"), 1)
    completions = _whole(part.get("completions"), parallelism)
    return (1 if replicas is None else replicas) * min(parallelism or 0, completions or 0)


def _of_groups(data: Mapping[str, object], path: Sequence[str | int]) -> int:
    spec = mapping(data.get("spec"))
    template = mapping(spec.get("leaderWorkerTemplate"))
    groups, size = _whole(spec.get("replicas"), 1) or 0, _whole(template.get("size"), 1) or 0
    if path[-1] == "leaderTemplate":
        return groups
    leaders = 1 if isinstance(template.get("leaderTemplate"), dict) else 0
    return min(_MOST, groups * max(0, size - leaders))


def _whole(value: object, default: int | None) -> int | None:
    """A number of pods; `default` for an absent one, and for a value that is not one."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value, _MOST)
    return default


# --- obstacles --------------------------------------------------------------------------------------------------------


_CAUSES: Final = {
    **dict.fromkeys(("NEU101", "NEU102", "NEU103", "NEU104", "NEU105", "NEU106", "NEU108"), Cause.COUNTS),
    **dict.fromkeys(("NEU202", "NEU215"), Cause.COUNTS),
    **dict.fromkeys(("NEU110", "NEU213", "NEU216", "NEU217", "NEU218", "NEU228"), Cause.SELECTION),
    **dict.fromkeys(("NEU109", "NEU111", "NEU112", "NEU118", "NEU212", "NEU710"), Cause.SETTINGS),
    **dict.fromkeys(("NEU120", "NEU121", "NEU122", "NEU214", "NEU230"), Cause.POLICY),
    **dict.fromkeys(("NEU801", "NEU802", "NEU803", "NEU804", "NEU805"), Cause.POLICY),
    "NEU203": Cause.SCHEDULER,
    "NEU232": Cause.QUEUE,
    "NEU901": Cause.CORES,
    **dict.fromkeys(("NEU903", "NEU905"), Cause.KARPENTER),
    "NEU204": Cause.QUOTA,
    "NEU205": Cause.LIMIT_RANGE,
}


def cause_of(finding: Finding) -> Cause:
    """The kind of obstacle that a finding of conversion or of a policy is."""
    return _CAUSES.get(finding.code, Cause.POD)


def _node_obstacles(fit: Fit, neuron_nodes: NeuronNodes) -> Iterator[Obstacle]:
    """NEU904: no node can serve the claim, or all that can have both the device plugin and the driver."""
    if not fit.nodes:
        yield Obstacle(Cause.NODES, warning("NEU904", "spec", *_no_node(fit, neuron_nodes)), blocks=False)
    elif set(neuron_nodes.mixed).issuperset(fit.nodes):
        message = (
            f"the device plugin and the DRA driver both offer devices of {counted(len(fit.nodes), 'node')}"
            f" ({listed(fit.nodes, 3)}): claims get none of them."
        )
        fix = "Stop the device plugin on these nodes (docs/migrate.md, step 3)."
        yield Obstacle(Cause.NODES, warning("NEU904", "spec", message, fix), blocks=True)


def _no_node(fit: Fit, neuron_nodes: NeuronNodes) -> tuple[str, str]:
    """Message and fix."""
    if fit.selected:
        types = listed(fit.selected, 4)
        message = f"the node selection of the pods leaves out all nodes of {types}, which could serve the claim."
        return message, "Label such a node, or change the node selection of the pods."
    has = f"it has {listed(set(neuron_nodes.types.values()), 4)}" if neuron_nodes.types else "it has no Neuron node"
    if not fit.types:
        return f"no instance type that the pods may run on can serve the claim; {has}.", "Change their node selection."
    message = f"the cluster has no node of a type that fits, which are {listed(fit.types, 4)}; {has}."
    return message, "Add such nodes, or change the node selection of the pods."
