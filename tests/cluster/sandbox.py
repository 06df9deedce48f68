"""A cluster on one machine: `make sandbox`. Tests of the tutorials use the same.

etcd, API server, controllers and scheduler are real, as are the kubelets, the webhook and the drivers. The devices are
emulated. The kubelets' container runtime records what a container gets, and runs nothing.
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import click

from neuron.hardware.instances import Catalogue
from tests.cluster.controlplane import Assets, AssetsMissingError, ControlPlane
from tests.cluster.driver import Driver
from tests.cluster.kubelet import Kubelet
from tests.cluster.nodes import INSTANCE_TYPE
from tests.cluster.planes import started
from tests.cluster.webhooks import Webhook, install_rbac

DEFAULT: Final = ("trn2.48xlarge",)


class Sandbox:
    """The webhook at a control plane, and a node for each instance type given.

    Attributes:
        nodes: name -> instance type. Nodes of one UltraServer type are members of one UltraServer.
    """

    def __init__(self, plane: ControlPlane, types: tuple[str, ...] = DEFAULT) -> None:
        self.plane = plane
        self.nodes = {f"node-{number}": name for number, name in enumerate(types, start=1)}
        # Paths of sockets are short, and the directory's may not be.
        self._short = Path(tempfile.mkdtemp(prefix="sandbox-"))
        nodes = plane.directory / "nodes"
        shutil.rmtree(nodes, ignore_errors=True)  # Those of a sandbox before.
        nodes.mkdir()
        (self._short / "n").symlink_to(nodes)
        self._kubelets: list[Kubelet] = []
        self._drivers: list[Driver] = []
        self._webhook: Webhook | None = None

    def start(self) -> None:
        """Return when pods can be created, converted and run."""
        self._webhook = Webhook(self.plane, install_rbac(self.plane))
        self._webhook.start()
        for configuration in self._webhook.configurations("validating.yaml"):
            self.plane.admin.create(configuration)
        self._webhook.install()
        numbers: Counter[str] = Counter()
        for node, instance_type in self.nodes.items():
            kubelet = Kubelet(self.plane, self._short / "n" / node, node, {INSTANCE_TYPE: instance_type})
            self._kubelets.append(kubelet)
            kubelet.start()
            driver = Driver(
                self.plane, kubelet, instance_type, flags=(f"--emulate-node-id={numbers[instance_type] % 4}",)
            )
            numbers[instance_type] += 1
            self._drivers.append(driver)
            driver.start()

    def stop(self) -> None:
        """Stop everything but the control plane."""
        for driver in self._drivers:
            driver.process.stop()
        for kubelet in self._kubelets:
            kubelet.stop()
        if self._webhook is not None:
            self._webhook.stop()
        shutil.rmtree(self._short, ignore_errors=True)


def _instance_type(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    known = {entry.name: entry for entry in Catalogue()}
    for value in values:
        if value not in known:
            raise click.BadParameter(f"{value!r} is no known instance type. Known are: {', '.join(sorted(known))}.")
    return values or DEFAULT


@click.command()
@click.argument("types", metavar="[INSTANCE TYPE]...", nargs=-1, callback=_instance_type)
@click.option("--directory", type=click.Path(path_type=Path), default=Path("build/sandbox"), show_default=True)
def main(types: tuple[str, ...], directory: Path) -> None:
    """Run a cluster with one emulated node for each INSTANCE TYPE, until Ctrl-C."""
    try:
        assets = Assets.locate()
    except AssetsMissingError as error:
        raise click.ClickException(str(error)) from error
    if not assets.has("kubelet"):
        raise click.ClickException(f"{assets.folder} lacks kubelet. Set KUBEBUILDER_ASSETS to a folder that has it.")
    if os.geteuid() != 0:
        raise click.ClickException("The kubelet needs root: run this in a root shell (sudo --shell).")
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    click.echo(f"Starting a cluster with {len(types)} node{'s' if len(types) > 1 else ''}; logs are in {directory}.")
    plane = started(assets, directory.resolve())
    sandbox = Sandbox(plane, types)
    try:
        sandbox.start()
        nodes = ", ".join(f"{node} ({kind})" for node, kind in sandbox.nodes.items())
        click.echo(
            f"The cluster is ready: {nodes}. Ctrl-C stops it. In another terminal:\n\n"
            f"  export KUBECONFIG={plane.admin_kubeconfig}\n"
            f"  kubectl get nodes\n"
        )
        stop.wait()
    finally:
        sandbox.stop()
        plane.stop()


if __name__ == "__main__":
    sys.exit(main())
