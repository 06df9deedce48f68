"""What kubelets, the device plugin and the DRA driver would do on nodes that are only objects.

Bound pods become ready, deleted ones go. A node offers what its DaemonSets' pods would have it offer: with the
device plugin's pod allocatable devices, with the driver's a ResourceSlice. A node with both is an error.
"""

import threading
from typing import Final

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.manifests import NEURON
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE, resource_slice

PLUGIN_LABELS: Final = {"name": "neuron-device-plugin-ds"}
DRIVER_LABELS: Final = {"app.kubernetes.io/component": "kubelet-plugin"}
_DEVICES: Final = "16"
_TICK: Final = 0.2
_GONE: Final = (404, 409)


def _labelled(pod: Object, labels: dict[str, str]) -> bool:
    return labels.items() <= pod["metadata"].get("labels", {}).items()


def _ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


class NodeAgents:
    """A thread that stands in for the agents of all nodes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-agents")
        self.problems: list[str] = []
        """Nodes that had the device plugin and the driver, and calls that failed."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_TICK):
            try:
                self._look()
            except ApiError as error:
                if error.code not in _GONE:
                    self.problems.append(str(error))

    def _look(self) -> None:
        bound = [pod for pod in self._api.list("Pod") if pod["spec"].get("nodeName")]
        for pod in bound:
            self._tend(pod)
        slices = {each["spec"]["nodeName"] for each in self._api.list("ResourceSlice")}
        for node in self._api.list("Node"):
            if node["metadata"]["labels"][INSTANCE_TYPE].startswith("trn"):
                here = [pod for pod in bound if pod["spec"]["nodeName"] == node["metadata"]["name"]]
                self._offer(node, here, published=node["metadata"]["name"] in slices)

    def _tend(self, pod: Object) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if "deletionTimestamp" in pod["metadata"]:
            self._api.delete("Pod", name, namespace, force=True)
        elif not _ready(pod):
            kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            status = {"phase": "Running", "conditions": [{"type": kind, "status": "True"} for kind in kinds]}
            self._api.merge("Pod", name, {"status": status}, namespace, subresource="status")

    def _offer(self, node: Object, pods: list[Object], *, published: bool) -> None:
        name = node["metadata"]["name"]
        plugin = any(_labelled(pod, PLUGIN_LABELS) for pod in pods)
        driver = any(_labelled(pod, DRIVER_LABELS) for pod in pods)
        allocatable = node["status"].get("allocatable", {}).get(NEURON)
        offered = allocatable not in {None, "0"}
        if (plugin or offered) and (driver or published):
            self.problems.append(f"{name} has plugin {plugin}, {allocatable} devices; driver {driver}, {published}")
        if plugin and not offered:
            self._allocatable(name, _DEVICES)
        elif offered and not plugin:
            # As the kubelet: the capacity stays, and nothing of it is allocatable.
            self._allocatable(name, "0")
        if driver and not published:
            self._api.create(resource_slice(name, node["metadata"]["labels"][INSTANCE_TYPE]))
        elif published and not driver:
            self._api.delete("ResourceSlice", f"{name}-{DRIVER}")

    def _allocatable(self, node: str, devices: str) -> None:
        status = {"capacity": {NEURON: _DEVICES}, "allocatable": {NEURON: devices}}
        self._api.merge("Node", node, {"status": status}, subresource="status")


def device_plugin(name: str) -> Object:
    """AWS's DaemonSet, as far as scheduling goes (its published manifest names the instance types)."""
    types = {"key": INSTANCE_TYPE, "operator": "In", "values": ["trn1.32xlarge", "trn2.48xlarge"]}
    term = {"nodeSelectorTerms": [{"matchExpressions": [types]}]}
    spec = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}},
        "containers": [{"name": "neuron-device-plugin", "image": "neuron-device-plugin:2"}],
        "tolerations": [{"key": NEURON, "operator": "Exists", "effect": "NoSchedule"}],
    }
    template = {"metadata": {"labels": PLUGIN_LABELS}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": PLUGIN_LABELS}, "template": template},
    }
