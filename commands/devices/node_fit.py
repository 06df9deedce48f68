"""Whether a pod may run on a node, apart from its devices, CPU and memory: node selection and taints. Pure.

Source: the scheduler's plugins NodeAffinity, NodeUnschedulable and TaintToleration. Volumes, ports, affinity to other
pods and preemption are not judged.
"""

from typing import Final

from commands.cluster.reader import Object
from neuron import names
from neuron.api.nodes import Node, Requirement, required_terms, unmet_selector, unmet_terms
from neuron.api.taints import Taint, TolerationSpec
from runtime.text import named

TYPE_LABELS: Final = (names.LABEL_INSTANCE_TYPE, names.LABEL_INSTANCE_TYPE_BETA)


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
