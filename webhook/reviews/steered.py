"""`/mutate` with policies: each set of policies gets a new `Mutator`, and mutating policies run around conversion.

`PolicyChanges` runs the steps of `policies.applying.steering`.
"""

import functools
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import structs

from checks.claims.judging import ClaimContext, ReadSpec
from cluster.store import Store
from conversion.asks.conversion_context import ConversionOptions, conversion_context
from conversion.claims.mapped_templates import Need
from conversion.findings.named_templates import differs, judged, missing, unchecked
from conversion.objects.wire import ABSENT, AdmissionRequest
from conversion.patches.decision import Decision, denied
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding
from neuron.hardware.instances import Catalogue
from policies.applying import steering
from policies.applying.requests import ReviewAccess, decoded, review_nothing, size_of
from policies.applying.steering import SteeringRefusedError, finder
from policies.files.store import PolicyStore
from policies.judging.evaluate import TakesLongError
from policies.judging.mutations import Mutating
from policies.judging.rules import MutatingRule, PolicySet
from policies.judging.selectors import claim_context
from runtime import tracing
from runtime.remembered import Remembered
from webhook.reviews import effort
from webhook.reviews.mutate import Mutator, QueueNotices
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_requests import (
    ON_LOOP,
    Allowance,
    Answers,
    Asking,
    Execution,
    FailureLog,
    MatchingPolicies,
    run_with_retry,
    subject_for,
    unreadable,
)
from webhook.reviews.policy_steering import PolicySteer
from webhook.reviews.reviewer import FoundTemplate, TemplateStore, before_waiting
from webhook.reviews.worker_threads import Inline, Lane, working_time


class SteeredMutator:
    """`/mutate` with policies: each new set of policies gets a new `Mutator` with an empty cache."""

    def __init__(
        self,
        options: ConversionOptions,
        store: PolicyStore,
        view: Store,
        templates: TemplateStore,
        lane: Lane | None = None,
        allowance: Allowance | None = None,
        metrics: PolicyMetrics | None = None,
        review: ReviewAccess = review_nothing,
    ) -> None:
        """Arguments as of `Mutator`; `allowance` limits the time of policies on the event loop.

        `review` looks up permissions.
        """
        self._review = review
        self._metrics = metrics
        self._allowance = allowance or Allowance()
        self._lane = lane or Inline()
        self._options = options
        self._store = store
        self._view = view
        self._templates = templates
        self._queues = QueueNotices()
        self._take(store.current)

    def _take(self, policies: PolicySet) -> None:
        self._policies = policies
        steer = PolicySteer(policies, self._view, allowance=self._allowance)
        options, catalogue = self._options, policies.catalogue
        checks = TemplateChecks(options, catalogue, self._view, self._templates, self._lane).find
        mutator = Mutator(
            options,
            catalogue,
            self._view,
            self._templates,
            steer,
            lane=self._lane,
            checks=checks,
            queues=self._queues,
            sources=policies.sources(options.device_class),
            named=finder(policies),
        )
        self._parts = (steer, mutator)
        self._changes: PolicyChanges | None = None
        if policies.mutating:
            execution = Execution(lane=self._lane, allowance=self._allowance)
            excluded = options.excluded_namespaces
            self._changes = PolicyChanges(
                policies.mutating, self._view, excluded, execution, self._metrics, self._review
            )

    async def review(self, request: AdmissionRequest, within: tuple[PolicySteer, Mutator] | None = None) -> Decision:
        """Answer one review with one set of policies from start to end.

        `within` are the parts of the set for conversion alone, between the changes of mutating policies.

        Raises:
            LaneError: no decision within the caller's time-out.
        """
        if within is None:
            if self._policies is not self._store.current:
                self._take(self._store.current)
            within = self._parts
            if self._changes is not None:
                return await self._changes.review(request, functools.partial(self.review, within=within))
        steer, mutator = within
        steer.look()
        try:
            try:
                return await mutator.review(request)
            except TakesLongError:
                find = functools.partial(steer.find, request)
                steering = await run_with_retry(self._lane, request.namespace, find, 2 * ON_LOOP.seconds)
                with steer.knowing(request, steering):
                    return await mutator.review(request)
        except SteeringRefusedError as error:
            return denied("policy", error.finding)


Convert = Callable[[AdmissionRequest], Awaitable[Decision]]
"""Conversion, which decides about a request."""


class PolicyChanges:
    """Applies the mutating policies of one set around conversion."""

    def __init__(
        self,
        rules: Iterable[MutatingRule],
        view: Store,
        excluded_namespaces: frozenset[str],
        execution: Execution,
        metrics: PolicyMetrics | None = None,
        review: ReviewAccess = review_nothing,
    ) -> None:
        """`review` looks up permissions."""
        rules = tuple(rules)
        self._asking = Asking(rules, review)
        self._candidates = MatchingPolicies(rules)
        self._view = view
        self._excluded = excluded_namespaces
        self._execution = execution
        self._metrics = metrics
        self._failures = FailureLog()

    async def review(self, request: AdmissionRequest, convert: Convert) -> Decision:
        """Answer one review.

        Raises:
            LaneError: no decision within the caller's time-out.
        """
        if request.object == ABSENT or request.operation == "DELETE" or request.namespace in self._excluded:
            return await convert(request)
        try:
            candidates = self._candidates.of(request)
            if not candidates:
                return await convert(request)
            await before_waiting()
            with tracing.span("policies"):
                subject = await subject_for(candidates, request, self._view)
                read = functools.partial(decoded, subject, request)
                known = await self._execution.read(request.namespace, size_of(request), read)
        except msgspec.DecodeError as error:
            return denied("unreadable", unreadable(request, error))
        known, answers = self._asking.prepared(candidates, known)
        mutating = Mutating(candidates, known, self._execution.clock)
        decision = await self._decided(request, mutating, answers, convert)
        if self._metrics is not None:
            for each in mutating.results:
                self._metrics.mutated(each)
        self._failures.log((each.rule.name, one.place) for each in mutating.results for one in each.failures)
        return decision

    async def _decided(
        self, request: AdmissionRequest, mutating: Mutating, answers: Answers, convert: Convert
    ) -> Decision:
        steps, size = steering.steps(mutating), size_of(request)
        estimate = functools.partial(effort.of_deciding, size)
        answer: Any = None

        def advanced() -> steering.ApplyPolicies | steering.Convert | Decision:
            # It compares and patches whole objects, and reads no clock: the lane does not begin it again.
            try:
                return steps.send(answer)
            except StopIteration as end:
                decision: Decision = end.value
                return decision

        while True:
            step = await self._execution.read(request.namespace, size, advanced)
            if isinstance(step, Decision):
                return step
            if isinstance(step, steering.ApplyPolicies):
                work = functools.partial(self._execution.run, request.namespace, size, step.work, estimate)
                answer = await answers.complete(work)
            elif step.changed:
                written = functools.partial(_with_object, request, step.data)
                answer = await convert(await self._execution.read(request.namespace, size, written))
            else:
                answer = await convert(request)


def _with_object(request: AdmissionRequest, data: Any) -> AdmissionRequest:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    return structs.replace(request, object=msgspec.Raw(text))


_REMEMBERED: Final = 1024 * 1024
"""Bytes of cached answers."""


class TemplateChecks:
    """Checks templates of operators, and keeps the answers until a template or the cluster's facts change."""

    def __init__(
        self,
        options: ConversionOptions,
        catalogue: Catalogue,
        cluster: Store,
        templates: TemplateStore,
        lane: Lane | None = None,
    ) -> None:
        self._options = options
        self._catalogue = catalogue
        self._cluster = cluster
        self._templates = templates
        self._lane = lane or Inline()
        self._context: ClaimContext | None = None
        self._seen = (-1, -1)
        self._answers: Remembered[tuple[str, str, int], tuple[Need, ClaimSpec, Finding | None]] = Remembered(
            _REMEMBERED
        )

    async def find(self, namespace: str, need: Need) -> Finding | None:
        """An error if the template does not exist or does not serve the pod; NEU230 if nothing is known of it.

        Raises:
            TemplateUnavailableError: the API server does not answer.
            webhook.reviews.worker_threads.LaneError: no answer in time.
        """
        found = FoundTemplate(need.mapped.spec)
        if need.mapped.inline is None:
            found = await self._templates.read(namespace, need.mapped.name)
        if not found.known:
            return unchecked(need, namespace, "no cluster is connected")
        spec = found.spec
        if found.missing:
            return missing(need, namespace, elsewhere=found.elsewhere)
        if spec is None:
            return differs(need, namespace, "it cannot be read")
        context = self._current()
        key = (namespace, need.mapped.name, id(need))
        known = self._answers.get(key)
        if known is not None and known[0] is need and known[1] is spec:
            return known[2]
        seconds = effort.of_judging([ReadSpec(spec, ())], 0, context)
        answer = await self._lane.run(namespace, lambda: judged(need, namespace, spec, context, working_time), seconds)
        if context is self._context:
            self._answers.put(key, (need, spec, answer), 0)
        return answer

    def _current(self) -> ClaimContext:
        seen = (self._cluster.version, self._cluster.claim_version)
        if self._context is None or seen != self._seen:
            self._seen = seen
            self._answers.clear()
            known = conversion_context(self._options, self._catalogue, self._cluster)
            self._context = claim_context(self._options, known.catalogue, self._cluster)
        return self._context
