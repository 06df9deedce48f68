"""Composition root: puts the parts together for one run.

`build` makes the application out of parts. `assemble` makes the parts out of settings, in the order in which they can
fail, and takes them down in reverse. `serve` is the whole run.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import importlib
import importlib.metadata
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from prometheus_client.registry import CollectorRegistry
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from certs import files, issue
from neuron.instances import Catalogue
from webhook.edge import logs, server
from webhook.edge.bodies import BodyReader
from webhook.edge.endpoints import AdmissionEndpoint, Reviewer
from webhook.edge.health import Check, HealthEndpoint, Lifecycle
from webhook.edge.metrics import METRICS_PATH, Metrics, MetricsServer
from webhook.mutate import Mutator
from webhook.ports import TemplateStore, WorldView
from webhook.settings import Settings, StartupError
from webhook.standalone import StandaloneWorld
from webhook.validate import Validator
from webhook.workers.lines import WholeLines
from webhook.workers.member import Pulse
from webhook.workers.metrics import AllWorkers, Answering
from webhook.workers.seat import Seat

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
) -> Application:
    """The application.

    Args:
        reviewers: who decides, by path.
        checks: what readiness depends on, by name.
        bodies: reads reviews.
        metrics: counts them.
        decisions: logs them.
        lifecycle: where the process stands.
    """
    admission = {
        path: AdmissionEndpoint(path, reviewer, bodies, metrics.path(path), decisions, lifecycle)
        for path, reviewer in reviewers.items()
    }
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
async def assemble(settings: Settings, seat: Seat | None = None) -> AsyncIterator[Service]:
    """The parts of one run, alive as long as the context; `seat` is for one of several workers.

    Raises:
        StartupError: on entering: one of them cannot be had.
    """
    if seat is None or seat.member.leads:
        log.info("configuration", extra={"settings": settings.as_written()})
    lifecycle = Lifecycle()
    checks: dict[str, Check] = {}
    metrics = Metrics(version())
    async with contextlib.AsyncExitStack() as stack:
        siblings = _join(seat, checks, lifecycle, stack)
        certificates = _certificates(settings)
        tls = server.tls_context(certificates.certificate, certificates.key, settings.tls_min_version)
        listener = stack.enter_context(seat.listener if seat else listen(settings))
        metrics_url = _serve_metrics(settings, metrics, stack, seat)
        world = await _world(settings, stack)
        stream = WholeLines(sys.stderr.fileno()) if seat else sys.stderr.buffer
        decisions = logs.DecisionLog(
            stream, logs.resolve(settings.log_format), enabled=logging.getLogger().isEnabledFor(logging.INFO)
        )
        stack.callback(decisions.flush)
        _watch(metrics, decisions, certificates)
        reviewers, more_checks = await _reviewers(settings, world, metrics, stack)
        checks |= {
            "tls": lambda: _check_certificate(certificates.not_after),
            "caches": world.ready,
            "serving": lifecycle.check_serving,
            "shutdown": lifecycle.check_shutdown,
            **more_checks,
        }
        application = build(
            reviewers,
            checks | siblings,
            bodies=BodyReader(settings.max_body_bytes, settings.body_timeout),
            metrics=metrics,
            decisions=decisions,
            lifecycle=lifecycle,
        )
        running = server.Server(
            application,
            tls,
            lifecycle,
            head_timeout=settings.body_timeout,
            drain_delay=settings.drain_delay,
            drain_timeout=settings.drain_timeout,
            among=seat.member if seat else None,
        )
        yield Service(server.url(listener, "https"), metrics_url, certificates, world, running, listener)


async def serve(settings: Settings, seat: Seat | None = None) -> None:
    """One run, until SIGTERM or SIGINT; `seat` is for one of several workers.

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
            async with assemble(settings, seat) as service:
                await service.run()
        except asyncio.CancelledError:
            if service is not None:
                raise
    log.info("stopped")


def prepare(settings: Settings) -> None:
    """Do what several workers need only once, before they are forked: load what they share, make certificates.

    Starts no thread and no event loop.

    Raises:
        StartupError: there are no certificates.
    """
    _certificates(settings)
    if settings.policies is not None:
        importlib.import_module("webhook.policing.assembly")
    if not settings.standalone:
        importlib.import_module("webhook.cluster.kube")


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


def _join(
    seat: Seat | None, own: Mapping[str, Check], lifecycle: Lifecycle, stack: contextlib.AsyncExitStack
) -> dict[str, Check]:
    """Tell siblings how this worker does, by its `own` checks once there are any; the check that it has of them."""
    if seat is None:
        return {}
    pulse = Pulse(
        seat.member,
        ready=lambda: bool(own) and all(check()[0] for check in own.values()),
        serving=lambda: lifecycle.serving,
        draining=lambda: lifecycle.draining,
    )
    stack.enter_context(pulse)
    return {"workers": seat.member.check}


def _serve_metrics(settings: Settings, metrics: Metrics, stack: contextlib.AsyncExitStack, seat: Seat | None) -> str:
    listener = seat.metrics_listener if seat else listen_for_scrapes(settings)
    if listener is None:
        return ""
    registry = metrics.registry
    if seat is not None:
        stack.enter_context(Answering(metrics.registry, seat.boxes[seat.member.index]))
        registry = CollectorRegistry()
        registry.register(AllWorkers(metrics.registry, seat.member, seat.boxes))
    stack.enter_context(MetricsServer(registry, listener))
    url = server.url(listener, "http", METRICS_PATH)
    if seat is None or seat.member.leads:
        log.info("serving metrics", extra={"url": url})
    return url


def _watch(metrics: Metrics, decisions: logs.DecisionLog, certificates: files.CertificateFiles) -> None:
    metrics.gauge("neuron_dra_decision_lines_lost", "Decision lines that could not be written.", lambda: decisions.lost)
    metrics.gauge(
        "neuron_dra_serving_certificate_not_after_seconds",
        "End of the serving certificate's validity, seconds since the epoch.",
        certificates.not_after.timestamp,
    )


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
