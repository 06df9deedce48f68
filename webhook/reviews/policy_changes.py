"""Changes of mutating policies around conversion: before it, and after it where `reinvocationPolicy` asks.

The steps of one review:

1. The policies, by name, on the object as it was sent.
2. Conversion of the object that they made.
3. The policies with `reinvocationPolicy: IfNeeded`, on the converted object, if a policy or conversion changed it.
4. Conversion again, if step 3 changed something.
"""

import dataclasses
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import structs

from cluster.answers import ServerView
from conversion.objects.wire import ABSENT, AdmissionRequest
from conversion.patches.decision import Decision, Operation, Outcome, denied
from conversion.patches.operations import MOST_BYTES, size_of
from neuron.findings import Finding
from policies.applying.subjects import decoded
from policies.applying.subjects import size_of as size_of_request
from policies.judging.evaluate import REVIEW_SECONDS, TakesLongError, TimeLimit
from policies.judging.mutations import Mutated, Mutating
from policies.judging.rules import MutatingRule
from policies.patching.differences import difference
from policies.patching.json_patch import PatchOperation, applied
from runtime import tracing
from runtime.once import Once
from webhook.reviews import effort
from webhook.reviews.policy_allowance import Execution, run_with_retry
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_requests import MatchingPolicies, subject_for, unreadable
from webhook.reviews.reviewer import before_waiting
from webhook.reviews.worker_threads import LARGE_OBJECT, seconds_left

log = logging.getLogger(__name__)

Convert = Callable[[AdmissionRequest], Awaitable[Decision]]
"""Conversion, which decides about a request."""

_AUDIT: Final = "changed-by"
_LONGEST_AUDIT: Final = 1024
_FIX: Final = (
    "Change the object so that the policy can be applied, or ask the cluster's admins to mend the policy, or to set"
    " failurePolicy: Ignore."
)


class PolicyChanges:
    """Applies the mutating policies of one set around conversion."""

    def __init__(
        self,
        rules: Iterable[MutatingRule],
        view: ServerView,
        excluded_namespaces: frozenset[str],
        execution: Execution,
        metrics: PolicyMetrics | None = None,
    ) -> None:
        self._candidates = MatchingPolicies(rules)
        self._view = view
        self._excluded = excluded_namespaces
        self._lane = execution.lane
        self._clock = execution.clock
        self._allowance = execution.allowance
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
                mutating = await self._prepared(request, candidates)
        except msgspec.DecodeError as error:
            return denied("unreadable", unreadable(request, error))
        decision = await self._decided(request, mutating, convert)
        self._noted(mutating.results)
        return decision

    async def _decided(self, request: AdmissionRequest, mutating: Mutating, convert: Convert) -> Decision:
        sent = mutating.subject.object
        data = await self._run(request, mutating.first)
        refused = _refusal(mutating.results)
        if refused is not None:
            return refused
        patch = difference(sent, data)
        decision = await convert(_with_object(request, data) if patch else request)
        if decision.errors:
            return decision
        if mutating.asks_again:
            converted = _patched(data, decision.patch)
            work = functools.partial(mutating.again, converted, changed=bool(decision.patch))
            again = await self._run(request, work)
            refused = _refusal(mutating.results)
            if refused is not None:
                return refused
            more = difference(converted, again)
            if more:
                decision = _joined(decision, more, await convert(_with_object(request, again)))
        return _changed(decision, patch, mutating.results)

    async def _prepared(self, request: AdmissionRequest, candidates: tuple[MutatingRule, ...]) -> Mutating:
        """The policies and the decoded request.

        Raises:
            msgspec.DecodeError: the objects cannot be decoded.
        """
        subject = await subject_for(candidates, request, self._view)
        size = size_of_request(request)
        read = functools.partial(decoded, subject, request)
        known = (
            read() if size <= LARGE_OBJECT else await self._lane.run(request.namespace, read, effort.of_reading(size))
        )
        return Mutating(candidates, known, self._clock)

    async def _run(self, request: AdmissionRequest, work: Callable[[TimeLimit], Any]) -> Any:
        """The object after the policies: on the event loop if that takes milliseconds, else in the lane."""
        namespace, size = request.namespace, size_of_request(request)
        small = size <= LARGE_OBJECT
        if small and self._allowance.lasts(namespace):
            try:
                with self._allowance.spending(namespace):
                    return work(self._allowance.limit())
            except TakesLongError:
                pass
        limit = TimeLimit(min(REVIEW_SECONDS, max(0.0, seconds_left())))
        run = functools.partial(run_with_retry, self._lane) if small else self._lane.run
        return await run(namespace, functools.partial(work, limit), effort.of_deciding(size))

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


def _patched(data: Any, patch: Iterable[Operation]) -> Any:
    found = [PatchOperation(each["op"], each["path"], value=each.get("value")) for each in patch]
    return applied(data, found)


def _refusal(results: Iterable[Mutated]) -> Decision | None:
    """The denial by policies that fail and have failurePolicy Fail; None if there is none."""
    findings = [
        Finding("NEU806", "", f"policy '{each.rule.name}' cannot change the object: {failure}.", _FIX)
        for each in results
        if each.denies
        for failure in each.failures
    ]
    return denied("policy", *findings) if findings else None


def _joined(first: Decision, between: tuple[Operation, ...], second: Decision) -> Decision:
    """Two decisions of conversion, with the operations of policies between them."""
    if second.errors:
        return second
    warnings = tuple(dict.fromkeys((*first.warnings, *second.warnings)))
    templates = tuple({each.name: each for each in (*first.templates, *second.templates)}.values())
    patch = (*first.patch, *between, *second.patch)
    return dataclasses.replace(first, patch=patch, templates=templates, warnings=warnings, patch_size=0)


def _changed(decision: Decision, patch: tuple[Operation, ...], results: Iterable[Mutated]) -> Decision:
    """The decision with the operations of policies before its own, and their names for the audit log."""
    names = dict.fromkeys(each.rule.name for each in results if each.after is not each.before)
    if decision.errors or not names:
        return decision
    whole = (*patch, *decision.patch)
    size = size_of(whole)
    if size > MOST_BYTES:
        message = f"policies {', '.join(names)} change too much: with conversion, the patch has {size} bytes"
        fix = f"The API server takes {MOST_BYTES} bytes. Ask the cluster's admins to change less, or in several fields."
        return denied("policy", Finding("NEU806", "", f"{message}.", fix))
    unchanged = decision.outcome is Outcome.UNCHANGED
    return dataclasses.replace(
        decision,
        outcome=Outcome.MUTATED if unchanged else decision.outcome,
        reason="policy" if unchanged else decision.reason,
        patch=whole,
        patch_size=0,
        audit={**decision.audit, _AUDIT: ",".join(names)[:_LONGEST_AUDIT]},
    )
