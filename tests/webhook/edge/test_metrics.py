"""Metrics, and their form for Prometheus."""

import dataclasses
import http.client
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conversion.objects import wire
from conversion.patches.decision import denied, unchanged
from runtime import listening
from runtime.metrics_server import Histogram, serving_metrics
from tests.support.loops import Loop
from webhook.edge.metrics import DURATION_BOUNDS, Metrics
from webhook.edge.reviews import Rendered, render

UNCHANGED = render(unchanged("not-neuron"))


def admission(kind: str = "Pod", operation: str = "CREATE", dry_run: bool = False) -> wire.AdmissionRequest:
    return wire.AdmissionRequest(uid="u", kind=wire.GroupVersionKind(kind), operation=operation, dryRun=dry_run)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("1.2.3")


@pytest.fixture
def scrape(metrics: Metrics) -> Iterator[Any]:
    listener = listening.listen("127.0.0.1", 0, "", "")
    with serving_metrics(metrics.registry, listener):

        def get(path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
            connection = http.client.HTTPConnection(*listener.getsockname(), timeout=60)
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read().decode()
            connection.close()
            return answer.status, body

        yield get


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_reviews_are_counted_by_outcome(metrics: Metrics, scrape: Any) -> None:
    counts = metrics.path("/mutate")
    for rendered in (UNCHANGED, UNCHANGED, render(denied("unsupported-count"))):
        counts.reviewed(admission(dry_run=rendered is not UNCHANGED), rendered, 0.002, 3000)
    status, text = scrape()
    assert status == 200
    labels = {"path": "/mutate", "operation": "CREATE", "kind": "Pod"}
    assert samples(text)["neuron_dra_reviews_total"] == [
        (labels | {"outcome": "unchanged", "reason": "not-neuron", "dry_run": "false"}, 2.0),
        (labels | {"outcome": "denied", "reason": "unsupported-count", "dry_run": "true"}, 1.0),
    ]


@pytest.mark.parametrize(
    ("asked", "kind", "operation"),
    [
        pytest.param(admission("Pod", "CREATE"), "Pod", "CREATE", id="known"),
        pytest.param(admission("Pod-8f7c", "CREATE"), "other", "CREATE", id="unknown-kind"),
        pytest.param(admission("Pod", "PATCH\n1"), "Pod", "other", id="unknown-operation"),
    ],
)
def test_labels_that_callers_choose_are_bounded(
    metrics: Metrics, asked: wire.AdmissionRequest, kind: str, operation: str
) -> None:
    counts = metrics.path("/mutate")
    counts.reviewed(asked, UNCHANGED, 0.001, 1)
    assert list(counts.reviews) == [(operation, kind, "unchanged", "not-neuron", False)]


def test_errors_are_counted_by_code(metrics: Metrics, scrape: Any) -> None:
    for code in (400, 413, 400):
        metrics.path("/mutate").failed(code)
    assert samples(scrape()[1])["neuron_dra_review_errors_total"] == [
        ({"path": "/mutate", "code": "400"}, 2.0),
        ({"path": "/mutate", "code": "413"}, 1.0),
    ]


def test_durations_and_sizes_are_histograms(metrics: Metrics, scrape: Any) -> None:
    counts = metrics.path("/mutate")
    for seconds, size in ((0.00005, 100), (0.0001, 5000), (0.3, 5000), (60.0, 10**9)):
        counts.reviewed(admission(), UNCHANGED, seconds, size)
    found = samples(scrape()[1])
    buckets = {labels["le"]: value for labels, value in found["neuron_dra_review_duration_seconds_bucket"]}
    assert (buckets["0.0001"], buckets["0.25"], buckets["0.5"], buckets["5.0"], buckets["+Inf"]) == (2, 2, 3, 3, 4)
    assert found["neuron_dra_review_duration_seconds_count"] == [({"path": "/mutate"}, 4.0)]
    assert found["neuron_dra_review_duration_seconds_sum"][0][1] == pytest.approx(60.30015)
    sizes = {labels["le"]: value for labels, value in found["neuron_dra_review_body_bytes_bucket"]}
    assert (sizes["1024.0"], sizes["16384.0"], sizes["+Inf"]) == (1, 3, 4)


def test_inflight_reviews_and_the_version_are_exported(metrics: Metrics, scrape: Any) -> None:
    metrics.path("/mutate").inflight = 3
    found = samples(scrape()[1])
    assert found["neuron_dra_inflight_reviews"] == [({"path": "/mutate"}, 3.0)]
    assert found["neuron_dra_build_info"] == [({"version": "1.2.3"}, 1.0)]
    assert found["process_resident_memory_bytes"][0][1] > 0


def test_gauges_and_counters_are_read_at_each_scrape(metrics: Metrics, scrape: Any) -> None:
    numbers = iter([1, 2])
    metrics.gauge("neuron_dra_test", "For a test.", lambda: next(numbers))
    assert [samples(scrape()[1])["neuron_dra_test"][0][1] for _ in range(2)] == [1.0, 2.0]


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/", 404), ("/metricsx", 404), ("/readyz", 404)])
def test_metrics_are_at_one_path(scrape: Any, path: str, status: int) -> None:
    got, text = scrape(path)
    assert got == status
    assert got == 200 or text == "Metrics are at /metrics.\n"


def test_metrics_are_read_only(scrape: Any) -> None:
    assert scrape("/metrics", "POST")[0] == 405


def test_buckets_hold_values_up_to_their_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert histogram.total == 7.5


def test_buckets_span_what_reviews_take() -> None:
    assert (DURATION_BOUNDS[0], DURATION_BOUNDS[-1]) == (0.0001, 5.0)
    assert list(DURATION_BOUNDS) == sorted(DURATION_BOUNDS)


def test_scraping_while_reviews_come_in(metrics: Metrics, scrape: Any) -> None:
    """Series are added by one thread while another reads them."""
    counts = metrics.path("/mutate")
    reasons = (f"reason-{number % 500}" for number in itertools.count(1))

    def review() -> None:
        counts.reviewed(admission(), Rendered(b"", False, "unchanged", next(reasons), ()), 0.001, 1)

    with Loop(review):
        assert [scrape()[0] for _ in range(5)] == [200] * 5


def test_conversions_are_counted_by_resource_but_for_dry_runs(metrics: Metrics, scrape: Any) -> None:
    counts = metrics.path("/mutate")
    refused = render(dataclasses.replace(denied("unservable"), resource="aws.amazon.com/neuron"))
    for rendered, dry_run in ((refused, False), (refused, True), (UNCHANGED, False)):
        counts.reviewed(admission(dry_run=dry_run), rendered, 0.001, 1)
    _, text = scrape()
    labels = {"resource": "aws.amazon.com/neuron", "outcome": "unchanged", "reason": "unservable"}
    assert samples(text)["neuron_dra_conversions_total"] == [(labels | {"outcome": "denied"}, 1.0)]
