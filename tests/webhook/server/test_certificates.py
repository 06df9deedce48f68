"""Certificates of a run, managed through an API server on a real socket."""

import base64
import contextlib
import datetime as dt
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.client.configuration import Configuration
from prometheus_client import generate_latest

from certs import material, rotation
from cluster.kinds.rendered_entries import CONFIG_MAP
from cluster.kinds.replicas import ReplicaStatus, lease_body
from runtime.api_server import ApiServerError
from runtime.api_transport import Connection
from runtime.startup import StartupError
from tests.deploy.charts import find, render
from tests.support.fake_api import FakeApi, Object, eventually
from webhook.cluster.entry_checks import EntryChecks
from webhook.edge import server
from webhook.edge.metrics import Metrics
from webhook.server.certificates import POD_NAME, POD_UID, Certificates, keeping, own_namespace, rules
from webhook.server.settings import WebhookSettings
from webhook.serving_certificate.live import LiveCertificate

MANIFESTS = Path(__file__).resolve().parents[3] / "deploy" / "manifests"
NAMESPACE, SECRET = "neuron-dra", "neuron-dra-tls"
MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
GROUPS = {"leases": "coordination.k8s.io", MUTATING: "admissionregistration.k8s.io"}
GROUPS[VALIDATING] = GROUPS[MUTATING]
SETTINGS = WebhookSettings(tls_secret=SECRET, namespace=NAMESPACE, ca_settle="1s", sync_timeout=60.0)
QUICK_TO_GIVE_UP = WebhookSettings(tls_secret=SECRET, namespace=NAMESPACE, sync_timeout=1.0)


@pytest.fixture(autouse=True)
def pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POD_NAME, "pod-1")
    monkeypatch.setenv(POD_UID, "uid-1")


@contextlib.asynccontextmanager
async def kept(api: FakeApi, settings: WebhookSettings = SETTINGS, **options: Any) -> AsyncIterator[Certificates]:
    async def load() -> Configuration:
        return Configuration(host=api.url)

    if (NAMESPACE, SECRET) not in api._objects.get("secrets", {}):
        put_secret(api, None)
    certificates = Certificates(LiveCertificate(server.bare_context("1.3")))
    connection = await Connection.open(load)
    try:
        async with keeping(settings, certificates, connection, **options):
            yield certificates
    finally:
        await connection.close()


def configuration(path: str = "/mutate", bundle: bytes = b"", namespace: str = NAMESPACE, webhooks: int = 2) -> Object:
    client: Object = {"service": {"name": "neuron-dra", "namespace": namespace, "path": path}}
    if bundle:
        client["caBundle"] = base64.b64encode(bundle).decode()
    entries = [{"name": f"w{number}.neuron.aws.com", "clientConfig": client} for number in range(webhooks)]
    return {"metadata": {"name": "neuron-dra"}, "webhooks": entries}


def bundles(api: FakeApi, plural: str = MUTATING) -> set[bytes]:
    webhooks = api.get(plural, "neuron-dra")["webhooks"]
    return {base64.b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in webhooks}


def data(api: FakeApi) -> dict[str, bytes]:
    found = api.get("secrets", SECRET, NAMESPACE)["data"]
    return {key: base64.b64decode(value) for key, value in found.items()}


def put_secret(api: FakeApi, content: dict[str, bytes] | None, **metadata: Any) -> None:
    """None: without data, as the chart has it."""
    encoded = {key: base64.b64encode(value).decode() for key, value in (content or {}).items()}
    data = {} if content is None else {"data": encoded}
    api.put("secrets", {"metadata": {"name": SECRET, "namespace": NAMESPACE, **metadata}, **data})


def made(now: dt.datetime | None = None) -> dict[str, bytes]:
    when = now or dt.datetime.now(dt.UTC)
    step = rotation.advance(None, now=when, rules=rules(SETTINGS), confirmed=rotation.Confirmed())
    assert step.data is not None
    return step.data


def leases(api: FakeApi) -> dict[str, Object]:
    return {name: item for (_, name), item in api._objects.get("leases", {}).items()}


# --- the Secret -----------------------------------------------------------------------------------------------


async def test_the_first_start_fills_the_secret_and_makes_a_lease_and_the_end_leaves_the_secret(api: FakeApi) -> None:
    async with kept(api) as certificates:
        assert material.read(data(api)).bundle_pem == data(api)["ca.crt"]
        await eventually(lambda: "pod-1" in leases(api))
        assert leases(api)["pod-1"]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
        await eventually(lambda: certificates.check()[0])
        assert certificates.report().serving == certificates.live.digest
    assert leases(api) == {}
    assert "ca.key" in data(api)


async def test_a_valid_secret_is_served_unchanged(api: FakeApi) -> None:
    content = made()
    put_secret(api, content)
    async with kept(api):
        assert data(api) == content
        assert api.calls("patch", "secrets") == []


@pytest.mark.parametrize("lost", [None, {}, {"ca.crt": b"x"}], ids=["made again", "emptied", "broken"])
async def test_a_lost_secret_is_written_back(api: FakeApi, lost: dict[str, bytes] | None) -> None:
    async with kept(api) as certificates:
        before, digest = data(api), certificates.live.digest
        put_secret(api, lost)
        await eventually(lambda: "data" in api.get("secrets", SECRET, NAMESPACE) and data(api) == before)
        assert certificates.live.digest == digest
        await eventually(lambda: not certificates.problems())


async def test_a_deleted_secret_is_made_again_with_its_content(api: FakeApi) -> None:
    async with kept(api) as one, kept(api) as two:
        before, digest = data(api), one.live.digest
        api.remove("secrets", SECRET, NAMESPACE)
        await eventually(lambda: (NAMESPACE, SECRET) in api._objects["secrets"])
        await eventually(lambda: "data" in api.get("secrets", SECRET, NAMESPACE) and data(api) == before)
        assert one.live.digest == two.live.digest == digest
        await eventually(lambda: not one.problems() and not two.problems())
    assert {seen.query["fieldManager"] for seen in api.calls("create", "secrets")} == {"neuron-dra"}


async def test_a_start_without_the_secret_makes_it(api: FakeApi) -> None:
    async with kept(api, WebhookSettings(tls_secret="other", namespace=NAMESPACE)) as certificates:
        await eventually(lambda: certificates.check()[0])
        assert set(api.get("secrets", "other", NAMESPACE)["data"]) >= {"ca.crt", "tls.crt", "tls.key"}


async def test_a_deleted_secret_that_may_not_be_made_is_reported(api: FakeApi) -> None:
    async with kept(api) as certificates:
        before, digest = data(api), certificates.live.digest
        api.forbid("create", "secrets")
        api.remove("secrets", SECRET, NAMESPACE)
        said = (
            "Secret neuron-dra/neuron-dra-tls does not exist, and the webhook may not make it: create it without data"
        )
        await eventually(lambda: any(said in each for each in certificates.problems()))
        assert certificates.check()[0]
        assert certificates.live.digest == digest
        api.heal()
        await eventually(lambda: (NAMESPACE, SECRET) in api._objects["secrets"])
        await eventually(lambda: "data" in api.get("secrets", SECRET, NAMESPACE) and data(api) == before)
        await eventually(lambda: not certificates.problems())


async def test_the_server_does_not_start_without_a_secret_that_it_may_not_make(api: FakeApi) -> None:
    put_secret(api, None)
    api.forbid("create", "secrets")
    rule = '- {apiGroups: [""], resources: [secrets], resourceNames: [other], verbs: [create]}'
    with pytest.raises(StartupError, match="Secret neuron-dra/other does not exist, and the") as raised:
        async with kept(api, WebhookSettings(tls_secret="other", namespace=NAMESPACE, sync_timeout=1.0)):
            pytest.fail("started")
    assert rule in str(raised.value)


async def test_a_conflicting_write_changes_nothing(api: FakeApi) -> None:
    async with kept(api) as one, kept(api) as two:
        api.get("secrets", SECRET, NAMESPACE)
        await eventually(lambda: one.live.digest == two.live.digest)
        item = api.get("secrets", SECRET, NAMESPACE)
        api.put("secrets", {**item, "metadata": {**item["metadata"], "annotations": {"neuron.aws.com/rotate": "leaf"}}})
        await eventually(lambda: "neuron.aws.com/rotate" not in annotations(api))
        await eventually(lambda: one.live.reloads["success"] == two.live.reloads["success"] == 2)
        assert one.live.digest == two.live.digest


def annotations(api: FakeApi) -> dict[str, str]:
    found: dict[str, str] = api.get("secrets", SECRET, NAMESPACE)["metadata"].get("annotations") or {}
    return found


async def test_a_secret_of_cert_manager_is_not_touched(api: FakeApi) -> None:
    put_secret(api, {}, annotations={"cert-manager.io/certificate-name": "neuron-dra"})
    message = "Secret neuron-dra/neuron-dra-tls is managed by cert-manager: mount it and set --tls-dir"
    with pytest.raises(StartupError, match=message):
        async with kept(api, QUICK_TO_GIVE_UP):
            pytest.fail("started")
    assert api.calls("patch", "secrets") == []


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("list", 'not allowed to list secrets named neuron-dra-tls .* give "nobody" a Role in namespace neuron-dra'),
        ("patch", r"not allowed to (write|patch) secrets named neuron-dra-tls .* resources: \[secrets\]"),
    ],
)
async def test_a_missing_right_to_the_secret_is_named(api: FakeApi, verb: str, said: str) -> None:
    api.forbid(verb, "secrets")
    with pytest.raises(StartupError, match=said):
        async with kept(api, QUICK_TO_GIVE_UP):
            pytest.fail("started")


@pytest.mark.parametrize(
    ("verb", "plural", "said"),
    [
        ("create", "leases", "leases named pod-1 (API group coordination.k8s.io) in namespace neuron-dra"),
        (
            "list",
            "leases",
            "a Role in namespace neuron-dra with this rule: - {apiGroups: [coordination.k8s.io], resources: [leases]",
        ),
        ("patch", MUTATING, "resources: [mutatingwebhookconfigurations], resourceNames: [neuron-dra], verbs: [patch]}"),
        (
            "list",
            VALIDATING,
            "[validatingwebhookconfigurations], resourceNames: [neuron-dra], verbs: [list, watch]}",
        ),
    ],
)
async def test_other_missing_rights_are_details_that_name_the_rule(
    api: FakeApi, verb: str, plural: str, said: str
) -> None:
    api.put(MUTATING, configuration())
    api.forbid(verb, plural, GROUPS[plural])
    async with kept(api) as certificates:
        await eventually(lambda: said in certificates.check()[1])
        assert any(said in problem for problem in certificates.report().problems)


async def compare(api: FakeApi) -> None:
    async def load() -> Configuration:
        return Configuration(host=api.url)

    api.put(
        "configmaps",
        find(render(), "ConfigMap", CONFIG_MAP) | {"metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE}},
    )
    connection = await Connection.open(load)
    await EntryChecks(connection, NAMESPACE, CONFIG_MAP, "neuron-dra", "neuron-dra").compare()
    await connection.close()


async def test_the_shipped_rights_equal_the_used_rights(api: FakeApi) -> None:
    api.put(MUTATING, configuration())
    api.put(VALIDATING, configuration("/validate"))
    async with kept(api) as certificates:
        await eventually(lambda: bundles(api) | bundles(api, VALIDATING) == {data(api)["ca.crt"]})
        item = api.get("secrets", SECRET, NAMESPACE)
        api.put("secrets", {**item, "metadata": {**item["metadata"], "annotations": {"neuron.aws.com/rotate": "leaf"}}})
        await eventually(lambda: certificates.live.reloads["success"] == 2)
        await eventually(lambda: len(api.calls("patch", "leases")) > 1)
        api.remove("secrets", SECRET, NAMESPACE)
        await eventually(lambda: api.calls("create", "secrets"))
    await compare(api)
    asked = {(seen.plural, seen.verb) for seen in api.seen}
    documents = list(yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text()))
    granted = {
        (resource, verb)
        for document in documents
        if document["kind"] in ("Role", "ClusterRole") and "kubelet-plugin" not in document["metadata"]["name"]
        for rule in document["rules"]
        if document["kind"] == "Role" or "resourceNames" in rule
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked == granted


# --- the configurations ---------------------------------------------------------------------------------------


async def test_a_replica_is_not_ready_before_configurations_carry_its_ca_and_stays_ready_after(api: FakeApi) -> None:
    api.put(MUTATING, configuration(bundle=b"old"))
    api.forbid("patch", MUTATING, GROUPS[MUTATING])
    async with kept(api) as certificates:
        await eventually(lambda: "does not carry its CA" in certificates.check()[1])
        assert not certificates.check()[0]
        api.heal()
        await eventually(lambda: certificates.check()[0])
        api.forbid("patch", MUTATING, GROUPS[MUTATING])
        api.put(MUTATING, configuration(bundle=b"foreign"))
        await eventually(lambda: "does not carry its CA" in certificates.check()[1])
        assert certificates.check()[0]


async def test_a_changed_bundle_is_restored_and_counted(api: FakeApi) -> None:
    api.put(MUTATING, configuration())
    metrics = Metrics("test")
    async with kept(api) as certificates:
        certificates.show(metrics)
        await eventually(lambda: bundles(api) == {data(api)["ca.crt"]})
        await eventually(lambda: certificates.bundles is not None and certificates.bundles.carry(data(api)["ca.crt"]))
        api.remove(MUTATING, "neuron-dra")
        api.put(MUTATING, configuration())
        await eventually(lambda: bundles(api) == {data(api)["ca.crt"]})
        await eventually(lambda: certificates.bundles is not None and certificates.bundles.repairs == 1)
        text = generate_latest(metrics.registry).decode()
    assert "neuron_dra_ca_bundle_repairs_total 1.0" in text
    assert 'neuron_dra_certificate_reloads_total{result="success"} 1.0' in text
    end = material.read(data(api)).current.not_valid_after_utc.timestamp()
    (shown,) = re.findall(r"^neuron_dra_ca_not_after_timestamp_seconds (\S+)$", text, re.MULTILINE)
    assert float(shown) == end


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            configuration(namespace="other"),
            "webhook w0.neuron.aws.com calls Service other/neuron-dra, and this webhook is neuron-dra/neuron-dra",
        ),
        (configuration("/mutated"), "webhook w0.neuron.aws.com calls path '/mutated' instead of /mutate"),
        (configuration(""), "webhook w0.neuron.aws.com calls path '' instead of /mutate"),
    ],
    ids=["service", "path", "no path"],
)
async def test_a_configuration_that_cannot_work_is_reported(api: FakeApi, item: Object, said: str) -> None:
    api.put(MUTATING, item)
    async with kept(api) as certificates:
        await eventually(lambda: said in certificates.check()[1])


async def test_entries_of_other_services_are_never_written(api: FakeApi) -> None:
    api.put(MUTATING, configuration(namespace="other", bundle=b"theirs"))
    api.put(VALIDATING, configuration("/validate"))
    async with kept(api):
        await eventually(lambda: bundles(api, VALIDATING) == {data(api)["ca.crt"]})
        assert bundles(api) == {b"theirs"}
    assert api.calls("patch", MUTATING) == []


async def test_the_bundle_is_watched_and_not_written_if_inject_ca_is_off(api: FakeApi) -> None:
    api.put(MUTATING, configuration())
    settings = WebhookSettings(tls_secret=SECRET, namespace=NAMESPACE, inject_ca=False)
    async with kept(api, settings) as certificates:
        await eventually(lambda: "does not carry its CA" in certificates.check()[1])
        api.put(MUTATING, configuration(bundle=made()["ca.crt"] + data(api)["ca.crt"]))
        await eventually(lambda: certificates.check()[0])
        assert certificates.bundles is not None
        assert certificates.bundles.carry(data(api)["ca.crt"])
    assert api.calls("patch", MUTATING) == []


async def test_a_replica_that_was_paused_does_not_write_an_old_bundle(api: FakeApi) -> None:
    async with kept(api) as certificates:
        assert certificates.keeper is not None
        other = made()
        put_secret(api, other)
        assert await certificates.keeper.fresh_bundle() == other["ca.crt"]
        api.remove("secrets", SECRET, NAMESPACE)
        assert await certificates.keeper.fresh_bundle() in (other["ca.crt"], data_or_none(certificates))
        api.forbid("get", "secrets")
        with pytest.raises(ApiServerError):
            await certificates.keeper.fresh_bundle()


def data_or_none(certificates: Certificates) -> bytes:
    assert certificates.follower is not None
    return certificates.follower.bundle


# --- replicas and processes -----------------------------------------------------------------------------------


async def test_a_ca_waits_for_every_living_replica(api: FakeApi) -> None:
    content = made()
    put_secret(api, content, annotations={"neuron.aws.com/rotate": "ca"})
    now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
    lagging = lease_body("pod-2", ReplicaStatus(secret=SECRET, bundle="old", serving="old"), now)
    api.put("leases", {**lagging, "metadata": {**lagging["metadata"], "namespace": NAMESPACE}})
    async with kept(api) as certificates:
        await eventually(lambda: "next-ca.crt" in data(api))
        joined = data(api)
        assert certificates.keeper is not None
        await eventually(lambda: "once every replica" in certificates.keeper.waiting)  # type: ignore[union-attr]
        await eventually(lambda: certificates.report().bundle == material.bundle_digest(joined["ca.crt"]))
        assert data(api) == joined
        digest = material.bundle_digest(joined["ca.crt"])
        caught_up = ReplicaStatus(secret=SECRET, bundle=digest, serving=certificates.live.digest)
        body = lease_body("pod-2", caught_up, now)
        api.put("leases", {**body, "metadata": {**body["metadata"], "namespace": NAMESPACE}})
        await eventually(lambda: "next-ca.crt" not in data(api), seconds=10)
        assert material.read(data(api)).bundle == tuple(reversed(material.read(joined).bundle))


@pytest.mark.parametrize("secret", ["", "neuron-dra-other"], ids=["without a Secret", "with another Secret"])
async def test_a_ca_does_not_wait_for_replicas_without_the_secret(api: FakeApi, secret: str) -> None:
    put_secret(api, made(), annotations={"neuron.aws.com/rotate": "ca"})
    now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
    other = lease_body("laptop", ReplicaStatus(secret=secret, serving="other"), now)
    api.put("leases", {**other, "metadata": {**other["metadata"], "namespace": NAMESPACE}})
    async with kept(api) as certificates:
        await eventually(lambda: certificates.live.reloads["success"] == 2, seconds=10)
        assert "next-ca.crt" not in data(api)


# --- clocks ---------------------------------------------------------------------------------------------------


async def test_certificates_follow_the_clock_of_the_api_server_and_a_skew_is_reported(api: FakeApi) -> None:
    api.ahead = dt.timedelta(days=400)
    async with kept(api) as certificates:
        soon = dt.datetime.now(dt.UTC) + dt.timedelta(days=399)
        assert certificates.live.fault(soon).startswith("is not valid before ")
        await eventually(lambda: certificates.check()[0])
        assert "this node's clock is 345600" in certificates.check()[1]
        assert "s behind the API server's: synchronise the clocks" in certificates.check()[1]


async def test_an_expired_leaf_is_replaced_before_it_is_served(api: FakeApi) -> None:
    put_secret(api, made(dt.datetime.now(dt.UTC) - dt.timedelta(days=100)))
    async with kept(api) as certificates:
        assert certificates.live.fault(dt.datetime.now(dt.UTC)) == ""
        assert certificates.live.reloads == {"success": 1, "failure": 0}


# --- settings -------------------------------------------------------------------------------------------------


def test_the_certificate_is_for_the_service_and_for_a_host_that_is_named() -> None:
    names = ("svc", "svc.ns", "svc.ns.svc", "svc.ns.svc.cluster.local")
    assert rules(WebhookSettings(service="svc", namespace="ns")).hosts == names
    assert rules(WebhookSettings(service="svc", namespace="ns", host="0.0.0.0")).hosts == names
    assert rules(WebhookSettings(service="svc", namespace="ns", host="127.0.0.1")).hosts == (*names, "127.0.0.1")


def test_certificates_have_the_configured_lifetimes() -> None:
    made_rules = rules(WebhookSettings(ca_lifetime="20d", certificate_lifetime="12h", ca_settle="5m"))
    assert (made_rules.ca_lifetime, made_rules.leaf_lifetime) == (dt.timedelta(days=20), dt.timedelta(hours=12))
    assert (made_rules.settle, made_rules.retire) == (dt.timedelta(minutes=5), dt.timedelta(minutes=25))


def test_outside_of_a_cluster_the_namespace_has_a_default() -> None:
    assert own_namespace(WebhookSettings()) == "neuron-dra"
    assert own_namespace(WebhookSettings(namespace="other")) == "other"
