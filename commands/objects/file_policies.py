"""Applies policy files to manifests: steering of conversion, and findings about objects and their pods.

The rules are the server's. Few values that only a server knows are filled in: a generated name gets a placeholder, a
pod of a workload gets an owner; the user is unknown.

Imported only if there are policies: schema and engine take 20 MiB.
"""

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Final, TypeAlias

from cluster.store import Store
from commands.objects.manifests import Manifest
from conversion.asks.steering import NO_STEERING, Steering
from conversion.claims.templates import API_VERSION as TEMPLATE_VERSION
from conversion.claims.templates import KIND as TEMPLATE
from conversion.objects.pod_places import Path
from conversion.patches.decision import Decision
from kubecel.budget import Clock
from neuron import names
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import GROUP
from neuron.api.fields import mapping
from neuron.findings import Finding, warning
from neuron.hardware.instances import Catalogue
from policies.applying import steering
from policies.applying.requests import (
    DeviceKnower,
    asked_for,
    created_pod,
    knowledge_for,
    named_by,
    namespace_object,
    verified,
    with_record,
    with_whole_namespace,
)
from policies.applying.steering import SteeringRefusedError, find_steering
from policies.files.folders import PolicyError
from policies.files.loader import load_folder
from policies.judging.evaluate import REVIEW_LIMIT, evaluate
from policies.judging.mutations import Mutated, Mutating, MutationOutcome
from policies.judging.rules import PolicySet
from policies.judging.subjects import CLUSTER_SCOPED, RequestSubject, of_object
from policies.judging.verdicts import Verdict, findings
from policies.schema.documents import PolicyProblem

_SUFFIX: Final = "xxxxx"
"""Placeholder for the letters that the API server adds to `generateName`."""

Convert: TypeAlias = Callable[[dict[str, object]], Decision]
"""Decides about an object that policies may have changed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """What mutating policies and conversion make of an object.

    Attributes:
        decision: with one patch for both, on the object or pod template as it is written.
        results: of the policies that match, in the order in which they ran.
    """

    decision: Decision
    results: tuple[Mutated, ...]

    @property
    def by_policies(self) -> bool:
        """Whether a policy changes or refuses the object."""
        return any(each.denies or each.after is not each.before for each in self.results)


class FilePolicies:
    """The policies of a folder.

    Attributes:
        loaded: the policies themselves.
    """

    def __init__(
        self, policies: PolicySet, now: dt.datetime, clock: Clock, device_class: str = names.DEVICE_CLASS
    ) -> None:
        """Prepare.

        Args:
            now: the time, for the expiry of exceptions.
            clock: monotonic seconds; bounds evaluation.
            device_class: DeviceClass of generated requests.
        """
        self._sources = policies.sources(device_class)
        self.loaded: Final = policies
        self._now = now
        self._clock = clock
        self._known: tuple[Store, DeviceKnower] | None = None

    @classmethod
    def load(
        cls, folder: FilePath, now: dt.datetime, clock: Clock, device_class: str = names.DEVICE_CLASS
    ) -> "FilePolicies":
        """Load a folder as the server does, embedded cases included.

        Raises:
            PolicyError: a file has an error, or the folder contains no policy file.
        """
        found = load_folder(folder)
        if not found.files:
            raise PolicyError([PolicyProblem(str(folder), 0, "it contains no policy file (*.yaml, *.yml, *.json).")])
        return cls(found, now, clock, device_class)

    @property
    def catalogue(self) -> Catalogue:
        """Instance types, with additions and changes of policies."""
        return self.loaded.catalogue

    @property
    def named(self) -> frozenset[str]:
        """Templates of operators that policies name."""
        found = (each for rule in self.loaded.conversions for each in rule.templates)
        return frozenset(each.name for each in found if each.inline is None)

    # --- conversion -----------------------------------------------------------------------------------------------

    def steer(
        self, manifest: Manifest, template: dict[str, object], namespaces: Store
    ) -> tuple[Steering, list[Finding]]:
        """The steering of a template's pods, and findings about policies that could not be evaluated."""
        if not (self.loaded.conversions or self.loaded.hints or self.loaded.templates):
            return NO_STEERING, []
        # Mutating webhooks are called before the API server generates a name.
        pod = _pod(manifest, template)
        subject = self._subject(pod, manifest.namespace, namespaces)
        knowledge = with_record(subject.knowledge, asked_for(pod), strips=True)
        try:
            steering, errors = find_steering(
                self.loaded, dataclasses.replace(subject, knowledge=knowledge), self._clock
            )
        except SteeringRefusedError as error:
            return NO_STEERING, [error.finding]
        return steering, [warning("NEU803", "", f"policy {error}; it is ignored here.") for error in errors]

    # --- validation -----------------------------------------------------------------------------------------------

    def object_verdicts(self, manifest: Manifest, namespaces: Store) -> tuple[Verdict, ...]:
        """Verdicts on an object on CREATE, one for each policy whose resource rules match."""
        return self._verdicts(self._subject(manifest.data, manifest.namespace, namespaces))

    def findings(self, verdicts: tuple[Verdict, ...]) -> list[Finding] | None:
        """What verdicts say; None if no policy matched."""
        return [each for verdict in verdicts for each in findings(verdict, self._now)] if verdicts else None

    @property
    def validating(self) -> tuple[str, ...]:
        """Names of the policies for validation."""
        return tuple(rule.name for rule in self.loaded.validating)

    def change_pod(
        self, manifest: Manifest, template: dict[str, object], namespaces: Store, convert: Convert
    ) -> Changed | None:
        """What mutating policies and conversion make of the pods of a template; None if no policy changes them.

        Args:
            convert: decides about the pod that the policies made.
        """
        subject = self._subject(_pod(manifest, template), manifest.namespace, namespaces)
        return self._change(template, subject, convert)

    def change_object(self, manifest: Manifest, namespaces: Store, convert: Convert) -> Changed | None:
        """The same of an object that is no Pod."""
        subject = self._subject(manifest.data, manifest.namespace, namespaces)
        return self._change(manifest.data, subject, convert)

    def _change(self, part: dict[str, object], subject: RequestSubject, convert: Convert) -> Changed | None:
        mutating = Mutating(self.loaded.mutating, subject, self._clock)
        if not mutating.matches:
            return None
        steps = steering.steps(mutating)
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                decision: Decision = end.value
                break
            answer = step.work(REVIEW_LIMIT) if isinstance(step, steering.ApplyPolicies) else convert(step.data)
        results = tuple(each for each in mutating.results if each.outcome is not MutationOutcome.NO_MATCH)
        if decision.patch:
            patch = steering.moved(part, subject.object, decision.patch)
            decision = dataclasses.replace(decision, patch=patch, patch_size=0)
        return Changed(decision, results) if results else None

    def pod_verdicts(
        self, manifest: Manifest, template: dict[str, object], decision: Decision, namespaces: Store
    ) -> tuple[Verdict, ...]:
        """Verdicts on the pods of a converted template, one for each policy whose resource rules match."""
        subject = self._subject(_pod(manifest, template), manifest.namespace, namespaces)
        return self._verdicts(self._with_templates(subject, decision))

    def subjects(self, manifest: Manifest, operation: str, namespaces: Store) -> Iterator[tuple[Path, RequestSubject]]:
        """The admission requests that an object causes: its own, and those of the pods that it would create.

        Pods of a workload have the path of their template, and are included only on CREATE.
        """
        subject = self._subject(manifest.data, manifest.namespace, namespaces, operation)
        yield (), _named(subject)
        for path, template in manifest.pod_templates():
            if path and operation == "CREATE":
                yield path, _named(self._subject(_pod(manifest, template), manifest.namespace, namespaces))

    def _subject(
        self, data: dict[str, object], namespace: str, namespaces: Store, operation: str = "CREATE"
    ) -> RequestSubject:
        if data.get("kind") in CLUSTER_SCOPED:
            knowledge = self._knower(namespaces).base
            return dataclasses.replace(of_object(data, operation=operation), knowledge=knowledge)
        knower = self._knower(namespaces)
        group, kind = str(data.get("apiVersion", "")).rpartition("/")[0], str(data.get("kind", ""))
        knowledge = knowledge_for(knower.base, knower, namespace, named_by(data, group, kind))
        known = namespace_object(namespace, namespaces)
        metadata = mapping(data.get("metadata"))
        if namespace and not metadata.get("namespace"):
            # The API server sets the namespace.
            data = {**data, "metadata": {**metadata, "namespace": namespace}}
        made = of_object(data, known, operation=operation)
        made = dataclasses.replace(
            made,
            # The pods of a cluster-scoped object run in namespaces that are not known.
            namespace=made.namespace if namespace else "",
            quotas=namespaces.quotas(namespace),
            knowledge=with_record(knowledge, verified(data, knowledge.templates, self._sources)),
        )
        return with_whole_namespace(made, namespaces)

    def _knower(self, view: Store) -> DeviceKnower:
        """The `DeviceKnower` of a view; kept while the view is the same."""
        if self._known is None or self._known[0] is not view:
            self._known = (view, DeviceKnower(view, self.loaded.catalogue))
        return self._known[1]

    def _with_templates(self, subject: RequestSubject, decision: Decision) -> RequestSubject:
        """The subject with the templates that its conversion creates."""
        if not decision.templates:
            return subject
        made = {each.name: read_claim(TEMPLATE, TEMPLATE_VERSION, each.spec)[0] for each in decision.templates}
        known = dataclasses.replace(subject.knowledge, templates={**subject.knowledge.templates, **made})
        found = verified(subject.object, known.templates, self._sources)
        return dataclasses.replace(subject, knowledge=with_record(known, found))

    def _verdicts(self, subject: RequestSubject) -> tuple[Verdict, ...]:
        return evaluate(self.loaded.validating, _named(subject), self._now, self._clock)


def _pod(manifest: Manifest, template: dict[str, object]) -> dict[str, object]:
    """The pod that a template creates; a Pod is returned unchanged. What stands for a claim has no owner."""
    if (manifest.group, manifest.kind) == ("", "Pod"):
        return template
    return created_pod(template, manifest.namespace, None if manifest.group == GROUP else manifest.data)


def _named(subject: RequestSubject) -> RequestSubject:
    """A request whose object has a name: validating webhooks are called after the API server has generated it."""
    metadata = mapping(mapping(subject.object).get("metadata"))
    prefix = metadata.get("generateName")
    if not prefix or metadata.get("name"):
        return subject
    named = {**subject.object, "metadata": {**metadata, "name": f"{prefix}{_SUFFIX}"}}
    return dataclasses.replace(subject, object=named)
