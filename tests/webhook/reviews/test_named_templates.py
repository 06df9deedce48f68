"""Pods that name a template of a ClaimTemplate: what is made, what the pod says, whose template wins."""

import asyncio
import copy
from typing import Any

import jsonpatch
import msgspec
import pytest

from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision, Outcome
from neuron.findings import Finding
from policies.applying.steering import SteeringRefusedError, finder
from policies.files.loader import load
from policies.judging.rules import PolicySet
from tests.policies.files.test_claim_templates import template_policy
from tests.support.clusters import FakeTemplates, first_step, mutator, request
from tests.support.manifests import container, pod
from webhook.reviews.reviewer import OtherTemplateError, TemplateUnavailableError
from webhook.reviews.workloads import EarlyTemplates

MATCH = "  match: {namespaces: [team-*], conditions: [{name: c, expression: CONDITION}]}\n"
VERSION = "neuron.aws.com/template-version"


def policies(condition: str = "true", failure: str = "") -> PolicySet:
    """`xl-trn2` for the namespaces `team-*`."""
    text = template_policy(version=3) + MATCH.replace("CONDITION", f'"{condition}"') + failure
    return load({"p.yaml": text.encode()})


def named(template: str = "xl-trn2", **fields: Any) -> Any:
    made = pod({"name": "main", "resources": {"claims": [{"name": "d"}]}}, **fields)
    made["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimTemplateName": template}]
    return made


def asking(value: str = "xl-trn2", *containers: Any, **fields: Any) -> Any:
    found = containers or ({"name": "main"}, {"name": "side"})
    return pod(*found, annotations={"neuron.aws.com/template": value}, **fields)


def review(
    manifest: Any, store: FakeTemplates | None = None, found: PolicySet | None = None, **fields: Any
) -> Decision:
    subject = mutator(templates=store or FakeTemplates(), policies=found or policies())
    fields.setdefault("namespace", "team-a")
    return asyncio.run(subject.review(request(manifest, **fields)))


def patched(manifest: Any, decision: Decision) -> Any:
    return jsonpatch.apply_patch(copy.deepcopy(manifest), list(decision.patch))


def test_a_pod_that_names_it_gets_it_and_its_version() -> None:
    store = FakeTemplates()
    decision = review(named(), store)
    assert list(store.made) == [("team-a", "xl-trn2")]
    assert (decision.outcome, decision.reason) == (Outcome.MUTATED, "claim-template")
    after = patched(named(), decision)
    assert after["metadata"]["annotations"] == {VERSION: "xl-trn2=3"}
    assert after["spec"] == named()["spec"]
    assert decision.audit == {"claim-templates": "xl-trn2=3"}


@pytest.mark.parametrize(
    ("manifest", "fields"),
    [
        pytest.param(named("l-trn2"), {}, id="another name"),
        pytest.param(named("xl-trn2-a"), {}, id="a longer name"),
        pytest.param(named(), {"namespace": "other"}, id="another namespace"),
        pytest.param(pod({"name": "xl-trn2"}), {}, id="a container of that name"),
    ],
)
def test_other_pods_are_untouched(manifest: Any, fields: dict[str, str]) -> None:
    store = FakeTemplates()
    decision = review(manifest, store, **fields)
    assert (decision.patch, store.made, decision.warnings) == ((), {}, ())


def test_a_condition_decides_and_one_that_fails_denies_only_pods_that_name_it() -> None:
    assert review(named(), found=policies("object.metadata.name == 'other'")).patch == ()
    failing = policies("object.spec.missing == 1", "  failurePolicy: Fail\n")
    with pytest.raises(SteeringRefusedError, match="missing"):
        review(named(), found=failing)
    assert review(named("l-trn2"), found=failing).patch == ()


def test_a_dry_run_makes_nothing_and_says_so() -> None:
    store = FakeTemplates()
    decision = review(named(), store, dryRun=True)
    assert store.made == {}
    assert [each.code for each in decision.warnings] == ["NEU207"]


def test_an_escaped_name_is_found() -> None:
    store = FakeTemplates()
    text = named()
    made = request(text, namespace="team-a")
    raw = bytes(made.object).replace(b"xl-trn2", b"xl\\u002dtrn2")
    subject = mutator(templates=store, policies=policies())

    asyncio.run(subject.review(msgspec.structs.replace(made, object=msgspec.Raw(raw))))
    assert list(store.made) == [("team-a", "xl-trn2")]


@pytest.mark.parametrize(
    ("version", "says"), [(0, "xl-trn2=own"), (3, "xl-trn2=3"), (9, "xl-trn2=9")], ids=["own", "same", "later"]
)
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("annotations", [None, {VERSION: "xl-trn2=3"}], ids=["plain", "forged"])
def test_another_template_wins_and_the_pod_says_so(
    version: int, says: str, cached: bool, annotations: dict[str, str] | None
) -> None:
    store = FakeTemplates()
    if cached:
        store.others["team-a", "xl-trn2"] = version
    else:
        store.refusal = OtherTemplateError(Finding("NEU721", "", "", ""), version)
    manifest = named(annotations=annotations) if annotations else named()
    decision = review(manifest, store)
    assert (store.made, decision.allowed) == ({}, True)
    assert [each.code for each in decision.warnings] == ["NEU721"]
    assert patched(manifest, decision)["metadata"]["annotations"] == {VERSION: says}


def test_a_pod_that_asks_by_annotation_gets_a_claim_for_its_first_container() -> None:
    store = FakeTemplates()
    after = patched(asking(), review(asking(), store))
    assert after["spec"]["resourceClaims"] == [{"name": "neuron", "resourceClaimTemplateName": "xl-trn2"}]
    first, second = after["spec"]["containers"]
    assert (first["resources"], "resources" in second) == ({"claims": [{"name": "neuron"}]}, False)
    assert after["metadata"]["annotations"][VERSION] == "xl-trn2=3"
    assert [each["key"] for each in after["spec"]["tolerations"]] == ["aws.amazon.com/neuron"]
    assert list(store.made) == [("team-a", "xl-trn2")]
    again = review(after, store)
    assert patched(after, again) == after


@pytest.mark.parametrize("resources", [{}, {"limits": {"cpu": "1"}}, {"claims": []}, {"claims": [{"name": "other"}]}])
def test_the_container_that_the_annotation_names_gets_the_claim(resources: Any) -> None:
    manifest = asking("side = xl-trn2", {"name": "main"}, {"name": "side", "resources": resources})
    first, second = patched(manifest, review(manifest))["spec"]["containers"]
    assert "resources" not in first
    assert second["resources"] == {**resources, "claims": [*resources.get("claims", []), {"name": "neuron"}]}


def test_a_pod_that_has_the_claim_already_stays() -> None:
    manifest = named(annotations={"neuron.aws.com/template": "xl-trn2"})
    after = patched(manifest, review(manifest))
    assert after["spec"] == manifest["spec"]


@pytest.mark.parametrize(
    ("manifest", "fields", "code", "said"),
    [
        pytest.param(asking("xxl-trn2"), {}, "NEU722", "'xxl-trn2', which no ClaimTemplate policy", id="unknown"),
        pytest.param(asking(""), {}, "NEU722", "template ''", id="empty"),
        pytest.param(asking(), {"namespace": "other"}, "NEU722", "'xl-trn2', which no", id="another namespace"),
        pytest.param(
            asking("a=xl-trn2"), {}, "NEU723", "to container 'a', which the pod does not have", id="container"
        ),
        pytest.param(
            asking("xl-trn2", container("main", neuron="4")),
            {},
            "NEU723",
            "for aws.amazon.com/neuron: it would get",
            id="limits",
        ),
    ],
)
def test_an_annotation_that_cannot_be_followed_denies_the_pod(
    manifest: Any, fields: dict[str, str], code: str, said: str
) -> None:
    decision = review(manifest, **fields)
    assert [each.code for each in decision.errors] == [code]
    assert said in decision.errors[0].message


def test_without_such_policies_nothing_looks_for_names() -> None:
    assert finder(PolicySet()) is None


def test_a_pod_with_limits_may_name_one_too() -> None:
    manifest = named()
    manifest["spec"]["containers"].append(container("legacy", neuron="4"))
    store = FakeTemplates()
    decision = review(manifest, store)
    assert decision.outcome is Outcome.CONVERTED
    after = patched(manifest, decision)
    assert after["metadata"]["annotations"][VERSION] == "xl-trn2=3"
    assert [each["resourceClaimTemplateName"] for each in after["spec"]["resourceClaims"]] == [
        name for _, name in sorted(store.made, key=lambda each: each[1] != "xl-trn2")
    ]


class _Valid:
    async def review(self, request: Any) -> Decision:  # noqa: ARG002 - the port's signature
        return Decision(Outcome.UNCHANGED, "valid")


@pytest.mark.parametrize(
    ("fields", "made"),
    [({}, True), ({"dryRun": True}, False), ({"namespace": "other"}, False), ({"namespace": ""}, False)],
    ids=["created", "dry run", "another namespace", "no namespace"],
)
def test_a_workload_gets_its_templates_early(fields: dict[str, Any], made: bool) -> None:
    store = FakeTemplates()
    asyncio.run(early(store).review(deployment_review(**fields)))
    assert bool(store.made) is made


def test_a_workload_that_gets_another_template_is_told_so_without_a_call() -> None:
    store = FakeTemplates(refusal=TemplateUnavailableError(Finding("NEU302", "", "no answer", ""), 503, "Unavailable"))
    store.others["team-a", "xl-trn2"] = 9
    decision = first_step(early(store).review(deployment_review()))
    assert decision is not None
    assert [each.code for each in decision.warnings] == ["NEU721"]


def early(store: FakeTemplates) -> EarlyTemplates:
    found = policies()
    steer, finds = mutator(templates=store, policies=found)._steer, finder(found)
    assert finds is not None
    assert steer is not None
    return EarlyTemplates(_Valid(), steer.of_template, store, finds)


def deployment_review(**fields: Any) -> AdmissionRequest:
    workload = {"kind": "Deployment", "apiVersion": "apps/v1", "spec": {"template": {"spec": named()["spec"]}}}
    return request(workload, kind="Deployment", group="apps", **{"namespace": "team-a", **fields})


@pytest.mark.parametrize(("manifest", "allowed"), [(named(), True), (asking(), False)], ids=["claim", "annotation"])
def test_a_pod_that_asks_by_annotation_is_never_admitted_without_the_template(manifest: Any, allowed: bool) -> None:
    refusal = TemplateUnavailableError(Finding("NEU302", "", "no answer", ""), 503, "ServiceUnavailable")
    store = FakeTemplates(refusal=refusal)
    subject = mutator(templates=store, policies=policies(), on_template_failure="admit")
    decision = asyncio.run(subject.review(request(manifest)))
    assert (decision.allowed, decision.patch) == (allowed, ())


HINTS = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: SchedulingHintPolicy
metadata: {name: hints}
spec:
  order: 1
  labels: {action: Add, items: {team: a}}
"""


@pytest.mark.parametrize("labels", [None, {}, {"b": "c"}])
def test_a_pod_that_asks_by_annotation_gets_the_hints_of_policies(labels: dict[str, str] | None) -> None:
    found = load({"p.yaml": template_policy(version=3).encode(), "h.yaml": HINTS.encode()})
    manifest = asking()
    manifest["metadata"].pop("labels", None)
    if labels is not None:
        manifest["metadata"]["labels"] = labels
    after = patched(manifest, review(manifest, found=found))
    assert after["metadata"]["labels"] == {**(labels or {}), "team": "a"}
