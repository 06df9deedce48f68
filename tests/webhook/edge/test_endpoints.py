"""HTTP rules of the review endpoints, over real TLS connections."""

import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conversion.patches.decision import Decision, Outcome, denied
from neuron.findings import Finding
from tests.support.serving import Answering, Client, Running, eventually, review, serving

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
CAP = 64 * 1024
"""Small enough to be exceeded quickly; the rule is the same for 8 MiB."""


@pytest.fixture(scope="module")
def reviewer() -> Answering:
    return Answering()


@pytest.fixture(scope="module")
def server(tls_directory: Path, reviewer: Answering) -> Iterator[Running]:
    reviewers = {
        "/mutate": reviewer,
        "/deny": Answering(denied("unsupported-count", Finding("NEU105", "spec", "No.", "Ask for 4."))),
        "/patch": Answering(Decision(Outcome.CONVERTED, "x", patch=({"op": "remove", "path": "/spec/a"},))),
        "/broken": Answering(RuntimeError("the secret reason")),
    }
    with serving(tls_directory, reviewers, max_body_bytes=CAP) as running:
        yield running


@pytest.fixture
def impatient(tls_directory: Path) -> Iterator[Running]:
    with serving(tls_directory, {"/mutate": Answering()}, max_body_bytes=CAP, body_timeout=0.4) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


def errors(server: Running, path: str, code: int) -> int:
    return server.metrics.path(path).errors.get(code, 0)


def test_reviews_are_answered_with_their_uid(client: Client, reviewer: Answering) -> None:
    reply = client.review(review(uid="u-17", namespace="team-a"))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.response == {"uid": "u-17", "allowed": True}
    assert reviewer.requests[-1].namespace == "team-a"


def test_patches_reach_the_client(client: Client) -> None:
    assert client.review(review(), "/patch").patch == [{"op": "remove", "path": "/spec/a"}]


def test_denials_are_answered_with_status_200(client: Client) -> None:
    reply = client.review(review(name="train"), "/deny")
    assert reply.status == 200
    assert reply.response["uid"] == UID
    assert reply.response["allowed"] is False
    assert reply.response["status"]["details"]["name"] == "train"


def test_connections_are_kept(client: Client) -> None:
    sockets = set()
    for _ in range(3):
        assert "connection" not in client.review(review()).headers
        sockets.add(client.connection.sock)
    assert len(sockets) == 1


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"]
)
def test_content_type_may_have_parameters(client: Client, content_type: str) -> None:
    assert client.review(review(), content_type=content_type).status == 200


@pytest.mark.parametrize(
    ("content_type", "shown"),
    [("application/yaml", "'application/yaml'"), ("text/json", "'text/json'"), ("", "''")],
    ids=["yaml", "text-json", "empty"],
)
def test_other_content_types_are_415(server: Running, client: Client, content_type: str, shown: str) -> None:
    before = errors(server, "/mutate", 415)
    reply = client.review(review(), content_type=content_type)
    assert (reply.status, reply.json) == (415, {"message": f"Reviews are application/json; this request is {shown}."})
    assert errors(server, "/mutate", 415) == before + 1
    assert client.review(review()).status == 200, "the connection goes on"


def test_a_missing_content_type_is_415(client: Client) -> None:
    reply = client.ask("POST", "/mutate", json.dumps(review()).encode())
    assert reply.status == 415


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"{", "The body is not JSON: Input data was truncated.", id="not-json"),
        pytest.param(b"[]", "The body is not an AdmissionReview: Expected `object`, got `array`.", id="no-review"),
        pytest.param(
            json.dumps(review() | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            "admission.k8s.io/v1beta1",
            id="v1beta1",
        ),
        pytest.param(b"[" * 20_000 + b"]" * 20_000, "Expected `object`, got `array`", id="deep"),
    ],
)
def test_an_invalid_review_is_400(server: Running, client: Client, body: bytes, message: str) -> None:
    before = errors(server, "/mutate", 400)
    reply = client.review(body)
    assert reply.status == 400
    assert reply.headers["content-type"] == "application/json"
    assert message in reply.json["message"]
    assert errors(server, "/mutate", 400) == before + 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_are_405(client: Client, method: str) -> None:
    reply = client.ask(method, "/mutate")
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert reply.json == {"message": "Reviews are sent to /mutate with POST."}


@pytest.mark.parametrize("path", ["/", "/mutate/", "/mutates", "/validate", "/..%2fmutate"])
def test_unknown_paths_are_404(client: Client, path: str) -> None:
    reply = client.review(review(), path)
    assert reply.status == 404
    assert "This server has /mutate, /deny, /patch, /broken, /livez, /readyz." in reply.json["message"]


def test_an_exception_is_500_without_details(server: Running, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        reply = client.review(review(uid="u-500"), "/broken")
    assert reply.status == 500
    assert reply.json == {"message": "The review failed; the webhook's log has the reason under its uid."}
    record = next(record for record in caplog.records if record.getMessage() == "review failed")
    assert vars(record)["uid"] == "u-500"
    assert vars(record)["error"] == "RuntimeError"
    assert vars(record)["at"][-1].endswith(" review")
    assert "the secret reason" not in caplog.text, "it may quote the object"
    assert errors(server, "/broken", 500) == 1
    assert not server.metrics.path("/broken").reviews


def padded(size: int) -> bytes:
    body = json.dumps(review(object={"padding": ""})).encode()
    return body.replace(b'"padding": ""', b'"padding": "' + b"x" * (size - len(body)) + b'"')


def chunks(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 10_000):
        yield body[start : start + 10_000]


TOO_LARGE = {"message": f"The body is larger than {CAP} bytes (--max-body-bytes)."}


def test_a_body_at_the_cap_is_read(client: Client) -> None:
    assert len(padded(CAP)) == CAP
    assert client.review(padded(CAP)).status == 200


@pytest.mark.parametrize("size", [CAP + 1, 4 * CAP, 60 * CAP], ids=["by-one", "four-times", "sixty-times"])
def test_a_review_over_the_cap_is_denied_with_its_uid(server: Running, client: Client, size: int) -> None:
    for body in (padded(size), chunks(padded(size))):
        reply = client.ask("POST", "/mutate", body, {"Content-Type": "application/json"})
        assert (reply.status, reply.response["uid"], reply.response["allowed"]) == (200, UID, False)
        status = reply.response["status"]
        assert (status["code"], status["reason"]) == (413, "RequestEntityTooLarge")
        assert status["message"] == (
            f"NEU114: the Pod cannot be read: the review is larger than {CAP} bytes (--max-body-bytes). In it, <, > "
            "and & count six times. Make the object smaller."
        )
        assert "connection" not in reply.headers
    assert client.review(review()).status == 200, "the connection goes on"
    assert server.metrics.path("/mutate").reviews["CREATE", "Pod", "denied", "too-large", False]


def test_a_too_large_object_can_be_deleted(client: Client) -> None:
    reply = client.review(padded(2 * CAP).replace(b'"CREATE"', b'"DELETE"'))
    assert (reply.status, reply.json) == (413, TOO_LARGE)


def test_a_review_over_the_cap_whose_rest_does_not_arrive_is_refused(impatient: Running) -> None:
    with impatient.raw() as connection:
        connection.sendall(HEAD.replace(b"1000", b"%d" % (9 * CAP)) + padded(2 * CAP))
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer.lower()
    assert b'"allowed":false' in answer


@pytest.mark.parametrize("size", [CAP + 1, 4 * CAP, 60 * CAP], ids=["by-one", "four-times", "sixty-times"])
def test_a_body_over_the_cap_is_413(client: Client, size: int) -> None:
    reply = client.review(b" " * size)
    assert (reply.status, reply.json) == (413, TOO_LARGE)


def test_a_chunked_body_is_read(client: Client) -> None:
    reply = client.ask("POST", "/mutate", chunks(padded(CAP)), {"Content-Type": "application/json"})
    assert reply.status == 200


def test_a_chunked_body_over_the_cap_is_413(client: Client) -> None:
    reply = client.ask("POST", "/mutate", chunks(b" " * (4 * CAP)), {"Content-Type": "application/json"})
    assert (reply.status, reply.json) == (413, TOO_LARGE)
    assert reply.headers["connection"] == "close"


HEAD = b"POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("begun", [HEAD, HEAD + b"{"], ids=["nothing", "a-byte"])
def test_a_body_that_does_not_arrive_is_408(impatient: Running, begun: bytes) -> None:
    with impatient.raw() as connection:
        connection.sendall(begun)
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer.lower()
        assert b"The body was not complete after 0.4 s (--body-timeout)." in answer + connection.recv(4096)
        assert connection.recv(1) == b"", "the server closes"
    assert errors(impatient, "/mutate", 408) == 1


def test_a_body_in_pieces_is_read_within_its_time(server: Running) -> None:
    body = json.dumps(review()).encode()
    head = HEAD.replace(b"1000", str(len(body)).encode())
    with server.raw() as connection:
        for piece in (head, body[:10], body[10:20], body[20:]):
            connection.sendall(piece)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_slow_body_delays_no_other_review(server: Running) -> None:
    eventually(lambda: server.metrics.path("/mutate").inflight == 0, "earlier tests are over")
    with server.raw() as slow, server.client() as quick:
        slow.sendall(HEAD)
        eventually(lambda: server.metrics.path("/mutate").inflight == 1, "the slow request is in flight")
        assert quick.review(review()).status == 200


def test_clients_that_disconnect_are_counted(server: Running) -> None:
    eventually(lambda: server.metrics.path("/mutate").inflight == 0, "earlier tests are over")
    before = errors(server, "/mutate", 499)
    with server.raw() as connection:
        connection.sendall(HEAD + b"{")
        eventually(lambda: server.metrics.path("/mutate").inflight == 1, "the request has arrived")
    eventually(lambda: errors(server, "/mutate", 499) == before + 1, "the lost client is counted")
    eventually(lambda: server.metrics.path("/mutate").inflight == 0, "nothing is in flight")


def test_expect_continue_is_answered_before_the_body(server: Running) -> None:
    body = json.dumps(review()).encode()
    with server.raw() as connection:
        connection.sendall(HEAD.replace(b"1000", str(len(body)).encode())[:-2] + b"Expect: 100-continue\r\n\r\n")
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_pipelined_reviews_are_answered_in_order(server: Running) -> None:
    answers = b""
    with server.raw() as connection:
        for uid in ("first", "second", "third"):
            body = json.dumps(review(uid=uid)).encode()
            connection.sendall(HEAD.replace(b"1000", str(len(body)).encode()) + body)
        while answers.count(b'"allowed":true}}') < 3:
            piece = connection.recv(4096)
            assert piece
            answers += piece
    assert answers.index(b'"first"') < answers.index(b'"second"') < answers.index(b'"third"')


def test_an_answer_is_one_tls_record(server: Running) -> None:
    body = json.dumps(review()).encode()
    with server.raw() as connection:
        connection.sendall(HEAD.replace(b"1000", str(len(body)).encode()) + body)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b'"allowed":true}}')


def test_reviews_are_counted_by_outcome(server: Running) -> None:
    counts = server.metrics.path("/deny")
    with server.client() as client:
        client.review(review(dryRun=True), "/deny")
    series = ("CREATE", "Pod", "denied", "unsupported-count", True)
    eventually(lambda: counts.reviews.get(series) == 1, "the review is counted")
    assert counts.inflight == 0
    assert sum(counts.duration.counts) == sum(counts.reviews.values())


def test_every_decision_is_logged_without_its_object(server: Running, client: Client) -> None:
    def secret(uid: str) -> dict[str, Any]:
        return review(uid=uid, object={"metadata": {"generateName": "w-"}, "spec": {"password": "hunter2"}})

    client.review(secret("logged-1"))
    client.review(secret("logged-2"), "/deny")
    eventually(lambda: b"logged-2" in server.log.getvalue(), "both decisions are logged")
    lines = {line["uid"]: line for line in server.decisions()}
    assert lines["logged-1"]["decision"] == "unchanged"
    assert lines["logged-2"]["findings"] == ["NEU105"]
    assert lines["logged-2"]["generateName"] == "w-"
    assert b"hunter2" not in server.log.getvalue()


def test_many_connections_at_once(server: Running) -> None:
    def work(number: int, uids: list[str]) -> None:
        with server.client() as client:
            uids.extend(client.review(review(uid=f"{number}-{turn}")).response["uid"] for turn in range(20))

    results: list[list[str]] = [[] for _ in range(8)]
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(results)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[f"{number}-{turn}" for turn in range(20)] for number in range(8)]


def test_input_that_is_not_http_is_refused(server: Running) -> None:
    with server.raw() as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_connections_without_tls_are_closed(server: Running) -> None:
    host, port = server.url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(HEAD)
        assert not connection.recv(4096).startswith(b"HTTP")
    with server.client() as client:
        assert client.review(review()).status == 200
