"""The picture in the README is what the documented command draws, of what the driver publishes."""

import json
import re
from pathlib import Path

import pytest

from tests.support.emulated import SICK, EmulatedCluster
from tests.support.invoking import invoke

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def test_the_picture_equals_the_output_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    [line] = re.findall(r"^neuron-dra (map .*) > (docs/.*)$", (DOCS / "how-to" / "map.md").read_text(), re.MULTILINE)
    result = invoke(*line[0].split())
    assert result.stdout == (ROOT / line[1]).read_text(), "run the command of docs/how-to/map.md"
    assert f"({line[1]})" in (ROOT / "README.md").read_text()


def test_the_node_in_the_picture_equals_the_published_slice() -> None:
    items = json.loads((DOCS / "map-cluster.json").read_text())["items"]
    [published] = [item for item in items if item["kind"] == "ResourceSlice"]
    cluster = EmulatedCluster()
    cluster.node("trn2-a", taints={10: SICK})
    assert published["spec"]["devices"] == cluster.slices[0]["spec"]["devices"], "the driver has changed: draw it again"


def test_the_text_in_the_guide_equals_the_output_of_the_command() -> None:
    result = invoke("map", "-f", DOCS / "map-cluster.json", "trn2-a")
    assert result.stdout in (DOCS / "how-to" / "map.md").read_text()
