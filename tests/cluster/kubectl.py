"""kubectl, as a user would run it."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.api import Object
from tests.cluster.processes import LESS_COLLECTING


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """How one run of kubectl ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.code == 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """The admission warnings that it printed."""
        lines = self.stderr.splitlines()
        return tuple(line.removeprefix("Warning: ") for line in lines if line.startswith("Warning: "))


class KubectlError(AssertionError):
    """kubectl failed where it was expected to succeed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with one kubeconfig, in one namespace; with an empty one, in that of each object."""

    binary: Path
    kubeconfig: Path
    cache: Path
    namespace: str = "default"

    def within(self, namespace: str) -> "Kubectl":
        """The same, in another namespace."""
        return dataclasses.replace(self, namespace=namespace)

    def run(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run it, whatever comes of it."""
        argv = [str(self.binary), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}"]
        argv += [f"--namespace={self.namespace}"] if self.namespace else []
        argv += ["--request-timeout=30s", *arguments]
        environment = {**os.environ, **LESS_COLLECTING}
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=60, check=False, env=environment
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def must(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run it and insist on success.

        Raises:
            KubectlError: with what it printed.
        """
        result = self.run(*arguments, stdin=stdin)
        if not result.ok:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {result.stderr or result.stdout}")
        return result

    def feed(self, verb: str, *objects: Mapping[str, Any], flags: tuple[str, ...] = ()) -> Result:
        """`kubectl <verb> -f -` of some objects, whatever comes of it."""
        # A stream that begins with a brace is JSON for kubectl before 1.33, and ends at the first `---`.
        documents = "".join(f"---\n{json.dumps(each)}\n" for each in objects)
        return self.run(*verb.split(), *flags, "-f", "-", stdin=documents)

    def get(self, *arguments: str) -> Object:
        """`kubectl get … -o json`."""
        read: Object = json.loads(self.must("get", *arguments, "-o", "json").stdout)
        return read
