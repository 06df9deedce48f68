"""Steps of a diagnosis on the node: it answers, the driver prepares the claims, the devices are healthy. Pure."""

import dataclasses
from collections.abc import Iterator
from typing import Final

from commands.devices import node_fit
from commands.devices.devices import fault_text
from commands.explain.diagnosis_inputs import DiagnosisInputs, event_order, evidence_of
from commands.explain.explanation import Diagnosis, PodState, Quote
from commands.explain.prepare_errors import prepare_failure
from commands.explain.schedule_steps import SICK_FIX
from neuron import names
from runtime.text import named

_NO_SPEC: Final = "unresolvable CDI devices"
"""Part of the container runtime's message (Container Device Interface)."""
_SPEC_FIX: Final = (
    "The driver writes a lost spec again within 10 s, and the kubelet then starts the container. If it lasts, check"
    " that the kubelet plugin runs on the node, and that the container runtime reads its --cdi-dir. Else recreate the"
    " pod."
)
_KUBELET: Final = "This is not about Neuron devices: `kubectl describe pod` shows all that the kubelet reports."
_NOT_PREPARED: Final = "FailedPrepareDynamicResources"
_ABOUT_OTHERS: Final = (names.TAINT_DEVICE_PLUGIN, names.TAINT_HELD, names.TAINT_CORDONED)
"""Taints of the driver that are no fault of the device: a pod that has it runs on."""


def runs_now(facts: DiagnosisInputs) -> bool:
    statuses = facts.status.get("containerStatuses") or ()
    return bool(statuses) and all("running" in (each.get("state") or {}) for each in statuses)


def lost(facts: DiagnosisInputs) -> Diagnosis | None:
    if not facts.all_nodes:
        return None  # Nodes cannot be read.
    if facts.node is None:
        text = f"Node {facts.node_name}, to which it is bound, does not exist any more."
        fix = f"Delete the pod: kubectl -n {facts.namespace} delete pod {facts.name} --force."
        return Diagnosis("node-lost", PodState.STUCK, text, fix)
    if not facts.node.ready:
        text = f"Node {facts.node_name} is not ready: its kubelet does not answer, so nothing starts or stops there."
        fix = "Check the node. If it does not come back, delete it and the pod: the devices of its claims become free."
        return Diagnosis("node-lost", PodState.STUCK, text, fix)
    return None


def not_prepared(facts: DiagnosisInputs) -> Diagnosis | None:
    if runs_now(facts):
        return None
    unallocated = [name for name, claim in facts.claims.items() if claim is None or claim.allocation is None]
    if unallocated and facts.claims:
        text = (
            f"It is bound to node {facts.node_name}, and its claim {unallocated[0]} is not allocated: nodeName was set"
            " without the scheduler, and nothing else allocates claims."
        )
        fix = "Remove nodeName, select the node by nodeSelector, and recreate the pod."
        return Diagnosis("bypassed-scheduler", PodState.STUCK, text, fix)
    event = facts.event(_NOT_PREPARED)
    if event is None:
        return None
    publishes = any(each.node == facts.node_name for each in facts.slices)
    failure = prepare_failure(str(event.get("message") or ""), facts.node_name, publishes=publishes)
    return dataclasses.replace(failure, evidence=evidence_of(event))


def _devices(facts: DiagnosisInputs) -> Iterator[str]:
    """Names of our driver's devices that the pod's claims have."""
    for claim in facts.claims.values():
        yield from (result.device for result in (claim.ours if claim is not None else ()))


def sick(facts: DiagnosisInputs) -> Diagnosis | None:
    """Devices of the pod that the driver reports as unhealthy, or an agent of AWS those of its node."""
    held = set(_devices(facts))
    for claim in facts.claims.values():
        for entry in claim.devices if claim is not None else ():
            for condition in entry.conditions or ():
                if condition.type == "Healthy" and condition.status == "False":
                    device = f"{named(entry.device)} on {facts.node_name}"
                    text = f"It uses {device}, which is unhealthy: {named(condition.reason)}."
                    evidence = Quote("status.devices of its claim", condition.message)
                    return Diagnosis("device-unhealthy", PodState.STUCK, text, SICK_FIX, evidence)
    for slice_ in (each for each in facts.slices if each.node == facts.node_name):
        for published in slice_.devices:
            taints = [each for each in published.taints if each.key not in _ABOUT_OTHERS]
            if published.name in held and taints:
                taint = node_fit.taint_text(taints[0])
                text = f"It uses {named(published.name)} on {facts.node_name}, which has the taint {taint}."
                return Diagnosis("device-tainted", PodState.STUCK, text, SICK_FIX)
    fault = fault_text(facts.node) if facts.node is not None else ""
    if held and fault:
        text = f"It has Neuron devices of {facts.node_name}, which an agent of AWS reports as faulty ({fault})."
        return Diagnosis("node-unhealthy", PodState.STUCK, text, SICK_FIX)
    return None


def elsewhere(facts: DiagnosisInputs) -> Diagnosis | None:
    """A pod that has its devices, and waits for something else."""
    if runs_now(facts):
        return None
    statuses = (*(facts.status.get("initContainerStatuses") or ()), *(facts.status.get("containerStatuses") or ()))
    for each in statuses:
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason not in ("", "ContainerCreating", "PodInitializing"):
            said, name = str(waiting.get("message") or ""), named(each.get("name") or "")
            quote = Quote(f"status of container {name}", said) if said else None
            if _NO_SPEC in said and names.DRIVER in said:
                text = (
                    f"Container {name} does not start: node {named(facts.node_name)} lacks the CDI spec of its claim."
                )
                return Diagnosis("cdi-spec-missing", PodState.WAITS, text, _SPEC_FIX, quote)
            text = f"It has its devices; container {name} waits: {named(reason)}."
            return Diagnosis("not-about-devices", PodState.STUCK, text, _KUBELET, quote)
    failed = [
        each for each in facts.events if each.get("type") == "Warning" and each.get("reason") != "FailedScheduling"
    ]
    newest = max(failed, key=event_order, default=None)
    if newest is not None:
        text = (
            f"It has its devices on node {facts.node_name}, and an Event reports {named(newest.get('reason') or '')}."
        )
        return Diagnosis("not-about-devices", PodState.STUCK, text, _KUBELET, evidence_of(newest))
    return Diagnosis("starting", PodState.WAITS, f"It is bound to node {facts.node_name}, and its containers start.")


def runs(facts: DiagnosisInputs) -> Diagnosis:
    used = list(map(named, _devices(facts)))
    what = f" with {', '.join(used)}" if used else ""
    return Diagnosis("runs", PodState.WELL, f"It runs on node {facts.node_name}{what}.")
