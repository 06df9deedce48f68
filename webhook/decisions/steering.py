"""What policy files say about one pod's conversion, as conversion takes it. Pure, and free of the policies' schema."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from neuron import names
from neuron.findings import Finding, warning
from neuron.instances import InstanceType
from neuron.scheduling import NO_HINTS, SchedulingHints
from webhook.decisions.modes import Mode, ModeSettings
from webhook.decisions.wire import AdmissionRequest
from webhook.decisions.world import ConversionContext


@dataclasses.dataclass(frozen=True, slots=True)
class Steering:
    """What the policies that match a pod say. Hashable: it is part of what a decision depends on.

    Attributes:
        policy: name of the one on conversion; empty where none matches.
        mode: the mode where no annotation gives one; None: the server's.
        locked: `mode` and `lnc` come before annotations.
        families: the only families allowed; empty for any.
        device_class: DeviceClass to request from; None: the server's.
        lnc: logical NeuronCore where no annotation gives one, or where the policy is locked.
        unconnected: counts that cannot be connected are served all the same.
        hints: what the policy on scheduling hints says.
        labels: labels of `hints` that this pod is to get: the view of a pod does not have its labels.
    """

    policy: str = ""
    mode: Mode | None = None
    locked: bool = False
    families: tuple[str, ...] = ()
    device_class: str | None = None
    lnc: int | None = None
    unconnected: bool = False
    hints: SchedulingHints = NO_HINTS
    labels: tuple[tuple[str, str], ...] = ()


NO_STEERING = Steering()


class Steer(Protocol):
    """Finds what policies say about a Pod that is being created."""

    def __call__(self, request: AdmissionRequest) -> Steering:
        """The steering; never raises for what the object holds."""

    def of_template(self, template: Mapping[str, Any], namespace: str) -> Steering:
        """The steering of the pods that a workload makes of a pod template."""

    def fixed(self, namespace: str) -> "Steer":
        """The same with what is known of a namespace now, to be used beside the event loop."""


class SteerTemplate(Protocol):
    """Finds what policies say about the pods of a pod template."""

    def __call__(self, template: Mapping[str, Any], namespace: str) -> Steering:
        """The steering; never raises for what the template holds."""


def overruled(settings: ModeSettings, steering: Steering) -> list[Finding]:
    """NEU214 for every annotation that says something else than a locked policy, which comes before it.

    Args:
        settings: what annotations say, before the policy.
        steering: what the policy says.
    """
    if not steering.locked:
        return []
    found = []
    if steering.mode not in (None, settings.mode) and settings.source != "flag":
        said = (names.ANNOTATION_CONVERT, settings.mode.value)
        found.append(_overruled(steering, f"mode {steering.mode}", settings.source, *said))
    lnc = settings.wishes.lnc
    if steering.mode is not Mode.OFF and steering.lnc is not None and lnc not in (None, steering.lnc):
        locked_to = f"logical NeuronCore {steering.lnc}"
        found.append(_overruled(steering, locked_to, settings.lnc_source, names.ANNOTATION_LNC, str(lnc)))
    return found


def _overruled(steering: Steering, locked_to: str, source: str, annotation: str, value: str) -> Finding:
    owner = "the pod's" if source == "pod" else "the Namespace's"
    return warning(
        "NEU214",
        f"metadata.annotations[{annotation}]" if source == "pod" else "metadata.namespace",
        f"policy '{steering.policy}' is locked to {locked_to}: {owner} annotation {annotation} ({value}) does not"
        " count.",
        "Drop the annotation, or ask the cluster's admins.",
        value,
    )


def settled(settings: ModeSettings, steering: Steering) -> ModeSettings:
    """What annotations say, completed by the policy, or overruled by one that is locked."""
    if steering.mode is not None and (steering.locked or settings.source == "flag"):
        settings = dataclasses.replace(settings, mode=steering.mode, source="policy")
    if steering.lnc is not None and (steering.locked or settings.wishes.lnc is None):
        settings = dataclasses.replace(settings, wishes=dataclasses.replace(settings.wishes, lnc=steering.lnc))
    return settings


def owned_up(findings: Sequence[Finding], said: ModeSettings, steering: Steering) -> tuple[Finding, ...]:
    """The findings, with NEU111 where it belongs: at the policy, if no annotation gives the logical NeuronCore.

    Args:
        findings: why nothing can serve a pod.
        said: what annotations say, before the policy.
        steering: what the policy says.
    """
    if steering.lnc is None or (said.wishes.lnc is not None and not steering.locked):
        return tuple(findings)
    annotate = "" if steering.locked else f"annotate the pod with {names.ANNOTATION_LNC}, "
    fix = (
        f"It is {'required by' if steering.locked else 'the default of'} policy '{steering.policy}': {annotate}select a"
        " trn2 or trn3 instance type, or ask the cluster's admins."
    )
    return tuple(
        dataclasses.replace(each, path="spec", fix=fix) if each.code == "NEU111" else each for each in findings
    )


def steered(world: ConversionContext, steering: Steering) -> ConversionContext:
    """The world as it is for a pod that a policy steers."""
    if not steering.families and steering.device_class is None:
        return world
    options = world.options
    if steering.device_class is not None:
        options = dataclasses.replace(options, device_class=steering.device_class)
    return dataclasses.replace(world, families=steering.families or world.families, options=options)


def disagree(steering: Steering) -> Finding:
    """NEU110 where a pod has candidates, and none of them is where its policy requires it to be."""
    keys = ", ".join(str(entry.get("key")) for entry in steering.hints.required)
    return Finding(
        "NEU110",
        "spec",
        f"the pod's node selection and the node affinity that policy '{steering.hints.policy}' requires ({keys}) leave"
        " no Neuron instance type.",
        "Select an instance type that the policy allows, or ask the cluster's admins.",
    )


def allowed(
    found: tuple[InstanceType, ...], findings: list[Finding], steering: Steering
) -> tuple[tuple[InstanceType, ...], list[Finding]]:
    """Those of a pod's candidates that its policy allows.

    Args:
        found: the candidates by the pod's own words.
        findings: why there are none.
        steering: what the policy says.

    Returns:
        The candidates that are left; without any, a finding that says why.
    """
    left = tuple(entry for entry in found if entry.family in steering.families) if steering.families else found
    if left or findings:
        return left, findings
    names = ", ".join(entry.name for entry in found)
    finding = Finding(
        "NEU110",
        "spec",
        f"the pod selects {names}, and policy '{steering.policy}' allows only {', '.join(steering.families)}.",
        "Select an instance type of these families, or ask the cluster's admins.",
        names,
    )
    return (), [finding]
