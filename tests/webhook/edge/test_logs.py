"""Log lines: one per decision, in batches; other lines immediately."""

import asyncio
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.objects import wire
from conversion.patches.decision import denied, unchanged
from neuron.findings import Finding, warning
from runtime import logs as runtime_logs
from webhook.edge import logs
from webhook.edge.bounds import BOUNDS
from webhook.edge.reviews import Rendered, render

NOON = 1_767_268_800.25
UNCHANGED = render(unchanged("not-neuron"))


def admission(name: str = "", body: bytes = b"null", **members: Any) -> wire.AdmissionRequest:
    return wire.AdmissionRequest(
        uid="u-1",
        kind=wire.GroupVersionKind("Pod"),
        operation="CREATE",
        name=name,
        object=msgspec.Raw(body),
        **members,
    )


def lines(*records: tuple[wire.AdmissionRequest, Rendered], form: runtime_logs.Format = "json") -> str:
    """The lines of these records after a flush."""
    stream = io.BytesIO()

    async def scenario() -> None:
        log = logs.DecisionLog(stream, form, clock=lambda: NOON)
        for asked, rendered in records:
            log.record(asked, rendered, 0.0012346)
        log.flush()

    asyncio.run(scenario())
    return stream.getvalue().decode()


def line(asked: wire.AdmissionRequest, rendered: Rendered = UNCHANGED) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(lines((asked, rendered)))
    return fields


def test_a_decision_is_one_line() -> None:
    refusal = denied("unsupported-count", Finding("NEU105", "spec", "No."), warnings=(warning("NEU203", "", "Hm."),))
    assert line(admission("train", namespace="team-a", dryRun=True), render(refusal)) == {
        "event": "decision",
        "ts": "2026-01-01T12:00:00.250Z",
        "level": "info",
        "uid": "u-1",
        "operation": "CREATE",
        "kind": "Pod",
        "namespace": "team-a",
        "name": "train",
        "decision": "denied",
        "reason": "unsupported-count",
        "dry_run": True,
        "findings": ["NEU105", "NEU203"],
        "ms": 1.235,
    }


API_SERVER = (
    b'{"kind":"Pod","apiVersion":"v1","metadata":{"generateName":"worker-","creationTimestamp":null},"spec":{}}'
)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        pytest.param(API_SERVER, {"generateName": "worker-"}, id="as-the-api-server-writes"),
        pytest.param(b'{"metadata":{"name":"a"}}', {"name": "a"}, id="name"),
        pytest.param(b'{"metadata":{"name":"a","generateName":"b"}}', {"name": "a"}, id="both-name-first"),
        pytest.param(
            b'{"metadata": {"labels": {"name": "no"}, "generateName": "b-", "name": "a"}}',
            {"name": "a", "generateName": "b-"},
            id="any-order",
        ),
        pytest.param(b'{"spec":{"metadata":{"name":"no"}},"metadata":{}}', {}, id="only-inside"),
        pytest.param(b'{"metadata":{"name":"\\u0061"}}', {"name": "a"}, id="escaped"),
        pytest.param(b'{"metadata":{"name":null,"generateName":""}}', {}, id="empty"),
        pytest.param(b"null", {}, id="no-object"),
        pytest.param(b'{"metadata":{"name":"\xff"}}', {}, id="not-utf8"),
        pytest.param(b'{"metadata":{"labels":{},"name":"\xff"}}', {}, id="not-utf8-later"),
        pytest.param(b'{"metadata":{"name":7}}', {}, id="wrong-type"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}, id="deep"),
    ],
)
def test_pods_without_a_name_are_logged_with_generate_name(body: bytes, names: dict[str, str]) -> None:
    written = line(admission(body=body))
    assert {key: written[key] for key in ("name", "generateName") if key in written} == names


@given(
    metadata=st.dictionaries(st.sampled_from(["name", "generateName", "namespace"]), st.text(), max_size=3),
    kind_first=st.booleans(),
)
def test_the_logged_name_is_the_one_in_metadata(metadata: dict[str, str], kind_first: bool) -> None:
    """However the object is written: the short cut for the API server's way finds nothing that is not there."""
    body = {"kind": "Pod", "metadata": metadata} if kind_first else {"metadata": metadata, "kind": "Pod"}
    written = line(admission(body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()))
    found = {key: written[key] for key in ("name", "generateName") if key in written}
    assert found.items() <= metadata.items()
    assert bool(found) == bool(metadata.get("name") or metadata.get("generateName"))


def test_the_text_format_has_readable_fields() -> None:
    text = lines((admission("train", namespace="team-a"), UNCHANGED), form="text")
    assert text == (
        "2026-01-01T12:00:00.250Z INFO    decision uid=u-1 operation=CREATE kind=Pod decision=unchanged "
        'reason=not-neuron dry_run=false findings="" ms=1.235 namespace=team-a name=train\n'
    )


class Recorder(io.BytesIO):
    """A stream that counts how often it is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, data: Any) -> int:
        self.writes += 1
        return super().write(data)


def recording(scenario: Callable[[logs.DecisionLog], Any], **options: Any) -> Recorder:
    stream = Recorder()

    async def run() -> None:
        await scenario(logs.DecisionLog(stream, **options))

    asyncio.run(run())
    return stream


def test_lines_are_written_together() -> None:
    async def scenario(log: logs.DecisionLog) -> None:
        for _ in range(100):
            log.record(admission(), UNCHANGED, 0.001)
        await asyncio.sleep(4 * logs.FLUSH_AFTER)

    stream = recording(scenario)
    assert stream.writes == 1
    assert len(stream.getvalue().splitlines()) == 100


def test_full_batches_do_not_wait() -> None:
    async def scenario(log: logs.DecisionLog) -> None:
        for _ in range(1000):
            log.record(admission("n" * 200), UNCHANGED, 0.001)

    stream = recording(scenario)
    assert stream.writes >= 3
    assert len(stream.getvalue()) > 3 * logs.FLUSH_ABOVE


def test_a_disabled_log_writes_nothing() -> None:
    async def scenario(log: logs.DecisionLog) -> None:
        log.flush()
        log.record(admission(), UNCHANGED, 0.001)

    assert recording(scenario, enabled=False).writes == 0


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("closed")], ids=["broken-pipe", "closed"])
async def test_a_log_that_cannot_be_written_loses_lines_and_nothing_else(error: Exception) -> None:
    class Broken(io.BytesIO):
        def write(self, _data: Any) -> int:
            raise error

    log = logs.DecisionLog(Broken())
    log.record(admission(), UNCHANGED, 0.001)
    log.record(admission(), UNCHANGED, 0.001)
    log.flush()
    assert log.lost == 2


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_records_are_json_with_their_keys() -> None:
    stream = io.StringIO()
    runtime_logs.configure("json", "info", stream)
    log = logging.getLogger("webhook.test")
    log.info("serving %s", "now", extra={"url": "https://[::1]:9443", "settings": {"port": 9443}})
    log.debug("not this")
    written = json.loads(stream.getvalue())
    assert written["ts"].endswith("Z")
    del written["ts"]
    assert written == {
        "event": "serving now",
        "level": "info",
        "logger": "webhook.test",
        "url": "https://[::1]:9443",
        "settings": {"port": 9443},
    }


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("form", ["json", "text"])
def test_tracebacks_stay_with_their_record(form: runtime_logs.Format) -> None:
    stream = io.StringIO()
    runtime_logs.configure(form, "info", stream)
    error = RuntimeError("inside")
    logging.getLogger("webhook.test").error("review failed", exc_info=error, extra={"uid": "u-1"})
    text = stream.getvalue()
    if form == "json":
        written = json.loads(text)
        assert written["uid"] == "u-1"
        text = written["traceback"]
    assert "RuntimeError: inside" in text


@pytest.mark.usefixtures("root_logger")
def test_text_records_quote_what_needs_it() -> None:
    stream = io.StringIO()
    runtime_logs.configure("text", "info", stream)
    logging.getLogger("x").warning(
        "odd", extra={"a": 'say "hi"', "b": "", "c": ("x", "y"), "d": True, "e": "new\nline"}
    )
    assert stream.getvalue().partition(" ")[2] == ('WARNING odd a="say \\"hi\\"" b="" c=x,y d=true e="new\\nline"\n')


@pytest.mark.usefixtures("root_logger")
def test_uvicorn_logs_warnings_only() -> None:
    stream = io.StringIO()
    runtime_logs.configure("json", "info", stream)
    logging.getLogger("uvicorn.error").info("Started server process [1]")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    assert [json.loads(text)["event"] for text in stream.getvalue().splitlines()] == ["Invalid HTTP request received."]


@pytest.mark.parametrize(("terminal", "form"), [(True, "text"), (False, "json")], ids=["terminal", "pipe"])
def test_people_at_a_terminal_get_text(monkeypatch: pytest.MonkeyPatch, terminal: bool, form: str) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert runtime_logs.resolve("auto") == form
    assert (runtime_logs.resolve("json"), runtime_logs.resolve("text")) == ("json", "text")


@given(st.floats(min_value=0, max_value=4e9))
def test_timestamps_agree_with_the_calendar(now: float) -> None:
    import datetime as dt

    expected = dt.datetime.fromtimestamp(int(now * 1000) // 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    timestamps = runtime_logs.Timestamps()
    assert timestamps.format(now) == timestamps.format(now) == f"{expected}.{int(now * 1000) % 1000:03d}Z"


HOSTILE = "a\u2028b\u2029c\x85d\x7fe\u202ef\u2066g\u200bh\x9bi\U000e0041j\r\nk\x00l\u00a0"


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_decision_with_any_name_is_one_line(form: runtime_logs.Format) -> None:
    asked = admission(HOSTILE, namespace=HOSTILE)
    written = lines((asked, UNCHANGED), (admission("next\x7f"), UNCHANGED), (admission("é"), UNCHANGED), form=form)
    assert written.endswith("\n")
    assert len(written.splitlines()) == 3
    assert all(line.isprintable() for line in written.splitlines())
    if form == "json":
        found = [json.loads(line) for line in written.splitlines()]
        assert [line["name"] for line in found] == [HOSTILE, "next\x7f", "é"]
        assert found[0]["namespace"] == HOSTILE


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("text", [HOSTILE, "\ud800", HOSTILE + "\udfff"])
def test_a_record_is_one_line_for_every_reader(form: runtime_logs.Format, text: str) -> None:
    stream = io.StringIO()
    runtime_logs.configure(form, "info", stream)
    logging.getLogger("x").warning("odd %s", text, extra={"reason": text, "list": [text]})
    (written,) = stream.getvalue().removesuffix("\n").splitlines()
    assert written.isprintable()
    if form == "json":
        assert json.loads(written)["reason"] == text


@pytest.mark.usefixtures("root_logger")
def test_a_traceback_has_no_other_lines_than_its_own() -> None:
    stream = io.StringIO()
    runtime_logs.configure("text", "info", stream)
    logging.getLogger("x").error("odd", exc_info=ValueError(HOSTILE.replace("\n", "")))
    written = stream.getvalue()
    assert written.splitlines() == written.removesuffix("\n").split("\n")


@pytest.mark.parametrize("form", ["json", "text"])
def test_values_in_a_line_are_bounded(form: runtime_logs.Format) -> None:
    asked = msgspec.structs.replace(
        admission("n" * 100_000, namespace="s" * 100_000),
        uid="u" * 100_000,
        operation="o" * 100_000,
        kind=wire.GroupVersionKind("k" * 100_000),
    )
    written = lines((asked, UNCHANGED), form=form)
    assert len(written) < 5 * BOUNDS.name + 400
    body = b'{"metadata":{"generateName":"%s"}}' % (b"g" * 100_000)
    assert len(lines((admission("", body), UNCHANGED), form=form)) < 600
