"""The map's server: routes, headers, hosts, one read for many readers, and an unavailable cluster."""

import asyncio
import dataclasses
import signal
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from commands.cli.map import map as map_command
from commands.cluster.snapshot import ClusterSnapshot
from commands.map.serve import HEADERS, LiveMap, application
from runtime.api_server import ApiServerError, UnreachableError
from tests.support.emulated import EmulatedCluster
from tests.support.fake_api import FakeApi


@dataclasses.dataclass
class World:
    """A cluster that can go away, and a clock."""

    cluster: EmulatedCluster
    reads: int = 0
    gone: bool = False
    now: float = 100.0
    slow: asyncio.Event | None = None

    async def look(self) -> ClusterSnapshot:
        self.reads += 1
        await (self.slow.wait() if self.slow is not None else asyncio.sleep(0))
        if self.gone:
            raise UnreachableError("cannot connect")
        return self.cluster.snapshot()


@pytest.fixture
def world() -> World:
    cluster = EmulatedCluster()
    cluster.node("torus")
    cluster.claim("train", "torus", range(4))
    return World(cluster)


def client(world: World, *, loopback: bool = True, base: str = "http://127.0.0.1:8090") -> httpx.AsyncClient:
    live = LiveMap(world.look, 10, clock=lambda: world.now)
    transport = httpx.ASGITransport(app=application(live, loopback=loopback))
    return httpx.AsyncClient(transport=transport, base_url=base)


async def test_the_page_and_its_data_are_served(world: World) -> None:
    async with client(world) as http:
        shown = await http.get("/")
        assert (shown.status_code, shown.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert '<body data-interval="10">' in shown.text
        data = (await http.get("/data.json")).json()
        assert data["nodes"][0]["claims"][0]["name"] == "team-a/train"
        assert (await http.get("/livez")).text == "ok\n"
    assert world.reads == 1


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [("GET", "/", 200), ("HEAD", "/", 200), ("POST", "/", 405), ("PUT", "/data.json", 405), ("GET", "/mutate", 404)],
)
async def test_every_answer_has_the_security_headers(world: World, method: str, path: str, code: int) -> None:
    async with client(world) as http:
        answer = await http.request(method, path)
    assert answer.status_code == code
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert "server" not in answer.headers


async def test_pages_of_the_named_origins_may_show_the_map_in_a_frame(world: World) -> None:
    live = LiveMap(world.look, 10, clock=lambda: world.now)
    app = application(live, loopback=True, frames=("https://headlamp.example.com", "http://localhost:4466"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1:8090") as http:
        answer = await http.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.endswith("; frame-ancestors https://headlamp.example.com http://localhost:4466")
    assert "X-Frame-Options" not in answer.headers
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "origin", ["*", "headlamp.example.com", "https://a/path", "https://a; script-src *", "https://a\nX: y", "'self'"]
)
async def test_what_is_no_origin_is_refused(origin: str) -> None:
    answer = CliRunner().invoke(map_command, ["--serve", "--frame-ancestor", origin])
    assert answer.exit_code == 2
    assert "is no origin: write scheme, host and port if any" in " ".join(answer.output.replace("│", " ").split())


@pytest.mark.parametrize("host", ["localhost:8090", "127.0.0.1", "localhost"])
async def test_a_loopback_server_answers_loopback_host_names(world: World, host: str) -> None:
    async with client(world) as http:
        assert (await http.get("/data.json", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8090"])
async def test_a_loopback_server_refuses_other_host_names(world: World, host: str) -> None:
    async with client(world) as http:
        answer = await http.get("/data.json", headers={"Host": host})
    assert answer.status_code == 400
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert world.reads == 0


async def test_a_server_on_another_address_answers_any_host_name(world: World) -> None:
    async with client(world, loopback=False, base="http://map.example") as http:
        assert (await http.get("/data.json")).status_code == 200


async def test_many_readers_cause_one_read(world: World) -> None:
    async with client(world) as http:
        await asyncio.gather(*(http.get("/data.json") for _ in range(20)))
        assert world.reads == 1
        world.now += 9
        await http.get("/data.json")
        assert world.reads == 1
        world.now += 1
        await http.get("/data.json")
        assert world.reads == 2


async def test_a_slow_cluster_does_not_block_readers_of_an_older_map(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commands.map.serve._PATIENCE", 0.05)
    async with client(world) as http:
        await http.get("/data.json")
        world.cluster.node("new")
        world.slow = asyncio.Event()
        world.now += 10
        for _ in range(3):
            assert len((await http.get("/data.json")).json()["nodes"]) == 1
        assert world.reads == 2
        world.slow.set()
        async with asyncio.timeout(60):
            while len((await http.get("/data.json")).json()["nodes"]) < 2:  # noqa: ASYNC110 - the page is asked
                await asyncio.sleep(0.01)


async def test_a_read_under_way_ends_with_the_server(world: World) -> None:
    world.slow = asyncio.Event()
    live = LiveMap(world.look, 10)
    waiting = asyncio.create_task(live.data())
    await asyncio.sleep(0.01)
    await live.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_unchanged_data_is_not_sent_again(world: World) -> None:
    async with client(world) as http:
        first = await http.get("/data.json")
        again = await http.get("/data.json", headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        world.cluster.claim("more", "torus", [9])
        world.now += 10
        assert (await http.get("/data.json", headers={"If-None-Match": first.headers["ETag"]})).status_code == 200


async def test_the_last_map_is_served_with_a_note_if_the_cluster_is_unavailable(world: World) -> None:
    async with client(world) as http:
        await http.get("/data.json")
        world.gone = True
        world.now += 10
        data = (await http.get("/data.json")).json()
        assert (data["stale"], len(data["nodes"])) == ("cannot connect.", 1)
        world.gone = False
        world.now += 10
        assert (await http.get("/data.json")).json()["stale"] == ""


async def test_a_cluster_that_was_never_read_is_503(world: World) -> None:
    world.gone = True
    async with client(world) as http:
        answer = await http.get("/")
    assert (answer.status_code, answer.text) == (503, "The cluster cannot be read: cannot connect.\n")
    with pytest.raises(ApiServerError):
        await LiveMap(world.look, 10).page()


async def test_the_command_serves_until_a_signal(world: World, tmp_path: Path) -> None:
    async with FakeApi().serve() as api:
        world.cluster.put_into(api)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "commands",
            "map",
            "--serve",
            "--port=0",
            f"--kubeconfig={api.kubeconfig(tmp_path)}",
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(60):
                said = (await process.stderr.readline()).decode()
            assert said.startswith("The map is at http://127.0.0.1:")
            assert said.endswith("/. Ctrl-C stops.\n")
            address = said.removeprefix("The map is at ").removesuffix("/. Ctrl-C stops.\n")
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.get(f"{address}/data.json", timeout=30)
                assert answer.json()["cluster"] == api.url
                assert answer.headers["Content-Encoding"] == "gzip"
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(30):
                _, rest = await process.communicate()
            assert (process.returncode, rest) == (0, b"")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
