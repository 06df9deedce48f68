"""The connection to a cluster: configuration, trust, credentials, first sync, readiness."""

import asyncio
import contextlib
import datetime as dt
import inspect
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import incluster_config

from cluster.collections import Watches
from cluster.resources import RESOURCE_CLAIM_TEMPLATES
from commands.status.snapshot import RULES
from conversion.claims.templates import Template
from conversion.patches.decision import denied
from neuron.findings import Finding
from runtime.api_server import ClusterUnavailableError, StatusError, UnreachableError
from runtime.api_transport import Connection, load_configuration
from runtime.watching import Timing
from tests.support.clocks import Clock
from tests.support.clusters import request
from tests.support.fake_api import FakeApi, answer, eventually, hang, hang_up, server_certificate
from tests.support.generated import stored, template
from webhook.cluster.events import PATCH_EVERY, EventRecorder
from webhook.cluster.kube import KubeWorld, connect
from webhook.cluster.templates import KubeTemplates

QUICK = Timing(backoff=0.002, backoff_limit=0.01)
MANIFESTS = Path(__file__).parents[3] / "deploy" / "manifests"
TEMPLATE = Template.make("1-device", {"spec": {"devices": {"requests": [{"name": "n0"}]}}})


class Cluster:
    """A fake API server behind TLS, and files to reach it."""

    def __init__(self, api: FakeApi, authority: Path, directory: Path) -> None:
        self.api = api
        self.authority = authority
        self.directory = directory
        self.token = directory / "token"
        self.token.write_text("secret")

    def kubeconfig(self, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
        default = {"server": self.api.url, "certificate-authority": str(self.authority)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "main",
            "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": default if cluster is None else cluster}],
            "users": [{"name": "u", "user": user or {"token": "secret"}}],
        }
        path = self.directory / "kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    context, authority = server_certificate(tmp_path)
    async with FakeApi().serve(context) as api:
        api.tokens = {"secret"}
        yield Cluster(api, authority, tmp_path)


# --- connect --------------------------------------------------------------------------------------------------


async def test_a_connection_reads_the_cluster_and_creates_templates(cluster: Cluster) -> None:
    cluster.api.put("namespaces", {"metadata": {"name": "team", "annotations": {"neuron.aws.com/convert": "off"}}})
    async with connect(cluster.kubeconfig()) as world:
        assert world.ready() == (True, "")
        assert dict(world.view.namespace("team").annotations) == {"neuron.aws.com/convert": "off"}
        await world.templates.ensure("team", TEMPLATE)
        assert world.templates.holds("team", TEMPLATE)
        assert len(world.caches) == 11
        assert {call.token for call in cluster.api.seen} == {"secret"}


async def test_nodes_are_watched_by_their_metadata(cluster: Cluster) -> None:
    labels = {"node.kubernetes.io/instance-type": "inf2.48xlarge"}
    for number in range(300):
        cluster.api.put("nodes", {"metadata": {"name": f"node-{number}", "labels": labels}})
    async with connect(cluster.kubeconfig()) as world:
        assert set(world.view.observations()) == {"inf2.48xlarge"}
        labels = {"node.kubernetes.io/instance-type": "trn1.2xlarge"}
        cluster.api.put("nodes", {"metadata": {"name": "late", "labels": labels}})
        await eventually(lambda: "trn1.2xlarge" in world.view.observations())
    accepted = {call.verb: call.accept for call in cluster.api.seen if call.plural == "nodes"}
    listed = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    watched = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    assert accepted == {"list": listed, "continue": listed, "watch": watched}
    assert {call.accept for call in cluster.api.seen if call.plural == "namespaces"} == {"application/json"}


async def test_the_webhook_is_ready_without_the_right_to_list_nodes_and_reports_it(cluster: Cluster) -> None:
    cluster.api.forbid("list", "nodes")
    async with connect(cluster.kubeconfig(), timing=QUICK) as world:
        ready, detail = world.ready()
        assert ready
        assert "resources: [nodes], verbs: [list, watch]" in detail
        assert world.view.observations() == {}


async def test_nodes_are_not_read_if_that_is_switched_off(cluster: Cluster) -> None:
    async with connect(cluster.kubeconfig(), nodes=False):
        assert not [call for call in cluster.api.seen if call.plural == "nodes"]


async def test_leaving_ends_the_watches(cluster: Cluster) -> None:
    async with connect(cluster.kubeconfig()):
        assert cluster.api.watching("namespaces") == 1
    await eventually(lambda: cluster.api.watching("namespaces") == 0)


async def test_an_exception_in_the_context_stops_all_watches(cluster: Cluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with connect(cluster.kubeconfig()):
            raise ZeroDivisionError
    await eventually(lambda: cluster.api.watching("namespaces") == 0)


async def test_the_webhook_waits_for_a_cluster_that_starts_late(cluster: Cluster) -> None:
    for plural in ("namespaces", "resourceslices"):
        cluster.api.fault("list", plural, answer(503, "ServiceUnavailable", "starting"), times=3)
    async with connect(cluster.kubeconfig(), timing=QUICK) as world:
        assert world.ready() == (True, "")


async def refused(cluster: Cluster, kubeconfig: Path | None = None, **options: Any) -> str:
    with pytest.raises(ClusterUnavailableError) as caught:
        async with connect(kubeconfig or cluster.kubeconfig(), timing=QUICK, **options):
            pytest.fail("connected")
    return str(caught.value)


async def test_refused_credentials_are_reported_at_once(cluster: Cluster) -> None:
    cluster.api.tokens = {"other"}
    message = await refused(cluster)
    assert message.startswith(f"the cluster at {cluster.api.url} cannot be used: cannot list resourceslices")
    assert "the API server does not accept the webhook's credentials" in message


async def test_all_missing_permissions_are_reported_together(cluster: Cluster) -> None:
    cluster.api.forbid("list", "namespaces")
    cluster.api.forbid("watch", "deviceclasses", "resource.k8s.io")
    message = await refused(cluster)
    assert "not allowed to list namespaces (API group core) in all namespaces" in message
    assert "not allowed to watch deviceclasses (API group resource.k8s.io) in all namespaces" in message
    assert "limitranges" not in message


async def test_a_cluster_without_dra_is_reported(cluster: Cluster) -> None:
    cluster.api.unserved = {"resource.k8s.io"}
    assert (
        "the API server does not serve resourceslices in resource.k8s.io/v1: Kubernetes >= 1.34 with Dynamic Resource "
        "Allocation is needed" in await refused(cluster)
    )


async def test_an_unreachable_server_is_reported(cluster: Cluster) -> None:
    nowhere = {"server": "https://127.0.0.1:1", "certificate-authority": str(cluster.authority)}
    message = await refused(cluster, cluster.kubeconfig(nowhere), sync_timeout=1.0)
    assert "cannot list namespaces: cannot connect to https://127.0.0.1:1: " in message
    assert "refused" in message or "Connect call failed" in message


async def test_a_host_name_that_does_not_resolve_is_reported(cluster: Cluster) -> None:
    nowhere = {"server": "https://nowhere.invalid", "certificate-authority": str(cluster.authority)}
    message = await refused(cluster, cluster.kubeconfig(nowhere), sync_timeout=1.0)
    assert "cannot connect to https://nowhere.invalid: " in message
    assert "Unknown error" not in message


async def test_an_untrusted_server_certificate_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    _, other = server_certificate(elsewhere)
    kubeconfig = cluster.kubeconfig({"server": cluster.api.url, "certificate-authority": str(other)})
    message = await refused(cluster, kubeconfig, sync_timeout=1.0)
    assert f"the certificate of {cluster.api.url} is not trusted (" in message
    assert "check the certificate authority" in message


async def test_a_server_that_never_answers_causes_a_time_out(cluster: Cluster) -> None:
    cluster.api.fault("list", "namespaces", hang, times=99)
    message = await refused(cluster, sync_timeout=1.5)
    assert message.endswith("cannot be used: no list of namespaces within 1.5 s")


# --- configuration --------------------------------------------------------------------------------------------


INVALID: dict[str, str] = {
    "": "kubeconfig {path} cannot be used: the file is empty or is not a kubeconfig (",
    "{": "kubeconfig {path} is not YAML: ",
    "words": "kubeconfig {path} cannot be used: the file is empty or is not a kubeconfig (",
    "kind: Config": "kubeconfig {path} cannot be used: Invalid kube-config file. Ex",
    "{current-context: x, contexts: [], clusters: [], users: []}": (
        "kubeconfig {path} cannot be used: Invalid kube-config file. Expected"
    ),
    "{current-context: x, contexts: [{name: x, context: {cluster: c}}], "
    "clusters: [{name: c, cluster: {proxy-url: http://127.0.0.1:1}}]}": (
        "kubeconfig {path}: the cluster has no server: add its URL"
    ),
    "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {}}], "
    "clusters: [{name: c, cluster: {server: https://127.0.0.1:1, certificate-authority-data: a}}]}": (
        "kubeconfig {path} cannot be used: something is missing or malformed (Invalid base64"
    ),
    "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {}}], "
    "clusters: [{name: c, cluster: {server: https://127.0.0.1:1, certificate-authority: nowhere.crt}}]}": (
        "kubeconfig {path} cannot be used: File does not exists: "
    ),
}


@pytest.mark.parametrize(("content", "message"), INVALID.items(), ids=INVALID)
async def test_an_invalid_kubeconfig_is_reported_with_its_path(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(ClusterUnavailableError) as caught:
        await load_configuration(path)
    assert str(caught.value).startswith(message.format(path=path))


async def test_a_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    with pytest.raises(ClusterUnavailableError, match=f"cannot read {path}: No such file or directory"):
        await load_configuration(path)


async def test_another_context_can_be_selected(cluster: Cluster) -> None:
    path = cluster.kubeconfig()
    content = yaml.safe_load(path.read_text())
    content["contexts"].append({"name": "second", "context": {"cluster": "d", "user": "u"}})
    content["clusters"].append({"name": "d", "cluster": {"server": "https://second.example:6443/"}})
    path.write_text(yaml.safe_dump(content))
    assert (await load_configuration(path, "second")).host == "https://second.example:6443"
    with pytest.raises(ClusterUnavailableError) as caught:
        await load_configuration(path, "third")
    assert str(caught.value) == f"kubeconfig {path} has no context 'third': use one of main, second"


async def test_a_file_without_a_certificate_is_reported(cluster: Cluster) -> None:
    (cluster.directory / "broken.crt").write_text("no certificate")
    broken = {"server": cluster.api.url, "certificate-authority": str(cluster.directory / "broken.crt")}
    message = await refused(cluster, cluster.kubeconfig(broken))
    assert message.startswith(f"the certificates for {cluster.api.url} cannot be used: ")
    assert message.endswith("check the certificate authority, client certificate and key")


async def test_the_error_outside_of_a_cluster_asks_for_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterUnavailableError) as caught:
        await load_configuration(None)
    assert str(caught.value) == (
        "this process does not run in a cluster (Service host/port is not set.): give a kubeconfig, or start without a "
        "cluster (--standalone)"
    )


# --- credentials ----------------------------------------------------------------------------------------------


@pytest.fixture
def service_account(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a pod in the cluster; its token is `cluster.token`."""
    host, _, port = cluster.api.url.removeprefix("https://").rpartition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(cluster.token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(cluster.authority))


@pytest.mark.usefixtures("service_account")
async def test_the_service_account_is_used_in_a_cluster(cluster: Cluster) -> None:
    async with connect(None) as world:
        assert world.ready() == (True, "")
        assert {call.token for call in cluster.api.seen} == {"secret"}


@pytest.mark.usefixtures("service_account")
async def test_no_proxy_is_used_in_a_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    async with connect(None) as world:
        assert world.ready() == (True, "")


@pytest.mark.usefixtures("service_account")
async def test_a_service_account_without_a_token_is_reported(cluster: Cluster) -> None:
    cluster.token.unlink()
    with pytest.raises(ClusterUnavailableError, match=r"Service token file does not exist\."):
        await load_configuration(None)


@pytest.mark.usefixtures("service_account")
async def test_a_rotated_token_is_read_again_without_a_failure(cluster: Cluster) -> None:
    async with connect(None, timing=QUICK) as world:
        cluster.token.write_text("fresh")
        cluster.api.tokens = {"fresh"}
        await world.templates.ensure("team", TEMPLATE)
        assert [call.token for call in cluster.api.calls("create", "resourceclaimtemplates")] == ["secret", "fresh"]


@contextlib.asynccontextmanager
async def closing(connection: Connection) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await connection.close()


@pytest.fixture
async def connection(cluster: Cluster) -> AsyncIterator[Connection]:
    """A connection whose kubeconfig names the token file."""
    kubeconfig = cluster.kubeconfig(user={"tokenFile": str(cluster.token)})
    connection = await Connection.open(lambda: load_configuration(kubeconfig))
    async with closing(connection):
        yield connection


async def get(connection: Connection) -> bytes:
    return await connection.request("GET", "/api/v1/namespaces", timeout=2.5)


async def test_requests_that_are_refused_together_read_the_token_once(cluster: Cluster) -> None:
    kubeconfig = cluster.kubeconfig(user={"tokenFile": str(cluster.token)})
    loads = 0

    async def load() -> Configuration:
        nonlocal loads
        loads += 1
        return await load_configuration(kubeconfig)

    connection = await Connection.open(load)
    async with closing(connection):
        cluster.token.write_text("fresh")
        cluster.api.tokens = {"fresh"}
        await asyncio.gather(*(get(connection) for _ in range(5)))
        assert loads == 2


async def test_a_token_that_stays_refused_is_not_read_repeatedly(cluster: Cluster, connection: Connection) -> None:
    cluster.api.tokens = set()
    for calls in (2, 3):
        with pytest.raises(StatusError, match="HTTP 401, 'Unauthorized'"):
            await get(connection)
        assert len(cluster.api.calls("list", "namespaces")) == calls


async def test_credentials_that_cannot_be_read_again_are_logged(
    cluster: Cluster, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.token.unlink()
    cluster.api.tokens = set()
    with caplog.at_level(logging.WARNING), pytest.raises(StatusError):
        await get(connection)
    assert "the API server refused the credentials, and they cannot be read again: cannot read " in caplog.text


async def test_a_client_certificate_is_read_again(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    key = cluster.authority.with_suffix(".key")
    kubeconfig = cluster.kubeconfig(user={"client-certificate": str(cluster.authority), "client-key": str(key)})
    connection = await Connection.open(lambda: load_configuration(kubeconfig))
    async with closing(connection):
        key.write_text("half written")
        with pytest.raises(StatusError):
            await get(connection)
        assert "they cannot be read again: [SSL" in caplog.text


async def test_a_credential_plugin_is_run_again_when_its_token_expires(cluster: Cluster) -> None:
    script = (
        "import json, pathlib, sys; print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', "
        "'kind': 'ExecCredential', 'status': {'token': pathlib.Path(sys.argv[1]).read_text()}}))"
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", script, str(cluster.token)],
    }
    kubeconfig = cluster.kubeconfig(user={"exec": plugin})
    connection = await Connection.open(lambda: load_configuration(kubeconfig))
    async with closing(connection):
        await get(connection)
        cluster.token.write_text("fresh")
        cluster.api.tokens = {"fresh"}
        await get(connection)
        assert [call.token for call in cluster.api.seen] == ["secret", "secret", "fresh"]


@pytest.mark.usefixtures("service_account")
async def test_an_emptied_service_account_token_fails_the_request(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await Connection.open(lambda: load_configuration(None))
    async with closing(connection):
        cluster.token.write_text("")
        monkeypatch.setattr("kubernetes.aio.config.incluster_config.datetime.datetime", Tomorrow)
        with pytest.raises(UnreachableError, match="the service account token cannot be read: Token file exists but"):
            await get(connection)


class Tomorrow(dt.datetime):
    """A clock after the minute for which the client caches a token."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Self:
        return super().now(tz) + dt.timedelta(days=1)


# --- answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3), ("9999", 60), ("Wed, 21 Oct 2026 07:28:00 GMT", 0)],
    ids=["seconds", "capped", "a date"],
)
async def test_retry_after_is_read(cluster: Cluster, header: str, seconds: float) -> None:
    busy = answer(429, "TooManyRequests", "busy", headers={"Retry-After": header})
    cluster.api.fault("list", "namespaces", busy)
    connection = await Connection.open(lambda: load_configuration(cluster.kubeconfig()))
    async with closing(connection):
        with pytest.raises(StatusError) as caught:
            await connection.request("GET", "/api/v1/namespaces", timeout=2.5)
        assert (caught.value.retry_after, caught.value.passing) == (seconds, True)


async def test_a_get_is_sent_again_after_its_connection_broke(cluster: Cluster) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    # aiohttp sends a GET once more by itself.
    cluster.api.fault("list", "namespaces", hang_up, times=4)
    connection = await Connection.open(lambda: load_configuration(cluster.kubeconfig()), sleep=sleep)
    async with closing(connection):
        await get(connection)
    assert waited == [1, 1]


async def test_a_request_is_sent_again_ten_times_at_most(cluster: Cluster) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    cluster.api.fault("list", "namespaces", answer(503, "x", "busy", headers={"Retry-After": "1"}), times=99)
    connection = await Connection.open(lambda: load_configuration(cluster.kubeconfig()), sleep=sleep)
    async with closing(connection):
        with pytest.raises(StatusError):
            await connection.request("GET", "/api/v1/namespaces", timeout=2.5)
    assert waited == [1] * 10


# --- readiness ------------------------------------------------------------------------------------------------


async def test_caches_before_their_first_list_are_not_ready(cluster: Cluster) -> None:
    connection = await Connection.open(lambda: load_configuration(cluster.kubeconfig()))
    async with closing(connection):
        view = Watches(connection)
        world = KubeWorld(connection, view.store, KubeTemplates(connection, view.templates), view.caches[:2])
        assert world.ready() == (
            False,
            "not seen yet: resourceslices.resource.k8s.io, deviceclasses.resource.k8s.io",
        )
        world.caches[0].synced.set()
        world.caches[1]._problem.text = "cannot list it"
        assert world.ready() == (False, "not seen yet: deviceclasses.resource.k8s.io; cannot list it")


async def test_a_cache_that_falls_behind_is_reported_but_stays_ready(cluster: Cluster) -> None:
    async with connect(cluster.kubeconfig(), timing=QUICK) as world:
        cluster.api.fault("watch", "namespaces", answer(500, "InternalError", "oh no"), times=10_000)
        cluster.api.break_watches()
        problem = "cannot watch namespaces: the API server says: HTTP 500, 'oh no'"
        await eventually(lambda: problem in world.ready()[1])
        assert world.ready()[0]


# --- clocks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [dt.timedelta(0), dt.timedelta(hours=2), dt.timedelta(minutes=-3)])
async def test_the_clock_of_the_api_server_is_known_from_its_answers(
    cluster: Cluster, connection: Connection, ahead: dt.timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.api.ahead = ahead
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await get(connection)
    assert abs(connection.skew - ahead) < dt.timedelta(seconds=3)
    assert abs(connection.now() - dt.datetime.now(dt.UTC) - ahead) < dt.timedelta(seconds=3)
    assert caplog.messages.count("clock compared") == bool(ahead)


async def test_an_answer_without_a_valid_date_does_not_change_the_clock_skew(
    cluster: Cluster, connection: Connection
) -> None:
    cluster.api.ahead = dt.timedelta(hours=1)
    await get(connection)
    connection._note_time("soon", time.monotonic())
    connection._note_time("", time.monotonic())
    assert abs(connection.skew - dt.timedelta(hours=1)) < dt.timedelta(seconds=3)


async def test_an_answer_that_was_read_late_does_not_change_the_clock_skew(connection: Connection) -> None:
    before = connection.skew
    connection._note_time("Wed, 01 Jul 2026 12:00:00 GMT", time.monotonic() - 30)
    assert connection.skew == before


@pytest.mark.parametrize("jump", [dt.timedelta(days=100), dt.timedelta(days=-100)])
async def test_a_jump_of_the_local_clock_does_not_change_the_api_servers_time(
    cluster: Cluster, connection: Connection, jump: dt.timedelta
) -> None:
    ours = dt.datetime.now(dt.UTC)
    connection._wall = lambda: ours
    assert connection.now() == ours, "there is no answer yet"
    await get(connection)
    before = connection.now()
    ours += jump
    assert dt.timedelta(0) <= connection.now() - before < dt.timedelta(seconds=10)
    assert abs(connection.skew + jump) < dt.timedelta(seconds=10)


# --- the deployment -------------------------------------------------------------------------------------------


def test_importing_the_module_does_not_import_the_client() -> None:
    script = "import sys, webhook.cluster.kube; print('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def manifest(file: str, kind: str, name: str = "neuron-dra") -> Any:
    items = yaml.safe_load_all((MANIFESTS / file).read_text())
    (found,) = (item for item in items if (item["kind"], item["metadata"]["name"]) == (kind, name))
    return found


async def test_the_cluster_role_allows_exactly_the_requests_that_are_sent(
    cluster: Cluster, connection: Connection
) -> None:
    asked: set[tuple[str, str, str]] = set()
    clock = Clock()
    recorder = EventRecorder(connection, "pod-1", clock=clock)
    async with connect(cluster.kubeconfig()) as world:
        for seconds in (0.0, PATCH_EVERY):
            clock.now = seconds
            recorder.refused(request({}), denied("bad-request", Finding("NEU105", "", "no")))
            await recorder.write()
        cluster.api.fault("create", "resourceclaimtemplates", answer(409, "AlreadyExists", "already exists"))
        await world.templates.ensure("team", TEMPLATE)
        cluster.api.put("resourceclaimtemplates", stored(4, mark="2026-03-01T12:00:00Z"))
        await world.templates.ensure("team", template(4))
        await world.view.exist("ResourceClaim", "team", ["shared"])
        groups = {cache.resource.plural: cache.resource.group for cache in world.caches}
        groups |= {"resourceclaims": RESOURCE_CLAIM_TEMPLATES.group, "events": "events.k8s.io"}
        asked = {(groups[call.plural], call.plural, call.verb) for call in cluster.api.seen}
    allowed = {
        (group, resource, verb)
        for rule in manifest("rbac.yaml", "ClusterRole")["rules"]
        if "resourceNames" not in rule  # these are about certificates: test_certificates
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked == allowed
    assert RESOURCE_CLAIM_TEMPLATES.plural in {resource for _, resource, _ in allowed}


def test_every_rule_that_is_shipped_is_known_by_name() -> None:
    """A missing permission is reported as the RBAC rule to add: see `commands.status.snapshot`."""
    shipped = [
        (kind == "Role", rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", []))
        for kind, name in (
            ("ClusterRole", "neuron-dra"),
            ("ClusterRole", "neuron-dra-certificates"),
            ("Role", "neuron-dra"),
        )
        for rule in manifest("rbac.yaml", kind, name)["rules"]
    ]
    known = [(rule.own, [rule.group], [*rule.resources], [*rule.verbs], [*rule.names]) for rule in RULES]
    assert sorted(shipped) == sorted(known)


def test_the_webhook_time_out_is_longer_than_the_template_budget() -> None:
    webhook, *_ = manifest("webhook.yaml", "MutatingWebhookConfiguration")["webhooks"]
    default = inspect.signature(KubeTemplates).parameters["budget"].default
    assert default < webhook["timeoutSeconds"] <= 10


def test_the_webhook_configuration_matches_the_service() -> None:
    webhook, *_ = manifest("webhook.yaml", "MutatingWebhookConfiguration")["webhooks"]
    assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["reinvocationPolicy"]) == (
        "Fail",
        "NoneOnDryRun",
        "IfNeeded",
    )
    service = webhook["clientConfig"]["service"]
    deployed = manifest("webhook.yaml", "Service")["metadata"]
    assert (service["name"], service["namespace"]) == (deployed["name"], deployed["namespace"])
    excluded = webhook["namespaceSelector"]["matchExpressions"][0]["values"]
    assert set(excluded) == {"kube-system", "kube-node-lease", deployed["namespace"]}
