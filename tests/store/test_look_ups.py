"""The view of `/validate`: shapes and classes from events, existence from the API server."""

import asyncio
import time
from typing import Any

import pytest

from cluster import look_ups
from cluster.kinds.device_classes import ClassFacts
from cluster.kinds.resource_slices import SliceFacts, SliceShapes
from cluster.look_ups import MOST_LOOKUPS, RESOURCES, LookUps
from cluster.store import DEVICE_CLASS, RESOURCE_SLICE, Store
from neuron.api.claim_reader import read_class
from runtime.api_server import StatusError, UnreachableError
from tests.support.callers import caller_waits
from tests.support.timing import assert_below
from tests.support.validation import TRN1, TRN2, V1, published, shapes_of
from webhook.reviews.worker_threads import seconds_left


class Server:
    """An API server that gives one answer, after a while."""

    def __init__(self, error: Exception | None = None, delay: float = 0.0) -> None:
        self.error = error
        self.delay = delay
        self.asked: list[str] = []
        self.at_once = 0
        self._under_way = 0

    async def request(self, method: str, path: str, *, accept: str, **_: Any) -> bytes:
        self.asked.append(f"{method} {path} as {accept.partition(';as=')[2].partition(';')[0]}")
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self._under_way -= 1
        if self.error is not None:
            raise self.error
        return b"{}"

    def stream(self, path: str, **_: Any) -> Any:
        raise AssertionError(path)


def unknown(*_: str) -> None:
    """An empty cache of templates."""


def test_only_slices_with_new_devices_increase_the_version() -> None:
    known = Store()
    first, key = shapes_of(published(TRN2)), ("", "a")
    known.change(RESOURCE_SLICE, key, None, slice_with(first))
    assert (known.claim_version, len(known.device_shapes())) == (1, 16)
    known.change(RESOURCE_SLICE, ("", "b"), None, slice_with(shapes_of(published(TRN2))))
    assert known.claim_version == 1
    known.change(RESOURCE_SLICE, key, slice_with(first), slice_with(shapes_of(published(TRN1))))
    assert (known.claim_version, len(known.device_shapes())) == (2, 32)


def slice_with(shapes: SliceShapes | None) -> SliceFacts:
    return SliceFacts("node", 1, (), (), (), shapes)


def test_added_and_deleted_classes_change_the_store() -> None:
    known = Store()
    known.complete(DEVICE_CLASS)
    spec, _ = read_class(V1, {"selectors": [{"cel": {"expression": "true"}}]})
    facts = ClassFacts("", "", spec)
    known.put(DEVICE_CLASS, ("", "own"), facts)
    known.put(DEVICE_CLASS, ("", "own"), facts)
    assert (known.device_classes(), known.claim_version) == ({"own": spec}, 1)
    known.drop(DEVICE_CLASS, ("", "own"))
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
    known = LookUps(server, seconds_left)
    assert asyncio.run(known.exist("ResourceClaim", "team-a", ["shared"])) == {"shared": exists}
    path = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/shared"
    assert server.asked == [f"GET {path} as PartialObjectMetadata"]


def test_what_is_in_no_known_namespace_is_not_requested() -> None:
    server = Server(StatusError.parse(404, b'{"reason": "NotFound"}'))
    found = asyncio.run(LookUps(server, seconds_left).exist("ResourceClaimTemplate", "", ["big", ".."]))
    assert (found, server.asked) == ({"big": None, "..": False}, [])


@pytest.mark.parametrize("name", ["..", "a/../b", "a?b", "A", "", "x" * 254, "a b"])
def test_invalid_object_names_are_not_requested(name: str) -> None:
    server = Server(None)
    known = LookUps(server, seconds_left)
    assert asyncio.run(known.exist("ResourceClaim", "team-a", [name])) == {name: False}
    assert server.asked == []


def test_a_name_is_escaped_to_one_path_segment() -> None:
    path = RESOURCES["ResourceClaim"].path("team/a", "b?c")
    assert path == "/apis/resource.k8s.io/v1/namespaces/team%2Fa/resourceclaims/b%3Fc"


# --- a pod that names more objects than anybody needs -----------------------------------------------------------------

MANY = [f"c{number}" for number in range(1600)]


def test_look_ups_are_sent_together_up_to_a_limit_and_the_rest_is_unknown() -> None:
    server = Server(StatusError.parse(404, b'{"reason": "NotFound"}'), delay=0.01)
    known = LookUps(server, seconds_left)
    found = asyncio.run(known.exist("ResourceClaim", "team-a", MANY))
    assert list(found) == MANY
    assert [found[name] for name in MANY[:MOST_LOOKUPS]] == [False] * MOST_LOOKUPS
    assert {found[name] for name in MANY[MOST_LOOKUPS:]} == {None}
    assert len(server.asked) == server.at_once == MOST_LOOKUPS


@pytest.mark.parametrize(("waits", "most"), [(30.0, 1.0), (0.4, 0.2)])
def test_all_look_ups_together_end_within_the_budget(waits: float, most: float) -> None:
    server = Server(delay=60)
    known = LookUps(server, seconds_left)

    async def ask() -> Any:
        with caller_waits(waits):
            return await known.exist("ResourceClaim", "team-a", MANY)

    begun = time.monotonic()
    found = asyncio.run(ask())
    assert_below(time.monotonic() - begun, most + 0.5)
    assert set(found.values()) == {None}


def test_no_object_is_requested_after_the_deadline() -> None:
    server = Server()

    async def ask() -> Any:
        with caller_waits(0.01):
            return await LookUps(server, seconds_left).exist("ResourceClaim", "team-a", ["a"])

    assert (asyncio.run(ask()), server.asked) == ({"a": None}, [])


def test_each_namespace_has_its_own_rate_limit_for_look_ups() -> None:
    now = [0.0]
    server = Server()
    known = LookUps(server, seconds_left, lambda: now[0])

    def asked(namespace: str) -> int:
        before = len(server.asked)
        asyncio.run(known.exist("ResourceClaim", namespace, MANY))
        return len(server.asked) - before

    assert sum(asked("greedy") for _ in range(100)) == look_ups.BURST
    assert asked("modest") == MOST_LOOKUPS
    now[0] += 1
    assert sum(asked("greedy") for _ in range(100)) == look_ups.PER_SECOND
