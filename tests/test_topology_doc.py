"""docs/topology.md and the drawings agree with the catalogue and with the windows that nodes publish."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from neuron.hardware import neighbours, windows
from neuron.hardware.instances import Catalogue, InstanceType, Topology
from neuron.hardware.windows import Line

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "topology.md").read_text()
CONCEPTS = (DOCS / "concepts.md").read_text()
TYPES = list(Catalogue())
LINES = [entry for entry in TYPES if entry.line]
RING, CHAIN = (
    next(entry for entry in Catalogue().scheduled(tries_orders=False) if entry.name == name)
    for name in ("inf2.48xlarge", "inf1.24xlarge")
)


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_topology", DOCS / "draw_topology.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DRAW = script()


def rows(of_columns: int) -> dict[str, list[str]]:
    """Rows of the page's tables with that many columns, by their first cell."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in cells if len(row) == of_columns}


def examples() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("name", DRAW.DRAWINGS)
def test_each_drawing_equals_the_output_of_the_script_and_is_on_the_page(name: str) -> None:
    assert (DOCS / name).read_text() == DRAW.DRAWINGS[name](), "run python docs/draw_topology.py"
    assert f"]({name})" in PAGE + CONCEPTS


@pytest.mark.parametrize("topology", [Topology.SINGLE, Topology.TORUS, Topology.RING, Topology.CHAIN])
def test_the_page_lists_the_types_of_each_topology(topology: Topology) -> None:
    named = set(rows(3)[topology][0].split(", "))
    assert named == {entry.name for entry in TYPES if entry.topology is topology}


@pytest.mark.parametrize("instance", LINES, ids=lambda each: each.name)
def test_the_page_has_the_published_shifts_of_each_type(instance: InstanceType) -> None:
    assert instance.line is not None
    shape, shifts, attributes = rows(4)[instance.name]
    published = windows.published_shifts(instance.line)
    assert shape == f"{instance.topology} of {instance.line.devices}"
    assert shifts == "; ".join(f"{size}: {', '.join(map(str, each))}" for size, each in published.items())
    assert int(attributes) == sum(map(len, published.values())) <= windows.MOST_ATTRIBUTES


def test_the_examples_name_published_attributes() -> None:
    group, three, split, nine = examples()
    assert group["constraints"] == [{"matchAttribute": windows.attribute(4, 0)}]
    ring = windows.placements(Line(12, wraps=True), 3)
    assert [each["matchAttribute"] for each in three["constraints"]] == [each.attribute for each in ring]
    assert [each["requests"] for each in three["constraints"]] == [
        [f"n0/{each['name']}"] for each in three["requests"][0]["firstAvailable"]
    ]
    ask = Ask("main", Role.APP, "spec.containers[0]", "aws.amazon.com/neuron", 8)
    eight = make_claim([ask], [RING, CHAIN], DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(eight, Claim)
    assert split["constraints"] == eight.template.spec["spec"]["devices"]["constraints"]
    chain = Line(4, wraps=False)
    shifts = windows.published_shifts(chain).items()
    published = {windows.attribute(size, shift) for size, each in shifts for shift in each}
    assert {each["matchAttribute"] for each in nine["constraints"]} <= published


def test_the_page_lists_the_alternatives_of_runs_in_two_requests() -> None:
    table = re.findall(r"^\| ([0-9]+) of ([0-9]+) \| ([0-9a-f ]+) \| ([0-9a-f ]+) \|$", PAGE, re.MULTILINE)
    assert len(table) == 6
    for size, devices, *alternatives in table:
        found = neighbours.split(Line(int(devices), wraps=devices == "12"), int(size))
        assert found is not None
        assert [[tuple(int(device, 16) for device in each) for each in listed.split()] for listed in alternatives] == [
            list(found.first),
            list(found.second),
        ]


def test_the_drawing_of_windows_has_a_row_for_each_of_its_attributes() -> None:
    drawing = DRAW.published_windows()
    for name, sizes in (("inf2.48xlarge", (3, 4, 5)), ("inf2.24xlarge", (2, 3))):
        line = next(entry.line for entry in LINES if entry.name == name)
        assert line is not None
        for size in sizes:
            for shift in windows.published_shifts(line)[size]:
                assert f">{windows.attribute(size, shift)}<" in drawing
