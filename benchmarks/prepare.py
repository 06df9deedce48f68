"""`python -m benchmarks.prepare`: the time to prepare and unprepare one claim with 16 devices.

The files are real: the checkpoint and the CDI spec are synced to the disk of `--directory`. The time excludes the API
server, from which the driver reads the claim, and the kubelet's call.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from kubeletplugin import emulate
from kubeletplugin.cdi import SpecFiles
from kubeletplugin.decide import NodeView
from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare import Preparer
from kubeletplugin.sysfs import discover, read_ultraserver
from neuron import names
from neuron.allocation import AllocatedClaim, read_allocation

_NODE = "node-1"
_WARM_UP = 20


def _claim(number: int, devices: int) -> AllocatedClaim:
    uid = f"00000000-0000-4000-8000-{number:012d}"
    results = [
        {"request": "neurons", "driver": names.DRIVER, "pool": _NODE, "device": f"neuron-device-{index}"}
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
    times: dict[str, list[float]] = {"prepare": [], "unprepare": []}
    for number in range(_WARM_UP + claims):
        claim = _claim(number, emulate.devices_of(entry))
        took = (
            _milliseconds(lambda claim=claim: preparer.prepare(claim, view)),  # type: ignore[misc]
            _milliseconds(lambda claim=claim: preparer.unprepare(claim.uid)),  # type: ignore[misc]
        )
        if number >= _WARM_UP:
            for operation, milliseconds in zip(times, took, strict=True):
                times[operation].append(milliseconds)
    return times


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
    """Measure preparing one claim with 16 devices, in milliseconds."""
    with tempfile.TemporaryDirectory(dir=directory) as root:
        for operation, times in _measure(Path(root), claims).items():
            percentiles = statistics.quantiles(times, n=100, method="inclusive")
            click.echo(f"{operation:<9}  p50 {percentiles[49]:6.2f} ms  p99 {percentiles[98]:6.2f} ms")


if __name__ == "__main__":
    main()
