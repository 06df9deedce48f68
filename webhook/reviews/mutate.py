"""`/mutate`: dispatches reviews, caches decisions, and creates ResourceClaimTemplates before the answer is sent."""

import dataclasses
import enum
import functools
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Final, NamedTuple

import msgspec

from conversion.asks.conversion_context import ConversionContext, ConversionOptions, conversion_context
from conversion.asks.pod_demand import claims_from_templates, requesting
from conversion.asks.steering import NO_STEERING, Mode, Steering
from conversion.claims.mapped_templates import Need
from conversion.claims.templates import API_VERSION, KIND
from conversion.claims.work import TooMuchWorkError
from conversion.decide import decide_pod, templates_of_record, with_needs
from conversion.facts import ClusterView, NamespaceFacts
from conversion.findings.verification import Sources, verify
from conversion.objects import nesting, pods, queues
from conversion.objects.wire import ABSENT, AdmissionRequest
from conversion.patches import leader_worker_sets, restore_pods
from conversion.patches.decision import Decision, denied, size_of, unchanged
from conversion.patches.enrich_claims import EnrichableClaim, decide_claim, enrichable_claim, keep_claim
from conversion.patches.named_templates import with_other
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import GROUP
from neuron.api.fields import mapping
from neuron.findings import Finding, warning
from neuron.hardware.instances import Catalogue
from runtime import tracing
from runtime.remembered import Remembered
from webhook.reviews import effort
from webhook.reviews.pod_decisions import PodDecisions, PodShape
from webhook.reviews.reviewer import (
    OtherTemplateError,
    Steer,
    TemplateStore,
    TemplateUnavailableError,
    before_waiting,
    unreadable,
)
from webhook.reviews.worker_threads import LARGE_OBJECT, Inline, Lane

_CLAIM_KINDS: Final = ("ResourceClaim", KIND)
_LWS_GROUP = "leaderworkerset.x-k8s.io"
_KUBELET: Final = "system:node:"
"""Prefix of every kubelet's user name (https://kubernetes.io/docs/reference/access-authn-authz/node/)."""
_ENRICHED: Final = 512 * 1024
"""Bytes of all remembered decisions about claims."""
_SIZE_OF_JSON: Final = 8
"""Estimated bytes of Python data and rendered answer per byte of JSON."""

# Frequent decisions, created and rendered once.
_EXCLUDED = unchanged("excluded-namespace")
_NOT_NEURON = unchanged("not-neuron")
_NO_OBJECT = unchanged("no-object")
_SUBRESOURCE = unchanged("subresource")
_OPERATION = unchanged("operation")
_UNKNOWN_KIND = unchanged("unknown-kind")
_NOT_PLAIN = unchanged("not-plain")


CheckTemplate = Callable[[str, Need], Awaitable[Finding | None]]
"""As `TemplateChecks.find`: what is wrong with a template of operators that a pod needs, in its namespace."""


class Mutator:
    """Converts Pods, annotates LeaderWorkerSets, and enriches claims with class and count only.

    A decision is a pure function of a view, so the replicas of a workload share one cached decision; the cache is
    cleared when the cluster's facts change. The lane decides about large objects, with facts read just before. Caches
    are used on the event loop only.
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
        checks: CheckTemplate | None = None,
        queues: "QueueNotices | None" = None,
        sources: Sources | None = None,
        named: Callable[[bytes], object] | None = None,
    ) -> None:
        """Decide with these settings and facts; `checks` is needed where `steer` names templates of operators.

        `queues` outlives this object where a new one is made for each set of policies. `sources` are the DeviceClasses
        and templates of conversion; None: without policies. `named` finds names of templates of ClaimTemplate policies
        in the bytes of a pod; None: there are no such policies.
        """
        self._named = named
        self._sources = sources or Sources(frozenset({options.device_class}))
        self._lane = lane or Inline()
        self._checks = checks
        self._options = options
        self._catalogue = catalogue
        self._cluster = cluster
        self._templates = templates
        self._steer = steer
        self._decisions = PodDecisions()
        self._enriched: Remembered[Hashable, Decision] = Remembered(_ENRICHED)
        self._queues = queues or QueueNotices()
        self._version = cluster.version
        self._context = conversion_context(options, catalogue, cluster)

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review.

        An unreadable object is denied with the path of the field; it raises nothing.

        Raises:
            webhook.reviews.worker_threads.LaneError: no decision about a large object in time.
        """
        if request.namespace in self._options.excluded_namespaces:
            return _EXCLUDED
        units = 0
        try:
            # On the event loop, if the object is small and takes little work.
            try:
                decided = self._decide(request)
            except TooMuchWorkError as error:
                decided, units = None, error.units
            decision = await self._decide_in_lane(request, units) if decided is None else decided
        except pods.UnreadableError as error:
            return denied("unreadable", unreadable(request, error))
        if decision.needs and self._checks is not None:
            decision = await self._checked(decision, request, self._checks)
        for template in decision.templates:
            if not self._templates.holds(request.namespace, template):
                await before_waiting()
                with tracing.span("template"):
                    decision = await self._with_templates(decision, request)
                break
        return self._queues.noted(request, decision) if decision.shows_queue else decision

    def _decide(self, request: AdmissionRequest) -> Decision | None:
        """The decision, if it takes little; None, TooMuchWorkError: decide in the lane."""
        subject = _subject(request)
        if isinstance(subject, Decision):
            return subject
        if subject is _Subject.NEW_POD:
            raw = bytes(request.object)
            if not pods.may_concern_us(raw) and (self._named is None or not self._named(raw)):
                return _NOT_NEURON
            if len(raw) > LARGE_OBJECT:
                return None
            read = _read_pod(request, self._steer)
            shape, context = self._shape(read, request.namespace), self._current_context()
            decision = self._decisions.find(shape, read.pod, read.names)
            if decision is None:
                with effort.on_the_loop():
                    decision = read.converted(shape, context)
                self._remember(read, shape, decision)
            return decision
        if _size_of(request) > LARGE_OBJECT:
            return None
        if subject is _Subject.CHANGED_POD:
            with effort.on_the_loop():
                return self._restoring(request)()
        if subject is _Subject.CLAIM:
            return self._enrich(request)
        return self._place(request, *_read_workload(request))()

    async def _decide_in_lane(self, request: AdmissionRequest, units: int) -> Decision:
        subject, namespace = _subject(request), request.namespace
        size = _size_of(request)
        seconds = effort.of_planning(units, size)
        if subject is _Subject.CHANGED_POD:
            return await self._lane.run(namespace, self._restoring(request), seconds)
        if subject is _Subject.CLAIM:
            return await self._enrich_in_lane(request, seconds)
        if subject is _Subject.LEADER_WORKER_SET:
            reading = effort.of_reading(size)
            workload, named = await self._lane.run(namespace, lambda: _read_workload(request), reading)
            return await self._lane.run(namespace, self._place(request, workload, named), seconds)
        steer = None if self._steer is None else self._steer.fixed(namespace)
        read = await self._lane.run(namespace, lambda: _read_pod(request, steer), effort.of_reading(size))
        shape, context = self._shape(read, namespace), self._current_context()
        decision = self._decisions.find(shape, read.pod, read.names)
        if decision is None:
            decision = await self._lane.run(namespace, lambda: read.converted(shape, context), seconds)
            if context is self._context:
                self._remember(read, shape, decision)
        return decision

    def _place(
        self, request: AdmissionRequest, workload: leader_worker_sets.LeaderWorkerSet, named: frozenset[str]
    ) -> Callable[[], Decision]:
        namespace, mode = request.namespace, Mode(self._options.mode)
        facts = self._cluster.namespace(namespace)
        steer = None if self._steer is None else self._steer.fixed(namespace)
        modes_of = leader_worker_sets.ultraserver_modes(named, namespace, self._cluster)
        unknown = frozenset(each for each in named if self._cluster.claim_template(namespace, each) is None)

        def work() -> Decision:
            steerings: list[Steering] = []
            if steer is not None:
                data = mapping(nesting.decode(request.object))
                templates = leader_worker_sets.pod_templates(data)
                steerings = [steer.of_template(template, namespace, data) for template in templates]
            # Templates of ClaimTemplate policies, which the first pod makes.
            made = {each.name: each.spec for found in steerings for each in found.named if each.name in unknown}
            specs = {name: read_claim(KIND, API_VERSION, spec)[0] for name, spec in made.items()}
            known = {name: each.ultraserver_modes[0] for name, each in specs.items() if each.ultraserver_modes}
            return leader_worker_sets.place(workload, known | modes_of, facts, mode, steerings)

        return work

    def _enrich(self, request: AdmissionRequest) -> Decision:
        read = self._reading_claim(request)()
        if isinstance(read, Decision):
            return read
        facts, context = self._cluster.namespace(request.namespace), self._current_context()
        key = (read.key, facts, read.steering)
        decision = self._enriched.get(key)
        if decision is None:
            with effort.on_the_loop():
                decision = decide_claim(read.claim, facts, context, read.steering)
            self._remember_claim(key, read.claim, decision)
        return decision

    async def _enrich_in_lane(self, request: AdmissionRequest, seconds: float) -> Decision:
        reading = effort.of_reading(_size_of(request))
        read = await self._lane.run(request.namespace, self._reading_claim(request), reading)
        if isinstance(read, Decision):
            return read
        facts, context = self._cluster.namespace(request.namespace), self._current_context()
        key = (read.key, facts, read.steering)
        decision = self._enriched.get(key)
        if decision is None:
            work = functools.partial(decide_claim, read.claim, facts, context, read.steering)
            decision = await self._lane.run(request.namespace, work, seconds)
            if context is self._context:
                self._remember_claim(key, read.claim, decision)
        return decision

    def _remember_claim(self, key: Hashable, claim: EnrichableClaim, decision: Decision) -> None:
        """Remember the decision about all claims that differ in their names only, unless it has the name."""
        if not any(each.value == claim.metadata.name for each in decision.warnings):
            texts = sum(len(each.message) + len(each.fix) for each in decision.warnings)
            self._enriched.put(key, decision, _SIZE_OF_JSON * (texts + size_of(decision.patch)))

    def _reading_claim(self, request: AdmissionRequest) -> Callable[[], "_ReadClaim | Decision"]:
        """A function that reads a new claim or template; it returns the decision if it is not to be enriched."""
        namespace, kind = request.namespace, request.kind.kind
        steer = None if self._steer is None else self._steer.fixed(namespace)

        def work() -> _ReadClaim | Decision:
            updates = request.operation == "UPDATE"
            data = mapping(nesting.decode(request.object))
            claim = enrichable_claim(kind, data, self._options.device_class, updates=updates)
            if claim is None:
                return _NOT_PLAIN
            if updates:
                return keep_claim(claim, mapping(nesting.decode(request.oldObject)), self._options.device_class)
            steering = NO_STEERING if steer is None else steer.of_template(claim.pod(), namespace)
            return _ReadClaim(claim, claim.key, steering)

        return work

    def _restoring(self, request: AdmissionRequest) -> Callable[[], Decision]:
        namespace, context = request.namespace, self._current_context()
        facts = self._cluster.namespace(namespace)
        steer = None if self._steer is None else self._steer.fixed(namespace)
        template = functools.partial(self._cluster.claim_template, namespace)

        def work() -> Decision:
            old = pods.decode(request.oldObject)

            @functools.cache
            def steering() -> Steering:
                return NO_STEERING if steer is None else steer.of_template(nesting.decode(request.oldObject), namespace)

            def computed() -> Iterator[str]:
                return (each.name for each in templates_of_record(old, facts, context, steering()))

            known = restore_pods.UpdateFacts(
                lambda: (pods.decode_labels(request.object), pods.decode_labels(request.oldObject)),
                lambda: verify(old, template, self._sources, computed),
                lambda: steering().hints,
            )
            return restore_pods.restore(pods.decode(request.object), old, known)

        return work

    def _current_context(self) -> ConversionContext:
        if self._version != self._cluster.version:
            self._version = self._cluster.version
            self._context = conversion_context(self._options, self._catalogue, self._cluster)
            self._decisions.clear()
            self._enriched.clear()
        return self._context

    def _shape(self, read: "_ReadPod", namespace: str) -> PodShape:
        claiming = requesting(read.claims, namespace, self._cluster, self._options.device_class)
        return PodShape(read.shape, self._cluster.namespace(namespace), claiming, read.steering, read.by_kubelet)

    def _remember(self, read: "_ReadPod", shape: PodShape, decision: Decision) -> None:
        self._decisions.add(shape, read.names, decision, _size(read.pod, shape.facts, decision))

    async def _checked(self, decision: Decision, request: AdmissionRequest, check: CheckTemplate) -> Decision:
        """The decision, after the templates that policies name were checked. In shadow mode they are only reported."""
        await before_waiting()
        for need in decision.needs:
            try:
                found = await check(request.namespace, need)
            except TemplateUnavailableError as error:
                if decision.shadowed is None:
                    return self._without_template(error, decision)
                found = error.finding
            decision = with_needs(decision, [found])
            if decision.errors and decision.shadowed is None:
                break
        return decision

    async def _with_templates(self, decision: Decision, request: AdmissionRequest) -> Decision:
        """The decision, after its templates exist; in a dry run, after checking that they exist or could be created."""
        for template in decision.templates:
            if self._templates.holds(request.namespace, template):
                continue
            other = self._templates.other(request.namespace, template) if template.version else None
            if other is not None:
                decision = with_other(decision, request.namespace, template, other)
                continue
            try:
                if not request.dryRun:
                    await self._templates.ensure(request.namespace, template)
                elif not await self._templates.check(request.namespace, template):
                    said = f"dry run: ResourceClaimTemplate {template.name} was not created."
                    told = warning("NEU207", "", said, value=template.name)
                    decision = dataclasses.replace(decision, warnings=(*decision.warnings, told))
            except OtherTemplateError as error:
                decision = with_other(decision, request.namespace, template, error.version)
            except TemplateUnavailableError as error:
                return self._without_template(error, decision)
        return decision

    def _without_template(self, error: TemplateUnavailableError, decision: Decision) -> Decision:
        # A locked policy denies: users can cause the error, by a quota or by a template of the same name.
        if self._options.on_template_failure == "admit" and not decision.locked:
            finding = warning("NEU210", error.finding.path, f"admitted unchanged: {error.finding.message}")
            return dataclasses.replace(unchanged("template-unavailable", finding), resource=decision.resource)
        return dataclasses.replace(
            denied("template-unavailable", error.finding),
            status_code=error.status_code,
            status_reason=error.status_reason,
            resource=decision.resource,
        )


class _Subject(enum.Enum):
    """Reviews whose object is read."""

    NEW_POD = enum.auto()
    CHANGED_POD = enum.auto()
    LEADER_WORKER_SET = enum.auto()
    CLAIM = enum.auto()


def _subject(request: AdmissionRequest) -> _Subject | Decision:
    """The subject of a review, or the decision if it does not depend on the object."""
    kind = request.kind
    if request.subResource:
        return _SUBRESOURCE
    if request.object == ABSENT:
        return _NO_OBJECT
    if kind.kind == "Pod" and kind.group == "":
        if request.operation == "CREATE":
            return _Subject.NEW_POD
        if request.operation == "UPDATE":
            return _NO_OBJECT if request.oldObject == ABSENT else _Subject.CHANGED_POD
        return _OPERATION
    if kind.kind == "LeaderWorkerSet" and kind.group == _LWS_GROUP and request.operation == "CREATE":
        return _Subject.LEADER_WORKER_SET
    if kind.kind in _CLAIM_KINDS and kind.group == GROUP:
        if request.operation == "UPDATE":
            return _NO_OBJECT if request.oldObject == ABSENT else _Subject.CLAIM
        return _Subject.CLAIM if request.operation == "CREATE" else _OPERATION
    return _UNKNOWN_KIND


# --- reading objects: pure, may run in the lane --------------------------------------------------------------------


class _ReadPod(msgspec.Struct, frozen=True):
    """What a decision about a new Pod needs, without the cluster's facts.

    Attributes:
        shape: all of the view that a decision depends on but these names.
        claims: as in `claims_from_templates`.
        by_kubelet: whether a kubelet creates it as a mirror pod.
    """

    pod: pods.Pod
    names: tuple[str, ...]
    shape: Hashable
    claims: tuple[tuple[str, str], ...]
    steering: Steering
    by_kubelet: bool

    def converted(self, shape: PodShape, context: ConversionContext) -> Decision:
        """The decision, with the cluster's facts."""
        return decide_pod(self.pod, shape.facts, context, shape.claiming, self.steering, by_kubelet=self.by_kubelet)


class _ReadClaim(NamedTuple):
    """What a decision about a new claim or template needs, without the cluster's facts.

    Attributes:
        key: all that a decision depends on but the name.
    """

    claim: EnrichableClaim
    key: Hashable
    steering: Steering


def _read_pod(request: AdmissionRequest, steer: Steer | None) -> _ReadPod:
    pod = pods.decode(request.object)
    steering = NO_STEERING if steer is None else steer(request)
    claims, mirrored = claims_from_templates(pod), _mirrored(pod, request)
    return _ReadPod(pod, pod.container_names, pod.shape(), claims, steering, mirrored)


class _Requester(msgspec.Struct, frozen=True):
    username: str = ""


def _mirrored(pod: pods.Pod, request: AdmissionRequest) -> bool:
    """Whether the pod has the annotation of a mirror pod, and a kubelet creates it."""
    if pod.annotations.mirror is None or request.userInfo == ABSENT:
        return False
    try:
        user = msgspec.json.decode(request.userInfo, type=_Requester)
    except (msgspec.DecodeError, RecursionError):
        return False
    return user.username.startswith(_KUBELET)


def _read_workload(request: AdmissionRequest) -> tuple[leader_worker_sets.LeaderWorkerSet, frozenset[str]]:
    workload = leader_worker_sets.decode(request.object)
    return workload, leader_worker_sets.named_templates(workload)


def _size_of(request: AdmissionRequest) -> int:
    return len(bytes(request.object)) + len(bytes(request.oldObject))


def _size(pod: pods.Pod, facts: NamespaceFacts, decision: Decision) -> int:
    """Bytes of a cached decision and its key, about."""
    texts = sum([len(key) + len(value) for key, value in facts.annotations]) if facts.annotations else 0
    for finding in (*decision.errors, *decision.warnings):
        texts += len(finding.message) + len(finding.fix)
    made = decision.patch_size or size_of(decision.patch)
    for template in decision.templates:
        made += template.size or size_of(template.spec)
    return pod.size_of_key() + _SIZE_OF_JSON * (texts + made)


MOST_NAMESPACES: Final = 4096


class _OwnedMetadata(msgspec.Struct, frozen=True):
    labels: dict[str, object] | None = None
    annotations: dict[str, object] | None = None
    ownerReferences: list[dict[str, object]] | None = None  # noqa: N815 - the API's spelling


class _QueuedSpec(msgspec.Struct, frozen=True):
    schedulerName: str | None = None  # noqa: N815


class _Queued(msgspec.Struct, frozen=True):
    """The fields that show a queue, and the owners, which are not in the view of a pod."""

    metadata: _OwnedMetadata = _OwnedMetadata()
    spec: _QueuedSpec = _QueuedSpec()


_decode: Final = msgspec.json.Decoder(_Queued).decode


class QueueNotices:
    """Remembers the namespaces that got the warning. Used on the event loop only."""

    def __init__(self, most: int = MOST_NAMESPACES) -> None:
        """Remember at most `most` namespaces."""
        self._most = most
        self._told: set[tuple[str, bool]] = set()

    def noted(self, request: AdmissionRequest, decision: Decision) -> Decision:
        """A decision that shows a queue, with NEU232 if it is the first of its namespace that the queue does not count.

        A dry run is told, and not remembered.
        """
        if not decision.claimed_class:
            return decision
        notice = request.namespace, decision.alternatives
        if notice in self._told or len(self._told) >= self._most:
            return decision
        # Queue labels, and the scheduler's name under its pointer, that policies add to the pod.
        added = {
            queues.POINTERS[operation["path"]]: str(operation["value"])
            for operation in decision.patch
            if operation["path"] in queues.POINTERS and operation["op"] != "remove"
        }
        found = _losing(bytes(request.object), added)
        if not found:
            return decision
        if not request.dryRun:
            self._told.add(notice)
        said = f"This is said once for namespace {request.namespace}."
        told = tuple(
            queues.uncounted(each, decision.claimed_class, said, alternatives=decision.alternatives) for each in found
        )
        return dataclasses.replace(decision, warnings=(*decision.warnings, *told))


def _losing(raw: bytes, added: dict[str, str]) -> tuple[queues.Queue, ...]:
    """The queues that do not count the claim of a pod. `added`: what policies add to it."""
    try:
        pod = _decode(raw)
    except pods.UnreadableError:
        return ()
    labels = {**(pod.metadata.labels or {}), **{key: value for key, value in added.items() if key != queues.SCHEDULER}}
    shown = {
        "metadata": {"labels": labels, "annotations": pod.metadata.annotations},
        "spec": {"schedulerName": added.get(queues.SCHEDULER, pod.spec.schedulerName)},
    }
    by_template = queues.owned_by_job(pod.metadata.ownerReferences)
    only_pods = by_template and queues.counted_alone(labels, pod.metadata.annotations or {})
    return queues.losing_count(queues.queues_of_pod(shown, only_pods=only_pods), by_template=by_template)
