"""Real servers for tests: the application in a thread, the command in a subprocess, and a client that verifies TLS."""

import asyncio
import base64
import contextlib
import dataclasses
import datetime as dt
import http.client
import io
import json
import os
import queue
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple
from unittest import mock
from urllib.parse import urlsplit

import uvloop

from certs import material
from conversion.objects import wire
from conversion.patches.decision import Decision, unchanged
from runtime import listening
from tests.support.forked import Forked
from webhook.edge import acceptor as accepting
from webhook.edge import logs, reviews, server
from webhook.edge.bodies import BodyReader
from webhook.edge.bounds import BOUNDS
from webhook.edge.callers import Callers, ClientAuthority
from webhook.edge.endpoints import Check, RequestLimits, Telemetry, build
from webhook.edge.metrics import Metrics
from webhook.edge.shedding import Lifecycle, LoopLag
from webhook.reviews.reviewer import Reviewer, before_waiting
from webhook.serving_certificate import live as files
from webhook.serving_certificate.live import CertificateFolder, LiveCertificate

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds after which something that must happen has not."""


class Answering:
    """A reviewer that gives one decision in a task, or raises, and remembers what it was asked."""

    def __init__(self, answer: Decision | Exception | None = None, delay: float = 0.0) -> None:
        self.answer = answer or unchanged("not-neuron")
        self.delay = delay
        self.requests: list[wire.AdmissionRequest] = []

    async def review(self, request: wire.AdmissionRequest) -> Decision:
        await before_waiting()
        self.requests.append(request)
        if self.delay:
            await asyncio.sleep(self.delay)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclasses.dataclass(frozen=True)
class Reply:
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def response(self) -> dict[str, Any]:
        """`response` of an AdmissionReview."""
        review = self.json
        assert review["apiVersion"] == "admission.k8s.io/v1"
        assert review["kind"] == "AdmissionReview"
        response: dict[str, Any] = review["response"]
        return response

    @property
    def patch(self) -> Any:
        return json.loads(base64.b64decode(self.response["patch"]))


class Client:
    """One keep-alive connection over verified TLS."""

    def __init__(self, url: str, ca: Path, timeout: float = PATIENCE) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.context = ssl.create_default_context(cafile=str(ca))
        self.connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=self.context)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.connection.close()

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        self.connection.request(method, path, body, dict(headers or {}))
        answer = self.connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def review(self, review: Any, path: str = "/mutate", content_type: str = "application/json") -> Reply:
        body = review if isinstance(review, bytes) else json.dumps(review).encode()
        return self.ask("POST", path, body, {"Content-Type": content_type})


def review(**request: Any) -> dict[str, Any]:
    """An AdmissionReview of a Pod, with members of `request` replaced; None drops one."""
    members = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "operation": "CREATE",
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "worker-"}, "spec": {}},
        "oldObject": None,
        "dryRun": False,
    } | request
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {name: value for name, value in members.items() if value is not None or name == "oldObject"},
    }


def decoded_review(**members: Any) -> wire.AdmissionRequest:
    """The same, as the webhook reads it."""
    return reviews.decode(json.dumps(review(**members)).encode())


class CertificateFiles(NamedTuple):
    certificate: Path
    key: Path
    ca: Path


@dataclasses.dataclass
class Running:
    """A server in a thread."""

    url: str
    certificates: CertificateFiles
    lifecycle: Lifecycle
    metrics: Metrics
    log: io.BytesIO
    tls: ssl.SSLContext
    _server: server.Server
    _loop: asyncio.AbstractEventLoop
    _thread: threading.Thread

    def client(self, timeout: float = PATIENCE) -> Client:
        return Client(self.url, self.certificates.ca, timeout)

    def raw(self) -> ssl.SSLSocket:
        """A TLS connection to write anything on."""
        parts = urlsplit(self.url)
        plain = socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE)
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        return context.wrap_socket(plain, server_hostname=parts.hostname)

    def stop(self) -> None:
        """As a signal would."""
        self._loop.call_soon_threadsafe(self._server.stop)

    def join(self, timeout: float = PATIENCE) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"the server still runs after {timeout} s"

    @property
    def acceptor(self) -> accepting.Acceptor:
        return self._server.acceptor

    @property
    def refused(self) -> int:
        """Requests that no endpoint saw."""
        return self._server.refused

    def decisions(self) -> list[dict[str, Any]]:
        """Decision lines, as soon as there are any."""
        eventually(lambda: self.log.getvalue().endswith(b"\n"), "decisions are logged")
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


def make_certificates(directory: Path) -> CertificateFiles:
    files.ensure(directory, material.LOCAL_HOSTS, now=dt.datetime.now(dt.UTC))
    names = (material.CERTIFICATE, material.KEY, material.CA)
    return CertificateFiles(*(directory / name for name in names))


def tls_context(directory: Path, minimum_version: Literal["1.2", "1.3"] = "1.3") -> ssl.SSLContext:
    """The context of a server with the certificate of a directory."""
    live = LiveCertificate(server.bare_context(minimum_version))
    CertificateFolder(directory, live)
    return live.context


@contextlib.contextmanager
def serving(
    directory: Path,
    reviewers: Mapping[str, Reviewer],
    *,
    checks: Mapping[str, Check] | None = None,
    max_body_bytes: int = 8 << 20,
    body_timeout: float = PATIENCE,
    drain_delay: float = 0.0,
    drain_timeout: int = 5,
    tls_min_version: Literal["1.2", "1.3"] = "1.3",
    max_connections: int = 0,
    max_inflight: int = 0,
    client_ca: Path | None = None,
    client_names: tuple[str, ...] = (),
) -> Iterator[Running]:
    """The application with these reviewers, on a free port, over TLS, for the length of the context.

    A handshake and a body have much more time than in a cluster: clients are slow on a busy machine.
    """
    certificates = make_certificates(directory)
    tls = tls_context(directory, tls_min_version)

    def fresh() -> ssl.SSLContext:
        return tls_context(directory, tls_min_version)

    authority = None if client_ca is None else ClientAuthority(client_ca, tls, fresh)
    listener = listening.listen("127.0.0.1", 0, "--host", "--port")
    lifecycle, metrics, log, lag = Lifecycle(), Metrics("test"), io.BytesIO(), LoopLag()
    application = build(
        reviewers,
        checks or {},
        lifecycle,
        RequestLimits(
            BodyReader(max_body_bytes, body_timeout),
            None if authority is None else Callers(client_names),
            max_inflight,
            lag,
        ),
        Telemetry(metrics, logs.DecisionLog(log)),
    )
    running = server.Server(
        application,
        tls,
        lifecycle,
        server.ServerLimits(body_timeout, drain_delay, drain_timeout, max_connections),
        authority=authority,
        lag=lag,
    )
    loop = uvloop.new_event_loop()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(running.serve(sockets=[listener]))

    thread = threading.Thread(target=run, name="server")
    thread.start()
    eventually(lambda: lifecycle.serving, "the server serves")
    url = listening.url(listener, "https")
    started = Running(url, certificates, lifecycle, metrics, log, tls, running, loop, thread)
    try:
        with mock.patch.object(accepting, "BOUNDS", dataclasses.replace(BOUNDS, handshake=PATIENCE)):
            yield started
    finally:
        if thread.is_alive() and not lifecycle.draining:
            started.stop()
        started.join()
        listener.close()


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    """The ends to read from and to write to."""
    ends = os.pipe()
    return open(ends[0], "rb"), open(ends[1], "wb")  # noqa: PTH123


def _start(
    arguments: list[str], streams: tuple[int, int, int], cwd: Path, environment: Mapping[str, str], *, forked: bool
) -> "subprocess.Popen[bytes] | Forked":
    if forked:
        option, module, *rest = arguments
        assert option == "-m"
        return Forked(module, rest, streams, cwd=cwd, environment=environment)
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        [sys.executable, *arguments], stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=environment
    )


class Process:
    """The command in a subprocess, with its log lines as they come."""

    def __init__(
        self,
        arguments: list[str],
        *,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        forked: bool = False,
    ) -> None:
        """Start Python.

        Args:
            arguments: of Python.
            cwd: directory to run in.
            environment: variables beside those that every process needs.
            forked: fork it from a process with the imports done (`tests.support.forked`); `arguments` begin with `-m`.
        """
        variables = {name: os.environ[name] for name in ("PATH", "SSL_CERT_FILE")}
        variables |= {"PYTHONPATH": str(ROOT), **(environment or {})}
        self.output, stdout = _pipe()
        self._stderr, stderr = _pipe()
        with stdout, stderr, Path(os.devnull).open() as nothing:
            self.process = _start(
                arguments, (nothing.fileno(), stdout.fileno(), stderr.fileno()), cwd, variables, forked=forked
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read, name="stderr")
        self._reader.start()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.output.close()

    def event(self, name: str) -> dict[str, Any]:
        """The next log line with that event."""
        deadline = time.monotonic() + PATIENCE
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                break
            if re.match(r"\{", line) and json.loads(line)["event"] == name:
                event: dict[str, Any] = json.loads(line)
                return event
        raise AssertionError(f"no event {name!r} in:\n" + "\n".join(self.seen))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join()
        return code

    @property
    def stderr(self) -> str:
        return "\n".join(self.seen)

    def stdout(self) -> str:
        return self.output.read().decode()

    def _read(self) -> None:
        with self._stderr as stream:
            for line in stream:
                self.seen.append(line.decode().rstrip("\n"))
                self._lines.put(self.seen[-1])
        self._lines.put(None)


def eventually(condition: Any, what: str, timeout: float = PATIENCE) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.005)


def free_port() -> int:
    """A port that was free a moment ago, for settings in which 0 means off."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
