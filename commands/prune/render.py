"""Prints templates and prune reports as text and as JSON."""

import datetime as dt
from collections.abc import Mapping, Sequence

import orjson

from commands.prune.pruner import PruneAction, PruneReport
from commands.prune.reads import Generated, Key, User
from runtime.text import aligned, named

_WORDS = {
    PruneAction.CANDIDATE: "would be removed",
    PruneAction.REMOVED: "removed",
    PruneAction.KEPT: "kept",
    PruneAction.GONE: "already gone",
    PruneAction.RESTORED: "created again",
    PruneAction.FAILED: "failed",
}
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def age(template: Generated, now: dt.datetime) -> str:
    """Age in the two largest units, e.g. `3d4h`."""
    return duration(now - template.created)


def duration(time: dt.timedelta) -> str:
    """A duration in its two largest units; at least `0s`."""
    left = max(0, int(time.total_seconds()))
    parts: list[str] = []
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return "".join(parts[:2]) or "0s"


def report_text(report: PruneReport, now: dt.datetime) -> str:
    """A line per candidate, then a summary."""
    rows = [
        (
            _WORDS[entry.outcome],
            f"{entry.template.namespace}/{entry.template.name}",
            f"({age(entry.template, now)} old)" + (f": {entry.detail}" if entry.detail else ""),
        )
        for entry in report.entries
    ]
    return "".join(f"{line}\n" for line in [*aligned(rows), _sum(report)])


def _sum(report: PruneReport) -> str:
    counts = {outcome: sum(entry.outcome is outcome for entry in report.entries) for outcome in PruneAction}
    told = [f"{count} {_WORDS[outcome]}" for outcome, count in counts.items() if count] or ["nothing to remove"]
    young = report.generated - report.in_use - len(report.entries)
    return f"{', '.join(told)}; of {report.generated} generated templates {report.in_use} in use, {young} too young."


def report_json(report: PruneReport) -> str:
    return _dumped(
        {
            "templates": [
                {**_identity(entry.template), "outcome": entry.outcome.value, "detail": entry.detail}
                for entry in report.entries
            ],
            "summary": {
                "generated": report.generated,
                "inUse": report.in_use,
                **{outcome.value: sum(each.outcome is outcome for each in report.entries) for outcome in PruneAction},
            },
            "problem": report.problem,
        }
    )


def list_text(templates: Sequence[Generated], users: Mapping[Key, Sequence[User]], now: dt.datetime) -> str:
    """A table as kubectl prints them."""
    if not templates:
        return "No generated templates.\n"
    head = ("NAMESPACE", "NAME", "AGE", "PODS", "GROUPS", "PRUNE AFTER")
    rows = [
        (each.namespace, each.name, age(each, now), str(len(pods)), str(len(groups)), _mark(each))
        for each in templates
        for pods, groups in [_split(users.get(each.key, ()))]
    ]
    return "".join(f"{line}\n" for line in aligned([head, *rows]))


def list_json(templates: Sequence[Generated], users: Mapping[Key, Sequence[User]]) -> str:
    """For programs; with the names of pods, PodGroups and Workloads."""
    items = [
        {**_identity(each), "pods": pods, "groups": groups, "pruneAfter": each.mark}
        for each in templates
        for pods, groups in [_split(users.get(each.key, ()))]
    ]
    return _dumped({"templates": items})


def _split(users: Sequence[User]) -> tuple[list[str], list[str]]:
    """Names of pods, and kind and name of PodGroups and Workloads."""
    pods = [name for kind, name in users if kind == "Pod"]
    return pods, [f"{kind} {name}" for kind, name in users if kind != "Pod"]


def _mark(template: Generated) -> str:
    """The annotation, which anybody who may change the template can write."""
    return named(template.mark) if template.mark else "-"


def _identity(template: Generated) -> dict[str, object]:
    return {"namespace": template.namespace, "name": template.name, "created": template.created}


def _dumped(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z).decode()
