"""Decides about the objects of manifests or of a cluster as the webhook would: all commands ask here."""

import dataclasses
import functools
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import structs

from checks.claims.judging import ClaimContext, ClaimJudgement, judge_claim
from cluster.store import CLAIM_TEMPLATE, Store
from commands.objects.file_store import FileStore
from commands.objects.manifests import Manifest
from conversion.asks.conversion_context import ConversionContext, ConversionOptions, conversion_context
from conversion.asks.steering import NO_STEERING, Steering
from conversion.claims.templates import API_VERSION as TEMPLATE_VERSION
from conversion.claims.templates import Template
from conversion.decide import (
    Answer,
    DecisionInputs,
    DecisionSubject,
    ObjectDecision,
    Part,
    PodFacts,
    decide,
    decide_claim,
    enrichable_claim,
    places_of,
    read_pod,
)
from conversion.findings.pod_claims import KnownClaim, readable_names
from conversion.findings.template_findings import KnownTemplates
from conversion.objects import pods
from conversion.objects.kinds import KINDS, shared_claims
from conversion.objects.pod_places import PodPlace
from conversion.patches.decision import Decision, unchanged
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import GROUP, ClaimSpec
from neuron.api.fields import mapping
from neuron.findings import Finding
from neuron.hardware.instances import Catalogue
from policies.patching.json_patch import patched
from policies.selectors.claim_context import claim_context
from policies.selectors.engine import DeviceSelectors

if TYPE_CHECKING:
    from commands.objects.file_policies import Changed, FilePolicies
    from policies.judging.mutations import Mutated

_MOST_REMEMBERED: Final = 4096
"""Answers about pods."""
_POD: Final = ("", "Pod")
_NONE_MISSING: Final[Collection[tuple[str, str]]] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ChangedPod:
    """A pod that mutating policies change or refuse.

    Attributes:
        place: where it is, as it is written.
        facts: about the pod that was converted last.
        change: what policies and conversion make of it.
    """

    place: PodPlace
    facts: PodFacts
    change: "Changed"

    def part(self, converted: Part) -> Part:
        """What is decided about the pod as it is written. `converted`: about the pod that was converted last."""
        decision, answer = self.change.decision, converted.answer
        told = (*decision.errors, *decision.warnings)
        if not (decision.errors and decision.reason == "policy"):
            told = (*answer.findings, *(each for each in told if each not in answer.findings))
        facts = dataclasses.replace(self.facts, place=self.place)
        return dataclasses.replace(
            converted, facts=facts, answer=dataclasses.replace(answer, decision=decision, findings=told)
        )


class Decider:
    """Decides about objects with one set of options, policies and facts. The facts do not change between objects."""

    def __init__(
        self,
        options: ConversionOptions,
        store: Store,
        policies: "FilePolicies | None" = None,
        *,
        rewrites: bool = False,
        past_shadow: bool = False,
        counted_classes: Collection[str] = (),
    ) -> None:
        """Prepare.

        Args:
            store: of the files, or of the cluster.
            policies: to apply, or None.
            rewrites: as for `DecisionInputs`.
            past_shadow: as for `DecisionInputs`.
            counted_classes: as for `DecisionInputs`.
        """
        self._options = options
        self._store = store
        self._written = store.written if isinstance(store, FileStore) else _nothing_written
        self._policies = policies
        self._rewrites = rewrites
        self._past_shadow = past_shadow
        self._counted_classes = counted_classes
        self._answers: dict[object, Answer] = {}
        self._judged: dict[tuple[str, str, str, str], ClaimJudgement] = {}

    @functools.cached_property
    def conversion(self) -> ConversionContext:
        """The context of conversion."""
        catalogue = self._policies.catalogue if self._policies else Catalogue()
        return conversion_context(self._options, catalogue, self._store)

    @functools.cached_property
    def claims(self) -> ClaimContext:
        """The context for checks of claims."""
        context = claim_context(self._options, self.conversion.catalogue, self._store, self._policies)
        return structs.replace(context, classes=self._store.known_classes())

    def for_one_object(self) -> ClaimContext:
        """The context for checks of claims of one object: selectors have a time limit for each object.

        It is CPU time, so that findings do not depend on what else the machine does.
        """
        return structs.replace(self.claims, engine=DeviceSelectors(time.process_time))

    def decide(self, manifest: Manifest, missing: Collection[tuple[str, str]] = _NONE_MISSING) -> ObjectDecision:
        """The decision about an object, and about its pods.

        Args:
            missing: kind and name of claims and templates that are known not to exist.
        """
        if not is_checked(manifest):
            return ObjectDecision(form=manifest.form)
        form = manifest.form
        if self._may_change(manifest) and (manifest.group, manifest.kind) != _POD:
            own = self.enrichment(manifest)
            form = form if own is None else (*form, *own.errors)
            manifest = manifest if own is None else _patched(manifest, own)
        found: list[PodFacts] = []
        changes: dict[int, ChangedPod] = {}
        for each in places_of(manifest.group, manifest.kind, manifest.data):
            change = self.change(manifest, each, missing)
            if change is not None:
                changes[len(found)] = change
            found.append(self._read(manifest, each, missing) if change is None else change.facts)
        decided = self._decided(manifest, found, missing)
        parts = (changes[at].part(each) if at in changes else each for at, each in enumerate(decided.parts))
        decided = dataclasses.replace(decided, parts=tuple(parts)) if changes else decided
        return dataclasses.replace(decided, form=(*form, *decided.form)) if form else decided

    def _decided(
        self, manifest: Manifest, found: Sequence[PodFacts], missing: Collection[tuple[str, str]]
    ) -> ObjectDecision:
        subject = DecisionSubject(
            manifest.group, manifest.kind, manifest.namespace, manifest.data, found, missing=missing
        )
        if len(self._answers) > _MOST_REMEMBERED:
            self._answers.clear()
        return decide(subject, self._inputs(manifest.namespace), self._options.excluded_namespaces)

    def change(
        self, manifest: Manifest, place: PodPlace, missing: Collection[tuple[str, str]] = _NONE_MISSING
    ) -> "ChangedPod | None":
        """What mutating policies and conversion make of the pods at a place; None if policies change nothing.

        Args:
            manifest: the object, with its own changes.
        """
        found = self._change_pod(manifest, place, missing)
        return found if found is not None and found.change.by_policies else None

    def _change_pod(
        self, manifest: Manifest, place: PodPlace, missing: Collection[tuple[str, str]]
    ) -> "ChangedPod | None":
        if self._policies is None or not self._may_change(manifest) or not _is_kind_with_pods(manifest):
            return None
        facts = self._read(manifest, place, missing)

        def converted(data: dict[str, object]) -> Decision:
            nonlocal facts
            facts = self._read(manifest, dataclasses.replace(place, template=data), missing)
            return self._decided(manifest, [facts], missing).parts[0].decision

        found = self._policies.change_pod(manifest, place.template, self._store, converted)
        return None if found is None else ChangedPod(place, facts, found)

    def applied(self, manifest: Manifest, place: PodPlace) -> Iterator["Mutated"]:
        """The results of the policies that match an object, or its pods at a place, in the order in which they run."""
        if self._policies is None or not self._may_change(manifest):
            return
        is_pod = (manifest.group, manifest.kind) == _POD
        own = None if is_pod else self._change_object(manifest)
        yield from () if own is None else own.results
        changed = manifest if own is None else _patched(manifest, own.decision)
        for each in places_of(changed.group, changed.kind, changed.data):
            if each.path == place.path:
                found = self._change_pod(changed, each, _NONE_MISSING)
                yield from () if found is None else found.change.results

    def _may_change(self, manifest: Manifest) -> bool:
        """Whether mutating policies are evaluated for the objects of its namespace."""
        excluded = manifest.namespace in self._options.excluded_namespaces
        return self._policies is not None and self._policies.changes_objects and not excluded

    def _read(self, manifest: Manifest, place: PodPlace, missing: Collection[tuple[str, str]]) -> PodFacts:
        found = read_pod(place, manifest.kind)
        return found if found.pod is None else self._facts(manifest, place, found.pod, missing)

    def enrichment(self, manifest: Manifest) -> Decision | None:
        """What an object that is no Pod gets when it is created; None: nothing, or a cluster has stored it.

        Mutating policies change it, and conversion completes a claim or template.
        """
        if _is_stored(manifest):
            return None
        found = None if (manifest.group, manifest.kind) == _POD else self._change_object(manifest)
        return self._enrichment(manifest) if found is None or not found.by_policies else found.decision

    def _change_object(self, manifest: Manifest) -> "Changed | None":
        if self._policies is None or not self._may_change(manifest) or _is_stored(manifest):
            return None

        def completed(data: dict[str, object]) -> Decision:
            return self._enrichment(dataclasses.replace(manifest, data=data)) or unchanged("not-neuron")

        return self._policies.change_object(manifest, self._store, completed)

    def _enrichment(self, manifest: Manifest) -> Decision | None:
        """The decision about a claim or template that conversion completes when it is created; None for others."""
        if manifest.group != GROUP or manifest.namespace in self._options.excluded_namespaces:
            return None
        claim = enrichable_claim(manifest.kind, manifest.data, self._options.device_class)
        if claim is None:
            return None
        steering = NO_STEERING
        if self._policies is not None:
            steering, _ = self._policies.steer(manifest, claim.pod(), self._store)
        return decide_claim(claim, self._store.namespace(manifest.namespace), self.conversion, steering)

    def enriched(self, manifest: Manifest) -> Manifest:
        """The object as it is stored when it is created; a Pod, and one that is refused, as it is written."""
        decision = self.enrichment(manifest)
        return manifest if decision is None else _patched(manifest, decision)

    def _inputs(self, namespace: str) -> DecisionInputs:
        templates = KnownTemplates(namespace)
        if self._policies is not None:
            specs = {name: self._store.claim_template(namespace, name) for name in self._policies.named}
            templates = KnownTemplates(namespace, specs, complete=self._store.is_complete(CLAIM_TEMPLATE))
        return DecisionInputs(
            self._store.namespace(namespace),
            self.conversion,
            lambda: self.claims,
            templates,
            rewrites=self._rewrites,
            past_shadow=self._past_shadow,
            remembered=self._answers,
            counted_classes=self._counted_classes,
            resizers=self._store.resizers(namespace),
        )

    def _facts(
        self, manifest: Manifest, place: PodPlace, pod: pods.Pod, missing: Collection[tuple[str, str]]
    ) -> PodFacts:
        named = readable_names(pod)
        steering, faults = self._steering(manifest, place)
        made = {each.name: each for each in steering.named}
        known = {
            name: self._claim(manifest.namespace, kind, each, missing, made.get(each)) for name, kind, each in named
        }
        shared = self._store.group_claims(manifest.namespace, place.template)
        return PodFacts(place, pod, known, steering, faults, shared=shared)

    def _steering(self, manifest: Manifest, place: PodPlace) -> tuple[Steering, Sequence[Finding]]:
        if self._policies is None:
            return NO_STEERING, ()
        return self._policies.steer(manifest, place.template, self._store)

    def _claim(
        self,
        namespace: str,
        kind: str,
        name: str,
        missing: Collection[tuple[str, str]],
        made: Template | None,
    ) -> KnownClaim:
        """The claim that a pod names, as far as it is known. `made`: by a ClaimTemplate policy, if there is none."""
        key = (kind, namespace, name, "" if made is None else made.digest)
        judged = self._judged.get(key)
        if judged is None:
            written = self._written(kind, namespace, name)
            spec = None if written is None else self._spec(written)
            if spec is None and kind == "ResourceClaimTemplate":
                spec = self._store.claim_template(namespace, name)
                if spec is None and made is not None:
                    spec = read_claim(kind, TEMPLATE_VERSION, made.spec)[0]
            if spec is None:
                return KnownClaim(missing=(kind, name) in missing)
            judged = self._judged[key] = judge_claim(spec, self.for_one_object())
        return KnownClaim(judged)

    def _spec(self, written: Manifest) -> ClaimSpec:
        stored = self.enriched(written)
        return read_claim(stored.kind, str(stored.data.get("apiVersion")), stored.data.get("spec"))[0]


def _nothing_written(_kind: str, _namespace: str, _name: str) -> None:
    """Only files say how an object is written."""


def _patched(manifest: Manifest, decision: Decision) -> Manifest:
    if not decision.patch:
        return manifest
    return dataclasses.replace(manifest, data=patched(manifest.data, decision.patch))


def _is_stored(manifest: Manifest) -> bool:
    """Whether a cluster has stored the object."""
    return bool(mapping(manifest.data.get("metadata")).get("uid"))


def _is_kind_with_pods(manifest: Manifest) -> bool:
    """Whether the kind is known: of another one nobody knows how its pods are made."""
    return (manifest.group, manifest.kind) in KINDS


def is_checked(manifest: Manifest) -> bool:
    """Whether an object may have pods: it has apiVersion and kind, and does not only hold other objects."""
    return not manifest.wraps and bool(manifest.kind) and "apiVersion" in manifest.data


def is_readable(manifest: Manifest) -> bool:
    """Whether the pods of an object of a known kind have the types that conversion and checks read."""
    if (manifest.group, manifest.kind) not in KINDS:
        return True
    for place in places_of(manifest.group, manifest.kind, manifest.data):
        pod = read_pod(place, manifest.kind).pod
        try:
            if pod is None:
                return False
            pod.decode_claims()
            for _, container, path in pod.sections():
                container.decode_resources(path)
        except pods.UnreadableError:
            return False
    return True


def named_claims(manifest: Manifest) -> Iterable[tuple[str, str]]:
    """Kind and name of the claims and templates that the pods of an object, or a PodGroup, name."""
    if (manifest.group, manifest.kind) not in KINDS:
        return
    yield from shared_claims(manifest.data, manifest.group, manifest.kind)
    for place in places_of(manifest.group, manifest.kind, manifest.data):
        if not mapping(place.template.get("spec")).get("resourceClaims"):
            continue
        pod = read_pod(place, manifest.kind).pod
        yield from () if pod is None else ((kind, name) for _, kind, name in readable_names(pod))
