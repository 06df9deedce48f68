"""Evaluates the expressions of alerts over made series, as Prometheus 3 does.

promql-parser reads the expressions; what it reads and this module does not evaluate is an error, never a guess. Rules:
https://prometheus.io/docs/prometheus/latest/querying/basics/, and functions.go and engine.go of Prometheus.
"""

import dataclasses
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import promql_parser as promql

Labels = tuple[tuple[str, str], ...]
"""Names and values in order; the name of the metric is the label `__name__`."""
Vector = dict[Labels, float]
Value = Vector | float

STEP: Final = 60
"""Seconds between two samples, and between two evaluations."""
LOOKBACK: Final = 300
"""Seconds for which the last sample of a series counts."""
NAME: Final = "__name__"

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
}  # fmt: skip
_AGGREGATIONS: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {
    "sum": math.fsum, "min": min, "max": max, "count": lambda values: float(sum(1 for _ in values)),
}  # fmt: skip


class NotEvaluatedError(Exception):
    """The expression has a part that this module does not evaluate: add it here, with a case in its test."""


class InvalidError(Exception):
    """Prometheus refuses to evaluate the expression on these series."""


def labels_of(name: str) -> Labels:
    """Of a series by its name: `up{job="a"}`."""
    metric, _, inside = name.partition("{")
    return labels({NAME: metric, **dict(re.findall(r'(\w+)="([^"]*)"', inside))})


def labels(values: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in values.items() if value))


class Series:
    """Series with a sample each minute from minute 0 on; None: no sample."""

    def __init__(self, samples: Mapping[Labels, Sequence[float | None]]) -> None:
        self._by_name: dict[str, list[tuple[Labels, Sequence[float | None]]]] = {}
        for found, values in samples.items():
            self._by_name.setdefault(dict(found)[NAME], []).append((found, values))

    def evaluate(self, expression: str, minute: int) -> Value:
        """The value of an expression.

        Raises:
            NotEvaluatedError: it has a part that is not known here.
            InvalidError: it has no value by the rules of Prometheus, such as for two series on one side of a match.
            ValueError: it is no expression.
        """
        return self._value(promql.parse(expression), minute * STEP)

    def _value(self, node: Any, at: int) -> Value:
        match node:
            case promql.NumberLiteral():
                return float(node.val)
            case promql.ParenExpr():
                return self._value(node.expr, at)
            case promql.VectorSelector():
                found = self._window(node, at, LOOKBACK)
                return {key: samples[-1][1] for key, samples in found.items()}
            case promql.AggregateExpr():
                return self._aggregated(node, at)
            case promql.BinaryExpr():
                left, right = self._value(node.lhs, at), self._value(node.rhs, at)
                return _combined(str(node.op), left, right, node.modifier)
            case promql.Call():
                return self._called(node, at)
        raise NotEvaluatedError(f"{type(node).__name__}: {node}")

    def _window(self, node: promql.VectorSelector, at: int, seconds: float) -> dict[Labels, list[tuple[int, float]]]:
        """Series that a selector selects -> times and values of their samples of the last so many seconds."""
        if node.at is not None or node.name is None or node.matchers.or_matchers:
            raise NotEvaluatedError(f"selector: {node}")
        end = at - int(node.offset.total_seconds()) if node.offset else at
        found = {}
        for key, values in self._by_name.get(node.name, ()):
            if all(_matches(dict(key), each) for each in node.matchers.matchers):
                first = max(0, math.floor((end - seconds) / STEP) + 1)
                samples = [
                    (minute * STEP, value)
                    for minute, value in enumerate(values[first : end // STEP + 1], first)
                    if value is not None
                ]
                if samples:
                    found[key] = samples
        return found

    def _aggregated(self, node: promql.AggregateExpr, at: int) -> Vector:
        aggregate = _AGGREGATIONS.get(str(node.op))
        if aggregate is None or node.param is not None:
            raise NotEvaluatedError(f"aggregation: {node}")
        inside = _vector(self._value(node.expr, at), node)
        groups: dict[Labels, list[float]] = {}
        for key, value in inside.items():
            if node.modifier is None:
                group: Labels = ()
            elif node.modifier.type == promql.AggModifierType.By:
                group = _only(key, node.modifier.labels)
            else:
                group = _without(key, (*node.modifier.labels, NAME))
            groups.setdefault(group, []).append(value)
        return {key: aggregate(values) for key, values in groups.items()}

    def _called(self, node: promql.Call, at: int) -> Value:
        name, arguments = node.func.name, node.args
        match name:
            case "time":
                return float(at)
            case "absent":
                [argument] = arguments
                if isinstance(argument, promql.VectorSelector):
                    raise NotEvaluatedError(f"absent of a selector, which has labels: {node}")
                return {} if self._value(argument, at) else {(): 1.0}
            case "rate" | "increase":
                [argument] = arguments
                if not isinstance(argument, promql.MatrixSelector):
                    raise NotEvaluatedError(f"{name} of a subquery: {node}")
                seconds = argument.range.total_seconds()
                found = self._window(argument.vector_selector, at, seconds)
                end = at - (argument.vector_selector.offset.total_seconds() if argument.vector_selector.offset else 0)
                made = {_without(key, (NAME,)): _increase(each, end - seconds, end) for key, each in found.items()}
                divisor = seconds if name == "rate" else 1
                return {key: value / divisor for key, value in made.items() if value is not None}
            case "histogram_quantile":
                share, buckets = (self._value(each, at) for each in arguments)
                if not isinstance(share, float) or not 0 <= share <= 1:
                    raise NotEvaluatedError(f"share: {node}")
                return _quantiles(share, _vector(buckets, node))
        raise NotEvaluatedError(f"function {name}: {node}")


def _matches(found: Mapping[str, str], matcher: Any) -> bool:
    value, operation = found.get(matcher.name, ""), matcher.op
    if operation in (promql.MatchOp.Equal, promql.MatchOp.NotEqual):
        return (value == matcher.value) is (operation == promql.MatchOp.Equal)
    return (re.fullmatch(matcher.value, value, re.DOTALL) is not None) is (operation == promql.MatchOp.Re)


def _only(key: Labels, names: Iterable[str]) -> Labels:
    wanted = set(names)
    return tuple(each for each in key if each[0] in wanted)


def _without(key: Labels, names: Iterable[str]) -> Labels:
    left_out = set(names)
    return tuple(each for each in key if each[0] not in left_out)


def _vector(value: Value, node: object) -> Vector:
    if isinstance(value, float):
        raise NotEvaluatedError(f"a scalar where a vector is expected: {node}")
    return value


def _unique(pairs: Iterable[tuple[Labels, float]], what: str) -> Vector:
    made: Vector = {}
    for key, value in pairs:
        if key in made:
            raise InvalidError(f"{what} has two series {dict(key)}")
        made[key] = value
    return made


def _combined(operation: str, left: Value, right: Value, modifier: Any) -> Value:
    """The value of a binary expression."""
    if modifier is not None and (modifier.return_bool or _fills(modifier)):
        raise NotEvaluatedError(f"modifier of {operation}")
    if operation in ("and", "or", "unless"):
        return _set_operation(operation, _vector(left, operation), _vector(right, operation), modifier)
    compares = operation in _COMPARISONS
    if not compares and operation not in _ARITHMETIC:
        raise NotEvaluatedError(f"operator {operation}")
    if isinstance(left, float) and isinstance(right, float):
        if compares:
            raise NotEvaluatedError(f"two scalars on the sides of {operation}")
        return _ARITHMETIC[operation](left, right)
    if isinstance(left, float) or isinstance(right, float):
        return _with_scalar(operation, left, right)
    if modifier is not None and modifier.card != promql.VectorMatchCardinality.OneToOne:
        raise NotEvaluatedError(f"group_left and group_right of {operation}")
    others = _unique(((_signature(key, modifier), value) for key, value in right.items()), f"the right of {operation}")
    _unique(((each, 0.0) for key in left if (each := _signature(key, modifier)) in others), f"the left of {operation}")
    made = []
    for key, value in left.items():
        signature = _signature(key, modifier)
        if signature not in others:
            continue
        matched = modifier is not None and modifier.matching is not None
        result = signature if matched else key if compares else _without(key, (NAME,))
        if not compares:
            made.append((result, _ARITHMETIC[operation](value, others[signature])))
        elif _COMPARISONS[operation](value, others[signature]):
            made.append((result, value))
    return _unique(made, f"the result of {operation}")


def _fills(modifier: Any) -> bool:
    fill = modifier.fill_values
    return fill is not None and (fill.lhs is not None or fill.rhs is not None)


def _with_scalar(operation: str, left: Value, right: Value) -> Vector:
    made = []
    for key, value in (right if isinstance(left, float) else left).items():  # type: ignore[union-attr]
        sides = (left, value) if isinstance(left, float) else (value, right)
        if operation in _ARITHMETIC:
            made.append((_without(key, (NAME,)), _ARITHMETIC[operation](*sides)))  # type: ignore[arg-type]
        elif _COMPARISONS[operation](*sides):  # type: ignore[arg-type]
            made.append((key, value))
    return _unique(made, f"the result of {operation}")


def _signature(key: Labels, modifier: Any) -> Labels:
    """What has to be equal on both sides."""
    matching = modifier.matching if modifier is not None else None
    if matching is None:
        return _without(key, (NAME,))
    if matching.type == promql.LabelModifierType.Include:
        return _only(key, matching.labels)
    return _without(key, (*matching.labels, NAME))


def _set_operation(operation: str, left: Vector, right: Vector, modifier: Any) -> Vector:
    others = {_signature(key, modifier) for key in right}
    if operation != "or":
        return {
            key: value for key, value in left.items() if (_signature(key, modifier) in others) is (operation == "and")
        }
    known = {_signature(key, modifier) for key in left}
    return left | {key: value for key, value in right.items() if _signature(key, modifier) not in known}


def _increase(samples: Sequence[tuple[int, float]], begin: float, end: float) -> float | None:
    """How much a counter has increased between two times, with the parts before and after its samples estimated."""
    if len(samples) < 2:
        return None
    values = [value for _, value in samples]
    resets = sum(before for before, after in itertools.pairwise(values) if after < before)
    found = values[-1] - values[0] + resets
    sampled = samples[-1][0] - samples[0][0]
    between = sampled / (len(samples) - 1)
    before, after = samples[0][0] - begin, end - samples[-1][0]
    if before >= between * 1.1:
        before = between / 2
    if found > 0 and values[0] >= 0:
        before = min(before, sampled * values[0] / found)
    if after >= between * 1.1:
        after = between / 2
    return found * (sampled + before + after) / sampled


def _quantiles(share: float, buckets: Vector) -> Vector:
    """The quantile of each classic histogram among the series."""
    histograms: dict[Labels, list[tuple[float, float]]] = {}
    for key, count in buckets.items():
        bound = dict(key).get("le")
        if bound is not None:
            histograms.setdefault(_without(key, ("le", NAME)), []).append((float(bound), count))
    return {key: _quantile(share, sorted(each)) for key, each in histograms.items()}


def _quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float:
    if len(buckets) < 2 or buckets[-1][0] != math.inf or buckets[-1][1] == 0:
        return math.nan
    if any(before > after for (_, before), (_, after) in itertools.pairwise(buckets)):
        raise NotEvaluatedError("counts of buckets that decrease")
    rank = share * buckets[-1][1]
    position = next(at for at, (_, count) in enumerate(buckets) if count >= rank)
    if position == len(buckets) - 1:
        return buckets[-2][0]
    bound, count = buckets[position]
    if position == 0 and bound <= 0:
        return bound
    start, before = buckets[position - 1] if position else (0.0, 0.0)
    return start + (bound - start) * (rank - before) / (count - before)


@dataclasses.dataclass(frozen=True)
class Rule:
    """One alert.

    Attributes:
        name: of the alert.
        expression: that has a series while the alert is active.
        minutes: for which it has to be active until it fires.
        labels: that the alert gets.
    """

    name: str
    expression: str
    minutes: int
    labels: Mapping[str, str]

    @classmethod
    def make(cls, rule: Mapping[str, Any]) -> "Rule":
        """Read a rule of a file of rules.

        Raises:
            NotEvaluatedError: it has a field, or a template in a label, that is not known here.
        """
        unknown = rule.keys() - {"alert", "expr", "for", "labels", "annotations"}
        added = rule.get("labels", {})
        if unknown or any("{{" in value for value in added.values()):
            raise NotEvaluatedError(f"{rule['alert']}: {sorted(unknown)} {added}")
        seconds = promql.parse_duration(rule["for"]).total_seconds() if "for" in rule else 0
        return cls(rule["alert"], rule["expr"], math.ceil(seconds / STEP), added)

    def firing(self, series: Series, minute: int) -> list[Labels]:
        """Labels of its alerts that fire in a minute: those that were active in each evaluation since `minutes` before.

        Raises:
            InvalidError: two of its series differ in the name of their metric only.
        """
        found: set[Labels] | None = None
        for at in range(minute - self.minutes, minute + 1):
            value = series.evaluate(self.expression, at) if at >= 0 else {}
            active = _unique(
                ((_without(key, (NAME,)), each) for key, each in _vector(value, self.name).items()), self.name
            )
            found = set(active) if found is None else found & set(active)
        return sorted(labels({**dict(key), **self.labels}) for key in found or ())
