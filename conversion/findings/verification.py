"""Verifies that a pod was converted by us, by facts that the author of the pod cannot write into it. Pure.

A pod's record, its label and the name of its template are claims of the author (`conversion.asks.claimed`). They are
verified by the ResourceClaimTemplate that the pod uses: it requests at most what conversion requests for the recorded
amounts, from DeviceClasses that the server or a policy names, and has a generated name, or one that a policy names.
Where the template is not known, the name of the template must be the one that conversion computes for these amounts
now, or with a control plane whose scheduler searches in the other way: it contains the hash of the claim.

Only `verify` makes a `Verified`. Code that judges pods takes no other evidence. A stored pod whose manifest is applied
again gets back what the old object has without it (`conversion.patches.restore_pods`). `check_damage` finds pods that
lost what conversion gave them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from checks.claims.connections import group_size
from conversion.asks import records
from conversion.asks.claimed import Claimed, claimed
from conversion.asks.pod_demand import legacy_now
from conversion.asks.records import Requests
from conversion.claims import containers as demand
from conversion.claims import selectors, templates
from conversion.claims.containers import Ask, Role
from conversion.claims.layout import most_devices
from conversion.objects import pods
from neuron import names
from neuron.api.claim_specs import ClaimSpec, Constraint, DeviceRequest
from neuron.api.configs import covers
from neuron.findings import Finding, warning

_COUNTS: Final = (1, 4, 8, 16)
"""Device counts to which conversion rounds cores up (docs/conversion.md). Above, each core counts as a device."""
_DEVICES_OF_A_NODE: Final = 16
"""Devices of a `neuron_node`; only UltraServer nodes publish one."""
_WHOLE_NODE: Final = selectors.whole_node()
_OTHER_DRIVER: Final = selectors.other_driver()


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """DeviceClasses from which conversion requests devices, and templates that it uses beside its own.

    Attributes:
        device_classes: of Neuron devices.
        efa_classes: of EFA interfaces.
        mapped_templates: names of templates that policies name.
    """

    device_classes: frozenset[str]
    efa_classes: frozenset[str] = frozenset()
    mapped_templates: frozenset[str] = frozenset()


class Verified(Requests, frozen=True):
    """A conversion of ours, and what the pod asked for. Made by `verify` only.

    Attributes:
        claim: name of our entry in `spec.resourceClaims`.
        lost: names of containers that have lost their reference to the claim, and so their devices.
    """

    claim: str
    template: str
    lost: tuple[str, ...] = ()


def verify(
    pod: pods.Pod | Mapping[str, object],
    template: Callable[[str], ClaimSpec | None],
    sources: Sources,
    computed: Callable[[], Iterable[str]] = tuple,
) -> Verified | None:
    """The conversion of a pod; None if it is not converted, or its record cannot be verified.

    Then its limits and claims must be judged as the pod has them, and an unknown template as one that can request any
    number of devices.

    Args:
        pod: its view, or the whole object.
        template: gives the spec of a ResourceClaimTemplate of the pod's namespace; None if it is unknown.
        sources: DeviceClasses and templates of conversion.
        computed: names of the templates that conversion uses for the recorded amounts, with the control plane of now
            and of before or after an upgrade; none if it refuses. Called if `template` does not know that of the pod.

    Raises:
        conversion.objects.pods.UnreadableError: a field of the pod has the wrong type.
    """
    found = claimed(pod if isinstance(pod, pods.Pod) else pods.view(pod))
    # By its name, it can be a template of ours, or one that a policy names.
    if found is None or not (templates.is_generated(found.template) or found.template in sources.mapped_templates):
        return None
    spec = template(found.template)
    if found.template not in computed() if spec is None else not _is_covered(spec, found, sources):
        return None
    record = found.record
    return Verified(
        record.containers,
        record.init_containers,
        record.efa,
        found.claim,
        found.template,
        found.lost,
    )


def _is_covered(spec: ClaimSpec, found: Claimed, sources: Sources) -> bool:
    """Whether a claim requests at most what conversion requests for the recorded amounts, on any instance type."""
    held = interfaces = 0
    for request in spec.requests:
        of_efa = [_interfaces(each, sources) for each in request.alternatives]
        if any(of_efa):
            if not all(of_efa):
                return False
            interfaces += max(of_efa)
            continue
        most = [_held(each, spec.constraints, sources) for each in request.alternatives]
        if None in most:
            return False
        held += max((each for each in most if each is not None), default=0)
    efa = found.record.efa
    allowed = most_devices(found.asks, [_rounded(each) for each in found.asks])
    return held <= allowed and interfaces <= (0 if efa is None else efa.count)


def _interfaces(request: DeviceRequest, sources: Sources) -> int:
    """EFA interfaces of one request that conversion can have generated; 0 for any other request."""
    first = request.selectors[0].expression if request.selectors else ""
    generated = first == _OTHER_DRIVER and request.device_class in sources.efa_classes
    return 0 if not generated or request.everything or request.admin_access else request.count


def _held(request: DeviceRequest, constraints: Sequence[Constraint], sources: Sources) -> int | None:
    """Devices of one request of a generated template; None if conversion does not generate such a request."""
    if request.everything or request.admin_access or request.device_class not in sources.device_classes:
        return None
    first = request.selectors[0].expression if request.selectors else ""
    if first == _WHOLE_NODE:
        return request.count * _DEVICES_OF_A_NODE
    # A whole node is in no window.
    grouped = not first and any(
        group_size(each.match_attribute) and covers(frozenset(each.requests), request.reference) for each in constraints
    )
    return request.count if grouped or selectors.selects_single_devices(first) else None


def _rounded(ask: Ask) -> int:
    if not ask.in_cores:
        return ask.amount
    return next((count for count in _COUNTS if count >= ask.amount), ask.amount)


def check_damage(pod: pods.Pod) -> list[Finding]:
    """NEU707: a converted pod has lost its claim or the reference to it.

    A webhook that decodes pods into an older API type and writes them back drops the fields that it does not know. What
    the pod says of itself is not verified here: this can only refuse or warn, and the fix is to remove the label.
    """
    text = pod.annotations.converted_from
    if not pod.labelled or not text:
        return []
    record = records.decode(text)
    if record is None:
        message = (
            f"annotation {names.ANNOTATION_CONVERTED_FROM} is not readable: the pod is not taken for a converted one."
        )
        fix = f"Remove it and the label {names.LABEL_CONVERTED}; conversion writes them itself."
        return [warning("NEU211", f"metadata.annotations[{names.ANNOTATION_CONVERTED_FROM}]", message, fix, text[:40])]
    conversion = claimed(pod)
    findings = []
    for section, container, path in pod.sections():
        recorded = record.init_containers if section == "initContainers" else record.containers
        ask, _ = demand.read(container.name, Role.APP, path, recorded.get(container.name, {}), {})
        resources = container.decode_resources() or {}
        if not ask.amount or legacy_now(resources):
            continue
        refers = conversion is not None and any(
            each.get("name") == conversion.claim for each in resources.get("claims") or ()
        )
        if not refers:
            lost = "the reference to its claim" if conversion is not None else "the pod's claim"
            message = (
                f"container {container.name[:24]} was converted from {ask.resource}: {ask.amount}, but {lost} is gone."
            )
            fix = (
                "Another webhook dropped it: update that webhook, or let it run before this one. Where the label "
                f"{names.LABEL_CONVERTED} was copied from another pod, remove it."
            )
            findings.append(Finding("NEU707", f"{path}.resources.claims", message, fix, str(ask.amount)))
    return findings
