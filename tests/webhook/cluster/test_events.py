"""Events about refusals: their object, their rate, and failed writes."""

import asyncio
import datetime as dt
import itertools
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision, denied, unchanged
from neuron.findings import Finding
from runtime.api_server import StatusError, UnreachableError
from runtime.api_transport import Connection
from tests.support.clusters import request
from tests.support.fake_api import FakeApi, Handler, answer, eventually, hang_up
from tests.support.generated import connected
from tests.support.serving import Answering
from webhook.cluster.events import (
    BURST,
    LONGEST_NOTE,
    MOST_SERIES,
    PATCH_EVERY,
    REFILL,
    SERIES_ENDS,
    EventRecorder,
    describe,
)
from webhook.reviews.chain import RefusalReporter

NOW = dt.datetime(2026, 7, 1, 12, 0, tzinfo=dt.UTC)
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train-5f", "uid": "u-1", "controller": True}
SEVEN = Finding("NEU105", "spec.containers[0]", "no instance type has 7.", "Ask for 8.")


def denial(message: str = "no instance type has 7.") -> Decision:
    return denied("unservable", Finding("NEU105", "spec.containers[0]", message, "Ask for 8."))


def owned_pod(owner: dict[str, Any] | None = OWNER, **metadata: Any) -> dict[str, Any]:
    owners = {"ownerReferences": [owner]} if owner else {}
    return {"metadata": {**owners, **metadata}, "spec": {}}


class Bench:
    """A recorder against an API server, with a fixed clock."""

    def __init__(self, api: FakeApi, connection: Connection) -> None:
        self.api = api
        self.seconds = 0.0
        numbers = itertools.count(1)
        self.recorder = EventRecorder(
            connection,
            "pod-1",
            clock=lambda: self.seconds,
            now=lambda: NOW + dt.timedelta(seconds=self.seconds),
            sleep=lambda _: asyncio.sleep(0.001),
            token=lambda: f"t{next(numbers)}",
        )

    @property
    def counts(self) -> dict[str, int]:
        counters = self.recorder.counters
        names = ("created", "patched", "full", "rate", "failed")
        return {name: getattr(counters, name) for name in names if getattr(counters, name)}

    def refuse(self, manifest: Any = None, message: str = "no", namespace: str = "team-a", **fields: Any) -> None:
        asked = request(manifest or owned_pod(), namespace=namespace, **fields)
        self.recorder.refused(asked, denial(message))

    def event(self, number: int, namespace: str = "team-a") -> Any:
        return self.api.get("events", f"neuron-dra.t{number}", namespace)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with FakeApi().serve() as api, connected(api) as connection:
        yield Bench(api, connection)


# --- what an Event says -----------------------------------------------------------------------------------------


async def test_an_event_is_about_the_controller_of_the_pod(bench: Bench) -> None:
    bench.refuse()
    await bench.recorder.write()
    event = bench.event(1)
    del event["metadata"]["resourceVersion"]
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "neuron-dra.t1", "namespace": "team-a"},
        "eventTime": "2026-07-01T12:00:00.000000Z",
        "reportingController": "neuron.aws.com/webhook",
        "reportingInstance": "pod-1",
        "action": "Convert",
        "reason": "ConversionRefused",
        "type": "Warning",
        "regarding": {
            "kind": "ReplicaSet",
            "name": "train-5f",
            "namespace": "team-a",
            "apiVersion": "apps/v1",
            "uid": "u-1",
        },
        "note": "NEU105: no Ask for 8.",
    }


@pytest.mark.parametrize(
    ("manifest", "note"),
    [
        pytest.param(owned_pod(None, name="train"), "Pod train: NEU105: no Ask for 8.", id="a name"),
        pytest.param(owned_pod(None, generateName="train-"), "Pod train-: NEU105: no Ask for 8.", id="a name to come"),
        pytest.param(owned_pod(None), "NEU105: no Ask for 8.", id="no name"),
        pytest.param(
            owned_pod({**OWNER, "controller": False}), "NEU105: no Ask for 8.", id="an owner that controls nothing"
        ),
        pytest.param(owned_pod({**OWNER, "name": ""}), "NEU105: no Ask for 8.", id="an owner without a name"),
        pytest.param(
            owned_pod({**OWNER, "name": "x" * 254}), "NEU105: no Ask for 8.", id="an owner with a name too long"
        ),
        pytest.param({"metadata": {"ownerReferences": "?"}}, "NEU105: no Ask for 8.", id="metadata that is none"),
    ],
)
def test_an_event_is_about_the_namespace_without_a_controller(manifest: Any, note: str) -> None:
    described = describe(request(manifest), denial("no"))
    assert described.regarding == ("Namespace", "team-a", "v1", "")
    assert described.note == note


@given(st.binary(max_size=60))
def test_any_object_can_be_described_in_an_event(body: bytes) -> None:
    asked = msgspec.structs.replace(request({}), object=Raw(body))
    assert describe(asked, denial()).regarding[0]


@given(st.text(max_size=40).map(lambda text: text * 60))
def test_a_note_is_within_the_limits_of_the_api_server(message: str) -> None:
    note = describe(request(owned_pod()), denial(message)).note
    assert len(note.encode()) <= LONGEST_NOTE
    assert note.isprintable()


def test_all_findings_are_in_the_note() -> None:
    both = denied("bad-request", SEVEN, Finding("NEU109", "", "no LNC 3."))
    note = describe(request(owned_pod()), both).note
    assert note == "NEU105: no instance type has 7. Ask for 8.; NEU109: no LNC 3."


# --- how often ---------------------------------------------------------------------------------------------------


async def test_a_repeated_refusal_becomes_an_event_series(bench: Bench) -> None:
    for _ in range(5):
        bench.refuse()
    await bench.recorder.write()
    assert bench.event(1)["series"] == {"count": 5, "lastObservedTime": "2026-07-01T12:00:00.000000Z"}
    bench.seconds = 10
    bench.refuse()
    await bench.recorder.write()
    assert bench.event(1)["series"]["count"] == 5
    bench.seconds = PATCH_EVERY
    await bench.recorder.write()
    assert bench.event(1)["series"] == {"count": 6, "lastObservedTime": "2026-07-01T12:00:10.000000Z"}
    assert bench.counts == {"created": 1, "patched": 1}


async def test_a_refusal_after_the_end_of_a_series_creates_a_new_event(bench: Bench) -> None:
    bench.refuse()
    await bench.recorder.write()
    bench.seconds = SERIES_ENDS
    bench.refuse()
    await bench.recorder.write()
    assert "series" not in bench.event(2)
    assert bench.counts == {"created": 2}


async def test_a_deleted_event_is_created_again(bench: Bench) -> None:
    bench.refuse()
    await bench.recorder.write()
    bench.api.remove("events", "neuron-dra.t1", "team-a")
    bench.seconds = PATCH_EVERY
    bench.refuse()
    await bench.recorder.write()
    await bench.recorder.write()
    assert bench.event(2)["series"]["count"] == 2


async def test_a_namespace_gets_so_many_new_events_and_more_later(bench: Bench) -> None:
    for number in range(BURST + 3):
        bench.refuse(message=f"no {number}.")
    bench.refuse(namespace="team-b")
    await bench.recorder.write()
    assert bench.counts == {"created": BURST + 1, "rate": 3}
    bench.seconds = REFILL
    bench.refuse(message="yet another.")
    bench.refuse(message="one too many.")
    assert bench.counts["rate"] == 4


async def test_too_many_different_refusals_are_counted_and_left_out(bench: Bench) -> None:
    for number in range(MOST_SERIES + 2):
        bench.refuse(namespace=f"team-{number}")
    assert bench.counts == {"full": 2}


@pytest.mark.parametrize("fields", [{"dryRun": True}, {"namespace": ""}], ids=["dry run", "no namespace"])
async def test_unchanged_or_dry_run_refusals_send_no_event(bench: Bench, fields: dict[str, Any]) -> None:
    bench.refuse(**fields)
    await bench.recorder.write()
    assert not bench.api.seen


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind", "tries"),
    [
        pytest.param(answer(403, "Forbidden", "no"), StatusError, 1, id="for good"),
        pytest.param(answer(503, "ServiceUnavailable", "busy"), StatusError, 3, id="passing"),
        pytest.param(hang_up, UnreachableError, 3, id="broken off"),
    ],
)
async def test_events_that_cannot_be_written_are_counted_and_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, fault: Handler, kind: type[Exception], tries: int
) -> None:
    bench.api.fault("create", "events", fault, times=100)
    with caplog.at_level(logging.WARNING):
        for message in ("one.", "two."):
            bench.refuse(message=message)
        for _ in range(5):
            await bench.recorder.write()
    assert bench.counts == {"failed": 2}
    assert len(bench.api.calls("create", "events")) == 2 * tries
    assert [record.getMessage()[:59] for record in caplog.records] == [
        "an Event about a refused conversion cannot be written; furt"
    ]


async def test_a_temporary_write_failure_loses_no_event(bench: Bench) -> None:
    bench.api.fault("create", "events", answer(503, "ServiceUnavailable", "busy"), times=2)
    bench.refuse()
    for _ in range(3):
        await bench.recorder.write()
    assert bench.counts == {"created": 1}


async def test_a_running_recorder_writes_events(bench: Bench) -> None:
    running = asyncio.create_task(bench.recorder.run())
    try:
        bench.refuse()
        await eventually(lambda: bench.counts == {"created": 1})
        bench.refuse(message="more.")
        await eventually(lambda: bench.counts == {"created": 2})
    finally:
        running.cancel()


# --- receivers of Events -------------------------------------------------------------------------------------------


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def refused(self, request: AdmissionRequest, decision: Decision) -> None:  # noqa: ARG002
        self.heard.append(decision.reason)


@pytest.mark.parametrize(
    ("decision", "dry_run", "heard"),
    [
        pytest.param(denial(), False, ["unservable"], id="refused"),
        pytest.param(denial(), True, [], id="refused on a dry run"),
        pytest.param(unchanged("not-neuron"), False, [], id="admitted"),
    ],
)
async def test_refusals_are_reported_except_for_dry_runs(decision: Decision, dry_run: bool, heard: list[str]) -> None:
    listener = Listener()
    answered = await RefusalReporter(Answering(decision), listener).review(request(owned_pod(), dryRun=dry_run))
    assert answered is decision
    assert listener.heard == heard


def test_the_object_of_a_review_is_not_kept() -> None:
    described = describe(request(owned_pod(annotations={"secret": "x" * 1000})), denial())
    assert "xxxx" not in json.dumps(described.note)
