"""A release in containers: its chart, pulled from its OCI layout, starts its images, which a real runtime under a real
kubelet pulls by their digests; and pods that they convert.

Needs root, buildah, a C compiler, containerd 2 with runc, CNI plugins, and the kubelet. Each test begins where the one
before ended: install, look, convert, restart, free, prune, upgrade.
"""

import dataclasses
import itertools
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import helm_python
import httpx
import pytest

from deploy import oci, release, signing
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.containers import Containerd, RuntimeMissingError, api_address
from tests.cluster.controlplane import ControlPlane
from tests.cluster.helm import Helm
from tests.cluster.images import BASE, SANDBOX, Builder, BuilderMissingError
from tests.cluster.kubelet import NodeKubelet
from tests.cluster.manifests import (
    LNC,
    container,
    devices_request,
    generated_templates,
    is_converted,
    legacy_names,
    pod,
)
from tests.cluster.nodes import DRIVER, INSTANCE_TYPE
from tests.cluster.processes import eventually
from tests.deploy import registry
from tests.support.loops import Loop

pytestmark = [pytest.mark.in_order, pytest.mark.timeout(900)]

NAMESPACE: Final = "neuron-dra"
IMAGES: Final = {"webhook": "localhost/neuron-dra", "kubelet-plugin": "localhost/neuron-dra-kubelet-plugin"}
LIMIT: Final = 120 * 2**20
"""Bytes of a virtual environment."""
FORBIDDEN: Final = {
    "webhook": ("grpc", "kubeletplugin", "pip"),
    "kubelet-plugin": ("celpy", "lark", "re2", "cryptography", "starlette", "uvicorn", "webhook", "kubecel", "pip"),
}
VERSION: Final = release.check_versions(release.ROOT)
EPOCH: Final = 1764000000
REPLICAS: Final = {"webhook": 2, "kubelet-plugin": 1}
SYS_PTRACE: Final = 1 << 19
"""The driver reads which processes of the node have device files open."""
METADATA: Final = "/var/run/kubernetes.io/dra-device-attributes"
_log = logging.getLogger(__name__)

START: Final = """
import pathlib, subprocess, sys
pathlib.Path("/tmp/kubeconfig").write_text(
    '{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}],'
    '"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}'
)
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
lines = []
while process.poll() is None and "serving" not in "".join(lines[-1:]):
    lines.append(process.stdout.readline())
process.terminate()
lines.append(process.stdout.read())
print("".join(lines))
print("served, ended with" if "serving" in "".join(lines) else "did not serve, ended with", process.wait(60))
"""
"""Runs a program until it serves."""
SHOW: Final = """
import glob, json, os, signal
names = ("NEURON", "AWS_NEURON")
def metadata(path):
    text = open(path).read()
    found = json.loads(text)
    [request] = found["requests"]
    # A line of a log has at most 16 KiB.
    devices = [[each["driver"], each["pool"], each["name"], each["attributes"]["deviceId"]["int"],
        each["attributes"]["neuroncores"]["int"], each["attributes"]["resourceType"]["string"]]
        for each in request["devices"]]
    read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return {**found, "requests": [{**request, "devices": devices}], "readOnly": read_only}
print(json.dumps({
    "devices": sorted(glob.glob("/dev/neuron*"), key=lambda path: int(path.removeprefix("/dev/neuron"))),
    "numbers": sorted({(os.major(n), os.minor(n)) for n in (os.stat(p).st_rdev for p in glob.glob("/dev/neuron*"))}),
    "variables": {name: value for name, value in os.environ.items() if name.startswith(names)},
    "metadata": {path: metadata(path) for path in glob.glob(
        "/var/run/kubernetes.io/dra-device-attributes/**/*.json", recursive=True)},
}), flush=True)
[open(path, "r+b").close() for path in glob.glob("/dev/neuron*")]
signal.pause()
"""


# --- images -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    """With all images."""
    # Layers need a file system on which overlays can be stacked, and short paths.
    folder = Path(tempfile.mkdtemp(prefix="nd-images-"))
    try:
        builder = Builder(folder)
    except BuilderMissingError as error:
        shutil.rmtree(folder)
        pytest.skip(str(error))
    try:
        builder.base()
        builder.sandbox()
        for target, name in IMAGES.items():
            builder.build(target, f"{name}:test")
        yield builder
    finally:
        builder.close()


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_is_small_and_has_the_imports_of_its_program(builder: Builder, target: str) -> None:
    with builder.mounted(f"{IMAGES[target]}:test") as root:
        venv = root / "opt/neuron-dra"
        size = sum(each.lstat().st_blocks * 512 for each in venv.rglob("*"))
        [packages] = venv.glob("lib/python3*/site-packages")
        found = [name for name in FORBIDDEN[target] if (packages / name).exists()]
        compiled = len(list(venv.rglob("*.pyc")))
    _log.info("%s: %.1f MiB", target, size / 2**20)
    assert found == []
    assert size <= LIMIT
    assert compiled > 500


@pytest.fixture(scope="module")
def released(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a release, made with the builder."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CONTAINERS_STORAGE_CONF", str(builder.configuration()))
        environment.setenv("BUILDAH_ISOLATION", "chroot")
        environment.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
        assert release.main([str(folder), "--unpinned", f"--base={BASE}"]) == 0
        yield folder


def images_of(folder: Path) -> dict[str, str]:
    """Digest by repository, of the images in a release."""
    return {
        repository: oci.Layout(folder / signing.IMAGES / repository).tags[VERSION]["digest"]
        for repository in release.TARGETS.values()
    }


@pytest.mark.timeout(1800)
def test_two_builds_of_a_release_have_the_same_digests(released: Path, tmp_path: Path) -> None:
    again = release.build_images(tmp_path, VERSION, EPOCH, "", BASE)
    assert again == {release.VALUES[target]: images_of(released)[name] for target, name in release.TARGETS.items()}


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("webhook", "neuron-dra webhook --standalone --port=0 --metrics-port=0 --tls-dir=/tmp/tls"),
        (
            "kubelet-plugin",
            "neuron-dra-kubelet-plugin --node-name=n --kubeconfig=/tmp/kubeconfig --emulate=trn2.48xlarge "
            "--cdi-dir=/tmp/cdi --kubelet-plugins-dir=/tmp/p --kubelet-registry-dir=/tmp/r "
            "--metrics-port=0 --health-port=0",
        ),
    ],
    ids=IMAGES,
)
def test_a_program_starts_serves_and_stops_in_its_image(builder: Builder, target: str, command: str) -> None:
    said = builder.start(f"{IMAGES[target]}:test", "python", "-c", START, *command.split())
    assert said.splitlines()[-1] == "served, ended with 0", said


# --- a node -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Runtime:
    """A container runtime and its folders."""

    containerd: Containerd
    folder: Path
    logs: Path


@dataclasses.dataclass
class Node:
    """A node whose containers run, with the chart on it."""

    plane: ControlPlane
    kubelet: NodeKubelet
    containerd: Containerd
    helm: Helm

    @property
    def api(self) -> Api:
        """The API as system:masters."""
        return self.plane.admin

    def pods(self, component: str) -> list[Object]:
        """The pods of a part of the chart that are not on their way out."""
        found = self.api.list("Pod", NAMESPACE, labelSelector=f"app.kubernetes.io/component={component}")
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def log(self, namespace: str, name: str, part: str = "main") -> list[str]:
        """What the containers of this name wrote, in the order of their starts."""
        lines: list[str] = []
        for folder in self.kubelet.logs.glob(f"{namespace}_{name}_*/{part}"):
            for file in sorted(folder.glob("*.log"), key=lambda each: int(each.stem)):
                # The time, the stream, F for a whole line, the line.
                lines += [line.split(" ", 3)[3] for line in file.read_text().splitlines()]
        return lines

    def shown(self, namespace: str, name: str, times: int = 1) -> Any:
        """What a pod that runs `SHOW` sees, after so many starts."""
        lines = eventually(
            f"{name} to start", lambda: (log := self.log(namespace, name))[times - 1 :] and log, timeout=90
        )
        return json.loads(lines[times - 1])


def values(node: Node, address: str) -> dict[str, Any]:
    """Of the chart: images of a registry, conversion, an emulated node, and prune at once."""
    paths = {"cdiDir": str(node.kubelet.cdi_directory), "kubeletDir": str(node.kubelet.root)}
    return {
        "image": {"registry": address},
        "conversion": {"mode": "convert"},
        "kubeletPlugin": {"emulate": "trn2.48xlarge", **paths},
        "prune": {"enabled": True, "extraArgs": ["--older-than=0s", "--grace=1s"]},
    }


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """containerd, not started."""
    # Paths of sockets are short, and some contain a pod's UID.
    folder, logs = Path(tempfile.mkdtemp(prefix="nd-")), tmp_path_factory.mktemp("node")
    try:
        containerd = Containerd(folder, logs / "containerd.log", logs / "cdi", SANDBOX)
        yield Runtime(containerd, folder, logs)
    except RuntimeMissingError as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def node(
    builder: Builder,
    released: Path,
    runtime: Runtime,
    own_control_plane: ControlPlane,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Node]:
    """A node of type trn2.48xlarge with the pods of a release's chart: Helm and containerd pull from a registry."""
    plane = own_control_plane
    if not plane.assets.has("kubelet"):
        pytest.skip(f"no kubelet to test on: {plane.assets.folder} lacks kubelet; set KUBEBUILDER_ASSETS")
    plane.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    plane.wait_namespace_usable(NAMESPACE)
    labels = {INSTANCE_TYPE: "trn2.48xlarge"}
    kubelet = NodeKubelet(plane, runtime.logs, "node-1", labels, runtime.containerd, root=runtime.folder / "kubelet")
    helm = Helm(plane, NAMESPACE)
    try:
        with api_address(plane.port):
            kubelet.start()
            for archive in builder.export([SANDBOX, *(f"{name}:test" for name in IMAGES.values())]):
                runtime.containerd.load(archive)
            for name in IMAGES.values():
                runtime.containerd.tag(f"{name}:test", f"{name}:next")
            node = Node(plane, kubelet, runtime.containerd, helm)
            with registry.serving() as served:
                served.upload(released)
                runtime.containerd.trust(served.address)
                folder, chart = tmp_path_factory.mktemp("chart"), f"oci://{served.address}/{release.CHART_REPOSITORY}"
                helm_python.pull(chart, version=VERSION, destination=folder, plain_http=True)
                helm.install(values(node, served.address), chart=folder / f"neuron-dra-{VERSION}.tgz")
                wait_rolled_out(node, {name: f"@{digest}" for name, digest in images_of(released).items()})
            yield node
    finally:
        helm.close()
        kubelet.stop()


def wait_rolled_out(node: Node, suffixes: Mapping[str, str]) -> None:
    """Return when both programs run from the images with these tags or digests, and no other of their pods is left."""

    def attempt() -> bool:
        for component, replicas in REPLICAS.items():
            repository = release.TARGETS[component]
            pods = node.api.list("Pod", NAMESPACE, labelSelector=f"app.kubernetes.io/component={component}")
            states = [(each["spec"]["containers"][0]["image"], each["status"]) for each in pods]
            assert len(states) == replicas, [state[1].get("phase") for state in states]
            for image, status in states:
                assert image.endswith(f"/{repository}{suffixes[repository]}"), image
                assert all(each["ready"] for each in status.get("containerStatuses", [{"ready": False}])), status
        return True

    eventually(f"both programs to run from {suffixes}", attempt, timeout=240, interval=0.5)


@pytest.fixture(scope="module")
def team(node: Node) -> str:
    """A namespace for pods."""
    node.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    node.plane.wait_namespace_usable("team")
    return "team"


def legacy(name: str, devices: int) -> Object:
    """A pod with a limit of the device plugin that shows what it sees."""
    image = f"{IMAGES['webhook']}:test"
    main = container(image=image, neuron=devices, command=["python", "-c", SHOW], imagePullPolicy="Never")
    return pod(name, main, annotations={LNC: "1"}, terminationGracePeriodSeconds=0)


def allocated(node: Node, namespace: str, name: str) -> list[str]:
    """The device nodes that the scheduler chose for a pod's claim."""
    [status] = node.api.get("Pod", name, namespace)["status"]["resourceClaimStatuses"]
    claim = node.api.get("ResourceClaim", status["resourceClaimName"], namespace)
    results = claim["status"]["allocation"]["devices"]["results"]
    numbers = sorted(int(re.fullmatch(r"neuron-device-(\d+)", each["device"])[1]) for each in results)  # type: ignore[index]
    return [f"/dev/neuron{number}" for number in numbers]


# --- the chart's pods ---------------------------------------------------------------------------------------------


def test_the_charts_pods_are_ready_and_publish(node: Node) -> None:
    slices = node.api.list("ResourceSlice", fieldSelector="spec.nodeName=node-1")
    devices = [device["name"] for each in slices for device in each["spec"].get("devices", [])]
    assert len([name for name in devices if re.fullmatch(r"neuron-device-\d+", name)]) == 16
    restarts = [
        each["status"]["containerStatuses"][0]["restartCount"]
        for component in ("webhook", "kubelet-plugin")
        for each in node.pods(component)
    ]
    assert restarts == [0, 0, 0]


@pytest.mark.parametrize(
    ("component", "user", "capabilities"), [("webhook", 65532, 0), ("kubelet-plugin", 0, SYS_PTRACE)]
)
def test_containers_have_only_the_privileges_of_the_chart(
    node: Node, component: str, user: int, capabilities: int
) -> None:
    status = node.pods(component)[0]["status"]["containerStatuses"][0]
    process = Path("/proc") / str(node.containerd.pid(status["containerID"].removeprefix("containerd://")))
    facts = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert facts["Uid"].split() == [str(user)] * 4
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == capabilities
    assert facts["NoNewPrivs"].strip() == "1"
    assert facts["Seccomp"].strip() == "2"  # a filter
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    [root] = [each for each in mounts if each[4] == "/"]
    assert "ro" in root[5].split(",")


def test_helm_test_passes(node: Node) -> None:
    node.helm.test(timeout=120)


# --- pods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [4, 1, 8])
def test_a_converted_legacy_pod_sees_exactly_its_devices(node: Node, team: str, devices: int) -> None:
    made = node.api.create(legacy(f"legacy-{devices}", devices), team).body
    assert is_converted(made)
    assert legacy_names(made) == []
    seen = node.shown(team, f"legacy-{devices}")
    assert len(seen["devices"]) == devices
    assert seen["devices"] == allocated(node, team, f"legacy-{devices}")
    assert seen["numbers"] == [[1, 3]]  # an emulated device is a null device
    assert seen["variables"] == {"NEURON_LOGICAL_NC_CONFIG": "1"}


def described(devices: list[str]) -> list[list[Any]]:
    """The device nodes in the metadata."""
    numbers = [int(path.removeprefix("/dev/neuron")) for path in devices]
    return [[DRIVER, "node-1", f"neuron-device-{number}", number, 8, "neuron_device"] for number in numbers]


@pytest.mark.parametrize("devices", [4, 1, 8])
def test_a_container_reads_the_metadata_of_its_devices(node: Node, team: str, devices: int) -> None:
    seen = node.shown(team, f"legacy-{devices}")
    [(path, found)] = seen["metadata"].items()
    assert path == f"{METADATA}/resourceclaimtemplates/neuron/n0/{DRIVER}-metadata.json"
    [status] = node.api.get("Pod", f"legacy-{devices}", team)["status"]["resourceClaimStatuses"]
    claim = node.api.get("ResourceClaim", status["resourceClaimName"], team)["metadata"]
    metadata = found.pop("metadata")
    assert metadata.pop("generation") > 0, "the number of the preparation"
    assert metadata == {"name": claim["name"], "namespace": team, "uid": claim["uid"]}
    [request] = found.pop("requests")
    assert sorted(request.pop("devices"), key=lambda each: each[3]) == described(seen["devices"])
    assert request == {"name": "n0"}
    assert found == {
        "kind": "DeviceMetadata",
        "apiVersion": "metadata.resource.k8s.io/v1alpha1",
        "podClaimName": "neuron",
        "readOnly": True,
    }


def test_the_metadata_of_a_claim_that_the_pod_names_has_the_claims_name(node: Node, team: str) -> None:
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "own"}}
    node.api.create({**claim, "spec": {"devices": {"requests": [devices_request("one", count=2)]}}}, team)
    image = f"{IMAGES['webhook']}:test"
    uses = {"claims": [{"name": "mine", "request": "one"}]}
    main = container(image=image, resources=uses, command=["python", "-c", SHOW], imagePullPolicy="Never")
    entry = [{"name": "mine", "resourceClaimName": "own"}]
    node.api.create(pod("direct", main, resourceClaims=entry, terminationGracePeriodSeconds=0), team)
    seen = node.shown(team, "direct")
    [(path, found)] = seen["metadata"].items()
    assert path == f"{METADATA}/resourceclaims/own/one/{DRIVER}-metadata.json"
    assert "podClaimName" not in found
    [request] = found["requests"]
    assert sorted(request["devices"], key=lambda each: each[3]) == described(seen["devices"])
    node.api.delete("Pod", "direct", team)
    eventually("the pod to be gone", lambda: node.api.find("Pod", "direct", team) is None, timeout=60)
    node.api.delete("ResourceClaim", "own", team)


def test_no_device_is_in_two_containers(node: Node, team: str) -> None:
    seen = [path for devices in (4, 1, 8) for path in node.shown(team, f"legacy-{devices}")["devices"]]
    assert len(seen) == len(set(seen)) == 13


def test_a_container_that_restarts_keeps_its_devices_and_variables(node: Node, team: str) -> None:
    before = node.shown(team, "legacy-4")
    status = node.api.get("Pod", "legacy-4", team)["status"]["containerStatuses"][0]
    node.containerd.kill(status["containerID"].removeprefix("containerd://"))
    after = node.shown(team, "legacy-4", times=2)
    assert after == before
    eventually(
        "the restart in the pod's status",
        lambda: node.api.get("Pod", "legacy-4", team)["status"]["containerStatuses"][0]["restartCount"] == 1,
    )


def test_deletion_frees_the_devices(node: Node, team: str) -> None:
    for devices in (4, 1, 8):
        node.api.delete("Pod", f"legacy-{devices}", team)
    eventually("the claims to be gone", lambda: not node.api.list("ResourceClaim", team), timeout=90)
    eventually("the CDI specs to be gone", lambda: not list(node.kubelet.cdi_directory.iterdir()), timeout=90)
    node.api.create(legacy("all", 16), team)
    assert node.shown(team, "all")["devices"] == [f"/dev/neuron{number}" for number in range(16)]
    node.api.delete("Pod", "all", team)
    eventually("the pod to be gone", lambda: node.api.find("Pod", "all", team) is None, timeout=60)


def test_the_prune_job_removes_templates_that_no_pod_needs(node: Node, team: str) -> None:
    assert generated_templates(node.api, team)
    kubectl = node.plane.kubectl().within(NAMESPACE)
    kubectl.must("create", "job", "prune", "--from=cronjob/neuron-dra-prune")

    def pruned() -> bool:
        status = node.api.get("Job", "prune", NAMESPACE).get("status", {})
        assert not status.get("failed"), "a pod failed: see its log"
        return bool(status.get("succeeded"))

    eventually("the prune job to end", pruned, timeout=90)
    assert generated_templates(node.api, team) == []


class Flow(Loop):
    """Pods with one device each, one after the other: created, seen running, deleted."""

    def __init__(self, node: Node, namespace: str) -> None:
        super().__init__(self._turn)
        self._node = node
        self._namespace = namespace
        self._numbers = itertools.count(1)
        self.problems: list[str] = []

    def _turn(self) -> None:
        name = f"flow-{next(self._numbers)}"
        try:
            made = self._node.api.create(legacy(name, 1), self._namespace).body
            if not is_converted(made):
                self.problems.append(f"{name} was not converted")
            seen = self._node.shown(self._namespace, name)["devices"]
            if seen != allocated(self._node, self._namespace, name):
                self.problems.append(f"{name} sees {seen}")
            self._node.api.delete("Pod", name, self._namespace)
        except (ApiError, httpx.HTTPError, TimeoutError, AssertionError) as error:
            self.problems.append(f"{name}: {error}")


def test_a_rolling_upgrade_of_both_programs_loses_no_pod(node: Node, team: str) -> None:
    node.api.create(legacy("stays", 4), team)
    before = node.shown(team, "stays")
    with Flow(node, team) as flow:
        eventually("pods to flow", lambda: flow.done >= 2, timeout=90)
        node.helm.upgrade({"image": {"registry": "localhost", "tag": "next", "pullPolicy": "Never"}})
        wait_rolled_out(node, dict.fromkeys(release.TARGETS.values(), ":next"))
        after = flow.done
        eventually("pods to flow after the upgrade", lambda: flow.done >= after + 2, timeout=90)
    _log.info("%d pods ran during the upgrade", flow.done)
    assert flow.problems == []
    status = node.api.get("Pod", "stays", team)["status"]
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Running", 0)
    assert node.log(team, "stays") == [json.dumps(before)]
    node.api.delete("Pod", "stays", team)
    eventually("all devices to be free", lambda: not list(node.kubelet.cdi_directory.iterdir()), timeout=90)
