"""Policy files held against manifests: how they steer a conversion, and what they say of objects and of their pods.

The rules are the server's. What a server sees and files do not have is made up as little as possible: an object without
a name has a stand-in for its generated one, a pod of a workload has an owner, and the user is not known.

Imported only for those who have policies: schema and engine take 20 MiB.
"""

import copy
import dataclasses
import datetime as dt
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Final

import jsonpatch
import orjson

from kubecel.budget import Clock
from neuron.claim_reader import read_claim
from neuron.findings import Finding, warning
from neuron.instances import Catalogue
from neuron.templates import API_VERSION as TEMPLATE_VERSION
from neuron.templates import KIND as TEMPLATE
from policies.files.loader import PolicyError, load_folder
from policies.judging.evaluate import Verdict, evaluate
from policies.judging.policy_set import PolicySet
from policies.judging.subjects import CLUSTER_SCOPED, RequestContext, Subject, of_object
from policies.schema.documents import Problem
from webhook.decisions.decision import Decision
from webhook.decisions.pod_templates import Path
from webhook.decisions.steering import NO_STEERING, Steering
from webhook.offline.manifests import Manifest
from webhook.reviews.policy_knowledge import (
    DeviceKnower,
    PolicyView,
    knowledge_for,
    named_by,
    shown,
    verified,
    with_record,
)
from webhook.reviews.policy_steering import SteeringRefusedError, find_steering
from webhook.reviews.policy_subjects import namespace_object
from webhook.reviews.policy_verdicts import findings

_NAMESPACE: Final = "default"
"""Of objects that name none, as kubectl has it."""
_SUFFIX: Final = "xxxxx"
"""Stands for the letters that the API server adds to `generateName`."""
_OWNERS: Final = {
    "Deployment": ("apps/v1", "ReplicaSet"),
    "CronJob": ("batch/v1", "Job"),
    "JobSet": ("batch/v1", "Job"),
}
"""Who owns the pods, where that is another object than the one in the file."""


class FilePolicies:
    """The policies of a folder."""

    def __init__(self, policies: PolicySet, now: dt.datetime, clock: Clock, namespace: str = _NAMESPACE) -> None:
        """Judge by a set of policies.

        Args:
            policies: the set.
            now: by which exceptions expire.
            clock: monotonic, in seconds; bounds evaluation.
            namespace: of objects that name none.
        """
        self._namespace = namespace
        self._policies = policies
        self._now = now
        self._clock = clock
        self._known: tuple[PolicyView, DeviceKnower] | None = None

    @classmethod
    def load(cls, folder: FilePath, now: dt.datetime, clock: Clock) -> "FilePolicies":
        """Load a folder as the server does, embedded cases included.

        Raises:
            PolicyError: something is wrong with any of it, or no policy file is in it.
        """
        found = load_folder(folder)
        if not found.files:
            raise PolicyError([Problem(str(folder), 0, "no policy file (*.yaml, *.yml, *.json) is in it.")])
        return cls(found, now, clock)

    @property
    def catalogue(self) -> Catalogue:
        """Instance types, with what policies add or change."""
        return self._policies.catalogue

    @property
    def unconnected(self) -> bool:
        """Whether a policy allows devices that are not connected."""
        return self._policies.unconnected

    # --- conversion -----------------------------------------------------------------------------------------------

    def steer(
        self, manifest: Manifest, template: dict[str, Any], namespaces: PolicyView
    ) -> tuple[Steering, list[Finding]]:
        """How the conversion of a template's pods is steered, and which policies could not be asked."""
        if not self._policies.conversions and not self._policies.hints:
            return NO_STEERING, []
        # Mutating webhooks are asked before the API server makes up a name.
        pod = _pod(manifest, template)
        subject = self._subject(pod, manifest.namespace, namespaces)
        knowledge = with_record(subject.knowledge, shown(pod), strips=True)
        try:
            steering, errors = find_steering(
                self._policies, dataclasses.replace(subject, knowledge=knowledge), self._clock
            )
        except SteeringRefusedError as error:
            return NO_STEERING, [error.finding]
        return steering, [warning("NEU803", "", f"policy {error}; it steers nothing here.") for error in errors]

    # --- validation -----------------------------------------------------------------------------------------------

    def judge_object(self, manifest: Manifest, namespaces: PolicyView) -> list[Finding] | None:
        """What policies say of an object that is created as it stands; None where none is about such an object."""
        return self._judge(self._subject(manifest.data, manifest.namespace, namespaces))

    def judge_pod(
        self, manifest: Manifest, template: dict[str, Any], decision: Decision, namespaces: PolicyView
    ) -> list[Finding] | None:
        """What policies say of the pods of a template, as conversion leaves them; None where none is about pods."""
        converted = copy.deepcopy(template)
        # A copy: what a patch adds becomes part of the pod.
        jsonpatch.apply_patch(converted, orjson.loads(orjson.dumps(decision.patch)), in_place=True)
        subject = self._subject(_pod(manifest, converted), manifest.namespace, namespaces)
        return self._judge(_with_templates(subject, decision))

    def subjects(self, manifest: Manifest, operation: str, namespaces: PolicyView) -> Iterator[tuple[Path, Subject]]:
        """The requests that come of an object as it is written: for itself, and for the pods that it would make.

        The pods of a workload come with the path of their template, and only where it is created.
        """
        subject = self._subject(manifest.data, manifest.namespace, namespaces, operation)
        yield (), _named(subject)
        for path, template in manifest.pod_templates():
            if path and operation == "CREATE":
                yield path, _named(self._subject(_pod(manifest, template), manifest.namespace, namespaces))

    def _subject(
        self, data: dict[str, Any], namespace: str, namespaces: PolicyView, operation: str = "CREATE"
    ) -> Subject:
        if data.get("kind") in CLUSTER_SCOPED:
            return of_object(data, operation=operation)
        knower = self._knower(namespaces)
        knowledge = knowledge_for(knower.base, knower, namespace, named_by(data))
        where = namespace or self._namespace
        known = namespace_object(where, namespaces)
        if not namespace:
            # The API server writes down where an object goes.
            data = {**data, "metadata": {**_mapping(data.get("metadata")), "namespace": self._namespace}}
        return of_object(
            data,
            RequestContext(
                namespace_object=known,
                quotas=self._quotas({namespace, where}, namespaces),
                knowledge=with_record(knowledge, verified(data, knowledge.templates)),
            ),
            operation=operation,
        )

    def _knower(self, view: PolicyView) -> DeviceKnower:
        """What knows the devices of a view: the same for as long as the view is."""
        if self._known is None or self._known[0] is not view:
            self._known = (view, DeviceKnower(view, self._policies.catalogue))
        return self._known[1]

    def _quotas(self, places: Collection[str], namespaces: PolicyView) -> Mapping[str, int] | None:
        """What quotas allow an object; those that name no namespace go where the objects go that name none."""
        found = [namespaces.quotas(each) for each in places]
        known = [quotas for quotas in found if quotas is not None]
        if not known:
            return None
        names = set[str]().union(*known)
        return {name: min(quotas[name] for quotas in known if name in quotas) for name in names}

    def _judge(self, subject: Subject) -> list[Finding] | None:
        verdicts = evaluate(self._policies.validating, _named(subject), self._now, self._clock)
        return list(self._said(verdicts)) if verdicts else None

    def _said(self, verdicts: tuple[Verdict, ...]) -> Iterator[Finding]:
        for verdict in verdicts:
            yield from findings(verdict, self._now)


def _pod(manifest: Manifest, template: dict[str, Any]) -> dict[str, Any]:
    """The pod that a template makes, as it reaches the API server; a Pod is its own."""
    if (manifest.group, manifest.kind) == ("", "Pod"):
        return template
    api_version, kind = _OWNERS.get(manifest.kind, (manifest.data.get("apiVersion"), manifest.kind))
    owner = {"apiVersion": api_version, "kind": kind, "name": manifest.name, "uid": "", "controller": True}
    metadata = {
        **_mapping(template.get("metadata")),
        "generateName": f"{manifest.name.rstrip('*-')}-",
        "ownerReferences": [owner],
    }
    if manifest.namespace:
        metadata["namespace"] = manifest.namespace
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec")}


def _with_templates(subject: Subject, decision: Decision) -> Subject:
    """The subject with the templates that its conversion makes."""
    if not decision.templates:
        return subject
    made = {each.name: read_claim(TEMPLATE, TEMPLATE_VERSION, each.spec)[0] for each in decision.templates}
    known = dataclasses.replace(subject.knowledge, templates={**subject.knowledge.templates, **made})
    return dataclasses.replace(subject, knowledge=with_record(known, verified(subject.object, known.templates)))


def _named(subject: Subject) -> Subject:
    """A request whose object has a name: validating webhooks are asked after the API server has made it up."""
    metadata = _mapping(_mapping(subject.object).get("metadata"))
    prefix = metadata.get("generateName")
    if not prefix or metadata.get("name"):
        return subject
    named = {**subject.object, "metadata": {**metadata, "name": f"{prefix}{_SUFFIX}"}}
    return dataclasses.replace(subject, object=named)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
