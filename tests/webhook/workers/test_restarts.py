"""When workers are started again, and when they count as hung."""

import pytest

from webhook.workers.restarts import LONGEST_DELAY, STEADY_AFTER, Restarts, Silence, describe


def test_each_death_waits_longer_up_to_a_limit() -> None:
    restarts = Restarts()
    assert [restarts.died(1.0) for _ in range(8)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_DELAY, LONGEST_DELAY]


def test_a_worker_that_ran_long_enough_starts_afresh() -> None:
    restarts = Restarts()
    assert [restarts.died(ran) for ran in (1.0, 1.0, STEADY_AFTER, 1.0)] == [0.0, 1.0, 0.0, 1.0]


def test_many_deaths_do_not_overflow() -> None:
    restarts = Restarts()
    assert {restarts.died(0.0) for _ in range(5000)} == {0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0}


def test_silence_grows_while_nothing_is_heard_and_ends_with_a_beat() -> None:
    silence = Silence(100.0, beat=1, tick=1.0)
    assert [silence.look(100.0 + second, 1) for second in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert silence.look(104.0, 2) == 0.0
    assert silence.look(105.0, 2) == 1.0


def test_whoever_was_stopped_together_with_its_workers_finds_none_hung() -> None:
    silence = Silence(100.0, beat=1, tick=1.0)
    assert silence.look(4000.0, 1) == 2.0


@pytest.mark.parametrize(
    ("status", "said"),
    [
        pytest.param(0, "exit code 0", id="well"),
        pytest.param(3 << 8, "exit code 3", id="could-not-start"),
        pytest.param(9, "killed by SIGKILL", id="killed"),
        pytest.param(11 | 0x80, "killed by SIGSEGV", id="core-dumped"),
        pytest.param(40, "killed by signal 40", id="unnamed"),
    ],
)
def test_ends_are_put_into_words(status: int, said: str) -> None:
    assert describe(status) == said
