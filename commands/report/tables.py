"""The tables of a report, shared by text, Markdown and HTML: the same rows in every format."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from commands.present import NOTHING, Table, finding_fields, listed
from commands.report.model import (
    RESULTS,
    Audit,
    Devices,
    Fate,
    MigrationStep,
    NeuronNodes,
    Report,
    Shadowed,
    Topic,
    Workload,
    total,
)
from neuron.codes import CODES
from runtime.console import json_text
from runtime.text import cited, counted, named

FATES: Final = {
    Fate.CONVERTS: "converts",
    Fate.REFUSED: "is refused",
    Fate.STAYS: "stays on the device plugin",
    Fate.CONVERTED: "is converted already",
    Fate.UNKNOWN: "is of an unknown kind",
}
MANY: Final = {
    Fate.CONVERTS: "convert",
    Fate.REFUSED: "are refused",
    Fate.STAYS: "stay on the device plugin",
    Fate.CONVERTED: "are converted already",
    Fate.UNKNOWN: "are of an unknown kind",
}


def summary(report: Report) -> list[str]:
    """The first sentences: what could not be read, workloads, devices, nodes."""
    problems = [f"Not complete, could not be read: {each}" for each in report.problems]
    if not report.workloads:
        read = " of the objects that could be read" if problems else ""
        return [*problems, f"No workload{read} requests resources of the Neuron device plugin."]
    pods = sum(each.pods or 0 for each in report.workloads)
    fates = report.fates
    told = ", ".join(f"{fates[fate]} {(MANY if fates[fate] != 1 else FATES)[fate]}" for fate in Fate if fates[fate])
    lines = [*problems, f"{counted(len(report.workloads), 'workload')} with {counted(pods, 'pod')}: {told}."]
    lines.append(
        f"They request {report.before} of the device plugin. Those that convert need {report.after} of the DRA driver."
    )
    if report.blocked:
        lines.append(f"{counted(report.blocked, 'workload')} cannot run converted until something is changed.")
    nodes = report.neuron_nodes
    if nodes is not None:
        plugin, driver, free = (sum(each.values()) for each in (nodes.plugin, nodes.driver, nodes.free))
        lines.append(
            f"The device plugin offers {counted(plugin, 'device')} on {counted(len(nodes.plugin), 'node')}; the DRA"
            f" driver {counted(driver, 'device')} on {counted(len(nodes.driver), 'node')}: {free} of them free."
        )
        if nodes.idle:
            lines.append(
                f"No pod uses the device plugin on {listed(nodes.idle)}: these nodes can move to the driver now."
            )
        if nodes.mixed:
            lines.append(f"Both offer the devices of {listed(nodes.mixed)}: claims get none of them.")
    return lines


def plan(steps: Sequence[MigrationStep]) -> Table:
    """The order of migration."""
    with_nodes = any(step.free is not None for step in steps)
    head = ["step", "namespace", "workloads", "pods", "blocked", "leaves the plugin", "needs of the driver"]
    head += ["free there before", "frees nodes (devices)"] if with_nodes else []
    rows = []
    for number, step in enumerate(steps, start=1):
        row = [str(number), step.namespace or NOTHING, str(step.workloads), str(step.pods), str(step.blocked)]
        row += [str(step.before), _by_type(step.needs) if with_nodes else str(step.after)]
        if with_nodes:
            short = f" ({step.short} short)" if step.short else ""
            row += [
                _by_type(step.free or {}) + short,
                f"{listed(step.nodes, 3)} ({step.freed})" if step.nodes else NOTHING,
            ]
        rows.append((*row, step.note or NOTHING))
    return Table("Order of migration", (*head, "change first"), tuple(rows), frozenset({0, 2, 3, 4}))


def _by_type(devices: Mapping[str, int]) -> str:
    """Devices by instance type: `8 of trn2.48xlarge, 4 of inf2.48xlarge`."""
    return ", ".join(f"{count} of {name}" for name, count in devices.items()) or "0"


def workloads(found: Iterable[Workload]) -> Table:
    """One row per workload."""
    head = ("namespace", "workload", "pods", "before", "after", "becomes", "template", "mode", "obstacles")
    return Table("Workloads", head, tuple(_row(each) for each in found), frozenset({2}))


def grouped_workloads(found: Sequence[Workload], most: int) -> Table:
    """The same with at most about `most` rows: workloads that differ only in name and number of pods share one.

    Blocked ones come first if there are too many for one row each.
    """
    if len(found) <= most:
        return workloads(found)
    alike: dict[tuple[object, ...], list[Workload]] = {}
    for each in found:
        codes = tuple(dict.fromkeys(obstacle.finding.code for obstacle in each.obstacles))
        key = (each.ref.namespace, each.ref.kind, each.fate, each.why, each.blocked, each.templates, each.mode, codes)
        alike.setdefault(key, []).append(each)
    groups = sorted(alike.values(), key=lambda group: (not group[0].blocked, -len(group)))
    table = workloads(group[0] for group in groups)
    rows = (_of_group(row, group) for row, group in zip(table.rows, groups, strict=True))
    return table._replace(rows=tuple(rows))


def _of_group(row: tuple[str, ...], group: Sequence[Workload]) -> tuple[str, ...]:
    """The row of the first workload, for all of its group."""
    if len(group) == 1:
        return row
    name = f"{len(group):,} {named(group[0].ref.kind)}s, such as {named(group[0].ref.name)}"
    pods, before = sum(each.pods or 0 for each in group), total(each.before for each in group)
    after = [each.after for each in group if each.after is not None]
    return (row[0], name, f"{pods:,}", str(before), amount(total(after) if after else None), *row[5:])


def _row(workload: Workload) -> tuple[str, ...]:
    ref = workload.ref
    codes = dict.fromkeys(each.finding.code for each in workload.obstacles)
    becomes = FATES[workload.fate]
    if workload.blocked and workload.fate is not Fate.REFUSED:
        becomes += ", blocked"
    return (
        ref.namespace or NOTHING,
        f"{named(ref.kind)} {named(ref.name)}",
        pods_text(workload),
        str(workload.before),
        amount(workload.after),
        f"{becomes}: {workload.why}" if workload.why else becomes,
        ", ".join(workload.templates) or NOTHING,
        workload.mode or NOTHING,
        ", ".join(codes) or NOTHING,
    )


def pods_text(workload: Workload) -> str:
    """Number of pods, and how many of those that exist have claims: `3`, `4 (1 converted)`, `1 per node`."""
    now = workload.now
    if workload.pods is None:
        count = "per node" if workload.ref.kind == "DaemonSet" else "unknown"
    else:
        count = str(workload.pods)
    return f"{count} ({now.converted} converted)" if now is not None and now.converted else count


def amount(devices: Devices | None) -> str:
    return NOTHING if devices is None else str(devices)


def names(topic: Topic, most: int = 5) -> str:
    """The workloads of a topic."""
    return listed([str(each) for each in topic.workloads], most)


def shadowed(found: Sequence[Shadowed]) -> Table:
    """What the webhook reported."""
    rows = tuple(
        (
            named(each.namespace),
            each.name,
            named(each.outcome),
            str(each.pods),
            "; ".join(f"{code}: {CODES[code].title}" for code in each.codes) or NOTHING,
            f"{each.source}: {cited(each.note)}" if each.note else each.source,
        )
        for each in found
    )
    head = ("namespace", "pods", "outcome", "number", "codes", "reported by")
    return Table("Seen by the webhook", head, rows, frozenset({3}))


def audit(found: Audit) -> Table:
    """The results that are not `pass`."""
    rows = tuple(
        (
            each.ref.namespace or NOTHING,
            f"{named(each.ref.kind)} {named(each.ref.name)}",
            each.policy,
            each.result,
            each.severity,
            each.action or NOTHING,
            each.message,
        )
        for each in found.violations
    )
    head = ("namespace", "object", "policy", "result", "severity", "action", "message")
    return Table("Policy results", head, rows)


def audit_line(found: Audit) -> str:
    """The counts of an audit."""
    counts = ", ".join(f"{found.count(result)} {result}" for result in RESULTS)
    policies = counted(len(found.policies), "policy", "policies")
    return f"{counted(found.objects, 'object')} judged by {policies}: {counts}."


# --- the same as JSON for programs: field names are stable ------------------------------------------------------------


def as_json(report: Report) -> str:
    return json_text(document(report), plain)


def document(report: Report) -> dict[str, object]:
    """The report as data; `plain` makes the parts of which there may be thousands."""
    fates = report.fates
    return {
        # First, so that a reader of the beginning sees that the report is not complete.
        "problems": [dataclasses.asdict(each) for each in report.problems],
        "origin": report.origin,
        "made": report.made,
        "version": report.version,
        "summary": {
            "workloads": len(report.workloads),
            "fates": {fate.value: count for fate, count in sorted(fates.items())},
            "blocked": report.blocked,
            "before": _devices(report.before),
            "after": _devices(report.after),
            "finished": report.finished,
        },
        "nodes": _neuron_nodes(report.neuron_nodes),
        "steps": [_step(each) for each in report.steps],
        "workloads": report.workloads,
        "shadow": [
            {
                "namespace": each.namespace,
                "pods": each.name,
                "outcome": each.outcome,
                "count": each.pods,
                "codes": each.codes,
                "source": each.source,
                "quoted": each.note,
            }
            for each in report.shadowed
        ],
        "audit": _audit(report.audit),
        "notes": report.notes,
    }


def _devices(devices: Devices | None) -> dict[str, int] | None:
    return None if devices is None else {"devices": devices.devices, "cores": devices.cores}


def _neuron_nodes(neuron_nodes: NeuronNodes | None) -> dict[str, object] | None:
    if neuron_nodes is None:
        return None
    return {
        "plugin": dict(neuron_nodes.plugin),
        "driver": dict(neuron_nodes.driver),
        "freeDevices": sum(neuron_nodes.free.values()),
        "freeByType": neuron_nodes.free,
        "idle": neuron_nodes.idle,
        "mixed": neuron_nodes.mixed,
    }


def _step(step: MigrationStep) -> dict[str, object]:
    return {
        "namespace": step.namespace,
        "ready": step.ready,
        "workloads": step.workloads,
        "pods": step.pods,
        "blocked": step.blocked,
        "staying": step.staying,
        "before": _devices(step.before),
        "after": _devices(step.after),
        "freeBefore": None if step.free is None else sum(step.free.values()),
        "freeBeforeByType": step.free,
        "needsByType": step.needs,
        "short": step.short,
        "freesNodes": step.nodes,
        "freesDevices": step.freed,
        "note": step.note,
    }


def plain(workload: Workload) -> dict[str, object]:
    """A workload as plain data."""
    ref, now = workload.ref, workload.now
    return {
        **ref.fields,
        "file": ref.source,
        "line": ref.line,
        "fate": workload.fate.value,
        "why": workload.why,
        "mode": workload.mode,
        "blocked": workload.blocked,
        "pods": workload.pods,
        "podsNow": None
        if now is None
        else {"plugin": now.plugin, "converted": now.converted, "withoutNode": now.pending},
        "before": _devices(workload.before),
        "after": _devices(workload.after),
        "podTemplates": [
            {
                "path": group.path,
                "pods": group.pods,
                "before": _devices(group.before),
                "after": _devices(group.after),
                "resourceClaimTemplates": group.templates,
                "instanceTypes": group.types,
            }
            for group in workload.groups
        ],
        "obstacles": [
            {
                "cause": each.cause.value,
                "blocks": each.blocks,
                **finding_fields(each.finding),
                "value": each.finding.value,
            }
            for each in workload.obstacles
        ],
    }


def _audit(audit: Audit | None) -> dict[str, object] | None:
    if audit is None:
        return None
    return {
        "policies": audit.policies,
        "objects": audit.objects,
        "summary": {result: audit.count(result) for result in RESULTS},
        "results": [
            {
                **each.ref.fields,
                "path": each.path,
                "policy": each.policy,
                "result": each.result,
                "severity": each.severity,
                "action": each.action,
                "message": each.message,
            }
            for each in audit.violations
        ],
        "notJudged": audit.unread,
    }
