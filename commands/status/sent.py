"""Checks that the webhook configuration sends what policies with the action Deny must see."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from cluster.kinds.replicas import LONGEST_CONDITION, Replica, UnsentStatus
from commands.cluster.listing import Object, Unseen
from commands.status.hooks import PODS, covers
from commands.status.lines import CheckResult, StatusLine
from commands.status.snapshot import NAME, StatusSnapshot

POLICIES: Final = "policies"

_CLAIMS: Final = "claims"
"""Name of the matchCondition of pods."""
_EVERY: Final = "true"


def check(snapshot: StatusSnapshot, replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    """A line for every policy with Deny that does not see what it must deny."""
    needs = dict.fromkeys(each for replica in replicas for each in replica.report.unsent)
    if not needs:
        return
    if isinstance(snapshot.validating, Unseen):
        yield StatusLine(POLICIES, CheckResult.UNKNOWN, snapshot.validating.why, snapshot.validating.fix)
        return
    ours = next((item for item in snapshot.validating if item["metadata"]["name"] == NAME), None)
    entries = list((ours or {}).get("webhooks") or ())
    for need in needs:
        if not any(_sends(entry, need) for entry in entries):
            yield StatusLine(POLICIES, CheckResult.WRONG, _text(need), _fix(need))


def _sends(entry: Object, need: UnsentStatus) -> bool:
    if not covers(entry.get("rules") or (), need.group, need.resource, need.operation):
        return False
    conditions: Iterable[Mapping[str, object]] = entry.get("matchConditions") or ()
    if entry["name"] != PODS or not need.condition:
        return True
    # The shipped entry of pods sends further pods only by its condition.
    texts = [" ".join(str(each.get("expression")).split()) for each in conditions if each.get("name") == _CLAIMS]
    cut = len(need.condition) >= LONGEST_CONDITION
    wanted = (f"({need.condition}" + ("" if cut else ")"), f"({_EVERY})")
    return not texts or any(each in text for text in texts for each in wanted)


def _text(need: UnsentStatus) -> str:
    what = f"{need.operation} of {need.resource}" + (" without claims" if need.condition else "")
    return f"policy {need.policy} has the action Deny for {what}, which the webhook configuration does not send."


def _fix(need: UnsentStatus) -> str:
    if need.condition:
        return f"Add the condition to the chart's validation.podConditions: {need.condition}"
    return "Add the rule to the chart's validation.extraRules: `neuron-dra policy rules` prints it."
