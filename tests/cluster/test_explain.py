"""`neuron-dra explain` on a real control plane: what it reads, and the words of Kubernetes that it understands."""

from pathlib import Path

import pytest

from tests.cluster.allocating import claim, claiming_pod, refusal
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.explaining import Explain
from tests.cluster.manifests import CONVERT, container, pod
from tests.cluster.nodes import INSTANCE_TYPE, Fleet
from tests.cluster.processes import eventually

CLASS = "neuron.aws.com"
QUOTA = f"{CLASS}.deviceclass.resource.k8s.io/devices"


def spec(count: int, group: int = 0) -> Object:
    """Devices of the driver's class; with a group, connected ones."""
    devices: Object = {"requests": [{"name": "n0", "exactly": {"deviceClassName": CLASS, "count": count}}]}
    if group:
        devices["constraints"] = [{"matchAttribute": f"resource.aws.com/devicegroup{group}_id"}]
    return {"devices": devices}


@pytest.fixture
def explain(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Explain:
    return Explain(control_plane, namespace, tmp_path)


def bound(api: Api, namespace: str, name: str) -> None:
    def placed() -> bool:
        return bool(api.get("Pod", name, namespace)["spec"].get("nodeName"))

    eventually(f"{name} to be bound", placed, timeout=60)


def wait_for_refusal(api: Api, namespace: str, name: str) -> None:
    def told() -> bool:
        return bool(refusal(api.get("Pod", name, namespace)))

    eventually(f"{name} to be refused", told, timeout=60)


def happened(api: Api, namespace: str, reason: str) -> None:
    def told() -> bool:
        return any(each["reason"] == reason for each in api.list("Event", namespace))

    eventually(f"an Event {reason}", told, timeout=60)


def hold(api: Api, namespace: str, name: str, count: int) -> None:
    api.create(claim(name, spec(count)), namespace)
    api.create(claiming_pod(name), namespace)
    bound(api, namespace, name)


def test_a_manifest_is_placed_as_the_scheduler_places_it(
    api: Api, namespace: str, fleet: Fleet, explain: Explain
) -> None:
    node = fleet.add("trn2.48xlarge")
    fleet.add("trn1.32xlarge", taints=[{"key": "closed", "effect": "NoSchedule"}])
    hold(api, namespace, "holder", 5)
    found = explain.file(pod("train", container(neuron=4), nodeSelector={INSTANCE_TYPE: "trn2.48xlarge"}))
    [fitting] = [each for each in found["nodes"] if each["fits"]]
    assert fitting["node"] == node
    template = {"apiVersion": "resource.k8s.io/v1", **found["templates"][0]}
    api.create(claim("train", template["spec"]["spec"]), namespace)
    api.create(claiming_pod("train"), namespace)
    bound(api, namespace, "train")
    results = api.get("ResourceClaim", "train", namespace)["status"]["allocation"]["devices"]["results"]
    assert [each["device"] for each in results] == [each["device"] for each in fitting["devices"]]


def test_a_pod_that_waits_for_connected_devices_is_explained(
    api: Api, namespace: str, fleet: Fleet, explain: Explain
) -> None:
    fleet.add("trn2.48xlarge")
    for place in range(13):
        hold(api, namespace, f"one-{place}", 1)
    for place in (0, 4, 8):
        api.delete("Pod", f"one-{place}", namespace, force=True)
        api.delete("ResourceClaim", f"one-{place}", namespace)
    api.create(claim("four", spec(4, group=4)), namespace)
    api.create(claiming_pod("four"), namespace)
    wait_for_refusal(api, namespace, "four")
    diagnosis = explain.pod("four")["diagnosis"]
    assert diagnosis["case"] == "not-connected"
    assert "devices are free, no 4 of them are connected" in diagnosis["text"]
    assert "condition PodScheduled Unschedulable of the pod: '0/1 nodes are available" in diagnosis["evidence"]


def test_a_free_run_that_the_claim_does_not_try_is_explained(
    api: Api, namespace: str, fleet: Fleet, explain: Explain
) -> None:
    """Ten cores are five devices of the ring: 10 to 2 are free; a pod for chains, too, does not try them."""
    fleet.add("inf2.48xlarge")
    fleet.add("inf1.24xlarge", taints=[{"key": "closed", "effect": "NoSchedule"}])
    held = spec(7)
    selector = f'device.attributes["{CLASS}"].deviceId in [3, 4, 5, 6, 7, 8, 9]'
    held["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": selector}}]
    api.create(claim("holder", held), namespace)
    api.create(claiming_pod("holder"), namespace)
    bound(api, namespace, "holder")
    found = explain.file(pod("five", container(neuroncore=10)))
    assert "NEU219" in str(found)
    api.create(claim("five", found["templates"][0]["spec"]["spec"]), namespace)
    api.create(claiming_pod("five"), namespace)
    wait_for_refusal(api, namespace, "five")
    diagnosis = explain.pod("five")["diagnosis"]
    assert diagnosis["case"] == "not-tried"
    assert "free: devices 0-2, 10-11; not tried by the claim" in diagnosis["text"]


def test_a_missing_template_and_a_quota_are_explained_with_the_controllers_message(
    api: Api, namespace: str, fleet: Fleet, explain: Explain
) -> None:
    fleet.add("trn2.48xlarge")
    uses = container(resources={"claims": [{"name": "mine"}]})
    entry = {"name": "mine", "resourceClaimTemplateName": "own"}
    api.create(pod("waits", uses, resourceClaims=[entry]), namespace)
    happened(api, namespace, "FailedResourceClaimCreation")
    diagnosis = explain.pod("waits")["diagnosis"]
    assert diagnosis["case"] == "template-missing"
    assert "Event FailedResourceClaimCreation" in diagnosis["evidence"]
    quota = {
        "kind": "ResourceQuota",
        "apiVersion": "v1",
        "metadata": {"name": "devices"},
        "spec": {"hard": {QUOTA: "2"}},
    }
    api.create(quota, namespace)

    def counted() -> bool:
        return bool(api.get("ResourceQuota", "devices", namespace).get("status", {}).get("hard"))

    eventually("the quota to be counted", counted, timeout=60)
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "own"},
        "spec": {"spec": spec(4)},
    }
    api.create(template, namespace)

    def told() -> bool:
        events = api.list("Event", namespace)
        return any("exceeded quota" in each["message"] for each in events)

    eventually("the quota to refuse the claim", told, timeout=90)
    diagnosis = explain.pod("waits")["diagnosis"]
    assert (diagnosis["case"], diagnosis["state"]) == ("quota", "stuck")
    assert diagnosis["text"].startswith("Its claim mine is not created: an Event reports that a quota")
    assert "exceeded quota: devices, requested: " in diagnosis["evidence"]


def test_a_pod_that_was_not_converted_is_explained(api: Api, namespace: str, fleet: Fleet, explain: Explain) -> None:
    fleet.add("trn2.48xlarge")
    # With or without a webhook in the session's control plane.
    api.create(pod("legacy", container(neuron=4), annotations={CONVERT: "off"}), namespace)
    wait_for_refusal(api, namespace, "legacy")
    found = explain.pod("legacy")
    assert found["diagnosis"]["case"] == "not-converted"
    assert "Insufficient aws.amazon.com/neuron" in found["diagnosis"]["evidence"]
    assert {each["block"] for each in found["nodes"]} == {"no-device-plugin"}
