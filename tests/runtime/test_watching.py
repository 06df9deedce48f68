"""Lists and watches of one collection under every fault: what is resumed, what is listed again, and the pauses."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from runtime import watching
from runtime.api_server import ApiAnswerError, ApiServerError, Collection, Resource, StatusError, UnreachableError
from runtime.api_transport import Connection
from runtime.watching import Effects, Timing, Watching
from tests.support.fake_api import FakeApi, Handler, answer, eventually, hang_up, raw, status

PODS = Resource("", "v1", "pods")
TIMING = Timing(backoff=1, backoff_limit=8, stall=0.2)
EFFECTS = Effects(jitter=lambda: 1.0)


@contextlib.asynccontextmanager
async def following(api: FakeApi, version: str = "", **options: Any) -> AsyncIterator[Watching]:
    async def load() -> Configuration:
        return Configuration(host=api.url)

    connection = await Connection.open(load)
    try:
        watching = Watching(connection, Collection(PODS), **{"timing": TIMING, "effects": EFFECTS, **options})
        watching.version = version
        yield watching
    finally:
        await connection.close()


def named_pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}}


def event(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


async def names(it: Watching) -> list[str]:
    """The names in a list."""
    found: list[str] = []
    await it.list(lambda item: found.append(json.loads(bytes(item))["metadata"]["name"]), found.clear)
    return found


async def changes(it: Watching, found: list[tuple[str, str]]) -> None:
    """Append what a watch delivers to `found`, until it ends."""
    async with contextlib.aclosing(it.events()) as events:
        async for kind, item in events:
            metadata = json.loads(item)["metadata"]
            found.append((kind, metadata["name"]))
            it.version = metadata["resourceVersion"]


# --- reading ------------------------------------------------------------------------------------------------


async def test_a_list_that_begins_again_has_no_object_twice(api: FakeApi) -> None:
    for number in range(5):
        api.put("pods", named_pod(f"p{number}"))
    api.fault("continue", "pods", answer(410, "Expired", "The provided continue parameter is too old"))
    async with following(api, page_size=2) as it:
        assert await names(it) == [f"p{number}" for number in range(5)]
        assert (it.version, it.counters.expired) == ("1004", 1)


async def test_a_watch_delivers_changes_since_the_list_and_the_next_one_those_since_then(api: FakeApi) -> None:
    async with following(api) as it:
        assert await names(it) == []
        found: list[tuple[str, str]] = []
        api.put("pods", named_pod("p"))
        task = asyncio.create_task(changes(it, found))
        await eventually(lambda: found and api.watching("pods"))
        api.end_watches()
        await task
        assert (it.healthy, found) == (True, [("ADDED", "p")])
        api.remove("pods", "p", "team")
        task = asyncio.create_task(changes(it, found))
        await eventually(lambda: len(found) == 2 and api.watching("pods"))
        api.end_watches()
        await task
        assert found[-1] == ("DELETED", "p")
        assert it.counters.lists == 1


async def test_of_an_object_that_is_too_long_the_beginning_is_delivered(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LONGEST_OBJECT", 100_000)
    large = {"metadata": {"name": "large"}, "spec": "x" * 200_000}
    api.fault("watch", "pods", raw(200, event("ADDED", large) + event("ADDED", named_pod("next"))))
    async with following(api, version="1") as it, contextlib.aclosing(it.events()) as events:
        found = [(kind, item[:30], len(item)) async for kind, item in events]
    assert [kind for kind, *_ in found] == ["ADDED", "ADDED"]
    assert found[0][1].startswith(b'{"metadata": {"name": "large"}')
    assert found[0][2] < 100_000


@pytest.mark.parametrize("metadata", [{"metadata": {"resourceVersion": "7"}}, {"metadata": {}}, {}])
async def test_a_bookmark_without_a_version_changes_nothing(api: FakeApi, metadata: dict[str, Any]) -> None:
    api.fault("watch", "pods", raw(200, event("BOOKMARK", metadata)))
    async with following(api, version="1") as it:
        await changes(it, [])
        assert it.version == metadata.get("metadata", {}).get("resourceVersion", "1")
        assert it.healthy


async def test_a_watch_that_ends_at_once_is_followed_by_longer_and_longer_pauses(api: FakeApi) -> None:
    api.fault("watch", "pods", raw(200, b""), times=3)
    pauses = []
    async with following(api, version="1") as it:
        for _ in range(3):
            await changes(it, [])
            assert not it.healthy
            pauses.append(it.pause)
    assert pauses == [1, 2, 4]


# --- faults of a watch ----------------------------------------------------------------------------------------


async def reset_in_a_line(request: web.Request) -> web.StreamResponse:
    """Deliver an event and half of the next one, then break the connection."""
    response = web.StreamResponse()
    await response.prepare(request)
    item = named_pod("p")
    item["metadata"]["resourceVersion"] = "5"
    await response.write(event("ADDED", item) + event("ADDED", named_pod("q"))[:20])
    await asyncio.sleep(0.05)
    assert request.transport is not None
    request.transport.abort()
    return response


async def silence(request: web.Request) -> web.StreamResponse:
    """Accept a watch and deliver nothing."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(5)
    return response


GONE = event("ERROR", status(410, "Expired", "too old resource version"))
BUSY = answer(429, "TooManyRequests", "too many requests", headers={"Retry-After": "7"})
FAULTS: dict[str, tuple[Handler, type[ApiServerError], str, bool, float]] = {
    # what happens: its error, the version from which the next watch begins, whether it is ordinary, the pause
    "410 as the answer": (answer(410, "Expired", "too old"), StatusError, "", True, 1),
    "410 as an event": (raw(200, GONE), StatusError, "", True, 1),
    "500 as an event": (raw(200, event("ERROR", status(500, "", "etcd event lost"))), StatusError, "", False, 1),
    "ERROR without a Status": (raw(200, event("ERROR", {})), StatusError, "", False, 1),
    "ERROR without an object": (raw(200, event("ERROR", [])), ApiAnswerError, "", False, 1),
    "429": (BUSY, StatusError, "1", False, 7),
    "503": (answer(503, "ServiceUnavailable", "leader changed"), StatusError, "1", False, 1),
    "401": (answer(401, "Unauthorized", "Unauthorized"), StatusError, "1", False, 1),
    "403": (answer(403, "Forbidden", "no"), StatusError, "1", False, 1),
    "404": (raw(404, b"404 page not found"), StatusError, "", False, 1),
    "no answer": (hang_up, UnreachableError, "1", True, 1),
    "reset in the middle of a line": (reset_in_a_line, UnreachableError, "5", True, 1),
    "silence": (silence, UnreachableError, "1", True, 1),
    "no JSON": (raw(200, b"<html>login</html>\n"), ApiAnswerError, "", False, 1),
    "no event": (raw(200, b"{}\n"), ApiAnswerError, "", False, 1),
    "half an event": (raw(200, b'{"type": "ADDED", "object"\n'), ApiAnswerError, "", False, 1),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_after_a_fault_a_watch_resumes_unless_only_a_list_helps(api: FakeApi, name: str) -> None:
    handler, kind, version, ordinary, pause = FAULTS[name]
    api.fault("watch", "pods", handler, times=10)
    async with following(api, version="1") as it:
        with pytest.raises(kind) as caught:
            await changes(it, [])
        assert it.failed(caught.value) is ordinary
        assert (it.version, it.pause) == (version, pause)


async def test_the_third_answer_that_refuses_a_version_needs_a_list(api: FakeApi) -> None:
    api.fault("watch", "pods", answer(503, "ServiceUnavailable", "leader changed"), times=3)
    versions = []
    async with following(api, version="1") as it:
        for _ in range(3):
            with pytest.raises(StatusError) as caught:
                await changes(it, [])
            it.failed(caught.value)
            versions.append(it.version)
    assert versions == ["1", "1", ""]


async def test_a_pause_that_was_asked_for_ends_with_the_next_watch(api: FakeApi) -> None:
    api.fault("watch", "pods", BUSY)
    api.fault("watch", "pods", raw(200, b""))
    async with following(api, version="1") as it:
        with pytest.raises(StatusError) as caught:
            await changes(it, [])
        it.failed(caught.value)
        await changes(it, [])
        assert it.pause == 2


# --- faults of a list -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"<html>login</html>", b"{}", b'{"kind":"Status","metadata":{}}', b'{"items":3}', b'{"metadata":{}}'],
    ids=["HTML", "empty", "Status", "a number", "no items"],
)
async def test_what_is_not_a_list_is_never_an_empty_list(api: FakeApi, body: bytes) -> None:
    api.fault("list", "pods", raw(200, body))
    async with following(api) as it:
        with pytest.raises(ApiAnswerError) as caught:
            await names(it)
        assert not it.failed(caught.value)
        assert it.version == ""


async def test_a_list_without_objects_may_be_null(api: FakeApi) -> None:
    api.fault("list", "pods", raw(200, b'{"metadata":{"resourceVersion":"3"},"items":null}'))
    async with following(api) as it:
        assert await names(it) == []
        assert it.version == "3"


async def test_only_repeated_refusals_are_lasting(api: FakeApi) -> None:
    api.forbid("list", "pods")
    lasting = []
    async with following(api) as it:
        for _ in range(3):
            with pytest.raises(StatusError) as caught:
                await names(it)
            it.failed(caught.value)
            lasting.append(it.lasting(caught.value))
    assert lasting == [False, False, True]
