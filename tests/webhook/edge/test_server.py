"""Lifecycle of the server: listening, TLS, slow clients, draining."""

import asyncio
import gc
import json
import re
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certs import material
from runtime import listening
from runtime.startup import StartupError
from tests.support.packages import PACKAGES
from tests.support.serving import Answering, Client, Process, Running, eventually, make_certificates, review, serving
from tests.support.timing import assert_below
from webhook.edge import server
from webhook.edge.connections import ClientConnection


@pytest.fixture(scope="module")
def running(tls_directory: Path) -> Iterator[Running]:
    with serving(tls_directory, {"/mutate": Answering()}) as started:
        yield started


@pytest.fixture(scope="module")
def impatient(tls_directory: Path) -> Iterator[Running]:
    with serving(tls_directory, {"/mutate": Answering()}, body_timeout=0.3) as started:
        yield started


def handshake(running: Running, **versions: ssl.TLSVersion) -> str | None:
    context = ssl.create_default_context(cafile=str(running.certificates.ca))
    for name, version in versions.items():
        setattr(context, name, version)
    host, port = running.url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return connection.version()


def test_the_default_tls_version_is_1_3(running: Running) -> None:
    assert handshake(running) == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        handshake(running, maximum_version=ssl.TLSVersion.TLSv1_2)


def test_tls_1_2_can_be_enabled(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Answering()}, tls_min_version="1.2") as older:
        assert handshake(older, maximum_version=ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert handshake(older) == "TLSv1.3"


def test_clients_with_approved_algorithms_only_are_served(tls_directory: Path) -> None:
    """P-256, AES-GCM and SHA-2: what a client in FIPS mode offers."""
    with serving(tls_directory, {"/mutate": Answering()}, tls_min_version="1.2") as running:
        for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=str(running.certificates.ca))
            context.set_ciphers("ECDHE+AESGCM:!aNULL")
            context.set_ecdh_curve("prime256v1")
            context.maximum_version = newest
            host, port = running.url.removeprefix("https://").split(":")
            with (
                socket.create_connection((host, int(port)), timeout=60) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                [cipher, *_] = connection.cipher() or ("",)
                assert "AES" in cipher
                assert "GCM" in cipher


def test_hashes_and_curves_of_the_sources_are_approved() -> None:
    root = Path(server.__file__).parents[2]
    text = "".join(file.read_text() for folder in PACKAGES for file in (root / folder).rglob("*.py"))
    assert set(re.findall(r"\b(?:hashlib|hashes)\.(\w+)", text)) == {"sha256", "SHA256"}
    assert set(re.findall(r"\bec\.(SEC\w+|Brain\w+)", text)) == {"SECP256R1"}


def test_new_connections_get_the_new_certificate_and_old_connections_stay(tls_directory: Path, tmp_path: Path) -> None:
    with serving(tls_directory, {"/mutate": Answering()}) as running, running.client() as old:
        assert old.review(review()).status == 200
        renewed = make_certificates(tmp_path)
        running.tls.load_cert_chain(renewed.certificate, renewed.key)
        assert old.review(review()).status == 200
        with Client(running.url, renewed.ca) as new:
            assert new.review(review()).status == 200
        with running.client() as distrustful, pytest.raises(ssl.SSLCertVerificationError):
            distrustful.review(review())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_hosts_are_listened_on(host: str) -> None:
    with listening.listen(host, 0, "--host", "--port") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert listening.url(listener, "https", "/x") == f"https://127.0.0.1:{listener.getsockname()[1]}/x"


def test_no_host_means_every_address() -> None:
    with listening.listen("", 0, "--host", "--port") as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            socket.create_connection((address, port), timeout=60).close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_ipv6_addresses_are_shown_in_brackets() -> None:
    with listening.listen("::1", 0, "--host", "--port") as listener:
        assert listening.url(listener, "https").startswith("https://[::1]:")


def test_a_port_in_use_is_reported() -> None:
    with listening.listen("127.0.0.1", 0, "--host", "--port") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StartupError) as error:
            listening.listen("127.0.0.1", port, "--metrics-host", "--metrics-port")
    assert str(error.value) == (
        f"Cannot listen on 127.0.0.1, port {port}: it is in use. Stop the process that listens there, or "
        "choose another port with --metrics-port."
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            PermissionError(13, "x"),
            "Cannot listen on any address, port 443: permission denied. Choose a port above 1023",
        ),
        (OSError(99, "x"), "Cannot assign requested address. Choose an address of this machine with --host."),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known. Choose an address"),
    ],
    ids=["privileged", "not-ours", "unknown-name"],
)
def test_an_unusable_address_is_reported(monkeypatch: pytest.MonkeyPatch, error: OSError, message: str) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(StartupError) as startup_error:
        listening.listen("", 443, "--host", "--port")
    assert message in str(startup_error.value)


# --- slow clients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [b"POST /mut", b"POST /mutate HTTP/1.1\r\nHost: localhost\r\nX-Slow: "],
    ids=["request-line", "headers"],
)
def test_an_incomplete_head_is_closed(impatient: Running, begun: bytes) -> None:
    with impatient.raw() as connection:
        connection.sendall(begun)
        started = time.monotonic()
        assert connection.recv(1) == b"", "the server closes"
        assert_below(time.monotonic() - started, 5)


def test_an_incomplete_second_head_is_closed(impatient: Running) -> None:
    with impatient.raw() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4096).endswith(b"\r\n\r\nok")
        connection.sendall(b"GET /livez HTT")
        assert connection.recv(1) == b"", "the server closes"


def test_unused_and_idle_connections_are_kept(impatient: Running) -> None:
    with impatient.raw() as unused, impatient.client() as idle:
        assert idle.get("/livez").status == 200
        time.sleep(2.5)
        unused.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert unused.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert idle.get("/livez").status == 200


def connections_in_memory() -> int:
    return sum(isinstance(each, ClientConnection) for each in gc.get_objects())


def reset_after_an_answer(running: Running) -> None:
    with running.raw() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        # Closed without time to linger, it sends a reset.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_connections_that_clients_reset_leave_memory_at_once(running: Running) -> None:
    gc.collect()
    before = connections_in_memory()
    gc.disable()
    try:
        for _ in range(10):
            reset_after_an_answer(running)
        eventually(lambda: connections_in_memory() <= before, "no connection in memory")
    finally:
        gc.enable()


def test_an_unused_connection_is_closed_after_its_time_out() -> None:
    class Idle(ClientConnection):
        def __init__(self) -> None:
            self.now = 0.0
            self.scope = None  # type: ignore[assignment]
            self.cycle = None  # type: ignore[assignment]
            self._clock = lambda: self.now
            self._waiting_since = None

    connection = Idle()
    ages = []
    for connection.now in (0.0, 5.0, 119.0, 121.0):
        ages.append(connection.overdue(head_timeout=1.0, first_request_timeout=120.0))
    assert ages == [False, False, False, True]


# --- draining ----------------------------------------------------------------------------------------------


def test_draining_answers_reviews_in_progress(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Answering(delay=0.5)}) as running:
        replies: list[Any] = []

        def slow() -> None:
            with running.client() as client:
                replies.append(client.review(review(uid="slow")))

        thread = threading.Thread(target=slow)
        thread.start()
        eventually(lambda: running.metrics.path("/mutate").inflight == 1, "the review is in flight")
        running.stop()
        thread.join()
        running.join()
    assert replies[0].response == {"uid": "slow", "allowed": True}
    assert replies[0].headers["connection"] == "close"


def test_readiness_fails_before_the_listener_closes(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Answering()}, drain_delay=0.5) as running:
        with running.client() as client:
            assert "connection" not in client.review(review()).headers
            running.stop()
            eventually(lambda: running.lifecycle.draining, "the server drains")
            reply = client.review(review())
            assert (reply.status, reply.headers["connection"]) == (200, "close")
        with running.client() as newcomer:
            assert newcomer.get("/readyz").headers["connection"] == "close"
        running.join()


def test_reviews_that_never_end_are_cut_off(tls_directory: Path) -> None:
    with (
        serving(tls_directory, {"/mutate": Answering(delay=60)}, drain_timeout=1) as running,
        running.client() as client,
    ):
        client.connection.request("POST", "/mutate", json.dumps(review()), {"Content-Type": "application/json"})
        eventually(lambda: running.metrics.path("/mutate").inflight == 1, "the review is in flight")
        started = time.monotonic()
        running.stop()
        running.join()
        assert time.monotonic() - started > 0.9
        answer = client.connection.getresponse()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert json.loads(answer.read()) == {"message": "The webhook is shutting down."}


def test_a_second_signal_stops_at_once(tls_directory: Path) -> None:
    with (
        serving(tls_directory, {"/mutate": Answering(delay=60)}, drain_delay=60) as running,
        running.client() as client,
    ):
        client.connection.request("POST", "/mutate", json.dumps(review()), {"Content-Type": "application/json"})
        eventually(lambda: running.metrics.path("/mutate").inflight == 1, "the review is in flight")
        running.stop()
        running.stop()
        running.join(60)


SLOW_SERVER = """
import asyncio, sys, uvloop
from pathlib import Path
from tests.support.serving import Answering, tls_context
GO = Path(sys.argv[2])
class Slow(Answering):
    async def review(self, request):
        while not GO.exists():
            await asyncio.sleep(0.01)
        return await super().review(request)
from webhook.edge.endpoints import build
from runtime import listening, logs as runtime_logs
from webhook.edge import logs, server
from webhook.edge.bodies import BodyReader
from webhook.edge.endpoints import RequestLimits, Telemetry
from webhook.edge.shedding import Lifecycle
from webhook.edge.metrics import Metrics

async def main():
    runtime_logs.configure("json", "info")
    lifecycle = Lifecycle()
    directory = Path(sys.argv[1])
    application = build(
        {"/slow": Slow(), "/mutate": Answering()},
        {"shutdown": lifecycle.check_shutdown},
        lifecycle,
        RequestLimits(BodyReader(1 << 20, 5)),
        Telemetry(Metrics("test"), logs.DecisionLog(sys.stderr.buffer)),
    )
    tls = tls_context(directory)
    running = server.Server(application, tls, lifecycle, server.ServerLimits(5, drain_delay=2.0, drain_timeout=60))
    with listening.on_signals(running.stop):
        await running.serve(sockets=[listening.listen("127.0.0.1", 0, "--host", "--port")])

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def test_sigterm_fails_no_review(tls_directory: Path, tmp_path: Path) -> None:
    """SIGTERM: readiness fails at once, the listener stays for the drain delay, inflight reviews end, exit code 0."""
    go = tmp_path / "go"
    with Process(["-c", SLOW_SERVER, str(tls_directory), str(go)], cwd=tls_directory) as process:
        url = process.event("serving")["url"][0]
        ca = tls_directory / material.CA
        slow: list[int] = []
        steady: list[str] = []
        cut_off: list[float] = []

        def in_flight() -> None:
            with Client(url, ca) as client:
                slow.append(client.review(review(), "/slow").status)

        def reconnecting() -> None:
            """Like the API server: uses a connection until the server sends `Connection: close`."""
            while True:
                with Client(url, ca) as client:
                    closing = False
                    while not closing:
                        try:
                            reply = client.review(review())
                        except ConnectionRefusedError:
                            return
                        except OSError:
                            # A client that comes while the listener closes is turned away: that is what the delay is
                            # for. Before its end, it would be a failed review.
                            cut_off.append(time.monotonic())
                            return
                        steady.append(str(reply.status))
                        closing = reply.headers.get("connection") == "close"
                        time.sleep(0.005)

        threads = [threading.Thread(target=target) for target in (in_flight, reconnecting, reconnecting)]
        for thread in threads:
            thread.start()
        with Client(url, ca) as probe:
            assert probe.get("/readyz").status == 200
        time.sleep(0.5)
        told = time.monotonic()
        process.signal(signal.SIGTERM)
        process.event("draining")
        with Client(url, ca) as probe:
            reply = probe.get("/readyz")
            assert (reply.status, b"[-]shutdown failed: shutting down" in reply.body) == (503, True)
        assert not slow, "the review that was in flight is not answered yet"
        go.touch()
        for thread in threads:
            thread.join()
        assert process.wait() == 0
        assert slow == [200]
        assert set(steady) == {"200"}
        assert all(moment - told >= 2.0 for moment in cut_off)
        assert time.monotonic() - told >= 2.0


def test_two_signals_end_a_process_at_once(tls_directory: Path, tmp_path: Path) -> None:
    with Process(["-c", SLOW_SERVER, str(tls_directory), str(tmp_path / "go")], cwd=tls_directory) as process:
        process.event("serving")
        process.signal(signal.SIGINT)
        process.event("draining")
        started = time.monotonic()
        process.signal(signal.SIGTERM)
        process.event("stopping at once")
        assert process.wait() == 0
        assert_below(time.monotonic() - started, 0.9)


def test_outside_the_main_thread_signals_are_ignored() -> None:
    def run() -> None:
        async def scenario() -> None:
            with listening.on_signals(lambda: None):
                await asyncio.sleep(0)

        asyncio.run(scenario())

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
