"""Compares the entries of the webhook configurations with those that the release renders, for a metric.

An altered or deleted configuration lets pods pass unconverted, and no review tells it: none arrives.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.kinds.rendered_entries import MUTATING, PATHS, VALIDATING, RenderedEntriesError, differences, read_rendered
from cluster.resources import CONFIG_MAPS, MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS
from runtime.api_server import NOT_FOUND, ApiServer, ApiServerError, Resource, StatusError, explain, loaded_object
from runtime.retries import REQUEST_TIMEOUT, RetryProblem

log = logging.getLogger(__name__)

_RESOURCES: Final = {MUTATING: MUTATING_CONFIGURATIONS, VALIDATING: VALIDATING_CONFIGURATIONS}

_PERIOD: Final = 30.0
"""Seconds between two comparisons."""


class _UnreadError(Exception):
    """An object cannot be read; the message says why, and what to do."""


class EntryChecks(Collector):
    """Compares every 30 seconds, and shows the last result to scrapes.

    They get its age, and not its time: this node's clock may differ from that of Prometheus.
    """

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        config_map: str,
        name: str,
        service: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `run` compares.

        Args:
            namespace: of the webhook.
            config_map: the rendered entries.
            name: of both configurations.
            service: in front of the webhook.
            clock: monotonic seconds.
        """
        self._server = server
        self._namespace = namespace
        self._config_map = config_map
        self._name = name
        self._service = service
        self._clock = clock
        self._checked = clock()
        self._well: Mapping[tuple[str, str], bool] = {}
        self._problem = RetryProblem(log)

    def check(self) -> tuple[bool, str]:
        """For `/readyz`: always ready, because reviews that arrive are answered; the detail has the problems."""
        return True, self._problem.text

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Compare until it is cancelled."""
        while True:
            await self.compare()
            await sleep(_PERIOD)

    async def compare(self) -> None:
        """Compare once. If something cannot be read, the last result stays, with its time."""
        try:
            rendered = read_rendered(await self._get(CONFIG_MAPS, self._config_map, self._namespace))
            found = {kind: await self._entries(resource) for kind, resource in _RESOURCES.items()}
        except (_UnreadError, RenderedEntriesError) as error:
            self._problem.set(f"the webhook configurations are not compared with the release: {error}")
            return
        problems: list[str] = []
        well: dict[tuple[str, str], bool] = {}
        for kind, wanted in rendered.items():
            for entry in sorted({*wanted, *found[kind]}):
                wrong = list(self._wrong(kind, found[kind].get(entry), wanted.get(entry)))
                problems += [f"{kind} {self._name}, entry {entry}: {text}" for text in wrong]
                well[kind, entry] = not wrong
        self._well, self._checked = well, self._clock()
        self._problem.set("; ".join(problems))

    def _wrong(self, kind: str, entry: Mapping[str, Any] | None, rendered: Mapping[str, Any] | None) -> Iterator[str]:
        if entry is None or rendered is None:
            yield "it does not exist" if entry is None else "the release has no such entry"
            return
        for each in differences(entry, rendered):
            yield f"{each.field} is not as the release renders it"
        client = entry.get("clientConfig") or {}
        service, path = client.get("service") or {}, PATHS[kind]
        called = client.get("url") or "Service {namespace}/{name}{path}".format(**{"path": ""} | service)
        if called != (wanted := f"Service {self._namespace}/{self._service}{path}"):
            yield f"it calls {called} instead of {wanted}"
        if not client.get("caBundle"):
            yield "it has no caBundle"

    async def _entries(self, resource: Resource) -> dict[str, Mapping[str, Any]]:
        found = await self._get(resource, self._name)
        return {str(entry["name"]): entry for entry in found.get("webhooks") or ()}

    async def _get(self, resource: Resource, name: str, namespace: str = "") -> dict[str, Any]:
        """An object, empty if it is a configuration that does not exist."""
        try:
            path = resource.path(namespace=namespace, name=name)
            return loaded_object(await self._server.request("GET", path, timeout=REQUEST_TIMEOUT))
        except ApiServerError as error:
            if isinstance(error, StatusError) and error.code == NOT_FOUND and not namespace:
                return {}
            raise _UnreadError(explain(error, "get", resource, namespace, name)) from error

    def collect(self) -> Iterator[Metric]:
        """See `Collector`. Runs in the scraping thread."""
        well = GaugeMetricFamily(
            "neuron_dra_webhook_configuration_ok",
            "1 if an entry of a webhook configuration is as the release renders it, calls this webhook and has a "
            "caBundle; else 0.",
            labels=("configuration", "entry"),
        )
        for labels, value in self._well.items():
            well.add_metric(labels, value)
        yield well
        checked = GaugeMetricFamily(
            "neuron_dra_webhook_configuration_check_age_seconds",
            "Seconds since the webhook configurations were last compared with the release; before the first time, "
            "since the start.",
        )
        checked.add_metric((), self._clock() - self._checked)
        yield checked
