"""`/validate` with policies: what the cluster's admins wrote, on top of what is checked anyway."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import orjson

from kubecel.budget import Clock
from neuron.claim_specs import ClaimSpec
from neuron.findings import Finding, warning
from policies.files.store import PolicyStore, WallClock
from policies.judging import matching
from policies.judging.evaluate import REVIEW_SECONDS, PolicyOutcome, TakesLongError, Verdict, evaluate, unjudged
from policies.judging.failures import place
from policies.judging.policy_set import PolicySet
from policies.judging.rules import ValidatingRule
from policies.judging.subjects import Subject
from webhook.decisions.decision import Decision, Outcome, denied, unchanged
from webhook.decisions.wire import AdmissionRequest
from webhook.reviews.lane import LARGE_OBJECT, Inline, Lane, LaneError, LaneTimeoutError, seconds_left
from webhook.reviews.messages import fitting
from webhook.reviews.policy_allowance import ON_LOOP, Allowance, in_turn
from webhook.reviews.policy_knowledge import (
    NOTHING_NAMED,
    DeviceKnower,
    FindClaims,
    Named,
    PolicyView,
    find_nothing,
    knowledge_for,
    named_by,
    verified,
    with_record,
)
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_subjects import bare_subject, decoded, placed, size_of
from webhook.reviews.policy_verdicts import near_expiry, objections
from webhook.reviews.reviewer import Reviewer

log = logging.getLogger(__name__)

_STATUS_CODES: Final = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}
_LONGEST_AUDIT: Final = 10 * 1024
_LONGEST_KEY: Final = 63
_KINDS_REMEMBERED: Final = 512
_ERRORS_LOGGED: Final = 100
_LONGEST_KIND: Final = 1024
_MOST_FINDINGS: Final = 64
_LONGEST_AUDITS: Final = 64 * 1024
"""Characters of all audit annotations of one review."""
_FREE: Final = (("quotas",), ("quotasKnown",))
"""Fields of `neuron` that do not depend on what a pod names."""
_LOOK_UP: Final = 0.4
"""Part of the time that is left for a review that may go into look-ups, ..."""
_LONGEST_LOOK_UP: Final = 1.0
"""... and the most, in seconds."""


class PolicedReviewer:
    """Decides by policies, and lets another reviewer decide; both are told, all at once.

    The policies come first. The other reviewer may have to wait for the API server, and a time-out of the webhook is an
    admission where its entry says `failurePolicy: Ignore`: what a policy denies is decided before, and said in time.
    """

    def __init__(
        self,
        make: Callable[[PolicySet], Reviewer],
        store: PolicyStore,
        view: PolicyView,
        excluded_namespaces: frozenset[str],
        metrics: PolicyMetrics,
        now: WallClock,
        clock: Clock = time.perf_counter,
        *,
        lane: Lane | None = None,
        find: FindClaims = find_nothing,
        allowance: Allowance | None = None,
    ) -> None:
        """Review.

        Args:
            make: makes the other reviewer, anew for every set of policies.
            store: the policies in force.
            view: what is known of the cluster.
            excluded_namespaces: namespaces whose objects are left alone.
            metrics: counts verdicts.
            now: by which exceptions expire.
            clock: bounds and measures evaluation, in seconds.
            lane: where long evaluations run.
            find: asks the API server for claims and templates that the view does not know.
            allowance: of time for policies on the event loop.
        """
        self._allowance = allowance or Allowance()
        self._lane = lane or Inline()
        self._make = make
        self._store = store
        self._view = view
        self._excluded = excluded_namespaces
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._find = find
        self._take(store.current)

    def _take(self, policies: PolicySet) -> None:
        """Everything that is derived of a set, at once."""
        self._policies = policies
        self._inner = self._make(policies)
        self._knower = DeviceKnower(self._view, policies.catalogue)
        self._counts = {rule.name for rule in policies.validating if _counts_devices(rule)}
        self._candidates: dict[tuple[object, ...], tuple[ValidatingRule, ...]] = {}
        self._logged: set[tuple[str, str]] = set()

    def must_answer(self, request: AdmissionRequest) -> bool:
        """Whether a policy that fails closed and denies may be about the object: no answer could let it pass."""
        if self._policies is not self._store.current:
            self._take(self._store.current)
        if request.namespace in self._excluded:
            return False
        try:
            candidates = self._candidates_for(request)
        except msgspec.DecodeError:
            return True
        subject = placed(bare_subject(request), self._view)
        verdicts = unjudged(candidates, subject, "not evaluated", self._now(), self._clock)
        return any(verdict.outcome is PolicyOutcome.DENY for verdict in verdicts)

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review.

        Raises:
            LaneError: no policy denies the object, and the other reviewer did not finish.
        """
        if self._policies is not self._store.current:
            self._take(self._store.current)
        try:
            candidates = self._candidates_for(request)
        except msgspec.DecodeError as error:
            return denied("unreadable", _unreadable(request, error))
        if not candidates or request.namespace in self._excluded:
            return await self._inner.review(request)
        now = self._now()
        try:
            verdicts = await self._judge(request, candidates, now)
        except msgspec.DecodeError as error:
            unreadable = denied("unreadable", _unreadable(request, error))
            decision = await self._ask(request, unreadable)
            return decision if decision.errors else unreadable
        self._metrics.judged(verdicts)
        self._log_errors(verdicts)
        refused = any(verdict.outcome is PolicyOutcome.DENY for verdict in verdicts)
        return merged(await self._ask(request, unchanged("late") if refused else None), verdicts, now)

    async def _ask(self, request: AdmissionRequest, otherwise: Decision | None) -> Decision:
        """What the other reviewer decides, or else something that is decided already.

        Raises:
            LaneError: it did not finish in time, and nothing is decided.
        """
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
        """What policies say: on the event loop where that is a matter of milliseconds, and else in the lane.

        Raises:
            msgspec.DecodeError: the objects cannot be decoded.
        """
        subject = placed(bare_subject(request), self._view)
        small = size_of(request) <= LARGE_OBJECT
        try:
            read = functools.partial(_read, subject, request)
            known, named = read() if small else await self._lane.run(request.namespace, read)
            known = await self._informed(known, named, candidates)
            run = self._lane.run
            if small:
                verdicts = self._at_once(candidates, known, now)
                if verdicts is not None:
                    return verdicts
                run = functools.partial(in_turn, self._lane)
            until = self._clock() + seconds_left()
            work = functools.partial(_evaluate, candidates, known, now, self._clock, until)
            return await run(request.namespace, work)
        except LaneError as error:
            return unjudged(candidates, subject, f"not evaluated: {error}; try again later", now, self._clock)

    def _at_once(
        self, candidates: tuple[ValidatingRule, ...], subject: Subject, now: dt.datetime
    ) -> tuple[Verdict, ...] | None:
        """What policies say, found on the event loop; None where that takes long, or its namespace has had its time."""
        if not self._allowance.lasts(subject.namespace):
            return None
        with self._allowance.spending(subject.namespace), contextlib.suppress(TakesLongError):
            return evaluate(candidates, _believed(subject), now, self._clock, seconds=ON_LOOP, impatient=True)
        return None

    async def _informed(self, subject: Subject, named: Named, candidates: Iterable[ValidatingRule]) -> Subject:
        """The subject with what is known of classes, and of the claims and templates that a pod names."""
        if named is NOTHING_NAMED:
            return dataclasses.replace(subject, knowledge=self._knower.base)
        told: dict[str, Mapping[str, ClaimSpec]] = {}
        if any(rule.name in self._counts for rule in candidates):
            told = await self._look_up(subject.namespace, named)
        knowledge = knowledge_for(self._knower.base, self._knower, subject.namespace, named, told)
        return dataclasses.replace(subject, knowledge=knowledge)

    async def _look_up(self, namespace: str, named: Named) -> dict[str, Mapping[str, ClaimSpec]]:
        """Ask the API server for what the view does not know. What it does not tell in time is not known."""
        known = self._knower.templates(namespace, named.templates)
        wanted = {
            "ResourceClaimTemplate": [name for name in named.templates if name not in known],
            "ResourceClaim": list(named.claims),
        }
        asked = {kind: names for kind, names in wanted.items() if names}
        if not asked or self._find is find_nothing:
            return {}
        try:
            async with asyncio.timeout(min(_LONGEST_LOOK_UP, max(0.0, seconds_left() * _LOOK_UP))):
                told = await asyncio.gather(*(self._find(kind, namespace, names) for kind, names in asked.items()))
        except TimeoutError:
            return {}
        return dict(zip(asked, told, strict=True))

    def _candidates_for(self, request: AdmissionRequest) -> tuple[ValidatingRule, ...]:
        """Policies that can be about such a request; nearly always known already, nearly always none.

        Raises:
            msgspec.DecodeError: `resource` nests too deeply.
        """
        kind = request.kind
        key = (kind, bytes(request.resource), request.subResource, request.operation, bool(request.namespace))
        found = self._candidates.get(key)
        if found is None:
            bare = dataclasses.replace(bare_subject(request), namespace="any" if request.namespace else "")
            found = tuple(rule for rule in self._policies.validating if matching.could_match(rule.match, bare))
            if len(self._candidates) < _KINDS_REMEMBERED and _length(key) <= _LONGEST_KIND:
                self._candidates[key] = found
        return found

    def _log_errors(self, verdicts: Iterable[Verdict]) -> None:
        """Each error once for every set of policies: an expression that fails, fails on every replica."""
        for verdict in verdicts:
            for error in verdict.errors:
                key = (verdict.rule.name, place(error))
                if key not in self._logged and len(self._logged) < _ERRORS_LOGGED:
                    self._logged.add(key)
                    log.warning("policy failed", extra={"policy": verdict.rule.name, "error": key[1]})


def _length(key: tuple[object, ...]) -> int:
    """Characters of a request's kind, which a caller chooses."""
    kind, *others = key
    texts = [getattr(kind, field) for field in ("kind", "group", "version")] + others
    return sum(len(text) for text in texts if isinstance(text, str | bytes))


def _read(subject: Subject, request: AdmissionRequest) -> tuple[Subject, Named]:
    """A review decoded, and what its pod names. Pure."""
    known = decoded(subject, request)
    is_pod = known.kind == "Pod" and known.group == ""
    return known, named_by(known.object if known.object is not None else known.old_object) if is_pod else NOTHING_NAMED


def _evaluate(
    candidates: tuple[ValidatingRule, ...], subject: Subject, now: dt.datetime, clock: Clock, until: float
) -> tuple[Verdict, ...]:
    """What policies say, by the time `until`. Pure; runs in the lane, where it may have waited."""
    return evaluate(candidates, _believed(subject), now, clock, seconds=min(REVIEW_SECONDS, max(0.0, until - clock())))


def _believed(subject: Subject) -> Subject:
    """The subject with the record of its conversion, where that is genuine. Pure."""
    if subject.kind != "Pod" or subject.group:
        return subject
    pod = subject.object if subject.object is not None else subject.old_object
    knowledge = with_record(subject.knowledge, verified(pod, subject.knowledge.templates, dry_run=subject.dry_run))
    return subject if knowledge is subject.knowledge else dataclasses.replace(subject, knowledge=knowledge)


def _counts_devices(rule: ValidatingRule) -> bool:
    """Whether a policy reads what an object holds, so that what a pod names has to be known."""
    programs = [
        *rule.variables.values(),
        *rule.audit.values(),
        *[condition.program for condition in rule.conditions],
        *[condition.program for each in rule.exemptions for condition in each.conditions],
        *[check.program for check in rule.checks],
        *[check.message_program for check in rule.checks if check.message_program is not None],
    ]
    read = {path for program in programs for path in program.references}
    return any(path[0] == "neuron" and path[1:2] not in _FREE for path in read)


# --- decisions ----------------------------------------------------------------------------------------------


def merged(decision: Decision, verdicts: Iterable[Verdict], now: dt.datetime) -> Decision:
    """A decision with what policies say added. Refused by both, it keeps the status it had."""
    errors, warnings, audit = list(decision.errors), list(decision.warnings), dict(decision.audit)
    code, reason = decision.status_code, decision.status_reason
    failures: list[dict[str, Any]] = []
    room = _LONGEST_AUDITS
    for verdict in verdicts:
        for key, text in verdict.audit.items():
            kept = text[: min(_LONGEST_AUDIT, room)]
            room -= len(kept)
            audit[_audit_key(f"{verdict.rule.name}.{key}")] = kept
        if not verdict.violations:
            if verdict.unfinished:
                warnings += fitting(_let_pass(verdict))
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
            warnings += itertools.chain.from_iterable(map(fitting, objections(verdict, "Warn")))
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
    """As many as anybody reads, and a word on the rest."""
    left_out = len(findings) - _MOST_FINDINGS
    if left_out <= 0:
        return findings
    rest = dataclasses.replace(findings[-1], message=f"{left_out} more findings are left out.", fix="")
    return [*findings[:_MOST_FINDINGS], rest]


def _let_pass(verdict: Verdict) -> Finding:
    """A policy that was not evaluated, and lets pass what it cannot judge."""
    message = f"policy '{verdict.rule.name}': {verdict.unfinished}. Its failurePolicy is Ignore: the object passes."
    return warning("NEU803", "", message)


def _unreadable(request: AdmissionRequest, error: Exception) -> Finding:
    """Policies that cannot read an object must not let it pass."""
    message = f"policies cannot read the {request.kind.kind}: {error}."
    return Finding("NEU114", "", message, "Compare it with the API reference of its kind.")


def _audit_key(key: str) -> str:
    """At most 63 characters, as the API server wants them."""
    if len(key) <= _LONGEST_KEY:
        return key
    return f"{key[: _LONGEST_KEY - 9]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
