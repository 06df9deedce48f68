"""Findings as SARIF 2.1.0 (OASIS Static Analysis Results Interchange Format), which code hosts show at the line."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final
from urllib.parse import quote

from commands.objects.manifest_files import ReadProblem
from commands.present import Located
from neuron.codes import CODES

VERSION: Final = "2.1.0"
SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif_log(
    located: Sequence[Located], faults: Sequence[ReadProblem], version: str, documentation: str = ""
) -> dict[str, object]:
    """A SARIF log with one run.

    Args:
        faults: files that cannot be read.
        version: of this program.
        documentation: URL of the book (`make docs`), for `helpUri`; or "".
    """
    codes = sorted({each.finding.code for each in located})
    return {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "neuron-dra",
                        "version": version,
                        "rules": [_rule(code, documentation) for code in codes],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not faults,
                        "toolExecutionNotifications": [_notification(fault) for fault in faults],
                    }
                ],
                "columnKind": "unicodeCodePoints",
                "results": [_result(each, codes.index(each.finding.code)) for each in located],
            }
        ],
    }


def _rule(code: str, documentation: str) -> dict[str, object]:
    found = CODES[code]
    # `help` has the whole text, as there may be no page to link to.
    parts = [each for each in (found.why, found.fix) if each]
    rule: dict[str, object] = {
        "id": code,
        "shortDescription": {"text": f"{found.title}."},
        "fullDescription": {"text": _plain(found.why)},
        "help": {"text": _plain(f"{found.title}.\n\n" + "\n\n".join(parts) + f"\n\nneuron-dra explain {code}")},
    }
    if documentation:
        # A relative link would point into the repository in which the code host shows the finding.
        rule["helpUri"] = f"{documentation.rstrip('/')}/errors.html#{code.lower()}"
    return rule


def _notification(fault: ReadProblem) -> dict[str, object]:
    physical: dict[str, object] = {"artifactLocation": {"uri": _uri(fault.source)}}
    if fault.line:
        physical["region"] = {"startLine": fault.line, "startColumn": max(1, fault.column)}
    return {"level": "error", "message": {"text": _plain(str(fault))}, "locations": [{"physicalLocation": physical}]}


def _result(located: Located, rule: int) -> dict[str, object]:
    finding = located.finding
    physical = {
        "artifactLocation": {"uri": _uri(located.source)},
        "region": {"startLine": max(1, located.line)},
    }
    logical = {"fullyQualifiedName": f"{located.subject}: {finding.path}".rstrip(": "), "kind": "element"}
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity.value,
        "message": {"text": _plain(f"{finding.message} {finding.fix}".rstrip())},
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
    }


def _plain(text: str) -> str:
    """Text in which viewers find no link: `[text](target)` is one in plain text, too (SARIF 2.1.0, 3.11.6)."""
    return text.replace("](", "] (")


def _uri(source: str) -> str:
    """A relative reference, or a file URI (RFC 3986)."""
    path = PurePath(source)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
