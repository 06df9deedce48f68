"""Claims and templates read from the API server: bounded, in parallel, and malformed ones do not raise."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from cluster.look_ups import MOST_LOOKUPS
from neuron.api.claim_specs import ClaimSpec
from runtime.api_server import StatusError, UnreachableError
from webhook.cluster.for_policies import ClaimContents

SPEC = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}]}}


class Server:
    """An API server with the same answer to everything."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.most = self.now = 0

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        self.asked.append(f"{method} {path}")
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def stream(self, path: str, **_: Any) -> Any:
        raise AssertionError(path)


def find(server: Server, kind: str, *names: str) -> Mapping[str, ClaimSpec]:
    return asyncio.run(ClaimContents(server).find(kind, "team-a", names))


def test_claims_and_templates_are_read() -> None:
    server = Server(json.dumps({"spec": SPEC}).encode())
    found = find(server, "ResourceClaim", "one", "two")
    assert [found[name].requests[0].alternatives[0].count for name in ("one", "two")] == [4, 4]
    root = "GET /apis/resource.k8s.io/v1/namespaces/team-a"
    assert server.asked == [f"{root}/resourceclaims/one", f"{root}/resourceclaims/two"]
    assert server.most == 2, "at the same time"
    template = Server(json.dumps({"spec": {"spec": SPEC}}).encode())
    assert find(template, "ResourceClaimTemplate", "t")["t"].requests[0].name == "a"


@pytest.mark.parametrize(
    "answer",
    [
        UnreachableError("no"),
        StatusError(404, "NotFound", "no"),
        StatusError(403, "Forbidden", "no"),
        b"",
        b"[]",
        b"7",
        b"[" * 5000,
        b'{"a": "' + b"x" * 100_000 + b'"}',
    ],
    ids=["unreachable", "gone", "forbidden", "empty", "list", "number", "deep", "large"],
)
def test_claims_without_a_usable_answer_are_unknown(answer: bytes | Exception) -> None:
    assert find(Server(answer), "ResourceClaim", "one") == {}


@pytest.mark.parametrize("name", ["../../secrets/x", "a?watch=1", "a/b", "A", "", "a\n", "x" * 254, "-a"])
def test_only_names_become_part_of_a_url(name: str) -> None:
    server = Server(json.dumps({"spec": SPEC}).encode())
    assert find(server, "ResourceClaim", name) == {}
    assert server.asked == []


def test_claims_beyond_the_limit_are_not_requested() -> None:
    server = Server(b"{}")
    assert find(server, "ResourceClaim", *[f"c{at}" for at in range(MOST_LOOKUPS + 1)]) == {}
    assert server.asked == []
