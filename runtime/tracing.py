"""Traces of OpenTelemetry, sent as OTLP over HTTP, if an endpoint is set. Without one, nothing of it is imported.

The environment variables are those that OpenTelemetry defines; its SDK reads them. With or without an endpoint,
log lines have the trace id of the `traceparent` header, which the API server sends if its tracing is on (`trace_of`).
"""

import contextlib
import importlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any, Final
from urllib.parse import urlsplit

from runtime.startup import StartupError

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_CONTEXT: Final = ("traceparent", "tracestate")
_NO_SPAN: Final = contextlib.nullcontext()
_LAST_SECONDS: Final = 3.0
"""For the last traces. A collector that does not answer must not delay the end of a pod past its grace period."""
NO_TRACE: Final = ("", "")

_NAME: Final = itemgetter(0)
_PARENT: Final = re.compile(
    rb"(?!ff)(?!00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?"
)
"""https://www.w3.org/TR/trace-context/#traceparent-header: version 00 has exactly these parts, later versions may have
more. Version ff and ids of only zeros are invalid."""

_log = logging.getLogger(__name__)
_tracer: Any = None


def enabled() -> bool:
    """Whether traces are sent."""
    return _tracer is not None


def start(service: str, version: str) -> Callable[[], None] | None:
    """Begin to send traces, if an endpoint is set; the result sends what is left, and ends it.

    Raises:
        StartupError: the endpoint is not a URL, or the packages are not installed.
    """
    global _tracer  # noqa: PLW0603 - one process has one exporter
    variable = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if variable is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    _check(variable, os.environ[variable])
    try:
        sdk = importlib.import_module("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        resources = importlib.import_module("opentelemetry.sdk.resources")
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise StartupError(
            f"{variable} is set, and {error.name} is not installed, which sends traces. Install neuron-dra[tracing],"
            " or unset the variable."
        ) from error
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes = {"service.version": version} | ({} if named else {"service.name": service})
    provider = sdk.TracerProvider(resource=resources.Resource.create(attributes), shutdown_on_exit=False)
    exporter = otlp.OTLPSpanExporter()
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    _tracer = provider.get_tracer("neuron-dra", version)

    def end() -> None:
        global _tracer  # noqa: PLW0603
        _tracer = None
        ending = threading.Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(_LAST_SECONDS)
        if ending.is_alive():
            _log.warning("the last traces were not sent", extra={"waited": _LAST_SECONDS})
            exporter.shutdown()

    return end


def _check(variable: str, endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise StartupError(
            f"{variable} is {endpoint!r}, which is no URL of an OTLP receiver: set it to one such as"
            " http://collector.observability:4318, or unset it."
        )


def span(name: str) -> AbstractContextManager[Any]:
    """A part of the current span; the context has the span, or None if no traces are sent."""
    return _NO_SPAN if _tracer is None else _begun(name)


def served(name: str, headers: Iterable[tuple[object, object]]) -> AbstractContextManager[object]:
    """As `span`, for a request; its parent is the span of its `traceparent` header."""
    if _tracer is None:
        return _NO_SPAN
    trace = importlib.import_module("opentelemetry.trace")
    context_of = importlib.import_module("opentelemetry.context")
    propagation = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
    texts = (tuple(each.decode("latin-1") if isinstance(each, bytes) else each for each in pair) for pair in headers)
    carrier = {key: value for key, value in texts if key in _CONTEXT}
    context = propagation.TraceContextTextMapPropagator().extract(carrier, context=context_of.Context())
    return _begun(name, context=context, kind=trace.SpanKind.SERVER)


def _begun(name: str, **options: object) -> AbstractContextManager[object]:
    # The text of an exception may quote the object.
    begun: AbstractContextManager[object] = _tracer.start_as_current_span(
        name, record_exception=False, set_status_on_exception=False, **options
    )
    return begun


def trace_of(headers: Sequence[tuple[bytes, bytes]]) -> tuple[str, str]:
    """Trace id and the caller's span id in hexadecimal; empty if the header is absent, invalid or repeated."""
    if b"traceparent" not in map(_NAME, headers):
        return NO_TRACE
    values = [value for name, value in headers if name == b"traceparent"]
    match = _PARENT.fullmatch(values[0]) if len(values) == 1 else None
    return NO_TRACE if match is None else (match[1].decode(), match[2].decode())
