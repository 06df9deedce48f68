"""Lists, page by page."""

from collections.abc import Mapping

import pytest

from runtime.answers import ListMeta, Page, pages
from runtime.api_server import TooLongError


class Server:
    """A list of `size` objects; an answer with more than `most` objects is too long."""

    def __init__(self, size: int, most: int) -> None:
        self.size = size
        self.most = most
        self.queries: list[dict[str, str]] = []

    async def fetch(self, query: Mapping[str, str]) -> Page:
        self.queries.append(dict(query))
        limit = int(query.get("limit", self.size))
        if limit > self.most:
            raise TooLongError("too long")
        end = int(query.get("continue", "0")) + limit
        return Page(ListMeta(continue_=str(end) if end < self.size else ""), None)


async def test_pages_follow_the_token_and_keep_the_query() -> None:
    server = Server(5, 5)
    assert len([page async for page in pages(server.fetch, {"a": "b"}, 2)]) == 3
    assert server.queries == [
        {"a": "b", "limit": "2"},
        {"a": "b", "limit": "2", "continue": "2"},
        {"a": "b", "limit": "2", "continue": "4"},
    ]


async def test_an_answer_that_is_too_long_is_requested_with_fewer_objects() -> None:
    server = Server(40, 5)
    assert len([page async for page in pages(server.fetch, {}, 64)]) == 10
    assert [query["limit"] for query in server.queries[:3]] == ["64", "16", "4"]


@pytest.mark.parametrize("limit", [0, 1])
async def test_one_object_that_is_too_long_is_an_error(limit: int) -> None:
    with pytest.raises(TooLongError):
        [page async for page in pages(Server(1, 0).fetch, {}, limit)]
