"""Certificates on a real API server: made, rotated, lost, disturbed; and reviews go on."""

import datetime as dt
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from certs import rotation
from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import is_converted, pod
from tests.cluster.processes import eventually
from tests.cluster.replicas import NAME, NAMESPACE, SECRET, Installation, Replica, Reviews
from tests.cluster.webhooks import CONFIGURATION_KINDS, install_rbac

SLOW = 60.0
MUTATING, VALIDATING = CONFIGURATION_KINDS


@pytest.fixture(scope="module")
def kubeconfig(lent_control_plane: ControlPlane) -> Path:
    """The webhook's ServiceAccount with the shipped rights."""
    return install_rbac(lent_control_plane)


@pytest.fixture
def installation(lent_control_plane: ControlPlane, kubeconfig: Path) -> Iterator[Installation]:
    for kind in CONFIGURATION_KINDS:
        lent_control_plane.admin.delete(kind, NAME)
    with Installation(lent_control_plane, kubeconfig) as made:
        yield made


def converts(api: Api) -> bool:
    return is_converted(api.create(pod("canary"), "default", dry_run=True).body)


def wait_converting(installation: Installation) -> None:
    eventually("the API server to call the webhook", lambda: converts(installation.api))


def ready_pair(installation: Installation) -> tuple[Replica, Replica]:
    """Two replicas, the first of which reviews are sent to."""
    one, two = installation.replica(), installation.replica()
    for replica in (one, two):
        replica.wait_ready()
    installation.configure(one)
    installation.wait_configured()
    wait_converting(installation)
    eventually("both Leases", lambda: {one.name, two.name} <= set(installation.reports()))
    return one, two


def test_the_first_start_creates_all_certificates_with_the_shipped_rights(installation: Installation) -> None:
    replica = installation.replica()
    replica.wait_ready()
    assert installation.held().leaf is not None
    assert installation.secret()["type"] == "Opaque"
    installation.configure(replica)
    installation.wait_configured()
    wait_converting(installation)
    status, text = replica.readiness()
    assert status == 200, text
    report = eventually("the Lease", lambda: installation.reports().get(replica.name))
    assert report["serving"]
    assert replica.process.stop() == 0
    assert replica.name not in installation.reports()
    assert "not allowed" not in replica.log()


def test_two_replicas_that_start_at_the_same_moment_agree(installation: Installation) -> None:
    one, two = installation.replica(), installation.replica()
    one.wait_ready()
    two.wait_ready()
    assert installation.served(one, two)
    assert (one.log() + two.log()).count("new CA and serving certificate made") == 1


def test_a_leaf_is_replaced_on_demand_without_a_failed_review(installation: Installation) -> None:
    one, two = ready_pair(installation)
    before = installation.held()
    with Reviews(installation.api) as reviews:
        installation.rotate("leaf")
        eventually("the request to be answered", lambda: not installation.asked())
        eventually("the new certificate everywhere", lambda: installation.served(one, two))
        sent = reviews.done
        eventually("more reviews", lambda: reviews.done > sent + 5)
    after = installation.held()
    assert reviews.failures == []
    assert after.bundle == before.bundle
    assert after.leaf != before.leaf
    assert after.leaf is not None
    ends = after.leaf.certificate.not_valid_after_utc.timestamp()
    assert one.metric("neuron_dra_serving_certificate_not_after_timestamp_seconds") == ends
    assert one.metric('neuron_dra_certificate_reloads_total{result="success"}') == 2


def test_a_ca_is_replaced_without_a_failed_review(installation: Installation) -> None:
    one, two = ready_pair(installation)
    before = installation.held()
    with Reviews(installation.api) as reviews:
        installation.rotate("ca")
        eventually("the new CA in the bundle", lambda: len(installation.held().bundle) == 2)
        joined = installation.held()
        assert joined.leaf == before.leaf
        eventually("the new CA to sign", lambda: installation.held().current == joined.bundle[1], timeout=SLOW)
        eventually("the new certificate everywhere", lambda: installation.served(one, two))
        eventually("the old CA to leave", lambda: len(installation.held().bundle) == 1, timeout=SLOW)
        installation.wait_configured()
        sent = reviews.done
        eventually("more reviews", lambda: reviews.done > sent + 5)
    assert reviews.failures == []
    assert reviews.done > 20
    assert installation.held().bundle == (joined.bundle[1],)


def test_a_stopped_replica_delays_a_rotation_for_a_limited_time_and_catches_up(installation: Installation) -> None:
    one, two = ready_pair(installation)
    two.process.signal(signal.SIGSTOP)
    try:
        with Reviews(installation.api) as reviews:
            installation.rotate("ca")
            eventually("the new CA in the bundle", lambda: len(installation.held().bundle) == 2)
            joined = installation.held()
            eventually("its Lease to run out", lambda: installation.held().current != joined.current, timeout=90)
    finally:
        two.process.signal(signal.SIGCONT)
    assert reviews.failures == []
    eventually("the one that was stopped to catch up", lambda: installation.served(one, two))


def test_a_deleted_secret_is_made_again_with_its_content(installation: Installation) -> None:
    one, two = ready_pair(installation)
    before = installation.data()
    with Reviews(installation.api) as reviews:
        installation.delete_secret()
        eventually("the Secret", lambda: installation.made() and installation.data() == before)
        sent = reviews.done
        eventually("more reviews", lambda: reviews.done > sent + 5)
    assert installation.data() == before
    assert reviews.failures == []
    assert "written back as it was" in one.log() + two.log()


def test_a_start_after_the_secret_was_deleted_becomes_ready(installation: Installation) -> None:
    one = installation.replica()
    one.wait_ready()
    installation.configure(one)
    installation.wait_configured()
    before = installation.held()
    assert one.process.stop() == 0
    installation.delete_secret()
    two = installation.replica()
    two.wait_ready()
    assert installation.held().current not in before.bundle
    assert installation.secret()["type"] == "Opaque"
    installation.wait_configured()
    assert "not allowed" not in two.log()


@pytest.mark.parametrize("kind", CONFIGURATION_KINDS)
def test_a_changed_ca_bundle_is_restored(installation: Installation, kind: str) -> None:
    one, two = ready_pair(installation)
    configuration = installation.api.get(kind, NAME)
    configuration["webhooks"][0]["clientConfig"]["caBundle"] = "Z2FyYmFnZQ=="
    del configuration["metadata"]["managedFields"]
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"].pop("caBundle", None)
    installation.api.merge(kind, NAME, {"webhooks": configuration["webhooks"]})
    installation.wait_configured()
    repairs = "neuron_dra_ca_bundle_repairs_total"
    eventually("the repair to be counted", lambda: one.metric(repairs) + two.metric(repairs) == 1)


def test_a_configuration_that_is_deleted_and_applied_again_gets_its_bundle_back(installation: Installation) -> None:
    one, _ = ready_pair(installation)
    for configuration in installation.shipped(one):
        installation.api.delete(configuration["kind"], NAME)
        installation.api.create(configuration)
    installation.wait_configured()
    wait_converting(installation)


def test_an_expired_certificate_is_replaced_before_the_first_review(installation: Installation) -> None:
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=100)
    rules = rotation.Rules(hosts=("127.0.0.1",))
    made = rotation.advance(None, now=past, rules=rules, confirmed=rotation.Confirmed()).data
    assert made is not None
    installation.write(made)
    replica = installation.replica()
    replica.wait_ready()
    assert replica.certificate().not_valid_after_utc > dt.datetime.now(dt.UTC)
    assert installation.held().current.not_valid_before_utc < past + dt.timedelta(minutes=1)
    assert "the old one expired on" in replica.log()


def test_certificates_that_last_for_seconds_are_renewed_in_time(installation: Installation) -> None:
    """Without a command: a serving certificate is replaced when a third of its life is left, a CA at a tenth."""
    one = installation.replica("--certificate-lifetime=12s", "--ca-lifetime=40s")
    one.wait_ready()
    installation.configure(one)
    installation.wait_configured()
    wait_converting(installation)
    first = installation.held()
    leaves = set()

    def renewed() -> bool:
        held = installation.held()
        assert held.leaf is not None
        leaves.add(held.leaf.certificate)
        return first.current not in held.bundle

    with Reviews(installation.api) as reviews:
        eventually("the first CA to leave", renewed, timeout=SLOW, interval=0.5)
        sent = reviews.done
        eventually("more reviews", lambda: reviews.done > sent + 5)
    assert reviews.failures == []
    now = dt.datetime.now(dt.UTC)
    assert len([each for each in leaves if each.not_valid_after_utc < now]) >= 2
    assert first.current.not_valid_after_utc < now
    assert one.certificate().not_valid_after_utc > now


def test_a_certificate_that_ends_while_it_cannot_be_renewed_is_reported_and_renewed_later(
    installation: Installation,
) -> None:
    """The right to write the Secret is taken away for longer than the certificate lasts."""
    one = installation.replica("--certificate-lifetime=15s")
    one.wait_ready()
    installation.configure(one)
    installation.wait_configured()
    wait_converting(installation)
    role = installation.api.get("Role", NAME, NAMESPACE)
    rules = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch" or "secrets" not in rule["resources"]]}
        for rule in role["rules"]
    ]
    installation.api.merge("Role", NAME, {"rules": rules}, NAMESPACE)
    try:

        def ended() -> bool:
            status, text = one.readiness()
            assert "expired on" in text, text
            return status != 200

        eventually("the replica to report it", ended)
        assert one.process.running
        # Readiness may have answered in the last second of the certificate.
        eventually("it to end", lambda: one.certificate().not_valid_after_utc < dt.datetime.now(dt.UTC))
        assert "not allowed to patch secrets" in one.log()
    finally:
        installation.api.merge("Role", NAME, {"rules": role["rules"]}, NAMESPACE)
    eventually("a new certificate", lambda: one.readiness()[0] == 200)
    assert one.certificate().not_valid_after_utc > dt.datetime.now(dt.UTC)
    wait_converting(installation)


def test_a_configuration_of_another_release_is_reported_and_not_changed(installation: Installation) -> None:
    replica = installation.replica()
    replica.wait_ready()
    installation.configure(replica)
    installation.wait_configured()
    service = {"name": NAME, "namespace": "other", "path": "/mutate"}
    configuration = installation.api.get(MUTATING, NAME)
    configuration["webhooks"][0]["clientConfig"] = {"service": service}
    installation.api.merge(MUTATING, NAME, {"webhooks": configuration["webhooks"]})
    eventually("the report", lambda: "calls Service other/neuron-dra" in replica.readiness()[1])
    assert b"" in installation.bundles()


def test_missing_rights_are_named_at_start(installation: Installation, lent_control_plane: ControlPlane) -> None:
    # All that reviews need, and nothing for certificates.
    user = "no-secrets"
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "neuron-dra"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    installation.api.create(binding)
    try:
        replica = installation.replica("--sync-timeout=5", kubeconfig=lent_control_plane.user_kubeconfig(user))
        eventually("it to give up", lambda: not replica.process.running)
    finally:
        installation.api.delete("ClusterRoleBinding", user)
    assert replica.process.returncode == 3
    assert f"not allowed to list secrets named {SECRET} (API group core) in namespace {NAMESPACE}" in replica.log()
    rule = f'- {{apiGroups: [""], resources: [secrets], resourceNames: [{SECRET}], verbs: [list, watch]}}'
    assert f"a Role in namespace {NAMESPACE} with this rule: {rule}" in replica.log()
