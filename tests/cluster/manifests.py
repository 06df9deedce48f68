"""Manifests as users write them, and what to read off the objects that come of them."""

import copy
from collections.abc import Mapping
from typing import Any, Final

from tests.cluster.api import Api, Object
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import eventually

NEURON: Final = "aws.amazon.com/neuron"
NEURONDEVICE: Final = "aws.amazon.com/neurondevice"
NEURONCORE: Final = "aws.amazon.com/neuroncore"
LEGACY: Final = (NEURON, NEURONDEVICE, NEURONCORE)

CONVERTED: Final = "neuron.aws.com/converted"
CONVERTED_FROM: Final = "neuron.aws.com/converted-from"
CONVERT: Final = "neuron.aws.com/convert"
LNC: Final = "neuron.aws.com/logical-neuron-core"
ULTRASERVER_MODE: Final = "neuron.aws.com/ultraserver-mode"
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "neuron-dra"}


def container(name: str = "main", image: str = "app:1", **limits: Any) -> Object:
    """A container. `neuron`, `neurondevice` and `neuroncore` are legacy limits; other keywords are fields."""
    legacy = {"neuron": NEURON, "neurondevice": NEURONDEVICE, "neuroncore": NEURONCORE}
    wanted = {legacy[key]: str(limits.pop(key)) for key in list(limits) if key in legacy}
    made: Object = {"name": name, "image": image, **limits}
    if wanted:
        made["resources"] = {"limits": wanted}
    return made


def pod(
    name: str = "legacy",
    *containers: Object,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A Pod; without containers, one that asks for 4 devices."""
    metadata: Object = {"name": name}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    body = {"containers": list(containers) or [container(neuron=4)], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def template_of(pod_manifest: Object, labels: Mapping[str, str]) -> Object:
    """The pod template of a workload whose pods look like `pod_manifest`."""
    metadata = {key: value for key, value in pod_manifest["metadata"].items() if key != "name"}
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
    return {"metadata": metadata, "spec": copy.deepcopy(pod_manifest["spec"])}


def workload(kind: str, name: str, pod_manifest: Object, **spec: Any) -> Object:
    """A Deployment, StatefulSet, ReplicaSet or Job of such pods."""
    labels = {"app": name}
    body: Object = {"template": template_of(pod_manifest, labels), **spec}
    if kind == "Job":
        body["template"]["spec"].setdefault("restartPolicy", "Never")
    else:
        body["selector"] = {"matchLabels": labels}
    if kind == "StatefulSet":
        body.setdefault("serviceName", name)
    group = {"Job": "batch/v1"}.get(kind, "apps/v1")
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": body}


def claim_template(name: str, spec: Object) -> Object:
    """A ResourceClaimTemplate as a user would write it."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec},
    }


def devices_request(
    name: str, *, count: int = 1, selectors: tuple[str, ...] = (), device_class: str = DRIVER
) -> Object:
    """One ExactCount request of a claim."""
    exactly: Object = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    return {"name": name, "exactly": exactly}


def legacy_names(pod_object: Object) -> list[str]:
    """Legacy resource names left anywhere in the limits or requests of a pod (or of a pod template)."""
    spec = pod_object["spec"]
    every = [*spec.get("containers", []), *spec.get("initContainers", [])]
    found = []
    for each in every:
        resources = each.get("resources", {})
        for part in ("limits", "requests"):
            found += [f"{each['name']}.{part}[{name}]" for name in LEGACY if name in resources.get(part, {})]
    return found


def is_converted(pod_object: Object) -> bool:
    """Whether it carries the label of converted pods."""
    return bool(pod_object["metadata"].get("labels", {}).get(CONVERTED) == "true")


def generated_templates(api: Api, namespace: str) -> list[str]:
    """Names of the templates in a namespace that say they are ours."""
    selector = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
    found = api.list("ResourceClaimTemplate", namespace, labelSelector=selector)
    return sorted(template["metadata"]["name"] for template in found)


def template_names(pod_object: Object) -> list[str]:
    """ResourceClaimTemplates that a pod refers to, in order."""
    entries = pod_object["spec"].get("resourceClaims", [])
    return [entry["resourceClaimTemplateName"] for entry in entries if "resourceClaimTemplateName" in entry]


def events(api: Api, namespace: str, name: str, reason: str) -> list[str]:
    """Messages of the events of one reason about one object."""
    selector = f"involvedObject.name={name},reason={reason}"
    return [event["message"] for event in api.list("Event", namespace, fieldSelector=selector)]


def wait_scheduled(api: Api, namespace: str, name: str, timeout: float = 30.0) -> Object:
    """Return the pod once the scheduler has bound it.

    Raises:
        TimeoutError: it did not; the message has the scheduler's reason.
    """

    def attempt() -> Object | None:
        found = api.get("Pod", name, namespace)
        if found["spec"].get("nodeName"):
            return found
        conditions = found.get("status", {}).get("conditions", [])
        assert not conditions, f"{conditions[0].get('reason')}: {conditions[0].get('message')}"
        return None

    return eventually(f"{namespace}/{name} to be scheduled", attempt, timeout=timeout)


def unschedulable_message(api: Api, namespace: str, name: str, containing: str) -> str:
    """Return what the scheduler says of a pod, once it says something that contains a text."""

    def attempt() -> str | None:
        conditions = api.get("Pod", name, namespace).get("status", {}).get("conditions", [])
        messages = [each.get("message", "") for each in conditions if each["type"] == "PodScheduled"]
        assert any(containing in message for message in messages), f"it says {messages}"
        return str(messages[0])

    return eventually(f"the scheduler to say {containing!r} of {name}", attempt)


def claim_of(api: Api, namespace: str, pod_object: Object, entry: str = "neuron") -> Object:
    """The ResourceClaim that was made for an entry of a pod's `spec.resourceClaims`."""
    name = pod_object["metadata"]["name"]

    def attempt() -> Object | None:
        statuses = api.get("Pod", name, namespace)["status"].get("resourceClaimStatuses", [])
        names = [status.get("resourceClaimName") for status in statuses if status["name"] == entry]
        assert names, f"its claim statuses are {statuses}"
        return api.get("ResourceClaim", names[0], namespace)

    return eventually(f"the claim {entry} of {namespace}/{name}", attempt)


def allocated(claim: Object) -> dict[str, list[int]]:
    """Device ids that each request of an allocated claim got (`request/alternative` where there is one)."""
    devices: dict[str, list[int]] = {}
    for result in claim["status"]["allocation"]["devices"]["results"]:
        device = int(result["device"].rpartition("-")[2])
        devices.setdefault(result["request"], []).append(device)
    return {request: sorted(found) for request, found in devices.items()}


def scheduled_devices(api: Api, namespace: str, name: str) -> list[int]:
    """Wait until a converted pod is scheduled; the ids of all devices it got."""
    claim = claim_of(api, namespace, wait_scheduled(api, namespace, name))
    assert claim.get("status", {}).get("allocation"), f"the claim of {name} is not allocated"
    return sorted(device for devices in allocated(claim).values() for device in devices)
