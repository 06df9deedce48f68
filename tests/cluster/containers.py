"""containerd with runc, in folders of its own, and a network for its pods.

Pods get addresses by CNI's `ptp` plugin: a pair of interfaces for each. `10.96.0.1:443`, the address of the API server
in pods, is added to this machine's loopback interface and forwarded. Everything is removed at the end.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.cluster.kubelet import SYSCTLS, with_sysctls
from tests.cluster.processes import Process

API_ADDRESS: Final = ("10.96.0.1", 443)
"""The cluster IP of the Service `kubernetes`."""

_OLDEST: Final = 2
"""Major version of containerd: the kubelet of 1.36 asks the runtime for its cgroup driver, and gives it CDI ids."""
_CNI: Final = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_PLUGINS: Final = ("ptp", "host-local", "loopback")
_SUBNET: Final = "10.213.77.0/24"
_CONFIG: Final = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{sandbox}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{folder}/registries"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{cdi}"]
  # As far as this machine lets its root lower it.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      Root = "{folder}/runc"
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni}"]
    conf_dir = "{folder}/cni"
"""


class RuntimeMissingError(Exception):
    """This machine cannot run containers; the message names what it lacks."""


class Containerd:
    """One containerd. `CONTAINERD_BIN` is a folder with containerd, its shim and ctr that comes before the PATH."""

    def __init__(self, folder: Path, log: Path, cdi: Path, sandbox: str) -> None:
        """Find the programs.

        Args:
            folder: for sockets and images; its path is short.
            log: file for the log.
            cdi: folder of CDI specs.
            sandbox: image of pod sandboxes.

        Raises:
            RuntimeMissingError: something is not there.
        """
        self._folder = folder
        self._path = os.pathsep.join(filter(None, [os.environ.get("CONTAINERD_BIN"), os.environ["PATH"], "/usr/sbin"]))
        found = {
            name: self._find(name) for name in ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "ip", "nsenter")
        }
        if os.geteuid() != 0:
            raise RuntimeMissingError("no container runtime: containerd needs root")
        said = subprocess.run([found["containerd"], "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"\bv?(\d+)\.\d+\.\d+", said)
        if version is None or int(version[1]) < _OLDEST:
            raise RuntimeMissingError(
                f"no container runtime: {found['containerd']} is {version[0] if version else said.strip()!r}, and "
                f"Kubernetes 1.36 needs containerd {_OLDEST}.0 or later: set CONTAINERD_BIN to a folder with one"
            )
        cni = next((each for each in _CNI if all((each / name).exists() for name in _PLUGINS)), None)
        if cni is None:
            raise RuntimeMissingError(
                f"no network for pods: the CNI plugins {', '.join(_PLUGINS)} are in none of {', '.join(map(str, _CNI))}"
            )
        self._ctr = [found["ctr"], "--address", str(folder / "containerd.sock"), "--namespace", "k8s.io"]
        self.endpoint = f"unix://{folder}/containerd.sock"
        (folder / "cni").mkdir(parents=True)
        ranges = [[{"subnet": _SUBNET}]]
        ipam = {
            "type": "host-local",
            "dataDir": str(folder / "ipam"),
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}
        (folder / "cni/pods.conflist").write_text(json.dumps(network))
        (folder / "config.toml").write_text(
            _CONFIG.format(folder=folder, sandbox=sandbox, cdi=cdi, runc=found["runc"], cni=cni)
        )
        # The ptp plugin switches forwarding on; pods need it only among themselves.
        sysctls = {**SYSCTLS, "net/ipv4/ip_forward": "1"}
        command = with_sysctls(
            folder / "sysctls", sysctls, [found["containerd"], "--config", str(folder / "config.toml")]
        )
        self._process = Process("containerd", command, log, {"PATH": self._path})

    def _find(self, name: str) -> str:
        found = shutil.which(name, path=self._path)
        if found is None:
            raise RuntimeMissingError(f"no container runtime: {name} is not on the PATH")
        return found

    def start(self) -> None:
        """Serve."""
        self._process.start()
        self._process.wait_ready(
            lambda: subprocess.run([*self._ctr, "version"], capture_output=True, check=False).returncode == 0
        )

    def stop(self) -> None:
        """End all containers, remove their networks, and stop."""
        if self._process.running:
            tasks = self._ask("tasks", "list", "--quiet").split()
            # Some tasks end by themselves meanwhile, which ctr reports as an error.
            subprocess.run([*self._ctr, "tasks", "delete", "--force", *tasks], capture_output=True, check=False)
        self._process.stop()
        for shim in self._shims():
            os.kill(shim, signal.SIGKILL)
        for line in subprocess.run(
            ["ip", "-o", "route"], capture_output=True, text=True, check=True
        ).stdout.splitlines():
            if line.startswith(_SUBNET.removesuffix("0/24")):
                subprocess.run(["ip", "link", "delete", line.split()[2]], check=False)

    def _shims(self) -> Iterator[int]:
        """Process ids of shims that have not ended with their tasks."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
                if b"-address" in arguments and f"{self._folder}/containerd.sock".encode() in arguments:
                    yield int(folder.name)

    def beside(self, command: Sequence[str]) -> list[str]:
        """The command in containerd's mount namespace: both mount the volumes of pods."""
        return ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", *command]

    def _ask(self, *arguments: str | Path) -> str:
        command = [*self._ctr, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    def load(self, archive: Path) -> None:
        """Import an image."""
        self._ask("images", "import", archive)

    def trust(self, registry: str) -> None:
        """Pull from a registry, host and port, without TLS."""
        file = self._folder / "registries" / registry / "hosts.toml"
        file.parent.mkdir(parents=True)
        file.write_text(f'server = "http://{registry}"\n')

    def tag(self, name: str, other: str) -> None:
        """Give an image another name."""
        self._ask("images", "tag", name, other)

    def kill(self, container: str) -> None:
        """End a container's first process, as a crash would."""
        self._ask("tasks", "kill", "--signal", "SIGKILL", container)

    def pid(self, container: str) -> int:
        """Process id of a container's first process, here."""
        [found] = [line for line in self._ask("tasks", "list").splitlines() if line.startswith(container)]
        return int(found.split()[1])


@contextlib.contextmanager
def api_address(port: int) -> Iterator[None]:
    """Serve the API server on 127.0.0.1 at its address for pods."""
    address = f"{API_ADDRESS[0]}/32"
    subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
    try:
        with socket.create_server(API_ADDRESS) as server:
            threading.Thread(target=_forward, args=(server, port), daemon=True).start()
            yield
            server.shutdown(socket.SHUT_RDWR)
    finally:
        subprocess.run(["ip", "address", "delete", address, "dev", "lo"], check=True)


def _forward(server: socket.socket, port: int) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(client, port), daemon=True).start()


def _serve(client: socket.socket, port: int) -> None:
    with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as upstream:
        back = threading.Thread(target=_copy, args=(upstream, client), daemon=True)
        back.start()
        _copy(client, upstream)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
