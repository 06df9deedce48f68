"""Each check says what it found, on trees of files as kernel drivers and nodes have them."""

import dataclasses
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from kubeletplugin.checks.readings import (
    TEST_FILE,
    ClaimContainer,
    DeviceNode,
    Interface,
    NodeInfo,
    Readings,
    TrialWrite,
    device_node,
    read_files,
)
from kubeletplugin.checks.table import CHECKS, Grade, NodeFinding, judge
from kubeletplugin.discover.processes import OpenDevice
from kubeletplugin.discover.sysfs import discover, read_logical_nc
from kubeletplugin.settings import DriverSettings
from neuron.hardware.instances import Catalogue
from tests.kubeletplugin.fakes import NODE, Node

EFA = "efa"


def settings(node: Node) -> DriverSettings:
    return DriverSettings(
        node_name=NODE,
        sysfs_root=node.sysfs,
        dev_root=node.dev,
        logical_nc_file=node.root / "logical_nc_config",
        cdi_dir=node.root,
        state_dir=node.root,
    )


def readings(node: Node, /, **changes: object) -> Readings:
    """What the driver reads on an emulated tree, as if it were a real one."""
    hardware = discover(node.sysfs, node.dev, settings(node).logical_nc_file)
    found = read_files(settings(node), hardware, Catalogue().get(node.instance_type))
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type] # the test names fields


def finding(check: str, found: Readings) -> NodeFinding:
    [one] = [each for each in judge(found) if each.check == check]
    return one


def nodes(count: int, mode: int = 0o666, *, link: bool = True) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(each, "character device", 0, 0, mode, (243, each), link) for each in range(count))


@pytest.fixture
def trn2(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def test_every_check_has_a_name_of_its_own_and_a_result(trn2: Node) -> None:
    found = judge(readings(trn2))
    assert [each.check for each in found] == [each.name for each in CHECKS]
    assert len({each.name for each in CHECKS}) == len(CHECKS)
    assert all(each.found and not each.found.endswith(".") for each in found)
    assert all(each.fix for each in found if each.result in (Grade.WRONG, Grade.NOTE)), "a fault says what to do"
    assert not (trn2.root / TEST_FILE).exists()


def test_on_an_emulated_node_the_hardware_is_not_judged(trn2: Node) -> None:
    found = finding("device nodes", readings(trn2, emulated=True))
    assert (found.result, found.found) == (
        Grade.UNKNOWN,
        "the node is emulated (--emulate), so there is no hardware to check",
    )


@pytest.mark.parametrize(
    ("version", "result", "said"),
    [
        ("2.25.4.0", Grade.WELL, "version 2.25.4.0, whose sysfs tree is that of before 2.31"),
        ("2.31.7.0", Grade.WELL, "version 2.31.7.0, whose sysfs tree is that of since 2.31"),
        ("dkms", Grade.UNKNOWN, "/sys/module/neuron/version says 'dkms', which is not a version of that driver"),
    ],
)
def test_the_version_of_the_kernel_driver(trn2: Node, version: str, result: Grade, said: str) -> None:
    (trn2.sysfs / "module/neuron/version").write_text(f"{version}\n")
    found = finding("kernel driver", readings(trn2))
    assert (found.result, found.found) == (result, said)


def test_a_kernel_driver_that_is_not_loaded(trn2: Node) -> None:
    shutil.rmtree(trn2.sysfs / "module/neuron")
    found = finding("kernel driver", readings(trn2))
    assert found.result is Grade.WRONG
    assert found.found == "/sys/module/neuron is not there: the Neuron kernel driver is not loaded"
    (trn2.sysfs / "module/neuron").mkdir()
    assert finding("kernel driver", readings(trn2)).result is Grade.UNKNOWN


def test_files_are_found_in_the_tree_of_each_kernel_driver(trn2: Node) -> None:
    found = finding("sysfs files", readings(trn2))
    assert found.result is Grade.WELL, found
    assert "core_count at core_count" in found.found
    assert "serial_number at info/serial_number" in found.found
    # 2.31 moved counters to directories of their own.
    (trn2.sysfs / "module/neuron/version").write_text("2.31.7.0\n")
    for index in range(16):
        device = trn2.device_directory(index)
        (device / "info/topology").mkdir()
        (device / "connected_devices").rename(device / "info/topology/connected_devices")
    found = finding("sysfs files", readings(trn2))
    assert "connected_devices at info/topology/connected_devices" in found.found
    assert "missing: unhealthy_components of neuron0, neuron1, neuron2 and 13 more" in found.found
    assert found.result is Grade.NOTE


def test_a_device_that_lacks_a_file_is_named(trn2: Node) -> None:
    (trn2.device_directory(5) / "stats/hardware/sram_ecc_uncorrected").unlink()
    found = finding("sysfs files", readings(trn2))
    assert (found.result, "missing: sram_ecc_uncorrected of neuron5" in found.found) == (Grade.NOTE, True)


def test_links_are_compared_with_the_catalogue(trn2: Node) -> None:
    assert finding("links", readings(trn2)).found == "connected_devices of 16 devices are those of a torus"
    (trn2.device_directory(3) / "connected_devices").write_text("15, 2, 7\n")
    found = finding("links", readings(trn2))
    assert (found.result, found.found) == (
        Grade.NOTE,
        "neuron3 has the neighbours 2, 7, 15, and the catalogue 0, 2, 7, 15",
    )


def test_a_device_less_than_the_type_has(trn2: Node) -> None:
    shutil.rmtree(trn2.device_directory(9))
    found = finding("devices", readings(trn2))
    assert (found.result, found.found) == (
        Grade.WRONG,
        "15 in /sys/devices/virtual/neuron_device, and trn2.48xlarge has 16",
    )


def test_the_instance_type_by_dmi_and_label(trn2: Node) -> None:
    found = readings(trn2, node=NodeInfo(type_label="trn1.32xlarge"))
    assert finding("instance type", found).found == ("DMI names trn2.48xlarge, and the Node's label trn1.32xlarge")
    assert finding("instance type", found).result is Grade.NOTE
    assert finding("instance type", readings(trn2, instance=None)).result is Grade.NOTE
    assert finding("instance type", readings(trn2)).found == "trn2.48xlarge (DMI)"


@pytest.mark.parametrize(
    ("text", "instance_type", "result", "said"),
    [
        (None, "trn2.48xlarge", Grade.WELL, "does not exist, so it is 2"),
        (
            "NEURON_LOGICAL_NC_CONFIG=2\n",
            "trn2.48xlarge",
            Grade.WELL,
            "says 2, which is also the runtime's default",
        ),
        (
            "# by the AMI\nexport NEURON_LOGICAL_NC_CONFIG='1'\n",
            "trn2.48xlarge",
            Grade.NOTE,
            "says 1, and the runtime's default on trn2.48xlarge is 2: containers do not see the file",
        ),
        ("NEURON_RT_VIRTUAL_CORE_SIZE=1", "trn2.3xlarge", Grade.NOTE, "says 1, and the runtime's default"),
        ("NEURON_LOGICAL_NC_CONFIG=4\n", "trn2.48xlarge", Grade.NOTE, "says 4, and trn2.48xlarge can have 1 or 2"),
        ("NEURON_LOGICAL_NC_CONFIG=2\n", "trn1.32xlarge", Grade.NOTE, "says 2, and trn1.32xlarge can have 1"),
        (
            "lnc: 1\n",
            "trn2.48xlarge",
            Grade.NOTE,
            "it has no line NEURON_LOGICAL_NC_CONFIG=<number>: 'lnc: 1'",
        ),
        (
            "NEURON_LOGICAL_NC_CONFIG=1\nNEURON_LOGICAL_NC_CONFIG=2\n",
            "trn2.48xlarge",
            Grade.NOTE,
            "it sets different values: 'NEURON_LOGICAL_NC_CONFIG=1 NEURON_LOGICAL_NC_CONFIG=2'",
        ),
    ],
)
def test_the_nodes_default_of_the_logical_core(
    tmp_path: Path, text: str | None, instance_type: str, result: Grade, said: str
) -> None:
    node = Node(tmp_path / "node", instance_type)
    if text is not None:
        settings(node).logical_nc_file.write_text(text)
    found = finding("logical NeuronCore", readings(node))
    assert (found.result, said in found.found) == (result, True), found


def test_a_file_of_defaults_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert read_logical_nc(tmp_path / "folder").problem == "it cannot be read: Is a directory"
    assert read_logical_nc(tmp_path / "none").problem == ""


def test_files_in_the_place_of_device_nodes(trn2: Node) -> None:
    (trn2.dev / "neuron4").unlink()
    found = finding("device nodes", readings(trn2))
    assert (found.result, found.found) == (
        Grade.WRONG,
        "no character devices: /dev/neuron0 (regular file), /dev/neuron1 (regular file), /dev/neuron2 (regular file), "
        "/dev/neuron3 (regular file) and 12 more",
    )
    assert device_node(trn2.dev, 4).kind == "missing"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device node")
def test_numbers_owner_and_mode_are_read_from_a_device_node(tmp_path: Path) -> None:
    os.mknod(tmp_path / "neuron0", 0o20640, os.makedev(1, 3))
    (tmp_path / "neuron0").chmod(0o640)
    assert device_node(tmp_path, 0) == DeviceNode(0, "character device", 0, 0, 0o640, (1, 3), False)
    (tmp_path / "char").mkdir()
    (tmp_path / "char/1:3").symlink_to("../neuron0")
    assert device_node(tmp_path, 0).link is True


def test_device_nodes_that_only_root_may_open(trn2: Node) -> None:
    found = finding("device mode", readings(trn2, nodes=nodes(16, 0o600)))
    assert (found.result, found.found) == (
        Grade.NOTE,
        "mode 0600, user 0, group 0: not for every user to read and write",
    )
    assert finding("device mode", readings(trn2, nodes=nodes(16))).result is Grade.WELL


def test_device_numbers_without_links(trn2: Node) -> None:
    found = finding("device numbers", readings(trn2, nodes=nodes(2, link=False)))
    assert (found.result, found.found) == (Grade.NOTE, "there is no /dev/char/243:0, /dev/char/243:1")
    assert finding("device numbers", readings(trn2, nodes=nodes(2))).result is Grade.WELL


def test_device_nodes_that_are_open_without_a_claim(trn2: Node) -> None:
    claimed = OpenDevice(8, "python", "pod-1", frozenset({0}), claimed=True)
    assert finding("open handles", readings(trn2, opened=(claimed,))).result is Grade.WELL
    other = OpenDevice(9, "neuron-top", "", frozenset({0, 1}), claimed=False)
    found = finding("open handles", readings(trn2, opened=(claimed, other)))
    assert (found.result, found.found) == (
        Grade.WRONG,
        "open without a claim: /dev/neuron0, /dev/neuron1 in process 9 (neuron-top) of the host",
    )
    unknown = finding("open handles", readings(trn2, opened="3 processes cannot be looked at"))
    assert (unknown.result, unknown.found) == (Grade.UNKNOWN, "3 processes cannot be looked at")


@pytest.mark.parametrize(
    ("runtime", "result"),
    [
        ("containerd://2.1.4", Grade.WELL),
        ("containerd://v2.0.0-rc.1", Grade.WELL),
        ("containerd://1.7.29", Grade.UNKNOWN),
        ("containerd://1.6.36", Grade.WRONG),
        ("cri-o://1.34.1", Grade.WELL),
        ("cri-o://1.22.0", Grade.WRONG),
        ("docker://28.0.1", Grade.UNKNOWN),
        ("containerd", Grade.UNKNOWN),
        ("", Grade.UNKNOWN),
    ],
)
def test_cdi_by_the_version_of_the_runtime(trn2: Node, runtime: str, result: Grade) -> None:
    found = finding("CDI", readings(trn2, node=NodeInfo(runtime)))
    assert found.result is result
    assert runtime in found.found


def test_cdi_of_a_node_that_cannot_be_read(trn2: Node) -> None:
    found = finding("CDI", readings(trn2, node=NodeInfo(error="403 Forbidden")))
    assert (found.result, found.found) == (Grade.UNKNOWN, "the Node cannot be read: 403 Forbidden")


def claim_container(*, has: bool, seen: tuple[DeviceNode, ...] | None = None) -> ClaimContainer:
    return ClaimContainer("ns/p", "main", "ns/c (UID u)", frozenset({0}), has, seen)


def test_a_container_proves_cdi_or_its_absence(trn2: Node) -> None:
    well = readings(trn2, node=NodeInfo("containerd://1.7.29"), containers=(claim_container(has=True, seen=nodes(1)),))
    assert finding("CDI", well).found == "containerd://1.7.29 applied a CDI spec to container main of pod ns/p"
    assert finding("container", well).found == (
        "container main of pod ns/p has the devices of ResourceClaim ns/c (UID u); its nodes have mode 0666, user 0, "
        "group 0"
    )
    without = readings(trn2, node=NodeInfo("containerd://1.7.29"), containers=(claim_container(has=False),))
    found = finding("container", without)
    assert (found.result, found.found) == (
        Grade.WRONG,
        "runs without the devices of its claim: container main of pod ns/p (ResourceClaim ns/c (UID u))",
    )
    lacking = finding("container", readings(trn2, containers=(claim_container(has=True, seen=()),)))
    assert (lacking.result, "and not /dev/neuron0" in lacking.found) == (Grade.WRONG, True)
    assert finding("container", readings(trn2, containers="no /proc")).result is Grade.UNKNOWN
    assert finding("container", readings(trn2)).result is Grade.UNKNOWN


def test_a_folder_in_which_nothing_can_be_written(trn2: Node) -> None:
    there = msgspec.structs.replace(settings(trn2), cdi_dir=trn2.root / "no-folder")
    found = read_files(there, trn2.discover(), None)
    assert found.writes == (TrialWrite(there.cdi_dir, "No such file or directory"), TrialWrite(trn2.root))
    assert finding("test write", found).result is Grade.WRONG


@pytest.mark.parametrize(
    ("enforcing", "label", "result"),
    [
        (None, "", Grade.WELL),
        (False, "unlabeled_t", Grade.WELL),
        (True, "system_u:object_r:container_file_t:s0", Grade.WELL),
        (True, "system_u:object_r:var_lib_t:s0", Grade.NOTE),
        (True, "", Grade.UNKNOWN),
    ],
)
def test_selinux(trn2: Node, enforcing: bool | None, label: str, result: Grade) -> None:
    written = (TrialWrite(Path("/var/lib/kubelet/plugins"), "", label),)
    assert finding("SELinux", readings(trn2, enforcing=enforcing, writes=written)).result is result


def test_efa_interfaces_and_huge_pages(trn2: Node) -> None:
    found = finding("EFA", readings(trn2))
    assert found.result is Grade.NOTE
    assert found.found.startswith("0 with the driver efa in /sys/class/infiniband, 0 in /dev/infiniband; none at 0000:")
    directory = trn2.sysfs / "class/infiniband"
    for name, address in (("rdmap0", "0000:c9:00.0"), ("mlx5_0", "0000:01:00.0")):
        function = trn2.sysfs / "devices/pci0000:c0" / address
        (function / "driver-target" / (EFA if name == "rdmap0" else "mlx5_core")).mkdir(parents=True)
        (function / "driver").symlink_to(function / "driver-target" / (EFA if name == "rdmap0" else "mlx5_core"))
        (directory / name).mkdir(parents=True)
        (directory / name / "device").symlink_to(function)
    pages = trn2.sysfs / "kernel/mm/hugepages/hugepages-2048kB"
    pages.mkdir(parents=True)
    (pages / "nr_hugepages").write_text("0\n")
    (pages / "free_hugepages").write_text("0\n")
    seen = readings(trn2)
    assert Interface("rdmap0", EFA, "0000:c9:00.0") in seen.interfaces
    assert finding("EFA", seen).found.startswith("1 with the driver efa")
    assert finding("huge pages", seen).result is Grade.NOTE
    (pages / "nr_hugepages").write_text("5128\n")
    assert finding("huge pages", readings(trn2)).found == "5128 pages of 2 MiB, 0 free"
    inf2 = dataclasses.replace(readings(trn2), instance=Catalogue().get("inf2.xlarge"))
    assert finding("EFA", inf2).result is Grade.WELL


def test_pci_functions_at_other_addresses(trn2: Node) -> None:
    assert finding("PCI addresses", readings(trn2)).found == "16 functions at the addresses that AWS documents"
    odd = readings(trn2, functions=("0000:cc:00.0", "0000:11:00.0"))
    assert finding("PCI addresses", odd).result is Grade.NOTE
    assert finding("PCI addresses", readings(trn2, functions=())).result is Grade.UNKNOWN
