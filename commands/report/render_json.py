"""A report as JSON for programs. Field names are stable."""

import dataclasses

from commands.report.model import Audit, Devices, MigrationStep, NeuronNodes, Report, Workload
from runtime.console import json_text


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
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "namespace": ref.namespace,
        "name": ref.name,
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
                "code": each.finding.code,
                "severity": each.finding.severity.value,
                "path": each.finding.path,
                "message": each.finding.message,
                "fix": each.finding.fix,
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
        "summary": {result: audit.count(result) for result in ("pass", "fail", "warn", "error", "skip")},
        "results": [
            {
                "apiVersion": each.ref.api_version,
                "kind": each.ref.kind,
                "namespace": each.ref.namespace,
                "name": each.ref.name,
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
