"""Finds the settings of pods by policies: on the event loop within a short time limit, else in the lane.

`ClaimBounds` checks the claims of a pod by the settings that bind them, also claims that no cache has.
"""

import asyncio
import contextlib
import copy
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from checks.claims.judging import ClaimContext, ReadSpec, for_one_object, judge_claim
from cluster.store import Store
from conversion.asks.conversion_context import ConversionContext
from conversion.asks.pod_demand import Claiming, KnownClaim
from conversion.asks.steering import NO_STEERING, Steering
from conversion.facts import NamespaceFacts, NamespaceView
from conversion.findings.bound_claims import check_bound
from conversion.findings.verification import Sources
from conversion.objects.wire import AdmissionRequest
from kubecel.budget import Clock
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding
from policies.applying.requests import (
    DeviceKnower,
    FindClaims,
    asked_for,
    created_pod,
    knowledge_for,
    named_by,
    namespace_object,
    subject_of,
    verified,
    with_record,
    with_whole_namespace,
)
from policies.applying.steering import SteeringRefusedError, find_steering
from policies.judging.evaluate import REVIEW_LIMIT, TakesLongError, TimeLimit
from policies.judging.rules import AnyPodRule, PolicySet
from policies.judging.subjects import RequestSubject, of_object
from runtime.retries import Once
from webhook.reviews import effort
from webhook.reviews.policy_requests import ON_LOOP, Allowance
from webhook.reviews.worker_threads import Lane, working_time

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Namespace:
    """A `NamespaceView` with the facts of one namespace at one time."""

    facts: NamespaceFacts
    labels: Mapping[str, str] | None
    whole: Mapping[str, object] | None
    hard: Mapping[str, int] | None

    @classmethod
    def of(cls, name: str, namespaces: NamespaceView) -> "_Namespace":
        return cls(
            namespaces.namespace(name),
            namespaces.namespace_labels(name),
            namespaces.namespace_object(name),
            namespaces.quotas(name),
        )

    def namespace(self, name: str) -> NamespaceFacts:  # noqa: ARG002 - the port's signature
        return self.facts

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:  # noqa: ARG002
        return self.labels

    def namespace_object(self, name: str) -> Mapping[str, object] | None:  # noqa: ARG002
        return self.whole

    def quotas(self, name: str) -> Mapping[str, int] | None:  # noqa: ARG002
        return self.hard


class PolicySteer:
    """Finds the steering of pods by one set of policies (`webhook.reviews.reviewer.Steer`).

    May be called on the event loop and in the lane's thread: it only reads values that other code replaces as a whole.
    On the event loop its time limit is short; a longer evaluation must be repeated in the lane (`TakesLongError`).
    """

    def __init__(
        self, policies: PolicySet, view: Store, clock: Clock = working_time, allowance: Allowance | None = None
    ) -> None:
        """`clock` bounds evaluation, in seconds; `allowance` bounds the time on the event loop."""
        self._allowance = allowance or Allowance()
        self._policies = policies
        matched: tuple[AnyPodRule, ...] = (*policies.conversions, *policies.hints, *policies.templates)
        self._idle = not matched
        self._reads_namespace = any(rule.reads_namespace for rule in matched)
        self._counts = any(True for rule in matched for _ in rule.read("neuron"))
        self.namespaces: NamespaceView = view
        self._knower = DeviceKnower(view, policies.catalogue)
        self._clock = clock
        self._logged: Once[str] = Once()
        self._found: dict[int, Steering] = {}
        self._judging: Sources | None = None

    def __call__(self, request: AdmissionRequest) -> Steering:
        """The settings of the first policies that match.

        Raises:
            msgspec.DecodeError: the pod cannot be decoded; it must not be admitted without policies.
            SteeringRefusedError: a policy with failurePolicy Fail cannot be evaluated.
            TakesLongError: on the event loop, the evaluation takes too long.
        """
        if self._idle:
            return NO_STEERING
        found = self._found.get(id(request))
        return self.find(request, _limit()) if found is None else found

    def find(self, request: AdmissionRequest, time_limit: TimeLimit = REVIEW_LIMIT) -> Steering:
        """The same, within a given time limit."""
        return self._find(self._known(subject_of(request, self.namespaces)), time_limit)

    def look(self) -> None:
        """Refresh the facts of the view. Call it on the event loop, before the lane is used."""
        if self._counts:
            _ = self._knower.base

    def fixed(self, namespace: str, judging: Sources | None = None) -> "PolicySteer":
        """A copy with the current facts of a namespace, for use in another thread.

        With `judging` it is for pods that are judged, not converted: their limits stay, and a record counts only if it
        is verified by these sources.
        """
        self.look()
        steer = copy.copy(self)
        steer._judging = judging  # noqa: SLF001 - its own copy
        steer.namespaces = _Namespace.of(namespace, self.namespaces)
        return steer

    @contextlib.contextmanager
    def knowing(self, request: AdmissionRequest, steering: Steering) -> Iterator[None]:
        """Return `steering` for this request inside the context, without evaluating policies."""
        self._found[id(request)] = steering
        try:
            yield
        finally:
            del self._found[id(request)]

    def of_template(
        self, template: Mapping[str, object], namespace: str, owner: Mapping[str, object] | None = None
    ) -> Steering:
        """The steering of the pods of a pod template; `NO_STEERING` if policies fail or take too long.

        Args:
            owner: as for `created_pod`.
        """
        if self._idle:
            return NO_STEERING
        known = namespace_object(namespace, self.namespaces)
        subject = of_object(created_pod(template, namespace, owner), known)
        try:
            return self._find(self._known(dataclasses.replace(subject, namespace=namespace)), _limit())
        except (SteeringRefusedError, TakesLongError):
            return NO_STEERING

    def _known(self, subject: RequestSubject) -> RequestSubject:
        """The subject with the facts of its namespace and for counting devices that policies read."""
        if self._reads_namespace:
            subject = with_whole_namespace(subject, self.namespaces)
        if not self._counts:
            return subject
        base = self._knower.base if _on_loop() else self._knower.last
        knowledge = knowledge_for(base, self._knower, subject.namespace, named_by(subject.object))
        if self._judging is None:
            knowledge = with_record(knowledge, asked_for(subject.object), strips=True)
        else:
            knowledge = with_record(knowledge, verified(subject.object, knowledge.templates, self._judging))
        return dataclasses.replace(subject, knowledge=knowledge)

    def _find(self, subject: RequestSubject, time_limit: TimeLimit) -> Steering:
        if not time_limit.raises:
            steering, errors = find_steering(self._policies, subject, self._clock, time_limit)
        elif not self._allowance.lasts(subject.namespace):
            raise TakesLongError
        else:
            with self._allowance.spending(subject.namespace):
                limit = self._allowance.limit()
                steering, errors = find_steering(self._policies, subject, self._clock, limit)
        for error in (each.place for each in errors):
            if self._logged.first(error):
                log.warning("policy failed", extra={"error": error})
        return steering


def _limit() -> TimeLimit:
    return ON_LOOP if _on_loop() else REVIEW_LIMIT


def _on_loop() -> bool:
    """Whether the caller runs on the event loop, where other reviews wait for it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_NOTHING: Final[list[Finding]] = []


class ClaimBounds:
    """Checks the claims of pods against locked policies with `bindsClaims`."""

    def __init__(self, steer: PolicySteer, find: FindClaims, lane: Lane, sources: Sources) -> None:
        """`find` reads claims and templates by name; conversion requests from `sources`."""
        self._sources = sources
        self._steer = steer
        self._find = find
        self._lane = lane

    async def check(
        self,
        request: AdmissionRequest,
        claiming: Claiming,
        known: Mapping[str, KnownClaim],
        context: ClaimContext,
        conversion: ConversionContext,
    ) -> list[Finding]:
        """NEU123 and NEU124 about the claims of a pod; NEU803 if the policies cannot be evaluated on it.

        Raises:
            webhook.reviews.worker_threads.LaneError: no answer in time.
        """
        if not claiming.names:
            return _NOTHING
        steer = self._steer.fixed(request.namespace, judging=self._sources)
        try:
            seconds = effort.of_deciding(memoryview(request.object).nbytes)
            steering = await self._lane.run(request.namespace, lambda: steer(request), seconds)
        except SteeringRefusedError as error:
            return [error.finding]
        if not steering.binds_claims:
            return _NOTHING
        unknown: dict[str, dict[str, str]] = {}
        for name, kind, object_name in claiming.names:
            if name not in known or known[name].judgement is None:
                unknown.setdefault(kind, {})[name] = object_name
        specs: dict[str, ClaimSpec] = {}
        for kind, wanted in unknown.items():
            found = await self._find(kind, request.namespace, set(wanted.values()))
            specs |= {name: found[object_name] for name, object_name in wanted.items() if object_name in found}

        def work() -> list[Finding]:
            bounded = for_one_object(context, working_time)
            judged = {name: KnownClaim(judge_claim(spec, bounded)) for name, spec in specs.items()}
            return check_bound(claiming, {**known, **judged}, steering, context, conversion)

        seconds = effort.of_judging([ReadSpec(spec, ()) for spec in specs.values()], 0, context)
        return await self._lane.run(request.namespace, work, seconds)
