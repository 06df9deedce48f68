"""A policy file adds an instance type to the driver: its devices are published with the values of the file."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kubeletplugin.discover import emulate
from kubeletplugin.discover.health import Catalogues, HealthMonitor, NodeFacts
from kubeletplugin.discover.sysfs import discover
from kubeletplugin.publish.slices import NodeDevices, desired_slices
from tests.kubeletplugin.fakes import NODE, FakeClock

FILE = """\
apiVersion: policy.neuron.aws.com/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: new}
spec:
  instanceTypes:
  - {name: trn9.48xlarge, devices: 8, coresPerDevice: 4, deviceGroups: [2, 4]}
  - {name: inf9.24xlarge, devices: 6, coresPerDevice: 2, topology: chain}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "policies"
    found.mkdir()
    (found / "types.yaml").write_text(FILE)
    return found


def test_the_catalogue_without_a_folder_is_the_built_in_one() -> None:
    assert "trn9.48xlarge" not in Catalogues(None).current()


def test_the_folder_is_followed(folder: Path) -> None:
    catalogues = Catalogues(folder)
    first = catalogues.current()
    assert "trn9.48xlarge" in first
    assert catalogues.current() is first, "read again only after a change"
    (folder / "types.yaml").write_text(FILE.replace("trn9", "trn10"))
    assert {"trn9.48xlarge", "trn10.48xlarge"} & {*catalogues.current().names()} == {"trn10.48xlarge"}


def test_a_broken_file_is_reported_once_and_the_last_good_catalogue_stays(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalogues = Catalogues(folder)
    good = catalogues.current()
    (folder / "types.yaml").write_text(FILE + "  more: 1\n")
    with caplog.at_level(logging.ERROR):
        assert catalogues.current() is good
        assert catalogues.current() is good
    [record] = caplog.records
    assert record.getMessage() == "instance types not read: the catalogue in force stays"
    assert record.problems == [f"{folder / 'types.yaml'}:8: spec.more: unknown field."]  # type: ignore[attr-defined]


def test_a_folder_that_does_not_exist_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "trn1.32xlarge" in Catalogues(tmp_path / "none").current()
    assert "this is not a directory" in caplog.records[0].problems[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("trn9.48xlarge", {"resource.aws.com/devicegroup2_id": 4, "resource.aws.com/devicegroup4_id": 2}),
        ("inf9.24xlarge", {"resource.aws.com/devicegroup3_id": 2, "neuron.aws.com/window5_1": 2}),
    ],
)
def test_a_new_type_is_emulated_and_published_as_its_file_says(
    tmp_path: Path, folder: Path, name: str, groups: dict[str, int]
) -> None:
    """`groups`: how many different values an attribute has on the node."""
    catalogues = Catalogues(folder)
    emulate.write_tree(tmp_path / "node", emulate.emulated_type(name, catalogues.current()))
    monitor = HealthMonitor(
        lambda: discover(tmp_path / "node/sys", tmp_path / "node/dev"), catalogues.current, FakeClock(), 1.0
    )
    asyncio.run(monitor.refresh())
    found = NodeDevices(monitor.snapshot.hardware, monitor.snapshot.instance)
    [piece] = desired_slices(NodeFacts(NODE, "uid"), found, "1.2.3")
    for attribute, count in groups.items():
        values = {device["attributes"][attribute]["string"] for device in piece.content["devices"]}
        assert len(values) == count


def test_the_driver_loads_no_policy_models_without_a_folder() -> None:
    program = (
        "import sys, pathlib; from kubeletplugin.discover.health import Catalogues; Catalogues(None).current(); "
        "print([n for n in sys.modules if n in ('pydantic', 'policies')])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
