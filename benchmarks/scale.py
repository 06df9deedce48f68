"""`make bench-scale`: one webhook replica, and one driver, against a real API server with up to 5,000 nodes.

The nodes have no kubelet. Each has a Node object and the ResourceSlices that the driver publishes for trn2.48xlarge. At
each size a replica starts, then pods are created at a steady rate, then slices and Nodes change. Scheduler and
controllers are stopped meanwhile: every further request to the API server is of the webhook. A relay between the
webhook and the API server counts the bytes that the webhook reads, TLS included.

CPU time and bytes count. Times on a clock depend on what else the machine does.
"""

import contextlib
import copy
import dataclasses
import itertools
import json
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click
import httpx

from benchmarks.planes import control_plane
from benchmarks.reviews import Object
from benchmarks.servers import cpu_seconds, rss_mib
from benchmarks.through_api_server import pod
from neuron.hardware.windows import Line
from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import USER, Driver, bare_node
from tests.cluster.driver import install_rbac as install_driver_rbac
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE
from tests.cluster.webhooks import Webhook, install_rbac
from tests.support import mixtures
from tests.support.mixtures import Hardware

BEGIN: Final = "<!-- scale: written by `make bench-scale` -->"
END: Final = "<!-- end of scale -->"
MOST_ABOVE_LINEAR: Final = 1.5
"""The largest size may cost so many times what the line through the two smaller ones says."""

_TYPE: Final = "trn2.48xlarge"
_DEVICES: Final = 16
_COUNTS: Final = ("1", "4", "8", "16")
_NAMESPACES: Final = 10
_CHANGES: Final = 100
_CLAIMS: Final = 2_000
_THREADS: Final = 4
_QUIET: Final = 2.0
"""Seconds in which the webhook takes in what changed last."""
_MEBIBYTE: Final = 2**20
_OURS: Final = ("resourceclaimtemplates", "resourceclaims", "resourceslices", "nodes", "events")
_LABELS: Final = {
    INSTANCE_TYPE: _TYPE,
    "beta.kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "topology.kubernetes.io/region": "us-east-1",
    "topology.kubernetes.io/zone": "us-east-1a",
    "eks.amazonaws.com/capacityType": "CAPACITY_BLOCK",
    "eks.amazonaws.com/nodegroup": "trainium-one",
    "eks.amazonaws.com/nodegroup-image": "ami-0123456789abcdef0",
    **{f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}0f1e2d3c4b5a6978" for layer in (1, 2, 3)},
}


class Relay:
    """Passes TCP connections on, and counts the bytes of the answers."""

    def __init__(self, port: int) -> None:
        """Pass on to a port of this host."""
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: Final = int(self._server.getsockname()[1])
        self.read = 0
        self._lock = threading.Lock()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Take no further connection."""
        # Wakes the thread that waits in accept(); close() alone does not.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as server:
            answers = threading.Thread(target=self._pass, args=(server, client, True), daemon=True)
            answers.start()
            self._pass(client, server, False)
            answers.join()

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if counted:
                    with self._lock:
                        self.read += len(data)
                sink.sendall(data)
        for each in (sink, source):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@dataclasses.dataclass(frozen=True)
class Start:
    """A replica until it is ready.

    Attributes:
        seconds: on a clock.
        cpu: seconds of CPU time.
        rss: MiB.
        read: MiB from the API server.
    """

    seconds: float
    cpu: float
    rss: float
    read: float


@dataclasses.dataclass(frozen=True)
class Pods:
    """The pods of one size, each figure for one pod.

    Attributes:
        rate: pods created per second.
        cpu: milliseconds of CPU time of the webhook.
        api_cpu: the same of the API server.
        decision: milliseconds that the webhook needed, mean.
        requests: that the webhook sent.
        read: bytes that the webhook read from the API server.
        rss: MiB of the webhook after them.
    """

    count: int
    rate: float
    cpu: float
    api_cpu: float
    decision: float
    requests: float
    read: float
    rss: float


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of one watched object: milliseconds of CPU time of the webhook, and bytes that it read."""

    cpu: float
    read: float


@dataclasses.dataclass(frozen=True)
class Point:
    """What was measured at one size."""

    nodes: int
    pods_before: int
    start: Start
    pods: Pods
    slice_change: Change
    node_change: Change


@dataclasses.dataclass(frozen=True)
class DriverStart:
    """The start of a driver: its requests by verb and resource, MiB read, seconds of CPU time."""

    requests: Counter[str]
    read: float
    cpu: float


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The value at no node, and the growth for one node, of the line through the first and the last point."""
    (first, low), (last, high) = points[0], points[-1]
    slope = (high - low) / (last - first) if last != first else 0.0
    return low - slope * first, slope


def above_linear(points: Sequence[tuple[int, float]]) -> float:
    """How many times the last value is what the line through the points before it says; 1 if that cannot be said."""
    if len(points) < 3:
        return 1.0
    base, slope = line(points[:-1])
    # A falling line is the scatter of small figures.
    return points[-1][1] / (base + max(slope, 0.0) * points[-1][0])


def costs(points: Sequence[Point]) -> dict[str, list[tuple[int, float]]]:
    """The figures that may grow with the number of nodes, by title."""
    figures: dict[str, Callable[[Point], float]] = {
        "CPU until ready, s": lambda each: each.start.cpu,
        "RSS, MiB": lambda each: each.start.rss,
        "read until ready, MiB": lambda each: each.start.read,
        "CPU for a pod, ms": lambda each: each.pods.cpu,
        "CPU for a changed slice, ms": lambda each: each.slice_change.cpu,
    }
    return {title: [(each.nodes, figure(each)) for each in points] for title, figure in figures.items()}


def table(points: Sequence[Point], starts: dict[str, DriverStart]) -> str:
    """What the page shows."""
    rows: dict[str, Callable[[Point], str]] = {
        "devices": lambda each: f"{each.nodes * _DEVICES:,}",
        "pods in the cluster": lambda each: f"{each.pods_before + each.pods.count:,}",
        "**replica starts**: to ready": lambda each: f"{each.start.seconds:.1f} s",
        "CPU until ready": lambda each: f"{each.start.cpu:.2f} s",
        "RSS when ready": lambda each: f"{each.start.rss:.0f} MiB",
        "read until ready": lambda each: f"{each.start.read:.1f} MiB",
        "**pods**: created a second": lambda each: f"{each.pods.rate:.0f}",
        "CPU of the webhook for a pod": lambda each: f"{each.pods.cpu:.2f} ms",
        "CPU of the API server for a pod": lambda each: f"{each.pods.api_cpu:.1f} ms",
        "time of a review in the webhook": lambda each: f"{each.pods.decision:.2f} ms",
        "requests of the webhook for a pod": lambda each: f"{each.pods.requests:.3f}",
        "read by the webhook for a pod": lambda each: f"{each.pods.read:,.0f} bytes",
        "RSS after the pods": lambda each: f"{each.pods.rss:.0f} MiB",
        "**a slice changes**: CPU": lambda each: f"{each.slice_change.cpu:.2f} ms",
        "read": lambda each: f"{each.slice_change.read:,.0f} bytes",
        "**a Node changes**: CPU": lambda each: f"{each.node_change.cpu:.2f} ms",
        "read of it": lambda each: f"{each.node_change.read:,.0f} bytes",
    }
    lines = [
        "| nodes | " + " | ".join(f"{each.nodes:,}" for each in points) + " |",
        "|---|" + "---:|" * len(points),
        *(f"| {title} | " + " | ".join(value(each) for each in points) + " |" for title, value in rows.items()),
        "",
        "| of one replica | with no node | for 1,000 nodes | largest size, x the line |",
        "|---|---:|---:|---:|",
    ]
    for title, values in costs(points).items():
        base, slope = line(values)
        lines.append(f"| {title} | {base:.2f} | {1000 * slope:.2f} | {above_linear(values):.2f} |")
    lines += ["", "| a driver starts | requests | read | CPU |", "|---|---|---:|---:|"]
    for title, start in starts.items():
        requests = ", ".join(f"{count} {what}" for what, count in sorted(start.requests.items()))
        lines.append(f"| {title} | {requests} | {start.read:.2f} MiB | {start.cpu:.2f} s |")
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Replace what a page has between the marks."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise click.ClickException(f"{page} lacks the lines {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def requests_of(metrics: str) -> Counter[str]:
    """The requests that an API server has counted, by verb and resource. It counts a watch when it ends."""
    found: Counter[str] = Counter()
    for labels, value in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", metrics, re.MULTILINE):
        fields = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if fields["resource"] in _OURS and fields["verb"] != "WATCH":
            dry = " (dry run)" if fields.get("dry_run") else ""
            found[f"{fields['verb']} {fields['resource']}{dry}"] += int(float(value))
    return found


class Cluster:
    """The control plane and what fills it."""

    def __init__(self, plane: ControlPlane, folder: Path, sizes: int) -> None:
        self._plane = plane
        self._folder = folder
        self._api: Api = plane.admin
        self._contents = mixtures.slices(Hardware(_TYPE, Line(_DEVICES, wraps=False), 8, logical=2))
        self._relay = Relay(plane.port)
        self._webhook = Webhook(plane, self._through_relay(install_rbac(plane)))
        self._webhook.start()
        self._webhook.install()
        self._webhook.stop()
        self._nodes = 0
        self._pods = 0
        self._turn = 0
        for turn, number in itertools.product(range(sizes), range(_NAMESPACES)):
            name = self._namespace(turn, number)
            self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            plane.wait_namespace_usable(name)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Stop scheduler and controllers."""
        with ExitStack() as stack:
            for process in (self._plane.scheduler, self._plane.controller_manager):
                process.signal(signal.SIGSTOP)
                stack.callback(process.signal, signal.SIGCONT)
            stack.callback(self._relay.close)
            yield

    def measure(self, nodes: int, pods: int, rate: float) -> Point:
        """Grow to a number of nodes, start a replica, create pods, change slices and Nodes."""
        self._grow(nodes)
        read, began = self._relay.read, time.monotonic()
        try:
            self._webhook.start()
            seconds, pid = time.monotonic() - began, self._webhook.pid
            arrived = (self._relay.read - read) / _MEBIBYTE
            start = Start(seconds, cpu_seconds(pid), rss_mib(pid), arrived)
            before = self._pods
            made = self._create_pods(pods, rate)
            self._turn += 1
            changed = self._changed("ResourceSlice", [f"node-{each}-0" for each in range(min(nodes, _CHANGES))])
            moved = self._changed("Node", [f"node-{each}" for each in range(min(nodes, _CHANGES))])
            return Point(nodes, before, start, made, changed, moved)
        finally:
            self._webhook.stop()

    def driver_starts(self) -> dict[str, DriverStart]:
        """Start a driver on a new node, again on that node, and on a new node of a cluster that has claims."""
        self._webhook.uninstall()
        install_driver_rbac(self._api)
        found = {}
        first = self._driver("driver-0")
        found["first start on a node"] = self._start_driver(first)
        found["start again, as in a rolling restart"] = self._start_driver(first)
        self._create_claims()
        found[f"first start on a node, {_CLAIMS} claims in the cluster"] = self._start_driver(self._driver("driver-1"))
        return found

    # --- the cluster ------------------------------------------------------------------------------------------

    def _through_relay(self, kubeconfig: Path) -> Path:
        config = json.loads(kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._relay.port}"
        path = self._folder / f"relay-{kubeconfig.name}"
        path.write_text(json.dumps(config))
        return path

    @staticmethod
    def _namespace(turn: int, number: int) -> str:
        return f"scale-{turn}-{number}"

    def _grow(self, nodes: int) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(self._add, range(self._nodes, nodes)))
        self._nodes = max(self._nodes, nodes)

    def _add(self, number: int) -> None:
        node = f"node-{number}"
        labels = {**_LABELS, "kubernetes.io/hostname": node}
        self._api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}})
        for part, content in enumerate(self._contents):
            pool = {"name": node, "generation": 1, "resourceSliceCount": len(self._contents)}
            spec = {**copy.deepcopy(content), "driver": DRIVER, "nodeName": node, "pool": pool}
            metadata = {"name": f"{node}-{part}"}
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
            self._api.create({**kind, "metadata": metadata, "spec": spec})

    def _requests(self) -> Counter[str]:
        return requests_of(self._api.answer("GET", "/metrics").text)

    # --- pods -------------------------------------------------------------------------------------------------

    def _create_pods(self, count: int, rate: float) -> Pods:
        pid, api = self._webhook.pid, self._plane.apiserver.pid
        spent, reviewed = (cpu_seconds(pid), cpu_seconds(api)), self._webhook.review_seconds()
        requests, read, began = self._requests(), self._relay.read, time.monotonic()

        def create(number: int) -> None:
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            made = pod()
            for amounts in made["spec"]["containers"][0]["resources"].values():
                amounts["aws.amazon.com/neuron"] = _COUNTS[number // _NAMESPACES % len(_COUNTS)]
            self._api.create(made, self._namespace(self._turn, number % _NAMESPACES))

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(create, range(count)))
        seconds = time.monotonic() - began
        self._pods += count
        sent = (self._requests() - requests).total()
        webhook, server = cpu_seconds(pid) - spent[0], cpu_seconds(api) - spent[1]
        reviewed_after, seconds_after = self._webhook.review_seconds()
        return Pods(
            count,
            count / seconds,
            1000 * webhook / count,
            1000 * server / count,
            1000 * (seconds_after - reviewed[1]) / (reviewed_after - reviewed[0]),
            sent / count,
            (self._relay.read - read) / count,
            rss_mib(pid),
        )

    # --- changes ----------------------------------------------------------------------------------------------

    def _changed(self, kind: str, names: Sequence[str]) -> Change:
        time.sleep(_QUIET)
        pid = self._webhook.pid
        spent, read = cpu_seconds(pid), self._relay.read
        for name in names:
            self._api.merge(kind, name, {"metadata": {"annotations": {"example.com/changed": str(time.time())}}})
        time.sleep(_QUIET)
        return Change(1000 * (cpu_seconds(pid) - spent) / len(names), (self._relay.read - read) / len(names))

    # --- the driver -------------------------------------------------------------------------------------------

    def _driver(self, node: str) -> Driver:
        labels = {**_LABELS, "kubernetes.io/hostname": node}
        self._api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels}})
        kubeconfig = self._through_relay(self._plane.user_kubeconfig(USER))
        directories = bare_node(node, self._folder / node / "kubelet")
        return Driver(self._plane, directories, _TYPE, flags=("--registration-wait=0",), kubeconfig=kubeconfig)

    def _start_driver(self, driver: Driver) -> DriverStart:
        requests, read = self._requests(), self._relay.read
        driver.process.start()
        try:
            # It publishes after it has read which claims were prepared.
            driver.process.wait_ready(lambda: _published(driver))
            time.sleep(_QUIET)
            sent = self._requests() - requests
            return DriverStart(sent, (self._relay.read - read) / _MEBIBYTE, cpu_seconds(driver.process.pid))
        finally:
            driver.process.kill()

    def _create_claims(self) -> None:
        """Claims that pods of another node use."""
        namespace = self._namespace(0, 0)
        request = {"name": "n0", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 16}}
        results = [
            {"request": "n0", "driver": DRIVER, "pool": "node-0", "device": f"neuron-device-{device}"}
            for device in range(_DEVICES)
        ]
        status = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "elsewhere", "uid": "elsewhere"}],
        }

        def create(number: int) -> None:
            claim: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
            claim |= {"metadata": {"name": f"claim-{number}"}, "spec": {"devices": {"requests": [request]}}}
            self._api.create(claim, namespace)
            self._api.merge("ResourceClaim", f"claim-{number}", {"status": status}, namespace, "status")

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(create, range(_CLAIMS)))


def _published(driver: Driver) -> bool:
    """Whether a driver has published, by its own metrics: a look at the API server would be counted."""
    try:
        return driver.metric("slices_published") > 0
    except httpx.HTTPError:
        return False


@click.command()
@click.option("--nodes", "sizes", default=(50, 500, 5_000), multiple=True, type=click.IntRange(1), help="Rising sizes.")
@click.option("--pods", default=(1_000, 3_000, 10_000), multiple=True, type=click.IntRange(1), help="At each size.")
@click.option("--rate", default=50.0, show_default=True, help="Pods per second.")
@click.option(
    "--write", "page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Write the table to a page."
)
def main(sizes: tuple[int, ...], pods: tuple[int, ...], rate: float, page: Path | None) -> None:
    """Measure a replica and a driver by the number of nodes; fail where a cost grows faster than the nodes."""
    if len(sizes) != len(pods):
        raise click.UsageError(f"give --pods once for each --nodes: {len(pods)} for {len(sizes)}")
    points = []
    with control_plane() as (plane, folder):
        cluster = Cluster(plane, folder, len(sizes))
        with cluster.alone():
            for nodes, count in zip(sorted(sizes), pods, strict=True):
                points.append(cluster.measure(nodes, count, rate))
                click.echo(f"{points[-1]}", err=True)
            starts = cluster.driver_starts()
    text = table(points, starts)
    click.echo(text)
    if page is not None:
        write(page, text)
    steep = [title for title, values in costs(points).items() if above_linear(values) > MOST_ABOVE_LINEAR]
    if steep:
        raise click.ClickException(f"grows faster than the number of nodes: {', '.join(steep)}")


if __name__ == "__main__":
    main()
