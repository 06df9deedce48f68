"""A real server process under attack, with concurrent reviews of another tenant."""

import contextlib
import dataclasses
import http.client
import json
import shutil
import signal
import ssl
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import memory
from tests.support.faults import Attempts
from tests.support.serving import ROOT, Client, Process, Reply, free_port, review

MEMORY_LIMIT = 256 * 1024
"""KiB: the chart's memory limit of the webhook's container (deploy/chart/values.yaml)."""
PROMISED = 0.1
"""Maximum seconds of another tenant's review on an idle machine, during every attack."""
ASSERTED = 20 * PROMISED
"""The maximum that `make timed-test` asserts."""
ANSWERED = 12.0
"""Seconds in which each attack has its own answer. The API server's default time-out is 10."""
PATIENT = 30
"""The longest time-out of a webhook, in seconds: on a busy machine a second of work takes many."""
PATIENCE = 90.0
"""Seconds that a client waits for an answer, on a busy machine."""
LARGEST_ANSWER = 64 * 1024
"""Bytes."""

NEURON = {"limits": {"aws.amazon.com/neuron": "4"}}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "neighbour", "namespace": "neighbour"},
    "spec": {"containers": [{"name": "main", "image": "x", "resources": NEURON}]},
}
CLAIM = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "neuron.aws.com", "count": 1}}]}}

PACKS = ("device-limit.yaml", "host-devices.yaml", "logical-neuron-core.yaml", "privileged.yaml")


@dataclasses.dataclass
class Waits:
    """Seconds of each review of the other tenant, and failures; the same as attempts."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    attempts: Attempts = dataclasses.field(default_factory=Attempts)
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def longest(self) -> float:
        return max(self.seconds, default=0.0)

    def __str__(self) -> str:
        if not self.seconds:
            return "no review"
        middle = statistics.median(self.seconds)
        return f"{len(self.seconds)} reviews, median {1000 * middle:.1f} ms, longest {1000 * self.longest:.0f} ms"


class Victim:
    """The server process, with helpers for the attacker and the observer."""

    def __init__(self, process: Process, url: str, ca: Path, metrics_url: str) -> None:
        self.process = process
        self.url = url
        self.ca = ca
        self.metrics_url = metrics_url
        self._context = ssl.create_default_context(cafile=str(ca))

    def client(self, timeout: float = PATIENCE) -> Client:
        return Client(self.url, self.ca, timeout)

    def attack(self, path: str, body: bytes) -> tuple[Reply | None, float]:
        """One review on a new connection: the answer or None, and its seconds. The caller waits `PATIENT`."""
        started = time.perf_counter()
        try:
            with self.client() as client:
                reply = client.review(body, f"{path}?timeout={PATIENT}s")
        except (OSError, http.client.HTTPException):
            return None, time.perf_counter() - started
        return reply, time.perf_counter() - started

    @property
    def peak_memory(self) -> int:
        """The most resident memory that the process had since it started, in KiB."""
        return memory.peak(self.process.process.pid) // 1024

    @property
    def memory(self) -> int:
        """Resident memory now, in KiB."""
        return memory.resident(self.process.process.pid) // 1024

    @property
    def alive(self) -> bool:
        return self.process.process.poll() is None

    @property
    def healthy(self) -> bool:
        """Whether it runs, answers, and is below its memory limit."""
        if not self.alive or self.peak_memory >= MEMORY_LIMIT:
            return False
        try:
            with self.client() as client:
                return client.get("/livez").status == 200
        except (OSError, http.client.HTTPException):
            return False

    @contextlib.contextmanager
    def neighbour(self) -> Iterator[Waits]:
        """Reviews of another tenant, one after the other, for the length of the context."""
        waits, over = Waits(), threading.Event()
        thread = threading.Thread(target=self._watch, args=(waits, over), name="neighbour")
        thread.start()
        try:
            yield waits
        finally:
            over.set()
            thread.join()

    def _watch(self, waits: Waits, over: threading.Event) -> None:
        pod = json.dumps(review(namespace="neighbour", object=POD)).encode()
        claim = json.dumps(review(**claim_review(CLAIM, namespace="neighbour"))).encode()
        turns = (("/mutate", pod), ("/validate", claim), ("/livez", b""))
        while not over.is_set():
            try:
                with self.client() as client:
                    while not over.is_set():
                        for path, body in turns:
                            waits.failures += self._one(client, path, body, waits)
                        time.sleep(0.005)
            except (OSError, http.client.HTTPException) as error:
                waits.attempts.add(time.monotonic(), failed=True)
                waits.failures.append(f"no answer: {error!r}")

    @staticmethod
    def _one(client: Client, path: str, body: bytes, waits: Waits) -> list[str]:
        started = time.monotonic()
        try:
            reply = client.review(body, f"{path}?timeout={PATIENT}s") if body else client.get(path)
        finally:
            waits.seconds.append(time.monotonic() - started)
        answered = reply.status == 200 and (not body or reply.response["allowed"])
        unconverted = answered and path == "/mutate" and "patch" not in reply.response
        waits.attempts.add(started, failed=not answered, lost=unconverted)
        if answered and not unconverted:
            return []
        return [f"{path}: {reply.status} {reply.body[:200]!r}"]


def claim_review(spec: Any, kind: str = "ResourceClaim", **members: Any) -> dict[str, Any]:
    """Members of a review of a claim or template."""
    data = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "c", "namespace": "tenant"},
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }
    return {
        "kind": {"group": "resource.k8s.io", "version": "v1", "kind": kind},
        "resource": {"group": "resource.k8s.io", "version": "v1", "resource": kind.lower() + "s"},
        "namespace": "tenant",
        "object": data,
        **members,
    }


class Fortress:
    """A server for many attacks; replaced when an attack has stopped it, so that attacks are independent."""

    def __init__(self, directory: Path, policies: dict[str, str]) -> None:
        self._directory = directory
        self._policies = policies
        self._stack = contextlib.ExitStack()
        self._victim: Victim | None = None
        self._count = 0

    def __enter__(self) -> "Fortress":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def server(self) -> Iterator[Victim]:
        """The server, for one attack: the next attack gets another one if this attack stops it."""
        if self._victim is None:
            self._count += 1
            directory = self._directory / str(self._count)
            directory.mkdir()
            self._victim = self._stack.enter_context(victim(directory, self._policies))
        try:
            yield self._victim
        finally:
            if not self._victim.healthy:
                self._victim.process.process.kill()
                self._victim.process.process.wait()
                self._victim = None
                self._stack.close()


@contextlib.contextmanager
def victim(directory: Path, policies: dict[str, str] | None = None) -> Iterator[Victim]:
    """The server as a process: standalone, with the shipped packs and `policies` (file name -> YAML) in force."""
    folder = directory / "policies"
    folder.mkdir()
    for pack in PACKS:
        shutil.copy(ROOT / "policies" / "packs" / pack, folder)
    for name, text in (policies or {}).items():
        (folder / name).write_text(text)
    arguments = ["-m", "webhook", "webhook", "--standalone", "--host", "127.0.0.1", "--port", "0"]
    arguments += ["--metrics-port", str(free_port()), "--policies", str(folder), "--log-format", "json"]
    with Process(arguments, cwd=directory) as process:
        metrics_url = process.event("serving metrics")["url"]
        url = process.event("serving")["url"][0]
        found = Victim(process, url, directory / ".neuron-dra/tls/ca.crt", metrics_url)
        try:
            yield found
        finally:
            if found.alive:
                process.signal(signal.SIGTERM)
                assert process.wait() == 0, "the server ends by itself"
