"""Metrics of watch caches, templates and Events. They are collected when they are scraped."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.from_watches.reflector import Reflector
from runtime.watching import Counters
from webhook.cluster.events import EventCounters
from webhook.cluster.templates import TemplateCounters

_COUNTED: Final = {
    "lists": "Started lists of a collection.",
    "watches": "Started watches of a collection.",
    "events": "Watch events received.",
    "bookmarks": "Watch bookmarks received; the API server sends about one a minute.",
    "expired": "Answers 410 (resource version too old), after which the list starts again.",
    "failures": "Lists and watches that failed with another error.",
    "unreadable": "Objects that could not be read (too deep, too long, not JSON for our parsers). The cache leaves "
    "them out; an unreadable ResourceClaimTemplate counts as existing, with unknown content. The log "
    "names each once.",
}
"""Metrics by field of `Counters`."""


class ClusterMetrics(Collector):
    """Collects the counters of caches, templates and Events. Runs in the scraping thread."""

    def __init__(
        self, caches: Sequence[Reflector[object]], templates: TemplateCounters, events: EventCounters | None
    ) -> None:
        self._caches = caches
        self._templates = templates
        self._events = events

    def collect(self) -> Iterator[Metric]:
        for field in dataclasses.fields(Counters):
            family = CounterMetricFamily(f"neuron_dra_cache_{field.name}", _COUNTED[field.name], labels=("resource",))
            for cache in self._caches:
                family.add_metric((str(cache.resource),), getattr(cache.counters, field.name))
            yield family
        yield self._gauge("objects", "Cached objects.", len)
        yield self._gauge(
            "behind",
            "1 if a cache may be stale: the API server cannot be listed or watched; the log has the reason.",
            lambda cache: 0 if cache.synced.is_set() and not cache.problem else 1,
        )
        yield self._gauge(
            "age_seconds",
            "Seconds since the last list, event or bookmark; up to about 60 between two bookmarks. Missing "
            "before the first list.",
            lambda cache: cache.age,
        )
        yield from self._made()

    def _gauge(self, name: str, documentation: str, read: Callable[[Reflector[object]], float]) -> Metric:
        family = GaugeMetricFamily(f"neuron_dra_cache_{name}", documentation, labels=("resource",))
        for cache in self._caches:
            value = read(cache)
            if math.isfinite(value):
                family.add_metric((str(cache.resource),), value)
        return family

    def _made(self) -> Iterator[Metric]:
        counters = self._templates
        templates = CounterMetricFamily(
            "neuron_dra_templates",
            "ResourceClaimTemplates missing in the cache: created, or found to exist at creation.",
            labels=("result",),
        )
        templates.add_metric(("created",), counters.created)
        templates.add_metric(("found",), counters.found)
        yield templates
        failed = CounterMetricFamily(
            "neuron_dra_template_failures",
            "ResourceClaimTemplates that could not be created or read, by error code (errors.md).",
            labels=("code",),
        )
        for code, count in counters.failed.copy().items():
            failed.add_metric((code,), count)
        yield failed
        if self._events is not None:
            events = CounterMetricFamily(
                "neuron_dra_events",
                "Events about refused conversions: written (created, patched), and not written (full, rate, failed).",
                labels=("result",),
            )
            for event_field in dataclasses.fields(self._events):
                events.add_metric((event_field.name,), getattr(self._events, event_field.name))
            yield events
