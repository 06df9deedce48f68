import asyncio
from typing import Any

import pytest

from runtime.api_server import ApiAnswerError, StatusError, served_versions
from tests.support.answers import PreparedAnswers


def versions(answer: Any) -> tuple[str, ...]:
    server = PreparedAnswers(answer)
    try:
        return asyncio.run(served_versions(server, 1.0))  # type: ignore[arg-type]
    finally:
        assert (server.asked, server.members) == ([("GET", "/apis/resource.k8s.io")], [{"timeout": 1.0}])


def test_the_versions_of_the_group_are_returned() -> None:
    assert versions({"versions": [{"version": "v1"}, {"version": "v1beta2"}]}) == ("v1", "v1beta2")
    assert versions({}) == ()


def test_a_group_that_is_not_served_has_no_versions() -> None:
    assert versions(StatusError.parse(404, b"")) == ()


def test_another_refusal_is_raised() -> None:
    with pytest.raises(StatusError):
        versions(StatusError.parse(403, b""))


@pytest.mark.parametrize("answer", [{"versions": [{}]}, {"versions": 1}, []])
def test_an_answer_of_another_shape_is_an_error(answer: Any) -> None:
    with pytest.raises(ApiAnswerError):
        versions(answer)
