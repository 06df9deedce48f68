"""`/validate` with policies: evaluates validating policies, and adds their verdicts to another reviewer's decision."""

import asyncio
import dataclasses
import datetime as dt
import functools
import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import orjson

from conversion.findings.verification import Sources
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision, Outcome, denied, unchanged
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding, warning
from policies.applying.requests import (
    NOTHING_NAMED,
    ClusterLookups,
    DeviceKnower,
    Named,
    bare_subject,
    decoded,
    find_nothing,
    knowledge_for,
    named_by,
    size_of,
    verified,
    with_record,
)
from policies.files.store import PolicyStore, WallClock
from policies.judging.evaluate import TimeLimit, evaluate, unjudged
from policies.judging.rules import PolicySet, ValidatingRule
from policies.judging.subjects import RequestSubject
from policies.judging.verdicts import PolicyOutcome, Verdict, near_expiry, objections
from runtime import tracing
from webhook.reviews import effort
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_requests import (
    Asking,
    Execution,
    FailureLog,
    MatchingPolicies,
    look_up_seconds,
    subject_for,
    unreadable,
)
from webhook.reviews.reviewer import Review, Reviewer, before_waiting, fitting
from webhook.reviews.worker_threads import LaneError, LaneTimeoutError, seconds_left, working_time

log = logging.getLogger(__name__)

_STATUS_CODES: Final = {"Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}
_LONGEST_AUDIT: Final = 10 * 1024
_LONGEST_KEY: Final = 63
_MOST_FINDINGS: Final = 64
_LONGEST_AUDITS: Final = 64 * 1024
"""Characters of all audit annotations of one review."""
_FREE: Final = (("quotas",), ("quotasKnown",))
"""Fields of `neuron` that do not depend on the claims and templates that a pod names."""


class PolicedValidator:
    """Evaluates policies, asks another reviewer, and returns the findings of both in one decision.

    The policies are first. The other reviewer may have to wait for the API server, and if the webhook times out, an
    entry with `failurePolicy: Ignore` admits the object. So a policy's denial is known before, and returned in time.
    """

    def __init__(
        self,
        make: Callable[[PolicySet], Reviewer],
        store: PolicyStore,
        lookups: ClusterLookups,
        excluded_namespaces: frozenset[str],
        metrics: PolicyMetrics,
        now: WallClock,
        execution: Execution | None = None,
    ) -> None:
        """Review.

        Args:
            make: makes the other reviewer, again for every set of policies.
            lookups: where facts of the cluster are read.
            excluded_namespaces: namespaces whose objects no policy is evaluated on.
            now: the time of day, which decides whether exceptions have expired.
            execution: where policies are evaluated.
        """
        execution = execution or Execution()
        self._execution = execution
        self._clock = execution.clock
        self._make = make
        self._store = store
        self._view = lookups.view
        self._find = lookups.find
        self._review = lookups.review
        self._device_class = lookups.device_class
        self._excluded = excluded_namespaces
        self._metrics = metrics
        self._now = now
        self._take(store.current)

    def _take(self, policies: PolicySet) -> None:
        self._policies = policies
        self._inner = self._make(policies)
        self._sources = policies.sources(self._device_class)
        self._knower = DeviceKnower(self._view, policies.catalogue)
        self._counts = {
            rule.name for rule in policies.validating if any(path[:1] not in _FREE for path in rule.read("neuron"))
        }
        self._asking = Asking(policies.validating, self._review)
        self._candidates = MatchingPolicies(policies.validating)
        self._failures = FailureLog()
        self._costs: effort.Costs[tuple[ValidatingRule, ...]] = effort.Costs()

    def must_answer(self, request: AdmissionRequest) -> bool:
        """Whether a policy that fails closed and denies may match: then the request needs an answer."""
        if self._policies is not self._store.current:
            self._take(self._store.current)
        if request.namespace in self._excluded:
            return False
        try:
            candidates = self._candidates.of(request)
        except msgspec.DecodeError:
            return True
        subject = bare_subject(request, self._view)
        verdicts = unjudged(candidates, subject, "not evaluated", self._now(), self._clock)
        return any(verdict.outcome is PolicyOutcome.DENY for verdict in verdicts)

    def review(self, request: AdmissionRequest) -> Review:
        """Answer one review.

        Raises:
            LaneError: no policy denies the object, and the other reviewer did not finish.
        """
        if self._policies is not self._store.current:
            self._take(self._store.current)
        try:
            candidates = self._candidates.of(request)
        except msgspec.DecodeError as error:
            return _answered(denied("unreadable", unreadable(request, error)))
        if not candidates or request.namespace in self._excluded:
            return self._inner.review(request)
        return self._review_with(candidates, request)

    async def _review_with(self, candidates: tuple[ValidatingRule, ...], request: AdmissionRequest) -> Decision:
        await before_waiting()
        now = self._now()
        try:
            with tracing.span("policies"):
                verdicts = await self._judge(request, candidates, now)
        except msgspec.DecodeError as error:
            answer = denied("unreadable", unreadable(request, error))
            decision = await self._ask(request, answer)
            return decision if decision.errors else answer
        self._metrics.judged(verdicts)
        self._failures.log((each.rule.name, error.place) for each in verdicts for error in each.errors)
        refused = any(verdict.outcome is PolicyOutcome.DENY for verdict in verdicts)
        return merged(await self._ask(request, unchanged("late") if refused else None), verdicts, now)

    async def _ask(self, request: AdmissionRequest, otherwise: Decision | None) -> Decision:
        """The other reviewer's decision; if it fails or is late, `otherwise`, and without that a LaneError."""
        try:
            async with asyncio.timeout(max(0.0, seconds_left())):
                return await self._inner.review(request)
        except (TimeoutError, LaneError) as error:
            if otherwise is not None:
                return otherwise
            raise LaneTimeoutError("this decision takes longer than its caller waits") from error
        except Exception as error:
            if otherwise is None:
                raise
            log.error("review failed", extra={"uid": request.uid, "error": type(error).__name__})  # noqa: TRY400
            return otherwise

    async def _judge(
        self, request: AdmissionRequest, candidates: tuple[ValidatingRule, ...], now: dt.datetime
    ) -> tuple[Verdict, ...]:
        subject = await subject_for(candidates, request, self._view, self._knower.base)
        size = size_of(request)
        try:
            read = functools.partial(_read, subject, request)
            known, named = await self._execution.read(request.namespace, size, read)
            if named is not NOTHING_NAMED:
                found: dict[str, Mapping[str, ClaimSpec]] = {}
                if any(rule.name in self._counts for rule in candidates):
                    found = await self._look_up(known.namespace, named)
                knowledge = knowledge_for(known.knowledge, self._knower, known.namespace, named, found)
                known = dataclasses.replace(known, knowledge=knowledge)
            known, answers = self._asking.prepared(candidates, known)
            return await answers.complete(lambda: self._evaluated(candidates, known, now, size))
        except LaneError as error:
            return unjudged(candidates, subject, f"not evaluated: {error}; try again later", now, self._clock)

    async def _evaluated(
        self, candidates: tuple[ValidatingRule, ...], subject: RequestSubject, now: dt.datetime, size: int
    ) -> tuple[Verdict, ...]:
        """Verdicts, found on the event loop or in the lane. Raises LaneError, UnansweredError."""
        in_lane, costs = False, self._costs

        def work(limit: TimeLimit) -> tuple[Verdict, ...]:
            nonlocal in_lane
            in_lane = not limit.raises
            clock = working_time if in_lane and self._clock is time.perf_counter else self._clock
            return evaluate(candidates, _with_record(subject, self._sources), now, clock, time_limit=limit)

        verdicts = await self._execution.run(
            subject.namespace,
            size,
            work,
            lambda: max(costs.least(candidates, size, effort.of_deciding(size)), effort.of_reading(size)),
            lambda: costs.expected(candidates, size, 0.0),
        )
        if in_lane:
            costs.took(candidates, size, sum(verdict.seconds for verdict in verdicts))
        return verdicts

    async def _look_up(self, namespace: str, named: Named) -> dict[str, Mapping[str, ClaimSpec]]:
        """Read from the API server what the caches do not have. After the time-out it counts as not known."""
        known = self._knower.templates(namespace, named.templates)
        wanted = {
            "ResourceClaimTemplate": [name for name in named.templates if name not in known],
            "ResourceClaim": list(named.claims),
        }
        missing = {kind: names for kind, names in wanted.items() if names}
        if not missing or self._find is find_nothing:
            return {}
        try:
            async with asyncio.timeout(look_up_seconds()):
                found = await asyncio.gather(*(self._find(kind, namespace, names) for kind, names in missing.items()))
        except TimeoutError:
            return {}
        return dict(zip(missing, found, strict=True))


async def _answered(decision: Decision) -> Decision:
    return decision


def _read(subject: RequestSubject, request: AdmissionRequest) -> tuple[RequestSubject, Named]:
    known = decoded(subject, request)
    data = known.object if known.object is not None else known.old_object
    return known, named_by(data, known.group, known.kind)


def _with_record(subject: RequestSubject, sources: Sources) -> RequestSubject:
    """The subject with the record of its conversion if that is verified. Pure."""
    if subject.kind != "Pod" or subject.group:
        return subject
    pod = subject.object if subject.object is not None else subject.old_object
    found = verified(pod, subject.knowledge.templates, sources, dry_run=subject.dry_run)
    knowledge = with_record(subject.knowledge, found)
    return subject if knowledge is subject.knowledge else dataclasses.replace(subject, knowledge=knowledge)


# --- decisions ----------------------------------------------------------------------------------------------


def merged(decision: Decision, verdicts: Iterable[Verdict], now: dt.datetime) -> Decision:
    """A decision with the verdicts added. If it was denied already, it keeps its status code and reason."""
    errors, warnings, audit = list(decision.errors), list(decision.warnings), dict(decision.audit)
    code, reason = decision.status_code, decision.status_reason
    failures: list[dict[str, object]] = []
    room = _LONGEST_AUDITS
    for verdict in verdicts:
        for key, text in verdict.audit.items():
            kept = text[: min(_LONGEST_AUDIT, room)]
            room -= len(kept)
            audit[_audit_key(f"{verdict.rule.name}.{key}")] = kept
        if not verdict.violations:
            if verdict.unfinished:  # with failurePolicy Fail, it has a violation
                why = f"{verdict.unfinished}. failurePolicy is Ignore: the object is admitted."
                warnings += fitting(warning("NEU803", "", f"policy '{verdict.rule.name}': {why}"))
            continue
        if verdict.exemption is not None:
            warnings += itertools.chain.from_iterable(map(fitting, near_expiry(verdict, now)))
            audit[_audit_key(f"{verdict.rule.name}.exception")] = verdict.exemption.name
            continue
        actions = [action for binding in verdict.bindings for action in binding.actions]
        if "Deny" in actions:
            if not errors:
                reason = verdict.violations[0].reason
                code = _STATUS_CODES[reason]
            errors += objections(verdict)
        if "Warn" in actions:
            warnings += itertools.chain.from_iterable(map(fitting, objections(verdict, PolicyOutcome.WARN)))
        if "Audit" in actions:
            failures += [{"policy": verdict.rule.name, "message": each.message} for each in verdict.violations]
    errors, warnings = _most(errors), _most(warnings)
    if failures:
        audit["validation-failure"] = orjson.dumps(failures).decode()[:_LONGEST_AUDIT]
    if (len(errors), len(warnings), audit) == (len(decision.errors), len(decision.warnings), decision.audit):
        return decision
    refused = errors and not decision.errors
    return dataclasses.replace(
        decision,
        outcome=Outcome.DENIED if errors else decision.outcome,
        reason="policy" if refused else decision.reason,
        errors=tuple(errors),
        warnings=tuple(warnings),
        status_code=code,
        status_reason=reason,
        audit=audit,
    )


def _most(findings: list[Finding]) -> list[Finding]:
    """The first findings, and the number of those that are left out."""
    left_out = len(findings) - _MOST_FINDINGS
    if left_out <= 0:
        return findings
    rest = dataclasses.replace(findings[-1], message=f"{left_out} more findings are left out.", fix="")
    return [*findings[:_MOST_FINDINGS], rest]


def _audit_key(key: str) -> str:
    """A key cut to 63 characters, the limit of the API server."""
    if len(key) <= _LONGEST_KEY:
        return key
    return f"{key[: _LONGEST_KEY - 9]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
