"""The evaluator of alerts has the answers of Prometheus; where promtool is, it is asked, too."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.promql import NAME, InvalidError, Labels, NotEvaluatedError, Rule, Series, labels_of

SAMPLES: dict[str, list[float | None]] = {
    'a{x="1",y="p"}': [1.0] * 20,
    'a{x="2",y="q"}': [2.0] * 20,
    'b{x="1"}': [10.0] * 20,
    'b{x="3"}': [30.0] * 20,
    'gone{x="1"}': [5.0] * 10 + [None] * 10,
    'counter{x="1"}': [60.0 * at for at in range(20)],
    'counter{x="2"}': [60.0 * (at % 12) for at in range(20)],
    'late{x="1"}': [None] * 17 + [0.0, 120.0, 240.0],
    'h_bucket{le="0.1"}': [6.0 * at for at in range(20)],
    'h_bucket{le="1"}': [9.0 * at for at in range(20)],
    'h_bucket{le="+Inf"}': [10.0 * at for at in range(20)],
}
MINUTE = 19


SERIES = Series({labels_of(name): values for name, values in SAMPLES.items()})
CASES: dict[str, dict[str, float]] = {
    "a": {'a{x="1", y="p"}': 1, 'a{x="2", y="q"}': 2},
    'a{x="1"} + 1': {'{x="1", y="p"}': 2},
    'a{x!="1"}': {'a{x="2", y="q"}': 2},
    'a{x=~"1|3"}': {'a{x="1", y="p"}': 1},
    'a{x!~"1.*"}': {'a{x="2", y="q"}': 2},
    'a{z=""}': {'a{x="1", y="p"}': 1, 'a{x="2", y="q"}': 2},
    "a > 1": {'a{x="2", y="q"}': 2},
    "1 < a": {'a{x="2", y="q"}': 2},
    "0 < a < 2": {'a{x="1", y="p"}': 1},
    "time() - a": {'{x="1", y="p"}': 1139, '{x="2", y="q"}': 1138},
    "a == on (x) (b * 0.1)": {'{x="1"}': 1},
    "b - on (x) a": {'{x="1"}': 9},
    "b > on (x) a": {'{x="1"}': 10},
    "b - ignoring (y) a": {'{x="1"}': 9},
    "b and on (x) a": {'b{x="1"}': 10},
    "b unless on (x) a": {'b{x="3"}': 30},
    "b unless on () nothing": {'b{x="1"}': 10, 'b{x="3"}': 30},
    "b and on () a": {'b{x="1"}': 10, 'b{x="3"}': 30},
    "b or on (x) a": {'b{x="1"}': 10, 'b{x="3"}': 30, 'a{x="2", y="q"}': 2},
    "count by (x) (a)": {'{x="1"}': 1, '{x="2"}': 1},
    "sum(b)": {"{}": 40},
    "min(b)": {"{}": 10},
    "max without (y) (a)": {'{x="1"}': 1, '{x="2"}': 2},
    "sum by (nothing) (b)": {"{}": 40},
    "absent(b == 1)": {"{}": 1},
    "absent(b == 10)": {},
    "gone": {},
    "gone offset 10m": {'gone{x="1"}': 5},
    "gone offset 6m": {'gone{x="1"}': 5},
    'rate(counter{x="1"}[5m])': {'{x="1"}': 1},
    'increase(counter{x="1"}[10m])': {'{x="1"}': 600},
    "increase(counter{x='2'}[870s])": {'{x="2"}': (420 - 300 + 660) * 870 / 840},
    "increase(late[15m])": {'{x="1"}': 240},
    "rate(gone[2m])": {},
    "histogram_quantile(0.5, rate(h_bucket[5m]))": {"{}": 0.1 * 5 / 6},
    "histogram_quantile(0.75, rate(h_bucket[5m]))": {"{}": 0.1 + 0.9 * 0.5},
    "histogram_quantile(0.99, rate(h_bucket[5m]))": {"{}": 1},
}
"""Expression -> its series in the last minute."""
REFUSED = {
    "stddev(a)": "aggregation",
    "topk(1, a)": "aggregation",
    "a / 2": "operator /",
    "delta(a[5m])": "function delta",
    "a % 2": "operator %",
    "a > bool 1": "modifier",
    "a * on (x) group_left (y) b": "group_left",
    "-a": "UnaryExpr",
    "a[5m:1m]": "SubqueryExpr",
    "a @ 100": "selector",
    'absent(a{x="1"})': "absent of a selector",
    "increase(a[5m:1m])": "subquery",
}


def shown(key: Labels) -> str:
    """As Prometheus prints a series."""
    inside = ", ".join(f"{name}={json.dumps(value)}" for name, value in key if name != NAME)
    name = dict(key).get(NAME, "")
    return f"{name}{{{inside}}}" if inside or not name else name


@pytest.mark.parametrize("expression", CASES)
def test_an_expression_has_the_value_of_prometheus(expression: str) -> None:
    found = SERIES.evaluate(expression, MINUTE)
    assert isinstance(found, dict)
    assert {shown(key): value for key, value in found.items()} == pytest.approx(CASES[expression])


@pytest.mark.parametrize("expression", REFUSED)
def test_a_part_that_is_not_evaluated_is_an_error(expression: str) -> None:
    with pytest.raises(NotEvaluatedError, match=re.escape(REFUSED[expression])):
        SERIES.evaluate(expression, MINUTE)


@pytest.mark.parametrize("expression", ["a - on () b", "a - on (x) sum by (x, y) (a) and b - on () a"])
def test_a_match_of_several_series_is_an_error(expression: str) -> None:
    with pytest.raises(InvalidError, match="two series"):
        SERIES.evaluate(expression, MINUTE)


def test_a_histogram_without_observations_has_no_quantile() -> None:
    still = Series({labels_of(f'h{{le="{bound}"}}'): [3.0] * 20 for bound in ("1", "+Inf")})
    [value] = still.evaluate("histogram_quantile(0.9, rate(h[5m]))", MINUTE).values()  # type: ignore[union-attr]
    assert math.isnan(value)


def test_an_alert_fires_once_it_was_active_for_its_time() -> None:
    rule = Rule.make({"alert": "A", "expr": "s > 0", "for": "3m", "labels": {"severity": "info"}})
    series = Series({labels_of('s{x="1"}'): [1.0] * 3 + [0.0] + [1.0] * 6})
    assert [minute for minute in range(10) if rule.firing(series, minute)] == [7, 8, 9]
    assert rule.firing(series, 9) == [(("severity", "info"), ("x", "1"))]


def test_a_field_of_a_rule_that_is_not_evaluated_is_an_error() -> None:
    with pytest.raises(NotEvaluatedError, match="keep_firing_for"):
        Rule.make({"alert": "A", "expr": "s", "keep_firing_for": "5m"})


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here, which evaluates the same expressions")
def test_promtool_has_the_same_values(tmp_path: Path) -> None:
    inputs = [
        {"series": name, "values": " ".join("_" if each is None else f"{each:g}" for each in values)}
        for name, values in SAMPLES.items()
    ]
    tests = [
        {
            "expr": expression,
            "eval_time": f"{MINUTE}m",
            "exp_samples": [{"labels": name, "value": value} for name, value in wanted.items()],
        }
        for expression, wanted in CASES.items()
        if all(value.is_integer() for value in map(float, wanted.values()))  # promtool compares all digits
    ]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
