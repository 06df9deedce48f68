"""A real kubelet for one node, on a runtime that runs nothing."""

import json
from pathlib import Path
from typing import Final

import httpx

from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.cri import Runtime, RuntimeServer
from tests.cluster.processes import Process, free_ports

# The kubelet insists on these values of its host. It gets a mount namespace in which it reads and writes files
# of ours instead, so that the machine under test stays as it is, also where /proc/sys is read-only.
_SYSCTLS: Final = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}

_EVICTION_SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
)


class Kubelet:
    """The kubelet of one node; its directories, its runtime and its process.

    Attributes:
        node: the node's name.
        root: what would be /var/lib/kubelet.
        cdi_directory: what would be /var/run/cdi.
        runtime: the stand-in, which remembers every container.
    """

    def __init__(self, plane: ControlPlane, directory: Path, node: str, labels: dict[str, str]) -> None:
        self.node = node
        self.root = directory / "kubelet"
        self.cdi_directory = directory / "cdi"
        self._directory = directory
        self._plane = plane
        images = directory / "images"
        for made in (self.root, self.cdi_directory, images, directory / "pod-logs", directory / "sysctls"):
            made.mkdir(parents=True)
        self.runtime = Runtime(self.cdi_directory, images)
        # Unix socket paths are short; a test's directory may not be.
        self._socket = directory / "cri.sock"
        self._server = RuntimeServer(self.runtime, self._socket)
        self._port, self._health_port = free_ports(2)
        self._process = Process("kubelet", self._command(labels), directory / "kubelet.log")

    @property
    def plugins_registry(self) -> Path:
        """Where drivers put their registration sockets."""
        return self.root / "plugins_registry"

    @property
    def plugins(self) -> Path:
        """Where drivers keep their service sockets."""
        return self.root / "plugins"

    def _configuration(self) -> Object:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": self._port,
            "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self._health_port,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._plane.authority.files.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": self._server.endpoint,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(self._directory / "pod-logs"),
            "evictionHard": dict.fromkeys(_EVICTION_SIGNALS, "0%"),
            "imageGCHighThresholdPercent": 100,
            "registerNode": True,
            "featureGates": self._plane.gates,
        }

    def _command(self, labels: dict[str, str]) -> list[str]:
        configuration = self._directory / "kubelet.json"
        configuration.write_text(json.dumps(self._configuration()))
        binds = []
        for name, value in _SYSCTLS.items():
            file = self._directory / "sysctls" / name.replace("/", ".")
            file.write_text(f"{value}\n")
            binds.append(f"mount --bind '{file}' /proc/sys/{name}")
        script = " && ".join([*binds, 'exec "$0" "$@"'])
        label_list = ",".join(f"{key}={value}" for key, value in labels.items())
        return [
            *("unshare", "-m", "sh", "-c", script),
            str(self._plane.assets.folder / "kubelet"),
            f"--config={configuration}",
            f"--kubeconfig={self._plane.node_kubeconfig(self.node)}",
            f"--hostname-override={self.node}",
            f"--root-dir={self.root}",
            f"--cert-dir={self._directory / 'pki'}",
            f"--node-labels={label_list}",
        ]

    def start(self) -> None:
        """Start runtime and kubelet; return when the node is Ready and the scheduler may use it."""
        self._server.start()
        self._process.start()
        self._process.wait_ready(self._schedulable)

    def restart(self) -> None:
        """Stop the kubelet and start it again: it wipes its node's ResourceSlices, and prepares claims anew."""
        self._process.stop()
        self._process.start()
        self._process.wait_ready(self._healthy)

    def _healthy(self) -> bool:
        try:
            address = f"http://127.0.0.1:{self._health_port}/healthz"
            return httpx.get(address, timeout=2, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def _schedulable(self) -> bool:
        node = self._plane.admin.find("Node", self.node)
        if node is None:
            return False
        ready = [each for each in node["status"].get("conditions", []) if each["type"] == "Ready"]
        return bool(ready) and ready[0]["status"] == "True" and not node["spec"].get("taints")

    def stop(self) -> None:
        """Stop both, and remove the node."""
        self._process.stop()
        self._server.stop()
        self._plane.admin.delete("Node", self.node)
