"""Shares of the decision log: one client cannot fill it or hide the lines of others."""

import asyncio
import io
import json
import logging
from typing import Any

import msgspec
import pytest

from conversion.objects import wire
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import denied, unchanged
from neuron.findings import Finding
from tests.support.serving import Answering, eventually, review, serving
from webhook.edge import logs
from webhook.edge.bounds import BOUNDS
from webhook.edge.reviews import Rendered, render

ALLOWED: Rendered = render(unchanged("not-neuron"))
DENIED: Rendered = render(denied("policy", Finding("NEU801", "", "no", "")))
ATTACKER, API_SERVER = "10.0.0.66", "10.0.0.1"


def sent_by(user: Any, namespace: str = "x") -> AdmissionRequest:
    info = msgspec.Raw(json.dumps({"username": user}).encode())
    kind = wire.GroupVersionKind("Pod")
    return AdmissionRequest(uid="u" * 36, kind=kind, operation="CREATE", namespace=namespace, userInfo=info)


class Log:
    """A decision log, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.stream = io.BytesIO()
        self.now = 1000.0
        self.log = logs.DecisionLog(self.stream, clock=lambda: self.now)

    def write(self, count: int, user: Any, address: str = API_SERVER, rendered: Rendered = ALLOWED) -> None:
        for _ in range(count):
            self.log.record(sent_by(user), rendered, 0.001, address=address)

    @property
    def size(self) -> int:
        self.log.flush()
        return len(self.stream.getvalue())

    def denials(self) -> int:
        self.log.flush()
        return self.stream.getvalue().count(b'"decision":"denied"')


def in_loop(scenario: Any) -> None:
    async def main() -> None:
        scenario(Log())

    asyncio.run(main())


def test_one_user_has_a_share_and_the_denials_of_others_are_logged() -> None:
    def scenario(found: Log) -> None:
        found.write(20_000, "tenant")
        found.write(50, "neighbour", rendered=DENIED)
        assert found.size < logs.FREE + logs.OF_USER + 64 * 1024
        assert found.denials() == 50
        assert found.log.shares.left_out > 10_000

    in_loop(scenario)


def test_users_that_a_client_invents_share_that_of_its_address() -> None:
    def scenario(found: Log) -> None:
        for number in range(20_000):
            found.write(1, f"user-{number}", ATTACKER)
        found.write(50, "neighbour", API_SERVER, DENIED)
        assert found.size < logs.FREE + logs.OF_ADDRESS + 64 * 1024
        assert found.denials() == 50
        assert len(found.log.shares._users) + len(found.log.shares._missing) <= 2 * BOUNDS.clients + 2

    in_loop(scenario)


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    def scenario(found: Log) -> None:
        for number in range(30_000):
            found.write(1, "x" * 1000, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert len(found.log.shares._addresses) <= BOUNDS.clients + 1

    in_loop(scenario)


def test_the_number_of_lines_that_were_left_out_is_logged_by_client(caplog: pytest.LogCaptureFixture) -> None:
    def scenario(found: Log) -> None:
        found.write(20_000, "tenant", ATTACKER)
        found.now += logs.WINDOW
        found.write(1, "tenant", ATTACKER, DENIED)
        assert found.denials() == 1
        line = next(each for each in caplog.records if each.getMessage() == "decision lines left out")
        assert (line.client, line.user, line.left_out) == (ATTACKER, "tenant", found.log.shares.left_out)

    with caplog.at_level(logging.WARNING):
        in_loop(scenario)


def test_the_number_is_logged_though_no_further_review_arrives(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "WINDOW", 0.01)

    async def main() -> None:
        found = Log()
        found.write(20_000, "tenant", ATTACKER)
        await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "decision lines left out" in caplog.messages


@pytest.mark.parametrize("user", [None, 7, ["x"], {"a": 1}, "x" * 100_000])
def test_any_user_is_counted(user: Any) -> None:
    def scenario(found: Log) -> None:
        found.write(10_000, user)
        assert found.size < logs.FREE + logs.OF_USER + 64 * 1024

    in_loop(scenario)


def test_the_address_is_that_of_the_connection(tls_directory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(logs, "FREE", 0)
    monkeypatch.setattr(logs.LogShares, "admits", lambda _, address, __: seen.append(address))
    with serving(tls_directory, {"/mutate": Answering()}) as running, running.client() as client:
        assert client.review(review()).status == 200
        eventually(lambda: seen == ["127.0.0.1"], "the line is counted by its address")
