"""Reviews that need no wait are answered without a task, with the bounds and the order of all others."""

import asyncio
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conversion.objects import wire
from conversion.patches.decision import Decision, denied, unchanged
from neuron.findings import Finding
from tests.support.serving import Answering, Running, eventually, review, serving
from tests.webhook.edge.test_server import connections_in_memory
from webhook.edge.bodies import BodyReader
from webhook.edge.bounds import BOUNDS
from webhook.edge.connections import ClientConnection
from webhook.reviews.chain import RefusalReporter
from webhook.reviews.worker_threads import LaneFullError

HEAD = "POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
DENIED = denied("x", Finding("NEU101", "spec", "message", "fix"))


class Quick(Answering):
    """Decides at once about reviews whose uid does not begin with `slow`."""

    def __init__(self, delay: float = 0.0, decide: Callable[[], Decision | None] = lambda: unchanged("quick")) -> None:
        super().__init__(unchanged("slow"), delay)
        self.decide = decide
        self.quick: list[str] = []
        self.tasks: list[bool] = []

    async def review(self, request: wire.AdmissionRequest) -> Decision:
        if not request.uid.startswith("slow"):
            self.quick.append(request.uid)
            self.tasks.append(asyncio.current_task() is not None)
            decision = self.decide()
            if decision is not None:
                return decision
        return await super().review(request)


def message(uid: str) -> bytes:
    body = json.dumps(review(uid=uid))
    return (HEAD.format(len(body)) + body).encode()


def answers(running: Running, data: bytes, number: int) -> list[str]:
    """The uids of so many answers to some data on one connection, in order."""
    with running.raw() as connection:
        connection.sendall(data)
        received = b""
        while received.count(b'"uid":"') < number:
            piece = connection.recv(65536)
            assert piece, received
            received += piece
    return [part.split(b'"')[0].decode() for part in received.split(b'"uid":"')[1:]]


def test_an_answer_at_once_has_the_headers_of_every_answer(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Quick()}) as running, running.client() as client:
        reply = client.review(review(uid="a"))
        assert (reply.status, reply.response) == (200, {"uid": "a", "allowed": True})
        assert reply.headers["content-type"] == "application/json"
        assert "date" in reply.headers


def test_a_decision_at_once_needs_no_task(tls_directory: Path) -> None:
    quick = Quick()
    with serving(tls_directory, {"/mutate": quick}) as running, running.client() as client:
        # In one piece: http.client sends head and body apart, and under load the server reads the head alone.
        assert answers(running, message("a"), 1) == ["a"]
        assert client.review(review(uid="slow")).response["uid"] == "slow"
        assert [each.uid for each in quick.requests] == ["slow"]
        assert (quick.quick, quick.tasks) == (["a"], [False])
        # The client may read an answer before its decision is logged and counted.
        eventually(lambda: [line["uid"] for line in running.decisions()] == ["a", "slow"], "both are logged")
        eventually(lambda: sum(running.metrics.path("/mutate").reviews.values()) == 2, "both are counted")


@pytest.mark.parametrize("order", [["slow", "a", "slow2", "b"], ["a", "b", "slow", "c"], ["a", "slow"]])
def test_answers_have_the_order_of_pipelined_requests(tls_directory: Path, order: list[str]) -> None:
    with serving(tls_directory, {"/mutate": Quick(delay=0.05)}) as running:
        assert answers(running, b"".join(map(message, order)), len(order)) == order


def test_many_requests_in_one_packet_are_all_answered(tls_directory: Path) -> None:
    uids = [f"u{number}" for number in range(4 * BOUNDS.pipelined)]
    with serving(tls_directory, {"/mutate": Quick()}) as running:
        assert answers(running, b"".join(map(message, uids)), len(uids)) == uids


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_body_may_arrive_in_pieces(tls_directory: Path, pieces: int) -> None:
    quick = Quick()
    data = message("a")
    size = len(data) // pieces + 1
    with serving(tls_directory, {"/mutate": quick}) as running, running.raw() as connection:
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
            time.sleep(0.02)
        assert b'"uid":"a"' in connection.recv(65536)
    assert len(quick.quick) + len(quick.requests) == 1


def raising(error: Exception) -> Callable[[], Decision | None]:
    def decide() -> Decision | None:
        if asyncio.current_task() is None:
            raise error
        return None

    return decide


@pytest.mark.parametrize("error", [ValueError("x"), LaneFullError("x"), RecursionError()], ids=str)
def test_an_error_at_once_is_repeated_in_a_task(tls_directory: Path, error: Exception) -> None:
    with serving(tls_directory, {"/mutate": Quick(decide=raising(error))}) as running, running.client() as client:
        assert client.review(review(uid="a")).response["uid"] == "a"
        assert len(running.decisions()) == 1


def test_a_quick_review_is_shed_too_if_the_server_is_full(tls_directory: Path) -> None:
    with (
        serving(tls_directory, {"/mutate": Quick(delay=1.0)}, max_inflight=1) as running,
        running.raw() as slow,
        running.client() as client,
    ):
        slow.sendall(message("slow"))
        eventually(lambda: running.metrics.path("/mutate").inflight == 1, "the slow one is being decided")
        assert client.review(review(uid="a")).status == 503


def test_connections_that_have_ended_leave_memory_at_once(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Quick()}) as running:
        gc.collect()
        before = connections_in_memory()
        gc.disable()
        try:
            for _ in range(10):
                assert answers(running, message("a"), 1) == ["a"]
            eventually(lambda: connections_in_memory() <= before, "no connection in memory")
        finally:
            gc.enable()


def test_an_idle_connection_does_not_keep_the_body_of_its_last_review(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Quick()}) as running, running.client() as client:
        assert client.review(review(uid="a")).status == 200
        (connection,) = [each for each in gc.get_objects() if isinstance(each, ClientConnection) and each.transport]
        assert connection.cycle.response_complete
        assert len(connection.cycle.body) == 0


def test_a_large_body_is_decided_in_a_task(tls_directory: Path) -> None:
    quick = Quick()
    with serving(tls_directory, {"/mutate": quick}) as running, running.client() as client:
        body = json.dumps(review(uid="large")).encode() + b" " * BodyReader.SMALL
        assert client.review(body).status == 200
    assert (quick.quick, quick.tasks) == (["large"], [True])


def test_answers_close_their_connection_while_draining(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Quick()}, drain_delay=0.5) as running, running.client() as client:
        assert "connection" not in client.review(review(uid="a")).headers
        running.stop()
        eventually(lambda: running.lifecycle.draining, "the server drains")
        assert client.review(review(uid="b")).headers["connection"] == "close"


class DenialListener:
    """Receives denied conversions."""

    def __init__(self) -> None:
        self.uids: list[str] = []

    def refused(self, request: wire.AdmissionRequest, _: Decision) -> None:
        self.uids.append(request.uid)


def test_denials_are_reported_once(tls_directory: Path) -> None:
    told, quick = DenialListener(), Quick(decide=lambda: DENIED)
    quick.answer = DENIED
    reviewer = RefusalReporter(quick, told)  # type: ignore[arg-type]
    with serving(tls_directory, {"/mutate": reviewer}) as running, running.client() as client:
        assert not client.review(review(uid="a")).response["allowed"]
        assert not client.review(review(uid="b", dryRun=True)).response["allowed"]
    assert told.uids == ["a"]


def idle_connection(now: list[float]) -> Any:
    connection: Any = ClientConnection.__new__(ClientConnection)
    connection.scope = {}
    connection.cycle = None
    connection._clock = lambda: now[0]
    connection._waiting_since = None
    connection._unfinished = False
    connection._idle_since = 0.0
    connection.timeout_keep_alive = 120
    return connection


def test_an_idle_connection_is_closed_after_the_keep_alive_time() -> None:
    now = [0.0]
    connection = idle_connection(now)
    found = []
    for now[0] in (1.0, 119.0, 121.0):
        found.append(connection.overdue(head_timeout=5.0, first_request_timeout=120.0))
    assert found == [False, False, True]


def test_input_that_is_no_request_has_the_time_out_of_a_head() -> None:
    now = [0.0]
    connection = idle_connection(now)
    connection._idle_since = None
    found = []
    for now[0] in (1.0, 5.0, 7.0):
        found.append(connection.overdue(head_timeout=5.0, first_request_timeout=120.0))
    assert found == [False, False, True]
