"""Decides about a Pod on CREATE: its view to a `Decision`. Pure.

The steps, in order: pre-filter -> asks of the containers -> mode -> candidate instance types -> one claim -> the
smallest patch. Conversion of a converted pod changes nothing.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from conversion.asks import efa_limits, lnc_variables, records
from conversion.asks.conversion_context import ConversionContext, steered
from conversion.asks.pod_demand import PodDemand
from conversion.asks.records import NOTHING_ADDED
from conversion.asks.steering import (
    NO_STEERING,
    Mode,
    ModeSettings,
    Steering,
    allowed,
    annotated_settings,
    attributed,
    excluded_by_affinity,
    overridden,
)
from conversion.claims import candidates
from conversion.claims.candidates import Candidates, NodeSelection
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, Refusal, make_claim
from conversion.claims.mapped_templates import Need
from conversion.claims.pools import NOBODY, PodNeeds, Takers, amounts
from conversion.claims.scheduling import NEURON_TOLERATION, with_required
from conversion.claims.templates import Template
from conversion.facts import NamespaceFacts
from conversion.findings import pod_findings
from conversion.objects import pods, queues
from conversion.objects.pods import Excess
from conversion.patches import hints
from conversion.patches.claim_patches import claim_patch, encode_record, free_name, mark
from conversion.patches.decision import MOST_BYTES, Decision, Outcome, denied, size_of, unchanged
from conversion.patches.named_templates import with_named
from neuron.api.nodes import Affinity, required_terms
from neuron.api.taints import TolerationSpec
from neuron.findings import Finding, as_warning, warning
from neuron.hardware.instances import Catalogue

_MOST_TERMS: Final = 64
"""Terms of required node affinity: the patch adds the instance types to each."""


def convert(
    pod: pods.Pod,
    facts: NamespaceFacts,
    context: ConversionContext,
    claiming: Sequence[str] = (),
    steering: Steering = NO_STEERING,
    *,
    by_kubelet: bool = False,
) -> Decision:
    """Decide about a Pod that is being created.

    Args:
        claiming: names of claims in `spec.resourceClaims` that request our DeviceClass.
        by_kubelet: whether a kubelet creates it, as the mirror pod of a static pod. Any user can set the annotation of
            a mirror pod.

    Raises:
        conversion.objects.pods.UnreadableError: a field has the wrong type.
    """
    decision = _converted(pod, facts, context, claiming, steering, by_kubelet=by_kubelet)
    if not steering.named and pod.annotations.template is None:
        return decision
    return with_named(decision, pod, context.options, steering)


def _converted(
    pod: pods.Pod,
    facts: NamespaceFacts,
    context: ConversionContext,
    claiming: Sequence[str],
    steering: Steering,
    *,
    by_kubelet: bool,
) -> Decision:
    """The decision about the limits of a pod; arguments as for `convert`."""
    if not pod.concerns_us:
        return unchanged("not-neuron")
    mirrors = pod.annotations.mirror is not None
    if mirrors and (by_kubelet or not steering.locked):
        return unchanged("mirror-pod")
    if (excess := pod.excess()) is not None:
        return denied("too-large", pod_findings.too_large(excess))
    if (repeated := pod.repeated()) is not None:
        return denied("duplicate-names", pod_findings.same_name(*repeated))
    demand = PodDemand.of(pod, claiming)
    if demand.is_empty:
        return unchanged("not-neuron")
    annotated = annotated_settings(pod.annotations, facts, Mode(context.options.mode))
    settings = lnc_variables.settled(annotated, demand, steering)
    ignored = overridden(annotated, steering) if demand.earlier is None else []
    if settings.mode is Mode.OFF:
        misspelt = (as_warning(finding) for finding in settings.mode_findings)
        return _with_resource(unchanged(f"mode-off-by-{settings.source}", *misspelt, *ignored), demand)
    if mirrors or pod.spec.nodeName:
        return _with_resource(_unscheduled(pod, settings, steering), demand)
    decision = _within_limits(_decide(demand, facts, steered(context, steering), settings, steering), facts, context)
    if decision.errors:
        errors = attributed(decision.errors, settings, annotated, steering)
        decision = dataclasses.replace(decision, errors=lnc_variables.named(errors, settings, demand))
    if ignored or steering is not NO_STEERING:
        warnings = (*decision.warnings, *ignored)
        decision = dataclasses.replace(decision, warnings=warnings, audit=_audit(decision, steering))
    return _with_resource(_shadow(decision) if settings.mode is Mode.SHADOW else decision, demand)


def computed_templates(
    pod: pods.Pod, facts: NamespaceFacts, context: ConversionContext, steering: Steering = NO_STEERING
) -> Iterator[Template]:
    """The template that conversion uses now for what the record of a pod states; none if it refuses, or has no record.

    After it the one that conversion used before an upgrade of the control plane, or will use, if it differs: decided
    only if the caller looks further. The mode of the pod does not matter. A template that a policy names and does not
    carry has no spec.

    Raises:
        conversion.objects.pods.UnreadableError: a field has the wrong type.
    """
    demand = PodDemand.of(pod, ())
    if demand.earlier is None:
        return
    annotated = annotated_settings(pod.annotations, facts, Mode(context.options.mode))
    settings = lnc_variables.settled(annotated, demand, steering)
    found: set[str] = set()
    for each in itertools.chain((context,), context.of_other_versions()):
        decision = _decide(demand, facts, steered(each, steering), settings, steering)
        named = (Template(need.mapped.name, {}, "") for need in decision.needs)
        template = next(iter((*decision.templates, *named)), None)
        if template is not None and template.name not in found:
            found.add(template.name)
            yield template


def _unscheduled(pod: pods.Pod, settings: ModeSettings, steering: Steering) -> Decision:
    """A pod that no scheduler places: nothing would allocate its claim. A locked policy refuses it."""
    refuses = steering.locked and settings.mode is not Mode.SHADOW
    if pod.annotations.mirror is not None:
        return denied("locked", pod_findings.is_mirror_but_locked(steering)) if refuses else unchanged("mirror-pod")
    if refuses:
        return denied("locked", pod_findings.has_node_name_but_locked(pod, steering))
    return unchanged("node-name", pod_findings.has_node_name(pod.spec.nodeName or ""))


def _with_resource(decision: Decision, demand: PodDemand) -> Decision:
    resource = demand.resource
    return decision if decision.resource == resource else dataclasses.replace(decision, resource=resource)


def _audit(decision: Decision, steering: Steering) -> Mapping[str, str]:
    """The audit annotations, with the names of the policies."""
    by = {"conversion-policy": ", ".join(steering.policy_names), "scheduling-hint-policy": steering.hints.policy}
    return {**decision.audit, **{key: name for key, name in by.items() if name}} if decision.audit else {}


class _Ask(Struct, frozen=True):
    """A pod that asks for devices, and all that decides about it."""

    demand: PodDemand
    facts: NamespaceFacts
    context: ConversionContext
    settings: ModeSettings
    steering: Steering


class _Choice(Struct, frozen=True):
    """What may serve the pod.

    Attributes:
        selection: of nodes, by the pod, its settings and policies.
        found: the instance types.
        takers: the pools and nodes that can take it.
        efa: its EFA interfaces.
    """

    ask: _Ask
    affinity: Affinity | None
    selection: NodeSelection
    found: Candidates
    takers: Takers
    efa: efa_limits.EfaLimits


class _ClaimOfPod(Struct, frozen=True):
    """The claim of the pod.

    Attributes:
        named: the template of an operator that a policy maps; empty if there is none.
        templates: what has to exist before the pod is admitted.
        needs: the template of an operator that has to be checked.
    """

    choice: _Choice
    claim: Claim
    named: str
    templates: tuple[Template, ...]
    needs: tuple[Need, ...]


def _decide(
    demand: PodDemand,
    facts: NamespaceFacts,
    context: ConversionContext,
    settings: ModeSettings,
    steering: Steering,
) -> Decision:
    """Convert or refuse: ask, choose, claim, patch. `_shadow` applies shadow mode to the result."""
    findings = [*settings.findings, *demand.findings]
    if findings:
        return denied("bad-request", *findings)
    choice = _choose(_Ask(demand, facts, context, settings, steering))
    claim = choice if isinstance(choice, Decision) else _claim(choice)
    return claim if isinstance(claim, Decision) else _patch(claim)


def _choose(ask: _Ask) -> _Choice | Decision:
    """The instance types and nodes that may serve the pod, or the decision if there is none."""
    demand, context, steering = ask.demand, ask.context, ask.steering
    affinity = demand.pod.decode_affinity()
    selection, found = _find_candidates(demand.pod, affinity, context, ask.settings, steering)
    takers = _takers(demand, selection, context, steering)
    serves = pod_findings.serves_claims(ask.facts, context)
    if demand.earlier is None and not serves and (waits := _waits(selection, found, takers, context)):
        return _left("autoscaled", waits, steering)
    found = _narrowed(found, selection, takers, context.catalogue, serves=serves)
    if not found.types:
        if found.unknown:
            return _left("unknown-type", found.unknown, steering)
        return denied("no-candidate", *found.errors, warnings=found.warnings)
    efa = efa_limits.read(demand, context, steering)
    if efa.errors:
        return denied("efa", *efa.errors, warnings=found.warnings)
    return _Choice(ask, affinity, selection, found, takers, efa)


def _claim(choice: _Choice) -> _ClaimOfPod | Decision:
    """The claim for what the pod asks, or the decision if it cannot be served, or needs none."""
    ask, found, efa = choice.ask, choice.found, choice.efa
    demand, context, settings, steering = ask.demand, ask.context, ask.settings, ask.steering
    device_class = context.options.device_class
    asks = lnc_variables.asks_apart(demand) if settings.device_config.lncs else demand.asks
    config = structs.replace(settings.device_config, efa=efa.moved) if efa.moved else settings.device_config
    types_of_nodes, config = lnc_variables.with_node_default(found.types, demand, config)
    make = functools.partial(
        make_claim,
        asks,
        device_class=device_class,
        pin_types=bool(settings.instance_types or steering.families),
        unconnected=steering.unconnected,
        others=context.catalogue,
    )
    claim = make(types_of_nodes, config)
    if isinstance(claim, Refusal):
        unknown = lnc_variables.unknown(demand, settings)
        if unknown is not None:
            sizes = sorted({size for entry in found.types for size in entry.logical_neuron_cores})
            made = (make(found.types, structs.replace(config, lnc=size)) for size in sizes)
            if all(isinstance(each, Refusal) for each in made):
                unknown = None
        return _refused(claim, found, steering, unknown)
    # A template of an operator does not serve the interfaces: the demand for which it is mapped does not name them.
    templates_of_policy = () if efa.moved else steering.templates
    mapped = next((each for each in templates_of_policy if each.is_for(asks, config, claim)), None)
    if mapped is None:
        # A locked policy decides for a pod that brings a record, too: its author may have written the record.
        enriches = settings.mode is Mode.CONVERT_IF_ENRICHED and (demand.earlier is None or steering.locked)
        if enriches and _served_in_tree(demand, claim, settings, context):
            return unchanged("served-by-extended-resource-name")
        return _ClaimOfPod(choice, claim, "", (claim.template,), ())
    types = tuple(entry for entry in found.types if entry.name in claim.types)
    needs = (Need(mapped, tuple(asks), types, config, device_class, steering.unconnected),)
    claim = structs.replace(claim, template=mapped.inline or Template(mapped.name, {}, ""))
    return _ClaimOfPod(choice, claim, mapped.name, () if mapped.inline is None else (claim.template,), needs)


def _patch(made: _ClaimOfPod) -> Decision:
    """The decision with the patch that makes the pod use its claim."""
    choice, claim, templates = made.choice, made.claim, made.templates
    demand, context, steering = choice.ask.demand, choice.ask.context, choice.ask.steering
    pod, earlier, efa = demand.pod, demand.earlier, choice.efa
    claim_name = earlier.claim if earlier else free_name(demand)
    if claim_name is None:
        return denied("claim-names-taken", pod_findings.names_taken())
    found, selection = choice.found, choice.selection
    enough = not found.known or (candidates.pins_types(selection) and len(claim.types) == len(found.types))
    labels = None if enough else context.label_values(claim.types)
    recorded = earlier.hints if earlier else NOTHING_ADDED
    hint = hints.hint_patch(pod, choice.affinity, selection, labels, context.options, steering, recorded)
    record = encode_record(
        demand, hint.added, records.claim_to_record(pod, claim_name, made.named), made.named, efa.moved
    )
    if len(record) > records.MOST_BYTES:
        return denied(
            "too-large", pod_findings.too_large(_large("the record of its conversion", len(record), records.MOST_BYTES))
        )
    patch = [*claim_patch(demand, claim, claim_name, efa.moved), *mark(pod, record), *hint.labels, *hint.patch]
    if (size := size_of(patch)) > MOST_BYTES:
        return denied("too-large", pod_findings.too_large(_large("the patch that converts it", size, MOST_BYTES)))
    if not patch:
        # The template must exist all the same: the pod may come from another namespace or from a backup.
        reason = "already-converted"
        return Decision(Outcome.UNCHANGED, reason, templates=templates, needs=made.needs, locked=steering.locked)
    alternatives = any([each.has_alternatives for each in templates])
    # Admins say by `queued` that the queue counts claims; Kueue still admits none with alternatives.
    silenced = steering.queued and not alternatives
    outcome, reason = (Outcome.RESTORED, "converted-before") if earlier else (Outcome.CONVERTED, "legacy-resources")
    # The warnings were shown when the pod was converted first.
    shown = earlier is not None and earlier.template == claim.template.name
    return Decision(
        outcome,
        reason,
        patch=tuple(patch),
        templates=templates,
        needs=made.needs,
        warnings=() if shown else _warnings(made, claim_name, hint.warnings),
        audit={"template": claim.template.name},
        resource=demand.resource,
        patch_size=size,
        claimed_class="" if earlier or silenced else context.options.device_class,
        shows_queue=pod.shows_queue or not queues.POINTERS.keys().isdisjoint([each["path"] for each in patch]),
        alternatives=alternatives,
        locked=steering.locked,
    )


def _warnings(made: _ClaimOfPod, claim_name: str, of_hints: Sequence[Finding]) -> tuple[Finding, ...]:
    """What the user of a converted pod should know."""
    choice, claim, ask = made.choice, made.claim, made.choice.ask
    own_claims = [name for name in ask.demand.claiming if name != claim_name]
    found = choice.found
    types = [entry for entry in found.types if entry.name in claim.types] if claim.sets_lnc else ()
    return (
        *([pod_findings.unknown_types(claim.types)] if found.all_known_types else found.warnings),
        *choice.efa.warnings,
        *claim.warnings,
        *of_hints,
        *lnc_variables.warnings(ask.demand, ask.settings, types),
        *pod_findings.side_effects(ask.facts, ask.context, own_claims),
        *pod_findings.pinned_cores(ask.demand),
        *_without_taker(choice.selection, choice.takers, ask.context),
    )


def _within_limits(decision: Decision, facts: NamespaceFacts, context: ConversionContext) -> Decision:
    """The decision, or a refusal if a LimitRange refuses the converted pod."""
    if decision.outcome is not Outcome.CONVERTED or not facts.limit_ranges:
        return decision
    found = pod_findings.limited(facts, context.options.device_class)
    return denied("limit-range", *found, warnings=decision.warnings)


def _takers(demand: PodDemand, selection: NodeSelection, context: ConversionContext, steering: Steering) -> Takers:
    """The pools and nodes that can take the pod.

    The pod may have no toleration of the Neuron taint: conversion adds it, and Kubernetes does to a pod with limits
    (admission plugin ExtendedResourceToleration).
    """
    if not context.pools.known:
        return NOBODY
    own = demand.pod.decode_tolerations() or ()
    given = (*own, *steering.hints.tolerations, NEURON_TOLERATION)
    devices, cores = amounts(demand.asks)
    tolerations = tuple(map(TolerationSpec.read, given))
    return context.pools.takers(PodNeeds(selection, tolerations, devices, cores, steering.families))


def _narrowed(
    found: Candidates, selection: NodeSelection, takers: Takers, catalogue: Catalogue, *, serves: bool
) -> Candidates:
    """The candidates, narrowed to the types of pools where only these have nodes for a pod that selects no types.

    Args:
        catalogue: in its order.
        serves: whether nodes are made for claims.
    """
    matches = (*takers.static, *(takers.dynamic if serves else ()))
    if not matches or takers.types or candidates.names_types(selection):
        return found
    types = {entry.name for each in matches for entry in each.types}
    return Candidates(tuple(entry for entry in catalogue if entry.name in types))


def _waits(
    selection: NodeSelection, found: Candidates, takers: Takers, context: ConversionContext
) -> Sequence[Finding]:
    """NEU903, if no node would be made for the claim of a pod. A selection that admits no type is refused instead."""
    if not found.types and not takers.dynamic:
        return ()
    waits = pod_findings.autoscaled(selection, takers, context)
    return () if waits is None else (waits, *_without_taker(selection, takers, context))


def _without_taker(selection: NodeSelection, takers: Takers, context: ConversionContext) -> Iterator[Finding]:
    """NEU228 or NEU905 about a pod that nothing which is known can take."""
    if takers is not NOBODY and takers != NOBODY:
        return
    if context.pools.problem:
        yield pod_findings.unknown_pools(context)
    yield from pod_findings.unmet_selection(selection, context)


def _refused(refusal: Refusal, found: Candidates, steering: Steering, unknown: Finding | None) -> Decision:
    """`unknown`: the variable that may set another logical NeuronCore, with which the count may be right."""
    if refusal.unknown:
        return _left("unknown-type", refusal.findings, steering)
    if unknown is not None:
        return _left("unknown-logical-core", (*refusal.findings, unknown), steering)
    return denied("unservable", *refusal.findings, warnings=found.warnings)


def _left(reason: str, why: Sequence[Finding], steering: Steering) -> Decision:
    """Leave a pod whose instance type is not known, or for whose claim no node is made. A locked policy refuses it."""
    if steering.locked:
        return denied("locked", *why)
    return unchanged(reason, *map(as_warning, why))


def _large(what: str, size: int, most: int) -> Excess:
    return Excess("spec", f"{what} has {size} bytes, at most {most}")


def _find_candidates(
    pod: pods.Pod, affinity: Affinity | None, context: ConversionContext, settings: ModeSettings, steering: Steering
) -> tuple[candidates.NodeSelection, Candidates]:
    """Candidates by the pod's node selection and by policies."""
    terms, selector = required_terms(affinity), pod.decode_node_selector()
    if terms is not None and len(terms) > _MOST_TERMS:
        too_many = pod_findings.too_many_terms(len(terms), _MOST_TERMS)
        return candidates.NodeSelection(), Candidates((), (too_many,))
    alone = candidates.NodeSelection(settings.instance_types, selector, terms)
    # In a second pass the policy's requirements are part of the pod's own affinity. The first pass must give the same
    # candidates, so it adds them here.
    both = alone
    if steering.hints.required:
        both = structs.replace(alone, terms=with_required(terms, steering.hints.required))
    found = allowed(candidates.find(context.catalogue, both, context.families), steering)
    if found.errors and steering.hints.required:
        without = allowed(candidates.find(context.catalogue, alone, context.families), steering)
        if not without.errors:
            found = structs.replace(found, errors=(excluded_by_affinity(steering),))
    return both, found


def _served_in_tree(demand: PodDemand, claim: Claim, settings: ModeSettings, context: ConversionContext) -> bool:
    """Whether a DeviceClass with `extendedResourceName` can serve the pod as well as a generated claim (KEP-5004).

    Such a class gives arbitrary devices: no connection, no instance types, no device settings.
    """
    enriched = claim.connected or settings.instance_types or settings.device_config != DeviceConfig()
    asks = demand.asks
    served = all(ask.resource in context.extended_resources for ask in asks if ask.amount)
    return served and not enriched and not any(ask.in_cores and ask.amount > 1 for ask in asks)


def _shadow(decision: Decision) -> Decision:
    """Report the decision as warnings and change nothing."""
    errors = [as_warning(finding) for finding in decision.errors]
    if decision.errors:
        message = "shadow mode: this pod would be refused."
    elif decision.patch:
        message = f"shadow mode: this pod would be converted, with template {decision.audit['template']}."
    else:
        return dataclasses.replace(decision, templates=(), needs=())
    return Decision(
        Outcome.SHADOWED,
        f"would-be-{decision.outcome.value}",
        needs=decision.needs,
        warnings=(warning("NEU208", "", message), *errors, *decision.warnings),
        audit={"shadow": decision.outcome.value, **decision.audit},
        shadowed=decision.outcome,
    )
