"""Slices wait a bounded time for a kubelet that can prepare claims."""

import asyncio

import pytest

from kubeletplugin.ports import WAITS
from kubeletplugin.publish.offer import KubeletGate
from tests.kubeletplugin.fakes import FakeClock


class StillClock(FakeClock):
    """Time that does not pass."""

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.Event().wait()


async def passes(gate: KubeletGate, *, first: bool = True) -> bool:
    """Whether the gate opens without another answer."""
    waiter = asyncio.ensure_future(gate.first() if first else gate.after_deletion())
    for _ in range(20):
        await asyncio.sleep(0)
    done = waiter.done()
    waiter.cancel()
    return done


async def test_the_first_slices_wait_until_the_kubelet_accepts_the_plugin() -> None:
    gate = KubeletGate(StillClock(), 30.0)
    assert gate.registered is None
    assert not await passes(gate)
    gate.answered(accepted=False)
    assert gate.registered is False
    assert not await passes(gate)
    waiter = asyncio.ensure_future(gate.first())
    await asyncio.sleep(0.01)
    gate.answered(accepted=True)
    await asyncio.wait_for(waiter, 60)
    assert await passes(gate)
    assert gate.registered is True


@pytest.mark.parametrize("bound", [0.0, 30.0])
async def test_the_gate_opens_and_logs_if_the_kubelet_does_not_answer_within_the_bound(
    bound: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()

    gate = KubeletGate(clock, bound)
    await gate.first()
    assert gate.registered is None
    assert gate.lost == ("the kubelet has not registered it within 30 s" if bound else "")
    assert clock.slept == ([bound] if bound else [])
    assert [record.getMessage() for record in caplog.records] == ["the kubelet has not registered the plugin"]


async def test_the_bound_starts_with_the_instance_and_not_with_the_wait() -> None:
    clock = FakeClock()

    gate = KubeletGate(clock, 30.0)
    clock.time += 29.0
    await gate.first()
    assert clock.slept == [1.0]


@pytest.mark.parametrize(("age", "opens"), [(WAITS.recent, True), (WAITS.recent + 1, False)])
async def test_a_recent_registration_opens_the_gate_after_a_deletion(age: float, *, opens: bool) -> None:
    clock = StillClock()
    gate = KubeletGate(clock, 30.0)
    gate.answered(accepted=True)
    clock.time += age
    assert await passes(gate, first=False) is opens


async def test_the_next_registration_opens_the_gate_after_a_deletion() -> None:
    clock = StillClock()
    gate = KubeletGate(clock, 30.0)
    gate.answered(accepted=True)
    clock.time += 100
    waiter = asyncio.ensure_future(gate.after_deletion())
    await asyncio.sleep(0.01)
    assert not waiter.done()
    gate.answered(accepted=True)
    await asyncio.wait_for(waiter, 60)
    assert clock.slept == [WAITS.recent]


async def test_without_a_registration_after_a_deletion_it_is_lost() -> None:
    clock = FakeClock()

    gate = KubeletGate(clock, 3.0)
    gate.answered(accepted=True)
    clock.time += 100
    await gate.after_deletion()
    assert gate.registered is None
    assert gate.lost == ("the node's ResourceSlices were deleted, and the kubelet did not register it within 3 s")
    generation = gate.generation
    gate.answered(accepted=True)
    assert (gate.lost, gate.registered, gate.generation) == ("", True, generation + 1)
    assert clock.slept == [3.0], "never longer than the setting"


def test_where_nothing_waits_for_the_registration_it_is_never_lost() -> None:
    gate = KubeletGate(FakeClock(), 0.0)
    gate.lose("its socket was removed")
    assert (gate.lost, gate.generation) == ("", 0)
