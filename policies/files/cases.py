"""Runs the test cases that are embedded in policy files."""

import dataclasses
import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from conversion.claims import scheduling
from conversion.findings.named_templates import names_in
from kubecel.budget import Clock
from kubecel.errors import CelRuntimeError
from kubecel.library.authorization import AccessDecision, Ask, Question
from neuron import names
from neuron.api.claim_reader import read_claim, read_class
from neuron.api.claim_specs import ClaimSpec
from neuron.api.fields import mapping, mappings
from policies.files.folders import PolicyError
from policies.judging import device_counts, matching
from policies.judging.conditions import Failure
from policies.judging.evaluate import REVIEW_LIMIT, TimeLimit, UndecidedError, evaluate, matching_rules
from policies.judging.knowledge import DeviceKnowledge
from policies.judging.mutations import Mutated, Mutating, MutationOutcome
from policies.judging.rules import AnyPodRule, HintRule, MutatingRule, PlacedCase, PodRule, TemplateRule, ValidatingRule
from policies.judging.subjects import RequestSubject, ask_nobody, of_object
from policies.judging.tally import lncs_of
from policies.judging.verdicts import Verdict
from policies.patching.json_patch import same
from policies.schema import kinds as schema
from policies.schema.documents import Path, PolicyProblem
from policies.schema.pods import Gets

_GENERATED: Final = (names.POD_CLAIM, names.POD_CLAIM_FALLBACK)
_WORDS: Final = {"allow": "Allow", "deny": "Deny", "warn": "Warn", "audit": "Audit", "except": "Except"}


@dataclasses.dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case.

    Attributes:
        failure: why it failed, with file and line; None if it passed.
        before: the object of a case of a mutating policy; None for other cases.
        after: the object afterwards.
    """

    policy: str
    case: str
    failure: PolicyProblem | None
    seconds: float
    before: Any = None
    after: Any = None


AnyRule: TypeAlias = ValidatingRule | MutatingRule | AnyPodRule


def cases_of(rule: AnyRule) -> Sequence[schema.Case | schema.PodCase | PlacedCase]:
    """The cases of a policy."""
    return rule.tests if isinstance(rule, ValidatingRule | MutatingRule) else rule.spec.tests


def run_cases(
    rule: AnyRule,
    clock: Clock,
    left: Callable[[], float] = lambda: REVIEW_LIMIT.seconds,
    *,
    lapses: bool = False,
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
) -> Iterator[CaseResult]:
    """Run every case of one policy. A case without `at` is a request of now.

    Args:
        left: returns the seconds that are left for the next case.
        lapses: a case without `at` whose exception has expired passes: a server has to load the file on any day.
    """
    for at, case in enumerate(cases_of(rule)):
        started = clock()
        limit = TimeLimit(min(REVIEW_LIMIT.seconds, max(0.0, left())))
        where, place, before, after, name = rule.document, at, None, None, ""
        match rule, case:
            case MutatingRule(), PlacedCase():
                where, place, name, before = case.document, case.at, case.case.name, case.case.object or {}
                after, wrong = _mutation(rule, case.case, before, clock, limit)
            case ValidatingRule(), schema.Case():
                wrong, name = _validating(rule, case, subject_of(case), clock, limit, (now(), lapses)), case.name
            case PodRule() | HintRule() | TemplateRule(), schema.PodCase():
                wrong, name = _pod(rule, case, clock, limit), case.name
        failure = None
        if wrong:
            path: Path = ("spec", "tests", place, "expect")
            failure = where.problem(path, f"test '{name}' of {rule.name}: {wrong}")
            if where.file != rule.document.file:
                # The file of the policy is not loaded.
                failure = rule.document.problem((), str(failure))
        yield CaseResult(rule.name, name, failure, clock() - started, before, after)


def _mutation(
    rule: MutatingRule, case: schema.MutationCase, data: dict[str, object], clock: Clock, limit: TimeLimit
) -> tuple[Any, str]:
    """The object afterwards, and why the case fails; empty if it passes."""
    mutating = Mutating((rule,), subject_of(case), clock)
    after = mutating.again(mutating.first(limit), limit, changed=False)
    return after, _unlike(case, data, after, mutating.results)


def _unlike(case: schema.MutationCase, before: object, after: object, results: Sequence[Mutated]) -> str:
    """Why the case fails; empty if it passes."""
    failures = [str(failure) for each in results for failure in each.failures]
    said = f" {'; '.join(dict.fromkeys(failures))}" if failures else ""
    if any(each.denies for each in results):
        came = "Deny"
    elif all(each.outcome is MutationOutcome.NO_MATCH for each in results):
        came = "NoMatch"
    else:
        came = "NoChange" if same(before, after) else "Change"
    if came != case.expect:
        return f"expected {case.expect}, came {came}.{said}"
    if case.message and not any(case.message in failure for failure in failures):
        return f"no message contains {case.message!r}; the messages are {failures}."
    missing = next(_missing(case.becomes, after, ""), "") if case.becomes is not None else ""
    return f"the object afterwards differs: {missing}.{said}" if missing else ""


def _missing(wanted: object, found: object, path: str) -> Iterator[str]:
    """Where an object lacks what is wanted: fields of objects are compared one by one, and all else as a whole."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            here = f"{path}.{key}" if path else str(key)
            if key not in found:
                yield f"{here} is missing"
            else:
                yield from _missing(value, found[key], here)
    elif not same(wanted, found):
        yield f"{path} is {json.dumps(found)}, expected {json.dumps(wanted)}"


def subject_of(case: schema.RequestCase) -> RequestSubject:
    """The admission request that a case describes."""
    data: dict[str, object] = (case.old_object if case.operation == "DELETE" else case.object) or {}
    subject = of_object(
        data,
        case.namespace_object,
        operation=case.operation,
        resource=case.resource,
        old_object=case.old_object,
        name=case.object_name or "",
    )
    subject = dataclasses.replace(subject, user_info=case.user_info, ask=_asked(case))
    if not isinstance(case, schema.Case):
        return subject
    return dataclasses.replace(subject, quotas=case.quotas, knowledge=_knowledge(case, data))


def _asked(case: schema.RequestCase) -> Ask:
    """Answers questions of `authorizer` from the case."""
    fields = ("verb", "path", "group", "resource", "subresource", "namespace", "name")

    def answer(question: Question) -> AccessDecision:
        account = "/".join(question.account or ())
        for each in case.access:
            wanted = [(getattr(each, field), getattr(question, field)) for field in fields]
            wanted.append((each.service_account, account))
            if all(value is None or value == found for value, found in wanted):
                return AccessDecision(each.allowed, each.reason, each.error)
        if not case.access:
            return ask_nobody(question)
        raise CelRuntimeError(f"the test has no answer for {question}: add it to access")

    return answer


def _knowledge(case: schema.Case, data: Mapping[str, object]) -> DeviceKnowledge:
    """The facts that a server would have from the objects of a case and the record of its pod."""
    specs: dict[str, dict[str, ClaimSpec]] = {"ResourceClaim": {}, "ResourceClaimTemplate": {}}
    classes: dict[str, bool | None] = {}
    lncs: dict[str, tuple[int, ...]] = {}
    selecting: dict[str, tuple[str, ...]] = {}
    extended: dict[str, str] = {}
    for each in case.objects:
        kind, version = str(each.get("kind", "")), str(each.get("apiVersion", ""))
        name = str(mapping(each.get("metadata")).get("name", ""))
        if kind in specs:
            specs[kind][name] = read_claim(kind, version, each.get("spec"))[0]
        elif kind == "DeviceClass":
            spec, _ = read_class(version, each.get("spec"))
            classes[name] = any(names.DRIVER in selector.expression for selector in spec.selectors)
            lncs[name] = lncs_of(spec.configs)
            selecting[name] = tuple(selector.expression for selector in spec.selectors)
            resource = mapping(each.get("spec")).get("extendedResourceName")
            if isinstance(resource, str) and resource:
                extended[resource] = name
    record, generated = None, ""
    if case.converted:
        record = device_counts.read_record(data)
        claims = mappings(mapping(data.get("spec")).get("resourceClaims"))
        generated = next((str(each["name"]) for each in claims if each.get("name") in _GENERATED), "")
    return DeviceKnowledge(
        classes=classes or None,
        class_lncs=lncs,
        class_selectors=selecting,
        extended=extended,
        templates=specs["ResourceClaimTemplate"],
        claims=specs["ResourceClaim"],
        record=record,
        recorded_claim=generated,
    )


def _validating(
    rule: ValidatingRule,
    case: schema.Case,
    subject: RequestSubject,
    clock: Clock,
    limit: TimeLimit,
    day: tuple[dt.datetime, bool],
) -> str:
    """Why the case fails; empty if it passes. `day`: now, and `lapses` of `run_cases`."""
    now, lapses = day
    verdicts = evaluate((rule,), subject, (case.at or now).astimezone(dt.UTC), clock, time_limit=limit)
    verdict = verdicts[0] if verdicts else None
    if lapses and case.at is None and verdict is not None and verdict.expired is not None:
        return ""
    came = _WORDS.get(verdict.outcome.value, "NoMatch") if verdict else "NoMatch"
    messages = [violation.message for violation in verdict.violations] if verdict else []
    if came != case.expect:
        return f"expected {case.expect}, came {came}.{_details(verdict)}"
    if case.message and not any(case.message in message for message in messages):
        return f"no message contains {case.message!r}; the messages are {messages}."
    return ""


def _details(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    messages = [*(violation.message for violation in verdict.violations), *map(str, verdict.errors)]
    if verdict.expired is not None:
        expiry = verdict.expired.expires.isoformat(timespec="seconds")
        messages.append(
            f"exception {verdict.expired.name!r} expired at {expiry}: renew it, remove it, or set at: in the test"
        )
    return f" {'; '.join(dict.fromkeys(messages))}" if messages else ""


def _pod(rule: AnyPodRule, case: schema.PodCase, clock: Clock, limit: TimeLimit) -> str:
    subject = of_object(case.object, case.namespace_object)
    errors: list[Failure] = []
    # A ClaimTemplate is for pods that name its template.
    is_for = not isinstance(rule, TemplateRule) or rule.template.name in names_in(case.object)
    rules: tuple[AnyPodRule, ...] = (rule,) if is_for else ()
    try:
        found = next(matching_rules(rules, subject, clock, errors, limit), None)
    except UndecidedError as error:
        came, why = "Refuse", str(error)
    else:
        came, why = "NoMatch" if found is None else "Match", str(errors[0]) if errors else ""
    if came != case.expect:
        return f"expected {case.expect}, came {came}.{f' {why}' if why else ''}"
    if isinstance(rule, HintRule) and isinstance(case, schema.HintCase) and case.gets is not None:
        return _gets(rule, case.object, case.gets)
    return ""


def _gets(rule: HintRule, pod: Mapping[str, object], wanted: Gets) -> str:
    """Compare the hints that a pod gets with the wanted ones; built-in hints that the policy does not set are on."""
    spec, hints = mapping(pod.get("spec")), rule.hints
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    term = next(mappings(required.get("nodeSelectorTerms")), {})
    own = str(spec.get("schedulerName") or names.DEFAULT_SCHEDULER)
    own_class = str(spec.get("priorityClassName") or "")
    came: dict[str, tuple[object, object]] = {
        "tolerations": (
            None if wanted.tolerations is None else list(wanted.tolerations),
            scheduling.missing_tolerations(list(mappings(spec.get("tolerations"))), hints, neuron=True),
        ),
        "schedulerName": (
            wanted.scheduler_name,
            scheduling.scheduler_for(own, hints, legacy=True) or own,
        ),
        "priorityClassName": (
            wanted.priority_class_name,
            scheduling.priority_class_for(own_class, hints) or own_class,
        ),
        "labels": (wanted.labels, dict(scheduling.missing_labels(matching.labels_of(pod), hints))),
        "required": (
            None if wanted.required is None else list(wanted.required),
            scheduling.missing_requirements(term, hints.required),
        ),
    }
    for field, (expected, actual) in came.items():
        if expected is not None and expected != actual:
            return f"expected {field} {json.dumps(expected)}, came {json.dumps(actual)}."
    return ""


# --- bounded ----------------------------------------------------------------------------------------------------------


CASE_SECONDS: Final = 5.0
"""For all cases of all files together, in one load of the folder."""


class SupersededError(Exception):
    """The load was cancelled: the folder has a newer state."""


class CaseTime:
    """The time for embedded cases in one load of the folder, also if it tries several sets of files.

    Files whose cases have passed before are not tested again: a case depends only on its own file.

    Attributes:
        passed: digests of the contents of files whose cases passed.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: float = CASE_SECONDS,
        passed: Iterable[str] = (),
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._left = self._seconds = seconds
        self._until = 0.0
        self._cancelled = cancelled
        self.passed = set(passed)

    def run(self, rules: Iterable[AnyRule], files: Mapping[str, bytes]) -> None:
        """Run the cases of all rules; files with few cases are first, so that a long one does not keep them waiting.

        Raises:
            PolicyError: cases fail, or are not finished in time.
            SupersededError: the load was cancelled.
        """
        by_file: dict[str, list[AnyRule]] = {}
        for rule in rules:
            by_file.setdefault(rule.document.file, []).append(rule)
        digests = {name: _digest(files[name]) for name in by_file}
        waiting = [name for name in by_file if digests[name] not in self.passed]
        waiting.sort(key=lambda name: (sum(len(cases_of(rule)) for rule in by_file[name]), name))
        spent: dict[str, float] = {}
        failures: list[PolicyProblem] = []
        self._until = self._clock() + self._left
        for at, name in enumerate(waiting):
            if self._cancelled():
                raise SupersededError
            found, finished = self._run(by_file[name], spent, name)
            self._left = self._until - self._clock()
            failures += found
            if not finished:
                late = [self._late(by_file[each][0], spent) for each in waiting[at:]]
                raise PolicyError([*failures, *late])
            # A case of a mutating policy depends on the files of its bindings and cases, too.
            if not found and not any(isinstance(rule, MutatingRule) and rule.tests for rule in by_file[name]):
                self.passed.add(digests[name])
        if failures:
            raise PolicyError(failures)

    def passed_of(self, files: Mapping[str, bytes]) -> frozenset[str]:
        """The digests of these files whose cases passed."""
        return frozenset(map(_digest, files.values())) & self.passed

    def _run(self, rules: Iterable[AnyRule], spent: dict[str, float], name: str) -> tuple[list[PolicyProblem], bool]:
        """Failures of the cases of one file, and whether all were run in time."""
        failures: list[PolicyProblem] = []
        for rule in rules:
            cases = run_cases(rule, self._clock, lambda: self._until - self._clock(), lapses=True)
            for result in cases:
                spent[name] = spent.get(name, 0.0) + result.seconds
                if self._cancelled():
                    raise SupersededError
                # The result of a case that had too little time proves nothing.
                if self._clock() >= self._until:
                    return failures, False
                if result.failure is not None:
                    failures.append(result.failure)
        return failures, True

    def _late(self, rule: AnyRule, spent: Mapping[str, float]) -> PolicyProblem:
        """The problem of a file with cases that were not finished in time."""
        slowest = max(spent, key=lambda name: spent[name], default="")
        used = f"; {slowest} used {spent[slowest]:.1f} s of it" if slowest else ""
        message = (
            f"the embedded tests of all files together took longer than {self._seconds:g} s{used}, and tests of this"
            " file were not finished. Write fewer tests, or smaller objects in them; `neuron-dra policy test` runs them"
            " without this limit."
        )
        return rule.document.problem(("spec", "tests"), message)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
