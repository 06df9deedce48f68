"""Answers of `/livez` and `/readyz`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import Answering, Client, Running, serving
from webhook.edge.endpoints import Check, HealthEndpoint
from webhook.edge.shedding import Lifecycle


def passing() -> tuple[bool, str]:
    return True, ""


def failing() -> tuple[bool, str]:
    return False, "not seen yet: resourceslices"


CHECKS: dict[str, Check] = {"tls": lambda: (True, "valid until 2027"), "caches": failing}


@pytest.fixture(scope="module")
def server(tls_directory: Path) -> Iterator[Running]:
    with serving(tls_directory, {"/mutate": Answering()}, checks=CHECKS) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with server.client() as connected:
        yield connected


def test_livez_passes_without_checks(client: Client) -> None:
    reply = client.get("/livez")
    assert (reply.status, reply.body) == (200, b"ok")
    assert client.get("/livez?verbose").body == b"livez check passed\n"


def test_not_ready_is_503_with_the_reason(client: Client) -> None:
    reply = client.get("/readyz")
    assert reply.status == 503
    assert reply.body.decode().splitlines() == [
        "[+]tls ok: valid until 2027",
        "[-]caches failed: not seen yet: resourceslices",
        "readyz check failed",
    ]
    assert reply.headers["cache-control"] == "no-store"


def test_a_head_request_has_a_status_only(client: Client) -> None:
    reply = client.ask("HEAD", "/readyz")
    assert (reply.status, reply.body) == (503, b"")


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_health_is_read_with_get(client: Client, path: str) -> None:
    reply = client.ask("POST", path)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")
    assert reply.json == {"message": f"{path} is read with GET."}


@pytest.mark.parametrize(
    ("verbose", "text"),
    [(False, "ok"), (True, "[+]tls ok\nreadyz check passed\n")],
    ids=["short", "verbose"],
)
def test_ready_is_200(verbose: bool, text: str) -> None:
    endpoint = HealthEndpoint("readyz", {"tls": passing}, Lifecycle())
    assert endpoint.report(verbose=verbose) == (200, text)


@pytest.mark.parametrize(
    ("lifecycle", "serving_check", "shutdown_check"),
    [
        pytest.param(Lifecycle(), (False, "not listening"), (True, ""), id="starting"),
        pytest.param(Lifecycle(serving=True), (True, ""), (True, ""), id="serving"),
        pytest.param(Lifecycle(serving=True, draining=True), (True, ""), (False, "shutting down"), id="draining"),
    ],
)
def test_the_lifecycle_is_part_of_readiness(
    lifecycle: Lifecycle, serving_check: tuple[bool, str], shutdown_check: tuple[bool, str]
) -> None:
    assert lifecycle.check_serving() == serving_check
    assert lifecycle.check_shutdown() == shutdown_check
