"""Estimates of decisions, and the order of those that wait."""

import dataclasses
import time

import pytest

from checks.claims.selectors import ExpressionMemory, Judged, judge
from neuron.api.claim_specs import Selector
from policies.judging.selectors import DeviceSelectors
from tests.support.validation import INDEX
from webhook.reviews.effort import Costs, DecisionQueue, of_selectors, of_unread
from webhook.reviews.worker_threads import SIZES

PLAIN = "device.attributes['neuron.aws.com'].cores == "


@dataclasses.dataclass(eq=False)
class Job:
    name: str
    client: str = ""
    namespace: str = ""
    estimate: float = 0.0


def order(*jobs: Job) -> list[str]:
    turns: DecisionQueue[Job] = DecisionQueue()
    for job in jobs:
        turns.add(job)
    found = []
    while (job := turns.take()) is not None:
        found.append(job.name)
    return found


def test_one_plain_selector_is_small_and_a_thousand_are_long() -> None:
    assert of_selectors([f"{PLAIN}1"], None) <= SIZES[0].estimate
    assert of_selectors([f"{PLAIN}{at}" for at in range(1024)], None) > SIZES[1].estimate
    many = b",".join(b'{"cel":{"expression":"%s%d"}}' % (PLAIN.encode(), at) for at in range(1024))
    assert of_unread(many) > SIZES[1].estimate
    assert of_unread(b"x" * len(many)) <= SIZES[1].estimate


@pytest.mark.parametrize(
    "expression",
    [
        "[1,2,3,4,5,6,7,8].all(x,[1,2,3,4,5,6,7,8].all(y,[1,2,3,4,5,6,7,8].all (z,x+y+z>0)))",
        "device.attributes['neuron.aws.com'].all(k,'x'.matches('(a|b|1)*c')) || true",
        "||".join(f"{PLAIN}{at}" for at in range(150)),
        "(" * 45 + "1==1" + ")" * 45,
    ],
)
def test_the_estimate_is_not_much_lower_than_the_true_time(expression: str) -> None:
    engine = DeviceSelectors()
    engine.compile("true")
    started = time.thread_time()
    judge(Selector("p", expression), engine, INDEX)
    assert of_selectors([expression], None) > (time.thread_time() - started) / 4


def test_remembered_selectors_take_no_time() -> None:
    memory: ExpressionMemory[Judged] = ExpressionMemory()
    judge(Selector("p", "true"), DeviceSelectors(), INDEX, memory)
    assert of_selectors(["true"], memory) == 0.0
    assert of_selectors(["false", "false"], memory) == of_selectors(["false"], memory) > 0.0


def test_short_decisions_are_first() -> None:
    assert order(Job("c", estimate=0.009), Job("b", estimate=0.004), Job("a", estimate=0.001)) == ["a", "b", "c"]


def test_clients_take_turns_and_a_new_namespace_has_no_advantage() -> None:
    attacker = [Job(f"a{at}", "10.0.0.1", f"fresh-{at}") for at in range(6)]
    assert order(*attacker, Job("b", "10.0.0.2", "team"))[:2] == ["a0", "b"]
    assert order(*attacker[:3], Job("b", "10.0.0.1", "team"), *attacker[3:])[3] == "b"


def test_a_longer_decision_is_started_despite_many_short_ones() -> None:
    turns: DecisionQueue[Job] = DecisionQueue()
    turns.add(Job("long", estimate=0.009))
    taken: list[str] = []
    while "long" not in taken:
        turns.add(Job("short"))
        job = turns.take()
        assert job is not None
        taken.append(job.name)
        assert len(taken) <= 8


def test_the_cost_of_policies_is_learnt_by_kind_and_size() -> None:
    costs: Costs[tuple[str]] = Costs()
    kind = ("kind",)
    assert costs.expected(kind, 1000, 0.5) == 0.5
    costs.took(kind, 1000, 0.1)
    assert costs.expected(kind, 1000, 0.5) == pytest.approx(0.1)
    costs.took(kind, 1001, 0.2)
    assert costs.expected(kind, 1000, 0.5) == pytest.approx(0.125)
    assert costs.least(kind, 1000, 0.5) == pytest.approx(0.105)
    costs.took(kind, 1000, 0.02)
    assert costs.least(kind, 1000, 0.5) == 0.02
    assert costs.least(("other",), 1000, 0.5) == 0.5
    assert costs.expected(kind, 3000, 0.5) == 0.5
    assert costs.expected(("other",), 1000, 0.5) == 0.5
