"""Checks that the claims of a pod keep to a locked ConversionPolicy that binds them. Pure."""

from collections.abc import Iterator, Mapping

from checks.claims.configs import entries_by_class
from checks.claims.judging import ClaimContext, ClaimJudgement
from conversion.asks.conversion_context import ConversionContext
from conversion.asks.pod_demand import Claiming, KnownClaim
from conversion.asks.steering import Steering
from conversion.claims import candidates
from conversion.claims.making import listed
from conversion.claims.templates import KIND as TEMPLATE
from conversion.objects import pods
from neuron.api.claim_reader import value_text
from neuron.api.configs import configs_in_force
from neuron.api.nodes import required_terms
from neuron.findings import Finding


def check_bound(
    claiming: Claiming,
    known: Mapping[str, KnownClaim],
    steering: Steering,
    context: ClaimContext,
    conversion: ConversionContext,
    *,
    known_only: bool = False,
) -> list[Finding]:
    """NEU123 and NEU124 about all claims of a pod: what a pod says about their origin does not matter.

    Args:
        known: what is known of the pod's claims, by name of the entry.
        known_only: whether a claim that is not known is no error, because it may be created before the pod.

    Returns:
        Errors; empty unless the policy binds claims.
    """
    if not steering.binds_claims:
        return []
    check = _Check(claiming.pod, steering, context, conversion)
    # The policy itself names these.
    named = {template.name for template in steering.templates}
    findings: list[Finding] = []
    for index, (name, kind, object_name) in enumerate(claiming.names):
        if kind == TEMPLATE and object_name in named:
            continue
        judgement = known[name].judgement if name in known else None
        path = f"spec.resourceClaims[{index}]"
        if judgement is not None:
            findings += check.claim(path, value_text(object_name), judgement)
        elif not known_only:
            what = f"{kind} {value_text(object_name)}"
            message = f"{what} is not known, and policy {steering.policy('mode')} allows only claims that keep to it."
            fix = "Create it before the pod, or ask the cluster's admins."
            findings.append(Finding("NEU123", path, message, fix, what))
    return findings


class _Check:
    """Checks the claims of one pod."""

    def __init__(self, pod: pods.Pod, steering: Steering, context: ClaimContext, conversion: ConversionContext) -> None:
        self._steering = steering
        self._context = context
        terms, selector = required_terms(pod.decode_affinity()), pod.decode_node_selector()
        found = candidates.find(
            conversion.catalogue, candidates.NodeSelection((), selector, terms), conversion.families
        )
        # A pod that no Neuron node can take gets no devices.
        self._possible = {entry.name: entry for entry in found.types} if not found.errors else {}

    def claim(self, path: str, name: str, judgement: ClaimJudgement) -> Iterator[Finding]:
        steering, index = self._steering, self._context.index
        entries = entries_by_class(judgement.spec, self._context.classes)
        for leaf in judgement.leaves:
            # A cluster that publishes devices has no others.
            mask = leaf.mask & index.published if index.published else leaf.mask
            types = [self._possible[each] for each in index.types(mask) if each in self._possible]
            others = [each.name for each in types if steering.families and each.family not in steering.families]
            if others:
                yield Finding(
                    "NEU123",
                    path,
                    f"request {value_text(leaf.devices.reference)} of {name} can get devices of {listed(others)}, and"
                    f" policy {steering.policy('families')} allows only {', '.join(steering.families)}.",
                    "Select an instance type in the claim or in the pod, or ask the cluster's admins.",
                    listed(others),
                )
                return
            has = configs_in_force(entries[leaf.devices.device_class], leaf.devices.reference).logical_neuron_core
            lnc = steering.lnc if steering.lnc_locked else None
            if lnc not in (None, has) and any(each.configures_logical_neuron_core for each in types):
                sets = "no logical NeuronCore" if has is None else f"logical NeuronCore {has}"
                yield Finding(
                    "NEU124",
                    path,
                    f"request {value_text(leaf.devices.reference)} of {name} sets {sets}, and policy"
                    f" {steering.policy('logicalNeuronCore')} is locked to {lnc}.",
                    f"Add a NeuronConfig with logicalNeuronCore: {lnc} to the claim.",
                    str(has),
                )
                return
