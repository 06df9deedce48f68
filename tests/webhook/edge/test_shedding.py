"""Load shedding over real TLS: which reviews are shed, how, and which never are."""

import asyncio
import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest

from conversion.objects import wire
from conversion.patches.decision import Decision, unchanged
from tests.support.clocks import Clock
from tests.support.fake_api import eventually as reached
from tests.support.serving import Answering, Client, Reply, Running, eventually, free_port, review, serving
from webhook.edge.bodies import BodyReader, BodyTooManyError, MemoryBudget
from webhook.edge.metrics import PathMetrics
from webhook.edge.shedding import Gate, LoopLag, caller_timeout, creates_template
from webhook.reviews.reviewer import before_waiting
from webhook.reviews.worker_threads import seconds_left
from webhook.server import app
from webhook.server.settings import WebhookSettings

MOST = 3
BUSY = {"message": f"Overloaded: {MOST} reviews of /mutate are being decided (--max-inflight)."}
TEMPLATE = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaimTemplate"}


class Waiting:
    """A reviewer that waits until it is let go, as one that waits for the API server does."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = 0

    async def review(self, request: wire.AdmissionRequest) -> Decision:
        await before_waiting()
        self.begun += 1
        if request.kind.kind != "ResourceClaimTemplate":
            while not self.go.is_set():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.005)
        return unchanged("not-neuron")


class Creating(Waiting):
    """A `/mutate` that waits until our own `/validate` has reviewed a template before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.client: Client | None = None

    async def review(self, request: wire.AdmissionRequest) -> Decision:
        await super().review(request)
        assert self.client is not None
        answer = await asyncio.to_thread(self.client.review, review(kind=TEMPLATE), "/validate")
        return unchanged(f"template-{answer.status}")


class Saturated:
    """A server whose paths are full."""

    def __init__(self, running: Running, waiting: dict[str, Waiting]) -> None:
        self.running = running
        self.waiting = waiting
        self.replies: list[Reply] = []
        self._threads: list[threading.Thread] = []

    def fill(self, path: str) -> None:
        def send() -> None:
            with self.running.client() as client:
                self.replies.append(client.review(review(), path))

        begun = self.waiting[path].begun
        threads = [threading.Thread(target=send) for _ in range(MOST)]
        for thread in threads:
            thread.start()
        self._threads += threads
        eventually(lambda: self.waiting[path].begun == begun + MOST, f"{path} is full")

    def release(self) -> None:
        for each in self.waiting.values():
            each.go.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def saturated(tls_directory: Path) -> Iterator[Saturated]:
    with saturable(tls_directory) as full:
        yield full


@contextlib.contextmanager
def saturable(directory: Path, **limits: float) -> Iterator[Saturated]:
    waiting: dict[str, Waiting] = {"/mutate": Waiting(), "/validate": Waiting()}
    with serving(directory, waiting, max_inflight=MOST, **limits) as running:  # type: ignore[arg-type]
        full = Saturated(running, waiting)
        try:
            yield full
        finally:
            full.release()


def test_reviews_above_the_limit_get_503_and_reviews_in_progress_their_answer(saturated: Saturated) -> None:
    saturated.fill("/mutate")
    with saturated.running.client() as client:
        for _ in range(3):
            reply = client.review(review())
            assert (reply.status, reply.json) == (503, BUSY)
            assert "retry-after" not in reply.headers, "the API server would try again until its time-out"
            assert "connection" not in reply.headers, "another handshake would cost more than the review"
        saturated.release()
        assert [reply.status for reply in saturated.replies] == [200] * MOST
        eventually(lambda: client.review(review()).status == 200, "there is room again")


def test_shed_reviews_are_counted_and_logged_once(saturated: Saturated, caplog: pytest.LogCaptureFixture) -> None:
    saturated.fill("/mutate")
    with saturated.running.client() as client, caplog.at_level(logging.WARNING):
        for _ in range(5):
            client.review(review())
    counts = saturated.running.metrics.path("/mutate")
    assert (counts.shed, counts.errors, counts.inflight) == ({"busy": 5, "late": 0, "memory": 0}, {503: 5}, MOST)
    exposed = generate_latest(saturated.running.metrics.registry).decode()
    assert 'neuron_dra_shed_reviews_total{path="/mutate",reason="busy"} 5.0' in exposed
    said = [vars(record) for record in caplog.records if record.getMessage() == "shedding reviews"]
    assert [(record["path"], record["reason"], record["shed"]) for record in said] == [("/mutate", "busy", 1)]


def test_each_path_has_its_own_limit(saturated: Saturated) -> None:
    saturated.fill("/mutate")
    with saturated.running.client() as client:
        assert client.review(review()).status == 503
        saturated.waiting["/validate"].go.set()
        assert client.review(review(), "/validate").status == 200


def test_a_shed_body_is_read_and_the_connection_stays_open(saturated: Saturated) -> None:
    saturated.fill("/mutate")
    large = json.dumps(review(object={"x": "y" * 1_000_000})).encode()
    with saturated.running.client() as client:
        assert [client.review(large).status for _ in range(3)] == [503] * 3
        chunks = (large[start : start + 50_000] for start in range(0, len(large), 50_000))
        assert client.ask("POST", "/mutate", chunks, {"Content-Type": "application/json"}).status == 503
        saturated.waiting["/validate"].go.set()
        assert client.review(review(), "/validate").status == 200


def test_a_shed_body_that_does_not_arrive_closes_the_connection(tls_directory: Path) -> None:
    with saturable(tls_directory, body_timeout=0.5) as full, full.running.raw() as connection:
        full.fill("/mutate")
        connection.sendall(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in answer.lower()


def test_slow_senders_do_not_count_as_inflight(saturated: Saturated) -> None:
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    saturated.waiting["/mutate"].go.set()
    with contextlib.ExitStack() as stack:
        for _ in range(3 * MOST):
            stack.enter_context(saturated.running.raw()).sendall(head)
        counts = saturated.running.metrics.path("/mutate")
        eventually(lambda: counts.inflight == 3 * MOST, "they have begun")
        assert stack.enter_context(saturated.running.client()).review(review()).status == 200


def test_new_templates_are_never_shed_on_validate(saturated: Saturated) -> None:
    saturated.fill("/mutate")
    saturated.fill("/validate")
    with saturated.running.client() as client:
        assert client.review(review(), "/validate").status == 503
        assert [client.review(review(kind=TEMPLATE), "/validate").status for _ in range(20)] == [200] * 20
        assert client.review(review(kind=TEMPLATE, operation="UPDATE"), "/validate").status == 503
        assert client.review(review(kind={**TEMPLATE, "kind": "ResourceClaim"}), "/validate").status == 503
        assert client.review(review(kind=TEMPLATE)).status == 503, "on /mutate nothing waits for them"


def test_reviews_that_create_templates_end_though_both_paths_are_full(tls_directory: Path) -> None:
    waiting: dict[str, Waiting] = {"/mutate": Creating(), "/validate": Waiting()}
    with serving(tls_directory, waiting, max_inflight=MOST) as running, contextlib.ExitStack() as stack:
        full = Saturated(running, waiting)
        creating = waiting["/mutate"]
        assert isinstance(creating, Creating)
        full.fill("/validate")
        full.fill("/mutate")
        pool = _Pool(running, stack)
        creating.client = pool  # type: ignore[assignment]
        creating.go.set()
        eventually(lambda: len(full.replies) == MOST, "every template was reviewed")
        full.release()

        def reasons() -> list[str]:
            return [line["reason"] for line in running.decisions()]

        # Lines are written after their answers.
        eventually(lambda: reasons().count("template-200") == MOST, "each decision is logged")


class _Pool:
    """A connection for each review: a `Client` is one."""

    def __init__(self, running: Running, stack: contextlib.ExitStack) -> None:
        self._running = running
        self._stack = stack

    def review(self, sent: Any, path: str) -> Reply:
        return self._stack.enter_context(self._running.client()).review(sent, path)


# --- work for the processor -------------------------------------------------------------------------------------


class BusyReviewer(Answering):
    """A reviewer that keeps the event loop busy."""

    async def review(self, request: wire.AdmissionRequest) -> Decision:
        if asyncio.current_task() is None:
            await before_waiting()
        if request.kind.kind != "ResourceClaimTemplate":
            time.sleep(0.1)  # noqa: ASYNC251 - blocking is the point
        return await super().review(request)


def test_reviews_after_the_time_out_of_their_caller_are_not_started(tls_directory: Path) -> None:
    senders = 40
    work = {"/mutate": BusyReviewer(), "/validate": BusyReviewer()}
    replies: list[tuple[int, float]] = []

    def send(client: Client, path: str) -> None:
        body = json.dumps(review()).encode()
        started = time.monotonic()
        reply = client.ask("POST", f"{path}?timeout=1s", body, {"Content-Type": "application/json"})
        replies.append((reply.status, time.monotonic() - started))

    with serving(tls_directory, work) as running, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(running.client()) for _ in range(senders)]
        for client in clients:
            assert client.get("/livez").status == 200
        threads = [threading.Thread(target=send, args=(client, "/mutate")) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shed = running.metrics.path("/mutate").shed.get("late", 0)
        assert [status for status, _ in replies].count(503) == shed
        assert 1 <= len(work["/mutate"].requests) == senders - shed, "those that were begun in time were answered"
        assert shed >= 5
        assert running.metrics.path("/mutate").errors == {503: shed}
        with running.client() as later:
            assert later.review(review()).status == 200, "when it is over, nothing is shed"


async def test_requests_have_waited_since_the_timer_ran_and_for_half_of_its_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(100.0)
    timers: list[Any] = []

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda _, tick: timers.append(tick))
    lag = LoopLag(clock)
    waited = [clock.now - lag.arrival]
    lag.start()
    for delay in (0.0, 3.0, 0.0):
        clock.now += LoopLag.INTERVAL + delay
        timers.pop()()
        waited.append(clock.now - lag.arrival)
        clock.now += 2
        waited.append(clock.now - lag.arrival)
        clock.now -= 2
    lag.stop()
    assert [*waited, clock.now - lag.arrival] == pytest.approx([-math.inf, 0.0, 2.0, 1.5, 3.5, 0.0, 2.0, -math.inf])


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        (b"timeout=5s", 5.0),
        (b"timeout=1m0s", 60.0),
        (b"a=b&timeout=2.5s&c=d", 2.5),
        (b"timeout=999ms", 0.999),
        (b"timeout=4.998765432s", 4.998765432),
        (b"timeout=30m", 1800.0),
        (b"", 10.0),
        (b"timeout=", 10.0),
        (b"timeout=abc", 10.0),
        (b"notimeout=1s", 10.0),
        (b"timeout=1h", 10.0),
        (b"timeout=-1s", 10.0),
    ],
)
def test_the_time_out_of_the_caller_is_parsed(query: bytes, seconds: float) -> None:
    assert caller_timeout(query) == seconds


class Timed(Answering):
    """Notes how long it has."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[float] = []

    async def review(self, request: wire.AdmissionRequest) -> Decision:
        await before_waiting()
        self.left.append(seconds_left())
        return await super().review(request)


def test_the_time_for_the_body_counts_in_the_time_out(tls_directory: Path) -> None:
    timed = Timed()
    body = json.dumps(review()).encode()
    head = (
        b"POST /mutate?timeout=30s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with serving(tls_directory, {"/mutate": timed}) as running, running.raw() as connection:
        connection.sendall(head % len(body) + body[:10])
        time.sleep(1)
        connection.sendall(body[10:])
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    (left,) = timed.left
    assert 0 < left < 30 * 0.7 - 0.9


def test_the_time_before_the_request_is_handled_counts_in_the_time_out() -> None:
    clock = Clock(100.0)
    lag = LoopLag(clock)
    gate = Gate("/mutate", PathMetrics(), 0, lag)
    assert gate.arrival(clock.now) == clock.now
    lag.arrival = clock.now - 2
    assert gate.arrival(clock.now) == clock.now - 2


def test_zero_means_no_limit() -> None:
    gate = Gate("/mutate", PathMetrics(), 0, LoopLag())
    gate.deciding = 1_000_000
    assert gate.overload(time.perf_counter(), {"query_string": b""}) == ""


def test_only_new_templates_are_exempt() -> None:
    def about(kind: str, group: str = "resource.k8s.io", operation: str = "CREATE") -> wire.AdmissionRequest:
        return wire.AdmissionRequest("u", wire.GroupVersionKind(kind, group, "v1"), operation)

    assert creates_template(about("ResourceClaimTemplate"))
    assert not creates_template(about("ResourceClaimTemplate", operation="UPDATE"))
    assert not creates_template(about("ResourceClaimTemplate", group="example.com"))
    assert not creates_template(about("ResourceClaim"))


async def test_the_loop_s_lag_is_measured() -> None:
    lag = LoopLag()

    lag.start()
    time.sleep(0.4)  # noqa: ASYNC251 - blocking is the point
    await reached(lambda: sum(lag.delays.counts) >= 2)
    lag.stop()
    assert lag.delays.total >= 0.25


# --- memory -----------------------------------------------------------------------------------------------------


def test_large_bodies_share_a_budget_that_small_ones_do_not_need() -> None:
    limit = 200_000
    large = 190_000

    async def scenario() -> None:
        owners = map(str, range(99))
        reader = BodyReader(limit, 20, lambda _: next(owners))
        end, answered = asyncio.Event(), asyncio.Event()

        async def read(size: int) -> int:
            pieces = iter([b"", b"x" * size])

            async def receive() -> dict[str, Any]:
                piece = next(pieces, None)
                if piece is None:
                    await end.wait()
                return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

            body = await reader.read(receive)
            await answered.wait()
            reader.release(body)
            return len(body)

        held = [asyncio.create_task(read(large)) for _ in range(BodyReader.LARGE_AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(BodyTooManyError):
            await read(large)
        small = [asyncio.create_task(read(BodyReader.SMALL)) for _ in range(50)]
        await asyncio.sleep(0)
        end.set()
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(BodyTooManyError):
            await read(large)
        answered.set()
        assert await asyncio.gather(*held) == [large] * BodyReader.LARGE_AT_ONCE
        assert await asyncio.gather(*small) == [BodyReader.SMALL] * 50
        assert reader.held == 0, "what was answered is given back"
        assert await read(large) == large

    asyncio.run(scenario())


def test_too_many_large_bodies_are_shed(tls_directory: Path) -> None:
    limit = 200_000
    head = (
        b"POST /mutate?timeout=1s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    with (
        serving(tls_directory, {"/mutate": Answering()}, max_body_bytes=limit) as running,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(8):
            stack.enter_context(running.raw()).sendall(head % limit + b" " * 150_000)
        counts = running.metrics.path("/mutate")
        eventually(lambda: counts.shed.get("memory", 0) == 7, "one that is no review may have half")
        assert stack.enter_context(running.client()).review(review()).status == 200


class FailClosedPolicyReviewer(Answering):
    """A reviewer with a policy that fails closed, about pods."""

    def must_answer(self, request: wire.AdmissionRequest) -> bool:
        return request.kind.kind == "Pod"


def large_pod(size: int, **members: Any) -> bytes:
    return json.dumps(review(**{"object": {"x": "y" * size}, **members})).encode()


def send_all(running: Running, bodies: list[bytes], timeout: int) -> list[Reply]:
    replies: list[Reply] = []

    def send(body: bytes) -> None:
        with running.client() as client:
            replies.append(
                client.ask("POST", f"/validate?timeout={timeout}s", body, {"Content-Type": "application/json"})
            )

    threads = [threading.Thread(target=send, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


def test_large_reviews_wait_for_memory_half_of_the_time_out(tls_directory: Path) -> None:
    bodies = [large_pod(190_000, uid=f"u-{number}", namespace=f"n-{number}") for number in range(9)]
    with serving(tls_directory, {"/validate": Answering(delay=0.3)}, max_body_bytes=200_000) as running:
        assert [reply.status for reply in send_all(running, bodies, 10)] == [200] * 9
        assert sorted({reply.status for reply in send_all(running, bodies, 1)}) == [200, 503]


def test_a_review_without_memory_is_denied_if_a_policy_may_deny_it(tls_directory: Path) -> None:
    about = [large_pod(190_000, uid=f"u-{number}", namespace=f"n-{number}") for number in range(6)]
    others = [large_pod(190_000, kind={"group": "", "version": "v1", "kind": "ConfigMap"}, namespace="o")] * 6
    with serving(tls_directory, {"/validate": FailClosedPolicyReviewer(delay=1.5)}, max_body_bytes=200_000) as running:
        replies = send_all(running, about, 2)
        assert {reply.status for reply in replies} == {200}
        responses = {reply.response["uid"]: reply.response for reply in replies}
        assert set(responses) == {f"u-{number}" for number in range(6)}
        refused = [response["status"] for response in responses.values() if not response["allowed"]]
        assert len(refused) == 4, "two at a time, for 1.5 s each, of which one second is waited for"
        assert {(each["code"], each["reason"]) for each in refused} == {(503, "ServiceUnavailable")}
        assert refused[0]["message"] == (
            "NEU803: no policy was evaluated, and one may deny this Pod: Overloaded: too many large reviews are being "
            "read. Try again."
        )
        assert 503 in {reply.status for reply in send_all(running, others, 2)}


def test_a_full_path_denies_a_review_that_a_policy_may_deny(tls_directory: Path) -> None:
    class Held(Waiting):
        def must_answer(self, request: wire.AdmissionRequest) -> bool:
            return request.operation == "CREATE"

    held: dict[str, Waiting] = {"/validate": Held()}
    with serving(tls_directory, held, max_inflight=MOST) as running:
        full = Saturated(running, held)
        try:
            full.fill("/validate")
            with running.client() as client:
                reply = client.review(review(), "/validate")
                assert (reply.status, reply.response["allowed"]) == (200, False)
                assert "(--max-inflight). Try again." in reply.response["status"]["message"]
                assert client.review(review(operation="UPDATE"), "/validate").status == 503
        finally:
            full.release()


def test_memory_is_reserved_in_order_and_a_namespace_gets_half() -> None:
    async def scenario() -> None:
        room, order = MemoryBudget(100), []

        async def take(size: int, owner: str) -> None:
            await room.reserve(size, owner, 10)
            order.append((owner, size))

        await take(40, "a")
        tasks = [asyncio.create_task(take(*each)) for each in ((20, "a"), (50, "b"), (30, "c"), (10, "d"))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == [("a", 40), ("b", 50)], "a has its half, and d comes after c"
        room.release(50, "b")
        for _ in range(10):
            await asyncio.sleep(0)
        assert order[2:] == [("c", 30), ("d", 10)]
        with pytest.raises(TimeoutError):
            await room.reserve(50, "e", 0.01)
        room.release(40, "a")
        await asyncio.gather(*tasks)
        assert (order[-1], room.held) == (("a", 20), 60)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_the_oldest_incomplete_body_is_discarded() -> None:
    async def scenario() -> None:
        reader = BodyReader(1 << 20, 20)
        fit = BodyReader.INCOMPLETE // 60_000

        async def read(size: int) -> bytes | bytearray:
            pieces = iter([b"x" * size])

            async def receive() -> dict[str, Any]:
                piece = next(pieces, None)
                if piece is None:
                    await asyncio.Event().wait()
                return {"type": "http.request", "body": piece, "more_body": True}

            return await reader.read(receive)

        tiny = [asyncio.create_task(read(BodyReader.UNCOUNTED)) for _ in range(50)]
        tasks = [asyncio.create_task(read(60_000)) for _ in range(fit + 3)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert [task.done() for task in tasks] == [True] * 3 + [False] * fit
        assert not any(task.done() for task in tiny)
        for task in tasks[:3]:
            error = task.exception()
            assert isinstance(error, BodyTooManyError)
            assert (error.given_up, len(error.start)) == (True, 60_000)
        assert reader.incomplete == fit * 60_000
        for task in (*tasks, *tiny):
            task.cancel()
        await asyncio.gather(*tasks, *tiny, return_exceptions=True)
        assert reader.incomplete == 0

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_the_server_exports_metrics_of_its_load(tls_directory: Path) -> None:
    port = free_port()

    async def scenario() -> str:
        settings = WebhookSettings(
            standalone=True,
            tls_dir=tls_directory,
            host="127.0.0.1",
            port=0,
            metrics_host="127.0.0.1",
            metrics_port=port,
        )
        async with app.assemble(settings) as service:
            return await asyncio.to_thread(lambda: urlopen(service.metrics_url, timeout=60).read().decode())  # noqa: S310

    exposed = asyncio.run(scenario())
    for series in (
        "neuron_dra_open_connections 0.0",
        "neuron_dra_refused_connections_total 0.0",
        "neuron_dra_failed_handshakes_total 0.0",
        'neuron_dra_event_loop_lag_seconds_bucket{le="+Inf"} 0.0',
        "# TYPE neuron_dra_shed_reviews_total counter",
    ):
        assert series in exposed.splitlines()
