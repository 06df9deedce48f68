"""Decides about an object with pods: what conversion makes of each pod, and every finding. Pure.

This is the only place that composes the steps of a decision: the server's reviews of workloads and all commands call
`decide`, and the server's reviews of pods call `decide_pod`. Callers differ in where objects come from, and in how they
show the result.

A refused pod of a Deployment appears only in the events of its ReplicaSet, where users seldom look. A warning at apply
time shows the same text at once.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import structs

from checks.claims.judging import ClaimContext
from checks.words import SETTINGS, misspelt_keys
from checks.workloads import check_member, check_missing
from conversion.asks.conversion_context import ConversionContext
from conversion.asks.pod_demand import Claiming, KnownClaim
from conversion.asks.steering import NO_STEERING, Mode, ModeSettings, Steering, annotated_settings, combined
from conversion.claims.templates import KIND
from conversion.facts import NamespaceFacts
from conversion.findings import named_templates
from conversion.findings.bound_claims import check_bound
from conversion.findings.check_pods import check_pod, misplaced_around, misplaced_resources, misspelt_resources
from conversion.findings.named_templates import NO_TEMPLATES, KnownTemplates
from conversion.findings.pod_findings import READERS, resized, unread
from conversion.objects import pods, queues
from conversion.objects.kinds import KINDS, Kind, is_counted_by_template
from conversion.objects.pod_places import PodPlace, find_pods, path_text, values_at
from conversion.patches import leader_worker_sets
from conversion.patches.convert_pods import computed_templates, convert
from conversion.patches.decision import Decision, Outcome, denied, unchanged
from neuron import names
from neuron.api.fields import mapping, mappings
from neuron.api.workloads import GroupClaim, group_of
from neuron.findings import Finding, Findings, Severity, as_warning, quoted, warning

decide_pod = convert
"""The decision about one new pod, without the findings that do not depend on its conversion."""
templates_of_record = computed_templates
"""The templates that conversion makes for what the record of a pod states."""

_LWS: Final = "LeaderWorkerSet"
_ONE_WAY: Final = (Outcome.CONVERTED, Outcome.RESTORED, Outcome.DENIED)
_UNKNOWN: Final = "neuron-dra does not know this kind"
_OF_NEW_PODS: Final = "NEU128"
"""A pod that exists has `spec.nodeName` from the scheduler, which has allocated its claims."""

_KEYED: Final = ("annotations", "labels")
_KUBERNETES: Final = ("", "apps", "batch")
_ARGO: Final = "argoproj.io"
_PATCHES: Final = tuple(
    (*spec, *at, "podSpecPatch")
    for spec in (("spec",), ("spec", "workflowSpec"))
    for at in ((), ("templateDefaults",), ("templates", "*"))
)
"""Where a Workflow has a patch of its pods, as text."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of an object, and what is known about it.

    Attributes:
        pod: its view; None: it cannot be read.
        known: its claims, by name of the entry in `resourceClaims`.
        faults: findings about policies that could not be evaluated.
        unreadable: NEU114, if it cannot be read.
        shared: the claims of its PodGroup; empty if it has none, or the PodGroup is not known.
    """

    place: PodPlace
    pod: pods.Pod | None
    known: Mapping[str, KnownClaim] = dataclasses.field(default_factory=dict)
    steering: Steering = NO_STEERING
    faults: Sequence[Finding] = ()
    unreadable: Finding | None = None
    shared: Sequence[GroupClaim] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionSubject:
    """An object.

    Attributes:
        namespace: in which its pods run.
        left_out: number of pods that the caller left out.
        missing: kind and name of claims and templates, shared by a PodGroup, that are known not to exist.
    """

    group: str
    kind: str
    namespace: str
    data: Mapping[str, object]
    pods: Sequence[PodFacts]
    left_out: int = 0
    missing: Collection[tuple[str, str]] = ()

    @property
    def entry(self) -> Kind | None:
        """Its entry in the table of kinds; None for another kind."""
        return KINDS.get((self.group, self.kind))

    @property
    def why_left(self) -> str:
        """Why conversion cannot rewrite the object itself; empty if it can."""
        return _UNKNOWN if self.entry is None else self.entry.no_claims


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionInputs:
    """What all pods of an object share.

    Attributes:
        make_claims: the context for checks of claims; called if a pod has claims, or a policy names templates.
        rewrites: whether the caller converts the object itself, so that Kueue finds claims in its pod templates.
        past_shadow: whether to decide as if shadow mode were `convert`.
        remembered: answers about pods, by everything on which they depend; empty at first.
        goes_on: returns false when no time is left; pods that follow are left out.
        counted_classes: DeviceClasses whose claims Kueue is known to count.
        resizers: VerticalPodAutoscalers that resize pods in place, by kind and name of the workload.
    """

    facts: NamespaceFacts
    conversion: ConversionContext
    make_claims: Callable[[], ClaimContext]
    templates: KnownTemplates = NO_TEMPLATES
    rewrites: bool = False
    past_shadow: bool = False
    remembered: dict[Hashable, "Answer"] = dataclasses.field(default_factory=dict)
    goes_on: Callable[[], bool] = lambda: True
    counted_classes: Collection[str] = ()
    resizers: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    @property
    def claims(self) -> ClaimContext:
        """The context for checks of claims."""
        return self.make_claims()


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What is decided about a pod, wherever it is.

    Attributes:
        settings: mode and device settings of the pod; None if it cannot be read.
        findings: all findings, with field paths in the pod template.
        ultraserver_modes: those that the pod gets by annotation or by its claims.
    """

    decision: Decision
    settings: ModeSettings | None
    findings: tuple[Finding, ...]
    ultraserver_modes: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """What is decided about one pod of an object.

    Attributes:
        left: NEU220, if it has Neuron devices and conversion cannot rewrite the object.
        keys: findings about its labels and annotations, its PodGroup, and fields that Kubernetes does not read.
        unknown_kind: kind of the object, if its structure is not known: it may mean something else, so that errors
            are only warnings.
    """

    facts: PodFacts
    answer: Answer
    left: Finding | None = None
    keys: tuple[Finding, ...] = ()
    unknown_kind: str = ""

    @property
    def place(self) -> PodPlace:
        """Where the pod is in the object."""
        return self.facts.place

    @property
    def decision(self) -> Decision:
        """The decision of conversion."""
        return self.answer.decision

    @property
    def findings(self) -> Iterator[Finding]:
        """All findings about the pod, with field paths in the object."""
        found = (located(self.place, each) for each in (*self.answer.findings, *self.keys))
        return iter(as_warnings(self.unknown_kind, found)) if self.unknown_kind else found


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectDecision:
    """What is decided about an object.

    Attributes:
        placement: of a LeaderWorkerSet whose pods ask for UltraServers; None for other objects.
        own: findings about the object as a whole.
        left_out: number of pods that were not checked.
        excluded: whether its namespace is excluded: then there are no findings.
        form: findings about the object itself, which its errors refuse: how it is written, and the fields of a kind
            without pods.
    """

    parts: tuple[Part, ...] = ()
    placement: Decision | None = None
    own: tuple[Finding, ...] = ()
    left_out: int = 0
    excluded: bool = False
    form: tuple[Finding, ...] = ()

    @property
    def findings(self) -> Iterator[Finding]:
        """All findings, with field paths in the object."""
        yield from self.form
        for part in self.parts:
            if part.left is not None:
                yield part.left
            yield from part.findings
        yield from self.own

    @property
    def refused(self) -> bool:
        """Whether a pod, or the object, would be refused."""
        return any(each.severity is Severity.ERROR for each in self.findings)


def places_of(group: str, kind: str, data: object) -> Iterator[PodPlace]:
    """The pods of an object: those of a known kind, and of another kind those that name a legacy resource."""
    found = KINDS.get((group, kind))
    return find_pods(data) if found is None else found.pods(data)


def read_pod(place: PodPlace, kind: str) -> PodFacts:
    """The view of a pod at a place, or why it cannot be read. `kind`: of the object."""
    try:
        return PodFacts(place, pods.view(place.template))
    except pods.UnreadableError as error:
        return PodFacts(place, None, unreadable=_unreadable(place, kind, error))


def own_claims(known: Mapping[str, KnownClaim], device_class: str) -> tuple[str, ...]:
    """Names of the claims that request devices of a DeviceClass."""
    return tuple(
        name
        for name, claim in known.items()
        if claim.judgement is not None
        and any(leaf.devices.device_class == device_class for leaf in claim.judgement.leaves)
    )


def decide(
    subject: DecisionSubject, inputs: DecisionInputs, excluded_namespaces: frozenset[str] = frozenset()
) -> ObjectDecision:
    """Decide about an object and its pods.

    Args:
        subject: the object, its pods and what is known about them.
        excluded_namespaces: those where no pod is changed or checked.
    """
    if subject.namespace in excluded_namespaces:
        skipped = Answer(unchanged("excluded-namespace"), None, ())
        other = Answer(unchanged("not-neuron"), None, ())
        parts = [Part(each, skipped if each.pod and each.pod.concerns_us else other) for each in subject.pods]
        return ObjectDecision(tuple(parts), excluded=True)
    parts = []
    for each in subject.pods:
        if not inputs.goes_on():
            break
        answer = _answer(each, subject, inputs)
        # Most pods of a cluster exist, and few have the finding.
        if _OF_NEW_PODS in [f.code for f in answer.findings] and _exists(each.place):
            answer = dataclasses.replace(answer, findings=tuple(f for f in answer.findings if f.code != _OF_NEW_PODS))
        unknown_kind = subject.kind if subject.entry is None else ""
        keys = [*misspelt_keys(each.place.template.get("metadata"))] if _is_ours(each) else []
        keys += _shared(each, answer.decision)
        keys += misplaced_resources(each.place.template)
        parts.append(Part(each, answer, _left_as_it_is(each.place, answer, subject), tuple(keys), unknown_kind))
    left_out = subject.left_out + len(subject.pods) - len(parts)
    placement = _place(subject, parts)
    device_class = inputs.conversion.options.device_class
    own: list[Finding] = []
    if (subject.group, subject.kind) in queues.COUNTING_KINDS:
        own += queues.declared(subject.group, subject.kind, subject.data, device_class)
    if (subject.group, subject.kind) in READERS:
        own += unread(subject.group, subject.kind, subject.data)
    own += _uncounted(subject, parts, inputs)
    own += _unread_settings(subject, parts)
    own += _unread_resources(subject, parts)
    if placement is not None:
        own += [*placement.errors, *placement.warnings]
    own += check_size(subject.kind, subject.data, {mode for part in parts for mode in part.answer.ultraserver_modes})
    if inputs.resizers and any(part.facts.known or part.decision.outcome is Outcome.CONVERTED for part in parts):
        own += resized(subject.kind, subject.data, inputs.resizers)
    form = tuple(_around(subject, parts))
    if subject.entry is not None and subject.entry.check is not None:
        form = tuple(Findings(subject.entry.check(subject.data)))
        own += check_missing(subject.kind, subject.data, subject.missing)
    return ObjectDecision(tuple(parts), placement, tuple(own), left_out, form=form)


def check_created(
    claiming: Claiming,
    known: Mapping[str, KnownClaim],
    claims: ClaimContext | None,
    extended_resources: Collection[str],
    *,
    refers: bool = True,
) -> list[Finding]:
    """The findings about a pod as it is created: after conversion.

    Args:
        known: as for `PodFacts`.
        claims: None if no claim is known.
        refers: whether to check what its containers refer to. The API server has, if a pod in a review has no claim.
    """
    pod = claiming.pod
    found = check_pod(pod, known, claims) if refers else []
    found += misspelt_resources(pod, extended_resources)
    annotation = pod.annotations.template
    if annotation is not None and pod.annotations.mirror is None:
        declared = {name for _, kind, name in claiming.names if kind == KIND}
        found += () if named_templates.wanted(annotation)[1] in declared else (named_templates.not_made(annotation),)
    return found


def with_needs(decision: Decision, found: Iterable[Finding | None]) -> Decision:
    """A conversion, after the templates that policies name were checked. In shadow mode they are only reported.

    Args:
        found: of each template: what is wrong with it, or None.
    """
    for each in found:
        if each is None:
            continue
        if each.severity is Severity.ERROR and decision.shadowed is None:
            return dataclasses.replace(denied("mapped-template", each), resource=decision.resource)
        decision = dataclasses.replace(decision, warnings=(*decision.warnings, as_warning(each)))
    return decision


def located(place: PodPlace, finding: Finding) -> Finding:
    """The finding with its path in the object."""
    if (not place.path and place.is_template) or finding.path.startswith("metadata.namespace"):
        return finding
    return dataclasses.replace(finding, path=place.field_path(finding.path))


def as_warnings(kind: str, findings: Iterable[Finding]) -> list[Finding]:
    """Findings about a workload's pods as warnings, with NEU701 before the errors of each container."""
    warnings = []
    announced = set()
    for finding in findings:
        if finding.severity is Severity.ERROR:
            where = finding.path.partition(".resources")[0]
            if where not in announced:
                announced.add(where)
                warnings.append(warning("NEU701", where, f"pods of this {kind} would be refused: {where}"))
        warnings.append(as_warning(finding))
    return warnings


def check_size(kind: str, manifest: object, sizes: Iterable[int]) -> list[Finding]:
    """NEU710: a group of a LeaderWorkerSet must have one pod for each node of the UltraServer set."""
    if kind != _LWS:
        return []
    group = mapping(mapping(mapping(manifest).get("spec")).get("leaderWorkerTemplate"))
    size = group.get("size") or 1
    for nodes in sorted(set(sizes)):
        if size != nodes:
            shown = quoted(size)
            message = f"groups have {shown} pods, and UltraServer mode {nodes} needs {nodes}, one for each node."
            fix = f"Set size to {nodes}" + (f", or the mode to {shown}." if size in (1, 2, 4) else ".")
            return [warning("NEU710", "spec.leaderWorkerTemplate.size", message, fix, shown)]
    return []


# --- one pod ----------------------------------------------------------------------------------------------------


def _exists(place: PodPlace) -> bool:
    """Whether a pod is written as a cluster shows it: with a uid, or as scheduled."""
    if place.path or not place.is_template:
        return False
    if mapping(place.template.get("metadata")).get("uid"):
        return True
    conditions = mappings(mapping(place.template.get("status")).get("conditions"))
    return any((each.get("type"), each.get("status")) == ("PodScheduled", "True") for each in conditions)


def _is_ours(each: PodFacts) -> bool:
    """Whether a pod requests Neuron devices, or has claims."""
    return each.pod is not None and (each.pod.concerns_us or bool(each.known))


def _answer(each: PodFacts, subject: DecisionSubject, inputs: DecisionInputs) -> Answer:
    """The answer about a pod, made once for equal pods: the templates of a JobSet often differ only in their names."""
    pod = each.pod
    if pod is None:
        unreadable = (each.unreadable,) if each.unreadable is not None else ()
        return Answer(denied("unreadable", *unreadable), None, unreadable)
    by_namespace = subject.namespace if each.known or each.steering.templates else ""
    is_pod = (subject.group, subject.kind) == ("", "Pod")
    try:
        key = (pod.key(), inputs.facts, each.steering, by_namespace, is_pod, tuple(each.faults))
        answer = inputs.remembered.get(key)
        if answer is None:
            answer = inputs.remembered[key] = _decided(pod, each, inputs, is_pod=is_pod)
    except pods.UnreadableError as error:
        finding = _unreadable(each.place, subject.kind, error)
        return Answer(denied("unreadable", finding), None, (finding,))
    return answer


def _decided(pod: pods.Pod, each: PodFacts, inputs: DecisionInputs, *, is_pod: bool) -> Answer:
    steering, conversion = each.steering, inputs.conversion
    claiming = own_claims(each.known, conversion.options.device_class)
    decision = decide_pod(pod, inputs.facts, conversion, claiming, steering)
    if inputs.past_shadow and decision.outcome is Outcome.SHADOWED:
        unlocked = structs.replace(steering, mode=None if steering.mode is None else Mode.CONVERT)
        decision = decide_pod(*_forced(pod, inputs.facts), conversion, claiming, unlocked)
    decision = with_needs(decision, (inputs.templates.find(need, inputs.claims) for need in decision.needs))
    faults = tuple(each.faults) if pod.concerns_us else ()
    decision = dataclasses.replace(decision, warnings=(*decision.warnings, *faults)) if faults else decision
    findings = [*decision.errors, *decision.warnings]
    if decision.outcome is Outcome.SHADOWED and decision.shadowed is not Outcome.DENIED and not is_pod:
        # Each pod already reports that its conversion would work.
        findings = [finding for finding in findings if finding.code != "NEU208"]
    if steering.binds_claims:
        findings += check_bound(Claiming.of(pod), each.known, steering, inputs.claims, conversion, known_only=True)
    # A converted pod has no limits that its claims could contradict; a refused one is not created. In shadow mode,
    # NEU206 says it.
    one_way = decision.outcome in _ONE_WAY or any(finding.code == "NEU206" for finding in findings)
    claims = inputs.claims if each.known else None
    checked = check_created(Claiming.of(pod), each.known, claims, conversion.extended_resources)
    # NEU722: conversion adds the claim, or denies the pod.
    findings += [each for each in checked if each.code != "NEU722" and not (each.code == "NEU704" and one_way)]
    annotated = annotated_settings(pod.annotations, inputs.facts, Mode(conversion.options.mode))
    settings = combined(annotated, steering)
    left = (Mode.OFF,) if inputs.past_shadow else (Mode.OFF, Mode.SHADOW)
    converted = settings if pod.concerns_us and settings.mode not in left else None
    return Answer(decision, settings, tuple(findings), _ultraserver_modes(each.known, converted))


def _forced(pod: pods.Pod, facts: NamespaceFacts) -> tuple[pods.Pod, NamespaceFacts]:
    """The pod and its namespace with the annotation that asks for conversion: what shadow mode prevents.

    A pod without annotations gets none: the patch has to apply to the pod as it is.
    """
    convert = Mode.CONVERT.value
    if pod.annotations.convert is None:
        others = tuple(each for each in facts.annotations if each[0] != names.ANNOTATION_CONVERT)
        return pod, structs.replace(facts, annotations=(*others, (names.ANNOTATION_CONVERT, convert)))
    metadata = pod.metadata or pods.PodMetadata()
    annotations = structs.replace(pod.annotations, convert=convert)
    return structs.replace(pod, metadata=structs.replace(metadata, annotations=annotations)), facts


def _ultraserver_modes(known: Mapping[str, KnownClaim], settings: ModeSettings | None) -> frozenset[int]:
    """UltraServer modes that a pod gets by its claims, or by `settings`; None: it is not converted."""
    specs = [claim.judgement.spec for claim in known.values() if claim.judgement is not None]
    found = {mode for spec in specs for mode in spec.ultraserver_modes}
    if settings is not None and settings.device_config.ultraserver_mode is not None:
        found.add(settings.device_config.ultraserver_mode)
    return frozenset(found)


def _unreadable(place: PodPlace, kind: str, error: BaseException) -> Finding:
    """NEU114, as `/mutate` says it; the path is the place that the decoder reports."""
    path, message = pods.place(error)
    what = "Pod" if kind == "Pod" and not place.path else "pod template"
    fix = pods.how_to_read(message, "Compare it with the API reference of its kind.")
    return Finding("NEU114", path, f"the object contains no readable {what}: {message}.", fix)


# --- the object as a whole --------------------------------------------------------------------------------------


def _shared(each: PodFacts, decision: Decision) -> Iterator[Finding]:
    """NEU713 and NEU714 about the claims that a pod, as it is converted, has in common with its PodGroup."""
    if not each.shared:
        return
    entries = enumerate(mappings(mapping(each.place.template.get("spec")).get("resourceClaims")))
    own = [GroupClaim.read(entry, f"spec.resourceClaims[{index}]") for index, entry in entries]
    added = [each.get("value") for each in decision.patch if each["path"].startswith("/spec/resourceClaims")]
    values = [entry for value in added for entry in mappings(value if isinstance(value, list) else [value])]
    made = [GroupClaim.read(entry, "spec") for entry in values]
    yield from check_member(group_of(each.place.template), each.shared, own, made)


def _left_as_it_is(place: PodPlace, answer: Answer, subject: DecisionSubject) -> Finding | None:
    """NEU220 about a pod with Neuron devices of an object that conversion cannot rewrite."""
    why = subject.why_left
    if not why or not (answer.decision.resource or answer.findings):
        return None
    if subject.entry is not None and any(each.severity is Severity.ERROR for each in answer.findings):
        return None  # The webhook refuses its pods.
    message = f"the {subject.kind} is left as it is: {why}."
    fix = "The webhook converts its pods when they are created."
    return Finding("NEU220", path_text(place.path), message, fix, subject.kind, Severity.NOTE)


def _unread_settings(subject: DecisionSubject, parts: Iterable[Part]) -> list[Finding]:
    """NEU222 for settings around a pod template, as on a Deployment, or on the template of a CronJob's Jobs."""
    found: dict[str, Finding] = {}
    if subject.entry is None:
        return []
    for place in [part.place for part in parts if part.place.is_template and _is_ours(part.facts)]:
        own = mapping(mapping(place.template.get("metadata")).get("annotations"))
        around = [(*place.path[:depth], "metadata", field) for depth in range(len(place.path)) for field in _KEYED]
        for path, keys in (each for pattern in around for each in values_at(subject.data, pattern)):
            for key in [each for each in SETTINGS if each in mapping(keys) and each not in own]:
                where = f"{path_text(path)}[{key}]"
                message = (
                    f"{str(path[-1])[:-1]} '{key}' is not read here: the pods of the {subject.kind} do not get it."
                )
                fix = "Put it into the annotations of the pod template."
                found[where] = warning("NEU222", where, message, fix, key)
    return list(found.values())


def _around(subject: DecisionSubject, parts: Iterable[Part]) -> Iterator[Finding]:
    """NEU129 for resources around a pod template of Kubernetes' own kinds; NEU114 for a template that is no object."""
    if subject.entry is not None and subject.group in _KUBERNETES:
        found = [each for part in parts for each in misplaced_around(subject.data, part.place.path)]
        yield from {each.path: each for each in found}.values()
        for path, value in (each for pattern in subject.entry.templates for each in values_at(subject.data, pattern)):
            if not isinstance(value, dict) and any(each in str(value) for each in names.LEGACY_RESOURCES):
                place = PodPlace(path, {})
                try:
                    pods.view(value)
                except pods.UnreadableError as error:
                    yield located(place, _unreadable(place, subject.kind, error))


def _unread_resources(subject: DecisionSubject, parts: Iterable[Part]) -> Iterator[Finding]:
    """NEU220 for resources that a program merges into its pods, as Argo's `templateDefaults` and `podSpecPatch`."""
    if subject.entry is None or subject.entry.made is None:
        return
    read = {path_text(where) for part in parts for inner, where in part.place.fields if inner}
    # Users choose how many there are: no place is compared with every other.
    ordered = sorted(read)

    def is_read(place: str) -> bool:
        below = bisect.bisect_left(ordered, place)
        above = itertools.accumulate(place.split("."), "{}.{}".format)
        return not read.isdisjoint(above) or (below < len(ordered) and ordered[below].startswith(place))

    left = [place for each in find_pods(subject.data) if not is_read(place := path_text(each.path))]
    for pattern in _PATCHES if subject.group == _ARGO else ():
        for path, patch in values_at(subject.data, pattern):
            left += [path_text(path)] if any(each in str(patch) for each in names.LEGACY_RESOURCES) else []
    message = f"the {subject.kind} is left as it is here: neuron-dra does not read this field."
    for each in left:
        fix = "The webhook converts its pods when they are created."
        yield Finding("NEU220", each, message, fix, subject.kind, Severity.NOTE)


def _uncounted(subject: DecisionSubject, parts: Iterable[Part], inputs: DecisionInputs) -> list[Finding]:
    """NEU232 for each system that stops counting the pods."""
    counted = [part for part in parts if part.decision.claimed_class]
    if not counted:
        return []
    templates = [(part.place.field_path(""), part.place.template) for part in counted]
    found = queues.queues_of_workload(subject.group, subject.kind, subject.data, templates)
    by_template = not inputs.rewrites and is_counted_by_template(subject.group, subject.kind)
    device_class = counted[0].decision.claimed_class
    alternatives = any(part.decision.alternatives for part in counted)
    by_claims = device_class in inputs.counted_classes and not alternatives
    losing = queues.losing_count(found, by_template=by_template, by_claims=by_claims)
    return [queues.uncounted(each, device_class, alternatives=alternatives) for each in losing]


def _place(subject: DecisionSubject, parts: Iterable[Part]) -> Decision | None:
    """What conversion adds to a LeaderWorkerSet for UltraServers."""
    if subject.kind != _LWS:
        return None
    try:
        workload = leader_worker_sets.view(subject.data)
    except pods.UnreadableError as error:
        if any(part.decision.reason == "unreadable" for part in parts):
            return None  # Reported for the pod.
        return denied("unreadable", _unreadable(PodPlace(("",), {}), subject.kind, error))
    nodes = {mode for part in parts for mode in part.answer.ultraserver_modes}
    return leader_worker_sets.placed(workload, nodes, [each.steering for each in subject.pods])
