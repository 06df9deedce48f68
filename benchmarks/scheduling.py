"""`python -m benchmarks.scheduling`: what consecutive devices cost a real scheduler, in pods per second and in seconds.

Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler (KUBEBUILDER_ASSETS) with 100 nodes that have no
kubelet. The same pods are scheduled with the claims that conversion generates and with counts that nothing constrains,
in turns; the scheduler is stopped while they are created. Then one pod that fits on no node is refused.
"""

import dataclasses
import itertools
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import click

from benchmarks.planes import control_plane
from benchmarks.servers import cpu_seconds
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from neuron import names
from neuron.hardware.instances import Catalogue
from neuron.hardware.windows import Line
from tests.cluster.allocating import claim, claiming_pod, refusal
from tests.cluster.api import Api
from tests.cluster.controlplane import DEFAULTS, UNLIMITED, ControlPlane
from tests.cluster.nodes import DRIVER, Fleet, device_class
from tests.cluster.processes import eventually
from tests.support import mixtures
from tests.support.mixtures import Hardware, Object, request

NAMESPACE: Final = "default"
SIZES: Final = (2, 3, 5)
_SETTLE: Final = 3.0

Claims = Callable[[int], Object]
"""The claim spec for a number of devices."""


class Cluster:
    """A control plane with emulated nodes of one kind."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._api: Api = plane.admin
        self._numbers = itertools.count()
        self._fleets: list[Fleet] = []
        self._held: list[str] = []

    def nodes(self, hardware: Hardware, count: int) -> tuple[str, ...]:
        """Add nodes; returns their names."""
        names = tuple(self.node(hardware) for _ in range(count))
        time.sleep(_SETTLE)
        return names

    def node(self, hardware: Hardware) -> str:
        """Add a node without waiting until the scheduler knows it; returns its name."""
        fleet = Fleet(self._api, f"bench-{next(self._numbers)}")
        self._fleets.append(fleet)
        return fleet.add_publishing(hardware.name, mixtures.slices(hardware))

    def hold(self, nodes: Sequence[str], devices: Sequence[int], capacity: Mapping[str, str]) -> None:
        """Allocate devices of each node, without the scheduler."""
        self.hold_each(dict.fromkeys(nodes, devices), capacity)

    def hold_each(self, busy: Mapping[str, Sequence[int]], capacity: Mapping[str, str]) -> None:
        """Allocate devices without the scheduler, by node."""
        for node, devices in busy.items():
            name = f"held-{next(self._numbers)}"
            self._api.create(claim(name, {"devices": {"requests": [request("n0", count=len(devices))]}}), NAMESPACE)
            results: list[Object] = [
                {"request": "n0", "driver": DRIVER, "pool": node, "device": f"neuron-device-{device}"}
                | ({"consumedCapacity": dict(capacity), "shareID": _share_id(device)} if capacity else {})
                for device in devices
            ]
            status = {"allocation": {"devices": {"results": results}}}
            self._api.merge("ResourceClaim", name, {"status": status}, NAMESPACE, "status")
            self._held.append(name)
        time.sleep(_SETTLE)

    def clear(self) -> None:
        """Remove nodes, slices and held devices."""
        for name in self._held:
            self._api.merge("ResourceClaim", name, {"status": {"allocation": None}}, NAMESPACE, "status")
            self._api.delete("ResourceClaim", name, NAMESPACE)
        for fleet in self._fleets:
            fleet.clear()
        self._held.clear()
        self._fleets.clear()
        time.sleep(_SETTLE)

    def schedule(self, claims: Claims, pods: int) -> tuple[float, float]:
        """Schedule pods of the sizes in turns, all waiting at the start.

        Returns:
            Pods per second, and the scheduler's CPU milliseconds per pod.
        """
        self._plane.scheduler.signal(signal.SIGSTOP)
        names = [f"pod-{next(self._numbers)}" for _ in range(pods)]
        for name, size in zip(names, itertools.cycle(SIZES), strict=False):
            self._api.create(claim(name, claims(size)), NAMESPACE)
            self._api.create(claiming_pod(name), NAMESPACE)
        time.sleep(_SETTLE)
        began, before = time.monotonic(), self._cpu()
        self._plane.scheduler.signal(signal.SIGCONT)
        eventually("the pods to be bound", lambda: self._bound(names), timeout=300, interval=0.1)
        seconds, busy = time.monotonic() - began, self._cpu() - before
        self._remove(names)
        return pods / seconds, 1000 * busy / pods

    def placed(self, wanted: Mapping[str, Object]) -> set[str]:
        """The nodes on which the scheduler places a claim of this spec; the pods are removed again."""
        pods = {f"pod-{next(self._numbers)}": node for node in wanted}
        for name, node in pods.items():
            self._api.create(claim(name, wanted[node]), NAMESPACE)
            self._api.create(claiming_pod(name, node), NAMESPACE)
        found: dict[str, Object] = {}

        def decided() -> bool:
            found.update({each["metadata"]["name"]: each for each in self._api.list("Pod", NAMESPACE)})
            return all(found[name]["spec"].get("nodeName") or refusal(found[name]) for name in pods)

        eventually("the scheduler to decide", decided, timeout=300, interval=0.2)
        self._remove(list(pods))
        return {node for name, node in pods.items() if found[name]["spec"].get("nodeName")}

    def _cpu(self) -> float:
        return cpu_seconds(self._plane.scheduler.pid)

    def _bound(self, names: Sequence[str]) -> bool:
        pods = {each["metadata"]["name"]: each for each in self._api.list("Pod", NAMESPACE)}
        refused = [refusal(pods[name]) for name in names if refusal(pods[name])]
        if refused:
            raise click.ClickException(f"a pod that fits was refused: {refused[0]}")
        return all(pods[name]["spec"].get("nodeName") for name in names)

    def refused_after(self, spec: Object) -> tuple[float, str]:
        """Seconds until a pod that fits on no node is refused, and the scheduler's words."""
        name = f"pod-{next(self._numbers)}"
        self._api.create(claim(name, spec), NAMESPACE)
        began = time.monotonic()
        self._api.create(claiming_pod(name), NAMESPACE)

        def said() -> str:
            found = self._api.get("Pod", name, NAMESPACE)
            if found["spec"].get("nodeName"):
                raise click.ClickException(f"{name} fits on {found['spec']['nodeName']}")
            return refusal(found)

        why = eventually("the pod to be refused", said, timeout=300, interval=0.02)
        seconds = time.monotonic() - began
        self._remove([name])
        return seconds, why

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._api.delete("Pod", name, NAMESPACE, force=True)
            self._api.delete("ResourceClaim", name, NAMESPACE)

        def gone() -> bool:
            left = {each["metadata"]["name"] for each in self._api.list("ResourceClaim", NAMESPACE)}
            return left.isdisjoint(names)

        eventually("the claims to be gone", gone, timeout=120, interval=0.2)
        time.sleep(_SETTLE)


def _share_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def _counts(size: int) -> Object:
    return {"devices": {"requests": [request("n0", count=size, selector="")]}}


def _converted(hardware: Hardware) -> Claims:
    """The claims that conversion generates for containers that request devices of such nodes."""
    known = Catalogue().get(hardware.name)
    if known is None:
        raise click.ClickException(f"{hardware.name} is not in the catalogue")
    entry = dataclasses.replace(known, shares_cores=hardware.shared)

    def spec(size: int) -> Object:
        ask = Ask("main", Role.APP, "spec.containers[0]", names.RESOURCE_NEURON, size)
        claim = make_claim([ask], [entry], DeviceConfig(), DRIVER, pin_types=False)
        if not isinstance(claim, Claim):
            raise click.ClickException(str(claim.findings[0]))
        return dict(claim.template.spec["spec"])

    return spec


ROWS: Final = (
    ("empty", False, ()),
    ("empty, cores shared", True, ()),
    ("half of them with no two neighbours free", False, tuple(range(0, 12, 2))),
    ("the same, cores shared", True, tuple(range(0, 12, 2))),
)
"""Name, whether cores are shared, and the devices in use on half of the nodes."""


def _throughput(cluster: Cluster, nodes: int, pods: int, rounds: int, rows: Sequence[int]) -> None:
    click.echo(f"\n{nodes} x inf2.48xlarge, {pods} pods of 2, 3 and 5 devices; pods/s, medians of {rounds} in turns")
    click.echo(f"{'':44} {'pods/s':>8} {'':9} {'':6} {'scheduler CPU ms/pod':>21}")
    click.echo(f"{'nodes':44} {'counts':>8} {'converted':>9} {'ratio':>6} {'counts':>10} {'converted':>10}")
    for name, shared, busy in (ROWS[row] for row in rows):
        hardware = Hardware("inf2.48xlarge", Line(12, wraps=True), 2, shared)
        kinds = {"counts": _counts, "converted": _converted(hardware)}
        found = cluster.nodes(hardware, nodes)
        if busy:
            cluster.hold(found[::2], busy, {mixtures.CORES: "2"} if shared else {})
        measured: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, claims in kinds.items():
                measured[kind].append(cluster.schedule(claims, pods))
        rates, costs = (
            [statistics.median(each[figure] for each in measured[kind]) for kind in kinds] for figure in (0, 1)
        )
        click.echo(
            f"{name:44} {rates[0]:8.1f} {rates[1]:9.1f} {rates[1] / rates[0]:6.2f} {costs[0]:10.0f} {costs[1]:10.0f}"
        )
        cluster.clear()


def _refusals(cluster: Cluster, nodes: int, rounds: int, rows: Sequence[int]) -> None:
    click.echo(
        f"\none pod that fits on none of {nodes} nodes; seconds until the scheduler says so, medians of {rounds}"
    )
    for name, hardware, busy, claims in [list(_refused())[row] for row in rows]:
        found = cluster.nodes(hardware, nodes)
        cluster.hold(found, busy, {mixtures.CORES: str(hardware.cores)} if hardware.shared else {})
        click.echo(name)
        for request_name, spec in claims:
            measured = [cluster.refused_after(spec) for _ in range(rounds)]
            why = "" if all("cannot allocate" in each for _, each in measured) else f"  {measured[0][1][:120]}"
            click.echo(f"  {request_name:52} {statistics.median(seconds for seconds, _ in measured):7.2f}{why}")
        cluster.clear()


def _refused() -> Iterator[tuple[str, Hardware, tuple[int, ...], list[tuple[str, Object]]]]:
    sixteen = Hardware("trn2.48xlarge", Line(16, wraps=False), 8, logical=2)
    whole: list[tuple[str, Object]] = [
        ("one request for 16", _counts(16)),
        ("converted: four requests for 4, by device ids", _converted(sixteen)(16)),
        ("allocationMode: All", {"devices": {"requests": [request("n0", allocationMode="All")]}}),
    ]
    yield "15 of 16 devices free, claims for the node", sixteen, (15,), whole
    yield "15 of 16 devices free, device 0 in use", sixteen, (0,), whole[:2]
    for shared in (False, True):
        inf2 = Hardware("inf2.48xlarge", Line(12, wraps=True), 2, shared)
        converted = _converted(inf2)

        def consecutive(*sizes: int, claims: Claims = converted) -> list[tuple[str, Object]]:
            return [(f"{size} consecutive devices", claims(size)) for size in sizes]

        title = f"every other device of 12 in use{', cores shared' if shared else ''}"
        yield title, inf2, tuple(range(0, 12, 2)), [*consecutive(2, 3, 5, 6, 9), ("7 devices", _counts(7))]
        title = f"devices 3 and 9 of 12 in use{', cores shared' if shared else ''}"
        of_twelve = [("one request for 12", _counts(12)), ("converted: 12 devices in fours", converted(12))]
        yield title, inf2, (3, 9), [*consecutive(8, 11), *of_twelve]


_ALL: Final = "0,1,2,3,4,5"


def _rows(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    if not set(value.split(",")) <= set(_ALL.split(",")):
        raise click.BadParameter("write row numbers such as 0,2")
    return [int(part) for part in value.split(",")]


@click.command()
@click.option("--nodes", default=100, show_default=True, help="Emulated nodes.")
@click.option("--pods", default=120, show_default=True, help="Pods of one measurement.")
@click.option("--rounds", default=3, show_default=True, help="Measurements of each case.")
@click.option("--only", type=click.Choice(["throughput", "refusals"]), help="One of the two parts.")
@click.option("--unlimited", is_flag=True, help="Without the scheduler's limit of 50 requests per second.")
@click.option("--rows", default=_ALL, callback=_rows, help="Rows of each part, from 0; default: all.")
def main(nodes: int, pods: int, rounds: int, only: str | None, unlimited: bool, rows: list[int]) -> None:
    """Measure a real scheduler with the claims of conversion and with unconstrained counts."""
    with control_plane(UNLIMITED if unlimited else DEFAULTS) as (plane, _):
        plane.admin.create(device_class())
        if only != "refusals":
            _throughput(Cluster(plane), nodes, pods, rounds, [row for row in rows if row < len(ROWS)])
        if only != "throughput":
            _refusals(Cluster(plane), nodes, rounds, rows)


if __name__ == "__main__":
    main()
