"""The authorizer: what is asked, and what it costs."""

import pytest

from kubecel.budget import POLICY_LIMITS, Budget
from kubecel.checking import CostLimit
from kubecel.compile import Cel
from kubecel.errors import CelBudgetExceededError, CelCostExceededError, CelRuntimeError, CelTypeError
from kubecel.library.authorization import AccessDecision, Authorizer, Question
from kubecel.types import AUTHORIZER
from kubecel_tests.evaluating import frozen_clock

REQUEST = Question(group="apps", resource="deployments", subresource="scale", namespace="lab", name="web")


def evaluated(
    source: str, answer: AccessDecision = AccessDecision(allowed=True, reason="because", error="broken")
) -> object:
    result, _, _ = asked(source, answer)
    return result


def asked(source: str, answer: AccessDecision = AccessDecision(allowed=True)) -> tuple[object, list[Question], int]:
    """The result, the questions and the cost."""
    questions: list[Question] = []

    def ask(question: Question) -> AccessDecision:
        questions.append(question)
        return answer

    program = Cel().compile(source, {"authorizer": AUTHORIZER})
    budget = Budget(frozen_clock, POLICY_LIMITS)
    result = program.evaluate({"authorizer": Authorizer(ask, REQUEST)}, budget)
    return result, questions, budget.spent


@pytest.mark.parametrize(
    ("source", "question"),
    [
        ("authorizer.group('').resource('pods').check('get')", Question("get", resource="pods")),
        (
            "authorizer.group('apps').resource('deployments').subresource('scale').namespace('a').name('b').check('x')",
            Question("x", None, "", "apps", "deployments", "scale", "a", "b"),
        ),
        (
            "authorizer.group('').resource('pods').fieldSelector('a=b').labelSelector('c in (d)').check('list')",
            Question("list", resource="pods", field_selector="a=b", label_selector="c in (d)"),
        ),
        ("authorizer.path('/healthz').check('get')", Question("get", path="/healthz")),
        (
            "authorizer.serviceAccount('lab', 'builder.x').group('').resource('pods').check('get')",
            Question("get", ("lab", "builder.x"), resource="pods"),
        ),
        (
            "authorizer.serviceAccount('lab', 'builder').path('/x').check('get')",
            Question("get", ("lab", "builder"), "/x"),
        ),
        (
            "authorizer.requestResource.check('update')",
            Question("update", None, "", "apps", "deployments", "scale", "lab", "web"),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_asked(source: str, question: Question) -> None:
    assert asked(f"{source}.allowed()")[:2] == (True, [question])


@pytest.mark.parametrize(
    ("method", "result"), [("allowed", True), ("reason", "because"), ("errored", True), ("error", "broken")]
)
def test_what_an_answer_has(method: str, result: object) -> None:
    assert evaluated(f"authorizer.path('/x').check('get').{method}()") == result


def test_an_answer_without_error() -> None:
    assert evaluated("authorizer.path('/x').check('get').errored()", AccessDecision(allowed=False)) is False


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("authorizer.path('')", "path must not be empty"),
        ("authorizer.serviceAccount('lab', 'Builder')", "'Builder' is not the name of a service account"),
        ("authorizer.serviceAccount('a.b', 'x')", "'a.b' is not the namespace of a service account"),
        ("authorizer.serviceAccount('', 'x')", "'' is not the namespace of a service account"),
        (f"authorizer.serviceAccount('a', '{'x' * 254}')", "is not the name of a service account"),
    ],
)
def test_questions_that_cannot_be_asked(source: str, message: str) -> None:
    with pytest.raises(CelRuntimeError, match=message):
        asked(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("authorizer.group(1)", r"'group' does not take kubernetes\.authorization\.Authorizer\.\(int\)"),
        ("authorizer.group('a').check('get')", "'check' does not take kubernetes.authorization.GroupCheck"),
        ("authorizer.requestResources", "has no field 'requestResources'"),
    ],
)
def test_types(source: str, message: str) -> None:
    with pytest.raises(CelTypeError, match=message):
        asked(source)


def test_a_check_costs_as_in_the_api_server() -> None:
    assert asked("authorizer.path('/x').check('get').allowed()")[2] == 350_000 + 3
    long = "authorizer.group('').resource('pods').fieldSelector('" + "a" * 100 + "').check('get').allowed()"
    assert asked(long)[2] == 350_000 + 4 + 10
    two = "authorizer.path('/x').check('get').allowed()"
    assert asked(f"{two} && {two}")[0] is True
    with pytest.raises(CelBudgetExceededError):
        asked(f"{two} && {two} && {two}")


def test_the_estimate_of_a_check() -> None:
    source = "authorizer.path('/x').check('get').allowed()"
    for most, fits in ((350_003, True), (350_002, False)):
        limit = CostLimit(most, lambda _: None)
        if fits:
            Cel().compile(source, {"authorizer": AUTHORIZER}, limit=limit)
        else:
            with pytest.raises(CelCostExceededError):
                Cel().compile(source, {"authorizer": AUTHORIZER}, limit=limit)
