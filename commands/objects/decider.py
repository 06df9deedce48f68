"""Decides about the objects of manifests or of a cluster as the webhook would: all commands ask here."""

import dataclasses
import functools
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import structs

from checks.claims.judging import ClaimContext, ClaimJudgement, judge_claim
from cluster.store import CLAIM_TEMPLATE, Store
from commands.objects.manifests import FileStore, Manifest
from conversion.asks.conversion_context import ConversionContext, ConversionOptions, conversion_context
from conversion.asks.pod_demand import KnownClaim, readable_names
from conversion.asks.steering import NO_STEERING, Steering
from conversion.claims.templates import API_VERSION as TEMPLATE_VERSION
from conversion.claims.templates import Template
from conversion.claims.work import remember_lists
from conversion.decide import (
    Answer,
    DecisionInputs,
    DecisionSubject,
    ObjectDecision,
    Part,
    PodFacts,
    decide,
    places_of,
    read_pod,
)
from conversion.findings.named_templates import KnownTemplates
from conversion.objects import pods
from conversion.objects.kinds import KINDS, shared_claims
from conversion.objects.pod_places import PodPlace
from conversion.patches.decision import Decision, unchanged
from conversion.patches.enrich_claims import decide_claim, enrichable_claim
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import GROUP
from neuron.api.fields import mapping
from neuron.findings import Finding, Severity
from neuron.hardware.instances import Catalogue
from policies.judging.selectors import DeviceSelectors, claim_context
from policies.patching.json_patch import patched

if TYPE_CHECKING:
    from commands.objects.file_policies import Changed, FilePolicies
    from policies.judging.mutations import Mutated

_MOST_REMEMBERED: Final = 1024
"""Answers about pods, of about 10 KiB each."""
_POD: Final = ("", "Pod")
remember_lists()
_NONE_MISSING: Final[Collection[tuple[str, str]]] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Creation:
    """What an object that is no Pod gets when it is created.

    Attributes:
        stored: the object as it is stored then; a Pod, and one that is refused, as it is written.
        decision: of mutating policies and, for a claim or template, of conversion; None: nothing changes the object, or
            a cluster has stored it.
        results: of the policies that match, in the order in which they run.
    """

    stored: Manifest
    decision: Decision | None = None
    results: Sequence["Mutated"] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class _ChangedPod:
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
        self._policies = policies
        self._rewrites = rewrites
        self._past_shadow = past_shadow
        self._counted_classes = counted_classes
        self._answers: dict[object, Answer] = {}
        self._judged: dict[tuple[str, str, str, str], ClaimJudgement] = {}
        self._created: tuple[Manifest, Creation] | None = None

    @functools.cached_property
    def conversion(self) -> ConversionContext:
        """The context of conversion."""
        catalogue = self._policies.catalogue if self._policies else Catalogue()
        return conversion_context(self._options, catalogue, self._store)

    @functools.cached_property
    def claims(self) -> ClaimContext:
        """The context for checks of claims."""
        policies = self._policies.loaded if self._policies is not None else None
        context = claim_context(self._options, self.conversion.catalogue, self._store, policies)
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
            own = self.created(manifest)
            form = form if own.decision is None else (*form, *own.decision.errors)
            manifest = own.stored
        found: list[PodFacts] = []
        changes: dict[int, _ChangedPod] = {}
        for each in places_of(manifest.group, manifest.kind, manifest.data):
            facts, change = self._read_changed(manifest, each, missing)
            if change is not None and change.by_policies:
                changes[len(found)] = _ChangedPod(each, facts, change)
            found.append(facts)
        decided = self._decided(manifest, found, missing)
        if not (changes or form):
            return decided
        parts = (changes[at].part(each) if at in changes else each for at, each in enumerate(decided.parts))
        if any(each.severity is Severity.ERROR for each in manifest.form):
            # No cluster takes it, so that no pods are made of it.
            parts = (dataclasses.replace(each, left=None) for each in parts)
        decided = dataclasses.replace(decided, parts=tuple(parts))
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

    def _read_changed(
        self, manifest: Manifest, place: PodPlace, missing: Collection[tuple[str, str]]
    ) -> tuple[PodFacts, "Changed | None"]:
        """The facts about the pods at a place, and what mutating policies and conversion make of them.

        The facts are about the pod that was converted last if policies change or refuse it. None: no policy matches.

        Args:
            manifest: the object, with its own changes.
        """
        facts: PodFacts | None = None

        def converted(data: dict[str, object]) -> Decision:
            nonlocal facts
            facts = self._read(manifest, dataclasses.replace(place, template=data), missing)
            return self._decided(manifest, [facts], missing).parts[0].decision

        found = None
        if self._policies is not None and self._may_change(manifest) and (manifest.group, manifest.kind) in KINDS:
            found = self._policies.change_pod(manifest, place.template, self._store, converted)
        if facts is None or found is None or not found.by_policies:
            facts = self._read(manifest, place, missing)
        return facts, found

    def applied(self, manifest: Manifest, place: PodPlace) -> Iterator["Mutated"]:
        """The results of the policies that match an object, or its pods at a place, in the order in which they run."""
        if not self._may_change(manifest):
            return
        created = self.created(manifest)
        yield from created.results
        for each in places_of(manifest.group, manifest.kind, created.stored.data):
            if each.path == place.path:
                _, found = self._read_changed(created.stored, each, _NONE_MISSING)
                yield from () if found is None else found.results

    def _may_change(self, manifest: Manifest) -> bool:
        """Whether mutating policies are evaluated for the objects of its namespace."""
        excluded = manifest.namespace in self._options.excluded_namespaces
        return self._policies is not None and bool(self._policies.loaded.mutating) and not excluded

    def _read(self, manifest: Manifest, place: PodPlace, missing: Collection[tuple[str, str]]) -> PodFacts:
        found = read_pod(place, manifest.kind)
        return found if found.pod is None else self._facts(manifest, place, found.pod, missing)

    def created(self, manifest: Manifest) -> Creation:
        """What an object gets when it is created. The last answer is kept: callers ask again about the same object."""
        if self._created is None or self._created[0] is not manifest:
            self._created = (manifest, self._create(manifest))
        return self._created[1]

    def _create(self, manifest: Manifest) -> Creation:
        if (manifest.group, manifest.kind) == _POD or mapping(manifest.data.get("metadata")).get("uid"):
            return Creation(manifest)

        def completed(data: dict[str, object]) -> Decision:
            return self._enrichment(dataclasses.replace(manifest, data=data)) or unchanged("not-neuron")

        found = None
        if self._policies is not None and self._may_change(manifest):
            found = self._policies.change_object(manifest, self._store, completed)
        by_policies = found is not None and found.by_policies
        decision = found.decision if found is not None and by_policies else self._enrichment(manifest)
        stored = manifest
        if decision is not None and decision.patch:
            stored = dataclasses.replace(manifest, data=patched(manifest.data, decision.patch))
        return Creation(stored, decision, () if found is None else found.results)

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
            stored = self.claim_object(kind, namespace, name)
            spec = None
            if stored is not None:
                spec = read_claim(stored.kind, str(stored.data.get("apiVersion")), stored.data.get("spec"))[0]
            if spec is None and kind == "ResourceClaimTemplate":
                spec = self._store.claim_template(namespace, name)
                if spec is None and made is not None:
                    spec = read_claim(kind, TEMPLATE_VERSION, made.spec)[0]
            if spec is None:
                return KnownClaim(missing=(kind, name) in missing)
            judged = self._judged[key] = judge_claim(spec, self.for_one_object())
        return KnownClaim(judged)

    def claim_object(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """A claim or template of the files, as it is stored; None if they do not have it."""
        written = self._store.written(kind, namespace).get(name) if isinstance(self._store, FileStore) else None
        return None if written is None else self._create(written).stored


def is_checked(manifest: Manifest) -> bool:
    """Whether an object may have pods: it is one of Kubernetes, and does not only hold other objects."""
    return not manifest.wraps and (bool(manifest.form) or (bool(manifest.kind) and "apiVersion" in manifest.data))


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
