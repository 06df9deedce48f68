"""The last good policies in a ConfigMap."""

import asyncio
import datetime as dt
import json
from typing import Any

import pytest

from policies.files.folders import KeepError, KeptSet, pack, unpack
from runtime.api_server import StatusError, UnreachableError
from webhook.cluster.for_policies import ConfigMapKeeper

SINCE = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
SHIPPED = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "resourceVersion": "1"}}


class ConfigMapServer:
    """An API server with one ConfigMap, which only GET and PUT reach."""

    def __init__(self, stored: dict[str, Any] | None) -> None:
        self.stored = stored
        self.asked: list[str] = []
        self.failure: Exception | None = None

    async def request(self, method: str, path: str, *, body: Any = None, **_: Any) -> bytes:
        assert path == "/api/v1/namespaces/ours/configmaps/kept"
        self.asked.append(method)
        if self.stored is None:
            raise StatusError(404, "NotFound", 'configmaps "kept" not found')
        if method == "PUT":
            if self.failure is not None:
                raise self.failure
            assert body["metadata"]["resourceVersion"] == self.stored["metadata"]["resourceVersion"]
            self.stored = body
        return json.dumps(self.stored).encode()

    def stream(self, path: str, **_: Any) -> Any:
        raise AssertionError(path)


def keeper(server: ConfigMapServer) -> ConfigMapKeeper:
    return ConfigMapKeeper(server, "ours", "kept")


def write_kept(server: ConfigMapServer, kept: KeptSet) -> None:
    asyncio.run(keeper(server).write(pack(kept), kept.digest))


def read_kept(server: ConfigMapServer) -> bytes | None:
    return asyncio.run(keeper(server).read())


def test_a_set_is_written_and_read() -> None:
    server = ConfigMapServer(SHIPPED)
    assert read_kept(server) is None
    kept = KeptSet({"a.yaml": b"x"}, SINCE)
    write_kept(server, kept)
    content = read_kept(server)
    assert content is not None
    assert unpack(content) == kept
    assert server.stored is not None
    assert server.stored["metadata"] == SHIPPED["metadata"]


def test_an_unchanged_set_is_not_written_again() -> None:
    server = ConfigMapServer(SHIPPED)
    write_kept(server, KeptSet({"a.yaml": b"x"}, SINCE))
    server.asked.clear()
    write_kept(server, KeptSet({"a.yaml": b"x"}, SINCE + dt.timedelta(days=1)))
    assert server.asked == ["GET"]
    write_kept(server, KeptSet({"a.yaml": b"y"}, SINCE))
    assert server.asked == ["GET", "GET", "PUT"]


@pytest.mark.parametrize("failure", [StatusError(409, "Conflict", "newer"), UnreachableError("no answer")])
def test_a_write_that_fails_is_a_problem(failure: Exception) -> None:
    server = ConfigMapServer(SHIPPED)
    server.failure = failure
    with pytest.raises(KeepError, match="ConfigMap ours/kept cannot be written"):
        write_kept(server, KeptSet({"a.yaml": b"x"}, SINCE))


def test_a_config_map_that_does_not_exist_is_a_problem() -> None:
    with pytest.raises(KeepError, match="ConfigMap ours/kept does not exist"):
        read_kept(ConfigMapServer(None))


@pytest.mark.parametrize("data", ["", "%%", 3, None])
def test_a_damaged_content_is_replaced(data: object) -> None:
    server = ConfigMapServer({**SHIPPED, "binaryData": {"policies.json.z": data}})
    write_kept(server, KeptSet({"a.yaml": b"x"}, SINCE))
    assert unpack(read_kept(server) or b"").files == {"a.yaml": b"x"}
