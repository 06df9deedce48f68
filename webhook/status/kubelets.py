"""Check of the nodes' kubelets: versions with known faults in Dynamic Resource Allocation."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from neuron.kubelets import Fault, fault
from runtime.text import named
from webhook.cluster.listing import Object
from webhook.status.lines import Line, Verdict, listed
from webhook.status.offers import NODES


def check(nodes: Collection[Object], publishing: Collection[str], neuron: Collection[str]) -> Iterator[Line]:
    """Lines about kubelets with a fault.

    Args:
        nodes: all nodes.
        publishing: names of those that publish devices.
        neuron: names of those of a Neuron instance type.
    """
    found: defaultdict[tuple[Fault, bool], list[str]] = defaultdict(list)
    for node in nodes:
        name, version = node["metadata"]["name"], _version(node)
        known = fault(version)
        if known is not None and (name in publishing or name in neuron):
            found[known, name in publishing].append(f"{name} ({named(version[:40])})")
    for (known, published), names in found.items():
        verdict = Verdict.WRONG if published else Verdict.NOTE
        text = f"the kubelet {known.effect} ({known.issue}), on {listed(names)}."
        fix = f"Upgrade these kubelets to {known.fixed_in} or later."
        if published:
            fix += " Until then, kubeletPlugin.faultyKubelet=Withhold keeps new claims off them."
        yield Line(NODES, verdict, text, fix)


def _version(node: Object) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion") or "")
