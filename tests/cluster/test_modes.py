"""Which pods are converted: modes, labels that are not trusted, and pods that do not reach the webhook."""

import copy

import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import (
    CONVERT,
    CONVERTED,
    CONVERTED_FROM,
    container,
    generated_templates,
    is_converted,
    legacy_names,
    pod,
    template_names,
)
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook

pytestmark = pytest.mark.usefixtures("webhook")


def annotate(api: Api, webhook: Webhook, namespace: str, mode: str) -> None:
    """Set the mode of a namespace; return when the webhook acts on it."""
    api.merge("Namespace", namespace, {"metadata": {"annotations": {CONVERT: mode}}})

    def seen() -> bool:
        preview = webhook.preview(pod("probe"), namespace).body
        return not is_converted(preview) if mode != "convert" else is_converted(preview)

    eventually(f"the webhook to know that {namespace} says {mode}", seen)


def test_a_namespace_can_switch_conversion_off_and_a_pod_on(api: Api, webhook: Webhook, namespace: str) -> None:
    annotate(api, webhook, namespace, "off")
    left = api.create(pod("left"), namespace).body
    assert legacy_names(left)
    assert not is_converted(left)
    assert generated_templates(api, namespace) == []
    wanted = api.create(pod("wanted", annotations={CONVERT: "convert"}), namespace).body
    assert is_converted(wanted)


@pytest.mark.parametrize(("value", "converted"), [("true", True), ("convert", True), ("false", False), ("off", False)])
def test_a_pod_annotation_decides(api: Api, namespace: str, value: str, converted: bool) -> None:
    stored = api.create(pod("p", annotations={CONVERT: value}), namespace).body
    assert is_converted(stored) is converted
    assert bool(legacy_names(stored)) is not converted


def test_shadow_mode_changes_nothing_and_warns_of_the_conversion(api: Api, kubectl: Kubectl, namespace: str) -> None:
    result = kubectl.feed("create", pod("shadow", annotations={CONVERT: "shadow"}))
    assert result.ok, result.stderr
    assert any("NEU208" in warning for warning in result.warnings), result.stderr
    stored = api.get("Pod", "shadow", namespace)
    assert legacy_names(stored)
    assert not is_converted(stored)
    assert template_names(stored) == []
    assert generated_templates(api, namespace) == []


def test_a_namespace_in_shadow_mode_keeps_its_pods_unchanged_and_warns(
    api: Api, webhook: Webhook, namespace: str
) -> None:
    annotate(api, webhook, namespace, "shadow")
    answer = api.create(pod("p"), namespace)
    assert legacy_names(answer.body)
    assert any("NEU208" in warning for warning in answer.warnings), answer.warnings
    assert generated_templates(api, namespace) == []


def test_shadow_mode_admits_pods_that_convert_would_deny_and_warns(kubectl: Kubectl) -> None:
    result = kubectl.feed("create", pod("many", container(neuron=17), annotations={CONVERT: "shadow"}))
    assert result.ok, result.stderr
    assert any("does not support requests for device: 17" in warning for warning in result.warnings), result.stderr


def test_an_unknown_mode_is_refused(kubectl: Kubectl) -> None:
    result = kubectl.feed("create", pod("p", annotations={CONVERT: "sometimes"}))
    assert not result.ok
    assert "NEU109" in result.stderr
    assert "sometimes" in result.stderr


class TestLabels:
    """The label and record of a conversion count only if the pod matches them."""

    def copied(self, stored: Object) -> Object:
        metadata = {key: stored["metadata"][key] for key in ("name", "labels", "annotations")}
        spec = copy.deepcopy(stored["spec"])
        for key in ("volumes", "serviceAccount", "serviceAccountName"):
            spec.pop(key, None)
        for each in spec["containers"]:
            each.pop("volumeMounts", None)
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def test_a_converted_pod_copied_to_another_namespace_gets_its_template(self, api: Api, namespace: str) -> None:
        stored = api.create(pod("original"), namespace).body
        other = f"{namespace}-copy"
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
        try:
            eventually("its ServiceAccount", lambda: api.find("ServiceAccount", "default", other))
            copied = api.create(self.copied(stored), other).body
            assert copied["spec"]["resourceClaims"] == stored["spec"]["resourceClaims"]
            assert generated_templates(api, other) == generated_templates(api, namespace) == template_names(copied)
        finally:
            api.delete_all("Pod", other, force=True)
            api.delete("Namespace", other)

    def test_a_restored_converted_pod_gets_its_deleted_template_again(
        self, api: Api, webhook: Webhook, namespace: str
    ) -> None:
        stored = api.create(pod("original"), namespace).body
        [template] = generated_templates(api, namespace)
        api.delete("Pod", "original", namespace, force=True)
        api.delete("ResourceClaimTemplate", template, namespace)
        # Until its watch reports the deletion, the webhook takes the template for existing.
        webhook.wait_warning("NEU207", pod("probe"), namespace)
        api.create(self.copied(stored), namespace)
        assert generated_templates(api, namespace) == [template]

    def test_a_forged_label_does_not_keep_a_legacy_pod_from_conversion(self, api: Api, namespace: str) -> None:
        stored = api.create(pod("forged", labels={CONVERTED: "true"}), namespace).body
        assert legacy_names(stored) == []
        assert template_names(stored) == generated_templates(api, namespace)

    @pytest.mark.parametrize("record", ["not json", "[]", '{"containers": 1}', '{"containers": {"main": {"x": "1"}}}'])
    def test_a_forged_record_creates_no_template_and_causes_no_error(
        self, api: Api, namespace: str, record: str
    ) -> None:
        labels, annotations = {CONVERTED: "true"}, {CONVERTED_FROM: record}
        api.create(pod("forged", container(), labels=labels, annotations=annotations), namespace)
        assert generated_templates(api, namespace) == []

    def test_a_tenant_gets_no_devices_of_another_class_by_a_forged_record(self, api: Api, namespace: str) -> None:
        """The record asks for EFA interfaces, which no policy here requests: the tenant may not name the class."""
        record = (
            '{"containers": {"main": {"aws.amazon.com/neuron": "1"}},'
            ' "efa": {"container": "main", "count": 1, "deviceClass": "secret-gpu"}}'
        )
        main = container()
        main["resources"] = {"claims": [{"name": "neuron"}]}
        entry = {"name": "neuron", "resourceClaimTemplateName": "neuron-1-0123456789ab"}
        forged = pod("forged", main, labels={CONVERTED: "true"}, annotations={CONVERTED_FROM: record})
        forged["spec"]["resourceClaims"] = [entry]
        with pytest.raises(ApiError, match="NEU125"):
            api.create(forged, namespace)
        assert generated_templates(api, namespace) == []


class TestAdmissionScope:
    """Rule 12: other pods do not even reach the webhook."""

    def test_pods_of_kube_system_are_not_converted(self, api: Api, webhook: Webhook) -> None:
        before = webhook.reviews()
        stored = api.create(pod("system"), "kube-system", dry_run=True).body
        assert legacy_names(stored)
        assert not is_converted(stored)
        assert webhook.reviews() == before

    @pytest.mark.parametrize(
        "manifest",
        [
            pod("p", container()),
            pod("p", container(resources={"limits": {"cpu": "1"}})),
            pod("p", container(), initContainers=[container("i")]),
            pod("p", container(resources={"limits": {"example.com/gpu": "1"}})),
            pod("p", container(resources={"requests": {"memory": "1Mi"}})),
        ],
        ids=["no-resources", "cpu", "init-containers", "another-device", "requests-only"],
    )
    def test_pods_without_neuron_are_not_sent_to_the_webhook(
        self, api: Api, webhook: Webhook, namespace: str, manifest: Object
    ) -> None:
        before = webhook.reviews()
        stored = api.create(manifest, namespace).body
        assert not is_converted(stored)
        assert webhook.reviews() == before

    @pytest.mark.parametrize(
        "manifest",
        [
            pod("p", container(neuron=4)),
            pod("p", container(), container("b", neurondevice=1)),
            pod("p", container(), initContainers=[container("i", neuroncore=2)]),
        ],
        ids=["container", "second-container", "init-container"],
    )
    def test_pods_with_neuron_are_sent_to_the_webhook(
        self, api: Api, webhook: Webhook, namespace: str, manifest: Object
    ) -> None:
        before = webhook.reviews()
        assert is_converted(api.create(manifest, namespace).body)
        assert webhook.reviews() > before

    def test_other_pods_are_admitted_while_the_webhook_is_down(
        self, api: Api, webhook: Webhook, namespace: str
    ) -> None:
        webhook.stop()
        try:
            api.create(pod("plain", container()), namespace)
            with pytest.raises(AssertionError, match="failed calling webhook"):
                api.create(pod("neuron"), namespace)
        finally:
            webhook.start()
