"""What policy files say about one pod's conversion, as conversion takes it. Pure, and free of the policies' schema."""

import dataclasses
from typing import Protocol

from neuron.findings import Finding
from neuron.instances import InstanceType
from webhook.decisions.modes import Mode, Settings
from webhook.decisions.world import World
from webhook.edge.wire import AdmissionRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Steering:
    """What the policy that matches a pod says. Hashable: it is part of what a decision depends on.

    Attributes:
        policy: its name; empty where none matches.
        mode: the mode where no annotation gives one; None: the server's.
        locked: `mode` comes before annotations.
        families: the only families allowed; empty for any.
        device_class: DeviceClass to request from; None: the server's.
        lnc: logical NeuronCore where no annotation gives one.
    """

    policy: str = ""
    mode: Mode | None = None
    locked: bool = False
    families: tuple[str, ...] = ()
    device_class: str | None = None
    lnc: int | None = None


NO_STEERING = Steering()


class Steer(Protocol):
    """Finds what policies say about a Pod that is being created."""

    def __call__(self, request: AdmissionRequest) -> Steering:
        """The steering; never raises for what the object holds."""


def settled(settings: Settings, steering: Steering) -> Settings:
    """What annotations say, completed by the policy, or overruled by one that is locked."""
    if steering.mode is not None and (steering.locked or settings.source == "flag"):
        settings = dataclasses.replace(settings, mode=steering.mode, source="policy")
    if steering.lnc is not None and settings.wishes.lnc is None:
        settings = dataclasses.replace(settings, wishes=dataclasses.replace(settings.wishes, lnc=steering.lnc))
    return settings


def steered(world: World, steering: Steering) -> World:
    """The world as it is for a pod that a policy steers."""
    if not steering.families and steering.device_class is None:
        return world
    options = world.options
    if steering.device_class is not None:
        options = dataclasses.replace(options, device_class=steering.device_class)
    return dataclasses.replace(world, families=steering.families or world.families, options=options)


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
