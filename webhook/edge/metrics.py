"""Metrics of the webhook; `runtime/metrics_server.py` serves them to Prometheus.

The event loop counts in plain dictionaries and lists; a scrape converts them to Prometheus' types. The counters and
histograms of the client library would lock and loop in Python on every observation.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Gauge, GCCollector, Info, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from conversion.objects import wire
from runtime.metrics_server import Histogram
from webhook.edge.reviews import Rendered

DURATION_BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
"""Seconds. The API server waits at most 30 s; its own metrics cover longer waits."""

BODY_BOUNDS: Final = (1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 8388608.0)

KINDS: Final = frozenset(
    {
        *("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"),
        *("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "LeaderWorkerSet", "JobSet"),
        *("PyTorchJob", "MPIJob", "TFJob", "TrainJob", "RayCluster", "RayJob", "RayService"),
    }
)
OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
OTHER: Final = "other"
"""Label of all other kinds and operations: callers choose these values, so the number of series must be bounded."""

PARTS: Final = ("certificate", "ca-bundle", "leases", "policy-rules", "client-ca", "device-class")
"""Labels of `neuron_dra_problem`; a run without such a part has no problem of it."""

SHED_REASONS: Final = ("busy", "late", "memory")

_REVIEW_LABELS: Final = ("path", "operation", "kind", "outcome", "reason", "dry_run")
_Series = tuple[str, str, str, str, bool]
_CONVERSION_LABELS: Final = ("resource", "outcome", "reason")


class PathMetrics:
    """Counts of one path. Written by the event loop only; read by scrapes."""

    __slots__ = ("body_bytes", "conversions", "duration", "errors", "inflight", "reviews", "shed")

    def __init__(self) -> None:
        self.inflight = 0
        self.duration = Histogram(DURATION_BOUNDS)
        self.body_bytes = Histogram(BODY_BOUNDS)
        self.reviews: dict[_Series, int] = {}
        self.errors: dict[int, int] = {}
        self.conversions: dict[tuple[str, str, str], int] = {}
        self.shed = dict.fromkeys(SHED_REASONS, 0)

    def reviewed(self, request: wire.AdmissionRequest, rendered: Rendered, seconds: float, size: int) -> None:
        """Count an answered review."""
        kind = request.kind.kind
        operation = request.operation
        series = (
            operation if operation in OPERATIONS else OTHER,
            kind if kind in KINDS else OTHER,
            rendered.outcome,
            rendered.reason,
            request.dryRun,
        )
        self.reviews[series] = self.reviews.get(series, 0) + 1
        self.duration.observe(seconds)
        self.body_bytes.observe(size)
        if rendered.resource and not request.dryRun:
            conversion = (rendered.resource, rendered.outcome, rendered.reason)
            self.conversions[conversion] = self.conversions.get(conversion, 0) + 1

    def failed(self, code: int) -> None:
        """Count a request that got an HTTP error instead of a review."""
        self.errors[code] = self.errors.get(code, 0) + 1


class Metrics(Collector):
    """All metrics of this process, in one registry."""

    def __init__(self, version: str) -> None:
        self._paths: dict[str, PathMetrics] = {}
        self._counters: list[tuple[str, str, Callable[[], float]]] = []
        self._histograms: list[tuple[str, str, Histogram]] = []
        self._problems: dict[str, Callable[[], object]] = dict.fromkeys(PARTS, str)
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("neuron_dra_build", "Version of the running webhook.", registry=self.registry).info({"version": version})
        self.registry.register(self)

    def path(self, path: str) -> PathMetrics:
        """The counts of one path; created at first use."""
        return self._paths.setdefault(path, PathMetrics())

    def gauge(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Export the result of `read`, called at each scrape, as a gauge."""
        Gauge(name, documentation, registry=self.registry).set_function(read)

    def problem(self, part: str, read: Callable[[], object]) -> None:
        """Export whether one of `PARTS` has a problem; `read` returns it, or something that is false without one."""
        self._problems[part] = read

    def counter(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Export the result of `read`, called at each scrape, as a counter; `name` is without `_total`."""
        self._counters.append((name, documentation, read))

    def histogram(self, name: str, documentation: str, histogram: Histogram) -> None:
        """Export a histogram that another object fills."""
        self._histograms.append((name, documentation, histogram))

    def collect(self) -> Iterator[Metric]:
        """All metric families. Runs in the thread of the scrape, so it copies dictionaries before iterating."""
        reviews = CounterMetricFamily("neuron_dra_reviews", "Answered reviews.", labels=_REVIEW_LABELS)
        errors = CounterMetricFamily(
            "neuron_dra_review_errors",
            "Requests answered with an HTTP error (499: the client closed the connection first).",
            labels=("path", "code"),
        )
        conversions = CounterMetricFamily(
            "neuron_dra_conversions",
            "Created pods that requested a legacy Neuron resource, by outcome; without dry runs.",
            labels=_CONVERSION_LABELS,
        )
        shed = CounterMetricFamily(
            "neuron_dra_shed_reviews",
            "Reviews refused with HTTP 503: too many at once (busy), waited longer than the caller's "
            "time-out (late), too many large bodies (memory).",
            labels=("path", "reason"),
        )
        inflight = GaugeMetricFamily("neuron_dra_inflight_reviews", "Reviews in progress.", labels=("path",))
        duration = HistogramMetricFamily(
            "neuron_dra_review_duration_seconds", "Time from the request's head to its answer.", labels=("path",)
        )
        body_bytes = HistogramMetricFamily("neuron_dra_review_body_bytes", "Sizes of reviews.", labels=("path",))
        for path, counts in self._paths.copy().items():
            for (operation, kind, outcome, reason, dry_run), count in counts.reviews.copy().items():
                labels = (path, operation, kind, outcome, reason, "true" if dry_run else "false")
                reviews.add_metric(labels, count)
            for conversion, count in counts.conversions.copy().items():
                conversions.add_metric(conversion, count)
            for code, count in counts.errors.copy().items():
                errors.add_metric((path, str(code)), count)
            for why, count in counts.shed.copy().items():
                shed.add_metric((path, why), count)
            inflight.add_metric((path,), counts.inflight)
            for family, histogram in ((duration, counts.duration), (body_bytes, counts.body_bytes)):
                family.add_metric((path,), histogram.buckets(), histogram.total)
        yield from (reviews, conversions, errors, shed, inflight, duration, body_bytes)
        problems = GaugeMetricFamily(
            "neuron_dra_problem",
            "1 while a part of the webhook has a problem, which its log and /readyz?verbose describe; else 0.",
            labels=("part",),
        )
        for part, has in self._problems.items():
            problems.add_metric((part,), 1 if has() else 0)
        yield problems
        for name, documentation, read in self._counters:
            yield CounterMetricFamily(name, documentation, read())
        for name, documentation, histogram in self._histograms:
            alone = HistogramMetricFamily(name, documentation)
            alone.add_metric((), histogram.buckets(), histogram.total)
            yield alone
