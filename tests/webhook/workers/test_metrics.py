"""The metrics of several workers in one answer."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from webhook.workers.member import Member
from webhook.workers.metrics import AllWorkers, Answering, Family, Sample, ask, families, mailboxes, merge
from webhook.workers.page import Page


def registry(reviews: int) -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("test_reviews", "Reviews.", ["path"], registry=made).labels("/mutate").inc(reviews)
    Histogram("test_seconds", "Durations.", buckets=(0.1, 1.0), registry=made).observe(0.5)
    Gauge("test_inflight", "Now.", registry=made).set(float("nan"))
    Info("test_build", "What.", registry=made).info({"version": "1"})
    return made


def scrape(made: CollectorRegistry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(made).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@contextlib.contextmanager
def replica(*registries: CollectorRegistry | None) -> Iterator[list[CollectorRegistry]]:
    """What each worker shows; None stands for one whose process hangs."""
    page, boxes = Page(len(registries)), mailboxes(len(registries))
    shown = []
    with contextlib.ExitStack() as stack:
        for index, own in enumerate(registries):
            stack.enter_context(boxes[index])
            page.slots[index].prepare(0)
            page.slots[index].pid = 1
            if own is not None:
                stack.enter_context(Answering(own, boxes[index]))
                everything = CollectorRegistry()
                everything.register(AllWorkers(own, Member(page, index), boxes))
                shown.append(everything)
        yield shown


def test_any_worker_shows_all_of_them_with_a_label() -> None:
    with replica(registry(3), registry(4)) as shown:
        for each in shown:
            found = scrape(each)
            assert found["test_reviews_total"] == {
                (("path", "/mutate"), ("worker", "0")): 3.0,
                (("path", "/mutate"), ("worker", "1")): 4.0,
            }
            assert found["test_seconds_bucket"][("le", "0.1"), ("worker", "1")] == 0.0
            assert found["test_seconds_bucket"][("le", "1.0"), ("worker", "1")] == 1.0
            assert found["test_build_info"] == {
                (("version", "1"), ("worker", "0")): 1.0,
                (("version", "1"), ("worker", "1")): 1.0,
            }
            assert found["neuron_dra_worker_up"] == {(("worker", "0"),): 1.0, (("worker", "1"),): 1.0}
            assert found["neuron_dra_worker_starts_total"][("worker", "1"),] == 1.0


def test_each_family_is_described_once_with_its_own_type() -> None:
    with replica(registry(3), registry(4)) as shown:
        text = generate_latest(shown[0]).decode()
    for line in (
        "test_reviews_total counter",
        "test_seconds histogram",
        "test_inflight gauge",
        "test_build_info gauge",
    ):
        assert text.count(f"# TYPE {line}\n") == 1
    assert 'test_inflight{worker="0"} NaN' in text


def test_a_worker_that_hangs_is_left_out_and_said_so() -> None:
    with replica(registry(3), None, registry(5)) as shown:
        started = time.monotonic()
        found = scrape(shown[0])
        assert time.monotonic() - started < 3
    assert {dict(labels)["worker"] for labels in found["test_reviews_total"]} == {"0", "2"}
    assert [found["neuron_dra_worker_up"][("worker", number),] for number in "012"] == [1.0, 0.0, 1.0]


def test_half_an_answer_is_none() -> None:
    box, *_ = mailboxes(1)

    def half() -> None:
        connection, _ = box.accept()
        connection.sendall(b"\x91\x94")
        connection.close()

    with box:
        thread = threading.Thread(target=half)
        thread.start()
        assert ask({0: box.getsockname()}) == {}
        thread.join()


def test_nobody_at_an_address_is_no_answer() -> None:
    box, *_ = mailboxes(1)
    address = box.getsockname()
    box.close()
    assert ask({0: address}) == {}


class Broken(Collector):
    def collect(self) -> Iterator[Metric]:
        raise ZeroDivisionError


def test_a_collector_that_fails_does_not_silence_its_worker_for_good(caplog: pytest.LogCaptureFixture) -> None:
    own, broken = registry(1), Broken()
    box, *_ = mailboxes(1)
    with box, Answering(own, box):
        own.register(broken)
        with caplog.at_level(logging.CRITICAL, logger="webhook.workers.metrics"):
            assert ask({0: box.getsockname()}) == {}
        own.unregister(broken)
        assert 0 in ask({0: box.getsockname()})


def test_large_answers_arrive_whole() -> None:
    own = CollectorRegistry()
    counter = Counter("test_many", "Many.", ["series"], registry=own)
    for number in range(5000):
        counter.labels("x" * 100 + str(number)).inc()
    box, *_ = mailboxes(1)
    with box, Answering(own, box):
        assert ask({0: box.getsockname()}, patience=10) == {0: families(own.collect())}


NAMES = st.sampled_from(["a", "b", "c"])
FAMILIES = st.lists(
    st.builds(
        Family,
        NAMES,
        st.just("words"),
        st.just("gauge"),
        st.lists(st.builds(Sample, NAMES, st.dictionaries(NAMES, st.text()), st.floats(allow_nan=False)), max_size=3),
    ),
    max_size=3,
    unique_by=lambda family: family.name,
)


@given(st.lists(FAMILIES, max_size=3))
def test_merging_loses_nothing_and_adds_the_worker(answers: list[list[Family]]) -> None:
    merged = merge(enumerate(answers))
    assert len({metric.name for metric in merged}) == len(merged)
    expected = sorted(
        repr((family.name, sample.name, sorted({**sample.labels, "worker": str(worker)}.items()), sample.value))
        for worker, answer in enumerate(answers)
        for family in answer
        for sample in family.samples
    )
    assert expected == sorted(
        repr((metric.name, sample.name, sorted(sample.labels.items()), sample.value))
        for metric in merged
        for sample in metric.samples
    )


def test_addresses_are_free_without_a_directory() -> None:
    boxes = mailboxes(3)
    addresses = {box.getsockname() for box in boxes}
    assert len(addresses) == 3
    assert all(address.startswith(b"\0") for address in addresses)
    assert all(box.family == socket.AF_UNIX for box in boxes)
    for box in boxes:
        box.close()
