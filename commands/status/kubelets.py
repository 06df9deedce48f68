"""Check of the nodes' kubelets: versions with known faults in Dynamic Resource Allocation."""

from collections import defaultdict
from collections.abc import Collection, Iterator

from commands.status.lines import CheckResult, StatusLine, listed
from commands.status.offers import NODES
from neuron.api.nodes import Node
from neuron.known_faults import Component, KnownFault, Withheld, of, parse
from runtime.text import named


def check(nodes: Collection[Node], publishing: Collection[str], neuron: Collection[str]) -> Iterator[StatusLine]:
    """Lines about kubelets with a fault.

    Args:
        nodes: all nodes.
        publishing: names of those that publish devices.
        neuron: names of those of a Neuron instance type.
    """
    found: defaultdict[tuple[KnownFault, str, bool], list[str]] = defaultdict(list)
    for node in nodes:
        name, version = node.name, node.kubelet
        number = parse(version)
        if number is None or not (name in publishing or name in neuron):
            continue
        for known in of(Component.KUBELET, version):
            if known.told:
                found[known, known.fixed_after(number), name in publishing].append(f"{name} ({named(version[:40])})")
    for (known, fixed, published), names in found.items():
        serious = published and known.withheld is Withheld.DEVICES
        verdict = CheckResult.WRONG if serious else CheckResult.NOTE
        text = f"the kubelet {known.effect} ({known.issue}), on {listed(names)}."
        fix = f"Upgrade these kubelets to {fixed} or later."
        if serious:
            fix += " Until then, kubeletPlugin.faultyKubelet=Withhold keeps new claims off them."
        yield StatusLine(NODES, verdict, text, fix)
