"""What is counted of the cluster: watch caches, templates and Events, shaped when somebody reads."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from webhook.cluster.events import EventCounters
from webhook.cluster.object_reader import Counters
from webhook.cluster.reflector import Reflector
from webhook.cluster.templates import TemplateCounters

_COUNTED: Final = {
    "lists": "Lists of a collection that were begun.",
    "watches": "Watches of a collection that were begun.",
    "events": "Changes that watches showed.",
    "bookmarks": "Bookmarks on watches: the API server's sign of life, about one a minute.",
    "expired": "Answers 410: the history behind a watch or list was gone, and it started over.",
    "failures": "Lists and watches that failed otherwise.",
    "unreadable": "Objects that could not be read and were left out.",
}
"""By field of `Counters`."""


class ClusterMetrics(Collector):
    """Shows what caches, templates and Events count themselves. Read by the scraping thread."""

    def __init__(
        self, caches: Sequence[Reflector[Any]], templates: TemplateCounters, events: EventCounters | None
    ) -> None:
        self._caches = caches
        self._templates = templates
        self._events = events

    def collect(self) -> Iterator[Metric]:
        """All families, as of now."""
        for field in dataclasses.fields(Counters):
            family = CounterMetricFamily(f"neuron_dra_cache_{field.name}", _COUNTED[field.name], labels=("resource",))
            for cache in self._caches:
                family.add_metric((str(cache.resource),), getattr(cache.counters, field.name))
            yield family
        yield self._gauge("objects", "Objects that are kept.", len)
        yield self._gauge(
            "behind",
            "1 where a cache may be behind: the API server cannot be listed or watched; the log says why.",
            lambda cache: 0 if cache.synced.is_set() and not cache.problem else 1,
        )
        yield self._gauge(
            "age_seconds",
            "Seconds since the API server last said what there is; grows to about 60 between two bookmarks. "
            "Left out before the first list.",
            lambda cache: cache.age,
        )
        yield from self._made()

    def _gauge(self, name: str, documentation: str, read: Callable[[Reflector[Any]], float]) -> Metric:
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
            "ResourceClaimTemplates that the cache did not show: created, or found when they were created.",
            labels=("result",),
        )
        templates.add_metric(("created",), counters.created)
        templates.add_metric(("found",), counters.found)
        yield templates
        failed = CounterMetricFamily(
            "neuron_dra_template_failures",
            "ResourceClaimTemplates that could not be had, by the code of the refusal (docs/errors.md).",
            labels=("code",),
        )
        for code, count in counters.failed.copy().items():
            failed.add_metric((code,), count)
        yield failed
        if self._events is not None:
            events = CounterMetricFamily(
                "neuron_dra_events",
                "Events about refused conversions: written (created, patched), and left out (full, rate, failed).",
                labels=("result",),
            )
            for event_field in dataclasses.fields(self._events):
                events.add_metric((event_field.name,), getattr(self._events, event_field.name))
            yield events
