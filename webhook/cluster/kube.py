"""One cluster: the connection to its API server, the view of the cluster, the template store, and their metrics."""

import asyncio
import contextlib
import dataclasses
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.collections import Watches
from cluster.reflector import Reflector
from cluster.store import Store
from neuron.known_faults import oldest
from runtime.api_server import ApiServer, ApiServerError, ClusterUnavailableError, kubernetes_version
from runtime.api_transport import Connection, load_configuration
from runtime.retries import REQUEST_TIMEOUT
from runtime.watching import Counters, Timing
from webhook.cluster.events import EventCounters, EventRecorder
from webhook.cluster.templates import KubeTemplates, TemplateCounters
from webhook.reviews.reviewer import TemplateStore
from webhook.reviews.worker_threads import seconds_left

# No API tells the version of the scheduler. It is never newer than that of an API server, and it can be older for
# minutes during an upgrade: the API servers are upgraded first. So an older version counts for an hour after it was
# seen last.
PAUSE: Final = 300.0
"""Seconds between two questions."""
RETRY: Final = 15.0
"""Seconds until the next question while no API server has answered."""
KEPT: Final = 3600.0
"""Seconds for which a version counts after it was seen last."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class KubeWorld:
    """A cluster, while the context of `connect` is open.

    Attributes:
        caches: of `view`; metrics read their counters and problems.
        refusals: writes Events about refused conversions; None if Events are off.
    """

    connection: Connection
    view: Store
    templates: TemplateStore
    caches: tuple[Reflector[object], ...]
    template_counters: TemplateCounters = dataclasses.field(default_factory=TemplateCounters)
    refusals: EventRecorder | None = None

    def ready(self) -> tuple[bool, str]:
        """Whether every cache was filled once, and the present problems.

        A cache that falls behind later does not make a replica unready: its content stays right for nearly all pods,
        and if all replicas were unready, every Neuron pod would be denied (`failurePolicy: Fail`).
        """
        missing = [
            str(cache.resource)
            for cache in self.caches
            if not (cache.synced if cache.needed else cache.settled).is_set()
        ]
        problems = "; ".join(dict.fromkeys(cache.problem for cache in self.caches if cache.problem))
        if missing:
            return False, f"not seen yet: {', '.join(missing)}" + (f"; {problems}" if problems else "")
        return True, problems


@contextlib.asynccontextmanager
async def connect(
    kubeconfig: Path | None,
    *,
    sync_timeout: float = 30.0,
    create_budget: float = 3.5,
    timing: Timing | None = None,
    events: bool = False,
    nodes: bool = True,
) -> AsyncIterator[KubeWorld]:
    """Watch a cluster for as long as the context is open.

    Args:
        kubeconfig: file that names the cluster; None: the cluster in which this process runs.
        sync_timeout: seconds to wait until every cache was filled once, or is at least being filled.
        create_budget: time-out in seconds for the creation of a ResourceClaimTemplate; below that of the webhook.
        events: whether to write Events about refused conversions.
        nodes: whether to learn instance types from Nodes.

    Raises:
        ClusterUnavailableError: on entering: the cluster cannot be reached, refuses the credentials, or is too old.
    """
    async with contextlib.AsyncExitStack() as stack:
        connection = await Connection.open(lambda: load_configuration(kubeconfig))
        stack.push_async_callback(connection.close)
        cluster = Watches(connection, timing, nodes=nodes, seconds_left=seconds_left)
        templates = KubeTemplates(connection, cluster.templates, budget=create_budget)
        stack.push_async_callback(templates.close)
        version = ServerVersion(connection, cluster.store.set_kubernetes_version, asyncio.get_running_loop().time)
        tasks = [asyncio.create_task(cache.run(), name=f"watch {cache.resource}") for cache in cluster.caches]
        tasks.append(asyncio.create_task(version.run(), name="version of the API server"))
        recorder = EventRecorder(connection, socket.gethostname()) if events else None
        if recorder is not None:
            tasks.append(asyncio.create_task(recorder.run(), name="events"))
        stack.push_async_callback(_cancel, tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(sync_timeout):
                await asyncio.gather(*(cache.settled.wait() for cache in cluster.caches))
        # A long list that makes progress delays readiness, but not the start: tenants choose its length.
        needed = [cache for cache in cluster.caches if cache.needed and not cache.synced.is_set()]
        if unseen := [cache for cache in needed if cache.problem or not cache.read]:
            late = f"within {sync_timeout:g} s"
            reasons = dict.fromkeys(cache.problem or f"no list of {cache.resource} {late}" for cache in unseen)
            raise ClusterUnavailableError(f"the cluster at {connection.address} cannot be used: {'; '.join(reasons)}")
        # If the version is not known, claims are divided, which works with every version.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(version.asked.wait(), REQUEST_TIMEOUT)
        yield KubeWorld(connection, cluster.store, templates, cluster.caches, templates.counters, recorder)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- the version of the control plane ---------------------------------------------------------------------------------


class ServerVersion:
    """Asks the API server for its version again and again.

    Attributes:
        asked: set after the first question, with or without an answer.
    """

    def __init__(
        self,
        server: ApiServer,
        tell: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`tell` receives the version in force after each answer. `clock`: monotonic seconds."""
        self._server = server
        self._tell = tell
        self._clock = clock
        self._sleep = sleep
        self._seen: dict[str, float] = {}
        self.asked = asyncio.Event()

    async def run(self) -> None:
        """Read the version repeatedly until cancelled."""
        while True:
            await self.ask()
            await self._sleep(PAUSE if self._seen else RETRY)

    async def ask(self) -> None:
        """Read the version once. Without an answer, the known version stays."""
        try:
            # The start waits for the first answer, twice as long at most.
            version = await kubernetes_version(self._server, REQUEST_TIMEOUT / 2)
        except ApiServerError:
            version = ""
        if version:
            now = self._clock()
            self._seen[version] = now
            self._seen = {each: when for each, when in self._seen.items() if now - when <= KEPT}
            self._tell(oldest(self._seen))
        self.asked.set()


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
        yield from self._of_templates_and_events()

    def _gauge(self, name: str, documentation: str, read: Callable[[Reflector[object]], float]) -> Metric:
        family = GaugeMetricFamily(f"neuron_dra_cache_{name}", documentation, labels=("resource",))
        for cache in self._caches:
            value = read(cache)
            if math.isfinite(value):
                family.add_metric((str(cache.resource),), value)
        return family

    def _of_templates_and_events(self) -> Iterator[Metric]:
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
