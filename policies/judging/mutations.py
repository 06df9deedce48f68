"""Applies mutating policies to the object of one request. Pure: the caller passes the clock.

The order is that of the API server: which policies and bindings match is decided by the object as it was sent; match
conditions and expressions see it as the policies before left it. A policy with `reinvocationPolicy: IfNeeded` runs a
second time, after conversion.
Source: k8s.io/apiserver/pkg/admission/plugin/policy/mutating/dispatcher.go.
"""

import base64
import dataclasses
import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kubecel.budget import MATCH_CONDITION_LIMITS, POLICY_LIMITS, Budget, Clock
from kubecel.errors import CelBudgetExceededError, CelError
from kubecel.library.standard import text_of_duration
from kubecel.library.times import text_of_timestamp
from kubecel.types import JSON_PATCH
from kubecel.values import Duration, ObjectValue, Timestamp, is_list, name_of
from neuron.api import resource_versions
from policies.judging import matching
from policies.judging.conditions import Failure, Variables, all_hold
from policies.judging.evaluate import OUT_OF_TIME, REVIEW_LIMIT, TakesLongError, TimeLimit, unconverted, within
from policies.judging.rules import CompiledMutation, MutatingRule
from policies.judging.subjects import Api, RequestSubject
from policies.patching import json_patch
from policies.patching.json_patch import MISSING, MisfitError, PatchError, PatchOperation, PatchTestFailedError
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
        known = {
            **subject.versioned(),
            "namespaceObject": subject.namespace_object,
            "params": invocation.params,
        }
        return {**known, "variables": Variables(invocation.rule.variables, known, budget)}

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
            return merged(shape, data, {**_configuration(result), **identity})
        operations = _operations(result)
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


_MOST_VALUES: Final = 100_000
_MOST_LEVELS: Final = 100
_SAFE: Final = 2**53 - 1
"""The largest whole number that every JSON parser keeps; cel-go writes larger ones as text."""


def _operations(listed: object) -> list[PatchOperation]:
    """The operations of a JSON patch that an expression returned.

    Raises:
        PatchError: an item is no `JSONPatch{…}`, or a value has no JSON.
    """
    found = []
    writer = _Writer()
    for item in listed if isinstance(listed, list | tuple) else [listed]:
        if not isinstance(item, ObjectValue) or item.type != JSON_PATCH:
            raise PatchError(f"the expression returned a list with a {name_of(item)}, and not only JSONPatch{{…}}")
        fields = item.fields
        value: Any = MISSING
        if "value" in fields:
            given = fields["value"]
            if isinstance(given, ObjectValue):
                _check_types(given)
            value = writer.plain(given)
        op, path, source = (str(fields.get(name, "")) for name in ("op", "path", "from"))
        found.append(PatchOperation(op, path, source, value))
    return found


def _configuration(value: object) -> dict[str, Any]:
    """The fields of an apply configuration that an expression returned.

    Raises:
        PatchError: it is no `Object{…}`, types do not fit their fields, or a value has no JSON.
    """
    if not isinstance(value, ObjectValue):
        raise PatchError(f"the expression returned a {name_of(value)}, and not Object{{…}}")
    _check_types(value)
    found: dict[str, Any] = _Writer().plain(value)
    return found


def _check_types(value: ObjectValue) -> None:
    wrong = next(_misnamed(value, value.type.name), None)
    if wrong is not None:
        raise PatchError(wrong)


def _misnamed(value: object, path: str) -> Iterator[str]:
    """Objects whose type is not that of the field in which they are (CheckTypeNamesMatchFieldPathNames)."""
    if isinstance(value, ObjectValue):
        if value.type.name != path:
            yield f"type mismatch: {value.type}{{…}} is the value of a field of type {path}: write {path}{{…}}"
        for name, each in value.fields.items():
            yield from _misnamed(each, f"{path}.{name}")
    elif is_list(value):
        for each in value:  # type: ignore[attr-defined]
            yield from _misnamed(each, path)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _misnamed(each, path)


class _Writer:
    """Writes values of one expression as JSON, up to a number of values: parts that are shared count each time."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def plain(self, value: object, depth: int = 0) -> Any:
        """The value as JSON.

        Raises:
            PatchError: it has none, or is too large.
        """
        self._left -= 1
        if self._left < 0 or depth > _MOST_LEVELS:
            raise PatchError(f"the expression returned more than {_MOST_VALUES} values, or {_MOST_LEVELS} levels")
        if isinstance(value, ObjectValue):
            return {name: self.plain(each, depth + 1) for name, each in value.fields.items()}
        if isinstance(value, Mapping):
            return {self._key(key): self.plain(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(each, depth + 1) for each in value]
        return _scalar(value)

    def _key(self, key: object) -> str:
        if isinstance(key, str):
            return key
        raise PatchError(f"the key of a map in a patch must be text, and is a {name_of(key)}")


def _scalar(value: object) -> Any:
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value) if abs(value) <= _SAFE else str(int(value))
        case float() if math.isfinite(value):
            return int(value) if value.is_integer() and abs(value) <= _SAFE else value
        case bytes():
            return base64.b64encode(value).decode()
        case Timestamp():
            return text_of_timestamp(value)
        case Duration():
            return text_of_duration(value)
    raise PatchError(f"a {name_of(value)} has no form in JSON: write string(…) of it")
