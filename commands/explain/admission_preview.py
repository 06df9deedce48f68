"""What admission makes of a pod: its requests, the mode, the policies, the patch, the claims, the quotas.

The decisions are those of the webhook. The pod is in a file, or is a pod of the cluster.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from checks.claims.judging import validate
from cluster.kinds.namespaces import QuotaEffect, quota_effects
from cluster.store import KINDS as STORED_KINDS
from cluster.store import StoredKind
from commands.cluster.reader import Object
from commands.cluster.snapshot import Kept, fill
from commands.objects.decider import Decider
from commands.objects.manifests import FileStore, Manifest
from conversion.asks.conversion_context import ConversionOptions
from conversion.asks.pod_demand import PodDemand
from conversion.asks.steering import Mode, ModeSettings, Steering, annotated_settings, combined
from conversion.claims.templates import Template
from conversion.decide import Part, PodFacts
from conversion.objects import pods
from conversion.objects.pod_places import PodPlace, path_text
from conversion.patches.decision import Decision
from neuron import names
from neuron.api.claim_reader import claim_spec, read_claim
from neuron.api.claim_specs import ClaimSpec
from neuron.api.fields import mapping, mappings
from neuron.api.resource_versions import converted
from neuron.api.workloads import group_of
from neuron.findings import Finding, Severity
from policies.judging.explain import CHANGE_WORDS, OUTCOME_WORDS
from policies.judging.mutations import Mutated
from policies.judging.rules import AnyPodRule, HintRule, MutatingRule, PodRule, TemplateRule, ValidatingRule
from policies.judging.verdicts import PolicyOutcome, Verdict
from policies.patching.json_patch import difference, patched
from runtime.text import named

if TYPE_CHECKING:
    from commands.objects.file_policies import FilePolicies


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A policy that matches the pod.

    Attributes:
        place: `file:line`.
        effect: what it does, as the end of a sentence.
        denies: whether the pod is refused.
    """

    policy: str
    kind: str
    place: str
    effect: str
    messages: tuple[str, ...] = ()
    denies: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimUse:
    """An entry of the converted pod's `spec.resourceClaims`.

    Attributes:
        kind: ResourceClaimTemplate or ResourceClaim.
        object: name of the template or claim.
        spec: of the claim; None if it is not known, or its form is wrong.
        body: the spec as JSON; None without `spec`.
        generated: whether conversion generates the template.
        known: whether the template or claim is among the objects.
        shared_by: the PodGroup whose pods share the claim; empty: it is the pod's own.
    """

    name: str
    kind: str
    object: str
    spec: ClaimSpec | None = None
    body: Object | None = None
    generated: bool = False
    known: bool = True
    findings: tuple[Finding, ...] = ()
    shared_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class AdmissionPreview:
    """What admission makes of one pod.

    Attributes:
        subject: kind and name of the object, and the path of the pod template in it.
        place: `file:line`; empty for a pod of the cluster.
        asks: what each container requests, one text each.
        decided_by: what sets the mode.
        before: the pod, or the pod template, before conversion.
        after: the same after conversion.
        findings: about the pod, and about the object as a whole.
        claims: of the converted pod.
        hits: the policies that match.
        stored: whether it is a pod of the cluster. Then `decision` says what admission would do now, and `after`
            and `claims` are those that it has.
        unknown_kind: whether the object is of a kind that is not known: it may mean something else.
    """

    subject: str
    place: str
    namespace: str
    asks: tuple[str, ...]
    mode: Mode
    decided_by: str
    decision: Decision
    before: Object
    after: Object
    findings: tuple[Finding, ...] = ()
    claims: tuple[ClaimUse, ...] = ()
    hits: tuple[Hit, ...] = ()
    quotas: tuple[QuotaEffect, ...] = ()
    stored: bool = False
    unknown_kind: bool = False

    @property
    def converted_before(self) -> bool:
        """Whether the label says that it was converted when it was created."""
        return names.LABEL_CONVERTED in ((self.before.get("metadata") or {}).get("labels") or {})

    @property
    def refused(self) -> bool:
        """Whether conversion or a policy refuses the pod."""
        return any(each.severity is Severity.ERROR for each in self.findings) or any(hit.denies for hit in self.hits)

    @property
    def concerns_us(self) -> bool:
        """Whether the pod requests Neuron devices, as limits or by a claim."""
        return bool(self.asks or self.claims) or self.decision.reason != "not-neuron"


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """Settings of the webhook that explanations assume.

    Attributes:
        default: what sets the mode if neither annotations nor policies do.
        policies: the policies, or None.
    """

    options: ConversionOptions
    default: str
    policies: "FilePolicies | None" = None


class Previewer:
    """Makes previews of pods of files, and of pods of a cluster."""

    def __init__(self, view: FileStore, chosen: Chosen) -> None:
        self._view = view
        self._chosen = chosen
        self._decider = Decider(chosen.options, view, chosen.policies)
        self.context: Final = self._decider.conversion
        self._claims: dict[tuple[str, str, str], ClaimUse] = {}

    def previews(self, manifest: Manifest, place: str) -> Iterator[AdmissionPreview]:
        """The preview of a Pod, or of each pod of a workload; of an unknown kind, of each pod that names Neuron."""
        decided = self._decider.decide(manifest)
        for number, part in enumerate(decided.parts):
            own = (*decided.form, *decided.own) if number == len(decided.parts) - 1 else ()
            yield self._preview(manifest, part, own, place)

    def stored(self, manifest: Manifest) -> AdmissionPreview:
        """The preview of a pod of the cluster."""
        decided = self._decider.decide(manifest)
        found = self._preview(manifest, decided.parts[0], decided.own, "")
        claims = tuple(_with_group(self._claims_of(manifest.data, manifest.namespace, None), decided.parts[0].facts))
        return dataclasses.replace(found, after=manifest.data, claims=claims, quotas=(), stored=True)

    def _preview(self, manifest: Manifest, part: Part, own: Sequence[Finding], place: str) -> AdmissionPreview:
        path, template, decision, settings = part.place.path, part.place.template, part.decision, part.answer.settings
        subject = f"pods of {path_text(path)} in {_subject(manifest)}" if path else _subject(manifest)
        findings = (*(() if part.left is None else (part.left,)), *part.findings, *own)
        view, mode, namespace = part.facts.pod, Mode(self.context.options.mode), manifest.namespace
        if view is None or decision.reason == "unreadable":
            default = self._chosen.default
            return AdmissionPreview(
                subject, place, namespace, (), mode, default, decision, template, template, findings
            )
        if settings is None:
            # An excluded namespace.
            annotated = annotated_settings(view.annotations, self._view.namespace(namespace), mode)
            settings = combined(annotated, part.facts.steering)
        after = patched(template, decision.patch)
        claims = tuple(_with_group(self._claims_of(after, namespace, decision), part.facts))
        created = [claim.spec for claim in claims if claim.spec is not None and claim.kind == "ResourceClaimTemplate"]
        quotas = [each.data for each in self._view.written("ResourceQuota", namespace).values()]
        steering = part.facts.steering
        hits = () if part.unknown_kind else tuple(self._hits(manifest, (part.place, after), decision, steering))
        return AdmissionPreview(
            subject,
            place,
            namespace,
            tuple(_asks(view)),
            settings.mode,
            self._decided_by(settings, namespace, steering),
            decision,
            template,
            after,
            findings,
            claims,
            hits,
            tuple(quota_effects(reversed(quotas), created, self.context.extended_resources)) if quotas else (),
            unknown_kind=bool(part.unknown_kind),
        )

    def _decided_by(self, settings: ModeSettings, namespace: str, steering: Steering) -> str:
        if namespace in self.context.options.excluded_namespaces:
            return f"nothing is converted: namespace {namespace} is excluded"
        match settings.source:
            case "pod":
                return f"the pod's annotation {names.ANNOTATION_CONVERT}"
            case "namespace":
                return f"annotation {names.ANNOTATION_CONVERT} of Namespace {namespace}"
            case "policy":
                locked, policy = ", which is locked" if steering.locked else "", steering.decided_by("mode")
                rule = self._rule(policy, PodRule)
                return f"ConversionPolicy {policy} ({_place(rule) if rule else ''}){locked}"
            case _:
                return self._chosen.default

    def _rule(self, name: str, kind: type[AnyPodRule]) -> AnyPodRule | None:
        rules = self._chosen.policies.loaded.rules if self._chosen.policies else ()
        return next((rule for rule in rules if isinstance(rule, kind) and rule.name == name), None)

    def _hits(
        self,
        manifest: Manifest,
        pod_of: tuple[PodPlace, dict[str, object]],
        decision: Decision,
        steering: Steering,
    ) -> Iterator[Hit]:
        """The policies that match. `pod_of`: where the pod is, and the pod as it is admitted."""
        if self._chosen.policies is None or manifest.namespace in self.context.options.excluded_namespaces:
            return
        place, after = pod_of
        yield from map(_changing_hit, self._decider.applied(manifest, place))
        steers: list[tuple[str, type[AnyPodRule], str, str]] = [
            (name, PodRule, "ConversionPolicy", f"sets {', '.join(steering.settings_of(name))}")
            for name in steering.policy_names
        ]
        steers.append((steering.hints.policy, HintRule, "SchedulingHintPolicy", "gives scheduling hints"))
        for made in steering.named:
            effect = f"makes ResourceClaimTemplate {made.name}, version {made.version}, if the namespace has none"
            steers.append((made.policy, TemplateRule, "ClaimTemplate", effect))
        for name, kind, kind_name, effect in steers:
            if name and (rule := self._rule(name, kind)) is not None:
                yield Hit(name, kind_name, _place(rule), effect)
        if decision.errors:
            return  # The API server does not call validating webhooks for it.
        for verdict in self._chosen.policies.pod_verdicts(manifest, after, decision, self._view):
            if verdict.outcome is not PolicyOutcome.NO_MATCH:
                yield _hit(verdict)

    def _claims_of(self, after: Object, namespace: str, decision: Decision | None) -> Iterator[ClaimUse]:
        generated = {template.name: template for template in decision.templates} if decision else {}
        for entry in mappings(mapping(after.get("spec")).get("resourceClaims")):
            name = str(entry.get("name") or "")
            template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
            if template in generated:
                made = generated[template]
                read = _generated_spec(made)
                yield ClaimUse(name, "ResourceClaimTemplate", template, read, made.spec["spec"], generated=True)
                continue
            kind, named = ("ResourceClaimTemplate", template) if template else ("ResourceClaim", claim)
            if named:
                key = kind, namespace, str(named)
                if key not in self._claims:
                    self._claims[key] = self._written(*key)
                yield dataclasses.replace(self._claims[key], name=name)

    def _written(self, kind: str, namespace: str, name: str) -> ClaimUse:
        """A claim or template of the objects, with the findings of validation, as `neuron-dra validate` has them."""
        manifest = self._decider.claim_object(kind, namespace, name)
        if manifest is None:
            return ClaimUse("", kind, name, known=False)
        version, spec = str(manifest.data.get("apiVersion")), manifest.data.get("spec")
        read, form = read_claim(kind, version, spec)
        findings = validate(kind, version, spec, self._decider.for_one_object(), accepted=False)
        if any(each.severity is Severity.ERROR for each in form) or not isinstance(spec, Mapping):
            return ClaimUse("", kind, name, findings=findings)
        body = mapping(converted(kind, manifest.data, "v1").get("spec"))
        return ClaimUse(
            "", kind, name, read, mapping(body.get("spec")) if "Template" in kind else body, findings=findings
        )


def _subject(manifest: Manifest) -> str:
    kind, found, name = str(manifest).partition(" ")
    return f"{named(kind)} {named(name)}" if found else named(kind)


def _asks(pod: pods.Pod) -> Iterator[str]:
    for each in PodDemand.of(pod, ()).containers:
        for resource, amount in each.amounts.items():
            role = "" if each.section == "containers" else " (init container)"
            yield f"{named(each.container.name)}{role}: {resource}: {named(amount)}"


def _place(rule: ValidatingRule | MutatingRule | AnyPodRule) -> str:
    return f"{rule.document.file}:{rule.document.line(('metadata', 'name'))}"


def _changing_hit(found: Mutated) -> Hit:
    operations = [f"{each['op']} {each['path']}" for each in difference(found.before, found.after)]
    effect = f"{CHANGE_WORDS[found.outcome]}, {'after' if found.again else 'before'} conversion"
    messages = (*operations, *map(str, found.failures))
    return Hit(found.rule.name, found.rule.kind, _place(found.rule), effect, messages, found.denies)


def _hit(verdict: Verdict) -> Hit:
    messages = tuple(violation.message for violation in verdict.violations)
    if verdict.exemption is not None:
        exemption = verdict.exemption
        messages += (f"exception '{exemption.name}' of {exemption.owner} until {exemption.expires.date()}",)
    rule, outcome = verdict.rule, verdict.outcome
    return Hit(rule.name, rule.kind, _place(rule), OUTCOME_WORDS[outcome], messages, outcome is PolicyOutcome.DENY)


def _with_group(claims: Iterable[ClaimUse], facts: PodFacts) -> Iterator[ClaimUse]:
    """The claims; those that are shared with the pods of a PodGroup name it."""
    shared = {(each.name, *each.objects) for each in facts.shared}
    for each in claims:
        equal = (each.name, (each.kind, each.object)) in shared
        yield dataclasses.replace(each, shared_by=group_of(facts.place.template)) if equal else each


@functools.lru_cache(maxsize=1024)
def _generated_spec(template: Template) -> ClaimSpec:
    """The spec of a generated template: one object for all pods that have it."""
    return claim_spec(orjson.loads(orjson.dumps(template.spec["spec"])))


def store_of(
    found: Sequence[Manifest],
    seen: Mapping[StoredKind[Any], Kept[Any]] | None = None,
    *,
    listed: Iterable[tuple[str, str]] = (),
    kubernetes: str = "",
    unknown_pools: str = "",
) -> FileStore:
    """Make a store.

    Args:
        found: objects; of two with one name, the later one counts. They count before `seen`.
        seen: what was read of kinds (`commands.cluster.snapshot.stored`).
        listed: kinds and namespaces of which `found` has all objects.
        kubernetes: version of the cluster's API server; empty: not known.
        unknown_pools: why the pools of the cluster are not known; empty if they are.
    """
    store = FileStore()
    if seen is not None:
        fill(store, seen)
    for each in found:
        store.take(each)
    for name, namespace in listed:
        if name in STORED_KINDS:
            store.complete(STORED_KINDS[name], namespace)
    store.set_kubernetes_version(kubernetes)
    store.unlisted_pools(lambda: unknown_pools)
    return store
