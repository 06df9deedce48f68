"""Inferentia on a real scheduler, kubelet and driver: consecutive devices, and cores as cores.

Legacy pods go through the webhook. What a container sees is what the stand-in runtime was told to make.
"""

import itertools
from collections.abc import Iterator

import pytest

from neuron.hardware.windows import Line
from tests.cluster.api import Api, ApiError
from tests.cluster.controlplane import Assets, ControlPlane
from tests.cluster.driver import Driver, indices, install_rbac, started, wait_gone, wait_running, wait_unprepared
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import (
    allocated,
    claim_of,
    container,
    pod,
    unschedulable_message,
    wait_scheduled,
    workload,
)
from tests.cluster.nodes import INSTANCE_TYPE, Fleet, device_class
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook
from tests.cluster.webhooks import install_rbac as webhook_rbac
from tests.support.mixtures import Hardware, slices

CORES = "NEURON_RT_VISIBLE_CORES"
INF2 = {INSTANCE_TYPE: "inf2.48xlarge"}
INF1 = {INSTANCE_TYPE: "inf1.6xlarge"}
OLDER = {"DRAConsumableCapacity": False, "DRAPartitionableDevices": False}
RING = Line(12, wraps=True)
TYPES = ["inf2.48xlarge", "trn1.32xlarge"]
LABELS = {"instanceType": "inferentia-inf2"}
"""A label of published manifests."""

pytestmark = [pytest.mark.usefixtures("webhook"), pytest.mark.timeout(300)]


class Site:
    """A kubelet with a driver, and legacy pods on it."""

    def __init__(self, plane: ControlPlane, kubelet: Kubelet, driver: Driver) -> None:
        self.api = plane.admin
        self.kubelet = kubelet
        self.driver = driver
        self.namespace = ""

    def create(self, name: str, **limits: int) -> None:
        """Create a legacy pod for this node's instance type."""
        here = {"kubernetes.io/hostname": self.kubelet.node}
        made = pod(name, container(**limits), nodeSelector=here, terminationGracePeriodSeconds=0)
        made["metadata"]["annotations"] = {"neuron.aws.com/instance-type": self.instance_type}
        self.api.create(made, self.namespace)

    @property
    def instance_type(self) -> str:
        return str(self.api.get("Node", self.kubelet.node)["metadata"]["labels"][INSTANCE_TYPE])

    def run(self, name: str, **limits: int) -> list[int]:
        """Run a legacy pod; the device nodes that its container sees."""
        self.create(name, **limits)
        wait_running(self.api, self.namespace, name)
        return indices(started(self.kubelet, self.namespace, name))

    def cores(self, name: str) -> set[int]:
        """The cores that a running container may use."""
        text = started(self.kubelet, self.namespace, name).sees.env[CORES]
        found: set[int] = set()
        for part in text.split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
        return found

    def waits(self, name: str, **limits: int) -> None:
        """Create a legacy pod that stays Pending."""
        self.create(name, **limits)
        unschedulable_message(self.api, self.namespace, name, "cannot allocate all claims")

    def gone(self, *names: str) -> None:
        for name in names:
            wait_gone(self.api, self.namespace, name)

    def wait_shares(self) -> None:
        """Return when the webhook knows that claims can share this node's cores."""
        made = pod("canary", container(neuroncore=1))
        made["metadata"]["annotations"] = {"neuron.aws.com/instance-type": self.instance_type}

        def exact() -> bool:
            stored = self.api.create(made, self.namespace, dry_run=True).body
            names = [entry["name"] for entry in stored["spec"]["containers"][0].get("env", [])]
            assert "NEURON_RT_NUM_CORES" not in names
            return True

        eventually("the webhook to convert cores to shares", exact, timeout=40)


def site(
    plane: ControlPlane, directory: pytest.TempPathFactory, node: str, labels: dict[str, str], *flags: str
) -> Iterator[Site]:
    if not plane.assets.has("kubelet"):
        pytest.skip(f"no kubelet to test on: {plane.assets.folder} lacks kubelet; set KUBEBUILDER_ASSETS")
    kubelet = Kubelet(plane, directory.mktemp(node), node, labels)
    install_rbac(plane.admin)
    driver = Driver(plane, kubelet, labels[INSTANCE_TYPE], flags=("--share-cores=on", *flags))
    try:
        kubelet.start()
        driver.start()
        yield Site(plane, kubelet, driver)
    finally:
        driver.process.stop()
        kubelet.stop()
        for each in driver.slices():
            plane.admin.delete("ResourceSlice", each["metadata"]["name"])


@pytest.fixture(scope="module")
def inf2_node(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from site(control_plane, tmp_path_factory, "inf2-node", {**INF2, **LABELS})


@pytest.fixture(scope="module")
def inf1_node(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from site(control_plane, tmp_path_factory, "inf1-node", INF1)


@pytest.fixture
def inf2(inf2_node: Site, namespace: str) -> Iterator[Site]:
    inf2_node.namespace = namespace
    yield inf2_node
    remove_pods(inf2_node, namespace)


@pytest.fixture
def inf1(inf1_node: Site, namespace: str) -> Iterator[Site]:
    inf1_node.namespace = namespace
    inf1_node.wait_shares()
    yield inf1_node
    remove_pods(inf1_node, namespace)


def remove_pods(site: Site, namespace: str) -> None:
    site.api.delete_all("Deployment", namespace)
    site.api.delete_all("ReplicaSet", namespace)
    site.api.delete_all("Pod", namespace, force=True)
    wait_unprepared(site.kubelet, site.driver)


def consecutive(devices: list[int]) -> bool:
    return any(devices == sorted(RING.window(len(devices), start)) for start in RING.starts(len(devices)))


# --- devices ----------------------------------------------------------------------------------------------------


def test_three_devices_are_consecutive(inf2: Site) -> None:
    assert inf2.run("three", neuron=3) == [0, 1, 2]
    assert CORES not in started(inf2.kubelet, inf2.namespace, "three").sees.env


def test_six_pods_of_two_fill_the_node(inf2: Site) -> None:
    held = [inf2.run(f"two-{number}", neuron=2) for number in range(6)]
    assert all(consecutive(devices) for devices in held)
    assert sorted(itertools.chain(*held)) == list(range(12))
    inf2.waits("seventh", neuron=2)


def test_two_devices_wait_while_no_neighbours_are_free(inf2: Site) -> None:
    held = {inf2.run(f"one-{number}", neuron=1)[0]: f"one-{number}" for number in range(12)}
    assert sorted(held) == list(range(12))
    inf2.gone(*(held[device] for device in range(0, 12, 2)))
    wait_prepared(inf2, 6)
    inf2.waits("two", neuron=2)
    inf2.gone(held[5])
    wait_running(inf2.api, inf2.namespace, "two")
    assert indices(started(inf2.kubelet, inf2.namespace, "two")) in ([4, 5], [5, 6])


def wait_prepared(site: Site, devices: int) -> None:
    def attempt() -> bool:
        assert site.driver.metric("prepared_devices") == devices
        return True

    eventually(f"{devices} prepared devices", attempt, timeout=60)


@pytest.mark.parametrize(("first", "second"), [(5, 7), (9, 3), (5, 5), (11, 1)], ids=str)
def test_two_sizes_share_a_node(inf2: Site, first: int, second: int) -> None:
    held = inf2.run("first", neuron=first), inf2.run("second", neuron=second)
    assert [len(devices) for devices in held] == [first, second]
    assert all(consecutive(devices) for devices in held)
    assert set(held[0]).isdisjoint(held[1])


@pytest.mark.parametrize("devices", [6, 11, 12])
def test_a_deployment_of_published_shape_runs(inf2: Site, devices: int) -> None:
    """No annotation and no instance type: a label that people put on their Inf2 nodes."""
    shape = pod("", container(neuron=devices), nodeSelector=LABELS, terminationGracePeriodSeconds=0)
    inf2.api.create(workload("Deployment", "llama", shape, replicas=1), inf2.namespace)

    def running() -> str:
        found = inf2.api.list("Pod", inf2.namespace)
        assert [each["status"]["phase"] for each in found] == ["Running"], [each.get("status") for each in found]
        return str(found[0]["metadata"]["name"])

    name = eventually("the Deployment's pod to run", running, timeout=60)
    seen = indices(started(inf2.kubelet, inf2.namespace, name))
    assert len(seen) == devices
    assert consecutive(seen) or devices == 12


# --- cores ------------------------------------------------------------------------------------------------------


@pytest.mark.needs("shares")
def test_a_pod_of_nine_cores_holds_nine_cores(inf1: Site) -> None:
    """And four single cores beside them, and the last three; then nothing is left."""
    assert inf1.run("nine", neuroncore=9) == [0, 1, 2]
    assert inf1.cores("nine") == set(range(9))
    taken = inf1.cores("nine")
    for number in range(4):
        name = f"one-{number}"
        [device] = inf1.run(name, neuroncore=1)
        [core] = inf1.cores(name)
        assert core // 4 == device
        assert core not in taken
        taken.add(core)
    inf1.run("two", neuroncore=2)
    assert inf1.cores("two").isdisjoint(taken)
    taken |= inf1.cores("two")
    assert len(taken) == 15
    inf1.waits("pair", neuroncore=2)
    inf1.run("last", neuroncore=1)
    assert inf1.cores("last") == set(range(16)) - taken


@pytest.mark.needs("shares")
def test_four_single_cores_share_a_device(inf1: Site) -> None:
    devices = [inf1.run(f"one-{number}", neuroncore=1) for number in range(4)]
    assert devices == [[0]] * 4
    assert set().union(*(inf1.cores(f"one-{number}") for number in range(4))) == {0, 1, 2, 3}
    assert inf1.run("whole", neuron=1) == [1]
    assert inf1.run("rest", neuron=2) == [2, 3]
    inf1.waits("more", neuroncore=1)


@pytest.mark.needs("shares")
def test_cores_stay_assigned_over_a_restart_of_the_driver(inf1: Site) -> None:
    inf1.run("nine", neuroncore=9)
    inf1.run("one", neuroncore=1)
    before = inf1.cores("nine"), inf1.cores("one")
    inf1.driver.process.kill()
    inf1.driver.start()
    inf1.run("two", neuroncore=2)
    assert inf1.cores("two").isdisjoint(set().union(*before))


# --- other nodes ------------------------------------------------------------------------------------------------


def test_seven_devices_of_trn1_are_denied_with_the_message_of_the_extension(api: Api, namespace: str) -> None:
    legacy = pod("seven", container(neuron=7), nodeSelector={INSTANCE_TYPE: "trn1.32xlarge"})
    with pytest.raises(ApiError, match=r"Instance type trn1.32xlarge does not support requests for device: 7."):
        api.create(legacy, namespace)


def test_a_cluster_of_inf2_and_trn1_serves_each_count_on_a_type_that_supports_it(
    api: Api, namespace: str, fleet: Fleet
) -> None:
    inf2 = fleet.add_publishing("inf2.48xlarge", slices(Hardware("inf2.48xlarge", RING, 2, shared=True)))
    trn1 = fleet.add_publishing("trn1.32xlarge", slices(Hardware("trn1.32xlarge", Line(16, wraps=False), 2)))

    def place(name: str, devices: int) -> tuple[str, list[int]]:
        legacy = pod(name, container(neuron=devices))
        terms = [{"matchExpressions": [{"key": INSTANCE_TYPE, "operator": "In", "values": TYPES}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        legacy["spec"] |= {"affinity": {"nodeAffinity": required}}
        api.create(legacy, namespace)
        bound = wait_scheduled(api, namespace, name)
        results = allocated(claim_of(api, namespace, bound))
        return bound["spec"]["nodeName"], sorted(itertools.chain(*results.values()))

    node, devices = place("five", 5)
    assert node == inf2
    assert consecutive(devices)
    node, devices = place("sixteen", 16)
    assert (node, devices) == (trn1, list(range(16)))
    node, devices = place("four", 4)
    assert node == inf2, "trn1 is full"
    assert consecutive(devices)


# --- without the features of 1.36 -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def older(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster that stores neither shares nor shared counters, as 1.34 and 1.35 do; an Inf1 node in it."""
    plane = ControlPlane(assets, tmp_path_factory.mktemp("older"), OLDER)
    webhook = None
    try:
        plane.start()
        plane.admin.create(device_class())
        webhook = Webhook(plane, webhook_rbac(plane))
        webhook.start()
        webhook.install()
        yield from site(plane, tmp_path_factory, "older-node", INF1)
    finally:
        if webhook is not None:
            webhook.stop()
        plane.stop()


def test_all_sizes_run_without_shares_and_cores_become_whole_devices(older: Site) -> None:
    older.namespace = "default"
    eventually("pods in the namespace", lambda: older.api.find("ServiceAccount", "default", "default"))
    devices = [device for each in older.driver.slices() for device in each["spec"]["devices"]]
    assert len(devices) == 4
    assert not any("allowMultipleAllocations" in device for device in devices)
    for count in (1, 2, 3, 4):
        assert len(older.run(f"devices-{count}", neuron=count)) == count
        older.gone(f"devices-{count}")
    assert older.run("nine", neuroncore=9) == [0, 1, 2]
    environment = started(older.kubelet, "default", "nine").sees.env
    assert environment["NEURON_RT_NUM_CORES"] == "9"
    assert CORES not in environment
    assert older.run("one", neuroncore=1) == [3]
    older.waits("more", neuroncore=1)
    remove_pods(older, "default")
