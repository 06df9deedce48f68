"""Composition root: creates the parts of one run from the settings.

`assemble` creates them in the order in which they can fail, and closes them in reverse order. `serve` is the whole run.
"""

import asyncio
import contextlib
import ctypes
import dataclasses
import datetime as dt
import functools
import importlib
import importlib.metadata
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from certs import material
from cluster.store import Store
from runtime import console, listening, tracing
from runtime.api_server import TimedApiServer
from runtime.logs import resolve
from runtime.metrics_server import METRICS_PATH, serving_metrics
from runtime.settings import as_written
from runtime.startup import StartupError
from webhook.edge import logs, server
from webhook.edge.bodies import BodyReader
from webhook.edge.callers import Callers, ClientAuthority
from webhook.edge.endpoints import Check, RequestLimits, Telemetry, build
from webhook.edge.logs import RefusalLog
from webhook.edge.metrics import Metrics
from webhook.edge.shedding import Lifecycle, LoopLag
from webhook.reviews import chain
from webhook.reviews.reviewer import Refusals, TemplateStore
from webhook.reviews.worker_threads import ThreadLane
from webhook.server.certificates import Certificates, Work, keeping, own_namespace, report, running
from webhook.server.settings import WebhookSettings
from webhook.server.standalone import StandaloneBackend
from webhook.serving_certificate.live import CertificateFilesError, CertificateFolder, LiveCertificate, ensure

if TYPE_CHECKING:
    from webhook.reviews.chain import PolicyParts

log = logging.getLogger(__name__)

DISTRIBUTION: Final = "neuron-dra"


class Backend(Protocol):
    """The source of cluster facts and the store of templates: a cluster, or `StandaloneBackend`."""

    @property
    def view(self) -> Store:
        """Cached facts of the cluster."""

    @property
    def templates(self) -> TemplateStore:
        """Creates ResourceClaimTemplates."""

    @property
    def refusals(self) -> Refusals | None:
        """Receives denied conversions, to write Events; None: no Events."""

    def ready(self) -> tuple[bool, str]:
        """Readiness check: whether all caches are filled, and a detail."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunningWebhook:
    """The parts of one run, ready to serve.

    Attributes:
        metrics_url: of the metrics; empty if they are not served.
        ca: file of the CA to trust, if the certificate comes from files.
    """

    url: str
    metrics_url: str
    ca: Path
    backend: Backend
    _server: server.Server
    _listener: socket.socket

    async def run(self) -> None:
        """Serve until the end of the drain that `stop` begins."""
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Drain and end; the second call ends at once."""
        self._server.stop()


@contextlib.asynccontextmanager
async def assemble(settings: WebhookSettings) -> AsyncIterator[RunningWebhook]:
    """The parts of one run, open until the context ends.

    Raises:
        StartupError: on entering: a part cannot be created.
    """
    log.info("configuration", extra={"settings": as_written(settings)})
    if settings.follow_policies and settings.policies is None:
        raise StartupError("--follow-policies needs policies to follow. Set --policies, or drop --follow-policies.")
    lifecycle = Lifecycle()
    checks: dict[str, Check] = {}
    metrics = Metrics(version())
    lag = LoopLag()
    async with contextlib.AsyncExitStack() as stack:
        end_traces = tracing.start("neuron-dra-webhook", version())
        if end_traces is not None:
            stack.push_async_callback(asyncio.to_thread, end_traces)
        certificates = _certificates(settings)
        authority = _client_authority(settings, certificates.live)
        listener = stack.enter_context(listening.listen(settings.host, settings.port, "--host", "--port"))
        metrics_url = ""
        if settings.metrics_port:
            flags = "--metrics-host", "--metrics-port"
            metrics_listener = listening.listen(settings.metrics_host, settings.metrics_port, *flags)
            stack.enter_context(serving_metrics(metrics.registry, metrics_listener))
            metrics_url = listening.url(metrics_listener, "http", METRICS_PATH)
            log.info("serving metrics", extra={"url": metrics_url})
        backend, api_server = await _backend(settings, metrics, stack)
        await stack.enter_async_context(keeping(settings, certificates, api_server))
        decisions = logs.DecisionLog(
            console.error_bytes(), resolve(settings.log_format), enabled=logging.getLogger().isEnabledFor(logging.INFO)
        )
        stack.callback(decisions.flush)
        metrics.counter(
            "neuron_dra_decision_lines_lost", "Decision log lines that could not be written.", lambda: decisions.lost
        )
        metrics.counter(
            "neuron_dra_decision_lines_left_out",
            "Decision log lines that were left out because one client caused too many.",
            lambda: decisions.shares.left_out,
        )
        certificates.show(metrics)
        lane = ThreadLane()
        stack.callback(lane.close)
        more_checks: dict[str, Check] = {}
        parts: PolicyParts | None = None
        if settings.policies is not None:
            from webhook.server import policies

            parts = await policies.opened(settings.policies, settings, api_server, metrics, more_checks, stack)
            if settings.follow_policies and api_server is not None:
                more_checks["policy rules"] = await policies.follow(
                    settings, parts.store, api_server, certificates, metrics, stack
                )
        if settings.rendered_config_map and api_server is not None:
            more_checks["webhook configurations"] = await _comparing(settings, api_server, metrics, stack)
        checks |= {
            "tls": certificates.check,
            "caches": backend.ready,
            "serving": lifecycle.check_serving,
            "shutdown": lifecycle.check_shutdown,
            **more_checks,
        }
        if authority is not None:
            metrics.problem("client-ca", lambda: authority.problem)
        if certificates.leases is not None:
            certificates.leases.share(backend.view)
        store = None if parts is None else parts.store
        certificates.describe = lambda: report(
            version(), settings.mode.value, checks, store, backend.view.static_types()
        )
        metrics.gauge("neuron_dra_ready", "1 if /readyz passes.", lambda: all(check()[0] for check in checks.values()))
        refusals = RefusalLog()
        options = settings.conversion()
        application = build(
            chain.reviewers(options, backend.view, backend.templates, lane, backend.refusals, parts),
            checks,
            lifecycle,
            RequestLimits(
                BodyReader(settings.max_body_bytes, settings.body_timeout),
                None if authority is None else Callers(settings.client_name),
                settings.max_inflight,
                lag,
            ),
            Telemetry(metrics, decisions, refusals),
        )
        running = server.Server(
            application,
            certificates.live.context,
            lifecycle,
            server.ServerLimits(
                head_timeout=settings.body_timeout,
                drain_delay=settings.drain_delay,
                drain_timeout=settings.drain_timeout,
                max_connections=settings.max_connections,
            ),
            authority=authority,
            lag=lag,
            refusals=refusals,
        )
        _watch_edge(metrics, running, lag)
        yield RunningWebhook(
            listening.url(listener, "https"), metrics_url, settings.tls_dir / material.CA, backend, running, listener
        )


async def serve(settings: WebhookSettings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        StartupError: a part cannot be created.
    """
    give_back_large_blocks()
    service: RunningWebhook | None = None
    run = asyncio.current_task()

    def stop() -> None:
        if service is not None:
            service.stop()
        elif run is not None:
            log.info("stopped while starting")
            run.cancel()

    with listening.on_signals(stop):
        try:
            async with contextlib.AsyncExitStack() as stack:
                await running(stack, upkeep())
                service = await stack.enter_async_context(assemble(settings))
                await service.run()
        except asyncio.CancelledError:
            if service is not None:
                raise
    log.info("stopped")


def version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _certificates(settings: WebhookSettings) -> Certificates:
    """The certificate: loaded now if it is in files, later if it is in a Secret."""
    certificates = Certificates(LiveCertificate(server.bare_context(settings.tls_min_version)))
    if settings.tls_secret:
        return certificates

    def now() -> dt.datetime:
        return certificates.now()  # `keeping` replaces it by the API server's time.

    reason = ""
    try:
        if settings.standalone:
            hosts = [*material.LOCAL_HOSTS, *([settings.host] if settings.host else [])]
            reason = ensure(settings.tls_dir, hosts, now=dt.datetime.now(dt.UTC))
        certificates.folder = CertificateFolder(settings.tls_dir, certificates.live, now)
    except CertificateFilesError as error:
        cure = "Choose another directory with --tls-dir."
        if not settings.standalone:
            cure = "Mount the serving certificate's Secret there, set --tls-dir to where it is, or try --standalone."
        raise StartupError(f"{error} {cure}") from error
    except ValueError as error:
        raise StartupError(f"No certificate can be made for --host: {error}") from error
    if reason:
        log.info("certificates made", extra={"directory": str(settings.tls_dir), "because": reason})
    return certificates


def _client_authority(settings: WebhookSettings, live: LiveCertificate) -> ClientAuthority | None:
    def fresh() -> ssl.SSLContext:
        live.move_to(server.bare_context(settings.tls_min_version))
        return live.context

    if settings.client_ca is not None:
        return ClientAuthority(settings.client_ca, live.context, fresh)
    if settings.client_name:
        raise StartupError(
            "--client-name needs --client-ca: only names in a verified certificate count. Set --client-ca to the file "
            "of the CA, or remove --client-name."
        )
    return None


def _watch_edge(metrics: Metrics, running: server.Server, lag: LoopLag) -> None:
    acceptor = running.acceptor
    metrics.gauge("neuron_dra_open_connections", "Open connections, including handshakes.", lambda: acceptor.open)
    metrics.counter(
        "neuron_dra_refused_connections", "Connections closed because of --max-connections.", lambda: acceptor.refused
    )
    metrics.counter("neuron_dra_failed_handshakes", "Failed TLS handshakes.", lambda: acceptor.failed)
    metrics.counter(
        "neuron_dra_refused_requests",
        "Requests refused before an endpoint: not HTTP, or a head above its bounds.",
        lambda: running.refused,
    )
    metrics.histogram(
        "neuron_dra_event_loop_lag_seconds", "Delay of a timer that is due ten times a second.", lag.delays
    )


async def _comparing(
    settings: WebhookSettings, api_server: TimedApiServer, metrics: Metrics, stack: contextlib.AsyncExitStack
) -> Check:
    from webhook.cluster.entry_checks import EntryChecks

    checks = EntryChecks(
        api_server,
        own_namespace(settings),
        settings.rendered_config_map,
        settings.webhook_configuration,
        settings.service,
    )
    metrics.registry.register(checks)
    await running(stack, {"comparison of webhook configurations": checks.run})
    return checks.check


async def _backend(
    settings: WebhookSettings, metrics: Metrics, stack: contextlib.AsyncExitStack
) -> tuple[Backend, TimedApiServer | None]:
    """The backend, and the API server; None: standalone."""
    if settings.standalone:
        return StandaloneBackend(), None
    # Imported only with a cluster: the client takes 70 MiB.
    from runtime.api_server import ClusterUnavailableError
    from webhook.cluster import kube
    from webhook.cluster.kube import ClusterMetrics

    connecting = kube.connect(
        settings.kubeconfig, sync_timeout=settings.sync_timeout, events=settings.events, nodes=settings.watch_nodes
    )
    try:
        backend = await stack.enter_async_context(connecting)
    except ClusterUnavailableError as error:
        raise StartupError(str(error)) from error
    metrics.gauge(
        "neuron_dra_api_server_answer_age_seconds",
        "Seconds since the API server's last answer, also a refusal; a running replica asks every ten seconds.",
        lambda: backend.connection.silence,
    )

    def without_class() -> bool:
        known = backend.view.class_names()
        return known is not None and settings.device_class not in known

    metrics.problem("device-class", without_class)
    events = backend.refusals.counters if backend.refusals else None
    metrics.registry.register(ClusterMetrics(backend.caches, backend.template_counters, events))
    return backend, backend.connection


# --- freed memory goes back to the kernel -----------------------------------------------------------------------
#
# Large bodies: glibc raises its mmap threshold when a large block is freed, up to 32 MiB. Later blocks come from the
# heap, and small allocations above them prevent their release: a few reviews of 8 MiB left 100 MiB in use. With a fixed
# threshold, each large block returns to the kernel when it is freed (mallopt(3)). Small blocks: those of closed TLS
# connections stay in the heap below others that are in use. malloc_trim(3) returns the whole pages among them.

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BLOCK: Final = 1024 * 1024
"""Bytes; mmap takes over from here. It must be above the buffers of small reviews: uvloop reads TLS into blocks of
256 KiB, and a system call and page faults for each of them cost a quarter of the throughput. Blocks below are in the
heap, whose free pages `trimming` returns."""
_ARENAS: Final = 2
"""For the event loop and the lane; each arena keeps its own freed memory."""
_EVERY: Final = 10.0
"""Seconds between two trims. One takes 1 to 4 ms for a heap of 24 MiB, and 50 ms for one of 200 MiB."""


def _function(name: str) -> Callable[..., object] | None:
    """A function of the C library; None if it has none of this name, as musl."""
    try:
        found: Callable[..., object] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found


def give_back_large_blocks() -> bool:
    """Set fixed thresholds in the C library's allocator; False if it has no mallopt."""
    mallopt = _function("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)) and bool(mallopt(_M_ARENA_MAX, _ARENAS))


def trimmer() -> Callable[[], object] | None:
    """Returns free pages of the heap to the kernel; None if the C library has no malloc_trim."""
    malloc_trim = _function("malloc_trim")
    return None if malloc_trim is None else functools.partial(malloc_trim, 0)


async def trimming(trim: Callable[[], object], seconds: float = _EVERY) -> None:
    """Call `trim` at an interval, until cancelled."""
    while True:
        trim()
        await asyncio.sleep(seconds)


def upkeep() -> Work:
    """What to run beside the server; nothing if the C library has no malloc_trim."""
    trim = trimmer()
    return {} if trim is None else {"memory": functools.partial(trimming, trim)}
