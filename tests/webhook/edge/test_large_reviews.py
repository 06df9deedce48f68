"""The largest reviews, against a real process: memory, other reviews, /livez and SIGTERM."""

import contextlib
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from conversion.objects import wire
from conversion.patches.decision import Decision
from tests.support import memory
from tests.support.serving import Answering, Client, Process, Running, eventually, review, serving
from tests.support.timing import assert_below
from tests.webhook.edge.test_heads import MEBIBYTE, Attacked
from tests.webhook.edge.test_no_fault import POLICIES
from webhook.edge.bodies import BodyReader
from webhook.reviews.worker_threads import ThreadLane

LIMIT = 8 * MEBIBYTE
CHART_LIMIT = 256 * MEBIBYTE
PEAK = 80 * MEBIBYTE
"""Above idle, for one review."""


def of_size(piece: bytes, size: int = LIMIT - 2000) -> bytes:
    return (piece * (size // len(piece))).removesuffix(b",")


def review_of_spec(content: bytes, old: bytes = b"null") -> bytes:
    return (
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"group":"",'
        b'"version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"namespace":"n",'
        b'"operation":"CREATE","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":'
        + content
        + b'},"oldObject":'
        + old
        + b',"dryRun":false,"options":null}}'
    )


NEURON = b'{"containers":[{"name":"a","resources":{"limits":{"aws.amazon.com/neuron":"4"}}}],"x":'
BODIES: dict[str, Callable[[], bytes]] = {
    "brackets": lambda: b"[" * LIMIT,
    "deep": lambda: review_of_spec(of_size(b"[")),
    "flat-lists": lambda: review_of_spec(NEURON + b"[" + of_size(b"[],") + b"]}"),
    "flat-objects": lambda: review_of_spec(NEURON + b"[" + of_size(b"{},") + b"]}"),
    "numbers": lambda: review_of_spec(NEURON + b"[" + of_size(b"1.5,") + b"]}"),
    "texts": lambda: review_of_spec(NEURON + b"[" + of_size(b'"a",') + b"]}"),
    "names": lambda: review_of_spec(
        NEURON + b"{" + b",".join(b'"k%07x":1' % n for n in range(LIMIT // 13 - 200)) + b"}}"
    ),
    "values-within-bounds": lambda: review_of_spec(
        NEURON + b"[" + b",".join(b'"v%024d"' % n for n in range(240_000)) + b"]}"
    ),
    "groups": lambda: review_of_spec(NEURON + b"[" + of_size(b"[" * 90 + b"]" * 90 + b",") + b"]}"),
    "one-text": lambda: review_of_spec(NEURON + b'"' + of_size(b"a") + b'"}'),
    "wide-text": lambda: review_of_spec(NEURON + b'"' + of_size(b"a", LIMIT - 3000) + "\U0001f600".encode() + b'"}'),
    "escapes": lambda: review_of_spec(NEURON + b'"' + of_size(b"\\n") + b'"}'),
    "number": lambda: review_of_spec(NEURON + of_size(b"1") + b"}"),
    "exponent": lambda: review_of_spec(NEURON + b"1e" + of_size(b"9") + b"}"),
    "spaces": lambda: review_of_spec(NEURON + of_size(b" ") + b"1}"),
    "object-and-old-object": lambda: review_of_spec(
        NEURON + b'"' + b"a" * (3 * MEBIBYTE) + b'"}', NEURON + b'"' + b"a" * (3 * MEBIBYTE) + b'"}'
    ),
}


def peak(attacked: Attacked) -> int:
    return memory.peak(attacked.process.process.pid)


def reset_peak(attacked: Attacked) -> None:
    Path(f"/proc/{attacked.process.process.pid}/clear_refs").write_text("5")


@pytest.fixture(scope="module", params=["plain", "policed"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    directory = tmp_path_factory.mktemp("large")
    arguments = ["-m", "webhook", "webhook", "--standalone", "--host=127.0.0.1", "--port=0", "--metrics-port=0"]
    if request.param == "policed":
        (directory / "policies").mkdir()
        (directory / "policies" / "all.yaml").write_text(POLICIES)
        arguments.append(f"--policies={directory}/policies")
    with Process([*arguments, f"--tls-dir={directory}", "--log-format=json"], cwd=directory) as process:
        yield Attacked(process, directory / "ca.crt")


@pytest.mark.parametrize("name", BODIES)
def test_one_large_review_takes_little_memory_and_delays_no_other(attacked: Attacked, name: str) -> None:
    body = BODIES[name]()
    assert len(body) <= LIMIT
    waits: list[float] = []
    ended = threading.Event()

    def neighbour() -> None:
        with attacked.client() as client:
            while not ended.is_set():
                asked = time.monotonic()
                assert client.review(review()).status == 200
                waits.append(time.monotonic() - asked)
                time.sleep(0.002)

    thread = threading.Thread(target=neighbour)
    for path in ("/mutate", "/validate"):
        reset_peak(attacked)
        before = attacked.rss
        with Client(attacked.url, attacked.ca, timeout=60) as client:
            if not thread.is_alive() and not waits:
                thread.start()
            reply = client.review(body, path)
            assert reply.status in (200, 400)
            assert len(reply.body) < 10_000
        grown = peak(attacked) - before
        assert grown < PEAK, f"{path}: {grown >> 20} MiB"
    ended.set()
    thread.join()
    assert_below(max(waits), 1, "100 ms on an idle machine")


def test_many_large_reviews_at_once_stay_within_the_charts_limit(attacked: Attacked) -> None:
    bodies = [BODIES[name]() for name in ("one-text", "values-within-bounds", "object-and-old-object", "texts")]
    reset_peak(attacked)
    statuses: list[int] = []

    def send(body: bytes) -> None:
        for path in ("/mutate", "/validate"):
            with Client(attacked.url, attacked.ca, timeout=60) as client:
                statuses.append(client.review(body, path).status)

    threads = [threading.Thread(target=send, args=(body,)) for body in bodies * 5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    assert peak(attacked) < CHART_LIMIT, f"{peak(attacked) >> 20} MiB"
    with attacked.client() as neighbour:
        assert neighbour.review(review()).status == 200


@pytest.mark.parametrize("size", [64_000, 3_000])
def test_a_thousand_senders_of_half_a_body_stay_within_the_charts_limit(attacked: Attacked, size: int) -> None:
    head = b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 65000\r\n\r\n"
    where = urlsplit(attacked.url)
    context = ssl.create_default_context(cafile=str(attacked.ca))
    reset_peak(attacked)
    with contextlib.ExitStack() as stack:
        for _ in range(990):
            plain = socket.create_connection((where.hostname, where.port), timeout=60)
            connection = stack.enter_context(context.wrap_socket(plain, server_hostname=where.hostname))
            connection.sendall(head + b'{"a":"' + b"x" * size)
        assert peak(attacked) < CHART_LIMIT, f"{peak(attacked) >> 20} MiB"
        with attacked.client() as neighbour:
            assert neighbour.review(review()).status == 200


class Slow(Answering):
    """Decides in the lane, for longer than every time-out."""

    def __init__(self, lane: ThreadLane) -> None:
        super().__init__()
        self._lane = lane
        self.ends = threading.Event()

    async def review(self, request: wire.AdmissionRequest) -> Decision:
        def work() -> Decision:
            # The interpreter works, as it does for a long decision; nothing here waits for anything.
            while not self.ends.is_set():
                sum(range(10_000))
            return self.answer  # type: ignore[return-value]

        return await self._lane.run(request.namespace, work)


def test_a_busy_lane_delays_no_other_review(tls_directory: Path) -> None:
    lane = ThreadLane()
    slow = Slow(lane)
    try:
        with serving(tls_directory, {"/slow": slow, "/mutate": Answering()}) as running:
            thread = threading.Thread(target=_ask_slowly, args=(running,))
            thread.start()
            eventually(lambda: running.metrics.path("/slow").inflight == 1, "the long decision is under way")
            with running.client() as client:
                for path in ("/livez", "/readyz"):
                    asked = time.monotonic()
                    assert client.get(path).status == 200
                    assert_below(time.monotonic() - asked, 1)
                asked = time.monotonic()
                assert client.review(review()).status == 200
                assert_below(time.monotonic() - asked, 1)
            slow.ends.set()
            thread.join()
    finally:
        slow.ends.set()
        lane.close()


def _ask_slowly(running: Running) -> None:
    with running.client() as client:
        client.review(review(), "/slow")


def test_a_body_counts_in_the_memory_budget_until_its_answer(tls_directory: Path) -> None:
    limit = 200_000
    answering = Answering(delay=1.0)
    with serving(tls_directory, {"/mutate": answering}, max_body_bytes=limit) as running:
        body = json.dumps(review()).encode()
        body += b" " * (limit - len(body))
        statuses: list[int] = []

        def send() -> None:
            with running.client() as client:
                path = "/mutate?timeout=3s"
                statuses.append(client.ask("POST", path, body, {"Content-Type": "application/json"}).status)

        threads = [threading.Thread(target=send) for _ in range(BodyReader.LARGE_AT_ONCE + 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200] * 2 + [503] * (BodyReader.LARGE_AT_ONCE), "of one namespace one at a time"
        with running.client() as client:
            assert client.review(body).status == 200, "the others have been answered"


BUSY = """
import atexit, sys
from pathlib import Path
from runtime import listening
from tests.support.serving import Answering, tls_context
from tests.webhook.edge.test_large_reviews import Slow
from webhook.edge.endpoints import build
from webhook.server.command import run
from webhook.edge import logs, server
from webhook.edge.bodies import BodyReader
from webhook.edge.endpoints import RequestLimits, Telemetry
from webhook.edge.shedding import Lifecycle
from webhook.edge.metrics import Metrics
from webhook.reviews.worker_threads import ThreadLane
from webhook.server.settings import WebhookSettings

async def main():
    lifecycle, directory = Lifecycle(), Path(sys.argv[1])
    lane = ThreadLane()
    application = build({"/mutate": Slow(lane)}, {}, lifecycle, RequestLimits(BodyReader(1 << 20, 5)),
                        Telemetry(Metrics("test"), logs.DecisionLog(sys.stderr.buffer)))
    listener = listening.listen("127.0.0.1", 0, "--host", "--port")
    tls = tls_context(directory)
    running = server.Server(application, tls, lifecycle, server.ServerLimits(5, drain_delay=0, drain_timeout=1))
    with listening.on_signals(running.stop):
        await running.serve(sockets=[listener])
    lane.close()

atexit.register(print, "finalised", file=sys.stderr)
run(main(), WebhookSettings(standalone=True, log_format="json", log_level="info"))
"""


def test_a_signal_stops_the_process_during_a_long_decision(tls_directory: Path) -> None:
    with Process(["-c", BUSY, str(tls_directory)], cwd=tls_directory) as process:
        url = process.event("serving")["url"][0]
        with Client(url, tls_directory / "ca.crt", timeout=60) as client:
            client.connection.request("POST", "/mutate", json.dumps(review()), {"Content-Type": "application/json"})
            time.sleep(0.3)
            started = time.monotonic()
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
            assert_below(time.monotonic() - started, 10, "one second is what is left to it")
        assert "finalised" not in process.stderr, "a thread that is inside C++ does not survive that"
        assert "draining" in process.stderr
