"""The webhook as a Service: replicas on this host's address, and endpoints that follow their readiness.

kube-apiserver calls them by name through the Service (`--enable-aggregator-routing`), so certificates are judged by
the Service's name, connections spread over replicas, and a replica leaves the endpoints as it does in a cluster: at
once when it is told to go, after failed probes when it hangs. What the kubelet's prober and the EndpointSlice
controller do, `Endpoints` does here, because no container runs.
"""

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.processes import Process, eventually, free_ports
from tests.support.trainium import ENVIRONMENT

_SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
_PORT_NAME: Final = "https"


def host_address() -> str | None:
    """An address of this host that an EndpointSlice accepts (not loopback); None where there is none."""
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return next((address for address in found if "." in address and not address.startswith("127.")), None)


class Replica:
    """One pod's worth of `neuron-dra webhook`."""

    def __init__(
        self, name: str, address: str, flags: Sequence[str], directory: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.address = address
        [self.port] = free_ports(1, address)
        [self.metrics_port] = free_ports(1)
        self._frozen = False
        argv: list[str | Path] = [
            Path(sys.executable).parent / "neuron-dra",
            "webhook",
            *flags,
            f"--host={address}",
            f"--port={self.port}",
            "--metrics-host=127.0.0.1",
            f"--metrics-port={self.metrics_port}",
        ]
        # Nodes and slices come before this setting.
        variables = {"NEURON_DRA_POD_NAME": name, **ENVIRONMENT, **(env or {})}
        self.process = Process(name, argv, directory / f"{name}.log", variables)

    def start(self, timeout: float = 60.0) -> None:
        """Start it; return when it is ready."""
        self.process.start()
        self.process.wait_ready(self.ready, timeout)

    def ready(self) -> bool:
        """What the kubelet's probe finds: it does not look at the certificate."""
        try:
            return self._readyz("", timeout=1).is_success
        except httpx.HTTPError:
            return False

    def readiness(self) -> str:
        """The text of `/readyz?verbose`."""
        return self._readyz("?verbose", timeout=5).text

    def _readyz(self, query: str, timeout: float) -> httpx.Response:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with httpx.Client(verify=context, trust_env=False, timeout=timeout) as client:
            return client.get(f"https://{self.address}:{self.port}/readyz{query}")

    def served_certificate(self) -> str:
        """PEM of the certificate that it presents."""
        return ssl.get_server_certificate((self.address, self.port))

    def metric(self, name: str) -> float:
        """The value of a series without labels."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", trust_env=False).text
        found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return next(sample.value for sample in found if sample.name == name)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        os.kill(self.process.pid, signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: it neither answers nor closes anything."""
        self._frozen = True
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._frozen = False
        os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> int | None:
        """SIGTERM, and wait."""
        if self._frozen:
            self.thaw()
        return self.process.stop(grace=60)


class Endpoints:
    """Keeps an EndpointSlice per replica, as prober and EndpointSlice controller would."""

    def __init__(self, api: Api, namespace: str, service: str, *, period: float, failures: int) -> None:
        """Probe every `period` seconds; a replica is not ready after so many failures in a row."""
        self._api = api
        self._namespace = namespace
        self._service = service
        self._period = period
        self._failures = failures
        self._lock = threading.Lock()
        self._members: dict[str, _Member] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="endpoints", daemon=True)

    def __enter__(self) -> "Endpoints":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._members):
            self.remove(name)

    def add(self, replica: Replica) -> None:
        """Follow a replica that is ready."""
        member = _Member(replica)
        with self._lock:
            self._members[replica.name] = member
            self._write(member)

    def leave(self, name: str) -> None:
        """What follows from a pod's deletion at once: its endpoint is terminating, hence not ready."""
        with self._lock:
            member = self._members[name]
            member.terminating = True
            self._write(member)

    def remove(self, name: str) -> None:
        """The pod is gone."""
        with self._lock:
            self._members.pop(name)
        with contextlib.suppress(ApiError):
            self._api.request("DELETE", f"{_SLICES.format(self._namespace)}/{self._slice_name(name)}")

    def ready(self, name: str) -> bool:
        """Whether the endpoint takes new connections."""
        return self._members[name].takes

    def wait_out(self, name: str) -> float:
        """Return when the endpoint has been taken out; how many seconds that took."""
        started = time.monotonic()
        eventually(f"{name} to leave the endpoints", lambda: not self.ready(name), timeout=60)
        return time.monotonic() - started

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            for member in list(self._members.values()):
                threading.Thread(target=self._probe, args=(member,), daemon=True).start()

    def _probe(self, member: "_Member") -> None:
        passed = member.replica.ready()
        with self._lock:
            before = member.takes
            member.failed = 0 if passed else member.failed + 1
            member.ready = member.failed < self._failures
            if (member.takes != before or member.behind) and member.replica.name in self._members:
                member.behind = True
                # An API server that is away gets it with the next probe.
                with contextlib.suppress(httpx.HTTPError):
                    self._write(member)
                    member.behind = False

    def _slice_name(self, name: str) -> str:
        return f"{self._service}-{name}"

    def _write(self, member: "_Member") -> None:
        replica = member.replica
        body: Object = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": self._slice_name(replica.name),
                "labels": {
                    "kubernetes.io/service-name": self._service,
                    "endpointslice.kubernetes.io/managed-by": "test",
                },
            },
            "addressType": "IPv4",
            "ports": [{"name": _PORT_NAME, "port": replica.port, "protocol": "TCP"}],
            "endpoints": [
                {
                    "addresses": [replica.address],
                    "conditions": {
                        "ready": member.takes,
                        "serving": member.ready,
                        "terminating": member.terminating,
                    },
                }
            ],
        }
        path = f"{_SLICES.format(self._namespace)}/{self._slice_name(replica.name)}"
        headers = {"content-type": "application/apply-patch+yaml"}
        self._api.request("PATCH", path, json=body, headers=headers, params={"fieldManager": "test", "force": "true"})


class _Member:
    __slots__ = ("behind", "failed", "ready", "replica", "terminating")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.ready = True
        self.terminating = False
        self.failed = 0
        self.behind = False

    @property
    def takes(self) -> bool:
        """Whether new connections come."""
        return self.ready and not self.terminating
