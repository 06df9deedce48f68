"""Traces: sent to a real OTLP receiver where an endpoint is set, and nothing else."""

import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import tracing
from runtime.startup import StartupError
from tests.support.collector import Receiver
from tests.support.serving import Answering, review, serving
from tests.support.timing import assert_below

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    monkeypatch.setenv(ENDPOINT, made.url)
    yield made
    made.close()


def test_a_review_is_a_trace_below_the_span_of_the_api_server(receiver: Receiver, tls_directory: Path) -> None:
    end = tracing.start("neuron-dra-webhook", "1")
    assert end is not None
    try:
        with serving(tls_directory, {"/mutate": Answering()}) as running, running.client() as client:
            headers = {"Content-Type": "application/json", "traceparent": TRACEPARENT}
            client.ask("POST", "/mutate", json.dumps(review()), headers)
    finally:
        end()
    spans = receiver.spans()
    assert sorted(spans) == ["decide", "decode", "review /mutate"]
    root = spans["review /mutate"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert {spans[name].parent_span_id for name in ("decide", "decode")} == {root.span_id}


def test_a_call_without_or_with_a_wrong_parent_is_a_trace_of_its_own(receiver: Receiver) -> None:
    end = tracing.start("neuron-dra-kubelet-plugin", "1")
    assert end is not None
    with tracing.served("none", ()), tracing.span("inner"):
        pass
    with tracing.served("wrong", [("traceparent", "nonsense")]):
        pass
    with pytest.raises(ValueError, match="secret"), tracing.served("fails", [("traceparent", TRACEPARENT)]):
        raise ValueError("secret")
    end()
    spans = receiver.spans()
    assert [spans[name].parent_span_id for name in ("none", "wrong")] == [b"", b""]
    assert spans["inner"].parent_span_id == spans["none"].span_id
    assert spans["fails"].parent_span_id.hex() == PARENT
    assert not any(b"secret" in body for _, body in receiver.received)


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartupError, match=rf"^{ENDPOINT} is set, and .*Install neuron-dra\[tracing\]"):
        tracing.start("neuron-dra-webhook", "1")


@pytest.mark.parametrize(
    "endpoint",
    [
        "collector:4318",
        "collector",
        "ftp://collector",
        "http://",
        "http://collector:x",
        "http://collector:0",
        "http://[::1",
    ],
)
def test_an_endpoint_that_is_no_url_is_an_error(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, endpoint)
    with pytest.raises(
        StartupError, match=rf"^{ENDPOINT} is '{re.escape(endpoint)}', which is no URL .*: set it to one"
    ):
        tracing.start("neuron-dra-webhook", "1")


def test_a_collector_that_does_not_answer_delays_the_end_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "_LAST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING):
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{silent.getsockname()[1]}")
        # How long the exporter waits for an answer.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        end = tracing.start("neuron-dra-webhook", "1")
        assert end is not None
        with tracing.span("last"):
            pass
        began = time.monotonic()
        end()
    assert_below(time.monotonic() - began, 30)
    assert "the last traces were not sent" in caplog.messages


@pytest.mark.parametrize(
    "environment", [{}, {ENDPOINT: ""}, {ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "true"}], ids=["no", "empty", "off"]
)
def test_nothing_is_traced_without_an_endpoint(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tracing.start("neuron-dra-webhook", "1") is None
    assert not tracing.enabled()
    with tracing.served("a", ()) as outer, tracing.span("b") as inner:
        assert (outer, inner) == (None, None)


def test_no_package_of_opentelemetry_is_imported_without_an_endpoint() -> None:
    code = "import sys, webhook.server.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
