"""Why a pod of the cluster does not run: the steps that a pod passes, each with its own diagnosis. Pure."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from commands.cluster.reader import ENDED, Object
from commands.devices.devices import fault_text
from commands.devices.node_devices import taint_text
from commands.explain.explanation import (
    Block,
    Diagnosis,
    DiagnosisInputs,
    NodeVerdict,
    PodState,
    Quote,
    condition,
    condition_quote,
    event_order,
    evidence_of,
    grouped,
    message_of,
)
from conversion.claims import templates
from conversion.claims.containers import scheduled
from conversion.objects.queues import KUEUE_GROUP
from conversion.patches.decision import Outcome
from neuron import names
from neuron.api.fields import mapping, mappings
from neuron.api.workloads import ALLOCATED, group_of, state_of
from neuron.codes import CODES
from neuron.findings import known_codes
from runtime.text import counted, named

# --- before a node has the pod: admission, claims, gates, schedulers, nodes without room ------------------------------


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
    text = f"None of {counted(total, 'Neuron node')} can take it now. Closest: {nodes}: {what}."
    return Diagnosis(str(first.block), PodState.WAITS, text, _FIXES.get(first.block, ""), evidence)


_NOT_CREATED: Final = "FailedResourceClaimCreation"
_AUTOSCALER_FIX: Final = (
    "The autoscaler makes a node for the pod's limits; its Events say why it does not. On that node a device plugin has"
    " to offer the devices."
)


def ended(facts: DiagnosisInputs) -> Diagnosis | None:
    phase, metadata = facts.status.get("phase"), facts.pod["metadata"]
    evicted = condition(facts.pod, "DisruptionTarget")
    if evicted.get("status") == "True" and "Taint" in str(evicted.get("reason")):
        text = "It is evicted, because a device or node that it uses got a taint."
        return Diagnosis("evicted", PodState.STUCK, text, SICK_FIX, condition_quote(evicted))
    if metadata.get("deletionTimestamp"):
        since = named(metadata["deletionTimestamp"])
        text = f"It is being deleted since {since}; its devices become free when it has ended."
        return Diagnosis("terminating", PodState.WAITS, text)
    if phase in ENDED:
        reason, message = str(facts.status.get("reason") or ""), str(facts.status.get("message") or "")
        state = PodState.WELL if phase == "Succeeded" else PodState.STUCK
        quote = Quote("status.message of the pod", message) if message else None
        text = f"It has ended: {phase}{f': {named(reason)}' if reason else ''}."
        return Diagnosis("ended", state, text, evidence=quote)
    return None


def not_converted(facts: DiagnosisInputs) -> Diagnosis | None:
    """A pod that was admitted with the device plugin's limits, where no node has room for them."""
    wanted = +scheduled(facts.spec)
    if not wanted or facts.node_name or facts.in_tree:
        return None
    offering = [
        node for node in facts.all_nodes if all(node.offered(resource) >= amount for resource, amount in wanted.items())
    ]
    text = " and ".join(f"{resource}: {amount}" for resource, amount in wanted.items())
    said = condition(facts.pod, "PodScheduled")
    evidence = condition_quote(said)
    if offering:
        on = counted(len(offering), "node")
        waits = f"It was not converted, and waits for {text} of a device plugin, which is on {on}."
        fix = "Wait until pods there end, or convert it: " + _conversion_fix(facts)
        return Diagnosis("waits-for-device-plugin", PodState.WAITS, waits, fix, evidence)
    autoscaled = next((each for each in facts.preview.findings if each.code == "NEU903"), None)
    if autoscaled is not None:
        waits = f"It was not converted, and waits for {text}, which no node offers yet: {autoscaled.message}"
        return Diagnosis("waits-for-autoscaler", PodState.WAITS, waits, _AUTOSCALER_FIX, evidence)
    text = f"It was not converted and requests {text}, which no node offers. {_why_not_converted(facts)}"
    return Diagnosis("not-converted", PodState.STUCK, text, _conversion_fix(facts), evidence)


def _why_not_converted(facts: DiagnosisInputs) -> str:
    preview = facts.preview
    if facts.not_called:
        return facts.not_called
    if preview.decision.reason == "excluded-namespace":
        return f"Namespace {facts.namespace} is excluded from conversion."
    if preview.decision.outcome is Outcome.SHADOWED:
        return f"Mode shadow ({preview.decided_by}) only reports what conversion would do."
    if preview.decision.reason.startswith("mode-off"):
        return f"Mode off ({preview.decided_by}) switches conversion off."
    if preview.decision.errors:
        code = preview.decision.errors[0].code
        return f"Conversion would refuse it now: {code}, {CODES[code].title}."
    return f"Its mode is {preview.mode} now: the pod is older than that, or the webhook was not called."


def _conversion_fix(facts: DiagnosisInputs) -> str:
    again = "delete the pod, so that its controller makes it again, or apply it again."
    if facts.not_called:
        return f"Apply the webhook configuration as shipped (`neuron-dra status` checks it), then {again}"
    if facts.preview.decision.reason == "excluded-namespace":
        return f"Remove the namespace from --exclude-namespace and the webhook's namespaceSelector, then {again}"
    if facts.preview.decision.errors:
        return "Change the pod so that it can be converted: `neuron-dra explain -f` shows the errors."
    if facts.preview.decision.outcome is Outcome.SHADOWED or facts.preview.decision.reason.startswith("mode-off"):
        annotate = f"kubectl annotate namespace {facts.namespace} {names.ANNOTATION_CONVERT}=convert --overwrite"
        return f"`{annotate}` (or change what decides the mode), then {again}"
    return f"{again[:1].upper()}{again[1:]}"


def no_group(facts: DiagnosisInputs) -> Diagnosis | None:
    """A PodGroup that does not exist: neither claims nor nodes are looked for."""
    if facts.node_name or not facts.group_missing:
        return None
    group = named(group_of(facts.pod))
    text = f"It belongs to PodGroup {group}, which does not exist in namespace {facts.namespace}."
    fix = f"Create PodGroup {group}, or correct spec.schedulingGroup and recreate the pod."
    return Diagnosis("group-missing", PodState.STUCK, text, fix)


def no_ultraserver(facts: DiagnosisInputs) -> Diagnosis | None:
    """A workload of AWS's UltraServer operator without UltraServers: its template, or devices, are missing."""
    workload = facts.workload
    if facts.node_name or workload is None or state_of(workload) in ALLOCATED:
        return None
    name, state = named(str(workload["metadata"].get("name") or "")), state_of(workload)
    shown = named(state) if state else "new"
    text = f"It waits for UltraServers of NeuronUltraServerWorkload {name}, which is {shown}."
    fix = f"`kubectl describe neuronultraserverworkload {name}` shows what AWS's UltraServer operator waits for."
    return Diagnosis("ultraserver", PodState.STUCK if state == "Failed" else PodState.WAITS, text, fix)


def no_claim(facts: DiagnosisInputs) -> Diagnosis | None:
    """Claims that do not exist yet."""
    if facts.node_name:
        return None
    missing = [name for name, claim in facts.claims.items() if claim is None]
    if not missing:
        return None
    if (waits := gated(facts)) is not None:
        return waits
    claim = named(missing[0])
    event = facts.event(_NOT_CREATED)
    message = message_of(event) if event else ""
    absent = [name for name, exists in facts.templates.items() if exists is False]
    if absent:
        return _template_missing(facts, absent[0], event)
    direct_names = {each.get("name"): each.get("resourceClaimName") for each in facts.spec.get("resourceClaims") or ()}
    direct = next((str(direct_names[name]) for name in missing if direct_names.get(name)), "")
    if direct:
        text = f"ResourceClaim {named(direct)}, which it names, does not exist in namespace {facts.namespace}."
        fix = f"Create ResourceClaim {named(direct)}."
        return Diagnosis("claim-missing", PodState.STUCK, text, fix, evidence_of(event))
    if "exceeded quota" in message or "forbidden" in message:
        text = f"Its claim {claim} is not created: an Event reports that a quota or another check refuses it."
        fix = (
            "Compare `kubectl describe resourcequota` of the namespace with what the pod requests; free devices, or ask"
            " the cluster's admins for a larger quota. It is retried by itself."
        )
        return Diagnosis("quota", PodState.STUCK, text, fix, evidence_of(event))
    if event is not None:
        text = f"Its claim {claim} is not created, as an Event reports."
        fix = "Check the template with `neuron-dra validate`, correct it, and recreate the pod."
        return Diagnosis("claim-not-created", PodState.STUCK, text, fix, evidence_of(event))
    text = f"Its claim {claim} is not created yet; kube-controller-manager creates it within seconds."
    fix = "If this lasts, check that kube-controller-manager runs with its controller resourceclaim-controller."
    return Diagnosis("claim-pending", PodState.WAITS, text, fix)


def _template_missing(facts: DiagnosisInputs, template: str, event: Object | None) -> Diagnosis:
    where = f"ResourceClaimTemplate {named(template)} does not exist in namespace {facts.namespace}"
    text = f"{where}: its claim is not created."
    converted = names.LABEL_CONVERTED in (facts.pod["metadata"].get("labels") or {})
    if converted and templates.is_generated(template):
        fix = "Recreate the pod: the webhook makes the template again."
    else:
        fix = "Create the template; the pod then goes on by itself."
    return Diagnosis("template-missing", PodState.STUCK, text, fix, evidence_of(event))


# --- on the node: it answers, the driver prepares the claims, the devices are healthy ---------------------------------


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
            for stated in entry.conditions or ():
                if stated.type == "Healthy" and stated.status == "False":
                    device = f"{named(entry.device)} on {facts.node_name}"
                    text = f"It uses {device}, which is unhealthy: {named(stated.reason)}."
                    evidence = Quote("status.devices of its claim", stated.message)
                    return Diagnosis("device-unhealthy", PodState.STUCK, text, SICK_FIX, evidence)
    for slice_ in (each for each in facts.slices if each.node == facts.node_name):
        for published in slice_.devices:
            taints = [each for each in published.taints if each.key not in _ABOUT_OTHERS]
            if published.name in held and taints:
                taint = taint_text(taints[0])
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


# --- all steps --------------------------------------------------------------------------------------------------------


# Pods pass the same steps: admission, creation of claims, scheduling, preparation on the node. The first step that
# failed is the answer.
_STEPS: Final[tuple[Callable[[DiagnosisInputs], Diagnosis | None], ...]] = (
    ended,
    not_converted,
    no_group,
    no_ultraserver,
    no_claim,
    unscheduled,
    lost,
    not_prepared,
    sick,
    elsewhere,
)


def diagnose(facts: DiagnosisInputs) -> Diagnosis:
    """The diagnosis of a pod."""
    found = next((answer for step in _STEPS if (answer := step(facts)) is not None), None)
    return found or runs(facts)
