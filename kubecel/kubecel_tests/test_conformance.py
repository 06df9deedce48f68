"""The conformance cases of cel-spec: kubecel gives the expected result, or differs by a named class.

The tables in conformance/ have one row for every case that Kubernetes' CEL can express. A row has an expression, its
variables, and the type, value or error that cel-spec expects. A row that differs also names the class of the
difference and what kubecel does instead. `excluded.json` counts the cases that have no row.

Source: https://github.com/google/cel-spec, tests/simple/testdata, commit 508bd98e (Apache-2.0).
"""

import dataclasses
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kubecel import types
from kubecel.budget import Budget
from kubecel.compile import Cel
from kubecel.errors import CelCompileError, CelRuntimeError
from kubecel.types import NAMED, Type
from kubecel.values import Duration, Optional, Timestamp, UInt, is_list, key_of, keys_of
from kubecel_tests.evaluating import frozen_clock

ENGINE = Cel()
FOLDER = Path(__file__).with_name("conformance")
PAGE = Path(__file__).parents[1] / "docs" / "comparison.md"
ALL_CASES = 2456
"""Cases in all files of cel-spec at that commit."""

Row = dict[str, Any]

EXCLUDED: list[Row] = json.loads((FOLDER / "excluded.json").read_text(encoding="utf-8"))
TABLES: dict[str, list[Row]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.json"))
    if path.stem != "excluded"
}
ROWS = list(itertools.chain.from_iterable(TABLES.values()))

CLASSES = {
    "mixed literals": "of a literal must have the same type",
    "parse-only": "does not take|there is no (variable|function)|requires bool|both sides of ':' must have",
    "newer format": r"%[def] of format does not take",
    "backquotes": "fields in backquotes are not supported",
    "dotted names": r"there is no variable '[ax]'",
    "newer string functions": "'reverse' does not take",
    "containers": r"there is no variable '\.y'",
    "literal index": "a value cannot be indexed by bytes",
    "mapped addresses": "write IPv4 addresses without ::ffff:",
    "optional fields of scalars": "only values",
    "all milliseconds": "only values",
}
"""Class of a difference -> pattern of the message where kubecel gives no value. docs/comparison.md explains them."""

OTHER_REASON = re.compile(r"of a literal must have the same type|in backquotes|Known here: [a-z]+\.[a-z]")
"""Refusals that are not the error that a case expects."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of a row: a value with its static type, or a message."""

    kind: str
    value: object = None
    type: str = ""
    message: str = ""


def described(text: str) -> Type:
    """A type from its name, e.g. `map(string, list(int))`."""
    name, bracket, inner = text.partition("(")
    if not bracket:
        return types.DYN if name == "dyn" else next(kind for kind in KINDS if kind.name == name)
    parts = [""]
    for character in inner[:-1]:
        if character == "," and parts[-1].count("(") == parts[-1].count(")"):
            parts.append("")
        else:
            parts[-1] += character
    return Type(name, tuple(described(part.strip()) for part in parts))


KINDS = [kind for kind in NAMED.values() if not kind.parameters]


def decoded(value: Any) -> object:
    """The CEL value of a value in the table."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "uint":
            return UInt(inner)
        case "double":
            return float(inner)
        case "bytes":
            return bytes.fromhex(inner)
        case "duration":
            return Duration(inner)
        case "map":
            return {key_of(decoded(key)): decoded(item) for key, item in inner}
    raise ValueError(value)


def encoded(value: Any) -> object:
    """A CEL value in the form of the tables: an object with the name of the type if JSON does not have the type."""
    match value:
        case None | bool() | str():
            return value
        case UInt():
            return {"uint": int(value)}
        case int():
            return value
        case float():
            return {"double": repr(value)}
        case bytes():
            return {"bytes": value.hex()}
        case Duration():
            return {"duration": value.nanoseconds}
        case Timestamp():
            return {"timestamp": value.nanoseconds}
        case Optional():
            return {"optional": [encoded(value.value)] if value.present else []}
        case Type():
            return {"type": value.name}
        case dict():
            pairs = zip(keys_of(value), value.values(), strict=True)
            return {"map": sorted(([encoded(key), encoded(item)] for key, item in pairs), key=json.dumps)}
    assert is_list(value)
    return [encoded(item) for item in value]


def answer(row: Row) -> Answer:
    variables: dict[str, Row] = row.get("variables", {})
    try:
        program = ENGINE.compile(row["expr"], {name: described(each["type"]) for name, each in variables.items()})
    except CelCompileError as error:
        return Answer("refused", message=error.message)
    if "value" not in row and "error" not in row:
        return Answer("checked", type=str(program.result))
    values = {name: decoded(each["value"]) for name, each in variables.items() if "value" in each}
    try:
        value = program.evaluate(values, Budget(frozen_clock))
    except CelRuntimeError as error:
        return Answer("error", message=error.message)
    return Answer("value", encoded(value), str(program.result))


def agrees(row: Row, ours: Answer) -> bool:
    if "error" in row:
        # An expression that always fails may be refused when it is compiled.
        return ours.kind == "error" or (ours.kind == "refused" and not OTHER_REASON.search(ours.message))
    same_type = "type" not in row or row["type"] == ours.type
    if "value" not in row:
        return ours.kind == "checked" and same_type
    return ours.kind == "value" and same_type and json.dumps(ours.value) == json.dumps(row["value"])


@pytest.mark.parametrize("table", TABLES)
def test_a_case_has_the_result_of_the_specification(table: str) -> None:
    answers = [(row, answer(row)) for row in TABLES[table] if "differs" not in row]
    assert [(row, ours) for row, ours in answers if not agrees(row, ours)] == []


@pytest.mark.parametrize("row", [row for row in ROWS if "differs" in row], ids=lambda row: row["name"])
def test_a_case_that_differs_has_the_difference_of_its_class(row: Row) -> None:
    ours = answer(row)
    assert not agrees(row, ours), "no longer a difference: remove the class from the row"
    assert {ours.kind: ours.value if ours.kind == "value" else True} == row["ours"]
    assert ours.kind == "value" or re.search(CLASSES[row["differs"]], ours.message)
    assert "checked" in row or row["differs"] != "parse-only"


def test_every_case_is_in_a_table_or_excluded_for_a_reason() -> None:
    assert len(ROWS) + sum(each["cases"] for each in EXCLUDED) == ALL_CASES
    assert {row["differs"] for row in ROWS if "differs" in row} == CLASSES.keys()


def test_the_page_has_the_figures_of_the_tables() -> None:
    """The page has a table line for every class and every reason, with the number of cases."""
    page = PAGE.read_text(encoding="utf-8")
    classes = Counter(row["differs"] for row in ROWS if "differs" in row)
    reasons: Counter[str] = Counter()
    for each in EXCLUDED:
        reasons[each["reason"]] += each["cases"]
    section = page.partition("## Conformance")[2].partition("\n## ")[0]
    lines = dict(re.findall(r"^\| ([^|]+) \| (\d+) \| [^|]{20,} \|$", section, re.MULTILINE))
    assert lines == {name: str(count) for name, count in (classes | reasons).items()}
    agreeing = len(ROWS) - classes.total()
    assert f"{agreeing:,} of {len(ROWS):,}" in section
    assert f"{classes.total()} differ" in section
    assert f"{reasons.total()} of {ALL_CASES:,}" in section
