"""Objects that can never work are denied when they are applied, with the messages in kubectl and Events."""

import base64
import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl, Result
from tests.cluster.manifests import claim_template, container, devices_request, events, pod, workload
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE, Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import MANIFESTS, Webhook, load

EXAMPLES = Path(__file__).parents[1] / "support" / "source_examples"
TRN1 = "device.attributes['neuron.aws.com'].instanceType == 'trn1.32xlarge'"
TRN2 = "device.attributes['neuron.aws.com'].instanceType == 'trn2.48xlarge'"
SENTENCE = (
    "Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number of devices."
)
MISSPELT = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCoreCount": 1}
GROUP_OF_4 = [{"requests": ["neurons"], "matchAttribute": "resource.aws.com/devicegroup4_id"}]


def claim_spec(count: int, *selectors: str, parameters: Any = None, constraints: Any = None) -> Object:
    """The spec of a claim."""
    section: Object = {"requests": [devices_request("neurons", count=count, selectors=selectors)]}
    if constraints is not None:
        section["constraints"] = constraints
    if parameters is not None:
        section["config"] = [{"requests": ["neurons"], "opaque": {"driver": DRIVER, "parameters": parameters}}]
    return {"devices": section}


@pytest.fixture(scope="module")
def configuration(control_plane: ControlPlane, installed_webhook: Webhook) -> Object:
    """The shipped ValidatingWebhookConfiguration, pointed at the process under test."""
    [made] = load(MANIFESTS / "validating.yaml")
    bundle = base64.b64encode(control_plane.authority.files.certificate.read_bytes()).decode()
    for entry in made["webhooks"]:
        entry["clientConfig"] = {"url": f"https://127.0.0.1:{installed_webhook.port}/validate", "caBundle": bundle}
    return made


@pytest.fixture(scope="module", autouse=True)
def installed(control_plane: ControlPlane, configuration: Object) -> Iterator[None]:
    """The configuration, in force."""
    api = control_plane.admin
    api.create(configuration)
    canary = claim_template("canary", claim_spec(1, TRN2, parameters=MISSPELT))

    def refused() -> bool:
        try:
            api.create(canary, "default", dry_run=True)
        except ApiError:
            return True
        return False

    eventually("the API server to call the webhook", refused)
    yield
    api.delete("ValidatingWebhookConfiguration", configuration["metadata"]["name"])


def applied(kubectl: Kubectl, manifest: Object) -> Result:
    return kubectl.feed("apply", manifest)


class TestTemplates:
    @pytest.mark.parametrize(
        ("spec", "field", "message"),
        [
            (
                claim_spec(1, TRN2, parameters=MISSPELT),
                "spec.spec.devices.config[0].opaque.parameters.logicalNeuronCoreCount",
                "NEU407: NeuronConfig has no field \"logicalNeuronCoreCount\". Did you mean 'logicalNeuronCore'? Its"
                " fields are apiVersion, kind and logicalNeuronCore; a newer field needs a newer version of this"
                " program.",
            ),
            (
                claim_spec(7, TRN1),
                "spec.spec.devices.requests[0].exactly.count",
                f"NEU520: {SENTENCE} Nearest valid counts: 4 or 8.",
            ),
            (
                claim_spec(8, TRN2, constraints=GROUP_OF_4),
                "spec.spec.devices.constraints[0].matchAttribute",
                "NEU522: 8 devices must agree on resource.aws.com/devicegroup4_id, and at most 4 do. Request 4"
                " or fewer, or use matchAttribute: resource.aws.com/devicegroup8_id.",
            ),
            (
                claim_spec(17, TRN2),
                "spec.spec.devices.requests[0].exactly.count",
                "NEU521: 17 devices are requested, and a node of trn2.48xlarge has 16. Request 16 or fewer.",
            ),
        ],
        ids=["misspelt field", "7 on trn1", "8 in a group of 4", "17 of 16"],
    )
    def test_an_invalid_template_is_denied_and_kubectl_prints_the_message(
        self, kubectl: Kubectl, spec: Object, field: str, message: str
    ) -> None:
        result = applied(kubectl, claim_template("big", spec))
        assert result.code == 1
        assert result.stderr == f'The ResourceClaimTemplate "big" is invalid: {field}: {message}\n'

    def test_all_errors_are_printed_together(self, kubectl: Kubectl) -> None:
        result = applied(kubectl, claim_template("big", claim_spec(7, TRN1, parameters=MISSPELT)))
        assert result.stderr.startswith('The ResourceClaimTemplate "big" is invalid: \n')
        assert [line[:9] for line in result.stderr.splitlines()[1:]] == ["* spec.sp", "* spec.sp"]
        assert "NEU407" in result.stderr
        assert "NEU520" in result.stderr

    def test_a_misspelt_type_warns_and_names_the_closest(self, kubectl: Kubectl) -> None:
        selector = "device.attributes['neuron.aws.com'].instanceType == 'trn2.48xlarg'"
        result = applied(kubectl, claim_template("typo", claim_spec(1, selector)))
        assert result.ok
        assert result.warnings == (
            "NEU610: no device has instanceType 'trn2.48xlarg'. Did you mean 'trn2.48xlarge'?",
            "NEU610: Nothing can be allocated until one does.",
        )

    def test_missing_constraints_come_with_the_yaml_to_add(self, kubectl: Kubectl) -> None:
        result = applied(kubectl, claim_template("loose", claim_spec(4, TRN2)))
        assert result.ok
        assert result.warnings == (
            "NEU524: nothing keeps the 4 devices of request neurons connected.",
            "NEU524: Add constraints: [{requests: [neurons], matchAttribute: resource.aws.com/devicegroup4_id}]",
        )

    def test_repeated_keys_reach_the_webhook(self, api: Api, namespace: str) -> None:
        manifest = claim_template("twice", claim_spec(1, TRN2, parameters={"@": 1}))
        text = json.dumps(manifest).replace(
            '{"@": 1}',
            '{"apiVersion":"neuron.aws.com/v1","kind":"NeuronConfig","logicalNeuronCore":1,"logicalNeuronCore":2}',
        )
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
        with pytest.raises(ApiError, match="NEU404"):
            api.request("POST", path, content=text, headers={"content-type": "application/json"})


class TestClaims:
    def test_an_invalid_claim_is_denied(self, kubectl: Kubectl) -> None:
        made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"}}
        result = applied(kubectl, {**made, "spec": claim_spec(17, TRN2)})
        assert "spec.devices.requests[0].exactly.count: NEU521: " in result.stderr

    def test_a_claim_of_an_older_invalid_template_is_denied_with_an_event_of_the_pod(
        self, api: Api, namespace: str, configuration: Object
    ) -> None:
        """The controller that makes claims puts the message into an event of the pod."""
        api.delete("ValidatingWebhookConfiguration", configuration["metadata"]["name"])
        try:

            def stored() -> bool:
                try:
                    api.create(claim_template("old", claim_spec(1, TRN2, parameters=MISSPELT)), namespace)
                except ApiError:
                    return False
                return True

            eventually("the API server to leave the webhook alone", stored)
        finally:
            api.create(configuration)
        using = container()
        using["resources"] = {"claims": [{"name": "neurons"}]}
        claims = [{"name": "neurons", "resourceClaimTemplateName": "old"}]

        def refused() -> bool:
            try:
                api.create(claim_template("x", claim_spec(17, TRN2)), namespace, dry_run=True)
            except ApiError:
                return True
            return False

        eventually("the API server to call the webhook again", refused)
        api.create(pod("waiting", using, resourceClaims=claims), namespace)

        def told() -> bool:
            # The controller may try before its cache shows the template, and say that first.
            said = events(api, namespace, "waiting", "FailedResourceClaimCreation")
            return any('NEU407: NeuronConfig has no field "logicalNeuronCoreCount"' in each for each in said)

        assert eventually("the event", told)

    def test_an_invalid_claim_from_before_the_webhook_can_be_deleted(
        self, api: Api, namespace: str, configuration: Object
    ) -> None:
        api.delete("ValidatingWebhookConfiguration", configuration["metadata"]["name"])
        made: Object = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "old", "finalizers": ["example.com/hold"]},
            "spec": claim_spec(17, TRN2),
        }
        try:

            def stored() -> bool:
                try:
                    api.create(made, namespace)
                except ApiError:
                    return False
                return True

            eventually("the API server to leave the webhook alone", stored)
        finally:
            api.create(configuration)
        api.delete("ResourceClaim", "old", namespace)
        api.merge("ResourceClaim", "old", {"metadata": {"finalizers": []}}, namespace)
        eventually("the claim to go", lambda: api.find("ResourceClaim", "old", namespace) is None)


class TestClasses:
    def test_an_invalid_class_is_denied(self, kubectl: Kubectl) -> None:
        config = [{"opaque": {"driver": DRIVER, "parameters": MISSPELT}}]
        made = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "own"}}
        result = applied(kubectl, {**made, "spec": {"config": config}})
        assert 'The DeviceClass "own" is invalid: spec.config[0].opaque.parameters.logicalNeuronCoreCount: NEU407' in (
            result.stderr
        )


class TestWorkloads:
    def test_a_workload_gets_warnings_about_its_pods(self, kubectl: Kubectl) -> None:
        seven = pod("seven", container(neuron=7), nodeSelector={INSTANCE_TYPE: "trn1.32xlarge"})
        result = applied(kubectl, workload("Deployment", "serve", seven))
        assert result.ok
        assert result.warnings == (
            "NEU701: pods of this Deployment would be refused: spec.template.spec.containers[0]",
            "NEU105: Instance type trn1.32xlarge does not support requests for device: 7.",
            "NEU105: Please request a different number of devices. Nearest valid counts: 4 or 8.",
            "NEU105: Instance types that serve 7: inf2.48xlarge, inf1.24xlarge.",
        )

    def test_an_unused_claim_gets_a_warning(self, api: Api, kubectl: Kubectl, namespace: str) -> None:
        api.create(claim_template("driver-version-neuron", claim_spec(1, TRN2)), namespace)
        claims = [{"name": "neurons", "resourceClaimTemplateName": "driver-version-neuron"}]
        result = applied(kubectl, workload("Deployment", "serve", pod("any", container(), resourceClaims=claims)))
        assert result.warnings[0].startswith("NEU702: no container refers to claim 'neurons'")

    def test_a_template_that_was_applied_just_before_is_found(self, kubectl: Kubectl) -> None:
        using = container()
        using["resources"] = {"claims": [{"name": "neurons"}]}
        claims = [{"name": "neurons", "resourceClaimTemplateName": "big"}]
        result = kubectl.feed(
            "apply", claim_template("big", claim_spec(1, TRN2)), pod("p", using, resourceClaims=claims)
        )
        assert (result.ok, result.warnings) == (True, ()), result.stderr

    def test_a_missing_template_gets_a_warning(self, kubectl: Kubectl) -> None:
        using = container()
        using["resources"] = {"claims": [{"name": "neurons"}]}
        claims = [{"name": "neurons", "resourceClaimTemplateName": "big"}]
        result = applied(kubectl, pod("p", using, resourceClaims=claims))
        assert result.ok
        assert result.warnings == (
            "NEU705: ResourceClaimTemplate big does not exist in this namespace. The pod waits until it does: create"
            " it.",
        )

    def test_converted_pods_get_no_warning(self, kubectl: Kubectl) -> None:
        result = applied(kubectl, pod("legacy", nodeSelector={INSTANCE_TYPE: "trn2.48xlarge"}))
        assert (result.ok, result.warnings) == (True, ())


class TestSlices:
    def test_a_request_for_unpublished_devices_gets_a_warning(self, kubectl: Kubectl, fleet: Fleet) -> None:
        fleet.add("trn1.32xlarge")

        def told() -> bool:
            spec = claim_spec(1, f"{TRN2} && true")
            result = kubectl.feed("apply", claim_template("away", spec), flags=("--dry-run=server",))
            return any("NEU612" in warning for warning in result.warnings)

        eventually("the webhook to see the slices", told)


class TestExamples:
    @pytest.mark.parametrize(
        "manifest",
        [
            pytest.param(document, id=f"{document['kind']} {document['metadata']['name']}")
            for document in load(EXAMPLES / "current.yaml")
            if document["kind"] != "DeviceClass"
        ],
    )
    def test_examples_of_the_source_documents_are_admitted(self, kubectl: Kubectl, manifest: Object) -> None:
        result = applied(kubectl, copy.deepcopy(manifest))
        assert result.ok, result.stderr


class TestCommand:
    def run(self, kubectl: Kubectl, *manifests: Object) -> tuple[int, list[str]]:
        """Codes that `neuron-dra validate` finds with the cluster at hand."""
        command = [Path(sys.executable).parent / "neuron-dra", "validate", "-f", "-", "-o", "json"]
        done = subprocess.run(
            [*command, f"--kubeconfig={kubectl.kubeconfig}"],
            input="\n---\n".join(map(json.dumps, manifests)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, [finding["code"] for finding in json.loads(done.stdout)["findings"]]

    def test_validate_compares_manifests_with_slices_and_objects_of_the_cluster(
        self, api: Api, kubectl: Kubectl, namespace: str, fleet: Fleet
    ) -> None:
        fleet.add("trn1.32xlarge")
        assert self.run(kubectl, claim_template("away", claim_spec(1, TRN2))) == (0, ["NEU612"])
        assert self.run(kubectl, claim_template("here", claim_spec(1, TRN1))) == (0, [])
        using = container()
        using["resources"] = {"claims": [{"name": "neurons"}]}
        claims = [{"name": "neurons", "resourceClaimTemplateName": "big"}]
        manifest = pod("p", using, resourceClaims=claims)
        manifest["metadata"]["namespace"] = namespace
        assert self.run(kubectl, manifest) == (0, ["NEU705"])
        api.create(claim_template("big", claim_spec(1, TRN1)), namespace)
        assert self.run(kubectl, manifest) == (0, [])
