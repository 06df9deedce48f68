"""Traces: sent to a real OTLP receiver where an endpoint is set, and nothing else."""

import http.server
import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime import tracing
from runtime.startup import StartupError
from tests.support.serving import Answering, review, serving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Receiver:
    """An OTLP/HTTP receiver."""

    def __init__(self) -> None:
        bodies = self.bodies = list[bytes]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self) -> dict[str, Any]:
        messages = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        found = {}
        for body in self.bodies:
            for resource in messages.ExportTraceServiceRequest.FromString(body).resource_spans:
                found |= {span.name: span for scope in resource.scope_spans for span in scope.spans}
        return found


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    pytest.importorskip("opentelemetry.sdk.trace", reason="requirements/tracing.txt is not installed")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="requirements/tracing.txt is not installed")
    made = Receiver()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{made.server.server_port}")
    yield made
    made.server.shutdown()
    made.server.server_close()


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
    assert not any(b"secret" in body for body in receiver.bodies)


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartupError, match=rf"^{ENDPOINT} is set, and .*Install neuron-dra\[tracing\]"):
        tracing.start("neuron-dra-webhook", "1")


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
