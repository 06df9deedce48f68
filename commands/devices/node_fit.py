"""Whether a pod may run on a node, apart from its devices: node selection, taints, and free CPU and memory. Pure.

Source: the scheduler's plugins NodeAffinity, NodeUnschedulable, TaintToleration and NodeResourcesFit. Volumes, ports,
affinity to other pods and preemption are not judged.
"""

from collections import Counter, defaultdict
from decimal import ROUND_DOWN, Decimal
from typing import Any, Final

from commands.cluster.reader import ENDED, Object
from conversion.claims.containers import basic_requests
from neuron import names
from neuron.api.fields import mapping
from neuron.api.nodes import Node, Requirement, required_terms, unmet_selector, unmet_terms
from neuron.api.taints import Taint, TolerationSpec
from neuron.quantities import amount_of
from runtime.text import named

_PODS: Final = "pods"
TYPE_LABELS: Final = (names.LABEL_INSTANCE_TYPE, names.LABEL_INSTANCE_TYPE_BETA)


class NodeLoads:
    """What the pods on each node request: CPU, memory, ephemeral storage, and their number."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, pod: Object) -> None:
        """Count a pod, if it is on a node and has not ended."""
        spec, node = mapping(pod.get("spec")), mapping(pod.get("spec")).get("nodeName")
        if node and mapping(pod.get("status")).get("phase") not in ENDED:
            amounts: Any = basic_requests(spec)
            self._sums[str(node)].update({**amounts, _PODS: 1})

    def clear(self) -> None:
        """Forget all pods: they are read again."""
        self._sums.clear()

    def lacking(self, pod: Object, node: Node) -> dict[str, str]:
        """Resources of which a node has too little free for one more pod, with the amounts as a text.

        A resource that the Node does not state is not judged.
        """
        used: Any = self._sums.get(node.name, Counter())
        found = {}
        for resource, wanted in {**basic_requests(pod.get("spec")), _PODS: Decimal(1)}.items():
            offered = amount_of(node.allocatable.get(resource))
            free = max(offered - used[resource], Decimal(0))
            if resource in node.allocatable and wanted > 0 and free < wanted:
                shown = [_shown(resource, each) for each in (free, offered, wanted)]
                found[resource] = f"{shown[0]} of {shown[1]} {resource} free, the pod needs {shown[2]}"
        return found


def _shown(resource: str, amount: Decimal) -> str:
    """An amount for people: 3.5, or 12.5Gi."""
    if resource in (_PODS, "cpu"):
        return f"{amount.normalize():f}"
    return f"{(amount / 2**30).quantize(Decimal('0.1'), ROUND_DOWN).normalize():f}Gi"


def unmet_selection(pod: Object, node: Node) -> list[Requirement]:
    """The requirements of the pod's node selection that the node does not meet; empty if it may run there.

    Of terms, which are alternatives, those of the closest one.
    """
    spec = pod.get("spec") or {}
    unmet = unmet_selector(spec.get("nodeSelector") or {}, node.labels)
    terms = required_terms(spec.get("affinity"))
    return unmet if terms is None else unmet + unmet_terms(terms, node.name, node.labels)


def requirement_text(requirement: Requirement) -> str:
    """A requirement as people write it: `disk in (ssd)`."""
    key, operator = named(requirement.get("key")), requirement.get("operator")
    values = ", ".join(map(named, requirement.get("values") or ()))
    words = {
        "In": f"in ({values})",
        "NotIn": f"not in ({values})",
        "Exists": "exists",
        "DoesNotExist": "does not exist",
    }
    return f"{key} {words.get(str(operator), f'{named(operator)} {values}')}"


def untolerated(pod: Object, node: Node) -> list[Taint]:
    """The taints of a node that keep the pod off it."""
    tolerations = [TolerationSpec.read(each) for each in (pod.get("spec") or {}).get("tolerations") or ()]
    preventing = (taint for taint in node.taints if taint.prevents)
    return [taint for taint in preventing if not any(each.tolerates(taint) for each in tolerations)]


def taint_text(taint: Taint) -> str:
    value = f"={named(taint.value)}" if taint.value else ""
    return f"{named(taint.key)}{value}:{named(taint.effect)}"
