"""The kubelet plugin as a process beside a real kubelet, with no rights but those that it needs."""

import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import httpx

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.cri import Container
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import NEURON, claim_template, container, devices_request, pod
from tests.cluster.nodes import DRIVER
from tests.cluster.processes import Process, eventually, free_ports
from tests.cluster.webhooks import MANIFESTS, load
from tests.kubeletplugin.kubelet_server import KubeletServer

USER: Final = "driver-under-test"
"""Has the rights of the driver's shipped roles, whose own names are taken where the manifests are applied."""

EVENTS: Final = "default"
"""Namespace of Events about Nodes."""


def shipped_rules(kind: str) -> list[Object]:
    """What the driver may do, by its ClusterRole, or by its Role in the namespace of Events."""
    roles = [each for each in load(MANIFESTS / "rbac.yaml") if each["kind"] == kind]
    rules: list[Object] = next(role for role in roles if role["metadata"]["name"] == "neuron-dra-kubelet-plugin")[
        "rules"
    ]
    return rules


def install_rbac(api: Api) -> None:
    """Let `USER` do what the driver needs."""
    if api.find("ClusterRole", USER):
        return
    group = "rbac.authorization.k8s.io"
    version = f"{group}/v1"
    for kind, namespace in (("ClusterRole", ""), ("Role", EVENTS)):
        # A user has no token that is bound to a node: the right to write claims of the own node is one for all nodes.
        rules = [
            each | {"verbs": ["arbitrary-node:patch"]} if "associated-node:patch" in each["verbs"] else each
            for each in shipped_rules(kind)
        ]
        role = {"apiVersion": version, "kind": kind, "metadata": {"name": USER}, "rules": rules}
        binding = {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": group, "kind": kind, "name": USER},
            "subjects": [{"apiGroup": group, "kind": "User", "name": USER}],
        }
        for body in (role, binding):
            api.create(body, namespace)


class NodeDirectories(Protocol):
    """A node, and where kubelet and runtime keep what they share with drivers."""

    @property
    def node(self) -> str:
        """The node's name."""

    @property
    def root(self) -> Path:
        """What would be /var/lib/kubelet."""

    @property
    def cdi_directory(self) -> Path:
        """Where the runtime reads CDI specs."""

    @property
    def plugins(self) -> Path:
        """Where drivers keep their service sockets."""

    @property
    def plugins_registry(self) -> Path:
        """Where drivers put their registration sockets."""


@dataclasses.dataclass(frozen=True)
class BareNode:
    """The directories of a node without a kubelet, but for its answer that no pod uses devices."""

    node: str
    root: Path
    pod_resources: KubeletServer

    @property
    def cdi_directory(self) -> Path:
        """Where the runtime would read CDI specs."""
        return self.root / "cdi"

    @property
    def plugins(self) -> Path:
        """Where drivers keep their service sockets."""
        return self.root / "p"

    @property
    def plugins_registry(self) -> Path:
        """Where drivers put their registration sockets."""
        return self.root / "r"


def bare_node(name: str, root: Path) -> BareNode:
    """The same, with its directories."""
    socket = root / "pod-resources/kubelet.sock"
    node = BareNode(name, root, KubeletServer(socket))
    for path in (node.plugins, node.plugins_registry, node.cdi_directory, socket.parent):
        path.mkdir(parents=True)
    node.pod_resources.__enter__()
    return node


class Driver:
    """One instance of the driver on a node."""

    def __init__(
        self,
        plane: ControlPlane,
        kubelet: NodeDirectories,
        instance_type: str,
        *,
        pod_uid: str = "",
        flags: tuple[str, ...] = (),
        kubeconfig: Path | None = None,
        environment: Mapping[str, str] | None = None,
        admin_access: str = "*",
    ) -> None:
        """Without `kubeconfig`, it has the rights of `USER`."""
        self.node = kubelet.node
        self._kubelet = kubelet  # a bare node answers for as long as its driver is there
        self._api = plane.admin
        self.state = kubelet.plugins / DRIVER
        self._metrics_port, self._health_port = free_ports(2)
        arguments = {
            "node-name": kubelet.node,
            "kubeconfig": kubeconfig or plane.user_kubeconfig(USER),
            "emulate": instance_type,
            "cdi-dir": kubelet.cdi_directory,
            "kubelet-plugins-dir": kubelet.plugins,
            "kubelet-registry-dir": kubelet.plugins_registry,
            "bind-address": "127.0.0.1",
            "metrics-port": self._metrics_port,
            "health-port": self._health_port,
            "health-interval": "0.5",
            "pod-uid": pod_uid,
        }
        command = [sys.executable, "-m", "kubeletplugin", *(f"--{key}={value}" for key, value in arguments.items())]
        log = kubelet.root.parent / f"driver-{kubelet.node}{f'-{pod_uid}' if pod_uid else ''}.log"
        # As variables: an older version has no such flags.
        newer = {
            "NEURON_DRA_POD_RESOURCES_SOCKET": str(kubelet.root / "pod-resources/kubelet.sock"),
            "NEURON_DRA_ADMIN_ACCESS_NAMESPACE": admin_access,
        }
        self.process = Process("driver", [*command, *flags], log, newer | dict(environment or {}))

    @property
    def sysfs(self) -> Path:
        """Root of the emulated sysfs."""
        return self.state / "emulated" / "sys"

    @property
    def dev(self) -> Path:
        """Root of the emulated device nodes."""
        return self.state / "emulated" / "dev"

    def start(self) -> None:
        """Start; return when its slices are published and the kubelet has registered it."""
        log = self.process.log
        before = log.stat().st_size if log.exists() else 0
        self.process.start()
        self.process.wait_ready(
            lambda: bool(self.slices()) and "registered with the kubelet" in log.read_text()[before:]
        )

    def start_alone(self) -> None:
        """Start where no kubelet is; return when its slices are published. Needs `--registration-wait=0`."""
        self.process.start()
        self.process.wait_ready(lambda: bool(self.slices()))

    def slices(self) -> list[Object]:
        """The slices of the node, by name."""
        selector = f"spec.nodeName={self.node},spec.driver={DRIVER}"
        found = self._api.list("ResourceSlice", fieldSelector=selector)
        return sorted(found, key=lambda each: each["metadata"]["name"])

    def devices(self) -> list[Object]:
        """All published devices."""
        return [device for each in self.slices() for device in each["spec"].get("devices") or ()]

    def device(self, name: str) -> Object:
        """A published device."""
        [found] = [device for device in self.devices() if device["name"] == name]
        return dict(found)

    def scrape(self) -> str:
        """All series, as text."""
        return httpx.get(f"http://127.0.0.1:{self._metrics_port}/metrics", trust_env=False).text

    def metric(self, series: str) -> float:
        """The value of a series, e.g. `prepared_devices` or `claims_total{operation="prepare",result="error"}`."""
        text = self.scrape()
        match = re.search(rf"^neuron_dra_plugin_{re.escape(series)} (\S+)$", text, re.MULTILINE)
        assert match, f"no series {series} in\n{text}"
        return float(match[1])


@contextlib.contextmanager
def running(plane: ControlPlane, kubelet: NodeDirectories, instance_type: str, **options: Any) -> Iterator[Driver]:
    """A driver with the rights of `USER` from its start to the end of the block; `options` are those of `Driver`."""
    install_rbac(plane.admin)
    driver = Driver(plane, kubelet, instance_type, **options)
    try:
        driver.start()
        yield driver
    finally:
        driver.process.stop()


def attribute(name: str, value: str) -> str:
    """A CEL condition on a string attribute of the driver."""
    return f'device.attributes["{DRIVER}"].{name} == "{value}"'


def all_request(name: str, *conditions: str) -> Object:
    """A request for all devices that match."""
    request: Object = {"deviceClassName": DRIVER, "allocationMode": "All"}
    if conditions:
        request["selectors"] = [{"cel": {"expression": text}} for text in conditions]
    return {"name": name, "exactly": request}


def match_group(size: int) -> Object:
    """The constraint that all devices are of one connected group."""
    return {"matchAttribute": f"resource.aws.com/devicegroup{size}_id"}


def opaque(kind: str, **fields: object) -> Object:
    """A config entry of a claim."""
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": kind, **fields}
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def connected(count: int) -> Object:
    """A claim spec for `count` connected devices."""
    return {"devices": {"requests": [devices_request("neurons", count=count)], "constraints": [match_group(count)]}}


def whole_node(*config: Object) -> Object:
    """A claim spec for a whole UltraServer node."""
    request = devices_request("node", selectors=(attribute("resourceType", "neuron_node"),))
    return {"devices": {"requests": [request], "config": list(config)}}


def run_pod(api: Api, namespace: str, name: str, spec: Object, **fields: Any) -> None:
    """Create a claim template and a pod whose one container uses the claim."""
    api.create(claim_template(name, {"devices": spec["devices"]}), namespace)
    uses = container(resources={"claims": [{"name": "neuron"}]})
    claims = [{"name": "neuron", "resourceClaimTemplateName": name}]
    api.create(pod(name, uses, resourceClaims=claims, terminationGracePeriodSeconds=0, **fields), namespace)


def wait_running(api: Api, namespace: str, name: str, timeout: float = 60.0) -> None:
    """Return when the pod runs."""

    def attempt() -> bool:
        status = api.get("Pod", name, namespace)["status"]
        assert status["phase"] == "Running", status
        return True

    eventually(f"{name} to run", attempt, timeout=timeout)


def seconds_to_run(api: Api, namespace: str, pods: Sequence[Object], *, interval: float) -> float:
    """Create pods at once, the only ones of the namespace; seconds until all of them run."""
    began = time.monotonic()
    for each in pods:
        api.create(each, namespace)

    def all_run() -> bool:
        return [each["status"]["phase"] for each in api.list("Pod", namespace)] == ["Running"] * len(pods)

    eventually(f"{len(pods)} pods to run", all_run, timeout=200, interval=interval)
    return time.monotonic() - began


def wait_gone(api: Api, namespace: str, name: str) -> None:
    """Delete a pod and return when it is gone."""
    api.delete("Pod", name, namespace)
    eventually(f"{name} to be gone", lambda: api.find("Pod", name, namespace) is None, timeout=60)


def wait_unprepared(kubelet: Kubelet, driver: Driver) -> None:
    """Return when nothing is prepared any more: the kubelet unprepares after the pod's object has gone."""

    def attempt() -> bool:
        assert driver.metric("prepared_devices") == 0
        assert list(kubelet.cdi_directory.iterdir()) == []
        return True

    eventually("everything to be unprepared", attempt, timeout=60)


def started(kubelet: Kubelet, namespace: str, name: str) -> Container:
    """The pod's container as the runtime was told to make it."""
    return kubelet.runtime.created(namespace, name)["main"]


def offer_legacy(api: Api, node: str, amount: str) -> None:
    """The kubelet reports what a device plugin offers."""
    status = {"capacity": {NEURON: amount}, "allocatable": {NEURON: amount}}
    api.merge("Node", node, {"status": status}, subresource="status")


def indices(seen: Container) -> list[int]:
    """Which Neuron devices a container sees."""
    found = (re.fullmatch(r"/dev/neuron([0-9]+)", path) for path in seen.sees.devices)
    return sorted(int(match[1]) for match in found if match)


def neuron_environment(seen: Container) -> dict[str, str]:
    """The Neuron variables that a container sees."""
    return {name: value for name, value in seen.sees.env.items() if name.startswith("NEURON")}
