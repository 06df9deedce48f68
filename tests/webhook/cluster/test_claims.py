"""What `/validate` knows of a cluster: shapes and classes from events, existence from the API server."""

import asyncio
from typing import Any

import pytest

from neuron.claim_reader import read_class
from neuron.device_shapes import read_slice
from tests.support.validation import TRN1, TRN2, V1, published
from webhook.cluster.api import StatusError, UnreachableError
from webhook.cluster.claims import ClusterClaims


class Server:
    """An API server that gives one answer."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[str] = []

    async def request(self, method: str, path: str, *, timeout: float, **_: Any) -> bytes:  # noqa: ASYNC109
        self.asked.append(f"{method} {path} within {timeout:g} s")
        if self.error is not None:
            raise self.error
        return b"{}"

    def stream(self, path: str, **_: Any) -> Any:
        raise AssertionError(path)


def unknown(*_: str) -> None:
    """The cache of templates knows none."""


def claims(error: Exception | None = None) -> ClusterClaims:
    return ClusterClaims(Server(error), unknown)


def test_slices_grow_the_version_only_where_something_is_new() -> None:
    known = claims()
    first = read_slice(published(TRN2))
    known.slice_changed(None, first)
    assert (known.claim_version, len(known.device_shapes())) == (1, 16)
    known.slice_changed(None, read_slice(published(TRN2)))
    assert known.claim_version == 1
    known.slice_changed(first, read_slice(published(TRN1)))
    assert (known.claim_version, len(known.device_shapes())) == (2, 32)


def test_classes_come_and_go() -> None:
    known = claims()
    spec, _ = read_class(V1, {"selectors": [{"cel": {"expression": "true"}}]})
    known.class_changed("own", spec)
    known.class_changed("own", spec)
    assert (known.device_classes(), known.claim_version) == ({"own": spec}, 1)
    known.class_changed("own", None)
    assert (known.device_classes(), known.claim_version) == ({}, 2)


@pytest.mark.parametrize(
    ("error", "exists"),
    [
        (None, True),
        (StatusError.parse(404, b'{"reason": "NotFound"}'), False),
        (StatusError.parse(403, b'{"reason": "Forbidden"}'), None),
        (UnreachableError("no answer"), None),
    ],
    ids=["there", "not there", "forbidden", "unreachable"],
)
def test_asks_the_api_server_whether_an_object_exists(error: Exception | None, exists: bool | None) -> None:
    server = Server(error)
    known = ClusterClaims(server, unknown)
    assert asyncio.run(known.exists("ResourceClaim", "team-a", "shared")) is exists
    assert server.asked == ["GET /apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/shared within 1 s"]
