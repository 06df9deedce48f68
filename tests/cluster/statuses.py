"""`neuron-dra status` as a command, and what it prints."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Status:
    """The exit code and the output of the command."""

    code: int
    checks: list[dict[str, str]]
    stderr: str

    def texts(self, verdict: str) -> list[str]:
        """What has one verdict."""
        return [line["text"] for line in self.checks if line["verdict"] == verdict]

    def of(self, check: str) -> set[str]:
        """Verdicts of one check."""
        return {line["verdict"] for line in self.checks if line["check"] == check}


def status(kubeconfig: Path, *arguments: str) -> Status:
    """Run the command."""
    binary = Path(sys.executable).parent / "neuron-dra"
    argv = [str(binary), "status", f"--kubeconfig={kubeconfig}", "-o", "json", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    checks = json.loads(done.stdout)["checks"] if done.stdout else []
    return Status(done.returncode, checks, done.stderr)
