"""Prometheus metrics of the driver."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

PREFIX: Final = "neuron_dra_plugin"

COMPONENTS: Final = (
    "publish",
    "sweep",
    "specs",
    "node",
    "labels",
    "events",
    "claim-status",
    "device-info",
    "catalogue",
)
"""The parts of the driver that work outside the kubelet's calls, and try again after an error."""

_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 45)
"""Seconds; the last is the kubelet's time-out of a call."""


class DeviceUse(NamedTuple):
    """A container that uses a device, or cores of it. The names of the fields are the labels.

    `cores`: physical cores on the device, `0-7` or `0,2`; empty if their number is not known. `pod` and `container` are
    empty while no container uses the claim.
    """

    device: str
    cores: str
    pod: str
    namespace: str
    container: str
    claim: str


class CoreUse(NamedTuple):
    """Use of one physical core, or of several; None: the kernel driver does not tell.

    `memory`: bytes that processes have. `busy`: seconds in which it executed; of several cores on average.
    """

    memory: int | None = None
    busy: float | None = None


class DeviceSeries(Collector):
    """The series of single devices. A scrape, in another thread, sees the values of one moment.

    Attributes:
        used: who uses what, and how much.
        power: of each device, as a part of the most that it may have.
    """

    def __init__(self) -> None:
        self.used: Mapping[DeviceUse, CoreUse] = {}
        self.healthy: Mapping[str, bool] = {}
        self.power: Mapping[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        info = GaugeMetricFamily(
            "neuron_dra_device_info",
            "1 for each device of a prepared claim and each container that uses it.",
            labels=DeviceUse._fields,
        )
        memory = GaugeMetricFamily(
            "neuron_dra_device_memory_used_bytes",
            "Device memory that processes have on the cores of a prepared claim, without that of the kernel driver.",
            labels=DeviceUse._fields,
        )
        busy = CounterMetricFamily(
            "neuron_dra_device_busy_seconds",
            "Time in which the cores of a prepared claim executed, on average; counted when a process ends.",
            labels=DeviceUse._fields,
        )
        for use, found in self.used.items():
            info.add_metric(use, 1)
            if found.memory is not None:
                memory.add_metric(use, found.memory)
            if found.busy is not None:
                busy.add_metric(use, found.busy)
        yield from (info, memory, busy)
        power = GaugeMetricFamily(
            "neuron_dra_device_power_ratio",
            "Power of the device, average of a minute, as a part of its largest.",
            labels=("device",),
        )
        for device, part in self.power.items():
            power.add_metric((device,), part)
        yield power
        healthy = GaugeMetricFamily("neuron_dra_device_healthy", "1 if the device is healthy.", labels=("device",))
        for device, value in self.healthy.items():
            healthy.add_metric((device,), value)
        yield healthy


class PluginMetrics:
    """All series and their registry."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self.device_series: Final = DeviceSeries()
        self.registry.register(self.device_series)
        self._claims = self._counter("claims", "Prepared and unprepared claims.", ("operation", "result"))
        self._seconds = Histogram(
            f"{PREFIX}_claim_duration_seconds",
            "Time per claim, including the API server.",
            ("operation",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.prepared_claims: Final = self._gauge("prepared_claims", "Currently prepared claims.")
        self.prepared_devices: Final = self._gauge("prepared_devices", "Devices of currently prepared claims.")
        self.kept_claims: Final = self._gauge(
            "kept_claims",
            "Prepared claims that no longer exist and are kept: a pod uses their devices (in-use), or may (unknown).",
            ("reason",),
        )
        self.held_devices: Final = self._gauge(
            "held_devices",
            "Devices that new claims do not get, because they are prepared for a claim that no longer exists.",
        )
        self.restored_specs: Final = self._counter(
            "restored_specs", "CDI specs of prepared claims that were lost or changed, and written again."
        )
        self.slices_published: Final = self._gauge("slices_published", "Published ResourceSlices of this node.")
        self.slice_writes: Final = self._counter("slice_writes", "Writes of ResourceSlices.", ("operation",))
        self.dropped_fields: Final = self._gauge(
            "slice_dropped_fields", "Fields of the published slices that the API server dropped."
        )
        self.devices: Final = self._gauge("devices", "Devices of the node, by health.", ("health",))
        self.device_plugin: Final = self._gauge(
            "device_plugin_active", "1 while the Node's allocatable shows a legacy Neuron resource."
        )
        self.other_driver: Final = self._gauge(
            "other_driver_active",
            "1 while another driver of this driver's name is on the node; then this one publishes nothing.",
        )
        self.ultraserver_publish: Final = self._gauge(
            "ultraserver_publish",
            "1 for what an UltraServer node publishes: devices, node or both. Other nodes have no such series.",
            ("offer",),
        )
        self.registered: Final = self._gauge(
            "registered", "1 while the kubelet knows this instance; else nothing is published."
        )
        self.clock_skew: Final = self._gauge(
            "clock_skew_seconds",
            "Seconds by which the API server's clock is ahead of this node's, by the Date of its answers.",
        )
        self.node_checks: Final = self._gauge(
            "node_check",
            "1 for the result of each check of the node: well, note, wrong or unknown.",
            ("check", "result"),
        )
        self.faulty_kubelet: Final = self._gauge(
            "faulty_kubelet", "1 if the node's kubelet has a known fault with ResourceClaims."
        )
        self.background_errors: Final = self._counter(
            "background_errors", "Errors outside the kubelet's calls, by component of the driver.", ("component",)
        )
        self._consecutive_errors: Final = self._gauge(
            "consecutive_errors",
            "Failed attempts of a component of the driver since its last successful one.",
            ("component",),
        )
        for component in COMPONENTS:
            self.background_errors.labels(component)
            self._consecutive_errors.labels(component)
        for reason in ("in-use", "unknown"):
            self.kept_claims.labels(reason)
        for operation in ("prepare", "unprepare"):
            for result in ("success", "error"):
                self._claims.labels(operation, result)

    def _counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", documentation, labels, registry=self.registry)

    def failed(self, component: str) -> None:
        """Count a failed attempt of one of `COMPONENTS`."""
        self.background_errors.labels(component).inc()
        self._consecutive_errors.labels(component).inc()

    def worked(self, component: str) -> None:
        """An attempt of one of `COMPONENTS` succeeded, or it has nothing left to do."""
        self._consecutive_errors.labels(component).set(0)

    @contextlib.contextmanager
    def measured(self, operation: str) -> Iterator[None]:
        """Count and time one claim; an exception counts as an error."""
        start = time.perf_counter()
        result = "error"
        try:
            yield
            result = "success"
        finally:
            self._claims.labels(operation, result).inc()
            self._seconds.labels(operation).observe(time.perf_counter() - start)
