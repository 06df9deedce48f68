"""`/validate` with policies: what the cluster's admins wrote, on top of what is checked anyway."""

import dataclasses
import datetime as dt
import hashlib
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import orjson

from neuron.findings import Finding
from policies import matching
from policies.engine import Clock
from policies.evaluate import Verdict, evaluate
from policies.loader import PolicySet
from policies.programs import ValidatingRule
from webhook.decisions.decision import Decision, denied
from webhook.decisions.decision import Outcome as Decided
from webhook.edge.endpoints import Reviewer
from webhook.edge.wire import AdmissionRequest
from webhook.lane import Inline, Lane
from webhook.messages import fitting
from webhook.policing.failures import place
from webhook.policing.metrics import PolicyMetrics
from webhook.policing.store import PolicyStore, WallClock
from webhook.policing.subjects import bare_subject, subject_of
from webhook.policing.verdicts import near_expiry, objections
from webhook.ports import NamespaceView

log = logging.getLogger(__name__)

_STATUS_CODES: Final = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}
_LONGEST_AUDIT: Final = 10 * 1024
_LONGEST_KEY: Final = 63
_KINDS_REMEMBERED: Final = 512
_ERRORS_LOGGED: Final = 100


class PolicedReviewer:
    """Lets another reviewer decide, and then the policies; both are told, all at once."""

    def __init__(
        self,
        make: Callable[[PolicySet], Reviewer],
        store: PolicyStore,
        namespaces: NamespaceView,
        excluded_namespaces: frozenset[str],
        metrics: PolicyMetrics,
        now: WallClock,
        clock: Clock = time.perf_counter,
        *,
        lane: Lane | None = None,
    ) -> None:
        """Review.

        Args:
            make: makes the other reviewer, anew for every set of policies.
            store: the policies in force.
            namespaces: what is known of them.
            excluded_namespaces: namespaces whose objects are left alone.
            metrics: counts verdicts.
            now: by which exceptions expire.
            clock: bounds and measures evaluation, in seconds.
            lane: where long evaluations run.
        """
        self._lane = lane or Inline()
        self._make = make
        self._store = store
        self._namespaces = namespaces
        self._excluded = excluded_namespaces
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._take(store.current)

    def _take(self, policies: PolicySet) -> None:
        """Everything that is derived of a set, at once."""
        self._policies = policies
        self._inner = self._make(policies)
        self._candidates: dict[tuple[object, ...], tuple[ValidatingRule, ...]] = {}
        self._logged: set[tuple[str, str]] = set()

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review."""
        if self._policies is not self._store.current:
            self._take(self._store.current)
        candidates = self._candidates_for(request)
        decision = await self._inner.review(request)
        if not candidates or request.namespace in self._excluded:
            return decision
        try:
            subject = subject_of(request, self._namespaces)
        except msgspec.DecodeError as error:
            return decision if decision.errors else denied("unreadable", _unreadable(request, error))
        now = self._now()
        verdicts = evaluate(candidates, subject, now, self._clock)
        self._metrics.judged(verdicts)
        self._log_errors(verdicts)
        return merged(decision, verdicts, now)

    def _candidates_for(self, request: AdmissionRequest) -> tuple[ValidatingRule, ...]:
        """Policies that can be about such a request; nearly always known already, nearly always none."""
        kind = request.kind
        key = (kind, bytes(request.resource), request.subResource, request.operation, bool(request.namespace))
        found = self._candidates.get(key)
        if found is None:
            bare = dataclasses.replace(bare_subject(request), namespace="any" if request.namespace else "")
            found = tuple(rule for rule in self._policies.validating if matching.could_match(rule.match, bare))
            if len(self._candidates) < _KINDS_REMEMBERED:
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


# --- decisions ----------------------------------------------------------------------------------------------


def merged(decision: Decision, verdicts: Iterable[Verdict], now: dt.datetime) -> Decision:
    """A decision with what policies say added. Refused by both, it keeps the status it had."""
    errors, warnings, audit = list(decision.errors), list(decision.warnings), dict(decision.audit)
    code, reason = decision.status_code, decision.status_reason
    failures: list[dict[str, Any]] = []
    for verdict in verdicts:
        for key, text in verdict.audit.items():
            audit[_audit_key(f"{verdict.rule.name}.{key}")] = text[:_LONGEST_AUDIT]
        if not verdict.violations:
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
    if failures:
        audit["validation-failure"] = orjson.dumps(failures).decode()[:_LONGEST_AUDIT]
    if (len(errors), len(warnings), audit) == (len(decision.errors), len(decision.warnings), decision.audit):
        return decision
    refused = errors and not decision.errors
    return dataclasses.replace(
        decision,
        outcome=Decided.DENIED if errors else decision.outcome,
        reason="policy" if refused else decision.reason,
        errors=tuple(errors),
        warnings=tuple(warnings),
        status_code=code,
        status_reason=reason,
        audit=audit,
    )


def _unreadable(request: AdmissionRequest, error: Exception) -> Finding:
    """Policies that cannot read an object must not let it pass."""
    message = f"policies cannot read the {request.kind.kind}: {error}."
    return Finding("NEU114", "", message, "Compare it with the API reference of its kind.")


def _audit_key(key: str) -> str:
    """At most 63 characters, as the API server wants them."""
    if len(key) <= _LONGEST_KEY:
        return key
    return f"{key[: _LONGEST_KEY - 9]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
