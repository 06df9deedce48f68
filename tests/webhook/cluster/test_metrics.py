"""Metrics of caches, templates and Events."""

import math

import pytest
from prometheus_client import CollectorRegistry

from cluster.reflector import Projection, Reflector
from runtime.api_server import Collection, Resource
from runtime.api_transport import Connection
from runtime.watching import Effects
from tests.support.fake_api import FakeApi
from webhook.cluster.events import EventCounters
from webhook.cluster.kube import ClusterMetrics
from webhook.cluster.templates import TemplateCounters

PODS = Resource("", "v1", "pods")


class MetricsBench:
    def __init__(self, *, events: bool = True) -> None:
        self.seconds = 100.0
        server = Connection(lambda: pytest.fail("asked"), FakeApi())  # type: ignore[arg-type]
        effects = Effects(clock=lambda: self.seconds)
        self.cache: Reflector[str] = Reflector(
            server, Collection(PODS), Projection(lambda item: item["metadata"]["name"]), effects=effects
        )
        self.templates = TemplateCounters()
        self.events = EventCounters() if events else None
        self.registry = CollectorRegistry()
        self.registry.register(ClusterMetrics((self.cache,), self.templates, self.events))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"neuron_dra_{name}", labels or {"resource": "pods"})


async def test_a_cache_is_behind_until_it_has_synced_and_whenever_it_has_a_problem() -> None:
    bench = MetricsBench()
    assert bench.value("cache_behind") == 1
    bench.cache.synced.set()
    assert bench.value("cache_behind") == 0
    bench.cache._problem.text = "cannot watch pods"
    assert bench.value("cache_behind") == 1


async def test_a_cache_has_no_age_before_its_first_list() -> None:
    bench = MetricsBench()
    assert bench.cache.age == math.inf
    assert bench.value("cache_age_seconds") is None


async def test_counters_are_shown_under_their_names() -> None:
    bench = MetricsBench()
    bench.cache.counters.lists, bench.cache.counters.bookmarks = 2, 7
    bench.cache.observe("ADDED", {"metadata": {"name": "a"}})
    bench.templates.created, bench.templates.failed = 3, {"NEU301": 1}
    assert bench.events is not None
    bench.events.rate = 5
    assert [bench.value(f"cache_{name}_total") for name in ("lists", "bookmarks", "failures")] == [2, 7, 0]
    assert bench.value("cache_objects") == 1
    assert bench.value("templates_total", result="created") == 3
    assert bench.value("template_failures_total", code="NEU301") == 1
    assert bench.value("events_total", result="rate") == 5


async def test_event_counters_are_absent_if_events_are_off() -> None:
    assert MetricsBench(events=False).value("events_total", result="created") is None
