"""Conversion together with other admission steps: LimitRanges, ResourceQuotas, other webhooks."""

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import (
    NEURON,
    container,
    generated_templates,
    is_converted,
    legacy_names,
    pod,
    scheduled_devices,
    template_names,
    wait_scheduled,
)
from tests.cluster.nodes import Fleet, device_class
from tests.cluster.processes import eventually
from tests.cluster.reinvocation import OtherWebhook
from tests.cluster.webhooks import Webhook

pytestmark = pytest.mark.usefixtures("webhook")


def limit_range(**limits: str) -> Object:
    entry = {"type": "Container", **{key: {NEURON: value} for key, value in limits.items()}}
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "neuron-limits"},
        "spec": {"limits": [entry]},
    }


class TestLimitRanges:
    """LimitRanger runs before every pass, and checks after the last."""

    def defaults(self, api: Api, namespace: str, count: int) -> None:
        api.create(limit_range(default=str(count), defaultRequest=str(count)), namespace)

        def in_force() -> bool:
            preview = api.create(pod("probe", container()), namespace, dry_run=True).body
            return is_converted(preview) or bool(legacy_names(preview))

        eventually("the LimitRange to be in force", in_force)

    @pytest.mark.parametrize("default", [4, 8], ids=["same-number", "another-number"])
    def test_a_limit_range_default_between_passes_is_removed_again(
        self, api: Api, namespace: str, fleet: Fleet, default: int
    ) -> None:
        fleet.add("trn2.48xlarge")
        self.defaults(api, namespace, default)
        stored = api.create(pod("legacy", container(neuron=4)), namespace).body
        assert legacy_names(stored) == []
        assert len(generated_templates(api, namespace)) == 1
        assert len(scheduled_devices(api, namespace, "legacy")) == 4

    def test_a_default_alone_is_converted(self, api: Api, namespace: str, fleet: Fleet) -> None:
        fleet.add("trn2.48xlarge")
        self.defaults(api, namespace, 4)
        stored = api.create(pod("plain", container()), namespace).body
        assert legacy_names(stored) == []
        assert len(scheduled_devices(api, namespace, "plain")) == 4

    @pytest.mark.parametrize("bound", ["min", "max"])
    def test_a_pod_that_a_limit_range_would_refuse_is_denied_with_the_reason(
        self, api: Api, kubectl: Kubectl, namespace: str, bound: str
    ) -> None:
        api.create(limit_range(**{bound: "4"}), namespace)

        def refused() -> bool:
            result = kubectl.feed("create", pod("legacy"), flags=("--dry-run=server",))
            return not result.ok and "NEU205: LimitRange neuron-limits" in result.stderr

        eventually("the LimitRange to refuse the pod", refused)


class TestQuotas:
    """A legacy quota stops counting, and a warning reports it."""

    def test_a_legacy_quota_gets_a_warning_with_the_key_to_use(
        self, api: Api, webhook: Webhook, namespace: str
    ) -> None:
        hard = {f"requests.{NEURON}": "4"}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "neuron"}}
        api.create({**quota, "spec": {"hard": hard}}, namespace)
        webhook.wait_warning("NEU204", pod("probe"), namespace)
        answer = api.create(pod("legacy", container(neuron=8)), namespace)
        said = " ".join(text for text in answer.warnings if "NEU204" in text)
        assert "ResourceQuota neuron" in said
        assert "neuron.aws.com.deviceclass.resource.k8s.io/devices" in said
        used = api.get("ResourceQuota", "neuron", namespace)["status"].get("used", {})
        assert used.get(f"requests.{NEURON}", "0") == "0"

    def test_the_suggested_quota_key_counts_claims(self, api: Api, namespace: str, fleet: Fleet) -> None:
        fleet.add("trn2.48xlarge")
        line = "neuron.aws.com.deviceclass.resource.k8s.io/devices"
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "dra"}}
        api.create({**quota, "spec": {"hard": {line: "4"}}}, namespace)
        eventually("the quota", lambda: api.get("ResourceQuota", "dra", namespace).get("status", {}).get("used"))
        api.create(pod("first"), namespace)
        wait_scheduled(api, namespace, "first")
        assert api.get("ResourceQuota", "dra", namespace)["status"]["used"][line] == "4"
        api.create(pod("second"), namespace)
        reason = "FailedResourceClaimCreation"
        eventually("the refusal", lambda: refusals(api, namespace, "second", reason, "exceeded quota: dra"))


def refusals(api: Api, namespace: str, name: str, reason: str, text: str) -> list[str]:
    selector = f"involvedObject.name={name},reason={reason}"
    messages = [event["message"] for event in api.list("Event", namespace, fieldSelector=selector)]
    return [message for message in messages if text in message]


Install = Callable[[str, list[Object], str], None]


class TestOtherWebhooks:
    """What another webhook adds after us is converted too: the API server calls us again."""

    @pytest.fixture
    def install(self, control_plane: ControlPlane, api: Api, namespace: str) -> Iterator[Install]:
        identity = control_plane.authority.issue("other", "other", hosts=["127.0.0.1"])
        servers: list[OtherWebhook] = []
        names: list[str] = []

        def install(name: str, patch: list[Object], condition: str) -> None:
            servers.append(OtherWebhook(identity, patch))
            names.append(name)
            authority = control_plane.authority.files.certificate
            api.create(servers[-1].configuration(name, authority, namespace, condition))

        yield install
        for name in names:
            api.delete("MutatingWebhookConfiguration", name)
        for server in servers:
            server.close()

    def test_a_container_added_after_our_pass_is_converted_in_the_second(
        self, api: Api, namespace: str, fleet: Fleet, install: Install
    ) -> None:
        fleet.add("trn2.48xlarge")
        added = {"op": "add", "path": "/spec/containers/-", "value": container("added", neuron=1)}
        install("zz-adds-a-container", [added], "!object.spec.containers.exists(c, c.name == 'added')")
        eventually(
            "the other webhook to be called",
            lambda: len(api.create(pod("probe"), namespace, dry_run=True).body["spec"]["containers"]) == 2,
        )
        stored = api.create(pod("legacy", container(neuron=4)), namespace).body
        assert [each["name"] for each in stored["spec"]["containers"]] == ["main", "added"]
        assert legacy_names(stored) == []
        assert all(each["resources"].get("claims") for each in stored["spec"]["containers"])
        assert len(scheduled_devices(api, namespace, "legacy")) == 5
        assert template_names(stored)[0] in generated_templates(api, namespace)

    def test_an_annotation_added_between_passes_does_not_change_the_conversion(
        self, api: Api, namespace: str, install: Install
    ) -> None:
        before = api.create(pod("before", annotations={"a": "b"}), namespace).body
        noted = {"op": "add", "path": "/metadata/annotations/noted", "value": "yes"}
        install("zz-adds-a-note", [noted], "!('noted' in object.metadata.annotations)")

        def called() -> bool:
            preview = api.create(pod("probe", annotations={"a": "b"}), namespace, dry_run=True).body
            return "noted" in preview["metadata"]["annotations"]

        eventually("the other webhook to be called", called)
        after = api.create(pod("after", annotations={"a": "b"}), namespace).body
        assert after["spec"]["resourceClaims"] == before["spec"]["resourceClaims"]
        assert after["spec"]["containers"][0]["resources"] == before["spec"]["containers"][0]["resources"]


@pytest.mark.usefixtures("mapped")
class TestInTreeConversion:
    """KEP-5004: a DeviceClass with `extendedResourceName` serves legacy names itself."""

    @pytest.fixture
    def mapped(self, api: Api) -> Iterator[None]:
        api.create(device_class("mapped", extended_resource=NEURON))
        yield
        api.delete("DeviceClass", "mapped")

    def test_a_pod_is_not_allocated_twice(self, api: Api, namespace: str, fleet: Fleet) -> None:
        fleet.add("trn2.48xlarge")
        api.create(pod("legacy"), namespace)
        bound = wait_scheduled(api, namespace, "legacy")
        assert "extendedResourceClaimStatus" not in bound["status"]
        assert len(api.list("ResourceClaim", namespace)) == 1

    @pytest.mark.needs("extended-resources")
    def test_convert_if_enriched_leaves_simple_pods_to_the_scheduler(
        self, api: Api, webhook: Webhook, namespace: str, fleet: Fleet
    ) -> None:
        fleet.add("trn2.48xlarge")
        manifest = pod("one", container(neuron=1), annotations={"neuron.aws.com/convert": "convert-if-enriched"})
        eventually(
            "the webhook to know the class",
            lambda: not is_converted(webhook.preview(manifest, namespace).body),
        )
        assert not is_converted(api.create(manifest, namespace).body)
        bound = wait_scheduled(api, namespace, "one")
        assert bound["status"]["extendedResourceClaimStatus"]["resourceClaimName"]

    def test_convert_if_enriched_converts_pods_with_connected_devices(self, api: Api, namespace: str) -> None:
        manifest = pod("four", annotations={"neuron.aws.com/convert": "convert-if-enriched"})
        assert is_converted(api.create(manifest, namespace).body)
