"""Claims of users under a locked policy that binds them."""

import asyncio
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from msgspec import structs

from conversion.patches.decision import Decision
from neuron.api.claim_reader import read_claim, read_class
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.hardware.device_shapes import DeviceShape, catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.files.loader import load
from tests.policies.policy_files import problems
from tests.support.clusters import FakeCluster, request
from tests.support.manifests import container, pod
from tests.support.trainium import trainium
from webhook.reviews.policy_steering import ClaimBounds, PolicySteer
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import Inline

POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: research}
spec:
  order: 1
  match: {namespaces: ["team-*"]}
  mode: convert
  locked: true
  bindsClaims: true
  families: [trn2]
"""
LNC = POLICY.replace("families: [trn2]", "logicalNeuronCore: 1")
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


def spec(types: str = "", lnc: int | None = None, device_class: str = "neuron.aws.com") -> ClaimSpec:
    exactly: dict[str, Any] = {"deviceClassName": device_class, "count": 1}
    if types:
        expression = f"device.attributes['neuron.aws.com'].instanceType == '{types}'"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    devices: dict[str, Any] = {"requests": [{"name": "devices", "exactly": exactly}]}
    if lnc is not None:
        parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": lnc}
        devices["config"] = [{"opaque": {"driver": "neuron.aws.com", "parameters": parameters}}]
    return read_claim("ResourceClaimTemplate", "resource.k8s.io/v1", {"spec": {"devices": devices}})[0]


def using(template: str = "mine", **fields: Any) -> Any:
    main = container()
    main["resources"] = {"claims": [{"name": "c"}]}
    return pod(main, resourceClaims=[{"name": "c", "resourceClaimTemplateName": template}], **fields)


@dataclasses.dataclass
class Cluster(FakeCluster):
    specs: Mapping[str, ClassSpec] | None = None
    published: frozenset[str] = frozenset()

    def device_shapes(self) -> Sequence[DeviceShape]:
        shapes = (each for each in catalogue_shapes(Catalogue()) if each.instance_type in self.published)
        return [dataclasses.replace(each, published=True) for each in shapes]

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        return self.specs

    async def exist(self, kind: str, namespace: str, names: Any) -> Mapping[str, bool | None]:  # noqa: ARG002
        return dict.fromkeys(names)


def validated(
    manifest: Any,
    templates: Mapping[str, ClaimSpec],
    policy: str = POLICY,
    *,
    found: Mapping[str, ClaimSpec] | None = None,
    classes: Mapping[str, ClassSpec] | None = None,
    published: Collection[str] = (),
    **fields: Any,
) -> Decision:
    async def find(kind: str, namespace: str, names: Collection[str]) -> Mapping[str, ClaimSpec]:
        return {name: each for name, each in (found or {}).items() if name in names}

    policies = load({"p.yaml": policy.encode()})
    known = {("team-a", name): each for name, each in templates.items()}
    cluster = Cluster(claim_templates=known, specs=classes, published=frozenset(published))
    steer = PolicySteer(policies, cluster, lambda: 0.0)
    bounds = ClaimBounds(steer, find, Inline(), policies.sources("neuron.aws.com"))
    validator = Validator(trainium(), policies.catalogue, cluster, steer.of_template, bounds=bounds)
    return asyncio.run(validator.review(request(manifest, **fields)))


def errors(decision: Decision) -> list[str]:
    return [each.message for each in decision.errors if each.code in ("NEU123", "NEU124")]


def test_a_claim_that_allows_another_family_is_denied() -> None:
    (said,) = errors(validated(using(), {"mine": spec()}))
    assert said.startswith("request 'devices' of 'mine' can get devices of trn1.32xlarge, trn1.2xlarge, ")
    assert said.endswith(", and policy 'research' allows only trn2.")
    (said,) = errors(validated(using(), {"mine": spec("trn1.32xlarge")}))
    assert said == (
        "request 'devices' of 'mine' can get devices of trn1.32xlarge, and policy 'research' allows only trn2."
    )


@pytest.mark.parametrize(
    "decision",
    [
        pytest.param(validated(using(), {"mine": spec()}, published=["trn2.48xlarge"]), id="by what the cluster has"),
        pytest.param(validated(using(), {"mine": spec("trn2.48xlarge")}), id="by the claim"),
        pytest.param(
            validated(using(nodeSelector={INSTANCE_TYPE: "trn2.48xlarge"}), {"mine": spec()}), id="by the pod"
        ),
        pytest.param(validated(using(), {"mine": spec(device_class="gpu.example.com")}), id="another driver"),
        pytest.param(validated(using(), {"mine": spec("trn1.32xlarge")}, namespace="other"), id="another namespace"),
        pytest.param(
            validated(using(), {"mine": spec("trn1.32xlarge")}, POLICY.replace("bindsClaims: true", "")),
            id="a policy that binds no claims",
        ),
        pytest.param(validated(using(), {}, found={"mine": spec("trn2.48xlarge")}), id="looked up"),
    ],
)
def test_other_claims_are_admitted(decision: Decision) -> None:
    assert errors(decision) == []


def test_a_claim_that_is_not_known_is_denied() -> None:
    (said,) = errors(validated(using(), {}))
    assert (
        said == "ResourceClaimTemplate 'mine' is not known, and policy 'research' allows only claims that keep to it."
    )


def test_the_logical_neuron_core_of_the_policy_binds_claims() -> None:
    trn2 = "trn2.48xlarge"
    assert errors(validated(using(), {"mine": spec(trn2, 1)}, LNC)) == []
    assert errors(validated(using(), {"mine": spec("trn1.32xlarge")}, LNC)) == [], "it has no choice"
    (said,) = errors(validated(using(), {"mine": spec(trn2)}, LNC))
    assert said == "request 'devices' of 'mine' sets no logical NeuronCore, and policy 'research' is locked to 1."
    (said,) = errors(validated(using(), {"mine": spec(trn2, 2)}, LNC))
    assert said == "request 'devices' of 'mine' sets logical NeuronCore 2, and policy 'research' is locked to 1."


def test_the_config_of_a_device_class_is_for_its_own_requests() -> None:
    config = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
    sets_one = read_class(
        "resource.k8s.io/v1", {"config": [{"opaque": {"driver": "neuron.aws.com", "parameters": config}}]}
    )[0]
    classes = {"neuron.aws.com": ClassSpec(), "lnc-1": sets_one}
    one, other = spec("trn2.48xlarge"), spec("trn2.48xlarge", device_class="lnc-1")
    assert errors(validated(using(), {"mine": other}, LNC, classes=classes)) == []
    both = structs.replace(
        one, requests=(*other.requests, *(structs.replace(each, name="bare") for each in one.requests))
    )
    (said,) = errors(validated(using(), {"mine": both}, LNC, classes=classes))
    assert said == "request 'devices' of 'mine' sets no logical NeuronCore, and policy 'research' is locked to 1."


def test_a_policy_that_cannot_be_evaluated_denies() -> None:
    failing = POLICY.replace('namespaces: ["team-*"]', "conditions: [{name: a, expression: object.none == 'x'}]")
    (error,) = validated(using(), {"mine": spec("trn2.48xlarge")}, failing).errors
    assert error.code == "NEU803"


def test_a_workload_gets_a_warning() -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"template": {"metadata": {}, "spec": using()["spec"]}},
    }
    decision = validated(deployment, {"mine": spec("trn1.32xlarge")}, kind="Deployment", group="apps")
    assert decision.allowed
    assert [each.code for each in decision.warnings if each.code in ("NEU123", "NEU701")] == ["NEU701", "NEU123"]


def test_a_warning_of_a_workload_names_the_claim_behind_one_that_is_not_known() -> None:
    spec_of_pod = using()["spec"]
    spec_of_pod["resourceClaims"].insert(0, {"name": "later", "resourceClaimTemplateName": "later"})
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"template": {"metadata": {}, "spec": spec_of_pod}},
    }
    decision = validated(deployment, {"mine": spec("trn1.32xlarge")}, kind="Deployment", group="apps")
    paths = [each.path for each in decision.warnings if each.code == "NEU123"]
    assert paths == ["spec.template.spec.resourceClaims[1]"]


@pytest.mark.parametrize(("field", "instead"), [("  locked: true\n", ""), ("  families: [trn2]\n", "")])
def test_binding_needs_a_lock_and_a_bound(field: str, instead: str) -> None:
    (problem,) = problems(POLICY.replace(field, instead))
    assert "spec.bindsClaims needs locked, and families or logicalNeuronCore." in problem
