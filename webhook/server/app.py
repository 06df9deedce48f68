"""Composition root: puts the parts together for one run.

`assemble` makes the parts out of settings, in the order in which they can fail, and takes them down in reverse.
`serve` is the whole run.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import importlib
import importlib.metadata
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from certs import files, issue
from neuron.instances import Catalogue
from runtime.logs import resolve
from runtime.metrics_server import METRICS_PATH, MetricsServer
from runtime.startup import StartupError
from webhook.cluster.api import TimedApiServer
from webhook.decisions.ports import Refusals, TemplateStore, WorldView
from webhook.edge import logs, server
from webhook.edge.bodies import BodyReader
from webhook.edge.callers import Callers, ClientAuthority
from webhook.edge.endpoints import RequestLimits, Telemetry
from webhook.edge.health import Check, Lifecycle
from webhook.edge.metrics import Metrics
from webhook.edge.refusal_log import RefusalLog
from webhook.edge.shedding import LoopLag
from webhook.reviews.lane import Lane, ThreadLane
from webhook.reviews.mutate import Mutator
from webhook.reviews.refusals import ReportingReviewer
from webhook.reviews.reviewer import Reviewer
from webhook.reviews.validate import Validator
from webhook.server.application import build
from webhook.server.certificates import Certificates, keeping
from webhook.server.memory import give_back_large_blocks
from webhook.server.replica_report import Policies, report
from webhook.server.settings import Settings
from webhook.server.standalone import StandaloneBackend
from webhook.serving_certificate.folder import CertificateFolder
from webhook.serving_certificate.live import LiveCertificate

log = logging.getLogger(__name__)

DISTRIBUTION: Final = "neuron-dra"


class Backend(Protocol):
    """What reviews are decided about, for as long as the server runs."""

    @property
    def view(self) -> WorldView:
        """What is known of the cluster."""

    @property
    def templates(self) -> TemplateStore:
        """Where ResourceClaimTemplates are made."""

    @property
    def refusals(self) -> Refusals | None:
        """Who hears of refused conversions."""

    def ready(self) -> tuple[bool, str]:
        """Whether enough is known to answer, and a word on what is not."""


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """Everything that one run is made of, ready to go.

    Attributes:
        url: where reviews are served.
        metrics_url: where metrics are served; empty where they are not.
        ca: file of the CA to trust, where the certificate comes from files.
        backend: what reviews are decided about.
    """

    url: str
    metrics_url: str
    ca: Path
    backend: Backend
    _server: server.Server
    _listener: socket.socket

    async def run(self) -> None:
        """Serve until `stop` and the drain that follows."""
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Drain and end; called again, end at once."""
        self._server.stop()


@contextlib.asynccontextmanager
async def assemble(settings: Settings) -> AsyncIterator[Service]:
    """The parts of one run, alive as long as the context.

    Raises:
        StartupError: on entering: one of them cannot be had.
    """
    log.info("configuration", extra={"settings": settings.as_written()})
    lifecycle = Lifecycle()
    checks: dict[str, Check] = {}
    metrics = Metrics(version())
    lag = LoopLag()
    async with contextlib.AsyncExitStack() as stack:
        certificates = _certificates(settings)
        authority = _client_authority(settings, certificates.live)
        listener = stack.enter_context(listen(settings))
        metrics_url = _serve_metrics(settings, metrics, stack)
        backend, api_server = await _backend(settings, metrics, stack)
        await stack.enter_async_context(keeping(settings, certificates, api_server))
        decisions = logs.DecisionLog(
            sys.stderr.buffer, resolve(settings.log_format), enabled=logging.getLogger().isEnabledFor(logging.INFO)
        )
        stack.callback(decisions.flush)
        _watch(metrics, decisions)
        certificates.show(metrics)
        lane = ThreadLane()
        stack.callback(lane.close)
        reviewers, more_checks, policies = await _reviewers(settings, backend, api_server, metrics, lane, stack)
        if backend.refusals is not None:
            reviewers = {**reviewers, "/mutate": ReportingReviewer(reviewers["/mutate"], backend.refusals)}
        checks |= {
            "tls": certificates.check,
            "caches": backend.ready,
            "serving": lifecycle.check_serving,
            "shutdown": lifecycle.check_shutdown,
            **more_checks,
        }
        certificates.describe = lambda: report(version(), settings.mode.value, checks, policies)
        metrics.gauge(
            "neuron_dra_ready", "1 where /readyz passes.", lambda: all(check()[0] for check in checks.values())
        )
        refusals = RefusalLog()
        application = build(
            reviewers,
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
        yield Service(
            server.url(listener, "https"), metrics_url, settings.tls_dir / files.CA_FILE, backend, running, listener
        )


async def serve(settings: Settings) -> None:
    """One run, until SIGTERM or SIGINT.

    Raises:
        StartupError: something that it needs cannot be had.
    """
    give_back_large_blocks()
    service: Service | None = None
    run = asyncio.current_task()

    def stop() -> None:
        if service is not None:
            service.stop()
        elif run is not None:
            log.info("stopped while starting")
            run.cancel()

    with server.on_signals(stop):
        try:
            async with assemble(settings) as service:
                await service.run()
        except asyncio.CancelledError:
            if service is not None:
                raise
    log.info("stopped")


def listen(settings: Settings) -> socket.socket:
    """The socket where reviews arrive.

    Raises:
        StartupError: the address cannot be had.
    """
    return server.listen(settings.host, settings.port, "--host", "--port")


def listen_for_scrapes(settings: Settings) -> socket.socket | None:
    """The socket where Prometheus asks; None where metrics are not served.

    Raises:
        StartupError: the address cannot be had.
    """
    if not settings.metrics_port:
        return None
    return server.listen(settings.metrics_host, settings.metrics_port, "--metrics-host", "--metrics-port")


def version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _certificates(settings: Settings) -> Certificates:
    """What is served, loaded where it is in files; what is in a Secret comes when there is a cluster."""
    certificates = Certificates(LiveCertificate(server.bare_context(settings.tls_min_version)))
    if settings.tls_secret:
        return certificates

    def now() -> dt.datetime:
        return certificates.now()  # It becomes the API server's time.

    reason = None
    try:
        if settings.standalone:
            hosts = [*issue.LOCAL_HOSTS, *([settings.host] if settings.host else [])]
            _, reason = files.ensure(settings.tls_dir, hosts, now=dt.datetime.now(dt.UTC))
        certificates.folder = CertificateFolder(settings.tls_dir, certificates.live, now)
    except files.CertificateFilesError as error:
        cure = "Choose another directory with --tls-dir."
        if not settings.standalone:
            cure = "Mount the serving certificate's Secret there, set --tls-dir to where it is, or try --standalone."
        raise StartupError(f"{error} {cure}") from error
    except ValueError as error:
        raise StartupError(f"No certificate can be made for --host: {error}") from error
    if reason:
        log.info("certificates made", extra={"directory": str(settings.tls_dir), "because": reason})
    return certificates


def _client_authority(settings: Settings, live: LiveCertificate) -> ClientAuthority | None:
    def fresh() -> ssl.SSLContext:
        live.move_to(server.bare_context(settings.tls_min_version))
        return live.context

    if settings.client_ca is not None:
        return ClientAuthority(settings.client_ca, live.context, fresh)
    if settings.client_name:
        raise StartupError(
            "--client-name needs --client-ca: a name counts only in a certificate that was verified. Give the CA's "
            "file as well, or drop the name."
        )
    return None


def _serve_metrics(settings: Settings, metrics: Metrics, stack: contextlib.AsyncExitStack) -> str:
    listener = listen_for_scrapes(settings)
    if listener is None:
        return ""
    stack.enter_context(MetricsServer(metrics.registry, listener))
    url = server.url(listener, "http", METRICS_PATH)
    log.info("serving metrics", extra={"url": url})
    return url


def _watch(metrics: Metrics, decisions: logs.DecisionLog) -> None:
    metrics.gauge("neuron_dra_decision_lines_lost", "Decision lines that could not be written.", lambda: decisions.lost)


def _watch_edge(metrics: Metrics, running: server.Server, lag: LoopLag) -> None:
    acceptor = running.acceptor
    metrics.gauge("neuron_dra_open_connections", "Connections, handshakes included.", lambda: acceptor.open)
    metrics.counter(
        "neuron_dra_refused_connections", "Connections closed because there were too many.", lambda: acceptor.refused
    )
    metrics.counter("neuron_dra_failed_handshakes", "TLS handshakes that failed.", lambda: acceptor.failed)
    metrics.counter(
        "neuron_dra_refused_requests",
        "Requests that no endpoint saw: no HTTP, or a head above its bounds.",
        lambda: running.refused,
    )
    metrics.histogram("neuron_dra_event_loop_lag_seconds", "How late a timer was, ten times a second.", lag.delays)


async def _reviewers(
    settings: Settings,
    backend: Backend,
    api_server: TimedApiServer | None,
    metrics: Metrics,
    lane: Lane,
    stack: contextlib.AsyncExitStack,
) -> tuple[Mapping[str, Reviewer], dict[str, Check], Policies | None]:
    """Who decides, by path, what readiness has to say about it, and the policies in force."""
    options = settings.conversion()
    if settings.policies is None:
        mutator = Mutator(options, Catalogue(), backend.view, backend.templates, lane=lane)
        return {"/mutate": mutator, "/validate": Validator(options, Catalogue(), backend.view, lane=lane)}, {}, None
    # The schema and the engine take 20 MiB: only for those who have policies.
    from webhook.cluster.claim_contents import ClaimContents
    from webhook.reviews.policy_knowledge import find_nothing
    from webhook.server.policies import policing

    find = find_nothing if api_server is None else ClaimContents(api_server).find
    policed = await stack.enter_async_context(
        policing(settings.policies, options, backend.view, backend.templates, metrics.registry, lane, find)
    )
    return policed.reviewers, {"policies": policed.store.check}, policed.store


async def _backend(
    settings: Settings, metrics: Metrics, stack: contextlib.AsyncExitStack
) -> tuple[Backend, TimedApiServer | None]:
    """What reviews are decided about, and the API server where there is one."""
    if settings.standalone:
        return StandaloneBackend(), None
    # The client alone takes 70 MiB: only for those who have a cluster.
    from webhook.cluster import kube
    from webhook.cluster.metrics import ClusterMetrics

    connecting = kube.connect(settings.kubeconfig, sync_timeout=settings.sync_timeout, events=settings.events)
    try:
        backend = await stack.enter_async_context(connecting)
    except kube.ClusterUnavailableError as error:
        raise StartupError(str(error)) from error
    events = backend.refusals.counters if backend.refusals else None
    metrics.registry.register(ClusterMetrics(backend.caches, backend.template_counters, events))
    return backend, backend.connection
