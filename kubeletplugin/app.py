"""The composition root: creates the parts, starts them in the order of their dependencies, stops them in reverse."""

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
from prometheus_client import Gauge

from kubeletplugin import api_store
from kubeletplugin.changes import Changing, Clock
from kubeletplugin.checks.node_checks import ContainerLooks, NodeChecks, NodeReader, node_info
from kubeletplugin.device_info import DeviceInfo, UseReader
from kubeletplugin.discover import emulate
from kubeletplugin.discover.health import Catalogues, HealthMonitor
from kubeletplugin.discover.own_node import Labeller, OwnNode
from kubeletplugin.discover.processes import Folder, Processes
from kubeletplugin.discover.sysfs import NodeHardware, discover, read_ultraserver
from kubeletplugin.files import DiskFiles
from kubeletplugin.kubelet import (
    SocketError,
    SocketKeeper,
    SocketPaths,
    UnixServer,
    handlers,
    other_sockets,
    probe_service,
    registration,
    remove_stale_sockets,
    socket_paths,
)
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.node_events import (
    CHECKS_WELL,
    LEFT,
    OTHER_LEFT,
    REGISTERED,
    HoldReporter,
    Said,
    StateReporter,
    device_plugin,
    lasting,
    lost_registration,
    node_checks,
    other_driver,
)
from kubeletplugin.ports import WAITS, JsonObject
from kubeletplugin.prepare.cdi import FOLDER, MetadataFiles, SpecFiles
from kubeletplugin.prepare.claim_status import ClaimStatusWriter
from kubeletplugin.prepare.decide import NodeView
from kubeletplugin.prepare.driver import Driver
from kubeletplugin.prepare.preparer import Preparer
from kubeletplugin.prepare.sweep import Sweeper
from kubeletplugin.prepare.usage import NodeUsage, PodResources
from kubeletplugin.publish.offer import KubeletGate
from kubeletplugin.publish.publisher import NodeSources, Publisher, SliceNote
from kubeletplugin.publish.slices import driver_version, published_attributes
from kubeletplugin.settings import DriverSettings
from neuron import names
from neuron.hardware.instances import Catalogue, InstanceType
from runtime import listening, tracing
from runtime.api_server import ClusterUnavailableError
from runtime.metrics_server import serving_metrics
from runtime.startup import StartupError

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


async def run(settings: DriverSettings, stop: asyncio.Event) -> None:
    """Run the plugin until `stop` is set.

    Raises:
        StartupError: it cannot start.
    """
    catalogues = Catalogues(settings.policies)
    settings = await asyncio.to_thread(emulated, settings, catalogues)
    clock, metrics = Clock(), PluginMetrics()
    paths = _socket_paths(settings)

    def followed() -> Catalogue:
        current = catalogues.current()
        (metrics.failed if catalogues.problem else metrics.worked)("catalogue")
        return current

    look = functools.partial(discover, settings.sysfs_root, settings.dev_root, settings.logical_nc_file)
    monitor = HealthMonitor(look, followed, clock, settings.health_interval)
    await monitor.refresh()
    preparer = await asyncio.to_thread(_recovered, settings)

    def view() -> NodeView:
        snapshot = monitor.snapshot
        hardware, instance = snapshot.hardware, snapshot.instance
        return NodeView(
            hardware,
            instance,
            lambda: read_ultraserver(settings.sysfs_root),
            settings.admin_namespaces,
            functools.partial(_published, own, hardware, instance),
        )

    async with contextlib.AsyncExitStack() as stack:
        end_traces = tracing.start(names.DRIVER_PROGRAM, driver_version())
        if end_traces is not None:
            stack.push_async_callback(asyncio.to_thread, end_traces)
        api = await _connected(settings)
        stack.push_async_callback(api.close)
        processes = Processes(settings.proc_root, settings.dev_root, Folder(settings.state / FOLDER))
        usage = NodeUsage(PodResources(settings.pod_resources_socket), processes)
        stack.callback(usage.close)
        driver = Driver(preparer, api, view, settings.node_name, usage, clock=clock, metrics=metrics)
        stack.callback(driver.close)
        await driver.count()
        # Until the first sweep: it finds the devices that claims hold whose objects are gone.
        driver.holds.restore(restoring=True)
        gate = KubeletGate(clock, settings.registration_wait)
        # The facts are needed before slices are published: a kubelet that knows this instance may call it at once.
        own = OwnNode(api, clock=clock, metrics=metrics, use_facts=monitor.use_facts)
        sockets = functools.partial(other_sockets, settings.kubelet_registry_dir, paths.registration)
        publisher = Publisher(
            api,
            NodeSources(monitor, own, gate, driver.holds, sockets, note := SliceNote()),
            settings,
            clock=clock,
            metrics=metrics,
            jitter=random.uniform,
        )
        parts = [
            monitor.run,
            own.run,
            publisher.run,
            Sweeper(driver, settings.sweep_interval, clock=clock, metrics=metrics).run,
            HoldReporter(driver.holds, own, clock=clock, metrics=metrics).run,
            DeviceInfo(driver, monitor, UseReader(settings.sysfs_root).read, clock=clock, metrics=metrics).run,
        ]
        looks = ContainerLooks(driver.prepared_claims, api.claim, usage, processes)
        reader = NodeReader(settings, monitor, lambda: node_info(own.state), looks, processes)
        checks = NodeChecks(reader, monitor, driver.preparations, note, clock=clock, metrics=metrics)
        parts.append(checks.run)
        states: tuple[tuple[Changing, Callable[[], Said | None], Said, Gauge | None], ...] = (
            (own, lasting(lambda: device_plugin(own.state, settings.device_plugin_guard)), LEFT, metrics.device_plugin),
            (publisher.other, functools.partial(other_driver, publisher.other), OTHER_LEFT, metrics.other_driver),
            (gate, functools.partial(lost_registration, gate), REGISTERED, None),
            (checks, functools.partial(node_checks, checks), CHECKS_WELL, None),
        )
        for source, say, ended, gauge in states:
            parts.append(StateReporter(source, say, ended, own, gauge=gauge, clock=clock, metrics=metrics).run)
        if settings.ultraserver_labels or settings.present_label:
            labels = {"ultraserver": settings.ultraserver_labels, "present": settings.present_label}
            parts.append(Labeller(own, monitor, clock=clock, metrics=metrics, **labels).run)
        if settings.claim_status:
            writer = ClaimStatusWriter(driver, monitor, clock=clock, metrics=metrics)
            driver.observer = writer
            parts.append(writer.run)

        metrics.clock_skew.set_function(api.skew)
        metrics.registered.set_function(lambda: float(bool(gate.registered)))
        if settings.metrics_port:
            listener = listening.listen(_host(settings), settings.metrics_port, "--bind-address", "--metrics-port")
            stack.enter_context(serving_metrics(metrics.registry, listener))
        # Registration comes last: the kubelet calls the driver's socket as soon as it sees the registration socket.
        plugin = UnixServer(paths.plugin, handlers(driver, monitor, settings.node_name, clock))
        await stack.enter_async_context(_serving(plugin))
        stack.push_async_callback(_outlast_registration, gate, clock)
        service = registration(paths.plugin, lambda accepted: gate.answered(accepted=accepted))
        registering = UnixServer(paths.registration, [service])
        await stack.enter_async_context(_serving(registering))
        parts.append(SocketKeeper(plugin, registering, gate, clock).run)
        if settings.health_port:
            probes = probe_service(paths, registered=lambda: bool(gate.registered), offered=lambda: publisher.offered)
            await stack.enter_async_context(_health_service(settings, probes))
        _log.info("serving", extra={"plugin": str(paths.plugin), "registration": str(paths.registration)})
        await _until_stopped(stop, parts)
        if not await asyncio.to_thread(sockets):
            await publisher.withdraw()
            if gate.registered:
                await clock.sleep(WAITS.placed)
        await driver.finish_calls()


def _published(own: OwnNode, hardware: NodeHardware, instance: InstanceType | None, device: str) -> JsonObject:
    """The published attributes of a device; empty while the Node or its type is not known."""
    if own.state is None or instance is None:
        return {}
    return published_attributes(own.state.facts, hardware, instance, driver_version(), device)


async def _until_stopped(stop: asyncio.Event, parts: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Run the background parts. They handle expected errors; any other error ends the process with a traceback."""
    tasks = [asyncio.create_task(run()) for run in parts]
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            task.result()
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        await asyncio.gather(stopped, *tasks, return_exceptions=True)
        _log.info("stopping")


def emulated(settings: DriverSettings, catalogues: Catalogues) -> DriverSettings:
    """Settings that point to fake files, which are written, if a type is emulated; else the same ones.

    Raises:
        StartupError: the type is not known, or its files cannot be written.
    """
    if settings.emulate is None:
        return settings
    root = settings.state / "emulated"
    try:
        emulate.write_tree(
            root,
            emulate.emulated_type(settings.emulate, catalogues.current()),
            driver_version=settings.emulate_driver_version,
            node_id=settings.emulate_node_id,
            server=settings.emulate_ultraserver,
            use=True,
        )
    except emulate.UnknownTypeError as error:
        raise StartupError(f"--emulate: {error}") from error
    except OSError as error:
        raise StartupError(f"The files of the emulated node cannot be written: {error}. Check --state-dir.") from error
    _log.warning("emulating", extra={"type": settings.emulate, "root": str(root)})
    logical_nc = root / names.LOGICAL_NC_FILE.removeprefix("/")
    return msgspec.structs.replace(settings, sysfs_root=root / "sys", dev_root=root / "dev", logical_nc_file=logical_nc)


def _socket_paths(settings: DriverSettings) -> SocketPaths:
    try:
        paths = socket_paths(settings.plugin_dir, settings.kubelet_registry_dir, settings.pod_uid)
        for path in remove_stale_sockets(settings.plugin_dir, settings.kubelet_registry_dir):
            _log.info("removed a stale socket", extra={"path": str(path)})
    except SocketError as error:
        raise StartupError(str(error)) from error
    except OSError as error:
        raise StartupError(f"Old sockets cannot be removed: {error}.") from error
    return paths


def _recovered(settings: DriverSettings) -> Preparer:
    files = DiskFiles()
    try:
        boot_id = BOOT_ID.read_text().strip()
        dev_root = settings.dev_root if settings.emulate is None else None
        metadata = MetadataFiles(files, settings.state)
        specs = SpecFiles(files, settings.cdi_dir, boot_id, dev_root, metadata)
        preparer = Preparer(files, state_dir=settings.state, specs=specs, boot_id=boot_id)
        files.make_directory(settings.state)
        recovery = preparer.recover()
    except (OSError, TimeoutError) as error:
        raise StartupError(f"The state in {settings.state} cannot be used: {error}. Check --state-dir.") from error
    for problem in recovery.errors:
        _log.error("state damaged", extra={"problem": problem})
    for note in recovery.notes:
        _log.info("state recovered", extra={"note": note})
    return preparer


async def _connected(settings: DriverSettings) -> api_store.ApiStore:
    try:
        return await api_store.connect(settings.kubeconfig, settings.node_name)
    except ClusterUnavailableError as error:
        raise StartupError(f"The API server cannot be used: {error}.") from error


def _host(settings: DriverSettings) -> str:
    """The address to bind to; brackets around an IPv6 address are removed."""
    return settings.bind_address.removeprefix("[").removesuffix("]")


@contextlib.asynccontextmanager
async def _serving(server: UnixServer) -> AsyncIterator[None]:
    try:
        await server.start()
    except SocketError as error:
        raise StartupError(str(error)) from error
    try:
        yield
    finally:
        await server.stop(WAITS.grace)


async def _outlast_registration(gate: KubeletGate, clock: Clock) -> None:
    """Serve until the kubelet knows that this instance ends: a pod whose call fails waits up to 90 s for the next."""
    if gate.registered:
        await clock.sleep(WAITS.deregistered)


@contextlib.asynccontextmanager
async def _health_service(settings: DriverSettings, probes: grpc.GenericRpcHandler) -> AsyncIterator[None]:
    host = _host(settings)
    where = f"[{host}]:{settings.health_port}" if ":" in host else f"{host}:{settings.health_port}"  # RFC 3986
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((probes,))
    try:
        server.add_insecure_port(where)
        await server.start()
    except RuntimeError as error:
        await server.stop(None)
        raise StartupError(f"Health cannot be served on {where}: {error}. Choose another --health-port.") from error
    try:
        yield
    finally:
        await server.stop(None)
