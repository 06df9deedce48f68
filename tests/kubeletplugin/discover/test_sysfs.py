"""Discovery reads what the kernel driver writes, with all the quirks of its files."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover import emulate
from kubeletplugin.discover.sysfs import Membership, UltraServer, discover, read_ultraserver
from neuron.hardware.instances import TYPES
from tests.kubeletplugin.fakes import Node

TORUS = {0: {1, 3, 4, 12}, 5: {1, 4, 6, 9}, 15: {3, 11, 12, 14}}


@pytest.mark.parametrize("name", [entry.name for entry in TYPES])
def test_every_type_of_the_catalogue_is_emulated_and_read_back(tmp_path: Path, name: str) -> None:
    entry = emulate.emulated_type(name)
    hardware = Node(tmp_path, name).discover()
    assert hardware.instance_type == name
    assert hardware.driver_version == "2.25.4.0"
    assert [device.index for device in hardware.devices] == list(range(emulate.devices_of(entry)))
    assert {device.cores for device in hardware.devices} == {entry.cores_per_device}
    assert all(device.has_node and not device.unreadable for device in hardware.devices)
    assert (hardware.ultraserver is not None) == bool(entry.ultraserver_nodes)
    assert all((device.serial is None) == (entry.family == "inf1") for device in hardware.devices)


def test_the_torus_is_the_one_of_neuron_ls(node: Node) -> None:
    connected = {device.index: set(device.connected or ()) for device in node.discover().devices}
    assert {index: connected[index] for index in TORUS} == TORUS


def test_the_ring_is_the_one_of_neuron_ls(tmp_path: Path) -> None:
    connected = [set(device.connected or ()) for device in Node(tmp_path, "inf2.48xlarge").discover().devices]
    assert connected == [{(index - 1) % 12, (index + 1) % 12} for index in range(12)]


def test_an_existing_tree_is_not_changed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    counter = node.device_directory(3) / "stats/hardware/mem_ecc_uncorrected"
    counter.write_text("7\n")
    assert Node(tmp_path).discover().devices[3].counters["mem_ecc_uncorrected"] == 7
    Node(tmp_path, driver_version="2.26.5.0")
    assert Node(tmp_path, driver_version="2.26.5.0").discover().devices[3].counters["mem_ecc_uncorrected"] == 0


def test_a_tree_of_another_type_makes_room_and_files_of_others_stay(tmp_path: Path) -> None:
    before = Node(tmp_path, "trn2u.48xlarge", driver_version="2.30.2.0")
    foreign = (before.sysfs / "class/net", before.dev / "null", before.sysfs / "devices/virtual/dmi/id/board_name")
    for path in foreign:
        path.write_text("foreign")
    node = Node(tmp_path, "trn2.3xlarge")
    hardware = node.discover()
    assert (hardware.instance_type, len(hardware.devices), node.read_ultraserver()) == ("trn2.3xlarge", 1, None)
    assert [path.name for path in sorted(node.dev.iterdir())] == ["neuron0", "null"]
    assert all(path.read_text() == "foreign" for path in foreign)


def test_a_tree_that_was_left_half_written_is_written_again(tmp_path: Path) -> None:
    entry = emulate.emulated_type("trn2u.48xlarge")
    (tmp_path / "dev").write_text("in the way")
    with pytest.raises(FileExistsError):
        emulate.write_tree(tmp_path, entry)
    (tmp_path / "dev").unlink()
    emulate.write_device(tmp_path / "sys", entry, 15)
    assert len(Node(tmp_path, "trn2.3xlarge").discover().devices) == 1


def test_an_unknown_type_cannot_be_emulated() -> None:
    with pytest.raises(emulate.UnknownTypeError) as caught:
        emulate.emulated_type("trn2.48xlrge")
    assert str(caught.value) == "There is no instance type 'trn2.48xlrge' to emulate. Did you mean 'trn2.48xlarge'?"


@pytest.mark.parametrize(
    ("text", "cores"),
    [("8", 8), ("8\n", 8), (" 8 \n", 8), ("8\0", 8), ("", None), ("busy", None), ("\xff", None)],
    ids=["no-newline", "newline", "blanks", "nul", "empty", "busy", "not-ascii"],
)
def test_core_counts_are_read_as_they_come(node: Node, text: str, cores: int | None) -> None:
    (node.device_directory(0) / "core_count").write_text(text, encoding="latin-1")
    assert node.discover().devices[0].cores == cores


@pytest.mark.parametrize("text", ["4294967295", "-1", "0", "129", "9" * 4000], ids=len)
def test_what_is_no_number_of_cores_is_named_and_not_used(node: Node, text: str) -> None:
    """A share of such a device made the driver run out of memory."""
    path = node.device_directory(0) / "core_count"
    path.write_text(text)
    device = node.discover().devices[0]
    assert (device.cores, device.unreadable) == (
        None,
        (f"{path}: it says {text[:20]}, which is no number of cores",),
    )


@pytest.mark.parametrize("text", ["a" * 65, "a\0b", "\xff" * 4000, "a b"], ids=["long", "nul", "binary", "blank"])
def test_what_is_no_serial_number_is_not_used(node: Node, text: str) -> None:
    """It would be in `status.devices` of claims, whose data have a bound."""
    (node.device_directory(0) / "info/serial_number").write_text(text, encoding="latin-1")
    assert [device.serial is None for device in node.discover().devices[:2]] == [True, False]


@pytest.mark.parametrize(
    ("text", "connected"),
    [("12, 3, 4, 1\n", {12, 3, 4, 1}), ("1,4", {1, 4}), ("\n", set()), ("4, 1, ", {4, 1}), ("12, x, 1", {12, 1})],
    ids=["any-order", "no-blanks", "none", "cut-off", "garbage"],
)
def test_connections_are_read_as_a_set(node: Node, text: str, connected: set[int]) -> None:
    (node.device_directory(0) / "connected_devices").write_text(text)
    assert set(node.discover().devices[0].connected or ()) == connected


def test_counters_may_be_directories_and_lie_elsewhere(node: Node) -> None:
    """The user guide describes counters as directories, and driver 2.31 moved files."""
    hardware = node.device_directory(2) / "stats/hardware"
    (hardware / "sram_ecc_uncorrected").unlink()
    (hardware / "sram_ecc_uncorrected").mkdir()
    (hardware / "sram_ecc_uncorrected/total").write_text("5\n")
    (hardware / "sram_ecc_uncorrected/present").write_text("1\n")
    moved = node.device_directory(2) / "health/ecc"
    moved.mkdir(parents=True)
    (hardware / "mem_ecc_uncorrected").rename(moved / "mem_ecc_uncorrected")
    (moved / "mem_ecc_uncorrected").write_text("6\n")
    counters = node.discover().devices[2].counters
    assert (counters["sram_ecc_uncorrected"], counters["mem_ecc_uncorrected"]) == (5, 6)


@pytest.mark.parametrize(
    ("text", "unhealthy"),
    [("\n", ()), ("none\n", ()), ("0", ()), ("sram,hbm\n", ("hbm", "sram")), ("link_efa", ("link_efa",))],
    ids=["empty", "none", "zero", "two", "one"],
)
def test_unhealthy_components_are_listed(tmp_path: Path, text: str, unhealthy: tuple[str, ...]) -> None:
    node = Node(tmp_path, driver_version="2.30.2.0")
    (node.device_directory(0) / "stats/hardware/health_status/unhealthy_components").write_text(text)
    assert node.discover().devices[0].unhealthy == unhealthy


def _failing_open(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    really = os.open

    def open_or_fail(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(name):
            raise OSError(number, os.strerror(number))
        return really(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_or_fail)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENODEV, errno.ENXIO], ids=["root-only", "gone", "no-device"])
def test_files_that_cannot_be_opened_or_disappear_count_as_absent(
    node: Node, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _failing_open(monkeypatch, "core_count", number)
    device = node.discover().devices[0]
    assert (device.cores, device.unreadable) == (None, ())


def test_a_file_that_cannot_be_read_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing_open(monkeypatch, "neuron4/core_count", errno.EIO)
    devices = node.discover().devices
    assert devices[4].unreadable == (f"{node.device_directory(4) / 'core_count'}: Input/output error",)
    assert devices[5].unreadable == ()


def test_a_device_that_vanishes_while_it_is_read_is_left_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open

    def open_and_vanish(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("neuron7/core_count"):
            shutil.rmtree(node.device_directory(7))
        return really(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_and_vanish)
    assert [device.index for device in node.discover().devices] == [*range(7), *range(8, 16)]


def test_a_missing_device_node_is_seen(node: Node) -> None:
    (node.dev / "neuron9").unlink()
    assert [device.index for device in node.discover().devices if not device.has_node] == [9]


def test_a_node_without_the_driver_has_no_devices(tmp_path: Path) -> None:
    hardware = discover(tmp_path / "sys", tmp_path / "dev")
    assert (hardware.devices, hardware.instance_type, hardware.driver_version, hardware.ultraserver) == (
        (),
        None,
        None,
        None,
    )


@pytest.mark.parametrize("product", ["HVM domU\n", "", "t3\n"], ids=["xen", "empty", "half"])
def test_dmi_names_that_are_no_instance_type_are_ignored(node: Node, product: str) -> None:
    (node.sysfs / "devices/virtual/dmi/id/product_name").write_text(product)
    assert node.discover().instance_type is None


def test_other_names_beside_the_devices_are_ignored(node: Node) -> None:
    for name in ("power", "neuronX", "neuron1234", "uevent"):
        (node.sysfs / "devices/virtual/neuron_device" / name).mkdir()
    assert len(node.discover().devices) == 16


# --- UltraServer ----------------------------------------------------------------------------------------------


def ultraserver(root: Path, **files: str) -> UltraServer | None:
    directory = root / "class/neuron_device"
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return read_ultraserver(root)


HEX = "0123456789abcdef"


def test_a_member_of_both_sets_is_read(tmp_path: Path) -> None:
    files = {"server_id_2": f"{HEX}\n", "node_id_2": "1\n", "server_id_4": "f" * 16, "node_id_4": "3"}
    assert ultraserver(tmp_path, ultraserver_mode="1,3,4\n", **files) == UltraServer(
        frozenset({1, 3, 4}), {2: Membership(HEX, 1), 4: Membership("f" * 16, 3)}
    )


@pytest.mark.parametrize(
    "files",
    [
        {"ultraserver_mode": "busy\n"},
        {"ultraserver_mode": "1,4", "node_id_4": "busy", "server_id_4": "0" * 16},
    ],
    ids=["mode", "node"],
)
def test_an_election_is_seen(tmp_path: Path, files: dict[str, str]) -> None:
    found = ultraserver(tmp_path, **files)
    assert found is not None
    assert found.busy
    assert found.members == {}


def test_a_node_without_a_set_has_no_membership(tmp_path: Path) -> None:
    files = {"server_id_4": "0" * 16, "node_id_4": "-1\n", "server_id_2": HEX, "node_id_2": "-1"}
    assert ultraserver(tmp_path, ultraserver_mode="\n", **files) == UltraServer()


def test_an_id_that_no_variable_can_have_is_none(tmp_path: Path) -> None:
    """runc starts no container whose variables have a zero byte."""
    files = {"server_id_4": "a\0b", "node_id_4": "1", "server_id_2": HEX, "node_id_2": "1"}
    found = ultraserver(tmp_path, ultraserver_mode="1,3", **files)
    assert found is not None
    assert found.members == {2: Membership(HEX, 1)}


def test_the_later_generation_names_its_files_without_a_number(tmp_path: Path) -> None:
    found = ultraserver(tmp_path, ultraserver_mode="1", reservation_id=HEX, node_id="2")
    assert found is not None
    assert found.members == {2: Membership(HEX, 2), 4: Membership(HEX, 2)}


def test_nodes_without_ultraserver_have_no_ultraserver_files(node: Node) -> None:
    assert node.read_ultraserver() is None
