"""Logs of a failed test: what its processes wrote and what the API server holds, in one folder."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.cluster.controlplane import ControlPlane

_MOST: Final = 16 * 1024 * 1024
"""Bytes of a log that are kept: its end."""
_SHOWN: Final = (
    "nodes,pods,resourceclaims,resourceslices,deviceclasses --output=wide",
    "mutatingwebhookconfigurations,validatingwebhookconfigurations",
    "clusterroles --selector=!kubernetes.io/bootstrapping",
    "events --sort-by=.lastTimestamp",
    "pods --output=yaml",
    "resourceclaims --output=yaml",
)


def folder_name(node_id: str) -> str:
    """A test's id as a path: its file, then its name."""
    file, _, name = node_id.partition("::")
    return f"{Path(file).stem}/{re.sub(r'[^A-Za-z0-9_.=-]+', '-', name).strip('-')[:150]}"


def collect(folder: Path, directory: Path, since: float, planes: Iterable[ControlPlane]) -> None:
    """Copy the logs below a directory that were written to since a moment (seconds since the epoch).

    Args:
        folder: where to; it is made.
        directory: with the directories of all processes.
        since: for instance the start of the test's file.
        planes: control planes that run; what they hold goes into `objects-*.txt`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for log in sorted(directory.rglob("*.log")):
        about = log.stat()
        if about.st_mtime >= since and about.st_size:
            target = folder / "-".join(log.relative_to(directory).parts)
            with log.open("rb") as source, target.open("wb") as copy:
                source.seek(max(about.st_size - _MOST, 0))
                shutil.copyfileobj(source, copy)
    for plane in planes:
        (folder / f"objects-{plane.directory.name}.txt").write_text(_objects(plane))


def _objects(plane: ControlPlane) -> str:
    kubectl = plane.kubectl()
    parts = []
    for arguments in _SHOWN:
        try:
            result = kubectl.run("get", *arguments.split(), "--all-namespaces")
            said = result.stdout + result.stderr
        except (OSError, subprocess.SubprocessError) as error:
            said = str(error)
        parts.append(f"# kubectl get {arguments}\n{said}")
    return "\n".join(parts)
