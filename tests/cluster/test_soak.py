"""Zero failed reviews: pods are created without a pause while everything that happens to a webhook happens.

Each disturbance logs its figures (`--log-cli-level=info`). NEURON_DRA_SOAK sets how many seconds of quiet load come
before and after each; the default keeps the file short enough for every run.
"""

import contextlib
import functools
import itertools
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import policies
from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.load import Figures, Load
from tests.cluster.manifests import is_converted, pod
from tests.cluster.nodes import device_class
from tests.cluster.processes import eventually
from tests.cluster.services import Endpoints, Replica, host_address
from tests.cluster.webhooks import CONFIGURATION_KINDS, MANIFESTS, install_rbac, load

QUIET: Final = float(os.environ.get("NEURON_DRA_SOAK", "3"))
NAMESPACE: Final = "neuron-dra"
PERIOD: Final = 2.0
FAILURES: Final = 2
DRAIN_DELAY: Final = 2
PACK: Final = Path(policies.__file__).parent / "packs" / "pinned-cores.yaml"

log = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(300 + 20 * QUIET)


class Release:
    """The shipped Service and configurations, and replicas that come and go."""

    def __init__(self, plane: ControlPlane, address: str) -> None:
        self.plane = plane
        self._address = address
        self._kubeconfig = install_rbac(plane)
        self._numbers = itertools.count(1)
        self.policies = plane.directory / "policies"
        self.policies.mkdir()
        shutil.copy(PACK, self.policies)
        self.endpoints = Endpoints(plane.admin, NAMESPACE, "neuron-dra", period=PERIOD, failures=FAILURES)
        self.replicas: list[Replica] = []

    def install(self) -> None:
        """Service, two replicas, configurations; return when a pod comes back converted."""
        documents = load(MANIFESTS / "webhook.yaml") + load(MANIFESTS / "validating.yaml")
        self._create(next(each for each in documents if each["kind"] == "Service"))
        for _ in range(2):
            self.surge()
        for each in documents:
            if each["kind"] in CONFIGURATION_KINDS:
                self._create(each)
        admin = self.plane.admin
        eventually("a conversion", lambda: is_converted(admin.create(pod("canary"), "default", dry_run=True).body))

    def _create(self, document: Object) -> None:
        self.plane.admin.create(document, document["metadata"].get("namespace", ""))

    def surge(self) -> Replica:
        """One more replica, ready and in the endpoints."""
        flags = [
            f"--kubeconfig={self._kubeconfig}",
            "--tls-secret=neuron-dra-tls",
            "--ca-settle=3s",
            f"--namespace={NAMESPACE}",
            f"--policies={self.policies}",
            f"--drain-delay={DRAIN_DELAY}",
        ]
        name = f"webhook-{next(self._numbers)}"
        replica = Replica(name, self._address, flags, self.plane.directory)
        replica.start()
        self.endpoints.add(replica)
        self.replicas.append(replica)
        return replica

    def retire(self, replica: Replica) -> None:
        """What deleting its pod does: out of the endpoints, SIGTERM, and gone when it has drained."""
        self.endpoints.leave(replica.name)
        status = replica.stop()
        assert status == 0, replica.process.tail()
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


@pytest.fixture(scope="module")
def release(own_control_plane: ControlPlane) -> Iterator[Release]:
    """Two replicas behind the Service."""
    address = host_address()
    if address is None:
        pytest.skip("no address but loopback, which EndpointSlices refuse")
    own_control_plane.admin.create(device_class())
    with contextlib.ExitStack() as stack:
        made = Release(own_control_plane, address)
        stack.callback(lambda: [replica.stop() for replica in made.replicas])
        stack.enter_context(made.endpoints)
        made.install()
        yield made


@contextlib.contextmanager
def under_load(release: Release, what: str) -> Iterator[Load]:
    """Load before, during and after; its figures are logged."""
    began = time.monotonic()
    with Load(release.plane.admin, "default") as running:
        time.sleep(QUIET)
        yield running
        time.sleep(QUIET)
    log.info("%s: %s, %.0f s", what, running.figures, time.monotonic() - began)


def no_failure(figures: Figures) -> None:
    assert figures.sent > 0
    assert not figures.failed, str(figures)


def test_quiet(release: Release) -> None:
    with under_load(release, "no disturbance") as running:
        time.sleep(QUIET)
    no_failure(running.figures)


def test_a_new_leaf(release: Release) -> None:
    with under_load(release, "leaf rotation") as running:
        release.rotate("leaf")
    no_failure(running.figures)


def test_a_new_ca(release: Release) -> None:
    with under_load(release, "CA rotation") as running:
        release.rotate("ca")
    no_failure(running.figures)


def taken_since(release: Release, moment: float) -> bool:
    """Whether every replica has loaded its policies after a moment of the wall clock."""
    gauge = "neuron_dra_policy_last_good_timestamp_seconds"
    return all(replica.metric(gauge) >= moment for replica in release.replicas)


def test_policy_reloads(release: Release) -> None:
    copy = release.policies / "more.yaml"
    with under_load(release, "policy reload, 10 times") as running:
        for number in range(10):
            written = time.time()
            copy.write_text(PACK.read_text().replace("name: pinned-cores", f"name: pinned-cores-{number}", 1))
            eventually("every replica to take it", functools.partial(taken_since, release, written))
    copy.unlink()
    no_failure(running.figures)


def test_a_rolling_restart_with_surge_and_drain(release: Release) -> None:
    with under_load(release, "rolling restart of 2 replicas") as running:
        for old in list(release.replicas):
            release.surge()
            release.retire(old)
    no_failure(running.figures)


def test_sigterm_under_load(release: Release) -> None:
    with under_load(release, "SIGTERM") as running:
        victim = release.replicas[0]
        release.retire(victim)
        time.sleep(QUIET)
        release.surge()
    no_failure(running.figures)


def test_a_frozen_replica_costs_what_was_on_its_way_and_then_nothing(release: Release) -> None:
    """Requests on a connection of the frozen replica fail by the time-out; no other replica can answer them."""
    victim = release.replicas[0]
    with under_load(release, "SIGSTOP of one of two replicas") as running:
        victim.freeze()
        try:
            taken_out = release.endpoints.wait_out(victim.name)
            # Time-outs end what hangs on it; the API server then takes new connections, which go elsewhere.
            time.sleep(7)
            calm = time.monotonic()
            time.sleep(QUIET)
        finally:
            victim.thaw()
        eventually("it to come back", lambda: release.endpoints.ready(victim.name), timeout=30)
    log.info("out of the endpoints after %.1f s; afterwards: %s", taken_out, running.since(calm))
    no_failure(running.since(calm))
