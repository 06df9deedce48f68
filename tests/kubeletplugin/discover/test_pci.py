"""The PCI function of a device is known if it is the only one, or if AWS documents all of them; else it is not."""

from pathlib import Path

import pytest

from kubeletplugin.discover import sysfs
from kubeletplugin.discover.sysfs import Place, pci_places
from tests.kubeletplugin.fakes import Node

ONE = "0000:00:1f.0"


def function(
    root: Path, address: str = ONE, *, device: str = "0x7264", vendor: str = sysfs.PCI_VENDOR, numa: str = "0"
) -> None:
    """Add a PCI function as sysfs shows it: a link to its directory below a bridge of its root complex."""
    real = root / "devices/pci0000:00/0000:00:01.0" / address
    real.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("device", device), ("numa_node", numa)):
        (real / name).write_text(f"{text}\n")
    link = root / sysfs.PCI_DEVICES / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("../../..") / real.relative_to(root))


def test_the_only_function_belongs_to_the_only_device(tmp_path: Path) -> None:
    function(tmp_path, numa="1")
    function(tmp_path, "0000:00:05.0", device="0xec20")
    function(tmp_path, "0000:00:06.0", vendor="0x8086")
    assert pci_places(tmp_path, "inf2.xlarge", [0]) == {0: Place("pci0000:00", 1, "0000:00:1f.0")}


@pytest.mark.parametrize("numa", ["-1", "", "x", "18446744073709551615"])
def test_a_machine_without_numa_information_has_no_numa_node(tmp_path: Path, numa: str) -> None:
    function(tmp_path, numa=numa)
    assert pci_places(tmp_path, "inf2.xlarge", [0]) == {0: Place("pci0000:00", None, "0000:00:1f.0")}


def test_several_devices_of_a_type_without_documents_have_no_place(tmp_path: Path) -> None:
    function(tmp_path)
    function(tmp_path, "0000:00:1e.0")
    assert pci_places(tmp_path, "inf2.24xlarge", [0, 1]) == {}
    assert pci_places(tmp_path, "inf2.xlarge", [0]) == {}, "two functions, one device: either could be it"


def test_a_node_without_a_pci_bus_has_no_places(tmp_path: Path) -> None:
    assert pci_places(tmp_path, "inf2.xlarge", [0]) == {}
    assert pci_places(tmp_path, None, []) == {}


@pytest.mark.parametrize(
    ("name", "second"),
    [("trn1.32xlarge", {2, 3, 6, 7, 10, 11, 14, 15}), ("trn2.48xlarge", {0, 1, 2, 3, 12, 13, 14, 15})],
)
def test_documented_addresses_give_the_documented_numa_nodes(tmp_path: Path, name: str, second: set[int]) -> None:
    found = Node(tmp_path, name).discover().places
    assert {index for index, place in found.items() if place.numa_node == 1} == second
    assert {index for index, place in found.items() if place.numa_node == 0} == set(range(16)) - second
    assert all(place.root for place in found.values())


def test_documented_addresses_are_not_used_on_a_node_with_other_functions(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2.48xlarge")
    function(node.sysfs, device="0x7364")
    assert node.discover().places == {}


def test_a_function_that_has_vanished_leaves_the_others(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2.48xlarge")
    (node.sysfs / sysfs.PCI_DEVICES / "0000:cc:00.0").unlink()
    assert sorted(node.discover().places) == list(range(1, 16))


def test_a_device_that_has_vanished_keeps_its_place(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2.48xlarge")
    before = node.discover().places
    assert pci_places(node.sysfs, "trn2.48xlarge", [0, 1]) == before
