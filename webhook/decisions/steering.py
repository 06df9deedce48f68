"""What policy files say about one pod's conversion, as conversion takes it. Pure, and free of the policies' schema."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from neuron import names
from neuron.findings import Finding, warning
from neuron.instances import InstanceType
from neuron.scheduling import NO_HINTS, SchedulingHints
from webhook.decisions.modes import Mode, Settings
from webhook.decisions.wire import AdmissionRequest
from webhook.decisions.world import World


@dataclasses.dataclass(frozen=True, slots=True)
class Steering:
    """What the policies that match a pod say. Hashable: it is part of what a decision depends on.

    Attributes:
        policy: name of the one on conversion; empty where none matches.
        mode: the mode where no annotation gives one; None: the server's.
        locked: `mode` comes before annotations.
        families: the only families allowed; empty for any.
        device_class: DeviceClass to request from; None: the server's.
        lnc: logical NeuronCore where no annotation gives one.
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


def overruled(settings: Settings, steering: Steering) -> list[Finding]:
    """NEU214 where a locked policy comes before an annotation that says something else.

    Args:
        settings: what annotations say, before the policy.
        steering: what the policy says.
    """
    if not steering.locked or steering.mode in (None, settings.mode) or settings.source == "flag":
        return []
    owner = "the pod's" if settings.source == "pod" else "the Namespace's"
    path = f"metadata.annotations[{names.ANNOTATION_CONVERT}]" if settings.source == "pod" else "metadata.namespace"
    finding = warning(
        "NEU214",
        path,
        f"policy '{steering.policy}' is locked to mode {steering.mode}: {owner} annotation"
        f" {names.ANNOTATION_CONVERT} ({settings.mode}) does not count.",
        "Drop the annotation, or ask the cluster's admins.",
        settings.mode.value,
    )
    return [finding]


def settled(settings: Settings, steering: Steering) -> Settings:
    """What annotations say, completed by the policy, or overruled by one that is locked."""
    if steering.mode is not None and (steering.locked or settings.source == "flag"):
        settings = dataclasses.replace(settings, mode=steering.mode, source="policy")
    if steering.lnc is not None and settings.wishes.lnc is None:
        settings = dataclasses.replace(settings, wishes=dataclasses.replace(settings.wishes, lnc=steering.lnc))
    return settings


def owned_up(findings: Sequence[Finding], said: Settings, steering: Steering) -> tuple[Finding, ...]:
    """The findings, with NEU111 where it belongs: at the policy, if no annotation gives the logical NeuronCore.

    Args:
        findings: why nothing can serve a pod.
        said: what annotations say, before the policy.
        steering: what the policy says.
    """
    if said.wishes.lnc is not None or steering.lnc is None:
        return tuple(findings)
    fix = (
        f"It is the default of policy '{steering.policy}': annotate the pod with {names.ANNOTATION_LNC}, select a trn2"
        " or trn3 instance type, or ask the cluster's admins."
    )
    return tuple(
        dataclasses.replace(each, path="spec", fix=fix) if each.code == "NEU111" else each for each in findings
    )


def steered(world: World, steering: Steering) -> World:
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
