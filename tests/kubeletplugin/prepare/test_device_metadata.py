"""What a container may read about its devices (KEP-5304): the document, its path, and when the files exist."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.sysfs import Membership, Place, UltraServer
from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare.cdi import MetadataFiles, container_path
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from neuron.api.allocation import AllocatedClaim, read_allocation
from tests.kubeletplugin.fakes import DRIVER, NODE, Node, allocated, config, devices, result, share, spec_name, uid

ROOT = "/var/run/kubernetes.io/dra-device-attributes"


def mounts(node: Node, number: int = 1) -> dict[str, Path]:
    """Path in the container -> path on the host."""
    spec = json.loads((node.cdi_dir / spec_name(number)).read_text())
    found: dict[str, Path] = {}
    for device in spec["devices"]:
        for mount in device["containerEdits"].get("mounts", ()):
            assert mount["options"] == ["ro", "bind"]
            assert mount["containerPath"] not in found
            found[mount["containerPath"]] = Path(mount["hostPath"])
    return found


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def attributes(node: Node, claim: AllocatedClaim) -> dict[str, Any]:
    node.preparer().prepare(claim, node.view())
    [path] = mounts(node).values()
    [request] = read(path)["requests"]
    return dict(request["devices"][0]["attributes"])


def from_template(name: str, claim: AllocatedClaim) -> AllocatedClaim:
    return dataclasses.replace(claim, pod_claim=name)


def test_a_container_reads_the_metadata_of_its_devices(node: Node) -> None:
    node.preparer().prepare(allocated(1, *devices(4, 5)), node.view())
    [(path, source)] = mounts(node).items()
    assert path == f"{ROOT}/resourceclaims/claim-1/n0/{DRIVER}-metadata.json"
    found = read(source)
    assert (found["kind"], found["apiVersion"]) == ("DeviceMetadata", "metadata.resource.k8s.io/v1alpha1")
    assert found["metadata"] == {"name": "claim-1", "namespace": "ns", "uid": uid(1), "generation": 1}
    assert "podClaimName" not in found
    [request] = found["requests"]
    assert request["name"] == "n0"
    assert [(each["driver"], each["pool"], each["name"]) for each in request["devices"]] == [
        (DRIVER, NODE, "neuron-device-4"),
        (DRIVER, NODE, "neuron-device-5"),
    ]
    told = request["devices"][0]["attributes"]
    assert told["deviceId"] == {"int": 4}
    assert told["instanceType"] == {"string": node.instance_type}
    assert told["neuroncores"] == {"int": 8}
    assert told["logicalNeuronCore"] == {"int": 2}
    assert told["resource.aws.com/devicegroup4_id"]["string"]
    assert all(len(value) == 1 and next(iter(value)) in ("int", "string", "version", "bool") for value in told.values())


def test_a_claim_of_a_template_is_found_by_its_name_in_the_pod(node: Node) -> None:
    node.preparer().prepare(from_template("neuron", allocated(1, *devices(0))), node.view())
    [(path, source)] = mounts(node).items()
    assert path == f"{ROOT}/resourceclaimtemplates/neuron/n0/{DRIVER}-metadata.json"
    assert read(source)["podClaimName"] == "neuron"


def test_an_alternative_is_named_in_the_file_and_not_in_the_path(node: Node) -> None:
    node.preparer().prepare(
        allocated(1, result("neuron-device-0", "n0/big"), result("neuron-device-1", "n1")), node.view()
    )
    found = mounts(node)
    assert [path.split("/")[-2] for path in found] == ["n0", "n1"]
    assert [read(source)["requests"][0]["name"] for source in found.values()] == ["n0/big", "n1"]


def test_metadata_has_the_settings_of_the_claim(node: Node) -> None:
    claim = allocated(1, *devices(0), config=[config("NeuronConfig", logicalNeuronCore=1)])
    assert attributes(node, claim)["logicalNeuronCore"] == {"int": 1}


def test_each_request_has_its_own_settings(node: Node) -> None:
    settings = [config("NeuronConfig", requests=("n1",), logicalNeuronCore=1)]
    claim = allocated(1, result("neuron-device-0", "n0"), result("neuron-device-1", "n1"), config=settings)
    node.preparer().prepare(claim, node.view())
    told = [read(path)["requests"][0]["devices"][0]["attributes"] for path in mounts(node).values()]
    assert [each["logicalNeuronCore"] for each in told] == [{"int": 2}, {"int": 1}]


@pytest.mark.parametrize(("known", "cores"), [(True, {"int": 8}), (False, None)], ids=["catalogue", "unknown"])
def test_cores_that_sysfs_does_not_tell_are_those_of_the_type(
    node: Node, known: bool, cores: dict[str, int] | None
) -> None:
    (node.device_directory(0) / "core_count").unlink()
    view = node.view() if known else dataclasses.replace(node.view(), instance=None, attributes=lambda _: {})
    node.preparer().prepare(allocated(1, *devices(0)), view)
    [path] = mounts(node).values()
    assert read(path)["requests"][0]["devices"][0]["attributes"].get("neuroncores") == cores


def test_a_place_is_not_told_while_nodes_elect(node: Node) -> None:
    members = {2: Membership("a" * 16, 1)}
    hardware = dataclasses.replace(node.discover(), ultraserver=UltraServer(frozenset({1}), members, busy=True))
    node.preparer().prepare(allocated(1, *devices(0)), dataclasses.replace(node.view(), hardware=hardware))
    [path] = mounts(node).values()
    assert "ultraServerId" not in read(path)["requests"][0]["devices"][0]["attributes"]


def test_a_share_has_its_cores(node: Node) -> None:
    told = attributes(node, allocated(1, share(0, 2)))
    assert told["neuroncores"] == {"int": 2}
    assert told["deviceCores"] == {"string": "0,1"}
    assert told["visibleCores"]["string"]


def test_pci_address_and_ultraserver(node: Node) -> None:
    hardware = dataclasses.replace(
        node.discover(),
        places={0: Place("pci0000:c8", 1, "0000:cc:00.0")},
        ultraserver=UltraServer(frozenset({1}), {2: Membership("a" * 16, 1), 4: Membership("b" * 16, 3)}),
    )
    view = dataclasses.replace(node.view(), hardware=hardware)
    node.preparer().prepare(allocated(1, *devices(0)), view)
    [path] = mounts(node).values()
    told = read(path)["requests"][0]["devices"][0]["attributes"]
    assert told["resource.kubernetes.io/pciBusID"] == {"string": "0000:cc:00.0"}
    assert told["ultraServerId"] == {"string": "b" * 16}
    assert (told["ultraServerNodeId"], told["ultraServerNodes"]) == ({"int": 3}, {"int": 4})


def test_files_end_with_the_claim(node: Node) -> None:
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(0)), node.view())
    preparer.prepare(allocated(2, *devices(1)), node.view())
    [first], [second] = mounts(node, 1).values(), mounts(node, 2).values()
    preparer.unprepare(uid(1))
    assert not first.exists()
    assert second.exists()


@pytest.mark.parametrize("lost", ["metadata", "specs", "both"])
def test_lost_files_are_written_again_at_start(node: Node, lost: str) -> None:
    node.preparer().prepare(allocated(1, *devices(0)), node.view())
    [path] = mounts(node).values()
    before = path.read_bytes()
    if lost != "specs":
        path.unlink()
    if lost != "metadata":
        (node.cdi_dir / spec_name(1)).unlink()
    node.preparer().recover()
    assert mounts(node)
    assert path.read_bytes() == before


def test_only_the_lost_file_is_written_again(node: Node) -> None:
    node.preparer().prepare(allocated(1, result("neuron-device-0", "n0"), result("neuron-device-1", "n1")), node.view())
    first, second = mounts(node).values()
    before = first.stat().st_ino
    second.unlink()
    node.preparer().mend()
    assert second.exists()
    assert first.stat().st_ino == before


@pytest.mark.parametrize("places", [{}, {0: Place("pci0000:c8", 1, None)}], ids=["no place", "no address"])
def test_a_device_without_pci_address_has_none(node: Node, places: dict[int, Place]) -> None:
    view = dataclasses.replace(node.view(), hardware=dataclasses.replace(node.discover(), places=places))
    node.preparer().prepare(allocated(1, *devices(0)), view)
    [path] = mounts(node).values()
    assert "resource.kubernetes.io/pciBusID" not in read(path)["requests"][0]["devices"][0]["attributes"]


def test_a_file_without_a_claim_is_removed_at_start(node: Node) -> None:
    node.preparer().prepare(allocated(1, *devices(0)), node.view())
    [path] = mounts(node).values()
    stray = path.with_name(f"{uid(9)}_n0_1.json")
    leftover = path.with_name(f".{uid(9)}_n0_1.json.tmp")
    for each in (stray, leftover):
        each.write_text("{}")
    node.preparer().recover()
    assert path.exists()
    assert not stray.exists()
    assert not leftover.exists()


def test_another_allocation_has_a_higher_generation(node: Node) -> None:
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(0)), node.view())
    preparer.prepare(allocated(1, *devices(1)), node.view())
    [path] = mounts(node).values()
    assert read(path)["metadata"]["generation"] == 2


def test_a_claim_that_was_restored_without_metadata_has_a_file_with_its_name(tmp_path: Path) -> None:
    files = MetadataFiles(DiskFiles(), tmp_path)
    claim = PreparedClaim(uid(1), "ns", "gone", "", (PreparedDevice("n0", NODE, "neuron-device-3", (3,)),))
    files.ensure(claim)
    assert read(files.path(claim, "n0")) == {
        "kind": "DeviceMetadata",
        "apiVersion": "metadata.resource.k8s.io/v1alpha1",
        "metadata": {"name": "gone", "namespace": "ns", "uid": uid(1), "generation": 0},
        "requests": [],
    }
    assert files.mount(claim, "n0")["containerPath"] == f"{ROOT}/resourceclaims/gone/n0/{DRIVER}-metadata.json"


@pytest.mark.parametrize(
    ("annotation", "pod_claim"), [("neuron", "neuron"), ("../../../etc", ""), ("a/b", ""), ("", ""), ("A", "")]
)
def test_an_annotation_cannot_choose_a_path(annotation: str, pod_claim: str) -> None:
    claim = {
        "metadata": {
            "name": "c",
            "namespace": "ns",
            "uid": uid(1),
            "annotations": {"resource.kubernetes.io/pod-claim-name": annotation},
        },
        "status": {
            "allocation": {
                "devices": {"results": [{"request": "n0", "driver": DRIVER, "pool": NODE, "device": "neuron-device-0"}]}
            }
        },
    }
    assert read_allocation(claim, DRIVER, NODE, uid(1)).pod_claim == pod_claim


@pytest.mark.parametrize(("claim", "request_name"), [("../x", "n0"), (uid(1), "../x"), (uid(1), "a/b"), ("", "n0")])
def test_names_cannot_lead_out_of_the_directory(tmp_path: Path, claim: str, request_name: str) -> None:
    with pytest.raises(ValueError, match="neither the UID"):
        MetadataFiles(DiskFiles(), tmp_path).path(PreparedClaim(claim, "ns", "c", "", ()), request_name)


@pytest.mark.parametrize(
    "name", ["c", "a.b-c.0", "0", "x" * 63 + "." + "y" * 189], ids=["one", "dots", "digit", "long"]
)
def test_names_that_the_api_allows_are_one_part_of_the_path(name: str) -> None:
    """A claim's name is a DNS subdomain: of 253 characters at most, without a slash and not `..`."""
    path = container_path({"metadata": {"name": name}}, "r" * 63)
    parts = path.split("/")
    assert parts[-4:] == ["resourceclaims", name, "r" * 63, "neuron.aws.com-metadata.json"]
    assert all(len(part) <= 255 for part in parts)
    assert len(path) < 4096
