"""The map as JSON, as SVG and as a page: complete, and safe whatever the names are."""

import base64
import hashlib
import json
import re
import time
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from commands.devices.device_map import build
from commands.devices.devices import DeviceMap
from commands.map import page
from commands.map.drawing import Wrap, geometry
from commands.map.page import as_svg
from commands.map.text import as_json
from neuron.hardware.instances import TYPES
from tests.commands.map.clusters import HOSTILE, many, mixed
from tests.support.emulated import EmulatedCluster
from tests.support.timing import TIMED, assert_below

SVG = "{http://www.w3.org/2000/svg}"


def hostile() -> EmulatedCluster:
    cluster = EmulatedCluster()
    cluster.node(HOSTILE, "inf2.xlarge", labels={"neuron.amazonaws.com/ultraserver-server-id-4": HOSTILE})
    cluster.claim(HOSTILE, HOSTILE, [0], namespace=HOSTILE)
    return cluster


# --- geometry -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [entry.name for entry in TYPES])
def test_every_type_is_drawn_without_overlaps(entry: str) -> None:
    cluster = EmulatedCluster()
    cluster.node("a", entry)
    [node] = build(cluster.snapshot()).nodes
    found = geometry(node)
    assert len(set(found.cells.values())) == len(node.devices)
    assert max(column for column, _ in found.cells.values()) < found.columns
    assert {frozenset((line.first, line.second)) for line in found.lines} == set(map(frozenset, node.links))


def test_a_ring_has_no_line_out_of_the_drawing() -> None:
    found = geometry(next(node for node in build(mixed().snapshot()).nodes if node.name == "ring"))
    assert (found.columns, found.rows, {line.wrap for line in found.lines}) == (6, 2, {Wrap.NONE})


def test_huge_indices_do_not_make_huge_drawings() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    for device in cluster.slices[0]["spec"]["devices"]:
        device["attributes"]["deviceId"] = {"int": device["attributes"]["deviceId"]["int"] * 1_000_000}
    [node] = build(cluster.snapshot()).nodes
    assert geometry(node).rows == 4


# --- JSON ---------------------------------------------------------------------------------------------------


def test_json_has_everything() -> None:
    seen = mixed().snapshot()
    document = json.loads(as_json(build(seen), seen))
    assert (document["cluster"], document["time"]) == ("https://cluster.example", "2026-11-22T09:00:00+00:00")
    nodes = {node["name"]: node for node in document["nodes"]}
    assert nodes["torus"]["devices"][9] == {
        "index": 9,
        "name": "neuron-device-9",
        "state": "held",
        "fault": "",
        "taints": [],
        "cores": 8,
        "freeCores": None,
        "holders": [
            {
                "namespace": "team-b",
                "claim": "infer",
                "request": "n0",
                "pods": ["infer"],
                "podGroups": [],
                "cores": None,
                "wholeNode": False,
            }
        ],
        "lookers": [
            {
                "namespace": "team-a",
                "claim": "monitor",
                "request": "n0",
                "pods": ["monitor"],
                "podGroups": [],
                "cores": None,
                "wholeNode": False,
            }
        ],
    }
    assert nodes["torus"]["largestFree"] == [4, 5, 6, 7]
    assert nodes["torus"]["places"] == {"1": 11, "4": 2, "8": 0, "16": 0}
    assert nodes["us-0"]["ultraServer"] == {"server": "bog7", "size": 4, "position": 0, "workload": ""}
    assert nodes["plugin"]["devicePlugin"] == {"devices": 16, "used": 4, "pods": ["team-a/old"]}
    assert nodes["ring"]["devices"][3]["freeCores"] == 1
    assert [entry["instanceType"] for entry in document["types"]][-1] == "trn2u.48xlarge"
    assert document["strayClaims"][0]["pool"] == "gone"


# --- SVG ----------------------------------------------------------------------------------------------------


def test_svg_is_well_formed_and_names_every_device() -> None:
    found = build(mixed().snapshot())
    root = ET.fromstring(as_svg(found))  # noqa: S314 - our own
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert len(titles) == sum(len(node.devices) for node in found.nodes)
    assert "device 3: partly held by team-a/share, 1 of 2 cores left" in titles
    assert "device 5: held by team-a/on-sick, unhealthy: hbm-ecc" in titles
    assert "prefers-color-scheme:dark" in as_svg(found)


def test_svg_of_hostile_names_has_only_text() -> None:
    root = ET.fromstring(as_svg(build(hostile().snapshot())))  # noqa: S314 - our own
    kinds = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert kinds <= {"svg", "style", "rect", "g", "text", "title", "path"}
    assert "\x1b" not in ET.tostring(root, encoding="unicode")


def test_svg_without_nodes_has_a_message() -> None:
    assert "No node with Neuron devices." in as_svg(DeviceMap(()))


# --- the page -----------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Tags with attributes, and the content of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, list[str]] = {"script": [], "style": []}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside in self.content:
            self.content[self._inside].append(data)
            self._inside = ""


def test_the_page_loads_no_other_resource() -> None:
    seen = mixed().snapshot()
    elements = Elements(page.as_page(build(seen), seen))
    links = {
        value
        for _, attributes in elements.tags
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action")
    }
    assert links == {"#nodes", "data:,"}
    assert "url(" not in page.STYLE
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", page.SCRIPT)


def test_the_policy_admits_the_script_and_the_style_of_the_page_only() -> None:
    seen = mixed().snapshot()
    elements = Elements(page.as_page(build(seen), seen))
    policy = next(attributes["content"] for _, attributes in elements.tags if "http-equiv" in attributes)
    assert policy is not None
    for kind, content in (("script", elements.content["script"][-1]), ("style", elements.content["style"][0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_hostile_names_stay_data() -> None:
    seen = hostile().snapshot()
    text = page.as_page(build(seen), seen)
    elements = Elements(text)
    assert "img" not in {tag for tag, _ in elements.tags}
    assert text.count("</script>") == 2
    data = json.loads(elements.content["script"][0])
    assert data["nodes"][0]["name"] == HOSTILE
    assert data["nodes"][0]["claims"][0]["name"] == f"{HOSTILE}/{HOSTILE}"


def test_nodes_of_a_type_share_their_layout() -> None:
    seen = many(30).snapshot()
    assert len(page.data(build(seen), seen)["layouts"]) == 1


def test_many_nodes_are_drawn_in_time() -> None:
    nodes = 1000 if TIMED else 100
    seen = many(nodes).snapshot()
    begun = time.process_time()
    found = build(seen)
    text = page.as_page(found, seen)
    assert_below(time.process_time() - begun, 20)
    assert len(text) < 12_000 * nodes


def test_a_filter_that_admits_no_node_is_not_a_cluster_without_nodes() -> None:
    assert "No node matches the filter: 3 nodes with Neuron devices do not." in as_svg(DeviceMap((), left_out=3))
    assert "1 node with Neuron devices does not." in as_svg(DeviceMap((), left_out=1))
