"""Problems and keys that are logged once."""

import logging

import pytest

from runtime.retries import Interval, Once, RetryProblem


def test_a_problem_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    problem = RetryProblem(logging.getLogger("test"))
    for text in ("one", "one", "two", "", "two"):
        problem.set(text)
    assert caplog.messages == ["one", "two", "two"]
    assert problem.text == "two"


def test_one_line_is_due_in_an_interval() -> None:
    times = iter((0.0, 9.9, 10.0, 19.9, 40.0, 49.9))
    interval = Interval(10, lambda: next(times))
    assert [interval.due() for _ in range(6)] == [True, False, True, False, True, False]


def test_first_is_true_once_per_key() -> None:
    once: Once[str] = Once()
    assert [once.first(key) for key in ("a", "a", "b")] == [True, False, True]


def test_first_is_false_for_keys_beyond_the_bound() -> None:
    once: Once[int] = Once(2)
    assert [once.first(key) for key in (1, 2, 3, 3)] == [True, True, False, False]
