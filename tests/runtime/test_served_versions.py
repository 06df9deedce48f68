import asyncio
from typing import Any

import orjson
import pytest

from runtime.api_errors import ApiAnswerError, StatusError
from runtime.api_server import served_versions


class Server:
    """Answers every request with one body, or with an error."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def request(self, method: str, path: str, timeout: float) -> bytes:  # noqa: ASYNC109
        assert timeout == 1.0
        assert (method, path) == ("GET", "/apis/resource.k8s.io")
        if isinstance(self.answer, Exception):
            raise self.answer
        return orjson.dumps(self.answer)


def versions(answer: Any) -> tuple[str, ...]:
    return asyncio.run(served_versions(Server(answer), 1.0))  # type: ignore[arg-type]


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
