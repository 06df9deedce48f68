"""Steps of a diagnosis about scheduling: gates, schedulers, and nodes that cannot take the pod. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from commands.cluster.reader import Object
from commands.explain.diagnosis_inputs import DiagnosisInputs, condition, condition_quote
from commands.explain.explanation import Diagnosis, PodState, Quote
from commands.explain.verdicts import Block, NodeVerdict, grouped
from conversion.objects.queues import KUEUE_GROUP
from neuron import names
from neuron.api.fields import mapping, mappings
from runtime.text import named

SICK_FIX: Final = "Drain the node and reset or replace the device; a deleted pod gets another one."


def gated(facts: DiagnosisInputs) -> Diagnosis | None:
    """Scheduling gates; with the reason of Kueue, if it is known."""
    if not facts.gates:
        return None
    text = f"Its scheduling gates are not lifted: {', '.join(map(named, facts.gates))}."
    fix = "The controller that set them (a queue, such as Kueue) lifts them."
    if facts.queued is None:
        return Diagnosis("gated", PodState.WAITS, text, fix)
    name = named((facts.queued.get("metadata") or {}).get("name") or "")
    evidence = condition_quote(condition(facts.queued, "QuotaReserved"), f"Workload {name}")
    fix = f"Kueue lifts its gate when it admits Workload {name}: `kubectl describe workloads.{KUEUE_GROUP} {name}`."
    return Diagnosis("gated", PodState.WAITS, text, fix, evidence)


def unscheduled(facts: DiagnosisInputs) -> Diagnosis | None:
    if facts.node_name:
        return None
    if (waits := gated(facts)) is not None:
        return waits
    scheduled = condition(facts.pod, "PodScheduled")
    said = str(scheduled.get("message") or "")
    evidence = condition_quote(scheduled)
    if facts.unknown_class:
        text = f"Its claim requests DeviceClass {named(facts.unknown_class)}, which does not exist."
        fix = "Install the driver's chart, or correct deviceClassName of the template."
        return Diagnosis("class-missing", PodState.STUCK, text, fix, evidence)
    if not scheduled and facts.group is not None:
        return _with_group(facts.group)
    if not scheduled:
        scheduler = str(facts.spec.get("schedulerName") or names.DEFAULT_SCHEDULER)
        text = f"No scheduler has looked at it yet: its schedulerName is {named(scheduler)}."
        fix = "If this lasts, check that a scheduler of this name runs." + (
            "" if scheduler == names.DEFAULT_SCHEDULER else " It must know Dynamic Resource Allocation."
        )
        return Diagnosis("no-scheduler", PodState.WAITS, text, fix)
    if facts.nodes is None:
        return Diagnosis("unschedulable", PodState.WAITS, "The scheduler finds no node for it.", evidence=evidence)
    fitting = [each.node for each in facts.nodes if each.fits]
    if fitting:
        more = f" and {len(fitting) - 1} more" if len(fitting) > 1 else ""
        text = f"Its devices are free now on {fitting[0]}{more}"
        fix = (
            "Read the scheduler's message for what else it lacks (CPU, memory, volumes, other pods)."
            if "Insufficient" in said or "didn't match" in said
            else "The scheduler tries again by itself, at the latest after five minutes."
        )
        return Diagnosis("fits-now", PodState.WAITS, f"{text}.", fix, evidence)
    return _blocked(facts.nodes, evidence)


def _with_group(group: Object) -> Diagnosis:
    """A pod of a PodGroup that no scheduler has looked at: it waits for the other pods of a gang."""
    name = named(str(group["metadata"].get("name") or ""))
    policy = mapping(mapping(group.get("spec")).get("schedulingPolicy"))
    least = mapping(policy.get("gang")).get("minCount")
    conditions = mappings(mapping(group.get("status")).get("conditions"))
    told: Object = next((dict(each) for each in conditions if each.get("type") == "PodGroupScheduled"), {})
    evidence = condition_quote(told, f"PodGroup {name}")
    if isinstance(least, int):
        text = f"It belongs to PodGroup {name}, whose pods are scheduled together, {least} or more at once."
        fix = "Create the missing pods of the group, or set its minCount to the number of its pods."
        return Diagnosis("gang", PodState.WAITS, text, fix, evidence)
    text = f"It belongs to PodGroup {name}, and no scheduler has looked at it yet."
    return Diagnosis("gang", PodState.WAITS, text, "If this lasts, check that the scheduler knows PodGroups.", evidence)


_FIXES: Final[Mapping[Block, str]] = {
    Block.NOT_TRIED: "Wait until another run is free, or select one instance type or request fewer devices: `neuron-dra"
    " explain -f` of the pod's manifest names those with which all runs are tried (NEU219, docs/topology.md).",
    Block.NOT_CONNECTED: "Wait until one of the holders ends, or delete one of them on the node with the most free"
    " devices; `neuron-dra map` shows who holds what.",
    Block.HELD: "Wait until pods that hold devices end, or add a node of the type.",
    Block.LNC: "Use the same logicalNeuronCore as the pods that share the device, or request whole devices.",
    Block.TAINTED: SICK_FIX,
    Block.COUNTERS: "Upgrade Kubernetes, or wait until the other devices of a node are free.",
    Block.PLUGIN: "Exclude the nodes of the driver from the device plugin's DaemonSet, node by node (docs/migrate.md).",
    Block.NO_DRIVER: "Check the kubelet plugin's pods on these nodes (kubectl get pods -A -o wide"
    " -l app.kubernetes.io/component=kubelet-plugin).",
    Block.INCOMPLETE: "Wait until the driver has published all slices; if it lasts, check the kubelet plugin's pods.",
    Block.NOT_READY: "Check the kubelet of these nodes.",
    Block.CORDONED: "`kubectl uncordon` a node, or wait for another one.",
    Block.NODE_TAINT: "Add a toleration for the taint to the pod, or remove the taint.",
    Block.SELECTION: "Correct nodeSelector or node affinity of the pod, or label a node.",
    Block.ELSEWHERE: "An allocated claim stays on its node: wait for that node, or delete the other pods of the claim.",
    Block.WRONG_TYPE: "Add a node of a type that the pod can use, or change its instance types.",
    Block.TOO_FEW: "Request fewer devices, or add nodes of a type that has as many.",
    Block.SELECTOR_FAILS: "Correct the selector; `neuron-dra validate` shows where it lacks a guard.",
    Block.TOO_LONG: "Request connected devices by fewer requests.",
}


def _blocked(verdicts: Sequence[NodeVerdict], evidence: Quote | None) -> Diagnosis:
    groups = grouped(each for each in verdicts if each.block is not Block.NOT_NEURON)
    if not groups:
        text = "No node has Neuron devices."
        return Diagnosis("no-neuron-nodes", PodState.WAITS, text, "Add a node of a Neuron instance type.", evidence)
    total = sum(len(group.nodes) for group in groups)
    first = groups[0]
    nodes = first.nodes[0].node if len(first.nodes) == 1 else f"{len(first.nodes)} nodes"
    detail = first.nodes[0].detail if len(first.nodes) == 1 else ""
    what = f"{first.reason} ({detail})" if detail else first.reason
    text = f"None of {total} Neuron node{'' if total == 1 else 's'} can take it now. Closest: {nodes}: {what}."
    return Diagnosis(str(first.block), PodState.WAITS, text, _FIXES.get(first.block, ""), evidence)
