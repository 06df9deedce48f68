"""`/mutate`: dispatches a review, remembers decisions, and makes sure that templates exist before an answer leaves."""

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable

from neuron.findings import Finding, warning
from neuron.instances import Catalogue
from neuron.templates import Template
from webhook.decisions import leader_worker_sets, pods
from webhook.decisions.convert_pods import convert
from webhook.decisions.decision import Decision, denied, unchanged
from webhook.decisions.modes import Mode
from webhook.decisions.own_claims import find_own_claims
from webhook.decisions.restore_pods import Labels, restore
from webhook.decisions.steering import NO_STEERING, Steer
from webhook.decisions.world import ConversionOptions, conversion_world
from webhook.edge import nesting
from webhook.edge.wire import ABSENT, AdmissionRequest
from webhook.lane import Inline, Lane
from webhook.ports import ClusterView, TemplateStore, TemplateUnavailableError

_LWS_GROUP = "leaderworkerset.x-k8s.io"
_REMEMBERED = 256
_LARGEST_REMEMBERED = 32 * 1024
"""Bytes of a pod whose decision is kept; its key holds parts of it."""

# What nearly all reviews end as: made, and rendered, once.
_NOT_NEURON = unchanged("not-neuron")
_NO_OBJECT = unchanged("no-object")
_SUBRESOURCE = unchanged("subresource")


class Mutator:
    """Decides about objects on their way into the cluster.

    Decisions are pure functions of what a view holds, so the replicas of a workload share one; a decision is
    forgotten when the cluster's facts change.
    """

    def __init__(
        self,
        options: ConversionOptions,
        catalogue: Catalogue,
        cluster: ClusterView,
        templates: TemplateStore,
        steer: Steer | None = None,
        *,
        lane: Lane | None = None,
    ) -> None:
        self._lane = lane or Inline()
        self._options = options
        self._catalogue = catalogue
        self._cluster = cluster
        self._templates = templates
        self._steer = steer
        self._decisions: OrderedDict[Hashable, Decision] = OrderedDict()
        self._version = cluster.version
        self._world = conversion_world(options, catalogue, cluster)

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review.

        Never raises for what the object holds: an object that cannot be read is refused, with the field.
        """
        if request.namespace in self._options.excluded_namespaces:
            return unchanged("excluded-namespace")
        try:
            decision = self._decide(request)
        except pods.UnreadableError as error:
            return denied("unreadable", _unreadable(request, error))
        for template in decision.templates:
            if not self._templates.holds(request.namespace, template):
                return await self._with_templates(decision, request)
        return decision

    def _decide(self, request: AdmissionRequest) -> Decision:
        kind = request.kind
        if request.subResource:
            return _SUBRESOURCE
        if request.object == ABSENT:
            return _NO_OBJECT
        if kind.kind == "Pod" and kind.group == "":
            if request.operation == "CREATE":
                return self._create_pod(request)
            if request.operation == "UPDATE" and request.oldObject == ABSENT:
                return _NO_OBJECT
            if request.operation == "UPDATE":
                return self._update_pod(request)
            return unchanged("operation")
        if kind.kind == "LeaderWorkerSet" and kind.group == _LWS_GROUP and request.operation == "CREATE":
            return self._create_leader_worker_set(request)
        return unchanged("unknown-kind")

    def _update_pod(self, request: AdmissionRequest) -> Decision:
        def labels() -> tuple[Labels, Labels]:
            return pods.decode_labels(request.object), pods.decode_labels(request.oldObject)

        return restore(pods.decode(request.object), pods.decode(request.oldObject), labels)

    def _create_leader_worker_set(self, request: AdmissionRequest) -> Decision:
        workload = leader_worker_sets.decode(request.object)
        facts = self._cluster.namespace(request.namespace)
        mode = Mode(self._options.mode)
        steer, steerings = self._steer, []
        if steer is not None:
            templates = leader_worker_sets.pod_templates(nesting.decode(request.object))
            steerings = [steer.of_template(template, request.namespace) for template in templates]
        return leader_worker_sets.place(workload, request.namespace, facts, self._cluster, mode, steerings)

    def _create_pod(self, request: AdmissionRequest) -> Decision:
        if not pods.may_concern_us(bytes(request.object)):
            return _NOT_NEURON
        pod = pods.decode(request.object)
        facts = self._cluster.namespace(request.namespace)
        own_claims = find_own_claims(pod, request.namespace, self._cluster, self._options.device_class)
        if self._version != self._cluster.version:
            self._version = self._cluster.version
            self._world = conversion_world(self._options, self._catalogue, self._cluster)
            self._decisions.clear()
        steering = NO_STEERING if self._steer is None else self._steer(request)
        if len(bytes(request.object)) > _LARGEST_REMEMBERED:
            return convert(pod, facts, self._world, own_claims, steering)
        key = (pod.key(), facts, own_claims, steering)
        decision = self._decisions.get(key)
        if decision is not None:
            self._decisions.move_to_end(key)
            return decision
        decision = self._decisions[key] = convert(pod, facts, self._world, own_claims, steering)
        if len(self._decisions) > _REMEMBERED:
            self._decisions.popitem(last=False)
        return decision

    async def _with_templates(self, decision: Decision, request: AdmissionRequest) -> Decision:
        """Let the decision stand once its templates exist."""
        for template in decision.templates:
            if self._templates.holds(request.namespace, template):
                continue
            if request.dryRun:
                decision = dataclasses.replace(decision, warnings=(*decision.warnings, _not_created(template)))
                continue
            try:
                await self._templates.ensure(request.namespace, template)
            except TemplateUnavailableError as error:
                return self._without_template(error, decision.resource)
        return decision

    def _without_template(self, error: TemplateUnavailableError, resource: str) -> Decision:
        if self._options.on_template_failure == "admit":
            finding = warning("NEU210", error.finding.path, f"admitted unchanged: {error.finding.message}")
            return dataclasses.replace(unchanged("template-unavailable", finding), resource=resource)
        return dataclasses.replace(
            denied("template-unavailable", error.finding),
            status_code=error.status_code,
            status_reason=error.status_reason,
            resource=resource,
        )


def _not_created(template: Template) -> Finding:
    return warning(
        "NEU207", "", f"dry run: ResourceClaimTemplate {template.name} was not created.", value=template.name
    )


def _unreadable(request: AdmissionRequest, error: Exception) -> Finding:
    return Finding(
        "NEU114",
        pods.place(error)[0],
        f"the object is not a readable {request.kind.kind}: {error}.",
        "Compare it with the API reference of its kind.",
    )
