"""Why a pod of the cluster does not run, and what to do: one case for each step."""

import copy
import dataclasses
from typing import Any

import jsonpatch
import pytest

from cluster.resources import NAMESPACES, NODE_POOLS
from commands.explain.explanation import Diagnosis, PodState, Quote
from commands.explain.reads import Installation, Live, live_manifest
from commands.explain.render import Style
from commands.objects.manifests import Manifest
from conversion.asks.conversion_context import ConversionOptions
from neuron import names
from runtime.api_server import Resource
from tests.commands.explain.rendered import as_text
from tests.support.emulated import PLUGIN, SICK, EmulatedCluster
from tests.support.explaining import (
    WELL,
    Object,
    converted_pod,
    event,
    explained,
    explained_pod,
    legacy_pod,
    live,
    template_manifest,
)

QUOTA = (
    'PodResourceClaim neuron: create ResourceClaim : resourceclaims "train-neuron-abc" is forbidden: exceeded quota: '
    "devices, requested: neuron.aws.com.deviceclass.resource.k8s.io/devices=4, used: "
    "neuron.aws.com.deviceclass.resource.k8s.io/devices=14, limited: "
    "neuron.aws.com.deviceclass.resource.k8s.io/devices=16"
)
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 cannot allocate all claims.",
}


def claimed(
    cluster: EmulatedCluster, devices: range | None = None, node: str = "a", **status: Any
) -> tuple[Object, Live]:
    """A converted pod whose claim exists; with devices, it is allocated and the pod bound to the node."""
    found, own = converted_pod()
    found["status"] |= {"resourceClaimStatuses": [{"name": "neuron", "resourceClaimName": "train-claim"}], **status}
    if devices is None:
        claim: Object = {
            "metadata": {"name": "train-claim", "namespace": "team-a", "uid": "c"},
            "spec": own.data["spec"]["spec"],
        }
        cluster.claims.append(claim)
    else:
        cluster.claim("train-claim", node, devices, pods=["train"])
        found["spec"]["nodeName"] = node
    return found, live(cluster, [own])


def diagnosed(found: Object, cluster: Live, *events: Object, mode: str = "convert") -> Diagnosis:
    answer = explained_pod(found, cluster, events, ConversionOptions(mode=mode)).diagnosis
    assert answer is not None
    return answer


def one_node(**options: Any) -> EmulatedCluster:
    cluster = EmulatedCluster()
    cluster.node("a", **options)
    return cluster


# --- admission and claims ---------------------------------------------------------------------------------------


def legacy(**status: Any) -> Object:
    found = legacy_pod(namespace="team-a")
    found["metadata"]["uid"] = "uid"
    return {**found, "status": {"phase": "Pending", **status}}


def test_a_pod_in_shadow_mode_is_explained_with_the_source_of_the_mode() -> None:
    namespace = {"metadata": {"name": "team-a", "annotations": {names.ANNOTATION_CONVERT: "shadow"}}}
    cluster = live(one_node(), [live_manifest(namespace, NAMESPACES, "Namespace")])
    found = diagnosed(
        legacy(conditions=[{**UNSCHEDULABLE, "message": "1 Insufficient aws.amazon.com/neuron."}]), cluster
    )
    assert (found.case, found.state) == ("not-converted", PodState.STUCK)
    assert found.text == (
        "It was not converted and requests aws.amazon.com/neuron: 4, which no node offers. Mode shadow (annotation "
        "neuron.aws.com/convert of Namespace team-a) only reports what conversion would do."
    )
    assert found.fix.startswith("`kubectl annotate namespace team-a neuron.aws.com/convert=convert --overwrite`")
    assert (
        str(found.evidence)
        == "condition PodScheduled Unschedulable of the pod: '1 Insufficient aws.amazon.com/neuron.'"
    )


@pytest.mark.parametrize(
    ("mode", "installation", "text", "fix"),
    [
        ("off", WELL, "Mode off (the default) switches conversion off.", "`kubectl annotate namespace team-a"),
        (
            "convert",
            Installation(called=False, why_not="the cluster has no MutatingWebhookConfiguration of neuron-dra"),
            "The cluster has no MutatingWebhookConfiguration of neuron-dra.",
            "Apply the webhook configuration as shipped (`neuron-dra status` checks it), then delete",
        ),
        (
            "convert",
            WELL,
            "Its mode is convert now: the pod is older than that, or the webhook was not called.",
            "Delete the pod, so that its controller makes it again, or apply it again.",
        ),
    ],
)
def test_a_pod_that_was_not_converted(mode: str, installation: Installation, text: str, fix: str) -> None:
    found = diagnosed(legacy(), live(one_node(), installation=installation), mode=mode)
    assert found.case == "not-converted"
    assert found.text.endswith(text)
    assert found.fix.startswith(fix)


def test_a_pod_that_conversion_would_deny_gets_the_error() -> None:
    found = diagnosed(legacy() | {"spec": legacy_pod({names.RESOURCE_NEURON: "7"})["spec"]}, live(one_node()))
    assert "Conversion would refuse it now: NEU105" in found.text
    assert "neuron-dra explain -f" in found.fix


def test_a_pod_in_an_excluded_namespace() -> None:
    explanation = explained_pod(
        legacy(), live(one_node()), (), ConversionOptions(excluded_namespaces=frozenset({"team-a"}))
    )
    assert explanation.diagnosis is not None
    assert explanation.diagnosis.text.endswith("Namespace team-a is excluded from conversion.")
    assert "--exclude-namespace" in explanation.diagnosis.fix


def test_a_legacy_pod_waits_where_a_device_plugin_offers_devices() -> None:
    cluster = one_node(driver=False, allocatable={names.RESOURCE_NEURON: "16"})
    cluster.legacy_pod("holder", "a", "16")
    found = diagnosed(legacy(), live(cluster), mode="shadow")
    assert (found.case, found.state) == ("waits-for-device-plugin", PodState.WAITS)
    assert (
        found.text
        == "It was not converted, and waits for aws.amazon.com/neuron: 4 of a device plugin, which is on 1 node."
    )


def test_a_legacy_pod_that_only_a_dynamic_pool_can_take_waits_for_the_autoscaler() -> None:
    key = "node.kubernetes.io/instance-type"
    pool = {
        "metadata": {"name": "neuron-dynamic"},
        "spec": {
            "template": {
                "spec": {"requirements": [{"key": key, "operator": "In", "values": ["trn1.32xlarge"]}]},
            }
        },
    }
    found = legacy(conditions=[UNSCHEDULABLE])
    found["spec"]["nodeSelector"] = {key: "trn1.32xlarge"}
    for mode in ("convert", "shadow"):
        cluster = live(one_node(), [live_manifest(pool, NODE_POOLS, "NodePool")])
        diagnosis = diagnosed(found, cluster, mode=mode)
        assert (diagnosis.case, diagnosis.state) == ("waits-for-autoscaler", PodState.WAITS)
        assert "nodes for the pod come from NodePool neuron-dynamic only" in diagnosis.text
        assert "recreate" not in diagnosis.fix
        assert "its Events say why" in diagnosis.fix


def test_limits_that_a_device_class_serves_wait_for_devices_and_not_for_conversion() -> None:
    cluster = one_node()
    cluster.claim("big", "a", range(14))
    cluster.classes[0]["spec"] = {"extendedResourceName": names.RESOURCE_NEURON}
    found = diagnosed(legacy(conditions=[UNSCHEDULABLE]), live(cluster), mode="convert-if-enriched")
    assert (found.case, found.text) == (
        "held",
        "None of 1 Neuron node can take it now. Closest: a: 2 of 16 devices free, the pod needs 4 (held by "
        "team-a/big (14)).",
    )


def test_a_missing_generated_template() -> None:
    found, _ = converted_pod()
    answer = diagnosed(
        found, live(one_node()), event("FailedResourceClaimCreation", "PodResourceClaim neuron: not found")
    )
    assert (answer.case, answer.state) == ("template-missing", PodState.STUCK)
    assert answer.text.startswith("ResourceClaimTemplate neuron-4-")
    assert answer.fix == "Recreate the pod: the webhook makes the template again."
    assert str(answer.evidence) == (
        "Event FailedResourceClaimCreation (of Event train.18a3f, reported as kubelet, last at 2026-11-22T09:00:00Z): "
        "'PodResourceClaim neuron: not found'"
    )


def test_a_missing_template_of_the_user() -> None:
    found = legacy() | {
        "spec": {"containers": [], "resourceClaims": [{"name": "x", "resourceClaimTemplateName": "own"}]}
    }
    answer = diagnosed(found, live(one_node()))
    assert (answer.case, answer.fix) == ("template-missing", "Create the template; the pod then goes on by itself.")


def test_a_missing_claim() -> None:
    found = legacy() | {"spec": {"containers": [], "resourceClaims": [{"name": "x", "resourceClaimName": "shared"}]}}
    answer = diagnosed(found, live(one_node()))
    assert (answer.case, answer.fix) == ("claim-missing", "Create ResourceClaim shared.")


def test_a_quota_that_refuses_the_claim() -> None:
    found, own = converted_pod()
    answer = diagnosed(found, live(one_node(), [own]), event("FailedResourceClaimCreation", QUOTA))
    assert (answer.case, answer.state) == ("quota", PodState.STUCK)
    assert answer.text == "Its claim neuron is not created: an Event reports that a quota or another check refuses it."
    assert "exceeded quota: devices" in str(answer.evidence)


def test_another_reason_why_the_claim_is_not_created() -> None:
    found, own = converted_pod()
    answer = diagnosed(found, live(one_node(), [own]), event("FailedResourceClaimCreation", "webhook says no"))
    assert (answer.case, answer.text) == ("claim-not-created", "Its claim neuron is not created, as an Event reports.")
    assert str(answer.evidence).endswith(": 'webhook says no'")


def test_a_claim_that_is_created_in_a_moment() -> None:
    found, own = converted_pod()
    answer = diagnosed(found, live(one_node(), [own]))
    assert (answer.case, answer.state) == ("claim-pending", PodState.WAITS)


@pytest.mark.parametrize("with_claim", [True, False])
def test_scheduling_gates_are_reported_first(with_claim: bool) -> None:
    cluster = one_node()
    found, around = claimed(cluster) if with_claim else (converted_pod()[0], live(cluster))
    found["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    answer = diagnosed(found, around)
    assert (answer.case, answer.text) == ("gated", "Its scheduling gates are not lifted: kueue.x-k8s.io/admission.")


@pytest.mark.parametrize(
    ("group", "owner", "told"),
    [
        pytest.param("kueue.x-k8s.io", "uid", True, id="its-workload"),
        pytest.param("kueue.x-k8s.io", "other", False, id="of-another-pod"),
        pytest.param("scheduling.k8s.io", "uid", False, id="of-another-api"),
    ],
)
def test_kueue_says_why_it_holds_a_pod_back(group: str, owner: str, told: bool) -> None:
    found, own = converted_pod()
    found["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    why = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "2 more needed"}
    made = {
        "metadata": {"name": "pod-train-1", "namespace": "team-a", "ownerReferences": [{"uid": owner}]},
        "status": {"conditions": [why]},
    }
    queued = live_manifest(made, Resource(group, "v1beta2", "workloads"), "Workload")
    answer = diagnosed(found, live(one_node(), [own, queued]))
    assert answer.case == "gated"
    quote = "condition QuotaReserved Pending of Workload pod-train-1: '2 more needed'"
    assert str(answer.evidence) == (quote if told else "None")
    assert ("`kubectl describe workloads.kueue.x-k8s.io pod-train-1`" in answer.fix) == told


def test_a_workload_of_a_pod_that_kueue_has_admitted_is_not_quoted() -> None:
    found, own = converted_pod()
    made = {"metadata": {"name": "w", "namespace": "team-a", "ownerReferences": [{"uid": "uid"}]}}
    queued = live_manifest(made, Resource("kueue.x-k8s.io", "v1beta2", "workloads"), "Workload")
    found["spec"]["schedulingGates"] = [{"name": "example.com/other"}]
    answer = diagnosed(found, live(one_node(), [own, queued]))
    assert (answer.case, answer.evidence) == ("gated", None)


# --- scheduling -------------------------------------------------------------------------------------------------


def test_a_pod_that_no_scheduler_has_seen_is_explained() -> None:
    found, around = claimed(one_node())
    found["spec"]["schedulerName"] = "volcano"
    answer = diagnosed(found, around)
    assert (answer.case, answer.text) == (
        "no-scheduler",
        "No scheduler has looked at it yet: its schedulerName is volcano.",
    )
    assert "It must know Dynamic Resource Allocation." in answer.fix


def test_a_pod_that_waits_for_connected_devices() -> None:
    cluster = one_node()
    for index in (0, 5, 10, 15):
        cluster.claim(f"pod-{index}", "a", [index])
    found, around = claimed(cluster, conditions=[UNSCHEDULABLE])
    answer = diagnosed(found, around)
    assert (answer.case, answer.state) == ("not-connected", PodState.WAITS)
    assert answer.text == (
        "None of 1 Neuron node can take it now. Closest: a: 12 devices are free, no 4 of them are connected (at most 1 "
        "of them connected; held by team-a/pod-0 (1), team-a/pod-5 (1), team-a/pod-10 (1) and 1 more)."
    )
    assert "neuron-dra map" in answer.fix
    assert (
        str(answer.evidence)
        == "condition PodScheduled Unschedulable of the pod: '0/1 nodes are available: 1 cannot allocate all claims.'"
    )


def test_a_pod_that_waits_although_a_run_is_free_that_its_claim_does_not_try() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.48xlarge")
    cluster.claim("other", "a", range(3, 10), cores=2)
    cluster.node("chain", "inf1.24xlarge", unschedulable=True)
    sent = legacy_pod({names.RESOURCE_NEURONCORE: "10"}, namespace="team-a")
    [before] = explained(sent, cluster=live(cluster))
    (made,) = before.preview.decision.templates
    found = jsonpatch.apply_patch(sent, list(before.preview.decision.patch))
    found["metadata"] |= {"uid": "uid"}
    claimed_as = {"name": "neuron", "resourceClaimName": "train-claim"}
    found["status"] = {"phase": "Pending", "resourceClaimStatuses": [claimed_as], "conditions": [UNSCHEDULABLE]}
    metadata = {"name": "train-claim", "namespace": "team-a", "uid": "c"}
    cluster.claims.append({"metadata": metadata, "spec": made.spec["spec"]})
    answer = diagnosed(found, live(cluster, [template_manifest(made.name, made.spec["spec"])]))
    assert (answer.case, answer.state) == ("not-tried", PodState.WAITS)
    assert answer.text == (
        "None of 2 Neuron nodes can take it now. Closest: a: free: devices 0-2, 10-11; not tried by the claim (a"
        " request has at most 8 alternatives (NEU219))."
    )
    assert "request fewer devices" in answer.fix


def test_the_closest_of_many_nodes_is_shown() -> None:
    cluster = EmulatedCluster()
    for name in ("a", "b", "c"):
        cluster.node(name)
        cluster.claim(f"holder-{name}", name, range(16))
    cluster.node("d", common_taints=[PLUGIN], allocatable={names.RESOURCE_NEURON: "16"})
    found, around = claimed(cluster, conditions=[UNSCHEDULABLE])
    answer = diagnosed(found, around)
    assert answer.case == "held"
    assert answer.text == (
        "None of 4 Neuron nodes can take it now. Closest: 3 nodes: 0 of 16 devices free, the pod needs 4."
    )


def test_devices_that_only_the_plugin_has() -> None:
    cluster = one_node(common_taints=[PLUGIN], allocatable={names.RESOURCE_NEURON: "16"})
    found, around = claimed(cluster, conditions=[UNSCHEDULABLE])
    answer = diagnosed(found, around)
    assert answer.case == "device-plugin"
    assert "device plugin's DaemonSet" in answer.fix


def test_a_cluster_without_neuron_nodes() -> None:
    cluster = EmulatedCluster()
    cluster.nodes.append({"metadata": {"name": "cpu", "labels": {}}})
    found, around = claimed(cluster, conditions=[UNSCHEDULABLE])
    assert diagnosed(found, around).case == "no-neuron-nodes"


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("0/1 nodes are available: 1 Insufficient cpu.", "Read the scheduler's message for what else it lacks"),
        ("0/1 nodes are available: 1 cannot allocate all claims.", "The scheduler tries again by itself"),
    ],
)
def test_a_pod_whose_devices_are_free_now(message: str, fix: str) -> None:
    found, around = claimed(one_node(), conditions=[{**UNSCHEDULABLE, "message": message}])
    answer = diagnosed(found, around)
    assert (answer.case, answer.text) == ("fits-now", "Its devices are free now on a.")
    assert answer.fix.startswith(fix)


def test_a_device_class_that_does_not_exist() -> None:
    cluster = one_node()
    cluster.classes.clear()
    found, around = claimed(cluster, conditions=[UNSCHEDULABLE])
    answer = diagnosed(found, around)
    assert (answer.case, answer.text) == (
        "class-missing",
        "Its claim requests DeviceClass neuron.aws.com, which does not exist.",
    )


def test_the_schedulers_message_is_shown_if_nodes_cannot_be_read() -> None:
    from commands.cluster.reader import Unseen

    found, around = claimed(one_node(), conditions=[UNSCHEDULABLE])
    blind = copy.copy(around)
    object.__setattr__(blind, "snapshot", dataclasses.replace(around.snapshot, nodes=Unseen("no.")))
    answer = diagnosed(found, blind)
    assert answer.case == "unschedulable"
    assert "cannot allocate all claims" in str(answer.evidence)


# --- on the node ------------------------------------------------------------------------------------------------

PREPARE = "Failed to prepare dynamic resources: prepare dynamic resources: "
RESULT = f"{PREPARE}NodePrepareResources failed for ResourceClaim train-claim: "


PREPARATIONS: dict[str, Any] = {
    f"{RESULT}ResourceClaim team-a/train-claim has a config that cannot be used. NEU407: no field "
    '(strict decoding error: unknown field "logicalNeuronCoreCount")': (
        "config-refused",
        "An Event reports that the driver refuses a config of its claim (NEU407: An opaque config has an unknown",
        "Correct opaque.parameters of the template, and recreate the pod",
    ),
    f"{RESULT}Device neuron-device-0 is shared with ResourceClaim team-b/x, which uses it with "
    "logicalNeuronCore 1; this claim uses 2.": (
        "lnc-conflict",
        "An Event reports that the driver refuses its logicalNeuronCore.",
        "Set the same logicalNeuronCore",
    ),
    f"{RESULT}ResourceClaim team-a/train-claim has adminAccess, which the driver refuses in namespace team-a. "
    "Request devices without adminAccess, or add the namespace": (
        "admin-access-refused",
        "An Event reports that the driver refuses adminAccess in its namespace.",
        "Only an administrator of the driver can allow it",
    ),
    f"{RESULT}Device neuron-device-0 is still prepared for ResourceClaim team-b/x as neuron-device-0.": (
        "device-held",
        "An Event reports that a device of its claim is not free on node a yet.",
        "`neuron-dra map a` shows which claims hold its devices.",
    ),
    f"{RESULT}Device neuron-device-0 is still prepared for ResourceClaim team-b/x as neuron-device-0. That "
    "ResourceClaim no longer exists: the kubelet reports that pod team-b/p uses it.": (
        "device-kept",
        "An Event reports that a pod whose claim was removed uses a device of its claim on node a.",
        "End that pod",
    ),
    f"{RESULT}The node does not have the device neuron-device-9: its Neuron devices are 0. It has vanished.": (
        "device-gone",
        "An Event reports that a device of its claim is gone from node a.",
        "Check the Neuron kernel driver on the node",
    ),
    f"{PREPARE}NodePrepareResources: rpc error: code = Unavailable desc = dial unix: connection refused": (
        "driver-not-running",
        "An Event reports that the driver on node a does not answer the kubelet.",
        "Check the kubelet plugin's pod on the node",
    ),
    f"{RESULT}the CDI folder is not writable": (
        "prepare-failed",
        "An Event reports that the driver on node a cannot prepare its claim.",
        "The log of the kubelet plugin's pod on the node has the reason.",
    ),
}


@pytest.mark.parametrize(
    ("message", "case", "text", "fix"), [(message, *row) for message, row in PREPARATIONS.items()], ids=PREPARATIONS
)
def test_a_preparation_that_failed(message: str, case: str, text: str, fix: str) -> None:
    found, around = claimed(one_node(), range(4))
    answer = diagnosed(found, around, event("FailedPrepareDynamicResources", message))
    assert answer.case == case
    assert answer.text.startswith(text)
    assert answer.fix.startswith(fix)
    assert str(answer.evidence).startswith("Event FailedPrepareDynamicResources (of Event train.18a3f, ")


@pytest.mark.parametrize(("driver", "case"), [(True, "driver-registering"), (False, "driver-not-running")])
def test_a_driver_that_is_not_registered(driver: bool, case: str) -> None:
    found, around = claimed(one_node(driver=driver), range(4))
    message = f"{PREPARE}DRA driver neuron.aws.com is not registered"
    answer = diagnosed(found, around, event("FailedPrepareDynamicResources", message))
    assert answer.case == case


def test_the_newest_event_counts() -> None:
    found, around = claimed(one_node(), range(4))
    old = event("FailedPrepareDynamicResources", f"{PREPARE}DRA driver neuron.aws.com is not registered")
    new = event("FailedPrepareDynamicResources", f"{RESULT}is still prepared for", seen="2026-11-22T09:01:00Z")
    assert diagnosed(found, around, new, old).case == "device-held"
    repeated = {**old, "series": {"count": 7, "lastObservedTime": "2026-11-22T09:02:00Z"}}
    answer = diagnosed(found, around, repeated, new)
    assert answer.case == "driver-registering"
    assert "7 times, last at 2026-11-22T09:02:00Z" in str(answer.evidence)


@pytest.mark.parametrize(
    ("old", "new"), [("9", "10"), ("", "1"), ("x", "1"), ("9" * 5000, "1")], ids=["number", "none", "text", "long"]
)
def test_the_event_written_last_counts_among_events_of_one_second(old: str, new: str) -> None:
    found, around = claimed(one_node(), range(4))
    first = event("FailedPrepareDynamicResources", f"{PREPARE}DRA driver neuron.aws.com is not registered")
    second = event("FailedPrepareDynamicResources", f"{RESULT}is still prepared for")
    first["metadata"] = {**first.get("metadata", {}), "resourceVersion": old}
    second["metadata"] = {**second.get("metadata", {}), "resourceVersion": new}
    for events in ((first, second), (second, first)):
        assert diagnosed(found, around, *events).case == "device-held"


def test_a_pod_on_a_deleted_node_is_explained() -> None:
    cluster = one_node()
    found, _ = claimed(cluster, range(4))
    found["spec"]["nodeName"] = "b"
    answer = diagnosed(found, live(cluster))
    assert (answer.case, answer.fix) == ("node-lost", "Delete the pod: kubectl -n team-a delete pod train --force.")


def test_a_node_that_is_not_ready() -> None:
    found, around = claimed(one_node(ready=False), range(4))
    answer = diagnosed(found, around)
    assert answer.case == "node-lost"
    assert answer.text == "Node a is not ready: its kubelet does not answer, so nothing starts or stops there."


def test_a_pod_with_node_name_and_a_claim_that_nothing_allocates() -> None:
    found, around = claimed(one_node())
    found["spec"]["nodeName"] = "a"
    answer = diagnosed(found, around)
    assert answer.case == "bypassed-scheduler"
    assert "its claim neuron is not allocated" in answer.text


def test_an_unhealthy_device_of_the_claim() -> None:
    cluster = one_node()
    found, around = claimed(cluster, range(4), containerStatuses=[{"name": "main", "state": {"running": {}}}])
    condition = {"type": "Healthy", "status": "False", "reason": "HbmEcc", "message": "mem_ecc_uncorrected is 3"}
    cluster.claims[-1]["status"]["devices"] = [{"device": "neuron-device-2", "conditions": [condition]}]
    answer = diagnosed(found, dataclasses.replace(around, snapshot=cluster.snapshot()))
    assert (answer.case, answer.text) == (
        "device-unhealthy",
        "It uses neuron-device-2 on a, which is unhealthy: HbmEcc.",
    )
    assert str(answer.evidence) == "status.devices of its claim: 'mem_ecc_uncorrected is 3'"


def test_a_tainted_device_of_the_claim() -> None:
    found, around = claimed(one_node(taints={3: SICK}), range(4))
    answer = diagnosed(found, around)
    assert (
        answer.text == "It uses neuron-device-3 on a, which has the taint neuron.aws.com/unhealthy=hbm-ecc:NoSchedule."
    )


@pytest.mark.parametrize("running", [True, False])
def test_a_node_that_an_agent_of_aws_reports(*, running: bool) -> None:
    cluster = one_node()
    fault = {"type": "NeuronHealth", "status": "True", "reason": "NeuronHasError_DMA_ERROR"}
    cluster.nodes[0]["status"]["conditions"].append(fault)
    state = {"running": {}} if running else {"waiting": {"reason": "CrashLoopBackOff"}}
    found, around = claimed(cluster, range(4), containerStatuses=[{"name": "main", "state": state}])
    answer = diagnosed(found, around)
    assert (answer.case, answer.text) == (
        "node-unhealthy",
        "It has Neuron devices of a, which an agent of AWS reports as faulty (NeuronHealth: NeuronHasError_DMA_ERROR).",
    )
    fault["status"] = "False"
    around = dataclasses.replace(around, snapshot=cluster.snapshot())
    assert diagnosed(found, around).case == ("runs" if running else "not-about-devices")


def test_a_pod_that_waits_for_its_image() -> None:
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    found, around = claimed(one_node(), range(4), containerStatuses=[waiting])
    answer = diagnosed(found, around)
    assert answer.text == "It has its devices; container main waits: ImagePullBackOff."
    assert str(answer.evidence) == "status of container main: 'no such image'"


def test_a_container_whose_cdi_spec_is_lost() -> None:
    message = (
        "failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
        "neuron.aws.com/claim=00000000-0000-4000-8000-000000000001_n_neuron-device-0"
    )
    waiting = {"name": "main", "state": {"waiting": {"reason": "CreateContainerError", "message": message}}}
    found, around = claimed(one_node(), range(4), containerStatuses=[waiting])
    answer = diagnosed(found, around)
    assert (answer.case, answer.text) == (
        "cdi-spec-missing",
        "Container main does not start: node a lacks the CDI spec of its claim.",
    )
    assert answer.fix.startswith("The driver writes a lost spec again within 10 s")
    assert answer.evidence == Quote("status of container main", message)
    other = message.replace("neuron.aws.com/", "gpu.example.com/")
    waiting["state"]["waiting"]["message"] = other  # type: ignore[index]
    found, around = claimed(one_node(), range(4), containerStatuses=[waiting])
    assert diagnosed(found, around).case == "not-about-devices"


def test_a_pod_that_waits_for_a_volume() -> None:
    found, around = claimed(one_node(), range(4))
    answer = diagnosed(found, around, event("FailedScheduling", "0/1"), event("FailedMount", "no such secret"))
    assert (answer.case, answer.text) == (
        "not-about-devices",
        "It has its devices on node a, and an Event reports FailedMount.",
    )


def test_a_pod_that_starts() -> None:
    found, around = claimed(one_node(), range(4))
    assert diagnosed(found, around).case == "starting"


def test_a_running_pod_gets_its_devices_listed() -> None:
    found, around = claimed(one_node(), range(2), containerStatuses=[{"name": "main", "state": {"running": {}}}])
    answer = diagnosed(found, around)
    assert (answer.case, answer.state, answer.text) == (
        "runs",
        PodState.WELL,
        "It runs on node a with neuron-device-0, neuron-device-1.",
    )


@pytest.mark.parametrize(
    ("changes", "case", "state"),
    [
        ({"phase": "Succeeded"}, "ended", PodState.WELL),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "ended", PodState.STUCK),
        (
            {
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "DeletionByDeviceTaintManager",
                        "message": "m",
                    }
                ]
            },
            "evicted",
            PodState.STUCK,
        ),
    ],
)
def test_a_pod_that_has_ended(changes: Object, case: str, state: PodState) -> None:
    found, around = claimed(one_node(), range(4), **changes)
    answer = diagnosed(found, around)
    assert (answer.case, answer.state) == (case, state)


def test_a_pod_that_is_being_deleted() -> None:
    found, around = claimed(one_node(), range(4))
    found["metadata"]["deletionTimestamp"] = "2026-11-22T09:00:00Z"
    assert diagnosed(found, around).case == "terminating"


# --- PodGroups --------------------------------------------------------------------------------------------------


def in_group(**policy: Any) -> tuple[Object, Manifest]:
    """A pod that shares a claim of its PodGroup, and the PodGroup."""
    found = legacy_pod({}, namespace="team-a", schedulingGroup={"podGroupName": "gang"})
    entry = {"name": "neuron", "resourceClaimTemplateName": "four"}
    found["spec"]["resourceClaims"] = [entry]
    found["metadata"]["uid"] = "uid"
    found["status"] = {"phase": "Pending", "resourceClaimStatuses": [{"name": "neuron", "resourceClaimName": "shared"}]}
    group = {"metadata": {"name": "gang", "namespace": "team-a"}, "spec": {"schedulingPolicy": policy}}
    group["spec"]["resourceClaims"] = [entry]
    resource = Resource("scheduling.k8s.io", "v1beta1", "podgroups")
    return found, live_manifest(group, resource, "PodGroup")


def grouped(*objects: Manifest, listed: bool = True) -> Live:
    cluster = one_node()
    spec = {"devices": {"requests": [{"name": "n0", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 4}}]}}
    cluster.claims.append({"metadata": {"name": "shared", "namespace": "team-a", "uid": "c"}, "spec": spec})
    kinds = [("ResourceClaimTemplate", "team-a"), *([("PodGroup", "team-a")] if listed else [])]
    return live(cluster, [template_manifest("four", spec), *objects], listed=kinds)


def test_a_pod_of_a_pod_group_that_does_not_exist_is_stuck() -> None:
    found, _ = in_group()
    answer = diagnosed(found, grouped())
    assert (answer.case, answer.state) == ("group-missing", PodState.STUCK)
    assert answer.text == "It belongs to PodGroup gang, which does not exist in namespace team-a."
    assert answer.fix == "Create PodGroup gang, or correct spec.schedulingGroup and recreate the pod."


def test_a_pod_group_that_is_not_known_is_not_missing() -> None:
    found, _ = in_group()
    assert diagnosed(found, grouped(listed=False)).case == "no-scheduler"


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (
            {"gang": {"minCount": 3}},
            "It belongs to PodGroup gang, whose pods are scheduled together, 3 or more at once.",
        ),
        ({"basic": {}}, "It belongs to PodGroup gang, and no scheduler has looked at it yet."),
    ],
    ids=["gang", "basic"],
)
def test_a_pod_waits_for_the_others_of_its_gang(policy: Any, text: str) -> None:
    found, group = in_group(**policy)
    told = {"type": "PodGroupScheduled", "status": "False", "reason": "Unschedulable", "message": "1 of 3 pods exist"}
    group.data["status"] = {"conditions": [told]}
    answer = diagnosed(found, grouped(group))
    assert (answer.case, answer.state, answer.text) == ("gang", PodState.WAITS, text)
    assert str(answer.evidence) == "condition PodGroupScheduled Unschedulable of PodGroup gang: '1 of 3 pods exist'"


def test_the_claim_of_a_group_is_shown_as_shared() -> None:
    found, group = in_group(basic={})
    explanation = explained_pod(found, grouped(group))
    assert [each.shared_by for each in explanation.preview.claims] == ["gang"]
    assert "neuron, template four, shared by the pods of PodGroup gang" in as_text([explanation], Style())


# --- AWS's UltraServer operator ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "case", "expected"),
    [
        ("Pending", "ultraserver", PodState.WAITS),
        ("", "ultraserver", PodState.WAITS),
        ("Failed", "ultraserver", PodState.STUCK),
        ("Allocated", "template-missing", PodState.STUCK),
    ],
)
def test_a_pod_waits_for_the_ultraservers_of_its_workload(state: str, case: str, expected: PodState) -> None:
    found, _ = in_group()
    del found["spec"]["schedulingGroup"], found["status"]["resourceClaimStatuses"]
    workload = {
        "metadata": {"name": "train", "namespace": "team-a"},
        "spec": {"resourceClaimTemplate": {"name": "four"}},
        "status": {"state": state} if state else {},
    }
    resource = Resource("neuron.aws.com", "v1beta1", "neuronultraserverworkloads")
    answer = diagnosed(found, live(one_node(), [live_manifest(workload, resource, "NeuronUltraServerWorkload")]))
    assert (answer.case, answer.state) == (case, expected)
    if case == "ultraserver":
        word = state or "new"
        assert answer.text == f"It waits for UltraServers of NeuronUltraServerWorkload train, which is {word}."
        assert answer.fix.startswith("`kubectl describe neuronultraserverworkload train`")
