"""List-watch against an API server on a real socket."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from cluster.reflector import Key, Projection, Reflector
from runtime.api_server import Collection, Resource
from runtime.api_transport import Connection
from runtime.watching import Effects, Timing
from tests.support.fake_api import FakeApi, answer, eventually, hang, hang_up, raw

PODS = Resource("", "v1", "pods")
SLICES = Resource("resource.k8s.io", "v1", "resourceslices")
QUICK = Timing(backoff=0.002, backoff_limit=0.01)
UNAVAILABLE = answer(503, "ServiceUnavailable", "etcdserver: leader changed")


def valued_pod(name: str, value: object = "x", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team", **metadata}, "spec": {"value": value}}


def value_of(item: dict[str, Any]) -> str | None:
    """The projection of a pod; None if its value is null."""
    value = item["spec"]["value"]
    return None if value is None else str(value)


Change = tuple[str, str | None, str | None]


class Watched:
    """A running reflector, and the changes that it reported."""

    def __init__(self, reflector: Reflector[str]) -> None:
        self.reflector = reflector
        self.changes: list[Change] = []
        reflector.on_change(self._changed)

    def _changed(self, key: Key, before: str | None, after: str | None) -> None:
        self.changes.append((key[1], before, after))

    def known(self, *names: str) -> dict[str, str | None]:
        return {name: self.reflector.get("team", name) for name in names}


@contextlib.asynccontextmanager
async def watched(
    api: FakeApi,
    collection: Collection | Resource = PODS,
    project: Callable[..., str | None] = value_of,
    **options: Any,
) -> AsyncIterator[Watched]:
    async def load() -> Configuration:
        return Configuration(host=api.url)

    connection = await Connection.open(load)
    collection = Collection(collection) if isinstance(collection, Resource) else collection
    reflector: Reflector[str] = Reflector(connection, collection, Projection(project), **{"timing": QUICK, **options})
    result = Watched(reflector)
    task = asyncio.create_task(reflector.run())
    try:
        yield result
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await connection.close()


# --- list ---------------------------------------------------------------------------------------------------


async def test_all_pages_of_a_list_are_read(api: FakeApi) -> None:
    for number in range(5):
        api.put("pods", valued_pod(f"p{number}", number))
    async with watched(api, page_size=2) as it:
        await it.reflector.synced.wait()
        assert it.known("p0", "p4") == {"p0": "0", "p4": "4"}
        assert len(it.reflector) == 5
        assert [seen.query["limit"] for seen in api.calls("list", "pods") + api.calls("continue", "pods")] == ["2"] * 3


async def test_a_list_whose_continue_token_expired_is_taken_in_one_piece(api: FakeApi) -> None:
    for number in range(5):
        api.put("pods", valued_pod(f"p{number}", number))
    api.fault("continue", "pods", answer(410, "Expired", "The provided continue parameter is too old"))
    async with watched(api, page_size=2) as it:
        await it.reflector.synced.wait()
        assert len(it.reflector) == 5
        assert "limit" not in api.calls("list", "pods")[-1].query
        assert (it.reflector.counters.expired, it.reflector.problem) == (1, "")


async def test_lists_and_watches_have_the_query(api: FakeApi) -> None:
    async with watched(api, Collection(PODS, parameters={"fieldSelector": "spec.driver=neuron.aws.com"})) as it:
        await it.reflector.synced.wait()
        asked = [call.query["fieldSelector"] for verb in ("list", "watch") for call in api.calls(verb, "pods")]
        assert asked == ["spec.driver=neuron.aws.com"] * 2


async def test_watches_request_bookmarks_and_a_jittered_time_out(api: FakeApi) -> None:
    timing = Timing(watch_timeout=300)
    async with watched(api, timing=timing, effects=Effects(jitter=lambda: 0.5)) as it:
        await it.reflector.synced.wait()
        (seen,) = api.calls("watch", "pods")
        assert seen.query["allowWatchBookmarks"] == "true"
        assert seen.query["timeoutSeconds"] == "450"
        assert seen.query["resourceVersion"] == "999"


# --- watch --------------------------------------------------------------------------------------------------


async def test_changes_are_stored_and_reported(api: FakeApi) -> None:
    api.put("pods", valued_pod("old", 1))
    async with watched(api) as it:
        await it.reflector.synced.wait()
        api.put("pods", valued_pod("new", 1))
        api.put("pods", valued_pod("old", 2))
        api.remove("pods", "new", "team")
        await eventually(lambda: len(it.changes) == 4)
        assert it.changes == [("old", None, "1"), ("new", None, "1"), ("old", "1", "2"), ("new", "1", None)]
        assert it.known("old", "new") == {"old": "2", "new": None}


async def test_irrelevant_objects_are_not_kept(api: FakeApi) -> None:
    api.put("pods", valued_pod("dull", None))
    api.put("pods", valued_pod("fading", 1))
    async with watched(api) as it:
        await it.reflector.synced.wait()
        api.put("pods", valued_pod("fading", None))
        await eventually(lambda: len(it.changes) == 2)
        assert it.changes == [("fading", None, "1"), ("fading", "1", None)]
        assert len(it.reflector) == 0


async def test_an_unchanged_value_stays_the_same_object(api: FakeApi) -> None:
    api.put("pods", valued_pod("p", "a value that Python does not intern"))
    async with watched(api) as it:
        await it.reflector.synced.wait()
        before = it.reflector.get("team", "p")
        api.put("pods", valued_pod("p", "a value that Python does not intern", labels={"new": "label"}))
        api.put("pods", valued_pod("last", 1))
        await eventually(lambda: it.reflector.get("team", "last"))
        api.compact()
        api.break_watches()
        await eventually(lambda: it.reflector.counters.lists == 2 and api.watching("pods"))
        assert it.reflector.get("team", "p") is before
        assert [name for name, *_ in it.changes] == ["p", "last"]


@pytest.mark.parametrize("end", [FakeApi.end_watches, FakeApi.break_watches], ids=["time-out", "broken connection"])
async def test_a_watch_resumes_where_the_last_one_ended(api: FakeApi, end: Any) -> None:
    async with watched(api) as it:
        await it.reflector.synced.wait()
        seen = api.put("pods", valued_pod("p", 1))["metadata"]["resourceVersion"]
        await eventually(lambda: it.changes)
        end(api)
        await eventually(lambda: len(api.calls("watch", "pods")) > 1)
        api.put("pods", valued_pod("p", 2))
        await eventually(lambda: it.known("p") == {"p": "2"})
        assert api.calls("watch", "pods")[1].query["resourceVersion"] == seen
        assert it.reflector.counters.lists == 1


async def test_changes_made_between_two_watches_are_not_missed(api: FakeApi) -> None:
    api.put("pods", valued_pod("p", 1))
    async with watched(api) as it:
        await it.reflector.synced.wait()
        api.fault("watch", "pods", hang_up, times=2)
        api.break_watches()
        api.remove("pods", "p", "team")
        api.put("pods", valued_pod("q", 1))
        await eventually(lambda: it.known("p", "q") == {"p": None, "q": "1"})
        assert it.reflector.counters.lists == 1


async def test_a_bookmark_moves_the_point_to_resume_from(api: FakeApi) -> None:
    async with watched(api) as it:
        await it.reflector.synced.wait()
        version = api.bookmark("pods")
        await eventually(lambda: it.reflector.counters.bookmarks)
        api.end_watches()
        await eventually(lambda: len(api.calls("watch", "pods")) == 2)
        assert api.calls("watch", "pods")[1].query["resourceVersion"] == version
        assert it.changes == []


async def test_events_cut_into_pieces_are_put_together(api: FakeApi) -> None:
    api.piece = 7
    async with watched(api) as it:
        await it.reflector.synced.wait()
        api.put("pods", valued_pod("p", "grüße"))
        api.put("pods", valued_pod("q", 1))
        await eventually(lambda: it.known("p", "q") == {"p": "grüße", "q": "1"})


async def test_events_may_be_as_large_as_objects_get(api: FakeApi) -> None:
    large = "x" * 6_000_000
    api.piece = 1 << 16
    async with watched(api) as it:
        await it.reflector.synced.wait()
        api.put("pods", valued_pod("p", large))
        await eventually(lambda: it.reflector.get("team", "p") == large)
        assert it.reflector.counters.failures == 0


async def test_a_silent_watch_is_cancelled_and_resumed(api: FakeApi) -> None:
    async with watched(api, timing=Timing(stall=0.05, backoff=0.002)) as it:
        await it.reflector.synced.wait()
        await eventually(lambda: len(api.calls("watch", "pods")) > 1)
        assert it.reflector.counters.lists == 1


# --- 410 Gone -----------------------------------------------------------------------------------------------


async def expire_by_status(api: FakeApi) -> None:
    api.compact()
    api.break_watches()


async def expire_by_event(api: FakeApi) -> None:
    api.error("pods", 410, "Expired")


@pytest.mark.parametrize("expire", [expire_by_status, expire_by_event])
async def test_an_expired_version_causes_a_list(api: FakeApi, expire: Any) -> None:
    for name in ("kept", "changed", "deleted"):
        api.put("pods", valued_pod(name, 1))
    async with watched(api) as it:
        await it.reflector.synced.wait()
        it.changes.clear()
        api.fault("watch", "pods", hang_up)
        api.break_watches()
        await eventually(lambda: not api.watching("pods"))
        await eventually(lambda: api.watching("pods"))
        await expire(api)
        api.remove("pods", "deleted", "team")
        api.put("pods", valued_pod("changed", 2))
        api.put("pods", valued_pod("added", 1))
        now = {"kept": "1", "changed": "2", "deleted": None, "added": "1"}
        await eventually(lambda: it.known(*now) == now)
        assert sorted(it.changes) == [("added", None, "1"), ("changed", "1", "2"), ("deleted", "1", None)]


async def test_deletions_during_a_disconnection_are_reported_after_the_next_list(api: FakeApi) -> None:
    api.put("pods", valued_pod("p", 1))
    api.put("pods", valued_pod("q", 1))
    async with watched(api) as it:
        await it.reflector.synced.wait()
        api.fault("watch", "pods", hang_up, times=3)
        api.break_watches()
        api.remove("pods", "p", "team")
        api.compact()
        await eventually(lambda: it.known("p", "q") == {"p": None, "q": "1"})
        assert it.changes[-1] == ("p", "1", None)
        assert it.reflector.counters.expired == 1


# --- failures -----------------------------------------------------------------------------------------------


class Pauses:
    """Injected sleep: records each pause and returns at once."""

    def __init__(self) -> None:
        self.lengths: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.lengths.append(seconds)
        await asyncio.sleep(0.002)


async def test_pauses_double_up_to_a_limit_with_jitter(api: FakeApi) -> None:
    pauses = Pauses()
    api.fault("list", "pods", UNAVAILABLE, times=6)
    timing = Timing(backoff=1, backoff_limit=10)
    async with watched(api, timing=timing, effects=Effects(sleep=pauses, jitter=lambda: 0.5)) as it:
        await it.reflector.synced.wait()
        assert pauses.lengths == [0.5, 1, 2, 4, 5, 5]


async def test_a_successful_watch_resets_the_backoff(api: FakeApi) -> None:
    pauses = Pauses()
    api.fault("list", "pods", UNAVAILABLE, times=3)
    timing = Timing(backoff=1, backoff_limit=10)
    async with watched(api, timing=timing, effects=Effects(sleep=pauses, jitter=lambda: 1.0)) as it:
        await it.reflector.synced.wait()
        api.put("pods", valued_pod("p", 1))
        await eventually(lambda: it.changes)
        api.break_watches()
        await eventually(lambda: len(pauses.lengths) == 4)
        assert pauses.lengths == [1, 2, 4, 1]


async def test_the_list_for_an_expired_version_is_sent_soon_after_an_outage(api: FakeApi) -> None:
    pauses = Pauses()
    timing = Timing(backoff=1, backoff_limit=10)
    async with watched(api, timing=timing, effects=Effects(sleep=pauses, jitter=lambda: 1.0)) as it:
        await it.reflector.synced.wait()
        api.fault("watch", "pods", hang_up, times=4)
        api.break_watches()
        api.put("pods", valued_pod("p", 1))
        api.compact()
        await eventually(lambda: it.reflector.counters.lists == 2)
        # How often the client itself tries again is not ours to say.
        assert (pauses.lengths[:3], pauses.lengths[-1]) == ([1, 2, 4], 1)
        # Again and again is no outage.
        gone = raw(200, b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n')
        api.fault("watch", "pods", gone, times=3)
        api.break_watches()
        await eventually(lambda: pauses.lengths[-3:] == [1, 2, 4])


async def test_the_request_itself_waits_as_long_as_the_server_asks(api: FakeApi) -> None:
    pauses = Pauses()
    busy = answer(429, "TooManyRequests", "too many requests", headers={"Retry-After": "1"})
    api.fault("list", "pods", busy)
    async with watched(api, effects=Effects(sleep=pauses)) as it:
        await it.reflector.synced.wait()
        assert pauses.lengths == [], "the list goes on"
        assert len(api.calls("list", "pods")) == 2


async def test_watches_that_end_at_once_are_not_repeated_without_a_pause(api: FakeApi) -> None:
    pauses = Pauses()
    api.fault("watch", "pods", raw(200, b""), times=4)
    timing = Timing(backoff=1, backoff_limit=10)
    async with watched(api, timing=timing, effects=Effects(sleep=pauses, jitter=lambda: 1.0)):
        await eventually(lambda: api.watching("pods"))
        assert pauses.lengths == [1, 2, 4, 8]


async def test_a_repeated_problem_is_logged_once(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cluster.reflector")
    api.fault("list", "pods", UNAVAILABLE, times=5)
    async with watched(api) as it:
        await it.reflector.synced.wait()
        assert it.reflector.counters.failures == 5
        assert [record.getMessage() for record in caplog.records] == [
            "cannot list pods: the API server says: HTTP 503, 'etcdserver: leader changed'",
            "the cache of pods is current again",
        ]
        assert it.reflector.problem == ""


async def test_a_stream_that_keeps_failing_is_one_problem(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cluster.reflector")
    broken = raw(200, b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd event lost"}}\n')
    api.fault("watch", "pods", broken, times=4)
    async with watched(api) as it:
        await eventually(lambda: api.watching("pods"))
        assert it.reflector.problem == "cannot watch pods: the API server says: HTTP 500, 'etcd event lost'"
        api.put("pods", valued_pod("p", 1))
        await eventually(lambda: not it.reflector.problem)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        assert it.reflector.counters.lists == 5


async def test_an_open_watch_without_events_clears_the_problem(api: FakeApi) -> None:
    api.fault("watch", "pods", raw(200, b'{"type":"ERROR","object":{"kind":"Status","code":500}}\n'))
    async with watched(api) as it:
        await eventually(lambda: it.reflector.problem)
        await eventually(lambda: api.watching("pods"))
        assert it.reflector.problem == "cannot watch pods: the API server says: HTTP 500"
        await eventually(lambda: not it.reflector.problem)
        assert it.reflector.counters.events == 0


async def test_two_broken_connections_in_a_row_are_a_problem_and_one_is_not(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(api) as it:
        await it.reflector.synced.wait()
        api.bookmark("pods")
        await eventually(lambda: it.reflector.counters.bookmarks)
        api.break_watches()
        await eventually(lambda: it.reflector.counters.watches == 2 and api.watching("pods"))
        assert caplog.messages == []
        api.break_watches()
        await eventually(lambda: it.reflector.problem)
        broke = f"the connection to {api.url} broke off in the middle of an answer"
        assert caplog.messages == [f"cannot watch pods: {broke}"]


@pytest.mark.parametrize("code", [401, 403])
async def test_a_restored_permission_needs_no_list(api: FakeApi, code: int) -> None:
    api.fault("watch", "pods", answer(code, "Forbidden", "RBAC is not ready"), times=5)
    async with watched(api) as it:
        await it.reflector.synced.wait()
        assert it.reflector.counters.lists == 1


async def test_only_a_repeated_refusal_is_a_problem(api: FakeApi) -> None:
    pauses = Pauses()
    api.forbid("list", "pods", times=2)
    async with watched(api, effects=Effects(sleep=pauses)) as it:
        await it.reflector.settled.wait()
        assert it.reflector.synced.is_set()


async def test_a_repeated_error_for_a_version_causes_a_list(api: FakeApi) -> None:
    api.fault("watch", "pods", UNAVAILABLE, times=3)
    async with watched(api) as it:
        await it.reflector.synced.wait()
        assert it.reflector.counters.lists == 2


async def test_a_temporary_error_causes_no_list(api: FakeApi) -> None:
    api.fault("watch", "pods", UNAVAILABLE, times=2)
    async with watched(api) as it:
        await it.reflector.synced.wait()
        assert it.reflector.counters.lists == 1


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        pytest.param("list", b"<html>login</html>", id="list of HTML"),
        pytest.param("list", b'{"items": 3}', id="list of nonsense"),
        pytest.param("watch", b'{"type": "ADDED", "object"\n', id="broken event"),
        pytest.param("watch", b"\xff\xfe\n", id="event that is not UTF-8"),
    ],
)
async def test_an_invalid_answer_is_a_problem_and_causes_a_new_list(api: FakeApi, verb: str, body: bytes) -> None:
    api.put("pods", valued_pod("p", 1))
    api.fault(verb, "pods", raw(200, body))
    async with watched(api) as it:
        await eventually(lambda: it.reflector.counters.failures)
        await eventually(lambda: api.watching("pods") and it.known("p") == {"p": "1"})
        assert it.reflector.counters.lists == 2


async def test_an_unreadable_object_does_not_affect_the_others(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api.put("pods", {"metadata": {"name": "odd", "namespace": "team"}})
    api.put("pods", valued_pod("p", 1))
    async with watched(api) as it:
        await it.reflector.synced.wait()
        assert it.known("odd", "p") == {"odd": None, "p": "1"}
        assert it.reflector.counters.unreadable == 1
        assert "cannot read pods team/odd" in caplog.text


async def test_a_defect_in_a_callback_does_not_end_the_cache(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api.put("pods", valued_pod("p", 1))
    async with watched(api) as it:
        calls = 0

        def fail(key: Key, before: str | None, after: str | None) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ZeroDivisionError("division by zero")

        it.reflector.on_change(fail)
        await it.reflector.synced.wait()
        assert "a change of pods team/p was not taken in" in caplog.text
        assert it.known("p") == {"p": "1"}


async def test_a_request_to_a_hanging_server_times_out(api: FakeApi) -> None:
    api.fault("list", "pods", hang)
    async with watched(api, timing=Timing(list_timeout=0.05, backoff=0.002)) as it:
        await eventually(lambda: it.reflector.problem)
        assert it.reflector.problem == f"cannot list pods: {api.url} did not answer in time"
        await it.reflector.synced.wait()


async def test_cancelling_ends_the_watch(api: FakeApi) -> None:
    async with watched(api) as it:
        await it.reflector.synced.wait()
        await eventually(lambda: api.watching("pods"))
    await eventually(lambda: not api.watching("pods"))


# --- refusals -----------------------------------------------------------------------------------------------

REFUSALS: Iterable[Any] = [
    pytest.param(
        PODS,
        ("list", "pods", "", "nobody"),
        'not allowed to list pods (API group core) in all namespaces: give "nobody" a ClusterRole with this rule: '
        '- {apiGroups: [""], resources: [pods], verbs: [list, watch]}',
        id="list",
    ),
    pytest.param(
        SLICES,
        ("watch", "resourceslices", "resource.k8s.io", "nobody"),
        "not allowed to watch resourceslices (API group resource.k8s.io) in all namespaces: give "
        '"nobody" a ClusterRole with this rule: '
        "- {apiGroups: [resource.k8s.io], resources: [resourceslices], verbs: [list, watch]}",
        id="watch",
    ),
    pytest.param(
        PODS,
        ("list", "pods", "", "system:anonymous"),
        "not allowed to list pods (API group core) in all namespaces, the request carried no credentials: give "
        '"system:anonymous" a ClusterRole with this rule: '
        '- {apiGroups: [""], resources: [pods], verbs: [list, watch]}',
        id="anonymous",
    ),
]


@pytest.mark.parametrize(("resource", "forbidden", "problem"), REFUSALS)
async def test_a_missing_permission_is_reported_until_it_is_granted(
    api: FakeApi, resource: Resource, forbidden: tuple[str, str, str, str], problem: str
) -> None:
    api.forbid(*forbidden)
    async with watched(api, resource) as it:
        await it.reflector.settled.wait()
        assert it.reflector.problem == problem
        assert not it.reflector.synced.is_set()
        api.heal()
        await it.reflector.synced.wait()
        assert it.reflector.problem == ""


@pytest.mark.parametrize(
    ("resource", "handler", "problem"),
    [
        pytest.param(
            PODS,
            answer(401, "Unauthorized", "Unauthorized"),
            "cannot list pods: the API server does not accept the webhook's credentials",
            id="unauthorized",
        ),
        pytest.param(
            SLICES,
            raw(404, b"404 page not found\n"),
            "the API server does not serve resourceslices in resource.k8s.io/v1: Kubernetes >= 1.34 with Dynamic "
            "Resource Allocation is needed",
            id="too old for DRA",
        ),
        pytest.param(
            PODS,
            raw(404, b"404 page not found\n"),
            "cannot list pods: the API server says: HTTP 404, '404 page not found'",
            id="not an API server",
        ),
        pytest.param(
            PODS,
            raw(403, b"blocked by the company proxy"),
            "cannot list pods: the API server says: HTTP 403, 'blocked by the company proxy'",
            id="refused by something else",
        ),
    ],
)
async def test_a_refused_list_settles_the_cache_with_a_reason(
    api: FakeApi, resource: Resource, handler: Any, problem: str
) -> None:
    api.fault("list", resource.plural, handler, times=1000)
    async with watched(api, resource) as it:
        await it.reflector.settled.wait()
        assert it.reflector.problem == problem
        assert not it.reflector.synced.is_set()


async def test_a_collection_that_may_be_missing_is_empty_until_it_is_served(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    pauses = Pauses()
    api.put("pods", valued_pod("p", 1))
    api.fault("list", "pods", answer(404, "NotFound", "the server could not find the requested resource"), times=2)
    async with watched(api, effects=Effects(sleep=pauses), needed=False, installed=False) as it:
        await it.reflector.settled.wait()
        assert (it.reflector.problem, it.reflector.synced.is_set()) == ("", True)
        await eventually(lambda: it.known("p") == {"p": "1"})
        assert pauses.lengths[:2] == [300, 300]
        assert not caplog.records


async def test_a_collection_whose_definition_is_removed_becomes_empty(api: FakeApi) -> None:
    pauses = Pauses()
    api.put("pods", valued_pod("p", 1))
    async with watched(api, effects=Effects(sleep=pauses), needed=False, installed=False) as it:
        await eventually(lambda: it.known("p") == {"p": "1"})
        gone = answer(404, "NotFound", "the server could not find the requested resource")
        api.fault("watch", "pods", gone, times=1000)
        api.fault("list", "pods", gone, times=1000)
        api.break_watches()
        await eventually(lambda: it.known("p") == {"p": None})
        assert (it.changes[-1], it.reflector.problem) == (("p", "1", None), "")


async def test_an_older_version_is_read_where_only_that_is_served(api: FakeApi) -> None:
    pauses = Pauses()
    api.fault("list", "nodepools", answer(404, "NotFound", "the server could not find the requested resource"), times=1)
    api.put("nodepools", {"metadata": {"name": "neuron"}})
    newer, older = (Resource("karpenter.sh", version, "nodepools") for version in ("v1", "v1beta1"))
    options: dict[str, Any] = {"needed": False, "installed": False, "older": Collection(older)}

    def name_of(item: dict[str, Any]) -> str | None:
        return str(item["metadata"]["name"])

    async with watched(api, newer, name_of, effects=Effects(sleep=pauses), **options) as it:
        await eventually(lambda: it.reflector.values() == ("neuron",))
        assert (str(it.reflector.resource), it.reflector.problem, pauses.lengths) == (str(older), "", [])
