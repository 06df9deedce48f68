"""A Pod on CREATE: from its view to a decision. Pure.

The steps, in order: whose business is it -> what do the containers ask -> which mode -> which instance types ->
one claim -> the smallest patch. Running it on its own result changes nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuron import candidates, demand, names
from neuron.claims import Claim, make_claim
from neuron.demand import Ask
from neuron.findings import Finding, as_warning, warning
from neuron.instances import InstanceType
from neuron.scheduling import with_required
from neuron.serving import Wishes
from webhook.decisions import hints, modes, patches, pods, records
from webhook.decisions.added_hints import NOTHING_ADDED, AddedHints
from webhook.decisions.canonical import key_of, keys_of
from webhook.decisions.decision import SEVERAL, Decision, Operation, Outcome, cut, denied, unchanged
from webhook.decisions.modes import Mode
from webhook.decisions.patches import add, append, pointer, remove, remove_members, replace, set_members
from webhook.decisions.ports import NamespaceFacts
from webhook.decisions.quota_advice import uncounted
from webhook.decisions.records import Amounts, Converted, Record
from webhook.decisions.steering import NO_STEERING, Steering, allowed, disagree, overruled, owned_up, settled, steered
from webhook.decisions.world import ConversionContext

_CORE_VARIABLES: Final = frozenset(names.CORE_VARIABLES)
_MIRROR: Final = "kubernetes.io/config.mirror"
_MOST_WARNED: Final = 16
"""Claims of the user's own that are named in warnings."""
_MOST_TERMS: Final = 64
"""Terms of required node affinity: the patch adds the instance types to each."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Holder:
    """One container with what it asks, now and before conversion."""

    container: pods.Container
    resources: Mapping[str, Any] | None
    section: str
    index: int
    amounts: Amounts
    ask: Ask
    findings: Sequence[Finding]

    @property
    def pointer(self) -> str:
        return pointer("spec", self.section, self.index)

    @property
    def written(self) -> dict[str, str]:
        """Legacy resources that the object names right now."""
        return legacy_now(self.resources)


def legacy_now(resources: Mapping[str, Any] | None) -> dict[str, str]:
    """Legacy resources named by a container's `resources`, with canonical amounts."""
    known = resources or {}
    return demand.legacy_amounts(known.get("limits") or {}, known.get("requests") or {})


def convert(
    pod: pods.Pod,
    facts: NamespaceFacts,
    world: ConversionContext,
    claiming: Sequence[str] = (),
    steering: Steering = NO_STEERING,
    *,
    by_kubelet: bool = False,
) -> Decision:
    """Decide about a Pod that is being created.

    Args:
        pod: its view.
        facts: what its namespace says.
        world: what else is known.
        claiming: names of claims in `spec.resourceClaims` that request our DeviceClass.
        steering: what policies say about it.
        by_kubelet: whether a kubelet creates it, as it does with the mirror pod of a static pod. Anybody can write the
            annotation of one.
    """
    if not pod.concerns_us:
        return unchanged("not-neuron")
    mirrors = pod.annotations.mirror is not None
    if mirrors and (by_kubelet or not steering.locked):
        return unchanged("mirror-pod")
    if (excess := pod.excess()) is not None:
        return denied("too-large", _too_large(excess))
    if (repeated := pod.repeated()) is not None:
        return denied("duplicate-names", _same_name(*repeated))
    conversion = records.find_conversion(pod)
    holders = _holders(pod, conversion.record if conversion else None)
    if conversion is None and not any(holder.ask.amount or holder.findings for holder in holders):
        return unchanged("not-neuron")
    said = modes.resolve(pod.annotations, facts, Mode(world.options.mode))
    settings = settled(said, steering)
    told = overruled(said, steering) if conversion is None else []
    if settings.mode is Mode.OFF:
        misspelt = (as_warning(finding) for finding in settings.misspelt_mode)
        return _about(unchanged(f"mode-off-by-{settings.source}", *misspelt, *told), holders)
    if mirrors or pod.spec.nodeName:
        return _about(_out_of_reach(pod, settings, steering), holders)
    decision = _decide(pod, facts, steered(world, steering), settings, holders, conversion, claiming, steering)
    if decision.errors:
        decision = dataclasses.replace(decision, errors=owned_up(decision.errors, said, steering))
    if told or steering is not NO_STEERING:
        decision = dataclasses.replace(decision, warnings=(*decision.warnings, *told), audit=_audit(decision, steering))
    return _about(_shadow(decision) if settings.mode is Mode.SHADOW else decision, holders)


def _out_of_reach(pod: pods.Pod, settings: modes.ModeSettings, steering: Steering) -> Decision:
    """About a pod that no scheduler places, or that says so: nothing allocates its claim. Locked policies refuse it."""
    refuses = steering.locked and settings.mode is not Mode.SHADOW
    if pod.annotations.mirror is not None:
        return denied("locked", _mirrored(steering)) if refuses else unchanged("mirror-pod")
    if refuses:
        return denied("locked", _unscheduled(pod, steering))
    return unchanged("node-name", _bound(pod.spec.nodeName or ""))


def _about(decision: Decision, holders: Sequence[_Holder]) -> Decision:
    """The decision, with the legacy resource that it is about."""
    asked = {resource for holder in holders for resource in holder.amounts}
    return dataclasses.replace(decision, resource=SEVERAL if len(asked) > 1 else "".join(asked))


def _audit(decision: Decision, steering: Steering) -> Mapping[str, str]:
    """Which policies steered a conversion."""
    by = {"conversion-policy": steering.policy, "scheduling-hint-policy": steering.hints.policy}
    return {**decision.audit, **{key: name for key, name in by.items() if name}} if decision.audit else {}


def _holders(pod: pods.Pod, record: Record | None) -> list[_Holder]:
    """All containers, init containers first, with the asks to convert.

    A container in the record keeps what it asked for then: what it names now is a LimitRange default that came back
    between two passes. A container that is not in it is new.
    """
    sections = (
        ("initContainers", pod.init_containers, record.init_containers if record else {}),
        ("containers", pod.containers, record.containers if record else {}),
    )
    holders = []
    for section, containers, recorded in sections:
        for index, container in enumerate(containers):
            resources = container.decode_resources(f"spec.{section}[{index}]") or {}
            limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
            amounts = recorded.get(container.name)
            if amounts is None:
                amounts = demand.legacy_amounts(limits, requests)
            else:
                limits, requests = amounts, {}
            role = records.role_of(section, container)
            ask, findings = demand.read(container.name, role, f"spec.{section}[{index}]", limits, requests)
            holders.append(_Holder(container, resources or None, section, index, amounts, ask, findings))
    return holders


def _decide(
    pod: pods.Pod,
    facts: NamespaceFacts,
    world: ConversionContext,
    settings: modes.ModeSettings,
    holders: Sequence[_Holder],
    conversion: Converted | None,
    claiming: Sequence[str],
    steering: Steering,
) -> Decision:
    """Convert or refuse, whatever the mode says about acting on it."""
    findings = [*settings.findings, *(finding for holder in holders for finding in holder.findings)]
    if findings:
        return denied("bad-request", *findings)
    selection, found, findings = _find_candidates(pod, world, settings, steering)
    if findings:
        return denied("no-candidate", *findings)
    asks = [holder.ask for holder in holders]
    only_these = bool(settings.instance_types or steering.families)
    claim = make_claim(
        asks,
        found,
        settings.wishes,
        world.options.device_class,
        only_these=only_these,
        unconnected=steering.unconnected,
    )
    if isinstance(claim, list):
        return denied("unservable", *claim)
    if (
        settings.mode is Mode.CONVERT_IF_ENRICHED
        and conversion is None
        and _served_in_tree(asks, claim, settings, world)
    ):
        return unchanged("served-by-extended-resource-name")
    claim_name = conversion.claim if conversion else _free_name(pod, holders)
    if claim_name is None:
        return denied("claim-names-taken", _names_taken())
    enough = candidates.pins_types(selection) and len(claim.types) == len(found)
    recorded = conversion.record.hints if conversion else NOTHING_ADDED
    given = hints.give(pod, selection, None if enough else claim.types, world.options, steering, recorded)
    record = _record(holders, given.added, records.claim_to_say(pod, claim_name))
    if len(record) > records.MOST_BYTES:
        return denied(
            "too-large",
            _too_large(f"the record of its conversion has {len(record)} bytes, at most {records.MOST_BYTES}"),
        )
    marks = mark(pod, record)
    patch = [*_claim_patch(pod, holders, claim, claim_name, conversion), *marks, *given.labels, *given.patch]
    if (size := patches.size_of(patch)) > patches.MOST_BYTES:
        return denied(
            "too-large", _too_large(f"the patch that converts it has {size} bytes, at most {patches.MOST_BYTES}")
        )
    own_claims = [name for name in claiming if name != claim_name]
    warnings = (*claim.warnings, *given.warnings, *_side_effects(facts, world, own_claims))
    if not patch:
        # The template still has to exist: the pod may come from another namespace, or from a backup.
        return Decision(Outcome.UNCHANGED, "already-converted", templates=(claim.template,))
    outcome, reason = (Outcome.RESTORED, "converted-before") if conversion else (Outcome.CONVERTED, "legacy-resources")
    return Decision(
        outcome,
        reason,
        patch=tuple(patch),
        templates=(claim.template,),
        # A pod that only lost something on its way was told before.
        warnings=() if conversion and conversion.template == claim.template.name else warnings,
        audit={"template": claim.template.name},
    )


def _find_candidates(
    pod: pods.Pod, world: ConversionContext, settings: modes.ModeSettings, steering: Steering
) -> tuple[candidates.NodeSelection, tuple[InstanceType, ...], list[Finding]]:
    """Where the pod may run, by its own words and by what policies require; without any, why."""
    terms, selector = hints.required_terms(pod.decode_affinity()), pod.decode_node_selector()
    if terms is not None and len(terms) > _MOST_TERMS:
        return candidates.NodeSelection(), (), [_too_many_terms(len(terms))]
    alone = candidates.NodeSelection(settings.instance_types, selector, terms)
    # What a policy requires is in the pod's own affinity when it comes here a second time: it has to count at once.
    both = dataclasses.replace(alone, terms=with_required(terms, steering.hints.required))
    found, findings = allowed(*candidates.find(world.catalogue, both, world.families), steering)
    if findings and steering.hints.required:
        without, _ = allowed(*candidates.find(world.catalogue, alone, world.families), steering)
        findings = [disagree(steering)] if without else findings
    return both, found, findings


def _served_in_tree(asks: Sequence[Ask], claim: Claim, settings: modes.ModeSettings, world: ConversionContext) -> bool:
    """Whether a DeviceClass with `extendedResourceName` serves the pod as well as a claim of ours (KEP-5004).

    It asks for arbitrary devices of its class and knows nothing of this pod's wishes.
    """
    enriched = claim.connected or settings.instance_types or settings.wishes != Wishes()
    served = all(ask.resource in world.extended_resources for ask in asks if ask.amount)
    return served and not enriched and not any(ask.in_cores and ask.amount > 1 for ask in asks)


def _free_name(pod: pods.Pod, holders: Sequence[_Holder]) -> str | None:
    """A name for the claim that the user neither declares nor refers to."""
    taken = {entry.get("name") for entry in pod.decode_claims() or ()}
    taken.update(entry.get("name") for holder in holders for entry in (holder.resources or {}).get("claims") or ())
    return next((name for name in (names.POD_CLAIM, names.POD_CLAIM_FALLBACK) if name not in taken), None)


def _claim_patch(
    pod: pods.Pod, holders: Sequence[_Holder], claim: Claim, claim_name: str, conversion: Converted | None
) -> list[Operation]:
    """Out with the legacy resources, in with the claim."""
    operations: list[Operation] = []
    for holder, use in zip(holders, claim.uses, strict=True):
        operations += strip_legacy(holder.pointer, holder.resources)
        operations += _refer(holder, _entries(claim_name, use))
        # All variables are read, whether or not one of them can be of ours: what is appended to has to be a list.
        if holder.ask.in_cores and holder.ask.amount and _CORE_VARIABLES.isdisjoint(holder.container.variables):
            # Rounding up must not hand out more cores than were asked for; nor must an LNC default of the node.
            variable = {"name": names.ENV_NUM_CORES, "value": str(holder.ask.amount)}
            environment = () if holder.container.has_env else None
            operations += append(f"{holder.pointer}/env", environment, [variable])
    if conversion is None:
        current = pod.decode_claims()
        entry = {"name": claim_name, "resourceClaimTemplateName": claim.template.name}
        operations += append("/spec/resourceClaims", current, [entry])
    elif conversion.template != claim.template.name:
        path = pointer("spec", "resourceClaims", conversion.index, "resourceClaimTemplateName")
        operations.append(replace(path, claim.template.name))
    return operations


def strip_legacy(path: str, resources: Mapping[str, Any] | None) -> list[Operation]:
    """Remove the legacy resources from limits and requests: what stays in one of them is allocated twice."""
    operations: list[Operation] = []
    for field in ("limits", "requests"):
        current = (resources or {}).get(field)
        operations += remove_members(f"{path}/resources/{field}", current, names.LEGACY_RESOURCES)
    return operations


def _entries(claim_name: str, use: tuple[str, ...] | None) -> list[dict[str, str]]:
    """Entries of `resources.claims` that a use needs."""
    if use is None:
        return []
    return [{"name": claim_name, "request": request} for request in use] or [{"name": claim_name}]


def _refer(holder: _Holder, entries: list[dict[str, str]]) -> list[Operation]:
    """Make a container refer to the claim as given, leaving other claims alone."""
    if holder.resources is None:
        return [add(f"{holder.pointer}/resources", {"claims": entries})] if entries else []
    if not entries:
        return []
    current = holder.resources.get("claims")
    path = f"{holder.pointer}/resources/claims"
    wanted, present = keys_of(entries), keys_of(current or ())
    stale = [
        index
        for index, entry in enumerate(current or ())
        if entry.get("name") == entries[0]["name"] and key_of(entry) not in wanted
    ]
    missing = [entry for entry in entries if key_of(entry) not in present]
    return [remove(f"{path}/{index}") for index in reversed(stale)] + append(path, current, missing)


def _record(holders: Sequence[_Holder], added: AddedHints, claim: str) -> str:
    """What the containers asked for, as the annotation says it."""
    amounts = {
        section: {
            holder.container.name: holder.amounts for holder in holders if holder.section == section and holder.amounts
        }
        for section in ("containers", "initContainers")
    }
    return Record(amounts["containers"], amounts["initContainers"], added, claim).encode()


def mark(pod: pods.Pod, record: str | None) -> list[Operation]:
    """Give a pod the label and this record, as far as it does not have them."""
    metadata = pod.metadata or pods.Metadata()
    labels = None if metadata.labels is None else {names.LABEL_CONVERTED: metadata.labels.converted}
    annotations = (
        None if metadata.annotations is None else {names.ANNOTATION_CONVERTED_FROM: metadata.annotations.converted_from}
    )
    parents = [add("/metadata", {})] if pod.metadata is None else []
    return [
        *parents,
        *set_members("/metadata/labels", labels, {names.LABEL_CONVERTED: "true"}),
        *set_members("/metadata/annotations", annotations, {names.ANNOTATION_CONVERTED_FROM: record}),
    ]


def _side_effects(facts: NamespaceFacts, world: ConversionContext, own_claims: Sequence[str]) -> list[Finding]:
    """What works differently for a converted pod, said rather than hidden."""
    options = world.options
    found = uncounted(facts.quotas, world)
    found += [
        warning(
            "NEU205",
            "metadata.namespace",
            f"LimitRange {limits} has a min or max for a Neuron resource, which refuses this pod.",
            f"Drop it; bound Neuron devices by quota {options.device_class}.deviceclass.resource.k8s.io/devices.",
            limits,
        )
        for limits in facts.limit_ranges
    ]
    found += [
        warning(
            "NEU206",
            "spec.resourceClaims",
            f"claim {cut(name)} already requests {options.device_class} devices; the limits add more of them.",
            value=cut(name),
        )
        for name in own_claims[:_MOST_WARNED]
    ]
    return found


def _bound(node: str) -> Finding:
    message = f"nodeName is {cut(node)!r}: the pod is not converted, because no scheduler would allocate its claim."
    return warning("NEU201", "spec.nodeName", message, "Use a nodeSelector.", cut(node))


def _unscheduled(pod: pods.Pod, steering: Steering) -> Finding:
    node = cut(pod.spec.nodeName or "")
    message = (
        f"nodeName is {node!r}, and policy '{steering.policy}' is locked to mode {steering.mode}: a pod that the"
        " scheduler does not place cannot be converted, because nothing else allocates its claim."
    )
    return Finding("NEU201", "spec.nodeName", message, "Use a nodeSelector.", node)


def _mirrored(steering: Steering) -> Finding:
    message = (
        f"only a kubelet makes mirror pods, and policy '{steering.policy}' is locked to mode {steering.mode}: a pod"
        f" that somebody else marks with {_MIRROR} would not be converted."
    )
    return Finding("NEU201", f"metadata.annotations[{_MIRROR}]", message, "Remove the annotation.")


def _too_large(excess: str) -> Finding:
    message = f"the pod is larger than any that was meant: {excess}."
    return Finding("NEU114", excess.split(" ", maxsplit=1)[0], message, "Make it smaller.")


def _too_many_terms(count: int) -> Finding:
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    message = f"the pod has too many node selector terms: {count}, at most {_MOST_TERMS}."
    return Finding("NEU114", path, message, "Say the same with fewer terms.", str(count))


def _same_name(path: str, name: str) -> Finding:
    message = f"two containers of the pod are called {cut(name)!r}."
    return Finding("NEU114", path, message, "Give every container a name of its own.", cut(name))


def _names_taken() -> Finding:
    return Finding(
        "NEU113",
        "spec.resourceClaims",
        f"the claim names {names.POD_CLAIM} and {names.POD_CLAIM_FALLBACK} are both taken.",
        "Rename one of the pod's own claims.",
    )


def _shadow(decision: Decision) -> Decision:
    """Report what would have happened, and change nothing."""
    told = [as_warning(finding) for finding in decision.errors]
    if decision.errors:
        message = "shadow mode: this pod would be refused."
    elif decision.patch:
        message = f"shadow mode: this pod would be converted, with template {decision.templates[0].name}."
    else:
        return dataclasses.replace(decision, templates=())
    return Decision(
        Outcome.SHADOWED,
        f"would-be-{decision.outcome.value}",
        warnings=(warning("NEU208", "", message), *told, *decision.warnings),
        audit={"shadow": decision.outcome.value, **decision.audit},
    )
