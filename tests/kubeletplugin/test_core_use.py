"""The use of cores, from the trees of kernel drivers before and since 2.31."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.device_info import CoresUse, UseReader, use_files
from kubeletplugin.discover import emulate
from kubeletplugin.metrics import CoreUse
from tests.kubeletplugin.fakes import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path, "trn1.2xlarge")
    emulate.write_use(found.sysfs, 0, range(2), memory=4096, microseconds=1_500_000)
    return found


def power(node: Node) -> Path:
    return node.device_directory(0) / "stats/power/utilization"


def test_memory_is_without_that_of_the_kernel_driver(node: Node) -> None:
    own = node.device_directory(0) / "neuron_core1/stats/memory_usage/device_mem/driver_memory"
    own.mkdir()
    (own / "total").write_text("96\n")
    (own / "present").write_text("7\n")
    assert UseReader(node.sysfs).read([0]) == {0: CoresUse({0: CoreUse(4096, 1.5), 1: CoreUse(4000, 1.5)}, 0.0)}
    (own / "total").write_text("9999\n")
    assert UseReader(node.sysfs).read([0])[0].cores[1].memory == 0


def test_files_are_found_where_another_kernel_driver_has_them(node: Node) -> None:
    """2.31 moved files; cores may be below another directory, and a counter may be one file."""
    device = node.device_directory(0)
    (device / "cores").mkdir()
    (device / "neuron_core0").rename(device / "cores/neuron_core0")
    usage = device / "neuron_core1/stats/memory_usage"
    usage.rename(device / "neuron_core1/memory")
    counter = device / "neuron_core1/stats/other_info/nc_time_in_use"
    shutil.rmtree(counter)
    counter.write_text("2000000\n")
    (device / "stats/power").rename(device / "stats/energy")
    assert UseReader(node.sysfs).read([0]) == {0: CoresUse({0: CoreUse(4096, 1.5), 1: CoreUse(4096, 2.0)}, 0.0)}


def test_a_kernel_driver_that_does_not_tell(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn1.2xlarge")
    assert UseReader(node.sysfs).read([0, 7]) == {0: CoresUse({0: CoreUse(), 1: CoreUse()})}


@pytest.mark.parametrize(
    "text", ["", "busy", "-1", "1.5", "\u0663", str(2**64 - 4096), "1" * 30], ids=lambda text: text[:8] or "empty"
)
def test_a_counter_that_is_no_amount_is_not_told(node: Node, text: str) -> None:
    core = node.device_directory(0) / "neuron_core0/stats"
    (core / "memory_usage/device_mem/total").write_text(text)
    (core / "other_info/nc_time_in_use/total").write_text(text)
    assert UseReader(node.sysfs).read([0])[0].cores == {0: CoreUse(), 1: CoreUse(4096, 1.5)}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("POWER_STATUS_VALID,1764259200,0.86,25.00,18.86\n", 0.1886),
        ("POWER_STATUS_VALID,1764259200,0.00,0.00,100.00", 1.0),
        ("POWER_STATUS_NO_DATA,0,0.00,0.00,0.00", None),
        ("POWER_STATUS_INVALID,1764259200,1.00,2.00,3.00", None),
        ("POWER_STATUS_VALID,1764259200,0.86,25.00", None),
        ("POWER_STATUS_VALID,1764259200,0.86,25.00,nan", None),
        ("POWER_STATUS_VALID,1764259200,0.86,25.00,100.01", None),
        ("POWER_STATUS_VALID,1764259200,0.86,25.00,x", None),
        ("", None),
    ],
    ids=["load", "most", "no-data", "invalid", "too-short", "nan", "too-much", "no-number", "empty"],
)
def test_power_is_the_average_of_a_valid_sample(node: Node, text: str, part: float | None) -> None:
    power(node).write_text(text)
    assert UseReader(node.sysfs).read([0])[0].power == pytest.approx(part)


def test_power_management_of_the_kernel_is_not_the_power_of_the_device(node: Node) -> None:
    power(node).unlink()
    (node.device_directory(0) / "power").mkdir()
    (node.device_directory(0) / "power/utilization").write_text("POWER_STATUS_VALID,1,1.00,1.00,1.00\n")
    assert UseReader(node.sysfs).read([0])[0].power is None


def test_files_are_looked_for_once_and_again_when_the_kernel_driver_was_loaded_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    walk = os.walk

    def counted(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
        looks.append(top)
        return walk(top)

    monkeypatch.setattr("kubeletplugin.discover.sysfs.os.walk", counted)
    reader = UseReader(node.sysfs)
    before = reader.read([0])
    assert len(looks) == 3, "the device and its two cores"
    assert reader.read([0]) == before
    assert len(looks) == 3
    directory = node.device_directory(0)
    kept = directory.with_name("kept")
    directory.rename(kept)
    assert reader.read([0]) == {}
    shutil.copytree(kept, directory)
    emulate.write_use(node.sysfs, 0, range(2), memory=1)
    assert reader.read([0])[0].cores[0] == CoreUse(1, 0.0)
    assert use_files(directory)[1] == str(power(node))


def test_a_device_that_goes_while_it_is_looked_through_has_gone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a reload of the kernel driver. The error ended the driver."""
    look = os.scandir
    directory = node.device_directory(0)

    def scandir(path: str | Path) -> object:
        if Path(path) == directory / "stats":
            directory.rename(node.root / "away")
        return look(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert UseReader(node.sysfs).read([0]) == {}
