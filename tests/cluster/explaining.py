"""`neuron-dra explain` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane


class Explain:
    """The command in one namespace of a control plane."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self._plane = plane
        self._namespace = namespace
        self._folder = folder

    def __call__(self, *arguments: str, code: int) -> Any:
        binary = Path(sys.executable).parent / "neuron-dra"
        kubeconfig = f"--kubeconfig={self._plane.admin_kubeconfig}"
        argv = [str(binary), "explain", kubeconfig, "-n", self._namespace, "-o", "json", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr + done.stdout
        return json.loads(done.stdout)

    def file(self, body: Object, code: int = 0) -> Any:
        """The explanation of a manifest."""
        path = self._folder / "pod.yaml"
        path.write_text(yaml.safe_dump(body))
        [found] = self("-f", str(path), code=code)
        return found

    def pod(self, name: str, code: int = 1) -> Any:
        """The explanation of a pod of the cluster."""
        [found] = self(f"pod/{name}", code=code)
        return found
