"""A real kubelet for one node: on a runtime that runs nothing, or on another."""

import contextlib
import json
import signal
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import httpx

from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.cri import Runtime, RuntimeServer
from tests.cluster.processes import LESS_COLLECTING, Process, free_ports

SYSCTLS: Final = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
"""The kubelet insists on these values of its host."""

_EVICTION_SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
)


_DEVICE_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
"""Where each kubelet listens, whatever its root directory is (pkg/kubelet/apis/deviceplugin, DevicePluginPath)."""


def with_sysctls(
    directory: Path, sysctls: Mapping[str, str], command: Sequence[str], own: Sequence[str] = ()
) -> list[str]:
    """A command in a mount namespace of its own, in which it reads and writes files of ours as these sysctls.

    So the machine under test stays as it is, also where /proc/sys is read-only. `own`: directories of which it gets its
    own, so that several can run side by side.
    """
    directory.mkdir()
    binds = []
    for number, path in enumerate(own):
        mine = directory / f"own-{number}"
        mine.mkdir()
        binds.append(f"mkdir -p '{path}' && mount --bind '{mine}' '{path}'")
    for name, value in sysctls.items():
        file = directory / name.replace("/", ".")
        file.write_text(f"{value}\n")
        binds.append(f"mount --bind '{file}' /proc/sys/{name}")
    return ["unshare", "-m", "sh", "-c", " && ".join([*binds, 'exec "$0" "$@"']), *command]


class NodeRuntime(Protocol):
    """What runs the containers of a node."""

    @property
    def endpoint(self) -> str:
        """Where it serves CRI."""

    def start(self) -> None:
        """Serve."""

    def stop(self) -> None:
        """Stop serving."""

    def beside(self, command: Sequence[str]) -> list[str]:
        """The command of a kubelet that sees the same mounts, with the sysctls that a kubelet insists on."""


class _StandIn:
    """The runtime that runs nothing."""

    def __init__(self, runtime: Runtime, directory: Path) -> None:
        self._directory = directory
        # Unix socket paths are short; a test's directory may not be.
        self._server = RuntimeServer(runtime, directory / "cri.sock")
        self.endpoint = self._server.endpoint
        self.start, self.stop = self._server.start, self._server.stop

    def beside(self, command: Sequence[str]) -> list[str]:
        return with_sysctls(self._directory / "sysctls", SYSCTLS, command, own=[_DEVICE_PLUGINS])


class NodeKubelet:
    """The kubelet of one node; its directories and its process.

    Attributes:
        node: the node's name.
        root: what would be /var/lib/kubelet.
        cdi_directory: what would be /var/run/cdi.
        logs: what would be /var/log/pods.
    """

    def __init__(
        self,
        plane: ControlPlane,
        directory: Path,
        node: str,
        labels: dict[str, str],
        runtime: NodeRuntime,
        root: Path | None = None,
        *,
        sync: str = "",
    ) -> None:
        """`root`: for paths of sockets with a pod's UID, where `directory` is too long. `sync`: `syncFrequency`."""
        self.node = node
        self.root = root or directory / "kubelet"
        self.cdi_directory = directory / "cdi"
        self.logs = directory / "pod-logs"
        self._directory = directory
        self._plane = plane
        for made in (self.root, self.cdi_directory, self.logs):
            made.mkdir(parents=True)
        self._runtime = runtime
        self._port, self._health_port = free_ports(2)
        self._labels = labels
        self._sync = {"syncFrequency": sync} if sync else {}
        self._process: Process | None = None

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
            "containerRuntimeEndpoint": self._runtime.endpoint,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(self.logs),
            "evictionHard": dict.fromkeys(_EVICTION_SIGNALS, "0%"),
            "imageGCHighThresholdPercent": 100,
            "registerNode": True,
            "featureGates": self._plane.gates,
            **self._sync,
        }

    def _command(self) -> list[str]:
        configuration = self._directory / "kubelet.json"
        configuration.write_text(json.dumps(self._configuration()))
        label_list = ",".join(f"{key}={value}" for key, value in self._labels.items())
        return [
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
        self._runtime.start()
        self._process = Process(
            "kubelet", self._runtime.beside(self._command()), self._directory / "kubelet.log", LESS_COLLECTING
        )
        self._process.start()
        self._process.wait_ready(self._schedulable)

    def restart(self) -> None:
        """Stop the kubelet and start it again: it wipes its node's ResourceSlices, and prepares claims anew."""
        assert self._process is not None, "the kubelet was not started"
        self._process.stop()
        self._process.start()
        self._process.wait_ready(self._healthy)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """The kubelet does nothing and answers nothing until the end of the block; its containers run on."""
        assert self._process is not None, "the kubelet was not started"
        self._process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.signal(signal.SIGCONT)

    def _healthy(self) -> bool:
        try:
            address = f"http://127.0.0.1:{self._health_port}/healthz"
            return httpx.get(address, timeout=2, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def metrics(self) -> str:
        """Its metrics, in Prometheus' text format."""
        reader = self._plane.authority.issue("metrics", "metrics", organizations=["system:masters"])
        # The kubelet signs its serving certificate itself.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(reader.certificate, reader.key)
        address = f"https://127.0.0.1:{self._port}/metrics"
        return httpx.get(address, verify=context, timeout=10, trust_env=False).raise_for_status().text

    def _schedulable(self) -> bool:
        node = self._plane.admin.find("Node", self.node)
        if node is None:
            return False
        ready = [each for each in node["status"].get("conditions", []) if each["type"] == "Ready"]
        return bool(ready) and ready[0]["status"] == "True" and not node["spec"].get("taints")

    def stop(self) -> None:
        """Stop both, and remove the node."""
        if self._process is not None:
            self._process.stop()
        self._runtime.stop()
        self._plane.admin.delete("Node", self.node)


class Kubelet(NodeKubelet):
    """A kubelet on the runtime that runs nothing.

    Attributes:
        runtime: the stand-in, which remembers every container.
    """

    def __init__(
        self, plane: ControlPlane, directory: Path, node: str, labels: dict[str, str], *, sync: str = ""
    ) -> None:
        images = directory / "images"
        images.mkdir(parents=True)
        self.runtime = Runtime(directory / "cdi", images)
        super().__init__(plane, directory, node, labels, _StandIn(self.runtime, directory), sync=sync)
