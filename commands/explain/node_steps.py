"""Steps of a diagnosis on the node: it answers, the driver prepares the claims, the devices are healthy. Pure."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from commands.devices import node_fit
from commands.devices.devices import fault_text
from commands.explain.explanation import Diagnosis, DiagnosisInputs, PodState, Quote, event_order, evidence_of
from commands.explain.schedule_steps import SICK_FIX
from neuron import names
from neuron.codes import CODES
from neuron.findings import known_codes
from runtime.text import named

_CONFIGS: Final = "NEU4"
_RETRIES: Final = "The kubelet tries again by itself, every 60 to 90 s; a deleted pod is tried at once."
_LOG: Final = "The log of the kubelet plugin's pod on the node has the reason. "


def prepare_failure(message: str, node: str, *, publishes: bool) -> Diagnosis:
    """The diagnosis of an Event FailedPrepareDynamicResources.

    Args:
        publishes: whether the driver publishes slices of that node now.
    """
    if "not registered" in message:
        return _unregistered(node, publishes=publishes)
    codes = known_codes(message)
    config = next((code for code in codes if code.startswith(_CONFIGS)), "")
    if config or "strict decoding error" in message:
        what = f" ({config}: {CODES[config].title})" if config else ""
        text = f"An Event reports that the driver refuses a config of its claim{what}."
        fix = "Correct opaque.parameters of the template, and recreate the pod: its claim keeps the old config."
        return Diagnosis("config-refused", PodState.STUCK, text, fix)
    if "logicalNeuronCore" in message:
        text = "An Event reports that the driver refuses its logicalNeuronCore."
        fix = (
            "Set the same logicalNeuronCore as the other pods on the device, or request whole devices, and recreate it."
        )
        return Diagnosis("lnc-conflict", PodState.STUCK, text, fix)
    if "ResourceClaim no longer exists" in message:
        text = f"An Event reports that a pod whose claim was removed uses a device of its claim on node {node}."
        fix = (
            "End that pod (an Event of the driver on the Node names it), or delete this one to have it allocated to"
            f" other devices. {_RETRIES}"
        )
        return Diagnosis("device-kept", PodState.STUCK, text, fix)
    if "has adminAccess, which the driver refuses" in message:
        text = "An Event reports that the driver refuses adminAccess in its namespace."
        fix = "Only an administrator of the driver can allow it; then delete the pod to have it prepared again."
        return Diagnosis("admin-access-refused", PodState.STUCK, text, fix)
    if _has(message, ("still prepared for", "driver lost which of its cores", "still restores", "may be in use")):
        text = f"An Event reports that a device of its claim is not free on node {node} yet."
        fix = f"`neuron-dra map {node}` shows which claims hold its devices. {_RETRIES}"
        return Diagnosis("device-held", PodState.WAITS, text, fix)
    if _has(message, ("has vanished", "no device node")):
        text = f"An Event reports that a device of its claim is gone from node {node}."
        fix = "Check the Neuron kernel driver on the node, and delete the pod to have it allocated again."
        return Diagnosis("device-gone", PodState.STUCK, text, fix)
    if _has(message, ("connection refused", "no such file or directory", "DeadlineExceeded", "Unavailable")):
        text = f"An Event reports that the driver on node {node} does not answer the kubelet."
        fix = "Check the kubelet plugin's pod on the node (its log has the reason). " + _RETRIES
        return Diagnosis("driver-not-running", PodState.STUCK, text, fix)
    what = f": {codes[0]}, {CODES[codes[0]].title}" if codes else ""
    text = f"An Event reports that the driver on node {node} cannot prepare its claim{what}."
    return Diagnosis("prepare-failed", PodState.STUCK, text, _LOG + _RETRIES)


def _unregistered(node: str, *, publishes: bool) -> Diagnosis:
    if publishes:
        text = (
            f"The kubelet of node {node} had not registered the driver when the pod came. By now the driver publishes."
        )
        return Diagnosis("driver-registering", PodState.WAITS, text, _RETRIES)
    text = (
        f"The driver does not run on node {node}: the kubelet has not registered it, and it publishes no devices there."
    )
    fix = (
        "Check the kubelet plugin's pod on the node (kubectl get pods -A -o wide -l app.kubernetes.io/component="
        f"kubelet-plugin --field-selector spec.nodeName={node})."
    )
    return Diagnosis("driver-not-running", PodState.STUCK, text, fix)


def _has(message: str, words: Sequence[str]) -> bool:
    return any(word in message for word in words)


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
