"""Whether a pod may run on a node, before its devices are looked at: node selection, taints, conditions. Pure.

Source: `k8s.io/component-helpers/scheduling/corev1` (nodeaffinity, `toleration.go`) and the scheduler's plugins
NodeAffinity, NodeUnschedulable and TaintToleration. CPU, memory, volumes and other pods are not judged.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from neuron import names
from neuron.api.device_taints import DeviceTaint
from runtime.text import named

Object = Mapping[str, Any]

UNREACHABLE: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
TYPE_LABELS: Final = (names.LABEL_INSTANCE_TYPE, names.LABEL_INSTANCE_TYPE_BETA)

_PREVENTING: Final = ("NoSchedule", "NoExecute")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)


def labels_of(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def is_ready(node: Object) -> bool:
    """Whether the kubelet reports that the node is ready. A node without conditions, as in tests, counts as ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready")


def unmet_selection(pod: Object, node: Object) -> list[Object]:
    """The requirements of the pod's node selection that the node does not meet; empty if it may run there.

    Of terms, which are alternatives, those of the closest one.
    """
    spec, labels = pod.get("spec") or {}, labels_of(node)
    unmet: list[Object] = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in (spec.get("nodeSelector") or {}).items()
        if labels.get(key) != value
    ]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        unmet += unmet_terms(required.get("nodeSelectorTerms") or (), node)
    return unmet


def unmet_terms(terms: Sequence[Object], node: Object) -> list[Object]:
    """The requirements of the closest term that the node does not meet; empty if it matches a term."""
    closest: list[Object] | None = None
    for term in terms:
        expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
        if not expressions and not fields:
            continue  # It matches no node.
        unmet = [each for each in expressions if not _meets(each, labels_of(node))]
        unmet += [each for each in fields if not _meets(each, {"metadata.name": node["metadata"]["name"]})]
        if not unmet:
            return []
        if closest is None or len(unmet) < len(closest):
            closest = unmet
    return closest if closest is not None else [{"key": "nodeSelectorTerms", "operator": "Exists"}]


def _meets(requirement: Object, labels: Mapping[str, str]) -> bool:
    key = str(requirement.get("key"))
    values: Sequence[Any] = requirement.get("values") or ()
    actual = labels.get(key)
    match requirement.get("operator"):
        case "In":
            return actual in values
        case "NotIn":
            return actual not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as operator if actual is not None and len(values) == 1:
            if not _NUMBER.fullmatch(actual) or not _NUMBER.fullmatch(str(values[0])):
                return False
            return int(actual) > int(values[0]) if operator == "Gt" else int(actual) < int(values[0])
    return False


def requirement_text(requirement: Object) -> str:
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


def untolerated(pod: Object, node: Object) -> list[Object]:
    """The taints of a node that keep the pod off it."""
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    spec = node.get("spec") or {}
    taints = list(spec.get("taints") or ())
    if spec.get("unschedulable") and not any(taint.get("key") == UNSCHEDULABLE for taint in taints):
        taints.append({"key": UNSCHEDULABLE, "effect": "NoSchedule"})
    preventing = (taint for taint in taints if taint.get("effect") in _PREVENTING)
    return [taint for taint in preventing if not _tolerated(taint, tolerations)]


def _tolerated(taint: Object, tolerations: Iterable[Object]) -> bool:
    for each in tolerations:
        if each.get("effect") and each["effect"] != taint.get("effect"):
            continue
        key, operator = each.get("key") or "", each.get("operator") or "Equal"
        if key not in ("", taint.get("key")):
            continue
        if operator == "Exists" or (operator == "Equal" and (each.get("value") or "") == (taint.get("value") or "")):
            return True
    return False


def taint_text(taint: DeviceTaint) -> str:
    value = f"={named(taint.value)}" if taint.value else ""
    return f"{named(taint.key)}{value}:{named(taint.effect)}"
