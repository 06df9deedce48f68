"""The output in docs/how-to/explain.md is what the program prints, and the page names every case and reason."""

import re
from pathlib import Path
from typing import Any

import yaml

from commands.cli.explain import ASSUMED
from commands.explain import diagnosis
from commands.explain.explanation import Block, Explanation
from commands.explain.reads import Live
from conversion.asks.conversion_context import ConversionOptions
from neuron import names
from runtime.console import Style
from tests.commands.explain.rendered import as_text
from tests.support.emulated import PLUGIN, SICK, EmulatedCluster
from tests.support.explaining import WELL, Object, converted_pod, event, explained, explained_pod, legacy_pod, live

PAGE = (Path(__file__).parents[3] / "docs/how-to/explain.md").read_text()
BLOCKS = re.findall(r"```(?:console|yaml)\n(.*?)```", PAGE, re.DOTALL)
WIDTH = 118
FAMILIES = ("trn2",)


def cluster() -> EmulatedCluster:
    """Six nodes, of which one has room for four connected devices."""
    found = EmulatedCluster()
    found.node("node-1")
    found.claim("llama", "node-1", range(16))
    found.node("node-2")
    for index in (0, 5, 10, 15):
        found.claim(f"notebook-{index}", "node-2", [index])
    found.node("node-3")
    found.claim("eval", "node-3", range(4))
    found.node("node-4", taints=dict.fromkeys((1, 6, 9, 12), SICK))
    found.node("node-5", common_taints=[PLUGIN], allocatable={names.RESOURCE_NEURON: "16"})
    found.node("node-6", "trn1.32xlarge", unschedulable=True)
    return found


def printed(explanation: Explanation) -> str:
    return as_text([explanation], Style(width=WIDTH))


def waiting_pod() -> tuple[Object, Live]:
    """A pod that waits for four connected devices: as `cluster`, but without node-3."""
    around = cluster()
    around.nodes = [each for each in around.nodes if each["metadata"]["name"] != "node-3"]
    found, own = converted_pod(FAMILIES)
    message = "0/5 nodes are available: 1 node(s) were unschedulable, 4 cannot allocate all claims."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    made = [{"name": "neuron", "resourceClaimName": "train-neuron-7k2xq"}]
    found["status"] |= {"conditions": [condition], "resourceClaimStatuses": made}
    around.claims.append(
        {
            "metadata": {"name": "train-neuron-7k2xq", "namespace": "team-a", "uid": "c"},
            "spec": own.data["spec"]["spec"],
        }
    )
    return found, live(around, [own])


def stuck_pod() -> tuple[Object, Live, Object]:
    """A pod whose claim the driver cannot prepare, because it is not registered."""
    around = EmulatedCluster()
    around.node("node-1", driver=False)
    found, own = converted_pod(FAMILIES)
    made = [{"name": "neuron", "resourceClaimName": "train-neuron-7k2xq"}]
    found["status"] |= {"resourceClaimStatuses": made}
    found["spec"]["nodeName"] = "node-1"
    around.claim("train-neuron-7k2xq", "node-1", range(4), pods=["train"])
    told = "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver neuron.aws.com is not registered"
    return found, live(around, [own]), event("FailedPrepareDynamicResources", told)


def test_the_file_of_the_page_gives_the_output_of_the_page() -> None:
    manifest, offline, *_ = BLOCKS
    options = ConversionOptions(families=FAMILIES)
    [found] = explained(yaml.safe_load(manifest), namespace="", options=options, default=ASSUMED)
    assert offline == "$ neuron-dra explain -f pod.yaml --families trn2\n" + printed(found)


def test_the_nodes_of_the_page_are_those_of_the_program() -> None:
    [found] = explained(yaml.safe_load(BLOCKS[0]), cluster=live(cluster(), installation=WELL))
    text = printed(found)
    nodes = text[text.index("  nodes") :]
    assert BLOCKS[2] == "$ neuron-dra explain -f pod.yaml --context prod -n team-a\n[…]\n" + nodes


def test_the_waiting_pod_of_the_page() -> None:
    found, around = waiting_pod()
    text = printed(explained_pod(found, around))
    assert BLOCKS[3] == "$ neuron-dra explain pod/train -n team-a\n" + text[: text.index("  mode")] + "[…]\n"


def test_the_stuck_pod_of_the_page() -> None:
    found, around, told = stuck_pod()
    text = printed(explained_pod(found, around, [told]))
    assert BLOCKS[4] == "$ neuron-dra explain pod/train -n team-a\n" + text[: text.index("  asks")] + "[…]\n"


def test_every_reason_and_every_case_is_on_the_page() -> None:
    told = set(re.findall(r"`([a-z-]+)`", PAGE))
    cases: set[Any] = {str(block) for block in Block} - {str(Block.NOT_NEURON)}
    cases |= set(re.findall(r'Diagnosis\(\s*"([a-z-]+)"', Path(str(diagnosis.__file__)).read_text()))
    assert cases <= told, sorted(cases - told)


def test_the_manifest_is_the_pod_of_the_tests() -> None:
    [found] = yaml.safe_load(BLOCKS[0])["spec"]["containers"]
    assert found["resources"] == legacy_pod()["spec"]["containers"][0]["resources"]
