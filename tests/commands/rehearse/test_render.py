"""Text, JSON and page of a rehearsal: hostile names, the page's own script and style only, empty clusters."""

import base64
import hashlib
import json
import re
from typing import Any

import orjson
import pytest

from commands.rehearse.model import Rehearsal
from commands.rehearse.rehearsing import RehearsalChoice
from commands.rehearse.render import as_html, as_json, as_text
from runtime.console import Style
from tests.support.rehearsing import Object, driver_nodes, gathered, node, pods, rehearsal

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


def hostile() -> Rehearsal:
    """A cluster whose texts try to end the script, to write elements and to control the terminal."""
    label = node("n1")
    label["metadata"]["labels"]["eks.amazonaws.com/nodegroup"] = HOSTILE
    made = pods("serve", "n1", nodeSelector={"disk": HOSTILE}) + pods(HOSTILE, "n1", count=1, namespace="team-b")
    return rehearsal(label, *made, choice=RehearsalChoice(pictures=True))


def test_the_page_runs_only_its_own_script_and_style() -> None:
    page = as_html(hostile())
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    *data, script = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    for kind, content in (("style", style), ("script", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert len(data) == 1
    assert "<img" not in page


def test_the_page_has_the_nodes_of_every_step_and_each_blocked_pod_with_its_fix() -> None:
    found = rehearsal(
        node("n1", "a"),
        node("n2", "b"),
        *pods("x", "n1"),
        *pods("odd", "n2", count=6),
        choice=RehearsalChoice(pictures=True),
    )
    page = as_html(found)
    [content] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    data = json.loads(content)
    assert [len(shots) for shots in data["shots"]] == [2, 2, 2]
    assert [[shot[3] for shot in shots] for shots in data["shots"]] == [
        ["plugin", "plugin"],
        ["driver", "plugin"],
        ["driver", "driver"],
    ]
    first = data["shots"][0][0]
    assert (first[0], len(first[4]), sum(bool(held) for held in first[4])) == ("n1", 16, 4)
    assert len(data["told"]) == len(data["figures"]) == len(data["waiting"]) == 3
    assert "Nearest valid counts: 4 or 8." in page
    assert '<input type="range" id="slider" min="0" max="2"' in page


def test_texts_of_the_cluster_do_not_control_the_terminal() -> None:
    printed = as_text(hostile(), Style(width=100), details=True)
    assert not [letter for letter in printed if not letter.isprintable() and letter != "\n"]
    assert json.loads("".join(as_json(hostile())))["pods"][1]["name"].startswith("</script>")


@pytest.mark.parametrize("some", [[], pods("x", "n1") + pods("odd", "n1", count=6)], ids=["no-pods", "pods"])
def test_json_in_pieces_is_that_of_the_whole_document(some: list[Object]) -> None:
    text = "".join(as_json(rehearsal(node("n1"), *some)))
    assert text == orjson.dumps(json.loads(text), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
    assert len(json.loads(text)["pods"]) == len(some)


@pytest.mark.parametrize("objects", [[], driver_nodes("d"), [node("n1")]], ids=["nothing", "driver-only", "no-pods"])
def test_clusters_without_anything_to_move_are_printed(objects: list[Object]) -> None:
    found = rehearsal(*objects, choice=RehearsalChoice(pictures=True)) if objects else rehearsal(*driver_nodes())
    for text in (as_text(found, Style()), "".join(as_json(found)), as_html(found)):
        assert text
    assert found.well


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": [1]}},
        {"metadata": {"annotations": "x"}},
        {"metadata": {"ownerReferences": {"a": 1}}},
        {"metadata": {"annotations": {"AWS_NEURON_IDS": 7}}},
        {"metadata": {"annotations": {"AWS_NEURON_IDS": "1,x"}}},
        {"spec": {"containers": "none"}},
        {"spec": {"containers": [None, 3]}},
        {"spec": {"affinity": [1]}},
        {"spec": {"nodeSelector": ["x"]}},
        {"spec": {"tolerations": {"a": 1}}},
        {"spec": {"volumes": 3, "topologySpreadConstraints": "x"}},
        {"spec": {"nodeName": 7}},
        {"status": "Running"},
    ],
)
def test_a_pod_of_another_form_breaks_nothing(change: dict[str, Any]) -> None:
    [pod] = pods("x", "n1")
    for key, value in change.items():
        pod[key] = {**pod[key], **value} if isinstance(value, dict) else value
    found = rehearsal(node("n1"), pod, *pods("y", "n1"))
    assert "team-a/y-0" in [str(each) for each in found.pods]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"selector": None, "maxUnavailable": 0},
        {"selector": {"matchLabels": [1]}, "maxUnavailable": "x%"},
        {"selector": {"matchLabels": {"app": "x"}}, "maxUnavailable": -1},
        {"selector": {"matchExpressions": [{"key": "app"}]}, "minAvailable": {}},
        "x",
    ],
)
def test_a_budget_of_another_form_breaks_nothing(spec: object) -> None:
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    assert gathered(node("n1"), budget, *pods("x", "n1")).scene().groups
