"""The generator and the comparison of `make cel-oracle`, without an API server."""

from pathlib import Path

import pytest

from kubecel.budget import Budget
from kubecel.compile import parse
from kubecel.errors import CelBudgetExceededError
from kubecel.syntax import nodes as syntax
from kubecel_tests import oracle
from kubecel_tests.evaluating import compiled, frozen_clock
from kubecel_tests.oracle import Answer, Difference, Outcome
from kubecel_tests.random_expressions import Generator
from kubecel_tests.record_answers import POD

EXPRESSIONS = Generator(3).expressions(1500)


def test_a_seed_gives_the_same_expressions_and_another_seed_others() -> None:
    assert Generator(3).expressions(1500) == EXPRESSIONS
    assert len(set(EXPRESSIONS)) == 1500
    assert len(set(Generator(4).expressions(1500)) & set(EXPRESSIONS)) < 300


def test_all_expressions_parse_and_have_every_kind_of_node_macro_and_operator() -> None:
    nodes = [node for expression in EXPRESSIONS for node in syntax.walk(parse(expression))]
    kinds = {type(node) for node in nodes}
    absent = {syntax.Bind, syntax.ObjectLiteral}
    assert kinds == {*syntax._CHILDREN} - absent, (
        "the API server has no cel.bind in policies, and objects in patches only"
    )
    macros = {node.macro for node in nodes if isinstance(node, syntax.Comprehension)}
    assert macros == {*syntax.Macro}
    operators = {node.operator for node in nodes if isinstance(node, syntax.Binary)}
    assert operators == {*"+-*/%<>", "<=", ">=", "==", "!=", "in"}


def test_expressions_are_of_all_outcomes() -> None:
    kinds = [oracle.ours(expression, POD).kind for expression in EXPRESSIONS[:400]]
    assert {kind: kinds.count(kind) > 40 for kind in ("value", "error", "refused")} == dict.fromkeys(
        ("value", "error", "refused"), True
    )


VALUE, ERROR, REFUSED = Answer("value", "list", "[1, 2]"), Answer("error", text="no"), Answer("refused", text="no")
COMPARED: dict[str, tuple[str, Answer, Answer, str | None]] = {
    # name: (expression, ours, theirs, class of the difference; None: none)
    "same": ("a", VALUE, VALUE, None),
    "both fail": ("a", ERROR, Answer("error", text="other words"), None),
    "a value that the server cannot write": ("a", VALUE, Answer("value", "", "?"), None),
    "another value": ("a", VALUE, Answer("value", "list", "[1, 3]"), ""),
    "another type": ("a", VALUE, Answer("value", "string", "[1, 2]"), ""),
    "an error here": ("a", ERROR, VALUE, ""),
    "an error there": ("a", VALUE, ERROR, ""),
    "refused here": ("a", REFUSED, ERROR, ""),
    "refused there": ("a", ERROR, REFUSED, ""),
    "another order": ("a", VALUE, Answer("value", "list", "[2, 1]"), ""),
    "equal keys": ("a.sortBy(x, 1)", VALUE, Answer("value", "list", "[2, 1]"), "order of equal keys"),
    "without order": ("a", Answer("error", text="'max' does not take (int, string)"), VALUE, "values without order"),
    "the server loses an error": (
        "a",
        VALUE,
        Answer("error", text="*types.Err is not traits.Lister: missing method Add"),
        "errors of lists",
    ),
    "keys": ("a", Answer("error", text="the map has the key 'a' twice"), VALUE, "keys of a map"),
    "other errors": ("a", ERROR, VALUE, ""),
    "least int": ("quantity('1').sub(-9223372036854775808)", VALUE, Answer("value", "double", "1"), "least int"),
    "broke": ("a", VALUE, Answer("broke"), ""),
    "broke at an optional element": ("size([1, ?a])", VALUE, Answer("broke"), "the server breaks off"),
    "broke at an optional entry": ("{?'a': a}", VALUE, Answer("broke"), "the server breaks off"),
}


@pytest.mark.parametrize(("expression", "ours", "theirs", "known"), COMPARED.values(), ids=COMPARED)
def test_answers_are_compared(expression: str, ours: Answer, theirs: Answer, known: str | None) -> None:
    found = oracle.compare(expression, ours, theirs)
    assert (found.known if found else None) == known


def test_the_summary_counts_classes_and_shows_what_is_not_documented() -> None:
    outcome = Outcome([Difference("a", VALUE, ERROR, ""), Difference("b", ERROR, VALUE, "keys of a map")], limits=1)
    outcome.answers["value"] += 2
    assert outcome.summary() == (
        "2 expressions (2 value), 1 at the limit of the cost, of which 0 are constant: the server charges "
        "what it has folded, not Kubernetes' tables of costs\n"
        "     1  NOT DOCUMENTED\n     1  keys of a map\n"
        "a\n    here:   value list [1, 2]\n    server: error  no"
    )
    assert [each.expression for each in outcome.new] == ["a"]


@pytest.mark.parametrize("expression", ["1", "object.metadata.labels", "'a' in ['a']", "[1, 2].map(x, x + 1)"])
def test_padded_expressions_cost_the_limit_and_one_more(expression: str) -> None:
    pair = oracle.at_the_limit(expression, POD)
    assert pair is not None
    values = {"object": POD, "oldObject": None}
    budget = Budget(frozen_clock)
    assert compiled(pair[0], values).evaluate(values, budget) is True
    assert budget.spent == oracle.LIMIT
    with pytest.raises(CelBudgetExceededError):
        compiled(pair[1], values).evaluate(values, Budget(frozen_clock))


def test_an_absent_api_server_is_named(tmp_path: Path) -> None:
    assert oracle.missing_binaries(tmp_path) == ["etcd", "kube-apiserver"]
    (tmp_path / "etcd").touch(0o755)
    assert oracle.missing_binaries(tmp_path) == ["kube-apiserver"]
