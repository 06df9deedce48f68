"""What mutating policies and conversion make of one object together. Pure; for the server and for commands.

The steps:

1. The policies, by name, on the object as it was sent.
2. Conversion of the object that they made.
3. The policies with `reinvocationPolicy: IfNeeded`, on the converted object, if a policy or conversion changed it.
4. Conversion again, if step 3 changed something.
"""

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, TypeAlias

from conversion.patches.decision import Decision, Operation, Outcome, denied
from conversion.patches.operations import MOST_BYTES, size_of
from neuron.findings import Finding
from policies.judging.evaluate import TimeLimit
from policies.judging.mutations import Mutated, Mutating
from policies.patching.json_patch import difference, patched, same

_AUDIT: Final = "changed-by"
_FIX: Final = (
    "Change the object so that the policy can be applied, or ask the cluster's admins to mend the policy, or to set"
    " failurePolicy: Ignore."
)


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyPolicies:
    """The policies are to be applied: the answer is what `work` returns."""

    work: Callable[[TimeLimit], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Convert:
    """The object is to be converted: the answer is the decision. `changed`: whether policies have changed it."""

    data: Any
    changed: bool


Steps: TypeAlias = Generator[ApplyPolicies | Convert, Any, Decision]
"""The steps of one object; each gets its answer, and the last returns the decision about the object as it was sent."""


def steps(mutating: Mutating) -> Steps:
    """The steps for one request."""
    sent = mutating.subject.object
    data = yield ApplyPolicies(mutating.first)
    refused = _refusal(mutating.results)
    if refused is not None:
        return refused
    patch = difference(sent, data)
    decision: Decision = yield Convert(data, bool(patch))
    if decision.errors:
        return decision
    if mutating.asks_again:
        converted = patched(data, decision.patch)
        again = yield ApplyPolicies(functools.partial(mutating.again, converted, changed=bool(decision.patch)))
        refused = _refusal(mutating.results)
        if refused is not None:
            return refused
        more = difference(converted, again)
        if more:
            decision = _joined(decision, more, (yield Convert(again, changed=True)))
    return _changed(decision, patch, mutating.results)


def moved(part: Any, sent: Any, patch: Sequence[Operation]) -> tuple[Operation, ...]:
    """The patch of a sent object, for the part of a manifest from which the object was made.

    What the maker added to the object, such as owners, is added to the part only where the patch changes it.
    """
    return difference(part, _carried(part, sent, patched(sent, patch)))


def _carried(part: Any, sent: Any, wanted: Any) -> Any:
    if isinstance(sent, dict) and isinstance(wanted, dict) and isinstance(part, dict):
        made = {key: value for key, value in part.items() if key in wanted or key not in sent}
        for key, value in wanted.items():
            if key not in sent or not same(sent[key], value):
                made[key] = _carried(part.get(key, {}), sent.get(key), value)
        return made
    return wanted


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
        audit={**decision.audit, _AUDIT: ",".join(names)[:1024]},
    )
