"""Findings as SARIF 2.1.0 (OASIS Static Analysis Results Interchange Format), which code hosts show at the line."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from neuron.findings import CODES
from webhook.offline.validate_files import Located

VERSION: Final = "2.1.0"
SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HELP: Final = "docs/errors.md"


def sarif_log(located: Sequence[Located], version: str) -> dict[str, Any]:
    """A SARIF log with one run.

    Args:
        located: the findings.
        version: of this program.
    """
    codes = sorted({each.finding.code for each in located})
    return {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {"name": "neuron-dra", "version": version, "rules": [_rule(code) for code in codes]}
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(each, codes.index(each.finding.code)) for each in located],
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    return {
        "id": code,
        "shortDescription": {"text": f"{CODES[code]}."},
        "help": {"text": f"See {_HELP}, section {code}.", "markdown": f"See [{code}]({_HELP}#{code.lower()})."},
    }


def _result(located: Located, rule: int) -> dict[str, Any]:
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
        "message": {"text": f"{finding.message} {finding.fix}".rstrip()},
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
    }


def _uri(source: str) -> str:
    """A relative reference, or a file URI (RFC 3986)."""
    path = PurePath(source)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
