"""`neuron-dra templates`, as its ServiceAccount."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.cluster.controlplane import ControlPlane
from tests.cluster.webhooks import MANIFESTS

COMMAND: Final = Path(sys.executable).parent / "neuron-dra"


@dataclasses.dataclass(frozen=True)
class Prune:
    """The command, as its ServiceAccount."""

    kubeconfig: Path

    def argv(self, command: str, namespace: str, *flags: str) -> list[str]:
        return [
            str(COMMAND),
            "templates",
            command,
            f"--kubeconfig={self.kubeconfig}",
            f"--namespace={namespace}",
            *flags,
        ]

    def run(self, command: str, namespace: str, *flags: str) -> tuple[int, str, str]:
        argv = self.argv(command, namespace, *flags)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=90, check=False)
        return done.returncode, done.stdout, done.stderr

    def must(self, namespace: str, *flags: str, older_than: str = "0s", grace: str = "1s") -> dict[str, str]:
        """Prune; the outcome for each candidate."""
        chosen = (f"--older-than={older_than}", f"--grace={grace}", "-ojson", *flags)
        code, stdout, stderr = self.run("prune", namespace, *chosen)
        assert code == 0, stderr + stdout
        return {each["name"]: each["outcome"] for each in json.loads(stdout)["templates"]}


def pruning(plane: ControlPlane) -> Iterator[Prune]:
    """The command with the account and the rights of its manifest, which go afterwards."""
    kubectl = plane.kubectl().within("neuron-dra")
    manifest = str(MANIFESTS / "prune.yaml")
    kubectl.must("apply", "-f", manifest)
    token = kubectl.must("create", "token", "neuron-dra-prune", "--duration=2h").stdout.strip()
    yield Prune(plane.token_kubeconfig("neuron-dra-prune", token))
    kubectl.must("delete", "-f", manifest, "--wait=false")
