"""Composition root: puts the parts together for one run.

`build` makes the application out of parts. `assemble` makes the parts out of settings, in the order in which they can
fail, and takes them down in reverse. `serve` is the whole run.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import importlib.metadata
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from certs import files, issue
from neuron.instances import Catalogue
from webhook.edge import logs, server
from webhook.edge.acceptor import Acceptor
from webhook.edge.bodies import BodyReader
from webhook.edge.callers import Callers, ClientAuthority
from webhook.edge.endpoints import AdmissionEndpoint, Reviewer
from webhook.edge.health import Check, HealthEndpoint, Lifecycle
from webhook.edge.metrics import METRICS_PATH, Metrics, MetricsServer
from webhook.edge.shedding import Gate, LoopLag, creates_template, never
from webhook.mutate import Mutator
from webhook.ports import TemplateStore, WorldView
from webhook.settings import Settings, StartupError
from webhook.standalone import StandaloneWorld
from webhook.validate import Validator

log = logging.getLogger(__name__)

DISTRIBUTION: Final = "neuron-dra"

Endpoint = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class World(Protocol):
    """What reviews are decided about, for as long as the server runs."""

    @property
    def view(self) -> WorldView:
        """What is known of the cluster."""

    @property
    def templates(self) -> TemplateStore:
        """Where ResourceClaimTemplates are made."""

    def ready(self) -> tuple[bool, str]:
        """Whether enough is known to answer, and a word on what is not."""


class Application(Starlette):
    """Starlette without what fixed paths do not need.

    Every endpoint is an ASGI application that answers its own errors, other methods included. So Starlette's error
    layers have nothing to catch, and a path is all that there is to a route: together, matching and wrapping would
    cost more than deciding about a pod.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        super().__init__(routes=[Route(path, endpoint) for path, endpoint in endpoints.items()])
        self.router.redirect_slashes = False
        self.router.default = _not_found
        self._endpoints = dict(endpoints)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Hand over to the endpoint of the path, or to Starlette if there is none."""
        if scope["type"] == "http":
            endpoint = self._endpoints.get(scope["path"])
            if endpoint is not None:
                return endpoint(scope, receive, send)
        return super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """No middleware."""
        return self.router


def build(
    reviewers: Mapping[str, Reviewer],
    checks: Mapping[str, Check],
    *,
    bodies: BodyReader,
    metrics: Metrics,
    decisions: logs.DecisionLog,
    lifecycle: Lifecycle,
    callers: Callers | None = None,
    max_inflight: int = 0,
    lag: LoopLag | None = None,
) -> Application:
    """The application.

    Args:
        reviewers: who decides, by path.
        checks: what readiness depends on, by name.
        bodies: reads reviews.
        metrics: counts them.
        decisions: logs them.
        lifecycle: where the process stands.
        callers: who may send reviews; None: everybody.
        max_inflight: reviews of one path decided at once; 0: any number.
        lag: how long requests wait for the event loop, measured by the server.
    """
    lag = lag or LoopLag()

    def endpoint(path: str, reviewer: Reviewer) -> Endpoint:
        counts = metrics.path(path)
        gate = Gate(path, counts, max_inflight, lag, creates_template if path == "/validate" else never)
        return AdmissionEndpoint(path, reviewer, bodies, counts, decisions, lifecycle, gate, callers)

    admission = {path: endpoint(path, reviewer) for path, reviewer in reviewers.items()}
    health = {
        "/livez": HealthEndpoint("livez", {}, lifecycle),
        "/readyz": HealthEndpoint("readyz", checks, lifecycle),
    }
    return Application({**admission, **health})


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    paths = ", ".join(route.path for route in scope["app"].routes)
    message = f"There is nothing at {scope['path'][:100]!r}. This server has {paths}."
    await JSONResponse({"message": message}, 404)(scope, receive, send)


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """Everything that one run is made of, ready to go.

    Attributes:
        url: where reviews are served.
        metrics_url: where metrics are served; empty where they are not.
        certificates: files of the serving certificate.
        world: what reviews are decided about.
    """

    url: str
    metrics_url: str
    certificates: files.CertificateFiles
    world: World
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
    metrics = Metrics(version())
    lag = LoopLag()
    async with contextlib.AsyncExitStack() as stack:
        certificates = _certificates(settings)
        tls = server.tls_context(certificates.certificate, certificates.key, settings.tls_min_version)
        authority = _client_authority(settings, tls)
        listener = stack.enter_context(server.listen(settings.host, settings.port, "--host", "--port"))
        metrics_url = _serve_metrics(settings, metrics, stack)
        world = await _world(settings, stack)
        decisions = logs.DecisionLog(
            sys.stderr.buffer, logs.resolve(settings.log_format), enabled=logging.getLogger().isEnabledFor(logging.INFO)
        )
        stack.callback(decisions.flush)
        _watch(metrics, decisions, certificates)
        checks: dict[str, Check] = {
            "tls": lambda: _check_certificate(certificates.not_after),
            "caches": world.ready,
            "serving": lifecycle.check_serving,
            "shutdown": lifecycle.check_shutdown,
        }
        reviewers, more_checks = await _reviewers(settings, world, metrics, stack)
        application = build(
            reviewers,
            checks | more_checks,
            bodies=BodyReader(settings.max_body_bytes, settings.body_timeout),
            metrics=metrics,
            decisions=decisions,
            lifecycle=lifecycle,
            callers=None if authority is None else Callers(settings.client_name),
            max_inflight=settings.max_inflight,
            lag=lag,
        )
        running = server.Server(
            application,
            tls,
            lifecycle,
            head_timeout=settings.body_timeout,
            drain_delay=settings.drain_delay,
            drain_timeout=settings.drain_timeout,
            max_connections=settings.max_connections,
            authority=authority,
            lag=lag,
        )
        _watch_edge(metrics, running.acceptor, lag)
        yield Service(server.url(listener, "https"), metrics_url, certificates, world, running, listener)


async def serve(settings: Settings) -> None:
    """One run, until SIGTERM or SIGINT.

    Raises:
        StartupError: something that it needs cannot be had.
    """
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


def version() -> str:
    """Version of the installed distribution."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _certificates(settings: Settings) -> files.CertificateFiles:
    try:
        if not settings.standalone:
            return files.load(settings.tls_dir)
        hosts = [*issue.LOCAL_HOSTS, *([settings.host] if settings.host else [])]
        made, reason = files.ensure(settings.tls_dir, hosts, now=dt.datetime.now(dt.UTC))
    except files.CertificateFilesError as error:
        cure = "Choose another directory with --tls-dir."
        if not settings.standalone:
            cure = "Mount the serving certificate's Secret there, set --tls-dir to where it is, or try --standalone."
        raise StartupError(f"{error} {cure}") from error
    except ValueError as error:
        raise StartupError(f"No certificate can be made for --host: {error}") from error
    if reason:
        log.info("certificates made", extra={"directory": str(settings.tls_dir), "because": reason})
    return made


def _client_authority(settings: Settings, tls: ssl.SSLContext) -> ClientAuthority | None:
    if settings.client_ca is not None:
        return ClientAuthority(settings.client_ca, tls)
    if settings.client_name:
        raise StartupError(
            "--client-name needs --client-ca: a name counts only in a certificate that was verified. Give the CA's "
            "file as well, or drop the name."
        )
    return None


def _serve_metrics(settings: Settings, metrics: Metrics, stack: contextlib.AsyncExitStack) -> str:
    if not settings.metrics_port:
        return ""
    listener = server.listen(settings.metrics_host, settings.metrics_port, "--metrics-host", "--metrics-port")
    stack.enter_context(MetricsServer(metrics.registry, listener))
    url = server.url(listener, "http", METRICS_PATH)
    log.info("serving metrics", extra={"url": url})
    return url


def _watch(metrics: Metrics, decisions: logs.DecisionLog, certificates: files.CertificateFiles) -> None:
    metrics.gauge("neuron_dra_decision_lines_lost", "Decision lines that could not be written.", lambda: decisions.lost)
    metrics.gauge(
        "neuron_dra_serving_certificate_not_after_seconds",
        "End of the serving certificate's validity, seconds since the epoch.",
        certificates.not_after.timestamp,
    )


def _watch_edge(metrics: Metrics, acceptor: Acceptor, lag: LoopLag) -> None:
    metrics.gauge("neuron_dra_open_connections", "Connections, handshakes included.", lambda: acceptor.open)
    metrics.counter(
        "neuron_dra_refused_connections", "Connections closed because there were too many.", lambda: acceptor.refused
    )
    metrics.counter("neuron_dra_failed_handshakes", "TLS handshakes that failed.", lambda: acceptor.failed)
    metrics.histogram("neuron_dra_event_loop_lag_seconds", "How late a timer was, ten times a second.", lag.delays)


async def _reviewers(
    settings: Settings, world: World, metrics: Metrics, stack: contextlib.AsyncExitStack
) -> tuple[Mapping[str, Reviewer], dict[str, Check]]:
    """Who decides, by path, and what readiness has to say about it."""
    options = settings.conversion()
    if settings.policies is None:
        mutator = Mutator(options, Catalogue(), world.view, world.templates)
        return {"/mutate": mutator, "/validate": Validator(options, Catalogue(), world.view)}, {}
    # The schema and the engine take 20 MiB: only for those who have policies.
    from webhook.policing.assembly import policing

    policed = await stack.enter_async_context(
        policing(settings.policies, options, world.view, world.templates, metrics.registry)
    )
    return policed.reviewers, {"policies": policed.store.check}


async def _world(settings: Settings, stack: contextlib.AsyncExitStack) -> World:
    if settings.standalone:
        return StandaloneWorld()
    # The client alone takes 70 MiB: only for those who have a cluster.
    from webhook.cluster import kube

    try:
        return await stack.enter_async_context(kube.connect(settings.kubeconfig, sync_timeout=settings.sync_timeout))
    except kube.ClusterUnavailableError as error:
        raise StartupError(str(error)) from error


def _check_certificate(not_after: dt.datetime) -> tuple[bool, str]:
    valid = dt.datetime.now(dt.UTC) < not_after
    return valid, f"valid until {not_after.isoformat()}" if valid else f"expired on {not_after.isoformat()}"
