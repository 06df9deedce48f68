"""`python -m benchmarks.free_runs`: of the free runs of devices, how many a converted pod gets on a real scheduler.

For each type, each number of devices and each run of so many connected devices there is a node on which only that run
is free, and a pod that requests that number. A count that nothing constrains is placed on all of them, which is the
reference. The pod selects its type, or it may run on all types of the table.
Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler (KUBEBUILDER_ASSETS); nodes have no kubelet.
"""

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import click

from benchmarks.planes import control_plane
from benchmarks.scheduling import Cluster
from conversion.asks.conversion_context import ConversionOptions
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from neuron import names
from neuron.hardware.instances import Catalogue, InstanceType
from neuron.hardware.windows import Line
from tests.cluster.controlplane import UNLIMITED
from tests.cluster.nodes import DRIVER, device_class
from tests.support.mixtures import Hardware, Object

TYPES: Final = ("trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge", "inf2.24xlarge", "inf1.24xlarge", "inf1.6xlarge")
_AT_ONCE: Final = 100
"""Nodes of one round."""

Placed = Mapping[str, Mapping[int, Sequence[bool]]]
"""By type and number of devices: for each free run, whether the pod was placed."""


@dataclasses.dataclass(frozen=True, slots=True)
class FreeRun:
    """A node of a type on which so many connected devices are free, and no others."""

    entry: InstanceType
    devices: tuple[int, ...]


def free_runs(entry: InstanceType) -> Iterator[FreeRun]:
    """All of a type: runs of a ring or chain, groups elsewhere, and the whole node."""
    total = entry.devices or 1
    for count in range(1, total + 1):
        if entry.line is not None:
            sets = {tuple(sorted(entry.line.window(count, start))) for start in entry.line.starts(count)}
        else:
            sets = {tuple(range(start, start + count)) for start in range(0, total, count)}
        if entry.line is not None or count in entry.counts:
            yield from (FreeRun(entry, each) for each in sorted(sets))


def measure(cluster: Cluster, entries: Sequence[InstanceType], *, together: bool) -> Placed:
    """Play all cases on a cluster. `together`: the pod may run on all types."""
    found: dict[str, dict[int, list[bool]]] = {}
    cases = [case for entry in entries for case in free_runs(entry)]
    for start in range(0, len(cases), _AT_ONCE):
        on_nodes = {cluster.node(_hardware(case.entry)): case for case in cases[start : start + _AT_ONCE]}
        cluster.hold_each({node: busy for node, case in on_nodes.items() if (busy := _busy(case))}, {})
        placed = cluster.placed(
            {node: _spec(len(case.devices), entries if together else [case.entry]) for node, case in on_nodes.items()}
        )
        for node, case in on_nodes.items():
            found.setdefault(case.entry.name, {}).setdefault(len(case.devices), []).append(node in placed)
        cluster.clear()
    return found


def _hardware(entry: InstanceType) -> Hardware:
    return Hardware(entry.name, entry.line or Line(entry.devices or 1, wraps=False), entry.cores_per_device or 1)


def _busy(case: FreeRun) -> list[int]:
    return sorted(set(range(case.entry.devices or 1)) - set(case.devices))


def _spec(count: int, entries: Sequence[InstanceType]) -> Object:
    """The claim that conversion generates for the types that serve the count."""
    serving = [
        each for each in entries if count in each.counts or (each.line is not None and count <= each.line.devices)
    ]
    ask = Ask("main", Role.APP, "spec.containers[0]", names.RESOURCE_NEURON, count)
    made = make_claim([ask], serving, DeviceConfig(), DRIVER, pin_types=False)
    if not isinstance(made, Claim):
        raise click.ClickException(str(made.findings[0]))
    return dict(made.template.spec["spec"])


def share(runs: Mapping[int, Sequence[bool]]) -> float:
    """The share of the free runs that were given; every number of devices counts as much."""
    return statistics.fmean(statistics.fmean(each) for each in runs.values())


def lost(runs: Mapping[int, Sequence[bool]]) -> str:
    """The numbers of devices with runs that were not given, such as `7: 4 of 12`."""
    return ", ".join(
        f"{count}: {each.count(False)} of {len(each)}" for count, each in sorted(runs.items()) if not all(each)
    )


@click.command()
def main() -> None:
    """Count the free runs that converted pods get on a real scheduler, as a share of those that counts get."""
    with control_plane(UNLIMITED) as (plane, _):
        plane.admin.create(device_class())
        version = str(plane.admin.request("GET", "/version").body["gitVersion"])
        catalogue = Catalogue().scheduled(tries_orders=ConversionOptions(DRIVER).tries_orders(version))
        entries = [entry for entry in catalogue if entry.name in TYPES]
        cluster = Cluster(plane)
        click.echo(f"free runs that converted pods get, of those that counts get; Kubernetes {version}")
        for together, title in ((False, "the pod selects the type"), (True, "the pod may run on all of them")):
            placed = measure(cluster, entries, together=together)
            click.echo(title)
            for name, runs in placed.items():
                click.echo(f"  {name:15} {share(runs):6.3f}  {lost(runs)}".rstrip())
            click.echo(f"  {'all':15} {statistics.fmean(map(share, placed.values())):6.3f}")


if __name__ == "__main__":
    main()
