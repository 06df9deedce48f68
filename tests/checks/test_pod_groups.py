"""Claims of PodGroups and Workloads: their form, what does not exist, and which pods share them."""

from typing import Any

import pytest

from checks.workloads import check_claims, check_member, check_missing
from neuron.api.workloads import GroupClaim

TEMPLATE = {"name": "neuron", "resourceClaimTemplateName": "four"}
CLAIM = {"name": "other", "resourceClaimName": "shared"}


def group(*claims: Any) -> dict[str, Any]:
    return {"spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": list(claims)}}


def groups_workload(*claims: Any) -> dict[str, Any]:
    return {"spec": {"podGroupTemplates": [{"name": "a"}, {"name": "b", "resourceClaims": list(claims)}]}}


def group_claim(path: str = "spec.resourceClaims[0]", **fields: str) -> GroupClaim:
    return GroupClaim.read({"name": "neuron", **fields}, path)


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        pytest.param([TEMPLATE, CLAIM], [], id="valid"),
        pytest.param(
            [{"name": "neuron"}],
            ["spec.resourceClaims[0]: claim 'neuron' of the PodGroup names neither a template nor a claim."],
            id="names nothing",
        ),
        pytest.param(
            [{**TEMPLATE, "resourceClaimName": "shared"}],
            ["spec.resourceClaims[0]: claim 'neuron' of the PodGroup names both a template and a claim."],
            id="names both",
        ),
        pytest.param(
            [{**TEMPLATE, "name": "Neuron_é"}],
            ["spec.resourceClaims[0].name: name 'Neuron_\\xe9' of a claim of a PodGroup is no DNS label."],
            id="no DNS label",
        ),
        pytest.param(
            [TEMPLATE, {**CLAIM, "name": "neuron"}],
            ["spec.resourceClaims[1].name: the PodGroup has two claims with the name 'neuron'."],
            id="repeated",
        ),
        pytest.param(
            [{**TEMPLATE, "name": f"c{number}"} for number in range(5)],
            ["spec.resourceClaims: the PodGroup has 5 claims, and Kubernetes allows 4."],
            id="too many",
        ),
        pytest.param([{**TEMPLATE, "name": f"c{number}"} for number in range(4)], [], id="as many as are allowed"),
        pytest.param(
            [*({**TEMPLATE, "name": f"c{number}"} for number in range(4)), {"name": "c4"}, {"name": "c5"}],
            [
                "spec.resourceClaims: the PodGroup has 6 claims, and Kubernetes allows 4.",
                "spec.resourceClaims[4]: claim 'c4' of the PodGroup names neither a template nor a claim.",
            ],
            id="the last of too many",
        ),
        pytest.param(
            [{"name": 4, "resourceClaimTemplateName": ["x"]}, "text", None],
            [
                "spec.resourceClaims[0].name: name '' of a claim of a PodGroup is no DNS label.",
                "spec.resourceClaims[0]: claim '' of the PodGroup names neither a template nor a claim.",
            ],
            id="wrong types",
        ),
    ],
)
def test_the_form_of_claims_is_checked(claims: list[Any], found: list[str]) -> None:
    assert [f"{each.path}: {each.message}" for each in check_claims("PodGroup", group(*claims))] == found
    of_templates = [each.replace("spec.", "spec.podGroupTemplates[1].", 1) for each in found]
    assert [
        f"{each.path}: {each.message}" for each in check_claims("Workload", groups_workload(*claims))
    ] == of_templates
    assert {each.code for each in check_claims("PodGroup", group(*claims))} <= {"NEU712"}


def test_too_many_claims_are_an_error_with_their_number() -> None:
    [found] = check_claims("PodGroup", group(*({**TEMPLATE, "name": f"c{number}"} for number in range(5))))
    assert (found.value, found.fix) == ("5", "Keep 4 or fewer.")


def test_nine_templates_of_a_workload_are_checked() -> None:
    templates = [{"name": f"t{number}", "resourceClaims": [{"name": "c"}]} for number in range(12)]
    found = list(check_claims("Workload", {"spec": {"podGroupTemplates": templates}}))
    assert [each.path for each in found] == [f"spec.podGroupTemplates[{at}].resourceClaims[0]" for at in range(9)]


@pytest.mark.parametrize("data", [{}, {"spec": None}, {"spec": []}, {"spec": {"resourceClaims": {}}}])
def test_an_object_without_claims_has_no_findings(data: Any) -> None:
    assert not [*check_claims("PodGroup", data), *check_claims("Workload", data)]


def test_claims_and_templates_that_do_not_exist_are_warnings() -> None:
    missing = {("ResourceClaimTemplate", "four"), ("ResourceClaim", "shared")}
    found = check_missing("PodGroup", group(TEMPLATE, CLAIM), missing)
    assert [f"{each.severity} {each.path}: {each}" for each in found] == [
        "warning spec.resourceClaims[0].resourceClaimTemplateName: NEU705: ResourceClaimTemplate four does not exist in"
        " this namespace. The pods of the PodGroup wait until it does: create it.",
        "warning spec.resourceClaims[1].resourceClaimName: NEU706: ResourceClaim shared does not exist in this"
        " namespace. The pods of the PodGroup wait until it does: create it.",
    ]
    [of_workload, _] = check_missing("Workload", groups_workload(TEMPLATE, CLAIM), missing)
    assert of_workload.fix == "PodGroups of this Workload wait until it does: create it."
    assert not [*check_missing("PodGroup", group(TEMPLATE, CLAIM), {("ResourceClaim", "four")})]


@pytest.mark.parametrize(
    ("own", "made", "code"),
    [
        pytest.param([group_claim(resourceClaimTemplateName="four")], [], "", id="shared by the user"),
        pytest.param([group_claim(resourceClaimTemplateName="eight")], [], "NEU713", id="another template"),
        pytest.param([group_claim(resourceClaimName="four")], [], "NEU713", id="a claim instead of a template"),
        pytest.param([GroupClaim("", "mine", (("ResourceClaimTemplate", "eight"),))], [], "", id="another name"),
        pytest.param([group_claim()], [], "", id="refers to nothing"),
        pytest.param(
            [GroupClaim("", "mine", ()), group_claim(resourceClaimName="four")], [], "NEU713", id="after another name"
        ),
        pytest.param([], [group_claim("spec", resourceClaimTemplateName="four")], "NEU714", id="shared by conversion"),
        pytest.param([], [group_claim("spec", resourceClaimTemplateName="eight")], "", id="its own by conversion"),
    ],
)
def test_a_pod_is_compared_with_its_group(own: list[GroupClaim], made: list[GroupClaim], code: str) -> None:
    shared = [group_claim(resourceClaimTemplateName="four")]
    found = [*check_member("gang", shared, own, made)]
    assert [each.code for each in found] == ([code] if code else [])


def test_the_findings_name_both_objects() -> None:
    shared = [group_claim(resourceClaimTemplateName="four")]
    [differs] = check_member("gang", shared, [group_claim(resourceClaimName="mine")])
    assert str(differs) == (
        "NEU713: claim 'neuron' of the pod is ResourceClaim mine, and claim 'neuron' of PodGroup gang is"
        " ResourceClaimTemplate four: the pod does not share the claim of its group. Refer to the same object to share"
        " it, or give the claim another name."
    )
    [sharing] = check_member("gang", shared, [], shared)
    assert str(sharing) == (
        "NEU714: PodGroup gang shares claim 'neuron' of ResourceClaimTemplate four among its pods: conversion makes an"
        " equal entry for this pod, so that it gets no devices of its own. Keep it if the pods are to share the"
        " devices; else give the claim of the PodGroup another name."
    )
    assert differs.value == sharing.value == "neuron"
