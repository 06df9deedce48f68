"""A real control plane for a benchmark."""

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tests.cluster.controlplane import DEFAULTS, Assets, AssetsMissingError, ControlPlane, Tuning


@contextmanager
def control_plane(tuning: Tuning = DEFAULTS) -> Iterator[tuple[ControlPlane, Path]]:
    """A running control plane (KUBEBUILDER_ASSETS), and a folder for the benchmark's own files.

    Raises:
        click.ClickException: there are no binaries.
    """
    # Stops the control plane also if the benchmark is ended by a time-out.
    signal.signal(signal.SIGTERM, _end)
    try:
        assets = Assets.locate()
    except AssetsMissingError as error:
        raise click.ClickException(str(error)) from error
    with tempfile.TemporaryDirectory(prefix="neuron-dra-bench-") as name:
        folder = Path(name)
        (folder / "plane").mkdir()
        plane = ControlPlane(assets, folder / "plane", tuning=tuning)
        try:
            plane.start()
            yield plane, folder
        finally:
            plane.stop()


def _end(number: int, _: object) -> None:
    """End the benchmark once: make sends the signal, too, and a second one would interrupt the clean-up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)
