"""W3C Trace Context, from the header to the decision line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tracing import NO_TRACE, trace_of
from tests.support.serving import Answering, eventually, review, serving

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(f"00-{TRACE}-{SPAN}-01", (TRACE, SPAN), id="sampled"),
        pytest.param(f"00-{TRACE}-{SPAN}-00", (TRACE, SPAN), id="not-sampled"),
        pytest.param(f"cc-{TRACE}-{SPAN}-01", (TRACE, SPAN), id="a-later-version"),
        pytest.param(f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", (TRACE, SPAN), id="with-more"),
        pytest.param(f"cc-{TRACE}-{SPAN}-01.what", NO_TRACE, id="with-more-and-no-dash"),
        pytest.param(f"00-{TRACE}-{SPAN}-01-more", NO_TRACE, id="version-00-has-no-more"),
        pytest.param(f"ff-{TRACE}-{SPAN}-01", NO_TRACE, id="version-ff"),
        pytest.param(f"00-{'0' * 32}-{SPAN}-01", NO_TRACE, id="no-trace"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", NO_TRACE, id="no-span"),
        pytest.param(f"00-{TRACE.upper()}-{SPAN}-01", NO_TRACE, id="capitals"),
        pytest.param(f"00-{TRACE[:-1]}-{SPAN}-01", NO_TRACE, id="short-trace"),
        pytest.param(f"00-{TRACE}-{SPAN}0-01", NO_TRACE, id="long-span"),
        pytest.param(f"00-{TRACE}-{SPAN}-1", NO_TRACE, id="short-flags"),
        pytest.param(f"00-{TRACE}-{SPAN}", NO_TRACE, id="no-flags"),
        pytest.param(f"00-{TRACE}-{SPAN}-01\n", NO_TRACE, id="a-newline"),
        pytest.param("", NO_TRACE, id="empty"),
    ],
)
def test_headers_are_read_strictly(value: str, expected: tuple[str, str]) -> None:
    assert trace_of([(b"host", b"x"), (b"traceparent", value.encode())]) == expected


def test_there_is_no_trace_without_the_header() -> None:
    assert trace_of([(b"content-type", b"application/json")]) == NO_TRACE


def test_a_repeated_header_gives_no_trace() -> None:
    header = (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())
    assert trace_of([header, header]) == NO_TRACE
    assert trace_of([(b"traceparent", b"nonsense"), header]) == NO_TRACE


@given(st.binary(max_size=80))
def test_any_header_bytes_are_parsed_without_an_error(value: bytes) -> None:
    trace, span = trace_of([(b"traceparent", value)])
    assert (len(trace), len(span)) in ((0, 0), (32, 16))


def test_the_decision_line_has_the_trace(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Answering()}) as running, running.client() as client:
        headers = {"Content-Type": "application/json"}
        client.ask("POST", "/mutate", json.dumps(review()), {**headers, "Traceparent": f"00-{TRACE}-{SPAN}-01"})
        client.ask("POST", "/mutate", json.dumps(review()), {**headers, "Traceparent": "rubbish"})
        client.ask("POST", "/mutate", json.dumps(review()), headers)
        eventually(lambda: running.log.getvalue().count(b"\n") == 3, "three decisions are logged")
        lines = running.decisions()
    assert [(line.get("trace_id"), line.get("span_id")) for line in lines] == [
        (TRACE, SPAN),
        (None, None),
        (None, None),
    ]
