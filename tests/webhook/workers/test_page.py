"""The shared page, and what a worker reads of its siblings there."""

import os
from typing import Any

import pytest

from webhook.workers.member import BEAT_EVERY, STALE_AFTER, Member
from webhook.workers.page import DIGEST_BYTES, MOST_WORKERS, SERVED, Page

SECOND = 1_000_000_000
ONE, TWO = (bytes([number] * DIGEST_BYTES) for number in (1, 2))


class Clock:
    def __init__(self) -> None:
        self.now = 1000 * SECOND

    def __call__(self) -> int:
        return self.now


def replica(size: int) -> tuple[Clock, list[Member]]:
    """Members that are all started and ready."""
    clock, page = Clock(), Page(size)
    members = [Member(page, index, clock) for index in range(size)]
    for index, member in enumerate(members):
        member.slot.prepare(clock.now)
        member.slot.pid = 100 + index
        member.beat(ready=True, serving=True, draining=False)
    return clock, members


def test_what_one_process_writes_another_reads() -> None:
    page = Page(2)
    pid = os.fork()
    if not pid:
        slot = page.slots[1]
        slot.beat, slot.flags, slot.connections, slot.digest = (1 << 63) + 1, 5, 7, ONE
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    slot, other = page.slots[1], page.slots[0]
    assert (slot.beat, slot.flags, slot.connections, slot.digest) == ((1 << 63) + 1, 5, 7, ONE)
    assert (other.beat, other.flags, other.connections, any(other.digest)) == (0, 0, 0, False)


def test_a_slot_is_cleared_for_the_next_worker_and_counts_it() -> None:
    slot = Page(1).slots[0]
    slot.prepare(5)
    slot.pid, slot.flags, slot.connections, slot.digest = 9, 7, 7, ONE
    slot.prepare(6)
    assert (slot.pid, slot.starts, slot.beat, slot.flags, slot.connections) == (0, 2, 6, 0, 0)
    assert not any(slot.digest)


@pytest.mark.parametrize("size", [0, MOST_WORKERS + 1])
def test_a_page_has_slots_for_some(size: int) -> None:
    with pytest.raises(ValueError, match=f"a page has 1 to 64 slots, not {size}"):
        Page(size)


def test_all_are_ready_when_all_are() -> None:
    _, (first, second, third) = replica(3)
    assert first.check() == (True, "3 of 3, this is worker 0")
    assert third.check() == (True, "3 of 3, this is worker 2")
    assert (first.leads, second.leads, third.leads) == (True, False, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda m: setattr(m.slot, "pid", 0), "is being started again", id="gone"),
        pytest.param(lambda m: m.beat(ready=False, serving=True, draining=False), "is not ready", id="unready"),
        pytest.param(lambda m: m.beat(ready=False, serving=True, draining=True), "is shutting down", id="draining"),
        pytest.param(lambda m: setattr(m.slot, "beat", 993 * SECOND), "has not been heard of for 7 s", id="silent"),
    ],
)
def test_a_sibling_that_is_not_ready_is_named(change: Any, said: str) -> None:
    _, (first, second, third) = replica(3)
    change(second)
    assert first.check() == second.check() == third.check() == (False, f"worker 1 {said}")


def test_a_heartbeat_may_be_late_but_not_missing() -> None:
    clock, (first, _) = replica(2)
    clock.now += int(STALE_AFTER * SECOND)
    assert first.check()[0]
    clock.now += 1
    assert first.check()[1].startswith("worker 0 has not been heard of for 5 s")
    assert STALE_AFTER >= 4 * BEAT_EVERY


def test_a_state_is_taken_by_all_once_the_last_has() -> None:
    _, (first, second) = replica(2)
    first.take(ONE)
    assert not first.taken_by_all(ONE)
    second.take(ONE)
    assert first.taken_by_all(ONE)
    assert second.taken_by_all(ONE)
    second.take(TWO)
    assert not first.taken_by_all(ONE)
    assert not first.taken_by_all(TWO)


def test_a_worker_that_is_started_again_has_taken_nothing() -> None:
    clock, (first, second) = replica(2)
    first.take(ONE)
    second.take(ONE)
    second.slot.pid = 0
    assert not first.taken_by_all(ONE)
    second.slot.prepare(clock.now)
    second.slot.pid = 200
    assert not first.taken_by_all(ONE)


def test_serving_is_said_at_once() -> None:
    """A worker may die before its next heartbeat, and must not pass for one that never started."""
    member = Member.alone()
    member.serves()
    assert member.slot.flags == SERVED
    member.beat(ready=False, serving=False, draining=False)
    assert member.slot.flags == SERVED, "for good"


def test_a_half_written_digest_is_neither() -> None:
    """Words are written one after the other; whoever reads in between sees a mixture."""
    _, (first, second) = replica(2)
    first.take(ONE)
    second.take(ONE[:16] + TWO[16:])
    assert not first.taken_by_all(ONE)
    assert not first.taken_by_all(TWO)


@pytest.mark.parametrize("digest", [b"", b"short", bytes(DIGEST_BYTES)], ids=["empty", "short", "zero"])
def test_what_cannot_be_a_digest_is_refused(digest: bytes) -> None:
    with pytest.raises(ValueError, match="a digest has 32 bytes that are not all zero"):
        Member.alone().take(digest)


def test_a_single_process_is_a_replica_of_one() -> None:
    alone = Member.alone()
    assert (alone.leads, alone.size) == (True, 1)
    alone.beat(ready=True, serving=True, draining=False)
    assert alone.check() == (True, "1 of 1, this is worker 0")
    assert alone.least_connections() is None
    alone.take(ONE)
    assert alone.taken_by_all(ONE)


def test_only_those_who_accept_are_compared() -> None:
    clock, (first, second, third) = replica(3)
    second.slot.connections, third.slot.connections = 5, 2
    assert first.least_connections() == 2
    third.beat(ready=False, serving=False, draining=True)
    assert first.least_connections() == 5
    second.slot.flags &= ~SERVED
    assert first.least_connections() is None
    second.beat(ready=True, serving=True, draining=False)
    clock.now += 10 * SECOND
    assert first.least_connections() is None
