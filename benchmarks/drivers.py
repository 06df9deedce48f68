"""`python -m benchmarks.drivers`: this driver, and the example driver of kubernetes-sigs, under one real kubelet.

Starts a control plane and a kubelet (KUBEBUILDER_ASSETS), whose container runtime runs nothing. Both drivers serve the
same node. Measured in turns: the time until a starting driver has published its devices; pods with a claim each, one
after the other and all at once, beside pods without a claim. The time of one call of the kubelet includes the driver's
request for the claim; the kubelet measures it (`dra_grpc_operations_duration_seconds`).

The example driver is optional: give the path of its binary, `dra-example-kubeletplugin`.
"""

import dataclasses
import re
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

import click

from benchmarks.planes import control_plane
from benchmarks.reviews import Object
from benchmarks.servers import cpu_seconds, rss_mib
from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, install_rbac, seconds_to_run
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import claim_template, container, pod
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE, device_class
from tests.cluster.processes import Process, eventually
from tests.support.loops import Loop

EXAMPLE: Final = "gpu.example.com"
TYPE: Final = "trn2.48xlarge"
_NODE: Final = "node-1"
_NAMESPACE: Final = "drivers"
_DEVICES: Final = 16
_METRIC: Final = "dra_grpc_operations_duration_seconds"


class Running(Protocol):
    """A driver that can be started several times."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def start(self) -> None:
        """Start it; return when the kubelet has registered it."""

    def stop(self) -> None:
        """Stop it."""


class _Ours:
    def __init__(self, plane: ControlPlane, kubelet: Kubelet) -> None:
        install_rbac(plane.admin)
        self._driver = Driver(plane, kubelet, TYPE)
        self.start = self._driver.start

    @property
    def pid(self) -> int:
        return self._driver.process.pid

    def stop(self) -> None:
        self._driver.process.stop()


class _Example:
    def __init__(self, plane: ControlPlane, kubelet: Kubelet, binary: Path, folder: Path) -> None:
        flags = {
            "node-name": _NODE,
            "kubeconfig": plane.user_kubeconfig("example-driver", ("system:masters",)),
            "cdi-root": kubelet.cdi_directory,
            "num-devices": _DEVICES,
            "kubelet-plugins-directory-path": kubelet.plugins,
            "kubelet-registrar-directory-path": kubelet.plugins_registry,
        }
        (kubelet.plugins / EXAMPLE).mkdir(parents=True, exist_ok=True)
        command = [str(binary), *(f"--{name}={value}" for name, value in flags.items())]
        self._api = plane.admin
        self._process = Process("example", command, folder / "example.log")

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self._process.start()
        self._process.wait_ready(lambda: bool(published(self._api, EXAMPLE)))

    def stop(self) -> None:
        self._process.stop()


@dataclasses.dataclass(frozen=True)
class Calls:
    """The kubelet's calls of one driver: their number and their seconds together."""

    count: float = 0.0
    seconds: float = 0.0

    def since(self, before: "Calls") -> float:
        """Mean milliseconds of the calls after an earlier look."""
        count = self.count - before.count
        return 1000 * (self.seconds - before.seconds) / count if count else 0.0


def published(api: Api, driver: str) -> list[Object]:
    """The slices of a driver on the node that have devices."""
    found = api.list("ResourceSlice", fieldSelector=f"spec.nodeName={_NODE},spec.driver={driver}")
    return [each for each in found if each["spec"].get("devices")]


class Node:
    """The node, its kubelet and its pods."""

    def __init__(self, plane: ControlPlane, kubelet: Kubelet) -> None:
        self._api = plane.admin
        self._kubelet = kubelet
        labels = {"resource.kubernetes.io/admin-access": "true"}
        self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE, "labels": labels}})
        plane.wait_namespace_usable(_NAMESPACE)

    def offer(self, driver: str) -> None:
        """A claim of one device of a driver. With admin access, so that a hundred of them fit on sixteen devices."""
        self._api.create(device_class(driver, driver=driver))
        request: Object = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": 1, "adminAccess": True}
        spec = {"devices": {"requests": [{"name": "one", "exactly": request}]}}
        self._api.create(claim_template(driver, spec), _NAMESPACE)

    def published_after(self, driver: str, running: Running) -> float:
        """Seconds from the start of a driver until its devices are published."""
        running.stop()
        for each in self._api.list("ResourceSlice", fieldSelector=f"spec.driver={driver}"):
            self._api.delete("ResourceSlice", each["metadata"]["name"])
        began = time.monotonic()
        taken: list[float] = []

        def look() -> None:
            if not taken and published(self._api, driver):
                taken.append(time.monotonic() - began)

        with Loop(look, pause=0.01):
            running.start()
            eventually("devices to be published", lambda: bool(taken))
        return taken[0]

    def run(self, driver: str | None, count: int) -> float:
        """Create pods at once; seconds until all of them run. Then remove them."""
        uses = container(resources={"claims": [{"name": "device"}]} if driver else {})
        fields: Object = {"terminationGracePeriodSeconds": 0}
        if driver:
            fields["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": driver}]
        pods = [pod(f"pod-{number}", uses, **fields) for number in range(count)]
        seconds = seconds_to_run(self._api, _NAMESPACE, pods, interval=0.05)
        self._api.delete_all("Pod", _NAMESPACE, force=True)
        eventually("the pods to be gone", lambda: not self._api.list("Pod", _NAMESPACE), timeout=60)
        eventually("the claims to be gone", lambda: not self._api.list("ResourceClaim", _NAMESPACE), timeout=60)
        return seconds

    def calls(self, driver: str, method: str) -> Calls:
        """The kubelet's calls of a method of a driver."""
        found = {}
        for part in ("count", "sum"):
            pattern = rf'^{_METRIC}_{part}{{(?=.*driver_name="{driver}")(?=.*{method}")[^}}]*}} (\S+)$'
            found[part] = sum(float(each) for each in re.findall(pattern, self._kubelet.metrics(), re.MULTILINE))
        return Calls(found["count"], found["sum"])


@dataclasses.dataclass
class Figures:
    """Measurements of one driver; lists have one value per round."""

    published: list[float] = dataclasses.field(default_factory=list)
    at_once: list[float] = dataclasses.field(default_factory=list)
    alone: list[float] = dataclasses.field(default_factory=list)
    together: list[float] = dataclasses.field(default_factory=list)
    unprepared: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    memory: float = 0.0


def measure(node: Node, driver: str, running: Running, figures: Figures, pods: int) -> None:
    """One round of one driver."""
    prepare, unprepare = "NodePrepareResources", "NodeUnprepareResources"
    before = node.calls(driver, prepare)
    for _ in range(5):
        node.run(driver, 1)
    after = node.calls(driver, prepare)
    figures.alone.append(after.since(before))
    left, busy = node.calls(driver, unprepare), cpu_seconds(running.pid)
    figures.at_once.append(node.run(driver, pods))
    figures.together.append(node.calls(driver, prepare).since(after))
    eventually(
        "the kubelet to unprepare", lambda: node.calls(driver, unprepare).count - left.count >= pods, timeout=120
    )
    figures.unprepared.append(node.calls(driver, unprepare).since(left))
    figures.cpu.append((cpu_seconds(running.pid) - busy) / pods)
    figures.memory = rss_mib(running.pid)


def _report(found: dict[str, Figures], plain: list[float], pods: int) -> None:
    median = statistics.median
    click.echo(f"\n{'':<34}" + "".join(f"{name:>18}" for name in found))
    rows: dict[str, Callable[[Figures], str]] = {
        "devices published after": lambda each: f"{median(each.published):.2f} s",
        "prepare, one pod at a time": lambda each: f"{median(each.alone):.1f} ms",
        f"prepare, {pods} pods at once": lambda each: f"{median(each.together):.1f} ms",
        f"unprepare, {pods} pods at once": lambda each: f"{median(each.unprepared):.1f} ms",
        f"{pods} pods at once run after": lambda each: f"{median(each.at_once):.1f} s",
        "  x pods without a claim": lambda each: f"{median(each.at_once) / median(plain):.2f}",
        "CPU for one pod": lambda each: f"{1000 * median(each.cpu):.1f} ms",
        "RSS": lambda each: f"{each.memory:.0f} MiB",
    }
    for title, value in rows.items():
        click.echo(f"{title:<34}" + "".join(f"{value(each):>18}" for each in found.values()))


@click.command()
@click.option(
    "--example",
    type=click.Path(exists=True, dir_okay=False, path_type=Path, resolve_path=True),
    help="The binary of the example driver, dra-example-kubeletplugin; without it only this driver is measured.",
)
@click.option("--pods", default=100, show_default=True, type=click.IntRange(1, 100), help="Pods at once.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="The table shows medians.")
def main(example: Path | None, pods: int, rounds: int) -> None:
    """Measure drivers under a real kubelet: publishing devices, preparing claims, many pods at once."""
    with control_plane() as (plane, folder), ExitStack() as stack:
        kubelet = Kubelet(plane, folder / "node", _NODE, {INSTANCE_TYPE: TYPE})
        stack.callback(kubelet.stop)
        kubelet.start()
        node = Node(plane, kubelet)
        drivers: dict[str, Running] = {DRIVER: _Ours(plane, kubelet)}
        if example is not None:
            drivers[EXAMPLE] = _Example(plane, kubelet, example, folder)
        found = {driver: Figures() for driver in drivers}
        for driver, running in drivers.items():
            node.offer(driver)
            stack.callback(running.stop)
            running.start()
        node.run(None, pods)  # The kubelet and the API server warm up.
        plain = []
        for _ in range(rounds):
            plain.append(node.run(None, pods))
            for driver, running in drivers.items():
                measure(node, driver, running, found[driver], pods)
        for _ in range(rounds):
            for driver, running in drivers.items():
                found[driver].published.append(node.published_after(driver, running))
        _report(found, plain, pods)


if __name__ == "__main__":
    main()
