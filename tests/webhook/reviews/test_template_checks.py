"""Pods whose templates are those of operators: created, changed, applied again, with and without the template."""

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

import pytest

from conversion.asks import records
from conversion.asks.claimed import claimed
from conversion.facts import NamespaceFacts
from conversion.findings.verification import verify
from conversion.objects import pods
from conversion.patches.decision import Decision, Outcome
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding
from policies.files.loader import load
from policies.judging.rules import PolicySet
from tests.support.clusters import FakeCluster, FakeTemplates, first_step, mutator, patched, request, reviewed
from tests.support.manifests import container, pod
from tests.support.trainium import trainium
from tests.support.validation import FakeClaims
from webhook.reviews.mutate import Mutator
from webhook.reviews.policy_steering import PolicySteer
from webhook.reviews.reviewer import TemplateUnavailableError
from webhook.reviews.steered import TemplateChecks
from webhook.reviews.validate import Validator
from webhook.server.standalone import StandaloneBackend

POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: team-a}
spec:
  order: 10
  match: {namespaces: [team-a]}
  families: [trn2]
  templates:
  - {demand: {devices: 16}, name: xl-trn2}
  - {demand: {devices: 1, logicalNeuronCore: 1}, name: one-lnc-1}
  - demand: {devices: 8}
    template:
      metadata: {name: eight, labels: {team: a}}
      spec: {spec: {devices: {
        requests: [{name: r, exactly: {deviceClassName: neuron.aws.com, count: 8}}],
        constraints: [{matchAttribute: resource.aws.com/devicegroup8_id}]}}}
"""
POLICIES = load({"p.yaml": POLICY.encode()})
WHOLE = pod(container(neuron="16"))
Operators = Mapping[tuple[str, str], ClaimSpec]


def spec(count: int = 16, **devices: Any) -> ClaimSpec:
    requests = [{"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}]
    body = {"spec": {"devices": {"requests": requests, **devices}}}
    return read_claim("ResourceClaimTemplate", "resource.k8s.io/v1", body)[0]


XL: Operators = {("team-a", "xl-trn2"): spec()}


def subject(operators: Operators = XL, **options: Any) -> Mutator:
    return mutator(templates=FakeTemplates(operators=operators), policies=POLICIES, **options)


def template_of(manifest: Any) -> str:
    (entry,) = manifest["spec"]["resourceClaims"]
    name: str = entry["resourceClaimTemplateName"]
    return name


def test_a_pod_uses_the_template_of_the_policy() -> None:
    decision = reviewed(subject(), WHOLE)
    assert decision.templates == ()
    assert template_of(patched(WHOLE, decision)) == "xl-trn2"
    assert decision.audit == {"template": "xl-trn2", "conversion-policy": "team-a"}


def test_other_demands_and_namespaces_get_generated_templates() -> None:
    assert (
        template_of(patched(pod(container(neuron="4")), reviewed(subject(), pod(container(neuron="4")))))[:7]
        == "neuron-"
    )
    assert template_of(patched(WHOLE, reviewed(subject(), WHOLE, namespace="team-b")))[:7] == "neuron-"
    two = pod(container(neuron="8"), container("other", neuron="8"))
    assert template_of(patched(two, reviewed(subject(), two)))[:9] == "neuron-8-"


def test_an_init_container_may_use_the_same_devices() -> None:
    both = pod(container(neuron="16"), init=[container("compile", neuron="16")])
    assert template_of(patched(both, reviewed(subject(), both))) == "xl-trn2"


@pytest.mark.parametrize(("unconnected", "outcome"), [("Allow", Outcome.CONVERTED), ("Deny", Outcome.DENIED)])
def test_the_template_need_not_connect_devices_where_the_policy_allows_it(unconnected: str, outcome: Outcome) -> None:
    text = POLICY.replace("devices: 16}, name: xl-trn2", "devices: 3}, name: three") + f"  unconnected: {unconnected}\n"
    store = FakeTemplates(operators={("team-a", "three"): spec(3)})
    decision = reviewed(mutator(templates=store, policies=load({"p.yaml": text.encode()})), pod(container(neuron="3")))
    assert decision.outcome is outcome


def test_shadow_mode_refuses_no_converted_pod_whose_template_is_missing() -> None:
    stored = patched(WHOLE, reviewed(subject(), WHOLE))
    assert reviewed(subject({}), stored).outcome is Outcome.DENIED
    assert reviewed(subject({}, mode="shadow"), stored).outcome is Outcome.UNCHANGED


def test_a_setting_narrows_the_demand() -> None:
    config = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
    operators = {
        ("team-a", "one-lnc-1"): spec(1, config=[{"opaque": {"driver": "neuron.aws.com", "parameters": config}}])
    }
    plain, set_to_1 = (
        pod(container(neuron="1")),
        pod(container(neuron="1"), annotations={"neuron.aws.com/logical-neuron-core": "1"}),
    )
    assert template_of(patched(plain, reviewed(subject(operators), plain)))[:7] == "neuron-"
    assert template_of(patched(set_to_1, reviewed(subject(operators), set_to_1))) == "one-lnc-1"


def test_a_pod_whose_template_must_be_checked_is_not_answered_at_once() -> None:
    checked = subject({})
    assert first_step(checked.review(request(WHOLE))) is None
    assert not reviewed(checked, WHOLE).allowed
    assert first_step(checked.review(request(WHOLE))) is None


def test_a_missing_template_denies_the_pod() -> None:
    decision = reviewed(subject({("team-b", "xl-trn2"): spec()}), WHOLE)
    assert (decision.outcome, decision.reason, decision.resource) == (
        "denied",
        "mapped-template",
        "aws.amazon.com/neuron",
    )
    (error,) = decision.errors
    assert error.code == "NEU120"
    assert "does not exist in namespace team-a. Another namespace has one of this name" in error.message
    assert "Another namespace" not in reviewed(subject({}), WHOLE).errors[0].message


def test_a_template_that_differs_denies_the_pod_until_it_is_replaced() -> None:
    operators = {("team-a", "xl-trn2"): spec(8, constraints=[{"matchAttribute": "resource.aws.com/devicegroup8_id"}])}
    mutate = subject(operators)
    for _ in range(2):
        (error,) = reviewed(mutate, WHOLE).errors
        assert error.code == "NEU121"
        assert "it gives 8 devices on trn2.48xlarge, where the pod needs 16 devices" in error.message
    operators["team-a", "xl-trn2"] = spec()
    assert reviewed(mutate, WHOLE).allowed


def test_shadow_mode_reports_the_refusal_and_admits() -> None:
    decision = reviewed(subject({}, mode="shadow"), WHOLE)
    assert (decision.outcome, decision.patch) == ("shadowed", ())
    assert [each.code for each in decision.warnings] == ["NEU208", "NEU120"]


def unavailable() -> TemplateUnavailableError:
    return TemplateUnavailableError(Finding("NEU302", "", "no answer."), 503, "ServiceUnavailable")


def test_an_api_server_that_does_not_answer_follows_the_setting() -> None:
    refusing = mutator(templates=FakeTemplates(unavailable()), policies=POLICIES)
    assert (reviewed(refusing, WHOLE).status_code, reviewed(refusing, WHOLE).reason) == (503, "template-unavailable")
    admitting = mutator(templates=FakeTemplates(unavailable()), policies=POLICIES, on_template_failure="admit")
    assert [each.code for each in reviewed(admitting, WHOLE).warnings] == ["NEU210"]
    locked = load({"p.yaml": POLICY.replace("  order: 10", "  order: 10\n  mode: convert\n  locked: true").encode()})
    denying = mutator(templates=FakeTemplates(unavailable()), policies=locked, on_template_failure="admit")
    for manifest in (WHOLE, pod(container(neuron="4"))):
        assert (reviewed(denying, manifest).outcome, reviewed(denying, manifest).status_code) == (Outcome.DENIED, 503)
    again = patched(WHOLE, reviewed(mutator(templates=FakeTemplates(operators=XL), policies=locked), WHOLE))
    assert reviewed(denying, again).outcome is Outcome.DENIED
    shadowing = mutator(templates=FakeTemplates(unavailable()), policies=POLICIES, mode="shadow")
    assert [each.code for each in reviewed(shadowing, WHOLE).warnings] == ["NEU208", "NEU302"]


def test_a_template_that_cannot_be_read_is_a_difference() -> None:
    class Unreadable(FakeTemplates):
        async def read(self, namespace: str, name: str) -> Any:
            found = await super().read(namespace, name)
            return type(found)()

    (error,) = reviewed(mutator(templates=Unreadable(), policies=POLICIES), WHOLE).errors
    assert error.message.endswith("does not serve this pod: it cannot be read.")


def test_templates_are_not_checked_without_a_cluster() -> None:
    backend, options = StandaloneBackend(), trainium()
    checks = TemplateChecks(options, POLICIES.catalogue, backend.view, backend.templates).find
    steer = PolicySteer(POLICIES, backend.view, lambda: 0.0)
    decision = reviewed(
        Mutator(options, POLICIES.catalogue, backend.view, backend.templates, steer, checks=checks), WHOLE
    )
    assert decision.patch
    assert [each.code for each in decision.warnings] == ["NEU230"]


def test_a_template_that_a_policy_carries_is_made() -> None:
    eight, templates = pod(container(neuron="8")), FakeTemplates()
    decision = reviewed(mutator(templates=templates, policies=POLICIES), eight)
    assert template_of(patched(eight, decision)) == "eight"
    (made,) = templates.made.values()
    assert made.manifest("team-a")["metadata"]["labels"] == {"team": "a", "app.kubernetes.io/managed-by": "neuron-dra"}


def test_applying_again_changes_nothing_with_the_policy_or_without() -> None:
    stored = patched(WHOLE, reviewed(subject(), WHOLE))
    for mutate in (subject(), mutator(FakeCluster())):
        assert patched(WHOLE, reviewed(mutate, WHOLE, "UPDATE", stored)) == stored
        again = copy.deepcopy(stored)
        again["spec"]["containers"][0]["resources"]["limits"] = {"aws.amazon.com/neuron": "16"}
        assert patched(again, reviewed(mutate, again, "UPDATE", stored)) == stored
        changed = pod(container(neuron="8"))
        assert [each.code for each in reviewed(mutate, changed, "UPDATE", stored).errors] == ["NEU115"]


def test_a_pod_from_a_backup_is_checked_again() -> None:
    stored = patched(WHOLE, reviewed(subject(), WHOLE))
    assert reviewed(subject(), stored).reason == "already-converted"
    assert [each.code for each in reviewed(subject({}), stored).errors] == ["NEU120"]


def test_a_pod_from_a_backup_gets_a_generated_template_without_its_policy() -> None:
    stored = patched(WHOLE, reviewed(subject(), WHOLE))
    decision = reviewed(mutator(), stored)
    assert decision.outcome == "restored"
    again = patched(stored, decision)
    assert template_of(again) == decision.templates[0].name
    assert '"template"' not in again["metadata"]["annotations"]["neuron.aws.com/converted-from"]


def test_a_record_may_not_name_a_template_that_the_pod_does_not_use() -> None:
    stored = patched(WHOLE, reviewed(subject(), WHOLE))
    stored["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "larger"
    assert claimed(pods.view(stored)) is None


def test_a_record_names_the_claim_if_the_users_own_looks_the_same() -> None:
    own = pod(container(neuron="16"), resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": "xl-trn2"}])
    stored = patched(own, reviewed(subject(), own))
    conversion = claimed(pods.view(stored))
    assert conversion is not None
    assert (conversion.claim, conversion.template) == ("neuron-dra", "xl-trn2")


def test_a_template_of_an_operator_verifies_no_record() -> None:
    """Its selectors may admit whole nodes, so policies count the claim itself."""
    stored = patched(WHOLE, reviewed(subject(), WHOLE))
    assert verify(stored, lambda _: spec(1), POLICIES.sources("neuron.aws.com")) is None


def test_a_record_with_an_invalid_template_name_is_ignored() -> None:
    assert records.decode('{"containers": {}, "template": 4}') is None
    assert records.decode('{"containers": {}, "template": "' + "x" * 254 + '"}') is None


def validated(manifest: Any, cluster: FakeClaims, policies: PolicySet = POLICIES, **fields: Any) -> Decision:
    steer = PolicySteer(policies, cluster, lambda: 0.0).of_template
    return asyncio.run(Validator(trainium(), policies.catalogue, cluster, steer).review(request(manifest, **fields)))


@pytest.mark.parametrize(
    ("templates", "classes", "codes"),
    [
        ({}, {}, ["NEU701", "NEU120"]),
        ({("team-b", "xl-trn2"): spec()}, {}, ["NEU701", "NEU120"]),
        (XL, {}, []),
        ({("team-a", "xl-trn2"): spec(8)}, {}, ["NEU701", "NEU121"]),
        ({}, None, ["NEU230"]),
    ],
    ids=["missing", "in another namespace", "fits", "differs", "not known"],
)
def test_a_workload_whose_pods_would_be_refused_is_warned(templates: Operators, classes: Any, codes: list[str]) -> None:
    cluster = FakeClaims(templates=dict(templates), class_specs=classes)
    decision = validated({"spec": {"template": WHOLE}}, cluster, kind="Deployment", group="apps")
    assert list(dict.fromkeys(each.code for each in decision.warnings)) == codes
    assert all("namespace team-a" in each.message for each in decision.warnings if each.code == "NEU120")


LNC_1 = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: small}
spec: {order: 10, match: {namespaces: [team-a]}, logicalNeuronCore: 1}
"""


@pytest.mark.parametrize("padding", [0, 40_000], ids=["small", "large"])
@pytest.mark.parametrize(
    ("policies", "annotations"),
    [(POLICIES, {"neuron.aws.com/logical-neuron-core": "1"}), (load({"p.yaml": LNC_1.encode()}), {})],
    ids=["namespace", "policy"],
)
def test_in_a_dry_run_the_template_is_computed(policies: PolicySet, annotations: dict[str, str], padding: int) -> None:
    namespaces = {"team-a": NamespaceFacts(tuple(annotations.items()))}
    manifest = pod(container(neuron="4"), annotations={"x": "x" * padding})
    stored = patched(manifest, reviewed(mutator(FakeCluster(namespaces=namespaces), policies=policies), manifest))
    cluster = FakeClaims(namespaces=namespaces, objects=set())
    assert validated(stored, cluster, policies) == Decision(Outcome.UNCHANGED, "valid")
    assert cluster.asked == []
