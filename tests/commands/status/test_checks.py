"""Checks of an installation: no error for a good one, exactly one error for each defect."""

import dataclasses
import datetime as dt
from typing import Any

import pytest
from msgspec import structs

from commands.cluster.reader import Unseen
from commands.status.checks import judge
from commands.status.lines import CheckResult, StatusLine, overall
from commands.status.snapshot import RULES, StatusSnapshot
from neuron import names
from neuron.api.nodes import read_node
from policies.judging.followed_rules import followed
from tests.deploy.charts import find, render
from tests.policies.policy_files import loaded, policy
from tests.support.installation import (
    AUTHORITY,
    LEAF,
    NOW,
    STRANGER,
    configuration,
    deployment,
    driver_pod,
    encoded,
    endpoints,
    leaf,
    lease,
    mutating,
    named,
    node,
    pod_endpoints,
    resource_slice,
    said,
    secret,
    well,
)
from webhook.server.certificates import report

US = "trn2u.48xlarge"
MUTATING = "MutatingWebhookConfiguration"
VALIDATING = "ValidatingWebhookConfiguration"
PODS_CREATE = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]


def of_release(values: dict[str, Any], **changes: Any) -> StatusSnapshot:
    """The installation with the configurations and the ConfigMap that the chart renders with these values."""
    objects = render(values)
    made = {kind: [each for each in objects if each["kind"] == kind] for kind in (MUTATING, VALIDATING)}
    for entry in (entry for each in made.values() for item in each for entry in item["webhooks"]):
        entry["clientConfig"]["caBundle"] = encoded(AUTHORITY.certificate_pem)
    rendered = find(objects, "ConfigMap", "neuron-dra-rendered")
    parts = {"mutating": tuple(made[MUTATING]), "validating": tuple(made[VALIDATING]), "rendered": (rendered,)}
    return well(**(parts | changes))


def patched(snapshot: StatusSnapshot, entry_name: str, fields: dict[str, Any]) -> StatusSnapshot:
    """As after `kubectl patch` of one entry."""
    assert isinstance(snapshot.validating, tuple)
    [made] = snapshot.validating
    entries = [entry | fields if entry["name"] == entry_name else entry for entry in made["webhooks"]]
    return dataclasses.replace(snapshot, validating=({**made, "webhooks": entries},))


DENYING = "kind: ValidatingPolicy\nspec: {validationActions: [Deny]}\n"
PACK: dict[str, Any] = {"policies": {"files": {"p.yaml": DENYING}}}
IN_FORCE = (lease("pod-1", policies="ab"), lease("pod-2", policies="ab"))
WORKLOADS = "workloads.validate.neuron.aws.com"
PODS = "pods.validate.neuron.aws.com"
OPEN = "while the webhook does not answer, objects are admitted unchecked, also those that a policy denies."


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="default"),
        pytest.param(PACK, id="policies"),
        pytest.param({**PACK, "admission": {"workloads": {"failurePolicy": "Fail"}}}, id="workloads with Fail"),
        pytest.param(
            {"admission": {"claims": {"failurePolicy": "Ignore"}, "conversion": {"timeoutSeconds": 9}}}, id="choices"
        ),
        pytest.param({"admission": {"conversion": {"enabled": False}}}, id="no conversion"),
        pytest.param({"admission": {"workloads": {"enabled": False}}}, id="no workloads"),
        pytest.param({"validation": {"followPolicies": True}, **PACK}, id="rules that the webhook writes"),
    ],
)
def test_what_a_release_chooses_is_no_edit(values: dict[str, Any]) -> None:
    assert said(of_release(values, leases=IN_FORCE if "policies" in values else (lease("p"),))) == []


def test_a_part_that_the_release_does_not_have_is_not_missing() -> None:
    lines = [line.text for line in judge(of_release({"admission": {"conversion": {"enabled": False}}}), NOW)]
    assert "MutatingWebhookConfiguration neuron-dra is not part of the release: nothing is converted." in lines


@pytest.mark.parametrize(
    ("name", "fields", "verdict", "text"),
    [
        pytest.param(
            PODS,
            {"failurePolicy": "Ignore"},
            CheckResult.WRONG,
            f"{PODS}: failurePolicy is Ignore, in the release Fail: {OPEN}",
            id="policies that do not hold",
        ),
        pytest.param(
            WORKLOADS,
            {"failurePolicy": "Fail"},
            CheckResult.NOTE,
            f"{WORKLOADS}: failurePolicy is Fail, in the release Ignore: while the webhook does not answer, its "
            f"objects are "
            "refused.",
            id="workloads that depend on the webhook",
        ),
        pytest.param(
            WORKLOADS,
            {"name": "mine.neuron.aws.com"},
            CheckResult.WRONG,
            "ValidatingWebhookConfiguration neuron-dra has no entry workloads.validate.neuron.aws.com.",
            id="entry of workloads",
        ),
        pytest.param(
            WORKLOADS,
            {"name": "mine.neuron.aws.com"},
            CheckResult.NOTE,
            "ValidatingWebhookConfiguration neuron-dra has the entry mine.neuron.aws.com, which the release does not "
            "have.",
            id="entry of somebody else",
        ),
    ],
)
def test_an_edit_is_told_of_the_entry_that_has_it(name: str, fields: Any, verdict: CheckResult, text: str) -> None:
    assert text in [line.text for line in said(patched(of_release(PACK, leases=IN_FORCE), name, fields), verdict)]


def test_policies_that_only_audit_are_no_reason_for_a_note() -> None:
    assert said(of_release({"policies": {"packs": ["device-limit"]}}, leases=IN_FORCE)) == []


@pytest.mark.parametrize(
    ("rendered", "verdict", "text"),
    [
        pytest.param(
            (),
            CheckResult.UNKNOWN,
            "ConfigMap neuron-dra/neuron-dra-rendered does not exist: the webhook configurations cannot be compared "
            "with "
            "those of the release.",
            id="absent",
        ),
        pytest.param(Unseen("no right."), CheckResult.UNKNOWN, "no right.", id="forbidden"),
        pytest.param(
            ({"data": {}},),
            CheckResult.WRONG,
            "'ConfigMap neuron-dra-rendered has no key mutating.json'.",
            id="of another content",
        ),
    ],
)
def test_entries_are_not_judged_without_those_of_the_release(rendered: Any, verdict: CheckResult, text: str) -> None:
    snapshot = dataclasses.replace(mutating(failurePolicy="Ignore"), rendered=rendered)
    assert [(line.verdict, line.text) for line in said(snapshot)] == [(verdict, text)]


def test_the_shipped_manifests_pass_every_check() -> None:
    lines = judge(well(), NOW)
    assert said(well()) == []
    assert overall(lines) is CheckResult.WELL
    assert [line.text for line in lines] == [
        "Kubernetes v1.36.2-eks-1a2b3c4.",
        "resource.k8s.io/v1 is served.",
        "MutatingWebhookConfiguration neuron-dra: claims.mutate.neuron.aws.com, groups.mutate.neuron.aws.com,"
        " mutate.neuron.aws.com.",
        "ValidatingWebhookConfiguration neuron-dra: claims.validate.neuron.aws.com, pods.validate.neuron.aws.com.",
        "one, in namespace neuron-dra.",
        "valid until 2026-09-28 12:00 UTC.",
        "Deployment neuron-dra: 2 of 2 available.",
        "pod-1 is ready: version 0.1.0, mode convert.",
        "pod-2 is ready: version 0.1.0, mode convert.",
        "Service neuron-dra/neuron-dra: 2 ready endpoints.",
        "none.",
        "system:serviceaccount:neuron-dra:neuron-dra has all permissions that it needs.",
        "DeviceClass neuron.aws.com exists.",
        "32 devices on 2 nodes (2 trn1.32xlarge, driver 1.0.0).",
        "namespaces by annotation: 1 shadow; 1 namespace by default.",
        "1 generated template in 1 namespace.",
    ]


EVERY_RULE = [
    {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"], "scope": "*"},
]


def edited_condition(name: str, expression: str) -> StatusSnapshot:
    """The mutating configuration with another expression in one matchCondition, or with one more."""
    [entry, *_] = configuration(MUTATING)["webhooks"]
    conditions = {each["name"]: each["expression"] for each in entry["matchConditions"]} | {name: expression}
    return mutating(matchConditions=[{"name": key, "expression": each} for key, each in conditions.items()])


WRONG: dict[str, StatusSnapshot] = {
    "mutate.neuron.aws.com: failurePolicy is Ignore, in the release Fail: while the webhook does not answer, "
    "Neuron pods "
    "are admitted without conversion and stay Pending.": mutating(failurePolicy="Ignore"),
    "mutate.neuron.aws.com: its rules do not include CREATE of leaderworkersets, UPDATE of pods: the webhook does "
    "not "
    "receive them.": mutating(rules=PODS_CREATE),
    "mutate.neuron.aws.com: it has no rules: the API server sends nothing to it.": mutating(rules=[]),
    "mutate.neuron.aws.com: its rules include requests that those of the release do not include.": mutating(
        rules=[*EVERY_RULE]
    ),
    "mutate.neuron.aws.com: it has no matchCondition changed, neuron: the webhook receives objects that do not "
    "concern it, "
    "and they wait for it.": mutating(matchConditions=[]),
    "mutate.neuron.aws.com: the expression of matchCondition neuron is not that of the release.": edited_condition(
        "neuron", "false"
    ),
    "mutate.neuron.aws.com: it has the matchCondition mine ('1 > 2'), which the release does not have: the webhook "
    "does not "
    "receive objects that do not match.": edited_condition("mine", "1 > 2"),
    "mutate.neuron.aws.com: namespaceSelector is empty, in the release "
    '\'{"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": '
    '["kube-system", "kube-node-…\': it does not leave out any object, and all wait for the webhook.': mutating(
        namespaceSelector={}
    ),
    'mutate.neuron.aws.com: objectSelector is \'{"matchLabels": {"a": "b"}}\', in the release empty: what does not '
    "match is not sent.": mutating(objectSelector={"matchLabels": {"a": "b"}}),
    "the driver is not ready on nodes whose ResourceSlices remain: n1. New pods are still placed there, and stay "
    "in "
    "ContainerCreating.": well(driver_pods=(driver_pod("n1", ready=False), driver_pod("n2"))),
    "the driver's check 'CDI' on n1, n2: 'containerd 1.6 has none'.": well(
        node_checks={"n1": (("CDI", "wrong", "containerd 1.6 has none"),), "n2": (("CDI", "wrong", "x"),)}
    ),
    "another driver publishes as neuron.aws.com on n1, and so this project's driver, which is there, too, "
    "publishes nothing.": well(own_slices=frozenset({"n2"})),
    "the driver is not ready on nodes whose ResourceSlices remain: n1, n2. New pods are still placed there, and "
    "stay in "
    "ContainerCreating.": well(driver_pods=()),
    "Kubernetes v1.33.4 is older than 1.34.": well(version="v1.33.4"),
    "resource.k8s.io/v1 is not served (resource.k8s.io is served only as v1beta1).": well(versions=("v1beta1",)),
    "resource.k8s.io/v1 is not served (resource.k8s.io is served not at all).": well(versions=()),
    "MutatingWebhookConfiguration neuron-dra does not exist: nothing is converted.": well(mutating=()),
    "ValidatingWebhookConfiguration neuron-dra does not exist: nothing is validated.": well(validating=()),
    "MutatingWebhookConfiguration neuron-dra has no entry mutate.neuron.aws.com.": mutating(
        name="other.neuron.aws.com"
    ),
    "mutate.neuron.aws.com calls Service neuron-dra/neurondra; the webhook's is neuron-dra/neuron-dra.": mutating(
        service={"name": "neurondra"}
    ),
    "mutate.neuron.aws.com calls path '/', which is not served; it is '/mutate'.": mutating(service={"path": "/"}),
    "mutate.neuron.aws.com calls port 8443 of the Service, which has 443, 9090.": mutating(service={"port": 8443}),
    "mutate.neuron.aws.com has no caBundle: the API server does not trust the webhook, every call fails.": mutating(
        clientConfig={"caBundle": ""}
    ),
    "the caBundle of mutate.neuron.aws.com contains no PEM certificate: every call fails.": well(
        mutating=(configuration("MutatingWebhookConfiguration", b"x"),), validating=()
    ),
    "the caBundles of claims.mutate.neuron.aws.com, claims.validate.neuron.aws.com, groups.mutate.neuron.aws.com, "
    "mutate.neuron.aws.com, pods.validate.neuron.aws.com differ: "
    "some calls fail after the next change of the certificate.": well(
        mutating=(configuration("MutatingWebhookConfiguration", STRANGER.certificate_pem),)
    ),
    "no CA in the caBundles signed the certificate in Secret neuron-dra-tls: every call fails.": well(
        secret=(secret(leaf(authority=STRANGER)),), leases=()
    ),
    "the serving certificate expired on 2026-07-01 00:00 UTC: every call fails.": well(
        secret=(secret(leaf(days=0.5)),), leases=()
    ),
    "the certificate is not valid for neuron-dra.neuron-dra.svc, the name that the API server calls.": well(
        secret=(secret(leaf("neuron-dra.elsewhere.svc")),), leases=()
    ),
    "tls.crt in Secret neuron-dra/neuron-dra-tls is not a PEM certificate.": well(secret=(secret(b"x"),), leases=()),
    "Secret neuron-dra/neuron-dra-tls does not exist.": well(secret=(), leases=(lease("p", serving=""),)),
    "the serving certificate expired on 2026-06-30 00:00 UTC: every call fails.": well(
        secret=Unseen("no."), leases=(lease("p", not_after="2026-06-30T00:00:00Z"),)
    ),
    "there is no Deployment with labels app.kubernetes.io/name=neuron-dra,app.kubernetes.io/component=webhook in "
    "namespace neuron-dra.": well(deployments=()),
    "Deployment neuron-dra: 1 of 2 available.": well(deployments=(deployment(availableReplicas=1),)),
    "p is not ready: 'tls: expired'.": well(leases=(lease("p", ready=False, problems=("tls: expired",)),)),
    "p keeps its last valid policies: 'p.yaml:3: no.'": well(
        leases=(lease("p", policies="ab", policies_problem="p.yaml:3: no."),)
    ),
    "p keeps its last valid policies of 2026-06-01T12:00Z: 'p.yaml:3: no.'": well(
        leases=(lease("p", policies="ab", policies_problem="p.yaml:3: no.", policies_since="2026-06-01T12:00Z"),)
    ),
    "Service neuron-dra/neuron-dra does not exist: no call can arrive.": well(service=()),
    "Service neuron-dra/neuron-dra has no ready endpoint: every call fails.": well(endpoint_slices=(endpoints(False),)),
    "there is a second installation: Deployment second/neuron-dra.": well(
        deployments=(deployment(), deployment("second"))
    ),
    "there is a second installation: MutatingWebhookConfiguration old.": well(
        mutating=(
            configuration("MutatingWebhookConfiguration"),
            named("old") | {"webhooks": [{"name": "m.neuron.aws.com"}]},
        )
    ),
    "none in namespace neuron-dra, but Deployment elsewhere/neuron-dra.": well(
        deployments=(deployment("elsewhere"),), daemon_sets=()
    ),
    "DeviceClass neuron.aws.com does not exist: converted pods stay Pending.": well(device_classes=(named("gpu"),)),
    "the same devices are offered by device plugin and DRA driver, on n1.": well(
        nodes=(node("n1", neuron="16"), node("n2", neuron="0"))
    ),
    "the kubelet can lose pods that use ResourceClaims (kubernetes/kubernetes#133920), on n1"
    " (v1.34.1-eks-113cf36).": well(
        nodes=(node("n1", kubelet="v1.34.1-eks-113cf36"), node("n2"), node("cpu", "m7i.large", "v1.34.0"))
    ),
}
WRONG_TOO: list[tuple[str, StatusSnapshot]] = [
    (
        "the same devices are offered by device plugin and DRA driver, on n1.",
        well(
            nodes=(node("n1", neuron="16"), node("n2")),
            resource_slices=(resource_slice("n1", taint="neuron.aws.com/unhealthy"), resource_slice("n2")),
        ),
    )
]
"""The same words for another reason."""


@pytest.mark.parametrize(("text", "snapshot"), [*WRONG.items(), *WRONG_TOO], ids=[*WRONG, *dict(WRONG_TOO)])
def test_each_fault_is_reported_once(snapshot: StatusSnapshot, text: str) -> None:
    wrong = [line.text for line in said(snapshot, CheckResult.WRONG)]
    assert wrong.count(text) == 1, wrong
    assert overall(said(snapshot)) is CheckResult.WRONG


NOTED: dict[str, StatusSnapshot] = {
    "mutate.neuron.aws.com: timeoutSeconds is 2, too short for the creation of a template (at least 3).": mutating(
        timeoutSeconds=2
    ),
    "mutate.neuron.aws.com: timeoutSeconds is 4, in the release 5.": mutating(timeoutSeconds=4),
    "mutate.neuron.aws.com: reinvocationPolicy is Never, in the release IfNeeded.": mutating(
        reinvocationPolicy="Never"
    ),
    "mutate.neuron.aws.com: sideEffects is Some, in the release NoneOnDryRun.": mutating(sideEffects="Some"),
    "nodes that are not ready or do not exist, and whose ResourceSlices remain: n1.": well(
        nodes=(node("n1", ready=False), node("n2")), driver_pods=(driver_pod("n1"), driver_pod("n2"))
    ),
    "ResourceSlices that another driver publishes as neuron.aws.com, of n1: it is not known whether it runs.": well(
        own_slices=frozenset({"n2"}), driver_pods=(driver_pod("n2"),)
    ),
    "the serving certificate expires soon, on 2026-07-04 12:00 UTC.": well(secret=(secret(leaf(days=4)),), leases=()),
    "replicas p use another CA bundle than the configurations, as during a rotation.": well(
        leases=(lease("p", bundle="ff"),)
    ),
    "replicas p serve another certificate than Secret neuron-dra-tls, as during a rotation.": well(
        leases=(lease("p", serving="ff"),)
    ),
    "replicas differ in their modes: convert: p; off: q. Normal during a rollout.": well(
        leases=(lease("p"), lease("q", mode="off"))
    ),
    "1 replica stopped reporting, the last on 2026-07-01 11:59 UTC: q.": well(leases=(lease("p"), lease("q", age=60))),
    "p reports: 'cannot watch pods'.": well(leases=(lease("p", problems=("cannot watch pods",)),)),
    "no replica reports on itself by a Lease.": well(leases=()),
    "Deployment neuron-dra: 2 of 2 available, a rollout is under way.": well(
        deployments=(deployment(updatedReplicas=1),)
    ),
    "no node publishes Neuron devices: converted pods stay Pending until one does.": well(resource_slices=()),
    "the DRA driver gives no device to new claims, because a device plugin offers them, on n1.": well(
        nodes=(node("n1", neuron="16"), node("n2")),
        resource_slices=(resource_slice("n1", taint="neuron.aws.com/device-plugin"), resource_slice("n2")),
    ),
    "devices of claims that no longer exist, which new claims do not get: n1 (neuron-device-0).": well(
        resource_slices=(
            resource_slice("n1", 1, instance_type="trn1.2xlarge", taint="neuron.aws.com/held"),
            resource_slice("n2"),
        )
    ),
    "nodes that publish fewer devices than their type has: n1 (15 of 16).": well(
        resource_slices=(resource_slice("n1", 15), resource_slice("n2"))
    ),
    "UltraServer nodes that publish only single devices, where no pod gets a whole node: n2.": well(
        resource_slices=(resource_slice("n1"), resource_slice("n2", instance_type=US, whole_node=False))
    ),
    "UltraServer nodes that publish only the whole node, where no pod gets single devices: n2.": well(
        resource_slices=(resource_slice("n1"), resource_slice("n2", 0, instance_type=US))
    ),
    "nodes with the device plugin only, where converted pods cannot run: n3.": well(
        nodes=(node("n1"), node("n2"), node("n3", neuroncore="32"))
    ),
    "Neuron nodes with neither driver nor device plugin: n9.": well(nodes=(node("n1"), node("n9", "ml.trn2.48xlarge"))),
    "the kubelet can lose pods that use ResourceClaims (kubernetes/kubernetes#133920), on n9 (v1.34.0).": well(
        nodes=(node("n1"), node("n2"), node("n9", kubelet="v1.34.0", neuron="16"))
    ),
    "namespaces with an invalid annotation neuron.aws.com/convert: a ('convrt').": well(
        namespaces=(named("a", **{"neuron.aws.com/convert": "convrt"}),)
    ),
    "namespaces with keys that look like a setting and are not read: a (label 'neuron.aws.com/convert'), b"
    " (annotation 'neuron.amazonaws.com/convert').": well(
        namespaces=(
            {"metadata": {"name": "a", "labels": {"neuron.aws.com/convert": "off"}}},
            named("b", **{"neuron.amazonaws.com/convert": "off"}),
            {"metadata": {"name": "c", "labels": {"team": "x"}, "annotations": None}},
        )
    ),
}
NOTED_TOO: list[tuple[str, StatusSnapshot]] = [
    ("nodes that are not ready or do not exist, and whose ResourceSlices remain: n1.", well(nodes=(node("n2"),))),
    (
        "the DRA driver gives no device to new claims, because a device plugin offers them, on n1.",
        well(
            nodes=(node("n1", neuron="16"), node("n2")),
            resource_slices=(resource_slice("n1", 0, whole_node=False), resource_slice("n2")),
        ),
    ),
]
"""The same words for another reason."""


@pytest.mark.parametrize(("text", "snapshot"), [*NOTED.items(), *NOTED_TOO], ids=[*NOTED, *dict(NOTED_TOO)])
def test_notes_are_no_faults(snapshot: StatusSnapshot, text: str) -> None:
    lines = said(snapshot)
    assert [line.text for line in lines].count(text) == 1, lines
    assert overall(lines) is CheckResult.WELL


def test_the_published_device_kind_of_ultraserver_nodes_is_reported() -> None:
    slices = (resource_slice("n1", instance_type=US), resource_slice("n2", 0, instance_type=US))
    texts = [line.text for line in said(well(resource_slices=slices), CheckResult.WELL)]
    assert "UltraServer nodes that publish their devices and the whole node: n1." in texts
    assert "16 devices on 2 nodes (2 trn2u.48xlarge, driver 1.0.0)." in texts
    assert not any("neither driver nor device plugin" in line.text for line in said(well(resource_slices=slices)))


@pytest.mark.parametrize(
    ("kind", "status", "reason", "faulty"),
    [
        ("NeuronHealth", "True", "NeuronHasError_HBM_UNCORRECTABLE_ERROR", True),
        ("NeuronHealth", "False", "NeuronHasNoError", False),
        ("AcceleratedHardwareReady", "False", "NeuronSRAMUncorrectableError", True),
        ("AcceleratedHardwareReady", "True", "NeuronAcceleratedHardwareIsReady", False),
        ("AcceleratedHardwareReady", "False", "NvidiaXID79Error", False),
    ],
)
def test_node_conditions_of_aws_agents_are_reported(kind: str, status: str, reason: str, *, faulty: bool) -> None:
    condition = {"type": kind, "status": status, "reason": reason}
    nodes = (read_node({"metadata": {"name": "n1"}, "status": {"conditions": [condition]}}),)
    notes = [line for line in said(well(nodes=nodes)) if "an agent of AWS" in line.text]
    assert [line.text for line in notes] == [
        f"nodes whose Neuron devices an agent of AWS reports as faulty: n1 ({kind}: {reason})."
    ] * faulty
    assert all("neuron-dra drain NODE" in line.fix for line in notes)


def test_cordoned_devices_are_reported() -> None:
    annotations = (
        {},
        {names.ANNOTATION_CORDONED: "*"},
        {names.ANNOTATION_CORDONED: "neuron-device-3, neuron-device-1"},
    )
    nodes = tuple(structs.replace(node(f"n{at}"), annotations=own) for at, own in enumerate(annotations))
    [line] = [line for line in said(well(nodes=nodes)) if "cordoned" in line.text]
    assert line.text == (
        "cordoned devices, which new claims do not get: n1 (all devices), n2 (neuron-device-1, neuron-device-3)."
    )
    assert (line.verdict, "neuron-dra uncordon" in line.fix) == (CheckResult.NOTE, True)


def test_only_the_newest_generation_of_a_pool_is_counted() -> None:
    slices = (resource_slice("n1", 16, 1), resource_slice("n1", 4, 2))
    texts = [line.text for line in said(well(resource_slices=slices), CheckResult.WELL)]
    assert "4 devices on 1 node (1 trn1.32xlarge, driver 1.0.0)." in texts


def test_a_pool_that_lacks_slices_is_noted_and_an_older_generation_does_not_fill_it() -> None:
    slices = tuple(resource_slice("n1", 4, generation) for generation in (1, 2))
    slices = tuple(structs.replace(each, parts=2) for each in slices)
    whole = structs.replace(resource_slice("n2"), parts=1)
    texts = [line.text for line in said(well(resource_slices=(*slices, whole)), CheckResult.NOTE)]
    assert texts == ["incomplete pools, from which the scheduler does not allocate: n1 (1 of 2)."]


# --- permissions of the webhook ----------------------------------------------------------------------------------


def lacking(*wanted: tuple[str, str]) -> StatusSnapshot:
    rights = {(r, resource, verb): (resource, verb) not in wanted for r, resource, verb in well().rights}  # type: ignore[union-attr,str-unpack]
    return well(rights=rights)


def test_a_missing_permission_names_the_rule_to_add() -> None:
    lines = said(lacking(("resourceclaimtemplates", "create"), ("resourceclaimtemplates", "get")))
    assert lines == [
        StatusLine(
            "permissions",
            CheckResult.WRONG,
            "system:serviceaccount:neuron-dra:neuron-dra may not get, create resourceclaimtemplates: creating the "
            "templates of converted pods does not work.",
            "Add this rule to its ClusterRole: "
            "- {apiGroups: [resource.k8s.io], resources: [resourceclaimtemplates], verbs: [get, create]}",
        )
    ]


def test_a_permission_that_only_helps_is_a_note() -> None:
    (line,) = said(lacking(("events", "create")))
    assert line.verdict is CheckResult.NOTE
    assert line.fix.endswith("- {apiGroups: [events.k8s.io], resources: [events], verbs: [create]}")


def test_every_rule_has_a_purpose() -> None:
    assert all(rule.purpose for rule in RULES)


# --- what may not be read -----------------------------------------------------------------------------------------

FIELDS = [
    field.name
    for field in dataclasses.fields(StatusSnapshot)
    if field.name
    not in ("address", "namespace", "account", "secret", "own_slices", "node_checks", "probed", "probed_in")
]


@pytest.mark.parametrize("field", FIELDS)
def test_an_unreadable_object_is_unknown_with_the_missing_rule(field: str) -> None:
    unseen = Unseen(f"you are not allowed to list {field}.", "- {…}")
    lines = said(well(**{field: unseen}), CheckResult.UNKNOWN)
    assert [line.text for line in lines] == [unseen.why]
    if field not in ("version", "versions"):
        assert lines[0].fix == "Add this rule to your Role or ClusterRole: - {…}"
    assert overall(lines) is CheckResult.UNKNOWN


def test_an_unreadable_secret_is_no_fault_if_replicas_report() -> None:
    assert said(well(secret=Unseen("no."))) == []


def test_an_unreadable_secret_is_unknown_if_no_replica_reports() -> None:
    lines = said(well(secret=Unseen("you are not allowed to get secrets.", "- {…}"), leases=()), CheckResult.UNKNOWN)
    assert [line.text for line in lines] == [
        "you are not allowed to get secrets. No replica reports its certificate either."
    ]


def test_judging_works_if_no_object_can_be_read() -> None:
    nothing = well(**dict.fromkeys(FIELDS, Unseen("no.")), secret=Unseen("no."))
    assert overall(judge(nothing, NOW)) is CheckResult.UNKNOWN
    assert LEAF


@pytest.mark.parametrize(
    ("version", "issues"),
    [("v1.34.9", ["139034", "every order"]), ("v1.36.1-eks-1", ["138882", "139034"]), ("v1.36.2", []), ("v1.37.0", [])],
)
def test_features_withheld_because_of_the_control_plane_are_noted(version: str, issues: list[str]) -> None:
    lines = said(well(version=version))
    assert {line.verdict for line in lines} <= {CheckResult.NOTE}
    assert len(lines) == len(issues)
    for line, issue in zip(lines, issues, strict=True):
        assert issue in line.text
        assert version in line.text
        assert "Upgrade the control plane to 1.36." in line.fix


def test_a_kubelet_fault_that_does_not_affect_converted_pods_is_not_reported() -> None:
    assert said(well(nodes=(node("n1", kubelet="v1.35.0"), node("n2", kubelet="v1.36.2")))) == []


def test_requests_that_are_not_followed_for_a_policy_have_a_row() -> None:
    secrets = policy("validations: [{expression: 'true'}]").replace("[pods]", "[secrets]")
    _, left_out = followed(loaded(secrets).validating)
    assert left_out.startswith("policy 'limits' matches CREATE of secrets: no rule is made for that")
    own = report("0.1.0", "convert", {"policy rules": lambda: (True, left_out)}, None)
    assert own.ready
    (line,) = said(well(leases=(lease("p", problems=own.problems),)))
    assert line.text == f"p reports: {left_out!r}."
    assert line.verdict is CheckResult.NOTE


def test_a_version_that_is_none_is_unknown() -> None:
    [line] = said(well(version="main"), CheckResult.UNKNOWN)
    assert line.text == "the version 'main' cannot be parsed."


def test_every_expired_ca_is_wrong_together() -> None:
    lines = judge(well(), NOW + dt.timedelta(days=36500))
    assert any(line.text.startswith("every CA in the caBundles has expired, the last on ") for line in lines)


def test_an_entry_that_calls_a_url_is_a_note() -> None:
    url = {"clientConfig": {"url": "https://elsewhere", "caBundle": "eA=="}}
    lines = said(patched(of_release(PACK, leases=IN_FORCE), PODS, url), CheckResult.NOTE)
    assert f"{PODS} calls https://elsewhere, not a Service." in [line.text for line in lines]


# --- pods that are gone, and installations outside of pods ------------------------------------------------------------


KILLED = "pod-2 reported to be ready at 11:59:55 UTC, and its pod is no ready endpoint of the Service"


@pytest.mark.parametrize(
    ("slices", "told"),
    [
        pytest.param((pod_endpoints(True, True),), False, id="ready"),
        pytest.param((pod_endpoints(True),), True, id="deleted"),
        pytest.param((pod_endpoints(True, False),), True, id="killed"),
        pytest.param((pod_endpoints(True), {"endpoints": [{"conditions": {"ready": True}}]}), False, id="not pods"),
        pytest.param((pod_endpoints(True), {"endpoints": None}), True, id="an empty slice"),
        pytest.param(Unseen("no"), False, id="not seen"),
    ],
)
def test_a_replica_is_ready_only_as_an_endpoint_of_the_service(slices: Any, told: bool) -> None:
    lines = [line.text for line in judge(well(endpoint_slices=slices), NOW) if line.check == "replicas"]
    assert any(text.startswith(KILLED) for text in lines) is told
    assert any(text.startswith("pod-2 is ready") for text in lines) is not told


def by_url(snapshot: StatusSnapshot) -> StatusSnapshot:
    """As `make sandbox` has it: processes beside the control plane."""
    assert isinstance(snapshot.mutating, tuple)
    assert isinstance(snapshot.validating, tuple)
    for item in (*snapshot.mutating, *snapshot.validating):
        for entry in item["webhooks"]:
            bundle = entry["clientConfig"]["caBundle"]
            entry["clientConfig"] = {"url": "https://127.0.0.1:9443", "caBundle": bundle}
    return snapshot


def test_a_webhook_and_a_driver_outside_of_pods_are_not_wrong() -> None:
    none: dict[str, Any] = dict.fromkeys(("deployments", "service", "endpoint_slices", "driver_pods", "secret"), ())
    found = judge(by_url(well(**none)), NOW)
    assert [line for line in found if line.verdict is CheckResult.WRONG] == []
    notes = [line.text for line in found if line.verdict is CheckResult.NOTE]
    assert "the webhook runs outside the cluster: its configurations call a URL." in notes
    assert "the driver runs outside of pods, as the webhook does: whether it is ready is not known." in notes


def test_a_deleted_driver_is_wrong_where_the_webhook_is_a_pod() -> None:
    found = judge(well(driver_pods=()), NOW)
    assert any(line.verdict is CheckResult.WRONG and "the driver is not ready" in line.text for line in found)


def test_the_fix_of_a_configuration_names_the_namespace() -> None:
    fixes = [line.fix for line in judge(well(mutating=(), namespace="other"), NOW) if line.check == "webhooks"]
    assert any("helm upgrade neuron-dra <chart> --namespace other --reset-then-reuse-values" in fix for fix in fixes)
    assert not any("<namespace>" in fix for fix in fixes)
