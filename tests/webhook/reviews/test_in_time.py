"""Policies deny in time although other work is slow, and other reviews do not wait."""

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import pytest

from conversion.objects import wire
from conversion.patches.decision import Decision
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec
from policies.judging.rules import PolicySet
from tests.support.callers import caller_waits
from tests.support.manifests import container, pod
from tests.support.timing import assert_below
from tests.webhook.reviews.policed import FOUR, V1, Ticking, Watching, judged, many_names, reviewer, sent, written
from tests.webhook.reviews.test_policed import policy, texts_of
from webhook.reviews import policy_requests
from webhook.reviews.policy_requests import Allowance
from webhook.reviews.worker_threads import LaneFullError, LaneTimeoutError, Result, ThreadLane

# --- time-outs do not open doors ----------------------------------------------------------------------------------


class Slow:
    """A reviewer whose look-up at the API server never ends."""

    def __init__(self) -> None:
        self.asked = 0

    async def review(self, request: wire.AdmissionRequest) -> Decision:  # noqa: ARG002
        self.asked += 1
        await asyncio.sleep(60)
        raise AssertionError


class Full:
    """A lane in which too many decisions wait."""

    async def run(
        self,
        namespace: str,  # noqa: ARG002
        work: Callable[[], Result],  # noqa: ARG002
        seconds: float = 0.0,  # noqa: ARG002
        key: Hashable = None,  # noqa: ARG002
    ) -> Result:
        raise LaneFullError("too many long decisions wait")


def late(found: PolicySet, data: Any, seconds: float = 0.3, **parts: Any) -> tuple[Decision, float]:
    async def run() -> tuple[Decision, float]:
        judge = reviewer(found, **parts)
        started = time.monotonic()
        with caller_waits(seconds):
            decision = await judge.review(sent(data))
        return decision, time.monotonic() - started

    return asyncio.run(run())


def test_a_denial_is_answered_without_look_ups() -> None:
    inner = Slow()
    decision, seconds = late(written(policy(FOUR)), many_names(1600), inner=inner)
    assert texts_of(decision.errors) == ["NEU801: policy 'p': at most four"]
    assert (decision.outcome, decision.reason, inner.asked) == ("denied", "policy", 1)
    assert_below(seconds, 2)


def test_an_unfinished_review_without_a_denial_times_out() -> None:
    with pytest.raises(LaneTimeoutError):
        late(written(policy("validations: [{expression: 'true'}]")), pod(container(neuron="1")), inner=Slow())


def test_a_reviewer_that_fails_does_not_lose_a_denial(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def review(self, request: wire.AdmissionRequest) -> Decision:  # noqa: ARG002
            raise KeyError("a fault")

    decision, _ = late(written(policy(FOUR)), pod(container(neuron="16")), inner=Broken())
    assert texts_of(decision.errors) == ["NEU801: policy 'p': at most four"]
    with pytest.raises(KeyError):
        late(written(policy(FOUR)), pod(container(neuron="4")), inner=Broken())


@pytest.mark.parametrize(
    ("spec", "codes"),
    [
        pytest.param("", (["NEU803"], []), id="deny"),
        pytest.param("failurePolicy: Ignore", ([], ["NEU803"]), id="ignore"),
        pytest.param("validationActions: [Warn]", ([], ["NEU802"]), id="warn"),
    ],
)
def test_a_full_lane_denies_objects_that_a_policy_may_deny(spec: str, codes: tuple[list[str], list[str]]) -> None:
    large = pod(container(neuron="16"), annotations={"a": "x" * 200_000})
    decision, _ = late(written(policy(f"{FOUR}\n{spec}")), large, lane=Full())
    found = [list(dict.fromkeys(each.code for each in findings)) for findings in (decision.errors, decision.warnings)]
    assert tuple(found) == codes
    text = " ".join(each.message for each in (*decision.errors, *decision.warnings))
    assert "policy 'p': not evaluated: too many long decisions wait" in text


def test_a_late_lane_denies_objects_that_a_policy_may_deny() -> None:
    class Late:
        async def run(
            self,
            namespace: str,  # noqa: ARG002
            work: Callable[[], Result],  # noqa: ARG002
            seconds: float = 0.0,  # noqa: ARG002
            key: Hashable = None,  # noqa: ARG002
        ) -> Result:
            raise LaneTimeoutError("this decision takes longer than its caller waits")

    large = pod(container(neuron="16"), annotations={"a": "x" * 200_000})
    decision, seconds = late(written(policy(FOUR)), large, lane=Late(), inner=Slow())
    assert [each.code for each in decision.errors] == ["NEU803"]
    assert_below(seconds, 2)


def test_policies_that_are_slow_are_refused_in_time() -> None:
    slow = policy(
        "validations: [{expression: 'object.spec.containers.all(c, object.spec.containers.all(d, c.name != \"\"))'}]"
    )
    data = pod(*[container(f"c{at}") for at in range(900)])
    lane = ThreadLane()
    try:
        decision, seconds = late(written(slow), data, 2.0, lane=lane)
    finally:
        lane.close()
    assert [each.code for each in decision.errors] == ["NEU803"]
    assert_below(seconds, 3)


@pytest.mark.parametrize(
    ("spec", "members", "must"),
    [
        pytest.param("", {}, True, id="deny"),
        pytest.param("failurePolicy: Ignore", {}, False, id="ignore"),
        pytest.param("validationActions: [Warn]", {}, False, id="warn"),
        pytest.param("", {"operation": "DELETE"}, False, id="another-operation"),
        pytest.param("", {"resource": {"group": "", "version": "v1", "resource": "nodes"}}, False, id="another-kind"),
    ],
)
def test_only_objects_that_a_fail_closed_policy_may_deny_must_be_answered(
    spec: str, members: dict[str, Any], must: bool
) -> None:
    assert reviewer(written(policy(f"{FOUR}\n{spec}"))).must_answer(sent(None, **members)) is must


# --- other reviews do not wait ------------------------------------------------------------------------------------


SIZES = ((4_000, 0), (9_000, 2), (31_000, 2), (40_000, 2))
"""Bytes, and the turns in the lane that they take."""


def test_a_namespace_that_used_up_its_time_goes_to_the_lane_at_once() -> None:
    spent = Allowance(lambda: 0.0, most=0.0)
    lane = Watching()
    assert judged(written(policy(FOUR)), sent(pod(container(neuron="4"))), lane=lane, allowance=spent).allowed
    assert lane.threads == ["default"]


def test_many_small_objects_that_are_slow_to_judge_use_up_the_time_of_their_namespace() -> None:
    quadratic = 'object.spec.containers.all(c, object.spec.containers.all(d, d.name != "x"))'
    found = written(policy(f"validations: [{{expression: '{quadratic}'}}]\nfailurePolicy: Ignore"))

    def used_up(containers: int) -> bool:
        clock = Ticking()
        allowance = Allowance(clock, window=1000)
        data = {"spec": {"containers": [{"name": str(at)} for at in range(containers)]}, "kind": "Pod"}
        judge = reviewer(found, lane=Watching(), allowance=allowance, clock=clock)

        async def run() -> None:
            assert allowance.lasts("default")
            for _ in range(15):
                await judge.review(sent({**data, "apiVersion": "v1"}))

        asyncio.run(run())
        assert allowance.lasts("another")
        return not allowance.lasts("default")

    assert used_up(300)
    assert not used_up(3)


def test_small_objects_stay_on_the_event_loop_and_large_ones_leave_it() -> None:
    sizes = [(pod(container(neuron="4")), 0), *((pod(annotations={"a": "x" * n}), h) for n, h in SIZES)]
    for data, hops in sizes:
        lane = Watching()
        assert judged(written(policy(FOUR)), sent(data), lane=lane).allowed
        assert lane.threads == ["default"] * hops


def test_a_small_object_on_which_a_policy_is_slow_starts_again_in_the_lane() -> None:
    quadratic = 'object.spec.containers.all(c, object.spec.containers.all(d, d.name != "x"))'
    found = written(policy(f"validations: [{{expression: '{quadratic}'}}]\nfailurePolicy: Ignore"))
    lane = Watching()
    data = {"spec": {"containers": [{"name": str(at)} for at in range(300)]}, "kind": "Pod", "apiVersion": "v1"}
    assert judged(found, sent(data), lane=lane, clock=Ticking()).allowed
    assert lane.threads == ["default"]


def test_a_neighbour_is_answered_while_a_large_object_is_judged() -> None:
    quadratic = 'object.spec.containers.all(c, object.spec.containers.all(d, d.name != "x"))'
    found = written(policy(f"validations: [{{expression: '{quadratic}'}}]\nfailurePolicy: Ignore"))
    large = sent(pod(*[container(f"c{at}") for at in range(2000)]))
    small = sent(pod(container(neuron="1")))
    lane = ThreadLane()

    async def run() -> float:
        judge = reviewer(found, lane=lane)
        await judge.review(small)
        slow = [asyncio.create_task(judge.review(large)) for _ in range(4)]
        await asyncio.sleep(0)
        longest = 0.0
        while not all(each.done() for each in slow):
            started = time.monotonic()
            await judge.review(small)
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - started)
        await asyncio.gather(*slow)
        return longest

    try:
        assert_below(asyncio.run(run()), 0.5)
    finally:
        lane.close()


# --- look-ups -----------------------------------------------------------------------------------------------------


def test_claims_and_templates_that_are_not_in_the_view_are_requested_once() -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    async def find(kind: str, namespace: str, names: Collection[str]) -> Mapping[str, ClaimSpec]:
        asked.append((kind, tuple(names)))
        requests = [{"name": "a", "exactly": {"deviceClassName": "fast", "count": 2}}]
        return {name: read_claim("ResourceClaim", V1, {"devices": {"requests": requests}})[0] for name in names}

    entries = [{"name": "a", "resourceClaimName": "one"}, {"name": "b", "resourceClaimTemplateName": "two"}]
    data = {**pod(), "spec": {"containers": [], "resourceClaims": entries}}
    assert judged(written(policy(FOUR)), sent(data), find=find).allowed
    assert asked == [("ResourceClaimTemplate", ("two",)), ("ResourceClaim", ("one",))]
    three = {
        **data,
        "spec": {**data["spec"], "resourceClaims": [*entries, {"name": "c", "resourceClaimName": "three"}]},
    }
    assert texts_of(judged(written(policy(FOUR)), sent(three), find=find).errors) == [
        "NEU801: policy 'p': at most four"
    ]


def test_look_ups_have_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(kind: str, namespace: str, names: Collection[str]) -> Mapping[str, ClaimSpec]:
        await asyncio.sleep(600)
        raise AssertionError

    async def run() -> Decision:
        with caller_waits(300):
            return await reviewer(written(policy(FOUR)), find=find).review(sent(many_names(1600)))

    monkeypatch.setattr(policy_requests, "_LONGEST_LOOK_UP", 0.05)
    assert [each.code for each in asyncio.run(run()).errors] == ["NEU801"]


def test_look_ups_may_use_a_share_of_the_time_that_is_left() -> None:
    with caller_waits(1.0):
        assert policy_requests.look_up_seconds() <= 0.4
    with caller_waits(600):
        assert policy_requests.look_up_seconds() == 1.0


def test_policies_that_do_not_count_devices_cause_no_look_ups() -> None:
    async def find(kind: str, namespace: str, names: Collection[str]) -> Mapping[str, ClaimSpec]:
        raise AssertionError

    assert judged(written(policy("validations: [{expression: object.kind == 'Pod'}]")), sent(many_names(3)), find=find)
