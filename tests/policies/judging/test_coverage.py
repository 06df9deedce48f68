"""Notes on policies for requests that the shipped configuration does not send."""

from pathlib import Path

import pytest
import yaml

from policies.judging.coverage import SENT, changing_notes, needed_rules, notes
from tests.policies.policy_files import loaded, policy
from tests.support import mutating_policies

MANIFEST = Path(__file__).parents[3] / "deploy/manifests/validating.yaml"
NOT_SENT = (
    "which the shipped ValidatingWebhookConfiguration does not send: `neuron-dra policy rules` prints the rules to add."
)
OF_PODS = (
    "the shipped ValidatingWebhookConfiguration sends only pods that request Neuron's extended resources, were "
    "converted, or have claims and name Neuron"
)
PODS = f"{OF_PODS}; widen its matchCondition 'claims' where 'limits' must match others."
CLAIMS = (
    "the shipped ValidatingWebhookConfiguration sends only claims, templates and DeviceClasses that name Neuron; "
    "widen its matchCondition 'neuron' where 'limits' must match those of other drivers."
)


def about(*rules: str, expression: str = "true") -> list[str]:
    text = policy(f"validations: [{{expression: '{expression}'}}]")
    head, _, rest = text.partition("    resourceRules:\n")
    first, _, tail = rest.partition("\n")
    assert "pods" in first
    return list(
        notes(loaded(f"{head}    resourceRules:\n" + "".join(f"    - {each}\n" for each in rules) + tail).validating)
    )


def rule(group: str, resources: str, operations: str = "CREATE", versions: str = "v1") -> str:
    return (
        f'{{apiGroups: ["{group}"], apiVersions: [{versions}], operations: [{operations}], resources: [{resources}]}}'
    )


def test_the_table_equals_the_rules_of_the_shipped_manifest() -> None:
    configuration = yaml.safe_load(MANIFEST.read_text())
    rules = [each for webhook in configuration["webhooks"] for each in webhook["rules"]]
    found = {
        (group, resource): set(each["operations"])
        for each in rules
        for group in each["apiGroups"]
        for resource in each["resources"]
    }
    assert found == SENT
    assert sum(len(each["apiGroups"]) * len(each["resources"]) for each in rules) == len(SENT)
    conditions = {each["name"] for webhook in configuration["webhooks"] for each in webhook.get("matchConditions", ())}
    assert "claims" in conditions, "the note on pods names it"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param([rule("", "secrets")], [f"policy 'limits' matches secrets, {NOT_SENT}"], id="kind"),
        pytest.param(
            [rule("batch", "jobs", "CREATE, DELETE")],
            [f"policy 'limits' matches DELETE of jobs of batch, {NOT_SENT}"],
            id="operation",
        ),
        pytest.param(
            [rule("apps", "deployments/scale", "UPDATE")],
            [f"policy 'limits' matches deployments/scale of apps, {NOT_SENT}"],
            id="subresource",
        ),
        pytest.param([rule("apps", "deployments")], [], id="sent"),
        pytest.param([rule("resource.k8s.io", "resourceclaims, deviceclasses", '"*"')], [CLAIMS], id="any-operation"),
        pytest.param([rule("*", "'*'", '"*"')], [PODS, CLAIMS], id="everything"),
        pytest.param([rule("", "pods")], [PODS], id="pods"),
        pytest.param(
            [rule("batch", "'*', '*/scale', jobs/status")],
            [f"policy 'limits' matches jobs/status of batch, {NOT_SENT}"],
            id="beside-wildcards",
        ),
    ],
)
def test_a_policy_for_requests_that_are_not_sent_is_reported(rules: list[str], expected: list[str]) -> None:
    assert about(*rules) == expected


def test_a_policy_that_counts_devices_gets_a_note_on_pods_that_are_not_sent() -> None:
    [note] = about(rule("", "pods"), rule("resource.k8s.io", "resourceclaims"), expression="neuron.devices <= 4")
    assert note == (
        "'limits' reads 'neuron', and the plain manifests do not send pods whose claims do not name Neuron: install"
        " with Helm and policies, or add them (docs/policies.md, In a cluster)."
    )
    docs = (MANIFEST.parents[2] / "docs/policies.md").read_text()
    assert "## In a cluster" in docs
    line = "(request.kind.kind == 'Pod' && object.spec.?resourceClaims.orValue([]).size() > 0) ||"
    assert f"`{line}`" in docs
    assert about(rule("resource.k8s.io", "resourceclaims"), expression="neuron.devices <= 4") == []


@pytest.mark.parametrize("field", ["finalizers", "ownerReferences"])
def test_a_policy_that_reads_fields_of_unsent_updates_is_reported_with_a_rule(field: str) -> None:
    claims = rule("resource.k8s.io", "resourceclaims", "CREATE, UPDATE")
    check = f"validations: [{{expression: 'neuron.devices < 9 || !has(oldObject.metadata.{field})'}}]"
    text = policy(check).replace(
        '- {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}', f"- {claims}"
    )
    found = loaded(text).validating
    [note] = notes(found)
    assert note == (
        "policy 'limits' matches UPDATE of only finalizers or ownerReferences of resourceclaims of resource.k8s.io, "
        + NOT_SENT
    )
    [needed] = needed_rules(found)
    assert (needed["operations"], needed["resources"]) == (["UPDATE"], ["resourceclaims"])


@pytest.mark.parametrize(
    ("resource", "expected"),
    [(rule("resource.k8s.io", "resourceclaims"), []), (rule("", "secrets", "UPDATE"), ["secrets"])],
    ids=["creation", "kind-that-is-not-sent"],
)
def test_fields_of_unsent_updates_make_no_note_without_updates_that_are_sent(
    resource: str, expected: list[str]
) -> None:
    found = about(resource, expression="neuron.devices < 9 || has(object.metadata.finalizers)")
    assert found == [f"policy 'limits' matches {each}, {NOT_SENT}" for each in expected]


def test_a_misspelt_resource_gets_a_suggestion() -> None:
    assert (
        about(rule("", "pod"))[0]
        == "policy 'limits' never matches there: no resource is called 'pod'. Did you mean 'pods'?"
    )
    assert (
        about(rule("apps", "deployment/scale"))[0]
        == "policy 'limits' never matches there: no resource is called 'deployment' of apps. Did you mean"
        " 'deployments'?"
    )
    assert not any("is called" in note for note in about(rule("example.com", "pod")))


def several(*rules: str, expression: str = "true") -> tuple[list[str], list[dict[str, object]]]:
    texts = [
        policy(f"validations: [{{expression: '{expression}'}}]", name=f"p{at}").replace(
            '- {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}', f"- {each}"
        )
        for at, each in enumerate(rules)
    ]
    found = loaded(*texts).validating
    return list(notes(found)), needed_rules(found)


def test_many_policies_get_one_note() -> None:
    (note,), _ = several(*[rule("", "secrets")] * 10, rule("", "services"))
    assert note == (
        "policies 'p0', 'p1', 'p2', 'p3', 'p4', 'p5', 'p6', 'p7' and 3 more match secrets, services, " + NOT_SENT
    )


def test_each_policy_that_never_matches_gets_a_note() -> None:
    found, _ = several(rule("apps", "deployment"), rule("batch", "job"))
    assert found == [
        f"policy '{name}' never matches there: no resource is called '{of}. Did you mean '{instead}'?"
        for name, of, instead in (("p0", "deployment' of apps", "deployments"), ("p1", "job' of batch", "jobs"))
    ]


def test_policies_that_count_devices_get_one_note() -> None:
    (note,), _ = several(*[rule("", "pods")] * 2, expression="neuron.devices <= 4")
    assert note.startswith("'p0', 'p1' read 'neuron', and the plain manifests do not send pods whose claims")


def test_the_rules_that_a_set_needs_are_merged() -> None:
    _, needed = several(
        rule("", "secrets"),
        rule("", "secrets, services", "CREATE, UPDATE"),
        rule("", "pods", '"*"'),
        rule("apps", "deployments"),
    )
    base = {"apiVersions": ["v1"], "scope": "*"}
    assert needed == [
        {"apiGroups": [""], "operations": ["UPDATE", "DELETE", "CONNECT"], "resources": ["pods"], **base},
        {"apiGroups": [""], "operations": ["CREATE", "UPDATE"], "resources": ["secrets", "services"], **base},
    ]


# --- policies that change objects ---------------------------------------------------------------------------------

OF_CHANGED_PODS = (
    "the shipped MutatingWebhookConfiguration sends only pods that request Neuron's extended resources or were "
    "converted, and {} can change no others there: add the pods to the chart's mutation.extraRules, or leave the policy"
    " to the API server (Kubernetes 1.36)."
)
NOT_SENT_FOR_CHANGES = (
    "which the shipped MutatingWebhookConfiguration does not send: add them to the chart's mutation.extraRules, or "
    "leave the policy to the API server (Kubernetes 1.36)."
)


def changing(*rules: list[str]) -> list[str]:
    """The notes on policies p0, p1, ... with these rules."""
    texts = []
    for at, each in enumerate(rules):
        made, bound = mutating_policies.policy(f"p{at}", mutating_policies.json_patch("[]"))
        made["spec"]["matchConstraints"] = {"resourceRules": [yaml.safe_load(one) for one in each]}
        texts.append(yaml.safe_dump_all([made, bound]))
    return list(changing_notes(loaded(*texts).mutating))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param([[rule("resource.k8s.io", "resourceclaims")]], [], id="sent"),
        pytest.param([[rule("", "pods"), rule("", "pods")]], [OF_CHANGED_PODS.format("'p0'")], id="pods"),
        pytest.param([[rule("", "pods")]] * 2, [OF_CHANGED_PODS.format("'p0', 'p1'")], id="pods-of-two"),
        pytest.param([[rule("", "secrets")]], [f"'p0' changes secrets, {NOT_SENT_FOR_CHANGES}"], id="kind"),
        pytest.param(
            [[rule("", "secrets"), rule("apps", "deployments")], [rule("apps", "deployments")]],
            [f"'p0', 'p1' change secrets, deployments of apps, {NOT_SENT_FOR_CHANGES}"],
            id="kinds-of-two",
        ),
        pytest.param(
            [[rule("", "secret, services")]],
            [
                "policy 'p0' never matches there: no resource is called 'secret'. Did you mean 'secrets'?",
                f"'p0' changes services, {NOT_SENT_FOR_CHANGES}",
            ],
            id="misspelt",
        ),
    ],
)
def test_a_policy_that_changes_objects_which_are_not_sent_is_reported(
    rules: list[list[str]], expected: list[str]
) -> None:
    assert changing(*rules) == expected
