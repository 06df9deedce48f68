"""A cluster to migrate: nodes with the device plugin, a shell for docs/migrate.md, a replica of what Helm installs."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx

from tests.cluster import guide
from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import CONVERT, is_converted, pod
from tests.cluster.nodeagents import NodeAgents, device_plugin
from tests.cluster.nodes import Fleet
from tests.cluster.processes import Process, eventually, free_ports
from tests.cluster.webhooks import CONFIGURATION_KINDS

ROOT: Final = Path(__file__).resolve().parents[2]
GUIDE: Final = ROOT / "docs" / "migrate.md"
VARIABLES: Final = dict(re.findall(r"^export (\w+)=(\S+)$", GUIDE.read_text(), re.MULTILINE))
"""What the guide's first block sets for all others."""
PLUGIN: Final = VARIABLES["PLUGIN"]
NAMESPACE: Final = "neuron-dra"
GROUP_LABEL: Final = "eks.amazonaws.com/nodegroup"
_NAME: Final = "neuron-dra"
_BIN: Final = Path(sys.executable).parent
_HELM: Final = re.compile(r"^(helm .*)$", re.MULTILINE)
_RESTART_GAP: Final = 1.1
"""Seconds. kubectl refuses a second `rollout restart` within one: it would be the same timestamp."""


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """What a part of the guide printed."""

    stdout: str
    stderr: str


class Replica:
    """The container of the release's Deployment as a process here, called by the API server in the Service's stead.

    There is no kube-proxy that would make the Service lead anywhere: while it runs, `clientConfig` of the
    configurations has a URL; `withdraw` gives them back as Helm knows them.
    """

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane = plane
        self._directory = directory
        self._process: Process | None = None
        self._arguments: list[str] = []
        self._shipped: dict[str, list[Object]] = {}
        self.log = directory / "webhook.log"
        self.port, self.metrics_port = free_ports(2)

    def follow(self) -> None:
        """Run what the Deployment says now, and have it called; nothing, where there is none."""
        deployment = self._plane.admin.find("Deployment", _NAME, NAMESPACE)
        if deployment is None:
            self.stop()
            return
        arguments = self._flags(deployment)
        if arguments != self._arguments:
            self.stop()
            self._start(arguments)
        self._point()

    def _flags(self, deployment: Object) -> list[str]:
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        here = {
            "--port": self.port,
            "--metrics-port": self.metrics_port,
            "--drain-delay": 0,
            "--host": "127.0.0.1",
            "--metrics-host": "127.0.0.1",
            "--namespace": NAMESPACE,
        }
        given = {flag.partition("=")[0] for flag in container["args"]}
        if "--policies" in given:
            here["--policies"] = self._policies()
        kept = [flag for flag in container["args"] if flag.partition("=")[0] not in here]
        return [*container["command"], *kept, *(f"{flag}={value}" for flag, value in here.items())]

    def _policies(self) -> str:
        """The ConfigMap as the kubelet would mount it: in a directory of its own for each content."""
        found = self._plane.kubectl().within(NAMESPACE).get("configmap", "neuron-dra-policies")
        directory = self._directory / f"policies-{found['metadata']['resourceVersion']}"
        directory.mkdir(exist_ok=True)
        for name, text in found["data"].items():
            (directory / name).write_text(text)
        return str(directory)

    def _start(self, arguments: list[str]) -> None:
        kubectl = self._plane.kubectl().within(NAMESPACE)
        token = kubectl.must("create", "token", _NAME, "--duration=1h").stdout.strip()
        kubeconfig = self._plane.token_kubeconfig("release", token)
        argv = [_BIN / arguments[0], *arguments[1:], f"--kubeconfig={kubeconfig}"]
        self._process = Process("replica", argv, self.log, env={"NEURON_DRA_POD_NAME": "replica"})
        self._process.start()
        self._process.wait_ready(self._ready)
        self._arguments = arguments

    def _ready(self) -> bool:
        try:
            # As the kubelet, which probes without a CA.
            return httpx.get(f"https://127.0.0.1:{self.port}/readyz", verify=False, trust_env=False).is_success  # noqa: S501
        except httpx.HTTPError:
            return False

    def _point(self) -> None:
        for kind in CONFIGURATION_KINDS:
            found = self._plane.admin.find(kind, _NAME)
            if found is None:
                continue
            entries = found["webhooks"]
            self._shipped[kind] = json.loads(json.dumps(entries))
            for entry in entries:
                path = entry["clientConfig"].pop("service")["path"]
                entry["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}{path}"}
            self._plane.admin.merge(kind, _NAME, {"webhooks": entries})
        if self._shipped:
            eventually("the API server to call the replica", self._called)

    def _called(self) -> bool:
        canary = pod("canary", annotations={CONVERT: "convert"})
        assert self._process is not None
        found = self._plane.admin.create(canary, "default", dry_run=True).body
        assert is_converted(found), self._process.tail()
        return True

    def withdraw(self) -> None:
        """Give the configurations back as Helm installed them."""
        for kind, entries in self._shipped.items():
            if self._plane.admin.find(kind, _NAME):
                self._plane.admin.merge(kind, _NAME, {"webhooks": entries})
        self._shipped.clear()

    def metrics(self) -> str:
        """What Prometheus would read."""
        return httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", trust_env=False).text

    def stop(self) -> None:
        """Stop the process."""
        if self._process is not None:
            self._process.stop()
        self._process, self._arguments = None, []


class Journey:
    """The cluster, and how far the guide has come: steps are run in their order, each from where one ended."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane = plane
        self.api = plane.admin
        self.steps = {step.title.partition(". ")[0]: step for step in guide.read(GUIDE)}
        self.done: list[str] = []
        self.agents = NodeAgents(plane.admin)
        self.replica = Replica(plane, directory)
        self._directory = directory
        self._fleet = Fleet(plane.admin, "node")
        self.nodes: dict[str, str] = {}

    def start(self) -> None:
        """Begin with a node for each of two groups, both with the device plugin, and one without devices."""
        self._shims()
        self.api.create(device_plugin(PLUGIN), "kube-system")
        self.nodes = {
            "cpu": self._fleet.add("m7i.large", publish=False),
            **{
                group: self._fleet.add("trn2.48xlarge", labels={GROUP_LABEL: group}, publish=False)
                for group in ("trn2-a", "trn2-b")
            },
        }
        self.agents.start()

    def stop(self) -> None:
        """Stop everything."""
        self.agents.stop()
        self.replica.stop()

    def _shims(self) -> None:
        folder = self._directory / "bin"
        folder.mkdir()
        (self._directory / "deploy").symlink_to(ROOT / "deploy")
        real = shlex.quote(str(self.plane.assets.kubectl))
        log = shlex.quote(str(self.replica.log))
        # No container runs on these nodes: the webhook's log is that of the process.
        logs = f'case " $* " in *" logs "*) exec cat {log};; esac'
        helm = f"{shlex.quote(sys.executable)} -m tests.cluster.helm_command"
        for name, script in (("kubectl", f'{logs}\nexec {real} "$@"'), ("helm", f'exec {helm} "$@"')):
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    def run(self, step: str, part: str, *blocks: int, group: str = "trn2-a") -> Output:
        """Run a part of a step as the guide has it; of several blocks only those, where some are named.

        Raises:
            AssertionError: a command failed; with what it printed.
        """
        every = self.steps[step].parts[part]
        script = "\n".join(every[index] for index in blocks) if blocks else "\n".join(every)
        outputs = [self._run(piece, group) for piece in _HELM.split(script) if piece.strip()]
        return Output("".join(each.stdout for each in outputs), "".join(each.stderr for each in outputs))

    def _run(self, script: str, group: str) -> Output:
        if not _HELM.match(script):
            return self._shell(script, group)
        self.replica.withdraw()
        output = self._shell(script, group)
        self.replica.follow()
        return output

    def _shell(self, script: str, group: str) -> Output:
        env = {
            **os.environ,
            "PATH": f"{self._directory / 'bin'}:{_BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **VARIABLES,
            "KUBECONFIG": str(self.plane.admin_kubeconfig),
            "GROUP": f"{GROUP_LABEL}={group}",
        }
        if "rollout restart" in script:
            time.sleep(_RESTART_GAP)
        shell = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            shell, cwd=self._directory, env=env, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}{self.agents.problems}"
        return Output(done.stdout, done.stderr)
