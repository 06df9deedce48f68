"""The table of problems in docs/operations.md: every problem that `status`, `/readyz` or a log knows has an alert."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.support.promql import Rule
from webhook.edge.metrics import PARTS

ROOT: Final = Path(__file__).parents[2]
OPERATIONS: Final = (ROOT / "docs/operations.md").read_text()
ALERTS: Final[dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/chart/files/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
PROGRAMS: Final = ("webhook", "cluster", "kubeletplugin", "policies", "runtime")
_LOGGED: Final = ("warning", "error", "exception")


class Row(NamedTuple):
    problem: str
    status: frozenset[str]
    ready: frozenset[str]
    loggers: frozenset[str]
    metrics: frozenset[str]
    alerts: frozenset[str]


def rows() -> Iterator[Row]:
    text = OPERATIONS.partition("\n## What tells of a problem\n")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE)[1:]:
        problem, *cells = line.split(" | ")
        parts = (frozenset(cell.replace("`", "").split(", ")) - {"-"} for cell in cells)
        yield Row(problem, *parts)


TABLE: Final = [row for row in rows() if not row.problem.startswith("---")]


def column_of(column: str) -> set[str]:
    return set().union(*(getattr(row, column) for row in TABLE))


def modules() -> Iterator[tuple[str, ast.Module]]:
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield name, ast.parse(path.read_text())


def reports(tree: ast.Module) -> bool:
    """Whether the module logs a warning or an error, or holds a problem that is logged."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in _LOGGED:
                target = called.value
                name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
                if name in ("log", "_log"):
                    return True
            if isinstance(called, ast.Name) and called.id == "RetryProblem":
                return True
    return False


def test_every_module_that_logs_a_problem_is_in_the_table() -> None:
    # `runtime.retries` logs for those that hold a problem.
    found = {name for name, tree in modules() if reports(tree)} - {"runtime.retries"}
    assert column_of("loggers") == found


def test_every_check_of_status_is_in_the_table() -> None:
    texts = "".join(path.read_text() for path in sorted((ROOT / "commands/status").glob("*.py")))
    found = re.findall(r'StatusCheck\("([^"]+)"\)', texts)
    assert len(found) > 10
    assert column_of("status") == set(found)


def test_every_check_of_readiness_is_in_the_table() -> None:
    texts = "".join((ROOT / "webhook/server" / name).read_text() for name in ("app.py", "policies.py"))
    checks = r'\b(?:more_)?checks\["([^"]+)"\]|"([a-z ]+)": (?:certificates|backend|lifecycle|policies)\.'
    assert column_of("ready") == {one or other for one, other in re.findall(checks, texts)}


def test_every_alert_is_in_the_table() -> None:
    assert column_of("alerts") == set(ALERTS)


@pytest.mark.parametrize("row", TABLE, ids=[row.problem for row in TABLE])
def test_a_problem_has_metrics_that_its_alerts_read_and_runbooks(row: Row) -> None:
    if not row.alerts:
        assert not row.metrics
        assert ": " in row.problem, "say why there is no alert"
        return
    for alert in row.alerts:
        assert any(re.search(rf"\b{metric}\b", ALERTS[alert]["expr"]) for metric in row.metrics), alert
        assert f"\n### {alert}\n" in OPERATIONS
    for metric in row.metrics:
        assert any(re.search(rf"\b{metric}\b", ALERTS[alert]["expr"]) for alert in row.alerts), metric


@pytest.mark.parametrize("part", PARTS)
def test_every_part_with_a_problem_has_an_alert(part: str) -> None:
    expressions = " ".join(rule["expr"] for rule in ALERTS.values())
    assert re.search(rf'neuron_dra_problem\{{part=~?"([^"]*\|)?{part}[|"]', expressions)


def test_the_rules_can_be_evaluated() -> None:
    assert all(Rule.make(rule).name == name for name, rule in ALERTS.items())
