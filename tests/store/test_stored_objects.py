"""Objects of tenants must not stop a start, a relist or a watch, and must not exhaust memory or time."""

import asyncio
import contextlib
import dataclasses
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from cluster.bounded_objects import KEPT, Bounds, Holdings
from cluster.collections import Watches
from cluster.kinds import namespaces
from cluster.kinds.claim_templates import UNREADABLE_TEMPLATE, TemplateFacts, footprint
from cluster.kinds.namespaces import project_namespace_record
from cluster.reflector import Reflector
from cluster.resources import NAMESPACES, RESOURCE_CLAIM_TEMPLATES
from neuron import names
from runtime.api_server import TooLongError
from runtime.api_transport import Connection
from runtime.watching import Timing
from tests.support.fake_api import FakeApi, Object, eventually, raw
from tests.support.timing import assert_below

QUICK = Timing(backoff=0.002, backoff_limit=0.01)
PLURAL = RESOURCE_CLAIM_TEMPLATES.plural


def stored_template(name: str, parameters: Any = None, namespace: str = "tenant") -> Object:
    spec: Object = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]}}
    if parameters is not None:
        spec["devices"]["config"] = [{"opaque": {"driver": "other.example", "parameters": parameters}}]
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": "7"}, "spec": {"spec": spec}}


def object_text(item: Object, parameters: bytes) -> bytes:
    """JSON of an object as kube-apiserver writes it, with parameters that no encoder of Python writes."""
    return json.dumps(item, separators=(",", ":")).encode().replace(b'"PARAMETERS"', parameters)


ODD = {
    "deep": b'{"a":' + b"[" * 1500 + b"]" * 1500 + b"}",
    "deepest that the API server takes": b"[" * 5000 + b"]" * 5000,
    "a surrogate": b'{"a":"\\ud800"}',
    "4301 digits": b'{"a":' + b"1" * 4301 + b"}",
    "an infinite number": b'{"a":1e999}',
}
FORGED = [{}, {"metadata": {"name": "forged", "namespace": "other"}}, '"},{"metadata":{"name":"forged"}}']


@contextlib.asynccontextmanager
async def open_watches(api: FakeApi) -> AsyncIterator[Watches]:
    async def load() -> Configuration:
        return Configuration(host=api.url)

    connection = await Connection.open(load)
    made = Watches(connection, QUICK)
    tasks = [asyncio.create_task(cache.run()) for cache in made.caches]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connection.close()


async def seen(cache: Reflector[Any]) -> None:
    async with asyncio.timeout(60):
        await cache.synced.wait()


@pytest.mark.parametrize("parameters", ODD.values(), ids=ODD.keys())
async def test_an_object_that_cannot_be_parsed_does_not_stop_a_list(
    api: FakeApi, parameters: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    items = [
        object_text(stored_template("first", FORGED), b""),
        object_text(stored_template("odd", "PARAMETERS"), parameters),
        object_text(stored_template("last"), b""),
    ]
    page = b'{"kind":"List","metadata":{"resourceVersion":"999"},"items":[' + b",".join(items) + b"]}\n"
    api.fault("list", PLURAL, raw(200, page))
    async with open_watches(api) as known:
        await seen(known.templates)
        assert known.templates.counters.failures == 0
        assert known.templates.counters.unreadable == 1
        assert len(known.templates) == 3
        assert known.store.template_device_classes("tenant", "first") == {names.DEVICE_CLASS}
        assert known.store.template_device_classes("tenant", "last") == {names.DEVICE_CLASS}
        assert known.store.claim_template("tenant", "last") is not None
        # The template exists, and its requests are unknown: it must not count as absent or as empty.
        assert known.store.claim_template("tenant", "odd") is None
        assert known.templates.get("tenant", "odd") == UNREADABLE_TEMPLATE
        assert (await known.store.exist("ResourceClaimTemplate", "tenant", ["odd"])) == {"odd": True}
        assert api.calls("get", PLURAL) == []
    said = [record.getMessage() for record in caplog.records if "cannot read" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("cannot read resourceclaimtemplates.resource.k8s.io tenant/odd: ")
    assert "[[[" not in said[0]


@pytest.mark.parametrize("parameters", ODD.values(), ids=ODD.keys())
async def test_an_object_that_cannot_be_parsed_does_not_stop_a_watch(api: FakeApi, parameters: bytes) -> None:
    async with open_watches(api) as known:
        await seen(known.templates)
        odd = stored_template("odd", "PARAMETERS")
        odd["metadata"]["resourceVersion"] = "1234"
        event = b'{"type":"%s","object":' + object_text(odd, parameters) + b"}\n"
        api.emit(PLURAL, event.replace(b"%s", b"ADDED"))
        api.put(PLURAL, stored_template("next"))
        await eventually(lambda: known.templates.get("tenant", "next"))
        assert known.templates.get("tenant", "odd") == UNREADABLE_TEMPLATE
        api.emit(PLURAL, event.replace(b"%s", b"DELETED"))
        await eventually(lambda: known.templates.get("tenant", "odd") is None)
        api.end_watches()
        await eventually(lambda: len(api.calls("watch", PLURAL)) == 2)
        assert api.calls("watch", PLURAL)[1].query["resourceVersion"] == "1234"
        assert known.templates.counters.lists == 1


async def test_only_the_name_of_a_too_long_watch_event_is_read(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.watching.LONGEST_OBJECT", 100_000)
    async with open_watches(api) as known:
        await seen(known.templates)
        api.put(PLURAL, stored_template("long", {"a": "x" * 300_000}))
        api.put(PLURAL, stored_template("next"))
        await eventually(lambda: known.templates.get("tenant", "next"))
        assert known.templates.get("tenant", "long") == UNREADABLE_TEMPLATE
        assert known.templates.counters.lists == 1


async def test_pages_that_are_too_long_are_requested_again_with_fewer_objects(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        api.put(PLURAL, stored_template(f"t{number:02}", {"a": "x" * 10_000}))
    monkeypatch.setattr("runtime.api_transport.LONGEST_ANSWER", 60_000)
    async with open_watches(api) as known:
        await seen(known.templates)
        assert len(known.templates) == 40
        limits = [call.query["limit"] for call in api.calls("list", PLURAL) + api.calls("continue", PLURAL)]
        assert limits[:4] == ["250", "62", "15", "3"]
        assert known.templates.counters.failures == 0


async def test_answers_are_not_compressed(api: FakeApi) -> None:
    encodings: list[str] = []

    async def note(request: web.Request) -> web.StreamResponse:
        encodings.append(request.headers["Accept-Encoding"])
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    api.fault("list", PLURAL, note)
    async with open_watches(api) as known:
        await seen(known.templates)
    assert encodings == ["identity"]


async def test_every_answer_has_a_size_limit(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.api_transport.LONGEST_ANSWER", 1000)
    api.put(PLURAL, stored_template("long", {"a": "x" * 2000}))

    async def load() -> Configuration:
        return Configuration(host=api.url)

    connection = await Connection.open(load)
    with pytest.raises(TooLongError):
        await connection.request("GET", RESOURCE_CLAIM_TEMPLATES.path("tenant", "long"), timeout=5)
    await connection.close()


# --- memory ---------------------------------------------------------------------------------------------------------


def watches_with(*items: Object) -> Watches:
    made = Watches(_UncalledServer())
    for item in items:
        made.templates.observe("ADDED", item)
    return made


class _UncalledServer:
    async def request(self, method: str, path: str, **_: object) -> bytes:
        raise AssertionError(method + path)

    def stream(self, path: str, **_: object) -> Any:
        raise AssertionError(path)


def heavy(name: str, namespace: str = "tenant") -> Object:
    """A template of about 100 KB: the longest selectors that the API server takes."""
    item = stored_template(name, namespace=namespace)
    selectors = [{"cel": {"expression": f"'{number}' == '{'x' * 10_000}'"}} for number in range(10)]
    item["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = selectors
    return item


def test_templates_of_one_namespace_do_not_use_the_memory_share_of_others() -> None:
    known = watches_with(*(heavy(f"h{number}") for number in range(200)), heavy("mine", namespace="neighbour"))
    kept = sum(footprint(facts.spec) for facts in known.templates.values())
    assert kept < 5 * 1024 * 1024
    assert known.store.claim_template("tenant", "h0") is not None
    # That it exists is still known.
    assert known.templates.get("tenant", "h199") is not None
    assert known.store.claim_template("tenant", "h199") is None
    assert known.store.claim_template("neighbour", "mine") is not None


def test_a_deleted_template_frees_its_share_of_memory() -> None:
    known = watches_with(*(heavy(f"h{number}") for number in range(200)))
    for number in range(200):
        known.templates.observe("DELETED", heavy(f"h{number}"))
    known.templates.observe("ADDED", heavy("again"))
    assert known.store.claim_template("tenant", "again") is not None


async def test_a_template_that_is_too_long_is_not_decoded(api: FakeApi) -> None:
    api.put(PLURAL, stored_template("long", {"a": "x" * KEPT.template}))
    async with open_watches(api) as known:
        await seen(known.templates)
        assert known.templates.get("tenant", "long") == UNREADABLE_TEMPLATE


def test_the_memory_of_all_namespaces_together_is_bounded() -> None:
    def weigh(value: str) -> int:
        return len(value)

    bounds: Bounds[str] = Bounds(10_000, 4_000, weigh, lambda _: "")
    holdings = Holdings(bounds)
    for number in range(100):
        holdings.put((f"ns{number}", "o"), "x" * 1000)
    assert holdings.weight <= 10_000
    assert holdings.get(("ns0", "o")) == "x" * 1000
    assert holdings.get(("ns99", "o")) is None
    for key in list(holdings.keys()):
        holdings.remove(key)
    assert (holdings.weight, len(holdings)) == (0, 0)


def test_the_kept_annotations_and_labels_of_a_namespace_are_bounded() -> None:
    annotations = {f"neuron.aws.com/{number}": "x" * 5000 for number in range(1000)}
    labels = {f"label-{number}": "x" for number in range(20_000)}
    known = Watches(_UncalledServer())
    cache = next(cache for cache in known.caches if cache.resource == NAMESPACES)
    cache.observe("ADDED", {"metadata": {"name": "tenant", "annotations": annotations, "labels": labels}})
    facts = known.store.namespace("tenant")
    assert footprint(facts.annotations) < 64 * 1024
    assert len(known.store.namespace_labels("tenant") or ()) == 1024


def test_a_namespace_that_does_not_fit_is_kept_without_what_only_policies_read() -> None:
    record = project_namespace_record({"metadata": {"name": "tenant", "labels": {"team": "a" * 60}}})
    assert record.whole is not None
    kept = Holdings(dataclasses.replace(namespaces.BOUNDS, total=600, of_one=600))
    assert kept.put(("", "tenant"), record) == dataclasses.replace(record, whole=None)


# --- time -----------------------------------------------------------------------------------------------------------


async def longest_pause(stop: asyncio.Event) -> float:
    """The longest time for which the event loop did nothing else."""
    longest, last = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return longest


async def test_many_changes_do_not_block_the_event_loop(api: FakeApi) -> None:
    async with open_watches(api) as known:
        await seen(known.templates)
        lines = [
            b'{"type":"MODIFIED","object":' + object_text(stored_template(f"t{n % 7}", [n]), b"") + b"}\n"
            for n in range(10_000)
        ]
        stop = asyncio.Event()
        watching = asyncio.create_task(longest_pause(stop))
        api.emit(PLURAL, b"".join(lines))
        await eventually(lambda: known.templates.counters.events == 10_000, 60)
        stop.set()
        assert_below(await watching, 0.5)


async def test_splitting_a_deeply_nested_page_does_not_block_the_event_loop(api: FakeApi) -> None:
    items = [
        object_text(stored_template(f"t{number}", "PARAMETERS"), b"[" * 4500 + b"]" * 4500) for number in range(200)
    ]
    page = b'{"metadata":{"resourceVersion":"999"},"items":[' + b",".join(items) + b"]}"
    api.fault("list", PLURAL, raw(200, page))
    async with open_watches(api) as known:
        stop = asyncio.Event()
        watching = asyncio.create_task(longest_pause(stop))
        await seen(known.templates)
        stop.set()
        assert_below(await watching, 0.5)
        assert len(known.templates) == 200


# --- what is left of an object whose content cannot be used ---------------------------------------------------------


def test_an_unreadable_template_is_not_a_generated_template() -> None:
    assert TemplateFacts("", False, None) == UNREADABLE_TEMPLATE
    assert not re.fullmatch("[0-9a-f]+", UNREADABLE_TEMPLATE.digest)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"",
        b"{}[",
        b'{"metadata":{},"items":[{"a":"\\ud800"}',
        b'{"items":[{"a":"\\ud800"}]}',
        b'{"a":"\\ud800"}',
    ],
)
async def test_an_answer_that_is_no_list_does_not_empty_the_cache(api: FakeApi, body: bytes) -> None:
    api.put(PLURAL, stored_template("kept"))
    async with open_watches(api) as known:
        await seen(known.templates)
        api.fault("list", PLURAL, raw(200, body))
        api.compact()
        api.break_watches()
        await eventually(lambda: known.templates.counters.failures and api.watching(PLURAL))
        assert known.templates.get("tenant", "kept") is not None
