"""All checks, in order of dependency. Pure: a snapshot and a time in, lines out."""

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from cluster.kinds.replicas import LONGEST_CONDITION, Replica, UnsentStatus
from commands.cluster.reader import Object, Unseen, items
from commands.status import hooks, kueue, nodes, replicas
from commands.status.hooks import PODS, covers
from commands.status.lines import CheckResult, StatusCheck, StatusLine
from commands.status.replicas import POLICIES
from commands.status.snapshot import Rule, StatusSnapshot, own_entries
from neuron import known_faults
from runtime.api_server import OLDEST_KUBERNETES, RESOURCE_GROUP, rule_text
from runtime.text import named

API_SERVER: Final = StatusCheck("API server")
PERMISSIONS: Final = StatusCheck("permissions")

_VERSION: Final = re.compile(r"v?([0-9]+)\.([0-9]+)")


def judge(snapshot: StatusSnapshot, now: dt.datetime) -> tuple[StatusLine, ...]:
    """The lines of all checks; `now` is time zone aware."""
    alive = replicas.living(snapshot, now)
    lines = (
        *_api_server(snapshot),
        *hooks.check(snapshot),
        *hooks.check_releases(snapshot),
        *replicas.check_certificate(snapshot, alive, now),
        *replicas.check(snapshot, now),
        *replicas.check_service(snapshot),
        *hooks.check_admission(snapshot),
        *replicas.check_policies(alive),
        *_check_sent(snapshot, alive),
        *_check_templates(snapshot, alive),
        *_permissions(snapshot),
        *nodes.check_classes(snapshot),
        *nodes.check_nodes(snapshot),
        *nodes.check_conversion(snapshot),
        *kueue.check(snapshot.kueue_setup, kueue.classes_of(snapshot.templates)),
        *nodes.check_karpenter(snapshot.karpenter, items(snapshot.deployments)),
    )
    # Several checks may lack the same data; only the first reports it.
    first = {line.text: line for line in reversed(lines)}
    return tuple(line for line in lines if line.verdict is not CheckResult.UNKNOWN or first[line.text] is line)


def _api_server(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    if isinstance(snapshot.version, Unseen):
        yield API_SERVER.unknown(snapshot.version.why)
    else:
        yield _kubernetes(snapshot.version)
        yield from _faults(snapshot.version)
    versions = snapshot.versions
    if isinstance(versions, Unseen):
        yield API_SERVER.unknown(versions.why)
    elif "v1" in versions:
        yield API_SERVER.well(f"{RESOURCE_GROUP}/v1 is served.")
    else:
        served = f"only as {', '.join(versions)}" if versions else "not at all"
        text = f"{RESOURCE_GROUP}/v1 is not served ({RESOURCE_GROUP} is served {served})."
        yield API_SERVER.wrong(text, f"Kubernetes >= {OLDEST_KUBERNETES} serves it by default.")


def _kubernetes(version: str) -> StatusLine:
    match = _VERSION.match(version)
    if match is None:
        return API_SERVER.unknown(f"the version {version[:40]!r} cannot be parsed.")
    oldest = tuple(map(int, OLDEST_KUBERNETES.split(".")))
    if (int(match[1]), int(match[2])) >= oldest:
        return API_SERVER.well(f"Kubernetes {named(version)}.")
    fix = f"Upgrade the control plane to Kubernetes {OLDEST_KUBERNETES} or later."
    return API_SERVER.wrong(f"Kubernetes {named(version)} is older than {OLDEST_KUBERNETES}.", fix)


def _faults(version: str) -> Iterator[StatusLine]:
    """What the driver withholds because of the control plane, and faults that a patch release repairs."""
    number = known_faults.parse(version)
    for fault in known_faults.of_control_plane(version):
        if fault.told and number is not None:
            fix = f"{fault.remedy} Upgrade the control plane to {fault.fixed_after(number)} or later."
            yield API_SERVER.note(known_faults.sentence(fault, version), fix)


def _permissions(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    rights = snapshot.rights
    if isinstance(rights, Unseen):
        yield PERMISSIONS.unseen(rights)
        return
    missing: defaultdict[tuple[Rule, str], list[str]] = defaultdict(list)
    for (rule, resource, verb), allowed in rights.items():
        if not allowed:
            missing[rule, resource].append(verb)
    for (rule, resource), verbs in missing.items():
        verdict = CheckResult.WRONG if rule.needed else CheckResult.NOTE
        text = f"{snapshot.account} may not {', '.join(verbs)} {resource}: {rule.purpose} does not work."
        role = f"Role in namespace {snapshot.namespace}" if rule.own else "ClusterRole"
        fix = f"Add this rule to its {role}: {rule_text(rule.group, (resource,), verbs, rule.names)}"
        yield StatusLine(PERMISSIONS, verdict, text, fix)
    if rights and not missing:
        yield PERMISSIONS.well(f"{snapshot.account} has all permissions that it needs.")


# --- what policies must see -------------------------------------------------------------------------------------------


_CLAIMS: Final = "claims"
"""Name of the matchCondition of pods."""
_NEURON: Final = "neuron"
"""Name of the matchCondition of pods that are converted."""
_EVERY: Final = "true"


def _check_sent(snapshot: StatusSnapshot, replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    """A line for every policy with Deny that does not see what it must deny."""
    needs = dict.fromkeys(each for replica in replicas for each in replica.report.unsent)
    if not needs:
        return
    if isinstance(snapshot.validating, Unseen):
        yield POLICIES.unseen(snapshot.validating)
        return
    entries = own_entries(snapshot.validating)
    for need in needs:
        if not any(_sends(entry, need) for entry in entries):
            yield POLICIES.wrong(_text(need), _fix(need))


def _check_templates(snapshot: StatusSnapshot, replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    """Which named templates are in force, and whether the pods that name them are sent."""
    found = sorted({each for replica in replicas for each in replica.report.templates})
    if not found:
        return
    if isinstance(snapshot.mutating, Unseen):
        yield POLICIES.unseen(snapshot.mutating)
        return
    entries = own_entries(snapshot.mutating)
    conditions = [each for entry in entries for each in entry.get("matchConditions") or ()]
    texts = [str(each.get("expression")) for each in conditions if each.get("name") == _NEURON]
    unsent = [each for each in found if not any(f"'{each.partition('=')[0]}'" in text for text in texts)]
    if unsent:
        wanted = ", ".join(named(each.partition("=")[0]) for each in unsent)
        text = f"pods that name the templates {wanted} of ClaimTemplates are not sent: nobody makes them."
        yield POLICIES.wrong(text, "Add the names to the chart's policies.claimTemplates.")
    else:
        yield POLICIES.well(f"named templates: {', '.join(map(named, found))}.")


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
