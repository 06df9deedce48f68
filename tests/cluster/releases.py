"""A release of the webhook: the shipped Service and configurations, and replicas behind it that come and go."""

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import policies
from tests.cluster.api import Object
from tests.cluster.clocks import Clock
from tests.cluster.controlplane import ControlPlane
from tests.cluster.load import CALM, FULL, Load
from tests.cluster.manifests import is_converted, pod
from tests.cluster.processes import eventually
from tests.cluster.services import Endpoints, Replica, host_address
from tests.cluster.webhooks import CONFIGURATION_KINDS, MANIFESTS, install_rbac, load

NAMESPACE: Final = "neuron-dra"
PACK: Final = Path(policies.__file__).parent / "packs" / "pinned-cores.yaml"
_PERIOD: Final = 2.0
_FAILURES: Final = 2
_DRAIN_DELAY: Final = 2


class Release:
    """The shipped Service and configurations, and replicas that come and go.

    Attributes:
        pause: seconds between two reviews of a client of its `load`.
    """

    def __init__(self, plane: ControlPlane, address: str, pause: float) -> None:
        self.plane = plane
        self.pause = pause
        self._address = address
        self._kubeconfig = install_rbac(plane)
        self._numbers = itertools.count(1)
        self._directory = Path(tempfile.mkdtemp(prefix="release-", dir=plane.directory))
        self.policies = self._directory / "policies"
        self.policies.mkdir()
        shutil.copy(PACK, self.policies)
        self.endpoints = Endpoints(plane.admin, NAMESPACE, "neuron-dra", period=_PERIOD, failures=_FAILURES)
        self.replicas: list[Replica] = []
        self.clock = Clock(self._directory)

    def install(self) -> None:
        """Service, two replicas, configurations; return when a pod comes back converted."""
        documents = load(MANIFESTS / "webhook.yaml") + load(MANIFESTS / "validating.yaml")
        for kind in ("Service", "Secret"):
            self._create(next(each for each in documents if each["kind"] == kind))
        for _ in range(2):
            self.surge()
        for each in documents:
            if each["kind"] in CONFIGURATION_KINDS:
                self._create(each)
        admin = self.plane.admin
        eventually("a conversion", lambda: is_converted(admin.create(pod("canary"), "default", dry_run=True).body))

    def _create(self, document: Object) -> None:
        self.plane.admin.create(document, document["metadata"].get("namespace", ""))

    def load(self, namespace: str = "default") -> Load:
        """Reviews through the API server."""
        return Load(self.plane.admin, namespace, self.pause)

    def surge(self) -> Replica:
        """One more replica, ready and in the endpoints."""
        flags = [
            f"--kubeconfig={self._kubeconfig}",
            "--tls-secret=neuron-dra-tls",
            "--ca-settle=3s",
            f"--namespace={NAMESPACE}",
            f"--policies={self.policies}",
            f"--drain-delay={_DRAIN_DELAY}",
        ]
        name = f"webhook-{next(self._numbers)}"
        replica = Replica(name, self._address, flags, self._directory, self.clock.environment)
        replica.start()
        self.endpoints.add(replica)
        self.replicas.append(replica)
        return replica

    def retire(self, replica: Replica) -> None:
        """The effect of deleting its pod: removed from the endpoints, SIGTERM, and an exit after it has drained."""
        self.endpoints.leave(replica.name)
        status = replica.stop()
        assert status == 0, replica.process.tail()
        self.replicas.remove(replica)
        self.endpoints.remove(replica.name)

    def bury(self, replica: Replica) -> None:
        """Forget a replica that was killed."""
        replica.process.kill()
        self.replicas.remove(replica)
        self.endpoints.remove(replica.name)

    def secret(self) -> Object:
        """The Secret with the certificates."""
        return self.plane.admin.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/neuron-dra-tls").body

    def rotate(self, what: str) -> None:
        """Ask for a new leaf or a new CA; return when it is in service everywhere and nothing is pending."""
        before = self.secret()["data"]
        # Before it is asked for: a new leaf is there within milliseconds.
        served = [replica.served_certificate() for replica in self.replicas]
        patch = {"metadata": {"annotations": {"neuron.aws.com/rotate": what}}}
        self.plane.admin.request(
            "PATCH",
            f"/api/v1/namespaces/{NAMESPACE}/secrets/neuron-dra-tls",
            json=patch,
            headers={"content-type": "application/merge-patch+json"},
        )

        def done() -> bool:
            secret = self.secret()
            data = secret["data"]
            settled = "neuron.aws.com/rotate" not in (secret["metadata"].get("annotations") or {})
            new = data["tls.crt"] != before["tls.crt"] and "next-ca.crt" not in data
            if what == "ca":
                # The old one has left: as many as before, and none of them.
                new = new and data["ca.crt"] != before["ca.crt"] and len(data["ca.crt"]) <= len(before["ca.crt"]) + 8
            now = [replica.served_certificate() for replica in self.replicas]
            return settled and new and all(one != other for one, other in zip(served, now, strict=True))

        eventually(f"a new {what}", done, timeout=240, interval=0.5)


@contextlib.contextmanager
def released(plane: ControlPlane, *, full: bool) -> Iterator[Release]:
    """Two replicas behind the Service. `full`: whether its load has its full size."""
    address = host_address()
    if address is None:
        pytest.skip("no address but loopback, which EndpointSlices refuse")
    with contextlib.ExitStack() as stack:
        made = Release(plane, address, FULL if full else CALM)
        stack.callback(lambda: [replica.stop() for replica in made.replicas])
        stack.enter_context(made.endpoints)
        made.install()
        yield made
