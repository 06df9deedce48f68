"""A report as SARIF 2.1.0: obstacles and results of policies, at the line of a file or at the object in a cluster."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

from commands.report.model import AuditViolation, Cause, Reference, Report
from commands.validate.check_files import Located
from commands.validate.output import sarif_log
from neuron.findings import Finding, Severity
from runtime.console import json_text

LineOf = Callable[[str, int, str], int]
"""File, line of the object and field path -> line."""

_CODES: Final = {"Deny": "NEU801", "Warn": "NEU802", "Audit": "NEU805"}
_LEVELS: Final = {"Deny": Severity.ERROR, "Warn": Severity.WARNING, "Audit": Severity.NOTE}
_JUDGED: Final = frozenset(_CODES.values()) | {"NEU803"}


def as_sarif(report: Report, line_of: LineOf, documentation: str = "") -> str:
    log = sarif_document(report, line_of, documentation)
    return json_text(log)


def sarif_document(report: Report, line_of: LineOf, documentation: str) -> dict[str, Any]:
    """The log as plain data."""
    return sarif_log(list(_located(report, line_of)), report.problems, report.version, documentation)


def _located(report: Report, line_of: LineOf) -> Iterator[Located]:
    for workload in report.workloads:
        for each in workload.obstacles:
            if each.cause is Cause.POLICY and each.finding.code in _JUDGED and report.audit is not None:
                continue  # Among the results of the audit.
            finding = dataclasses.replace(each.finding, severity=Severity.ERROR) if each.blocks else each.finding
            yield _at(workload.ref, finding, line_of)
    for violation in report.audit.violations if report.audit else ():
        if violation.result != "skip":
            yield _at(violation.ref, _finding(violation), line_of)


def _finding(violation: AuditViolation) -> Finding:
    code = "NEU803" if violation.result == "error" else _CODES[violation.action]
    message = f"policy '{violation.policy}': {violation.message}"
    return Finding(code, violation.path, message, severity=_LEVELS[violation.action])


def _at(ref: Reference, finding: Finding, line_of: LineOf) -> Located:
    if ref.source:
        return Located(ref.source, line_of(ref.source, ref.line, finding.path), str(ref), finding)
    # Code hosts want a path. An object in a cluster has this one.
    return Located("/".join(filter(None, (ref.namespace, ref.kind, ref.name))), 1, str(ref), finding)
