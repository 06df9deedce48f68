"""A converted pod always has its template, made once; where it cannot be made, the user learns why."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import (
    MANAGED_BY,
    container,
    events,
    generated_templates,
    is_converted,
    legacy_names,
    pod,
    scheduled_devices,
    template_names,
    workload,
)
from tests.cluster.nodes import INSTANCE_TYPE, Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook

pytestmark = pytest.mark.usefixtures("webhook")

TEMPLATES = "resourceclaimtemplates"
TRN2 = {INSTANCE_TYPE: "trn2.48xlarge"}
"""Pods of this type have the same template, whichever types the webhook has seen."""


@contextlib.contextmanager
def without_create_permission(api: Api) -> Iterator[None]:
    """Take the right to create templates from the webhook's ClusterRoles for a while."""
    roles = [role for role in api.list("ClusterRole") if role["metadata"]["name"].startswith("neuron-dra")]
    assert any(TEMPLATES in rule["resources"] for role in roles for rule in role["rules"])
    for role in roles:
        rules = [dict(rule) for rule in role["rules"]]
        for rule in rules:
            if TEMPLATES in rule["resources"]:
                rule["verbs"] = [verb for verb in rule["verbs"] if verb != "create"]
        api.merge("ClusterRole", role["metadata"]["name"], {"rules": rules})
    try:
        yield
    finally:
        for role in roles:
            api.merge("ClusterRole", role["metadata"]["name"], {"rules": role["rules"]})


def no_more_templates(api: Api, namespace: str) -> None:
    """A ResourceQuota that lets no template in; returns once it is in force."""
    hard = {f"count/{TEMPLATES}.resource.k8s.io": "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": hard}}
    api.create(quota, namespace)
    eventually(
        "the quota to be counted", lambda: api.get("ResourceQuota", "none", namespace).get("status", {}).get("used")
    )


def wait_for_refusal(kubectl: Kubectl, *fragments: str) -> None:
    """Create a legacy pod until it is denied with this message: a new setup takes a moment to apply."""

    def attempt() -> bool:
        result = kubectl.feed("create", pod("legacy"))
        if result.ok:
            kubectl.must("delete", "pod", "legacy", "--force", "--grace-period=0")
            kubectl.must("delete", "resourceclaimtemplates", "--all")
        for fragment in fragments:
            assert fragment in result.stderr, result.stderr or result.stdout
        return True

    eventually("the refusal", attempt)


class TestRefusals:
    """What the API server refuses is named, with what would mend it."""

    def test_a_missing_permission_is_named(self, api: Api, kubectl: Kubectl, namespace: str) -> None:
        with without_create_permission(api):
            account = "system:serviceaccount:neuron-dra:neuron-dra"
            wait_for_refusal(
                kubectl, "NEU301", account, f"is not allowed to create {TEMPLATES}.resource.k8s.io", "verbs: [create]"
            )
            assert api.find("Pod", "legacy", namespace) is None
        eventually("the permission to be back", lambda: kubectl.feed("create", pod("legacy")).ok)

    def test_an_exhausted_quota_is_named(self, api: Api, kubectl: Kubectl, namespace: str) -> None:
        no_more_templates(api, namespace)
        wait_for_refusal(kubectl, "NEU301", "exceeded quota: none", f"count/{TEMPLATES}.resource.k8s.io")
        assert api.find("Pod", "legacy", namespace) is None

    def test_a_replicaset_recovers_after_the_quota_is_deleted(self, api: Api, namespace: str) -> None:
        no_more_templates(api, namespace)
        api.create(workload("ReplicaSet", "rs", pod("x"), replicas=1), namespace)
        messages = eventually("the event", lambda: events(api, namespace, "rs", "FailedCreate"))
        assert "NEU301" in messages[0]
        assert "exceeded quota: none" in messages[0]
        api.delete("ResourceQuota", "none", namespace)
        eventually("the pod", lambda: api.list("Pod", namespace, labelSelector="app=rs"), timeout=40)

    def test_a_foreign_template_under_our_name_is_an_error(self, api: Api, kubectl: Kubectl, namespace: str) -> None:
        kubectl.feed("create", pod("legacy"))
        [name] = generated_templates(api, namespace)
        kubectl.must("delete", "pod", "legacy", "--force", "--grace-period=0")
        kubectl.must("delete", TEMPLATES, name)
        request = {"name": "n0", "exactly": {"deviceClassName": "somebody-elses"}}
        body = {"devices": {"requests": [request]}}
        foreign = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "labels": MANAGED_BY},
            "spec": {"spec": body},
        }
        api.create(foreign, namespace)
        for verb in ("create --dry-run=server", "create"):
            refused_with = kubectl.feed(verb, pod("legacy"))
            assert not refused_with.ok
            assert "NEU303" in refused_with.stderr
            assert name in refused_with.stderr

    def test_the_setting_admits_pods_without_a_template_unchanged_with_a_warning(
        self, api: Api, kubectl: Kubectl, webhook: Webhook, namespace: str
    ) -> None:
        no_more_templates(api, namespace)
        with webhook.running_with("--on-template-failure=admit"):

            def admitted() -> bool:
                result = kubectl.feed("create", pod("legacy"))
                assert any("NEU210" in warning for warning in result.warnings), result.stderr
                return result.ok

            eventually("a warning NEU210", admitted)
        stored = api.get("Pod", "legacy", namespace)
        assert legacy_names(stored)
        assert not is_converted(stored)
        assert template_names(stored) == []


class TestDryRun:
    """A dry run creates no template and warns about it."""

    @pytest.mark.parametrize("verb", ["create", "apply", "apply --server-side"])
    def test_a_dry_run_creates_no_template_and_warns(
        self, api: Api, kubectl: Kubectl, namespace: str, verb: str
    ) -> None:
        result = kubectl.feed(verb, pod("legacy"), flags=("--dry-run=server",))
        assert result.ok, result.stderr
        assert any("NEU207" in warning for warning in result.warnings), result.stderr
        assert generated_templates(api, namespace) == []
        assert api.find("Pod", "legacy", namespace) is None

    def test_a_dry_run_does_not_warn_if_the_template_exists(self, kubectl: Kubectl) -> None:
        assert kubectl.feed("create", pod("real", nodeSelector=TRN2)).ok

        def quiet() -> bool:
            return kubectl.feed("create", pod("trial", nodeSelector=TRN2), flags=("--dry-run=server",)).warnings == ()

        eventually("the webhook to know its own template", quiet)

    def test_a_dry_run_is_denied_as_the_real_request(self, kubectl: Kubectl) -> None:
        result = kubectl.feed("create", pod("many", container(neuron=17)), flags=("--dry-run=server",))
        assert not result.ok
        assert "NEU105" in result.stderr


class TestLifetime:
    """Templates are shared, and made again where they went."""

    def test_a_deleted_template_is_created_again_for_the_next_pod(
        self, api: Api, webhook: Webhook, namespace: str, fleet: Fleet
    ) -> None:
        fleet.add("trn2.48xlarge")
        api.create(pod("first", nodeSelector=TRN2), namespace)
        scheduled_devices(api, namespace, "first")
        [name] = generated_templates(api, namespace)
        first = api.get("ResourceClaimTemplate", name, namespace)["metadata"]["uid"]
        api.delete("ResourceClaimTemplate", name, namespace)
        # Until its watch reports the deletion, the webhook takes the template for existing.
        webhook.wait_warning("NEU207", pod("probe", nodeSelector=TRN2), namespace)
        api.create(pod("second", nodeSelector=TRN2), namespace)
        assert generated_templates(api, namespace) == [name]
        assert api.get("ResourceClaimTemplate", name, namespace)["metadata"]["uid"] != first
        scheduled_devices(api, namespace, "second")

    def test_thirty_pods_at_once_create_one_template(self, api: Api, namespace: str, fleet: Fleet) -> None:
        for _ in range(2):
            fleet.add("trn2.48xlarge")
        api.create(
            workload("Deployment", "many", pod("x", container(neuron=1), nodeSelector=TRN2), replicas=30), namespace
        )

        def scheduled() -> list[Object]:
            pods = api.list("Pod", namespace, labelSelector="app=many")
            bound = [each for each in pods if each["spec"].get("nodeName")]
            assert len(bound) == 30, f"{len(pods)} pods, {len(bound)} bound"
            return bound

        pods = eventually("30 scheduled pods", scheduled, timeout=60)
        [name] = generated_templates(api, namespace)
        assert {tuple(template_names(each)) for each in pods} == {(name,)}
        assert events(api, namespace, "many", "FailedCreate") == []

    def test_different_demands_have_different_templates_and_equal_ones_share(self, api: Api, namespace: str) -> None:
        for index, count in enumerate((4, 4, 8, 1)):
            api.create(pod(f"p{index}", container(neuron=count)), namespace)
        assert len(generated_templates(api, namespace)) == 3

    @pytest.mark.parametrize("how", ["stopped", "killed"])
    def test_a_restarted_webhook_finds_its_templates(
        self, api: Api, webhook: Webhook, namespace: str, how: str
    ) -> None:
        api.create(pod("before", nodeSelector=TRN2), namespace)
        [name] = generated_templates(api, namespace)
        uid = api.get("ResourceClaimTemplate", name, namespace)["metadata"]["uid"]
        if how == "stopped":
            assert webhook.stop() == 0
        else:
            webhook.kill()
        webhook.start()
        stored = api.create(pod("after", nodeSelector=TRN2), namespace).body
        assert template_names(stored) == [name] == generated_templates(api, namespace)
        assert api.get("ResourceClaimTemplate", name, namespace)["metadata"]["uid"] == uid

    def test_the_webhook_watches_again_after_a_restart_of_the_api_server(
        self, control_plane: ControlPlane, api: Api, webhook: Webhook, namespace: str
    ) -> None:
        control_plane.restart_apiserver()
        # A new namespace: its annotation can only come through a new watch.
        name = f"{namespace}-later"
        metadata = {"name": name, "annotations": {"neuron.aws.com/convert": "off"}}
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        try:
            control_plane.wait_namespace_usable(name)
            eventually(
                "the watches to be back",
                lambda: not is_converted(webhook.preview(pod("probe"), name).body),
                timeout=40,
            )
            assert is_converted(api.create(pod("legacy"), namespace).body)
            assert len(generated_templates(api, namespace)) == 1
        finally:
            api.delete("Namespace", name)
