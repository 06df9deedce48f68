"""`python -m benchmarks.prepare`: the time to prepare and unprepare one claim with 16 devices or with a share of one.

The files are real: the checkpoint and the CDI spec are synced to the disk of `--directory`. The time excludes the API
server, from which the driver reads the claim, and the kubelet's call. The last line is the time from sysfs to the
ResourceSlice of a node with 16 devices, windows and shares.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from kubeletplugin.discover import emulate
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.discover.sysfs import discover, read_ultraserver
from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare.cdi import SpecFiles
from kubeletplugin.prepare.decide import NodeView
from kubeletplugin.prepare.preparer import Preparer
from kubeletplugin.publish.slices import NodeDevices, desired_slices
from neuron import names
from neuron.api.allocation import AllocatedClaim, read_allocation

_NODE = "node-1"
_WARM_UP = 20


def _claim(number: int, devices: int, cores: int | None = None) -> AllocatedClaim:
    uid = f"00000000-0000-4000-8000-{number:012d}"
    share = {"shareID": uid, "consumedCapacity": {names.CAPACITY_CORES: str(cores)}} if cores else {}
    results = [
        {"request": "neurons", "driver": names.DRIVER, "pool": _NODE, "device": f"neuron-device-{index}"} | share
        for index in range(devices)
    ]
    parameters = {"apiVersion": f"{names.DRIVER}/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
    config = {"source": "FromClaim", "opaque": {"driver": names.DRIVER, "parameters": parameters}}
    body = {
        "metadata": {"namespace": "default", "name": f"claim-{number}", "uid": uid},
        "status": {"allocation": {"devices": {"results": results, "config": [config]}}},
    }
    return read_allocation(body, names.DRIVER, _NODE, uid)


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _measure(root: Path, claims: int) -> dict[str, list[float]]:
    entry = emulate.emulated_type("trn2.48xlarge")
    emulate.write_tree(root, entry)
    files, boot_id = DiskFiles(), "boot"
    specs = SpecFiles(files, root / "cdi", boot_id, root / "dev")
    preparer = Preparer(files, state_dir=root / "state", specs=specs, boot_id=boot_id)
    preparer.recover()
    view = NodeView(discover(root / "sys", root / "dev"), entry, lambda: read_ultraserver(root / "sys"))
    preparer.complete([], [], view)  # nothing is prepared
    times: dict[str, list[float]] = {}
    for number in range(_WARM_UP + claims):
        for what, claim in (("", _claim(number, emulate.devices_of(entry))), (" share", _claim(number, 1, cores=2))):
            took = {
                f"prepare{what}": _milliseconds(lambda claim=claim: preparer.prepare(claim, view)),  # type: ignore[misc]
                f"unprepare{what}": _milliseconds(lambda claim=claim: preparer.unprepare(claim.uid)),  # type: ignore[misc]
            }
            if number >= _WARM_UP:
                for operation, milliseconds in took.items():
                    times.setdefault(operation, []).append(milliseconds)
    return times


def _measure_slices(root: Path, rounds: int) -> list[float]:
    entry = emulate.emulated_type("inf1.24xlarge")
    emulate.write_tree(root, entry)

    def publish() -> None:
        found = NodeDevices(discover(root / "sys", root / "dev"), entry, shares_cores=True)
        msgspec.json.encode([piece.content for piece in desired_slices(NodeFacts(_NODE, "uid"), found, "1.0.0")])

    return [_milliseconds(publish) for _ in range(rounds)]


@click.command()
@click.option(
    "--claims",
    default=400,
    show_default=True,
    type=click.IntRange(2),
    help="Number of claims to prepare, one after the other.",
)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False),
    help="Directory for the files; default: a temporary one.",
)
def main(claims: int, directory: str | None) -> None:
    """Measure preparing claims, and making the slices of a node, in milliseconds."""
    with tempfile.TemporaryDirectory(dir=directory) as root:
        measured = _measure(Path(root, "claims"), claims) | {"slices": _measure_slices(Path(root, "slices"), claims)}
        for operation, times in measured.items():
            percentiles = statistics.quantiles(times, n=100, method="inclusive")
            click.echo(f"{operation:<15}  p50 {percentiles[49]:6.2f} ms  p99 {percentiles[98]:6.2f} ms")


if __name__ == "__main__":
    main()
