"""Scheduling hints: what helps a converted pod to its node, as JSON patch operations."""

from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch

from neuron import names
from neuron.findings import Finding, warning
from webhook.decisions.decision import Operation
from webhook.decisions.patches import add, append, pointer, replace

TOLERATION = {"key": names.NEURON_TAINT_KEY, "operator": "Exists", "effect": "NoSchedule"}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def scheduler(current: str | None) -> tuple[list[Operation], list[Finding]]:
    """Back to the default scheduler from the extension's; other schedulers are the user's business."""
    if current in names.LEGACY_SCHEDULERS:
        return [replace("/spec/schedulerName", names.DEFAULT_SCHEDULER)], []
    if current in (None, "", names.DEFAULT_SCHEDULER):
        return [], []
    finding = warning(
        "NEU203",
        "spec.schedulerName",
        f"scheduler {current!r} must support Dynamic Resource Allocation to place this pod.",
        value=current or "",
    )
    return [], [finding]


def toleration(current: Sequence[Mapping[str, Any]] | None) -> list[Operation]:
    """Tolerate the Neuron taint, unless the pod already does or has its own idea about that taint."""
    for entry in current or ():
        tolerates_all = not entry.get("key") and entry.get("operator") == "Exists"
        covers = entry.get("effect") in (None, "", TOLERATION["effect"])
        if entry.get("key") == names.NEURON_TAINT_KEY or (tolerates_all and covers):
            return []
    return append("/spec/tolerations", current, [TOLERATION])


def node_affinity(affinity: Mapping[str, Any] | None, types: Sequence[str]) -> list[Operation]:
    """Require one of the instance types, in addition to whatever the pod requires.

    Terms are ORed, so the expression goes into each; a term without any expression matches nothing, and must stay
    that way.
    """
    expression = {"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": list(types)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    if not affinity:
        return [add("/spec/affinity", {"nodeAffinity": {_REQUIRED: required}})]
    node = affinity.get("nodeAffinity")
    if not node:
        return [add("/spec/affinity/nodeAffinity", {_REQUIRED: required})]
    path = f"/spec/affinity/nodeAffinity/{_REQUIRED}"
    terms = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms")
    if not terms:
        return [add(path, required)]
    operations: list[Operation] = []
    for index, term in enumerate(terms):
        expressions = term.get("matchExpressions")
        if expressions or term.get("matchFields"):
            where = path + pointer("nodeSelectorTerms", index, "matchExpressions")
            operations += append(where, expressions, [expression])
    return operations


def required_terms(affinity: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]] | None:
    """`nodeSelectorTerms` of required node affinity; None where there is none."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    return None if required is None else required.get("nodeSelectorTerms") or ()


def lacks_only_hint(affinity: Mapping[str, Any] | None, hinted: Mapping[str, Any] | None) -> bool:
    """Whether `hinted` is `affinity` plus the hint of `node_affinity`, and nothing else."""
    if not hinted:
        return False
    filled = (term["matchExpressions"] for term in required_terms(hinted) or () if term.get("matchExpressions"))
    last: list[dict[str, Any]] = next(filled, [{}])
    values = last[-1].get("values")
    if last[-1].get("key") != names.LABEL_INSTANCE_TYPE or not values:
        return False
    # Applying the hint again must lead to the same place; that is simpler to trust than taking it apart.
    document: dict[str, Any] = {"spec": {} if affinity is None else {"affinity": affinity}}
    patched = jsonpatch.apply_patch(document, node_affinity(affinity, values))
    return bool(patched["spec"]["affinity"] == hinted)
