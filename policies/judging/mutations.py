"""Applies mutating policies to the object of one request. Pure: the caller passes the clock.

The order is that of the API server: which policies and bindings match is decided by the object as it was sent; match
conditions and expressions see it as the policies before left it. A policy with `reinvocationPolicy: IfNeeded` runs a
second time, after conversion.
Source: k8s.io/apiserver/pkg/admission/plugin/policy/mutating/dispatcher.go.
"""

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kubecel.budget import MATCH_CONDITION_LIMITS, POLICY_LIMITS, Budget, Clock
from kubecel.errors import CelBudgetExceededError, CelError
from neuron.api import resource_versions
from policies.judging import matching
from policies.judging.conditions import Failure, Variables, all_hold
from policies.judging.evaluate import OUT_OF_TIME, REVIEW_LIMIT, TakesLongError, TimeLimit, unconverted
from policies.judging.rules import CompiledMutation, MutatingRule
from policies.judging.runs import within
from policies.judging.subjects import Api, RequestSubject
from policies.patching import json_patch, values
from policies.patching.json_patch import MisfitError, PatchError, PatchTestFailedError
from policies.patching.structured_merge import DEDUCED, MergeError, Shape, merged, misfits, of_pointer, unknown_at

_KEPT: Final = ("apiVersion", "kind")
"""Fields that say what the rules of a policy were sent."""


class MutationOutcome(enum.StrEnum):
    """The result of one policy for one request; a label of metrics."""

    NO_MATCH = "no-match"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    FAILED = "failed"


@dataclasses.dataclass(slots=True)
class Mutated:
    """What one policy with one binding and parameter object made of an object.

    Attributes:
        failures: of expressions and patches.
        misfit: whether a patch makes an object that is none of its kind.
        before: the object.
        after: the object afterwards; the same if nothing changed.
        again: whether it was the second time.
    """

    rule: MutatingRule
    outcome: MutationOutcome
    before: Any
    after: Any
    failures: tuple[Failure, ...] = ()
    misfit: bool = False
    params: Mapping[str, object] | None = None
    again: bool = False
    seconds: float = 0.0

    @property
    def denies(self) -> bool:
        """Whether the request is denied: something failed, and failurePolicy is Fail, or the API server would do it."""
        return bool(self.failures) and (self.rule.fails_closed or self.misfit)


@dataclasses.dataclass(frozen=True, slots=True)
class _Invocation:
    """A policy with one binding and parameter object. `fault`: why it cannot be evaluated."""

    rule: MutatingRule
    api: Api
    params: Mapping[str, object] | None = None
    fault: str = ""


class Mutating:
    """Runs the policies on one request.

    `first` and `again` may be called in several threads, one after the other. If one raises, it can be called again.

    Attributes:
        subject: the request as it was sent.
        results: of every policy whose rules match, in the order in which they ran.
    """

    def __init__(
        self,
        rules: Sequence[MutatingRule],
        subject: RequestSubject,
        clock: Clock,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self.subject = subject
        self._clock = clock
        self._limit = REVIEW_LIMIT
        self._deadline = 0.0
        self._invocations = list(_invocations(rules, subject))
        self._again: list[_Invocation] = []
        self._patched = False
        self.results: list[Mutated] = []

    @property
    def matches(self) -> bool:
        """Whether the rules of a policy match the request."""
        return bool(self._invocations)

    def first(self, time_limit: TimeLimit = REVIEW_LIMIT) -> Any:
        """The object after all policies; `time_limit` is for all of them together.

        Raises:
            TakesLongError: the time limit is over, and it raises.
        """
        self._start(time_limit)
        self.results, self._again = [], []
        data = self.subject.object
        for each in self._invocations:
            found = self._run(each, data)
            if each.rule.reinvoked and found.outcome is not MutationOutcome.NO_MATCH:
                self._again.append(each)
            data = found.after
        return data

    def again(self, data: Any, time_limit: TimeLimit = REVIEW_LIMIT, *, changed: bool) -> Any:
        """The object after the second time of the policies that ask for it.

        Args:
            data: the object after conversion.
            time_limit: for all policies together.
            changed: whether conversion has changed it.

        Raises:
            TakesLongError: the time limit is over, and it raises.
        """
        self._start(time_limit)
        self.results = [each for each in self.results if not each.again]
        if self._patched or changed:
            for each in self._again:
                data = self._run(each, data, again=True).after
        return data

    def _start(self, time_limit: TimeLimit) -> None:
        self._limit = time_limit
        self._deadline = self._clock() + time_limit.seconds

    @property
    def asks_again(self) -> bool:
        """Whether `again` may do something."""
        return bool(self._again)

    def _run(self, invocation: _Invocation, data: Any, *, again: bool = False) -> Mutated:
        started = self._clock()
        if started > self._deadline and not self._limit.raises:
            found = _failed(invocation.rule, data, [Failure(OUT_OF_TIME)])
        else:
            found = self._mutated(invocation, data)
        ended = self._clock()
        if self._limit.raises and ended > self._deadline:
            raise TakesLongError
        found.again, found.params, found.seconds = again, invocation.params, ended - started
        self.results.append(found)
        return found

    def _mutated(self, invocation: _Invocation, data: Any) -> Mutated:
        rule = invocation.rule
        if invocation.fault:
            return _failed(rule, data, [Failure(invocation.fault)])
        if rule.reads_namespace and self.subject.namespace_unknown:
            return _failed(rule, data, [Failure(self.subject.namespace_unknown)])
        subject = dataclasses.replace(self.subject, object=data).in_api(invocation.api)
        if subject is None:
            return _failed(rule, data, [Failure(unconverted(self.subject, invocation.api))])
        if rule.conditions:
            budget = self._budget(MATCH_CONDITION_LIMITS)
            holds, failures = all_hold(rule.conditions, self._activation(invocation, subject, budget), budget)
            if holds is not True:
                outcome = MutationOutcome.FAILED if failures and rule.fails_closed else MutationOutcome.NO_MATCH
                return Mutated(rule, outcome, data, data, tuple(failures))
        failures, misfit = [], False
        for at, mutation in enumerate(rule.mutations):
            try:
                changed = self._patch(mutation, invocation, subject)
            except (CelError, PatchError, MergeError) as error:
                failures.append(_failure(at, mutation, error))
                misfit = misfit or isinstance(error, MisfitError)
                if isinstance(error, CelBudgetExceededError) and self._clock() > self._deadline:
                    break
            else:
                self._patched = True
                subject = dataclasses.replace(subject, object=changed)
        after = subject.object
        if subject.version != self.subject.version:
            after = resource_versions.converted(subject.kind, after, self.subject.version)
        if json_patch.same(data, after):
            after = data
        outcome = MutationOutcome.UNCHANGED if after is data else MutationOutcome.CHANGED
        return Mutated(rule, MutationOutcome.FAILED if failures else outcome, data, after, tuple(failures), misfit)

    def _budget(self, limits: Any) -> Budget:
        return Budget(self._clock, within(limits, self._deadline - self._clock()))

    def _activation(self, invocation: _Invocation, subject: RequestSubject, budget: Budget) -> dict[str, object]:
        made: dict[str, object] = {
            **subject.versioned(),
            "namespaceObject": subject.namespace_object,
            "params": invocation.params,
        }
        made["variables"] = Variables(invocation.rule.variables, made, budget)
        return made

    def _patch(self, mutation: CompiledMutation, invocation: _Invocation, subject: RequestSubject) -> Any:
        """The object after one mutation.

        Raises:
            CelError: the expression fails.
            PatchError: the patch cannot be applied, or its values do not fit the kind.
            MergeError: the apply configuration does not fit the kind.
        """
        budget = self._budget(POLICY_LIMITS)
        result = mutation.program.evaluate(self._activation(invocation, subject, budget), budget)
        data = subject.object
        if not isinstance(data, dict):
            raise PatchError("the request has no object to change")
        version = f"{subject.group}/{subject.version}" if subject.group else subject.version
        shape = invocation.rule.shape(version, subject.kind)
        if mutation.applies:
            identity = {key: data[key] for key in _KEPT if key in data}
            return merged(shape, data, {**values.configuration(result), **identity})
        operations = values.operations(result)
        try:
            changed = json_patch.applied(data, operations)
        except PatchTestFailedError:
            return data
        _check_values(shape, operations)
        if any(changed.get(key) != data.get(key) for key in _KEPT):
            raise MisfitError("a patch cannot change apiVersion and kind of the object")
        return changed


def _check_values(shape: Shape, operations: Sequence[json_patch.PatchOperation]) -> None:
    """Refuse values that the API server cannot read as the kind.

    Raises:
        MisfitError: a field is unknown, or a value has the wrong type.
    """
    if shape is DEDUCED:
        return
    for each in operations:
        if each.op not in ("add", "replace") or each.value is json_patch.MISSING:
            continue
        keys = json_patch.tokens(each.path)
        wrong = unknown_at(shape, keys)
        place = of_pointer(shape, keys)
        if not wrong and place is not None:
            found = next(misfits(place, each.value, lists=False), "")
            wrong = f"the value of '{each.path}': {found}" if found else ""
        if wrong:
            raise MisfitError(wrong)


def _failed(rule: MutatingRule, data: Any, failures: list[Failure]) -> Mutated:
    return Mutated(rule, MutationOutcome.FAILED, data, data, tuple(failures))


def _failure(at: int, mutation: CompiledMutation, error: Exception) -> Failure:
    what = f"mutations[{at}] ({'ApplyConfiguration' if mutation.applies else 'JSONPatch'}) failed"
    return Failure.of(what, error) if isinstance(error, CelError) else Failure(what, str(error))


def _invocations(rules: Sequence[MutatingRule], subject: RequestSubject) -> Iterator[_Invocation]:
    """The policies that match the request as it was sent, by name, once for each binding and parameter object."""
    for rule in sorted(rules, key=lambda each: each.name):
        api = matching.rules_match(rule.match, subject)
        if api is None or not matching.selectors_match(rule.match, subject):
            continue
        for binding in sorted(rule.bindings, key=lambda each: each.name):
            if matching.matches(binding.match, subject):
                for params, fault in matching.parameters_of(binding, subject):
                    yield _Invocation(rule, api, params, fault)


def denied_by_changes(rules: Sequence[MutatingRule], subject: RequestSubject, clock: Clock) -> bool:
    """Whether policies that change objects deny a request."""
    if subject.operation == "DELETE" or not rules:
        return False
    mutating = Mutating(rules, subject, clock)
    mutating.first()
    return any(each.denies for each in mutating.results)
