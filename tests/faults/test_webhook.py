"""Clients that disturb a real server, while another tenant's reviews go on: each of these is answered, and converted.

With `--faults` the disturbances have the size that their name says, otherwise a tenth of it.
"""

import concurrent.futures
import contextlib
import gzip
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.attacks import arsenal
from tests.attacks.victims import MEMORY_LIMIT, POD, Fortress, Victim
from tests.support.faults import Attempts, Outcome
from tests.support.serving import Reply, eventually, review
from tests.support.timing import assert_below

pytestmark = pytest.mark.fault

Report = Callable[[Outcome], None]

MEBIBYTE = 1 << 20
QUIET = 0.3
"""Seconds of reviews before and after a disturbance."""
LOOPS = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: loops}
spec:
  failurePolicy: Ignore
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  matchConditions: [{name: loops, expression: "'loops' in object.metadata.?labels.orValue({})"}]
  validations:
  - expression: >-
      object.spec.containers.all(a, object.spec.containers.all(b, object.spec.containers.all(c,
      a.name + b.name + c.name != '')))
    message: never
"""


@pytest.fixture(scope="module")
def fortress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    with Fortress(tmp_path_factory.mktemp("victim"), {"loops.yaml": LOOPS}) as found:
        yield found


@pytest.fixture
def server(fortress: Fortress) -> Iterator[Victim]:
    with fortress.server() as found:
        yield found


@contextlib.contextmanager
def disturbed(server: Victim, name: str, report: Report) -> Iterator[None]:
    """Another tenant's reviews before, during and after a disturbance; none of them may fail."""
    with server.neighbour() as waits:
        eventually(lambda: len(waits.attempts.all()) > 10, "the first reviews")
        yield
        over = time.monotonic()
        time.sleep(QUIET)
    report(Outcome.of(name, "reviews", waits.attempts.all(), over))
    assert waits.failures == []
    assert server.alive
    assert server.peak_memory < MEMORY_LIMIT


def connections(server: Victim, count: int, stack: contextlib.ExitStack) -> list[ssl.SSLSocket]:
    """Open connections, which end with the stack; without those that the server closes for others."""
    parts = urlsplit(server.url)
    context = ssl.create_default_context(cafile=str(server.ca))

    def one(_: int) -> ssl.SSLSocket | None:
        plain = socket.create_connection((parts.hostname, parts.port), timeout=30)
        try:
            return context.wrap_socket(plain, server_hostname=parts.hostname)
        except OSError:
            plain.close()
            return None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = [each for each in pool.map(one, range(count)) if each is not None]
    for each in found:
        stack.enter_context(each)
    return found


def test_idle_connections(server: Victim, full: bool, report_fault: Report) -> None:
    """At the limit of the server they make room for new connections as soon as they have been idle for a while."""
    # A few more than the server takes.
    count = 1050 if full else 100
    fresh = Attempts()
    with server.neighbour() as waits, contextlib.ExitStack() as stack:
        eventually(lambda: len(waits.attempts.all()) > 10, "the first reviews")
        assert len(connections(server, count, stack)) >= (950 if full else count)
        filled = time.monotonic()

        def answered() -> bool:
            began = time.monotonic()
            reply, _seconds = server.attack("/mutate", padded(10))
            fresh.add(began, failed=reply is None)
            return [each.failed for each in fresh.all()[-10:]] == [False] * 10

        eventually(answered, "ten new connections in a row to be answered")
    outcome = Outcome.of("1,000 idle connections", "reviews", [*waits.attempts.all(), *fresh.all()], filled)
    report_fault(outcome)
    assert waits.failures == []
    assert_below(outcome.recovered, 10)
    assert server.peak_memory < MEMORY_LIMIT


def test_slow_clients(server: Victim, full: bool, report_fault: Report) -> None:
    if not full:
        pytest.skip("takes six seconds: --faults FILE runs it; tests/webhook/edge has the time-outs")
    head = b"POST /mutate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
    name = "200 clients that send one byte at a time (slow-loris)"
    with disturbed(server, name, report_fault), contextlib.ExitStack() as stack:
        open_still = set(connections(server, 200, stack))
        # Half of them never end their head, and half never end their body.
        begun = [head if number % 2 else head[:20] for number in range(len(open_still))]
        for each, data in zip(open_still, begun, strict=True):
            each.sendall(data)
            each.settimeout(0.001)
        deadline = time.monotonic() + 30
        while open_still:
            assert time.monotonic() < deadline, f"{len(open_still)} slow clients are still connected"
            for each in list(open_still):
                with contextlib.suppress(TimeoutError, ssl.SSLWantReadError):
                    try:
                        each.send(b" ")
                        gone = each.recv(1000) == b""
                    except (ConnectionError, ssl.SSLError):
                        gone = True
                    if gone:
                        open_still.remove(each)
            time.sleep(0.05)


def padded(size: int) -> bytes:
    """A review of a Neuron pod of `size` bytes."""
    pod = {**POD, "metadata": {**POD["metadata"], "annotations": {"padding": "x" * size}}}
    return json.dumps(review(namespace="tenant", object=pod)).encode()


def test_large_bodies(server: Victim, full: bool, report_fault: Report) -> None:
    """More of them at once than memory allows are turned away, and are all answered in the end."""
    body = padded(3 * MEBIBYTE)
    large = Attempts()

    def send(_: int) -> None:
        while True:
            began = time.monotonic()
            reply, _seconds = server.attack("/mutate", body)
            # The API server gets 503 and follows failurePolicy; a controller sends the pod again.
            failed = reply is None or reply.status == 503
            large.add(began, failed=failed, lost=not failed and not is_converted(reply))
            if not failed:
                return
            time.sleep(0.05)

    name = "memory: 64 reviews of 3 MiB at once"
    with server.neighbour() as waits, concurrent.futures.ThreadPoolExecutor(64) as pool:
        list(pool.map(send, range(64 if full else 8)))
        over = time.monotonic()
    report_fault(Outcome.of(name, "reviews", [*waits.attempts.all(), *large.all()], over))
    assert waits.failures == []
    assert not any(each.lost for each in large.all())
    assert server.peak_memory < MEMORY_LIMIT


def is_converted(reply: Reply | None) -> bool:
    return reply is not None and reply.status == 200 and "patch" in reply.response


MALFORMED: dict[str, tuple[bytes, dict[str, str], int]] = {
    "empty": (b"", {}, 400),
    "not JSON": (b"{", {}, 400),
    "binary": (bytes(range(256)) * 16, {}, 400),
    "another object": (b'{"kind": "Pod"}', {}, 400),
    "a list": (b"[" * 10_000, {}, 400),
    "UTF-16": ('{"kind": "AdmissionReview"}'.encode("utf-16"), {}, 400),
    "another type": (padded(10), {"content-type": "text/plain"}, 415),
    "compressed": (gzip.compress(padded(10)), {"content-encoding": "gzip"}, 400),
    "9 MiB": (b" " * (9 * MEBIBYTE), {}, 413),
}


def test_malformed_bodies(server: Victim, full: bool, report_fault: Report) -> None:
    answers: dict[str, Any] = {}
    with disturbed(server, "malformed bodies", report_fault):
        for _ in range(20 if full else 2):
            for name, (body, headers, _status) in MALFORMED.items():
                with server.client() as client:
                    given = {"content-type": "application/json", **headers}
                    answers[name] = client.ask("POST", "/mutate", body, given).status
    assert answers == {name: status for name, (_body, _headers, status) in MALFORMED.items()}


def looping(size: int) -> bytes:
    data = arsenal.pod([{"name": f"c{n}", "image": "x"} for n in range(size)], {"labels": {"loops": ""}})
    return json.dumps(review(**arsenal.creating(data))).encode()


def test_a_policy_that_loops(server: Victim, full: bool, report_fault: Report) -> None:
    """It costs the cube of the number of containers; the cost limit ends its evaluation."""
    body = looping(400)
    with disturbed(server, "a policy that loops", report_fault), concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: server.attack("/validate", body), range(40 if full else 4)))
    for reply, seconds in replies:
        assert reply is not None
        assert reply.status == 200
        assert_below(seconds, 10)
