"""Embedded cases have five seconds together, and a newer state of the folder cancels them."""

import asyncio
import datetime as dt
import itertools
import logging
import time
from pathlib import Path

import pytest

from policies.files.cases import CASE_SECONDS, CaseTime, SupersededError
from policies.files.folders import PolicyError
from policies.files.loader import load
from policies.files.store import PolicyStore, StoreOptions

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {{name: {name}}}
spec:
  matchConstraints:
    resourceRules: [{{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}]
  validations: [{{expression: "{expression}"}}]
  tests:
"""
CASE = "  - {name: a, object: {apiVersion: v1, kind: Pod, metadata: {name: x}}, expect: Allow}\n"
HINTS = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: c}
spec:
  order: 1
  mode: shadow
  match: {conditions: [{name: a, expression: "true"}]}
  tests:
"""
POD_CASE = "  - {name: a, object: {apiVersion: v1, kind: Pod, metadata: {name: x}}, expect: Match}\n"
SLOW = f"{list(range(120))}.all(x, {list(range(120))}.all(y, x + y >= 0))"


def policy_with_cases(name: str, cases: int, expression: str = "true") -> bytes:
    return (POLICY.format(name=name, expression=expression) + CASE * cases).encode()


def ticking(step: float) -> "itertools.count[float]":
    return itertools.count(0.0, step)


def test_many_cases_are_refused_after_five_seconds() -> None:
    ticks = ticking(0.1)
    with pytest.raises(PolicyError) as caught:
        load({"p.yaml": policy_with_cases("p", 300)}, clock=lambda: next(ticks))
    assert next(ticks) < CASE_SECONDS + 2
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("p.yaml", 9)
    assert "the embedded tests of all files together took longer than 5 s; p.yaml used" in problem.message


def test_cases_of_conversion_policies_count_too() -> None:
    ticks = ticking(0.1)
    with pytest.raises(PolicyError, match="longer than 5 s"):
        load({"c.yaml": (HINTS + POD_CASE * 300).encode()}, clock=lambda: next(ticks))
    assert next(ticks) < CASE_SECONDS + 2


def test_a_file_with_few_cases_does_not_wait_for_one_with_many() -> None:
    ticks = ticking(0.1)
    files = {"a.yaml": policy_with_cases("a", 300), "b.yaml": policy_with_cases("b", 3)}
    with pytest.raises(PolicyError) as caught:
        load(files, clock=lambda: next(ticks))
    assert [problem.file for problem in caught.value.problems] == ["a.yaml"]


def test_cases_that_passed_are_not_run_again() -> None:
    ticks = ticking(0.1)
    case_time = CaseTime(lambda: next(ticks))
    files = {"b.yaml": policy_with_cases("b", 3)}
    load(files, case_time=case_time)
    spent = next(ticks)
    load(files, case_time=case_time)
    assert next(ticks) - spent < 0.5
    assert len(case_time.passed_of(files)) == 1


def test_a_failed_case_is_reported_even_if_others_take_too_long() -> None:
    ticks = ticking(0.1)
    files = {"a.yaml": policy_with_cases("a", 300), "b.yaml": policy_with_cases("b", 1, "false")}
    with pytest.raises(PolicyError) as caught:
        load(files, clock=lambda: next(ticks))
    assert [problem.file for problem in caught.value.problems] == ["a.yaml", "b.yaml"]


def test_a_cancelled_load_ends() -> None:
    with pytest.raises(SupersededError):
        load({"b.yaml": policy_with_cases("b", 3)}, case_time=CaseTime(time.monotonic, cancelled=lambda: True))


def opened_with_ticks(folder: Path, step: float) -> PolicyStore:
    ticks = ticking(step)
    return PolicyStore.open(folder, StoreOptions(lambda: NOW, clock=lambda: next(ticks)))


def test_a_reload_leaves_out_a_file_whose_cases_take_too_long(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(policy_with_cases("a", 1))
    store = opened_with_ticks(tmp_path, 0.1)
    (tmp_path / "slow.yaml").write_bytes(policy_with_cases("slow", 300))
    (tmp_path / "a.yaml").write_bytes(policy_with_cases("renamed", 2))
    asyncio.run(store.reload())
    assert [rule.name for rule in store.current.validating] == ["renamed"]
    assert [problem.file for problem in store.problems] == [str(tmp_path / "slow.yaml")]


def test_a_newer_state_of_the_folder_cancels_the_cases(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.yaml").write_bytes(policy_with_cases("a", 1))
    store = opened_with_ticks(tmp_path, 0.0)  # Its clock stands still: only a newer state ends the cases.
    steps = iter(
        [
            lambda: (tmp_path / "a.yaml").write_bytes(policy_with_cases("slow", 3000, SLOW)),
            lambda: None,
            lambda: None,
            lambda: None,
        ]
    )

    async def sleep(_: float) -> None:
        step = next(steps, None)
        if step is None:
            raise asyncio.CancelledError
        step()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.5, (tmp_path / "a.yaml").write_bytes, policy_with_cases("newer", 1))
        with pytest.raises(asyncio.CancelledError):
            await store.watch(sleep)

    with caplog.at_level(logging.INFO, "policies.files.store"):
        asyncio.run(run())
    assert [rule.name for rule in store.current.validating] == ["newer"]
    assert "loading cancelled: the folder has changed again" in caplog.messages
