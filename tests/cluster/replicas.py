"""Replicas that keep their own certificates: processes with the shipped rights, and configurations that call one."""

import base64
import contextlib
import json
import re
import socket
import ssl
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx
from cryptography import x509

from certs import material
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import pod
from tests.cluster.processes import Process, eventually, free_ports
from tests.cluster.webhooks import CONFIGURATION_KINDS, MANIFESTS, load
from tests.support.loops import Loop
from tests.support.trainium import ENVIRONMENT

NAMESPACE: Final = "neuron-dra"
SECRET: Final = "neuron-dra-tls"
NAME: Final = "neuron-dra"
SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_PAUSE: Final = 0.05
_MERGE: Final = {"content-type": "application/merge-patch+json"}


class Replica:
    """`neuron-dra webhook --tls-secret` on a port of its own."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path, name: str, *flags: str) -> None:
        self.name = name
        self.port, self.metrics_port = free_ports(2)
        directory = plane.directory / "replicas"
        directory.mkdir(exist_ok=True)
        argv: list[str | Path] = [
            *(Path(sys.executable).parent / "neuron-dra", "webhook", f"--kubeconfig={kubeconfig}"),
            *("--host=127.0.0.1", f"--port={self.port}"),
            *("--metrics-host=127.0.0.1", f"--metrics-port={self.metrics_port}"),
            *("--drain-delay=0", f"--tls-secret={SECRET}", f"--namespace={NAMESPACE}", "--ca-settle=2s", *flags),
        ]
        self.process = Process(name, argv, directory / f"{name}.log", env={"NEURON_DRA_POD_NAME": name, **ENVIRONMENT})

    def start(self) -> None:
        self.process.start()

    def wait_ready(self) -> None:
        self.process.wait_ready(lambda: self.readiness()[0] == httpx.codes.OK)

    def readiness(self) -> tuple[int, str]:
        """Status and text of `/readyz?verbose`, without verifying the certificate."""
        # As the kubelet, which probes without a CA.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        url = f"https://127.0.0.1:{self.port}/readyz?verbose"
        try:
            answer = httpx.get(url, verify=context, trust_env=False, timeout=2)
        except httpx.HTTPError as error:
            return 0, str(error)
        return answer.status_code, answer.text

    def certificate(self) -> x509.Certificate:
        """What a new connection gets."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            der = connection.getpeercert(binary_form=True)
        assert der is not None
        return x509.load_der_x509_certificate(der)

    def metric(self, name: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", trust_env=False).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"no {name} in the metrics"
        return float(found[1])

    def log(self) -> str:
        return self.process.log.read_text()


class Installation:
    """The Secret, the configurations and the Leases of one control plane."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path) -> None:
        self.plane = plane
        self.api: Api = plane.admin
        self.kubeconfig = kubeconfig
        self._stack = contextlib.ExitStack()
        self._count = 0

    def __enter__(self) -> "Installation":
        self.put_secret()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
        for kind in CONFIGURATION_KINDS:
            self.api.delete(kind, NAME)
        with contextlib.suppress(ApiError):
            self.api.request("DELETE", f"{SECRETS}/{SECRET}")

    def replica(self, *flags: str, kubeconfig: Path | None = None) -> Replica:
        self._count += 1
        made = Replica(
            self.plane, kubeconfig or self.kubeconfig, f"replica-{self._count}-{time.monotonic_ns()}", *flags
        )
        made.start()
        self._stack.callback(made.process.stop)
        return made

    def configure(self, replica: Replica) -> None:
        """Install the shipped configurations, called at this replica; no caBundle."""
        for configuration in self.shipped(replica):
            self.api.delete(configuration["kind"], NAME)
            self.api.create(configuration)

    def shipped(self, replica: Replica) -> list[Object]:
        documents = [*load(MANIFESTS / "webhook.yaml"), *load(MANIFESTS / "validating.yaml")]
        found = [document for document in documents if document["kind"] in CONFIGURATION_KINDS]
        for configuration in found:
            for webhook in configuration["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"https://127.0.0.1:{replica.port}{path}"}
        return found

    # --- the Secret ---

    def secret(self) -> Object:
        return self.api.request("GET", f"{SECRETS}/{SECRET}").body

    def made(self) -> bool:
        return self.api.healthy(f"{SECRETS}/{SECRET}")

    def data(self) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.secret().get("data", {}).items()}

    def held(self) -> material.Material:
        return material.read(self.data())

    def write(self, data: dict[str, bytes]) -> None:
        body = {"data": {key: base64.b64encode(value).decode() for key, value in data.items()}}
        self.api.request("PATCH", f"{SECRETS}/{SECRET}", json=body, headers=_MERGE)

    def put_secret(self) -> None:
        """The Secret of the shipped manifest, which has no data."""
        shipped = next(each for each in load(MANIFESTS / "webhook.yaml") if each["kind"] == "Secret")
        self.plane.kubectl().within(NAMESPACE).must("apply", "-f", "-", stdin=json.dumps(shipped))

    def delete_secret(self) -> None:
        self.api.request("DELETE", f"{SECRETS}/{SECRET}")

    def rotate(self, what: str) -> None:
        patch = {"metadata": {"annotations": {"neuron.aws.com/rotate": what}}}
        self.api.request("PATCH", f"{SECRETS}/{SECRET}", json=patch, headers=_MERGE)

    def asked(self) -> bool:
        return "neuron.aws.com/rotate" in (self.secret()["metadata"].get("annotations") or {})

    # --- configurations and Leases ---

    def bundles(self) -> set[bytes]:
        """caBundle of every webhook of both configurations."""
        found = [self.api.get(kind, NAME) for kind in CONFIGURATION_KINDS]
        entries = [webhook["clientConfig"] for configuration in found for webhook in configuration["webhooks"]]
        return {base64.b64decode(entry.get("caBundle", "")) for entry in entries}

    def wait_configured(self) -> None:
        eventually("caBundle everywhere", lambda: self.bundles() == {self.held().bundle_pem})

    def reports(self) -> dict[str, Any]:
        """The report of each replica, by name."""
        leases = self.api.request("GET", LEASES).body["items"]
        said = {lease["metadata"]["name"]: lease["metadata"]["annotations"] for lease in leases}
        return {name: json.loads(notes["neuron.aws.com/replica"]) for name, notes in said.items()}

    def served(self, *replicas: Replica) -> bool:
        """Whether all of them serve what the Secret holds."""
        leaf = self.held().leaf
        assert leaf is not None
        return {replica.certificate() for replica in replicas} == {leaf.certificate}


class Reviews(Loop):
    """Dry runs of a Neuron pod, one after the other, each on a connection that the API server chooses."""

    def __init__(self, api: Api) -> None:
        super().__init__(self._turn, pause=_PAUSE)
        self._api = api
        self.failures: list[str] = []

    def _turn(self) -> None:
        try:
            self._api.create(pod("soak"), "default", dry_run=True)
        except ApiError as error:
            self.failures.append(str(error))
