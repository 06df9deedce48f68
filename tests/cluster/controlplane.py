"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

Everything it writes lies in one directory: certificates, kubeconfigs, etcd's data and a log per process.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Final

import httpx

from tests.cluster import versions
from tests.cluster.api import Api
from tests.cluster.kubectl import Kubectl
from tests.cluster.pki import Authority, KeyPair, service_account_keys
from tests.cluster.processes import LESS_COLLECTING, Process, eventually, free_ports

_DEFAULT_ASSETS: Final = "/usr/local/kubebuilder/bin"
_SERVERS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_SERVICE_RANGE: Final = "10.96.0.0/16"
_SERVER_NAMES: Final = (
    "127.0.0.1",
    "10.96.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


class AssetsMissingError(FileNotFoundError):
    """The binaries of a control plane are not on this machine."""


@dataclasses.dataclass(frozen=True, slots=True)
class Assets:
    """Where the binaries are: envtest's convention, KUBEBUILDER_ASSETS."""

    folder: Path
    kubectl: Path

    @classmethod
    def locate(cls) -> "Assets":
        """Find them.

        Raises:
            AssetsMissingError: names the folder and what is missing in it.
        """
        folder = Path(os.environ.get("KUBEBUILDER_ASSETS", _DEFAULT_ASSETS))
        missing = [name for name in _SERVERS if not os.access(folder / name, os.X_OK)]
        # Its own version first: older ones print and parse differently.
        kubectl = shutil.which("kubectl", path=str(folder)) or shutil.which("kubectl")
        if kubectl is None:
            missing.append("kubectl (there or on the PATH)")
        if kubectl is None or missing:
            raise AssetsMissingError(
                f"no control plane to test on: {folder} lacks {', '.join(missing)}; "
                "set KUBEBUILDER_ASSETS to a folder that has them (docs/how-to/emulate.md)"
            )
        return cls(folder, Path(kubectl))

    @property
    def version(self) -> versions.Version:
        """Of the control plane."""
        return versions.of_binary(self.folder / "kube-apiserver")

    def has(self, name: str) -> bool:
        """Whether a binary beyond the control plane's own, such as the kubelet, is there."""
        return os.access(self.folder / name, os.X_OK)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the control plane differs from Kubernetes' defaults.

    Attributes:
        arguments: of kube-controller-manager and kube-scheduler.
        environment: of all four processes.
    """

    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


DEFAULTS: Final = Tuning()
UNLIMITED: Final = Tuning(("--kube-api-qps=1000", "--kube-api-burst=2000"))
"""Limits of requests that nothing reaches. With its default of 20 a second, kube-controller-manager starts in 5 s; with
this, in 0.5 s."""
QUICK: Final = dataclasses.replace(UNLIMITED, environment=LESS_COLLECTING)
"""For tests. Measurements of Kubernetes' processes use one of the others."""


class ControlPlane:
    """Starts and stops the four processes, and hands out identities."""

    running: ClassVar[list["ControlPlane"]] = []
    """All that were started and not stopped."""

    def __init__(
        self, assets: Assets, directory: Path, gates: Mapping[str, bool] | None = None, tuning: Tuning = QUICK
    ) -> None:
        """`gates`: feature gates of all components that differ from their defaults; a version gets those it knows."""
        self.assets = assets
        self.tuning = tuning
        self.gates = versions.known_gates(assets.version, gates) if gates else {}
        given = ",".join(f"{name}={str(value).lower()}" for name, value in self.gates.items())
        self._gates = [f"--feature-gates={given}"] if given else []
        self.directory = directory
        self.authority = Authority(directory)
        self.etcd_port, self._peer_port, self.port = free_ports(3)
        self.server = f"https://127.0.0.1:{self.port}"
        self._sa_key, self._sa_public = service_account_keys(directory)
        self._admin_files = self.authority.issue("admin", "admin", organizations=["system:masters"])
        self.admin_kubeconfig = self.kubeconfig("admin", self._admin_files)
        self.admin = Api(self.server, self.authority.files.certificate, self._admin_files)
        self.etcd = self._process("etcd", self._etcd())
        self.apiserver = self._process("kube-apiserver", self._apiserver())
        self.controller_manager = self._process("kube-controller-manager", self._controller_manager())
        self.scheduler = self._process("kube-scheduler", self._scheduler())

    def _process(self, name: str, command: list[str]) -> Process:
        log = self.directory / f"{name.removeprefix('kube-')}.log"
        return Process(name, command, log, self.tuning.environment)

    def _etcd(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            str(self.assets.folder / "etcd"),
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    @property
    def _served(self) -> tuple[str, ...]:
        """Versions that are not served by default. Kubernetes 1.35 serves DeviceTaintRules only in v1alpha3."""
        versions = ("v1beta1", "v1beta2", *(["v1alpha3"] if "DRADeviceTaintRules" in self.gates else []))
        groups = ["scheduling.k8s.io/v1alpha2"] if self.gates.get("GenericWorkload") else []
        return (*(f"resource.k8s.io/{version}" for version in versions), *groups)

    def _apiserver(self) -> list[str]:
        serving = self.authority.issue("apiserver", "kube-apiserver", hosts=_SERVER_NAMES)
        kubelet_client = self.authority.issue(
            "apiserver-kubelet-client", "kube-apiserver-kubelet-client", organizations=["system:masters"]
        )
        return [
            str(self.assets.folder / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.files.certificate}",
            f"--cert-dir={self.directory}",
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={_SERVICE_RANGE}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._sa_public}",
            f"--service-account-signing-key-file={self._sa_key}",
            "--enable-admission-plugins=NodeRestriction",
            # As clusters have them that were upgraded: claims are written in any version.
            f"--runtime-config={','.join(f'{version}=true' for version in self._served)}",
            # Services are reached at their endpoints: there is no kube-proxy.
            "--enable-aggregator-routing=true",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            *self._gates,
        ]

    def _controller_manager(self) -> list[str]:
        ca = self.authority.files
        return [
            *self._component("kube-controller-manager"),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._sa_key}",
            f"--root-ca-file={ca.certificate}",
            f"--cluster-signing-cert-file={ca.certificate}",
            f"--cluster-signing-key-file={ca.key}",
            f"--service-cluster-ip-range={_SERVICE_RANGE}",
            # Nodes without a kubelet send no heartbeat, and must stay Ready for as long as a session lasts.
            "--node-monitor-grace-period=24h",
            *self.tuning.arguments,
        ]

    def _scheduler(self) -> list[str]:
        return [*self._component("kube-scheduler"), *self.tuning.arguments]

    def _component(self, name: str) -> list[str]:
        identity = self.authority.issue(name, f"system:{name}")
        kubeconfig = self.kubeconfig(name, identity)
        return [
            str(self.assets.folder / name),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            f"--cert-dir={self.directory}",
            "--leader-elect=false",
            *self._gates,
        ]

    def start(self) -> None:
        """Start everything; return when pods can be created and scheduled."""
        self.running.append(self)
        self.etcd.start()
        self.etcd.wait_ready(self._etcd_healthy)
        self.apiserver.start()
        self.apiserver.wait_ready(self.admin.healthy)
        self.controller_manager.start()
        self.scheduler.start()
        self.controller_manager.wait_ready(lambda: self.has_service_account("default"))

    def stop(self) -> None:
        """Stop in the order in which they depend on each other."""
        if self in self.running:
            self.running.remove(self)
        self.admin.close()
        for process in (self.scheduler, self.controller_manager, self.apiserver, self.etcd):
            process.stop()

    def restart_apiserver(self) -> None:
        """Kill kube-apiserver and start it again: every watch breaks, every watch cache is built anew."""
        self.apiserver.kill()
        self.apiserver.start()
        self.apiserver.wait_ready(self.admin.healthy)

    def _etcd_healthy(self) -> bool:
        # /readyz of kube-apiserver leaves out etcd, so etcd is asked itself.
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.etcd_port}/health", timeout=2, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.is_success and answer.json().get("health") == "true"

    def has_service_account(self, namespace: str) -> bool:
        """Whether pods can be created there: ServiceAccount admission refuses them until `default` exists."""
        return self.admin.find("ServiceAccount", "default", namespace) is not None

    def wait_namespace_usable(self, namespace: str) -> None:
        """Return when pods can be created in a namespace."""
        eventually(f"ServiceAccount default in {namespace}", lambda: self.has_service_account(namespace))

    def kubeconfig(self, name: str, identity: KeyPair) -> Path:
        """Write a kubeconfig that presents a client certificate."""
        user = {"client-certificate": str(identity.certificate), "client-key": str(identity.key)}
        return self._write_kubeconfig(name, user)

    def token_kubeconfig(self, name: str, token: str) -> Path:
        """Write a kubeconfig that presents a bearer token, e.g. of a ServiceAccount."""
        return self._write_kubeconfig(name, {"token": token})

    def _write_kubeconfig(self, name: str, user: dict[str, str]) -> Path:
        cluster = {"server": self.server, "certificate-authority": str(self.authority.files.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        path = self.directory / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path

    def user_kubeconfig(self, user: str, groups: Iterable[str] = ()) -> Path:
        """A kubeconfig for a user with only the rights that RBAC grants to that name or group."""
        return self.kubeconfig(f"user-{user}", self.authority.issue(f"user-{user}", user, organizations=groups))

    def node_kubeconfig(self, node: str) -> Path:
        """A kubeconfig for the kubelet of a node (Node authorizer)."""
        identity = self.authority.issue(f"node-{node}", f"system:node:{node}", organizations=["system:nodes"])
        return self.kubeconfig(f"node-{node}", identity)

    def kubectl(self, kubeconfig: Path | None = None) -> Kubectl:
        """kubectl for an identity; the admin's where none is given."""
        return Kubectl(self.assets.kubectl, kubeconfig or self.admin_kubeconfig, self.directory / "kubectl-cache")
