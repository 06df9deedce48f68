"""Steps of a diagnosis before scheduling: the pod has not ended, was converted, and its claims exist. Pure."""

from collections.abc import Mapping
from typing import Final

from commands.cluster.reader import Object
from commands.explain.diagnosis_inputs import DiagnosisInputs, condition, condition_quote, evidence_of, message_of
from commands.explain.explanation import Diagnosis, PodState, Quote
from commands.explain.schedule_steps import SICK_FIX, gated
from conversion.claims import templates
from conversion.claims.containers import scheduled
from conversion.patches.decision import Outcome
from neuron import names
from neuron.api.nodes import Node
from neuron.api.pod_groups import group_of
from neuron.api.ultraservers import ALLOCATED, state_of
from neuron.codes import CODES
from runtime.text import named

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
    if phase in ("Succeeded", "Failed"):
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
    offering = [node for node in facts.all_nodes if _offers(node, wanted)]
    text = " and ".join(f"{resource}: {amount}" for resource, amount in wanted.items())
    said = condition(facts.pod, "PodScheduled")
    evidence = condition_quote(said)
    if offering:
        waits = f"It was not converted, and waits for {text} of a device plugin, which is on {_counted(len(offering))}."
        fix = "Wait until pods there end, or convert it: " + _conversion_fix(facts)
        return Diagnosis("waits-for-device-plugin", PodState.WAITS, waits, fix, evidence)
    autoscaled = next((each for each in facts.preview.findings if each.code == "NEU903"), None)
    if autoscaled is not None:
        waits = f"It was not converted, and waits for {text}, which no node offers yet: {autoscaled.message}"
        return Diagnosis("waits-for-autoscaler", PodState.WAITS, waits, _AUTOSCALER_FIX, evidence)
    text = f"It was not converted and requests {text}, which no node offers. {_why_not_converted(facts)}"
    return Diagnosis("not-converted", PodState.STUCK, text, _conversion_fix(facts), evidence)


def _offers(node: Node, wanted: Mapping[str, int]) -> bool:
    return all(node.offered(resource) >= amount for resource, amount in wanted.items())


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


def _counted(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"
