"""An API server that has just started refuses what its roles permit; only what it goes on refusing is an error."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from kubernetes.aio.client.configuration import Configuration

from runtime.api_server import StatusError, UnreachableError
from runtime.api_transport import Connection
from tests.support.fake_api import FakeApi, answer, hang_up

PATH = "/api/v1/nodes"


class Waits:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@contextlib.asynccontextmanager
async def connected(api: FakeApi) -> AsyncIterator[tuple[Connection, Waits]]:
    waits = Waits()

    async def load() -> Configuration:
        return Configuration(host=api.url)

    connection = await Connection.open(load, sleep=waits)
    try:
        yield connection, waits
    finally:
        await connection.close()


async def broken(connection: Connection, api: FakeApi) -> None:
    """The connection breaks, as when the API server restarts."""
    api.fault("create", "pods", hang_up)
    with pytest.raises(UnreachableError):
        await connection.request("POST", "/api/v1/namespaces/a/pods", timeout=5, body={"metadata": {"name": "a"}})


async def test_a_refusal_after_a_restart_is_asked_again() -> None:
    async with FakeApi().serve() as api, connected(api) as (connection, waits):
        await broken(connection, api)
        api.forbid("list", "nodes", times=2)
        assert b"items" in await connection.request("GET", PATH, timeout=30)
        assert waits.seconds == [0.5, 0.5]


async def test_a_watch_that_is_refused_after_a_restart_is_asked_again() -> None:
    async with FakeApi().serve() as api, connected(api) as (connection, waits):
        await broken(connection, api)
        api.forbid("watch", "nodes", times=2)
        query = {"watch": "true", "resourceVersion": "0"}
        async with connection.stream(PATH, query=query, stall=5):
            assert waits.seconds == [0.5, 0.5]


async def test_a_refusal_that_lasts_is_an_error() -> None:
    async with FakeApi().serve() as api, connected(api) as (connection, waits):
        await broken(connection, api)
        api.forbid("list", "nodes")
        with pytest.raises(StatusError, match="cannot list"):
            await connection.request("GET", PATH, timeout=30)
        assert len(waits.seconds) == 10


async def test_a_refusal_without_a_restart_is_an_error_at_once() -> None:
    async with FakeApi().serve() as api, connected(api) as (connection, waits):
        api.forbid("list", "nodes")
        api.forbid("watch", "nodes")
        with pytest.raises(StatusError):
            await connection.request("GET", PATH, timeout=30)
        with pytest.raises(StatusError):
            async with connection.stream(PATH, query={"watch": "true"}, stall=5):
                pytest.fail("opened")
        assert waits.seconds == []


async def test_what_an_admission_plugin_refuses_is_not_asked_again() -> None:
    async with FakeApi().serve() as api, connected(api) as (connection, waits):
        await broken(connection, api)
        api.fault("create", "pods", answer(403, "Forbidden", "exceeded quota"))
        with pytest.raises(StatusError, match="exceeded quota"):
            await connection.request("POST", "/api/v1/namespaces/a/pods", timeout=5, body={"metadata": {"name": "a"}})
        assert waits.seconds == []
