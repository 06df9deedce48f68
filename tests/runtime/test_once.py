"""Problems and keys that are logged once."""

import logging

import pytest

from runtime.once import Once, Problem


def test_a_problem_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    problem = Problem(logging.getLogger("test"))
    for text in ("one", "one", "two", "", "two"):
        problem.set(text)
    assert caplog.messages == ["one", "two", "two"]
    assert problem.text == "two"


def test_a_key_is_first_once() -> None:
    once: Once[str] = Once()
    assert [once.first(key) for key in ("a", "a", "b")] == [True, False, True]


def test_keys_beyond_the_bound_are_never_first() -> None:
    once: Once[int] = Once(2)
    assert [once.first(key) for key in (1, 2, 3, 3)] == [True, True, False, False]
