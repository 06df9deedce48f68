"""Mutating policies around conversion: runs the steps of `policies.applying.changes` for a review."""

import functools
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from msgspec import structs

from cluster.answers import ServerView
from conversion.objects.wire import ABSENT, AdmissionRequest
from conversion.patches.decision import Decision, denied
from policies.applying import changes
from policies.applying.knowledge import ReviewAccess, review_nothing
from policies.applying.subjects import decoded, size_of
from policies.judging.mutations import Mutated, Mutating
from policies.judging.rules import MutatingRule
from runtime import tracing
from runtime.retries import Once
from webhook.reviews import effort
from webhook.reviews.access import Answers, Asking
from webhook.reviews.policy_allowance import Execution
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_requests import MatchingPolicies, subject_for, unreadable
from webhook.reviews.reviewer import before_waiting

log = logging.getLogger(__name__)

Convert = Callable[[AdmissionRequest], Awaitable[Decision]]
"""Conversion, which decides about a request."""


class PolicyChanges:
    """Applies the mutating policies of one set around conversion."""

    def __init__(
        self,
        rules: Iterable[MutatingRule],
        view: ServerView,
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
        self._logged: Once[tuple[str, str]] = Once()

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
                mutating, answers = await self._prepared(request, candidates)
        except msgspec.DecodeError as error:
            return denied("unreadable", unreadable(request, error))
        decision = await self._decided(request, mutating, answers, convert)
        self._noted(mutating.results)
        return decision

    async def _decided(
        self, request: AdmissionRequest, mutating: Mutating, answers: Answers, convert: Convert
    ) -> Decision:
        steps, size = changes.steps(mutating), size_of(request)
        estimate = functools.partial(effort.of_deciding, size)
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            if isinstance(step, changes.ApplyPolicies):
                work = functools.partial(self._execution.run, request.namespace, size, step.work, estimate)
                answer = await answers.complete(work)
            else:
                answer = await convert(_with_object(request, step.data) if step.changed else request)

    async def _prepared(
        self, request: AdmissionRequest, candidates: tuple[MutatingRule, ...]
    ) -> tuple[Mutating, Answers]:
        """The policies with the decoded request, and its answers about permissions.

        Raises:
            msgspec.DecodeError: the objects cannot be decoded.
        """
        subject = await subject_for(candidates, request, self._view)
        read = functools.partial(decoded, subject, request)
        known = await self._execution.read(request.namespace, size_of(request), read)
        known, answers = self._asking.prepared(candidates, known)
        return Mutating(candidates, known, self._execution.clock), answers

    def _noted(self, results: Iterable[Mutated]) -> None:
        """Count the results, and log each error once for every set of policies."""
        for each in results:
            if self._metrics is not None:
                self._metrics.mutated(each)
            for failure in each.failures:
                key = (each.rule.name, failure.place)
                if self._logged.first(key):
                    log.warning("policy failed", extra={"policy": each.rule.name, "error": key[1]})


def _with_object(request: AdmissionRequest, data: Any) -> AdmissionRequest:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    return structs.replace(request, object=msgspec.Raw(text))
