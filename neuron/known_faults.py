"""Known faults of Kubernetes' components in Dynamic Resource Allocation: which versions, what happens, what we do.

One table for all: the driver withholds what a fault would break, `status` and `validate` say why, and the book lists
it (docs/versions.md). Sources: the issues, and the release notes of 1.34 to 1.36; versions that fix a fault and are in
no release notes were found in the sources.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

Version: TypeAlias = tuple[int, int, int]

_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", re.ASCII)


class Component(enum.StrEnum):
    """Who has the fault. The versions of scheduler and controllers are taken to be that of the API server."""

    SCHEDULER = "kube-scheduler"
    CONTROLLERS = "kube-controller-manager"
    KUBELET = "kubelet"


class Withheld(enum.StrEnum):
    """What the driver does not publish because of a fault."""

    NOTHING = "nothing"
    COUNTERS = "counters"
    """Shared counters: an UltraServer node offers its devices or the whole node."""
    SHARES = "shares"
    """Shares of cores, on nodes whose devices consume shared counters."""
    DEVICES = "devices"
    """All devices, if the setting says so."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownFault:
    """A known fault.

    Attributes:
        issue: where it is described; empty if no issue describes it.
        versions: pairs of the first version with it and the first one without it.
        effect: what happens, as a part of a sentence about the component.
        withheld: what the driver does not publish.
        remedy: what this project does about it, as a sentence.
        told: whether `status` names it: something is withheld, or any claim can meet it.
    """

    component: Component
    issue: str
    versions: tuple[tuple[Version, Version], ...]
    effect: str
    withheld: Withheld
    remedy: str
    told: bool = True

    def fixed_after(self, version: Version) -> str:
        """The first version without the fault after an affected one, as text; empty if it is not affected."""
        for first, fixed in self.versions:
            if first <= version < fixed:
                return ".".join(map(str, fixed))
        return ""


TAINT_RULES: Final = "kubernetes/kubernetes#139651"
"""The issue because of which no DeviceTaintRules are written."""

_ORDERS: Final = KnownFault(
    Component.SCHEDULER,
    "",
    (((1, 34, 0), (1, 36, 0)),),
    "tries the devices of a request in every order: a request for 9 devices or more can take 10 seconds for each"
    " node, in which no other pod is scheduled",
    Withheld.NOTHING,
    "Conversion divides large requests there, and NEU542 names claims that do not.",
)

FAULTS: Final = (
    KnownFault(
        Component.SCHEDULER,
        "kubernetes/kubernetes#138882",
        (((1, 35, 0), (1, 35, 6)), ((1, 36, 0), (1, 36, 2))),
        "panics when a claim with allocationMode: All meets a device that consumes shared counters",
        Withheld.COUNTERS,
        "The driver publishes no shared counters: an UltraServer node offers its devices or the whole node.",
    ),
    KnownFault(
        Component.SCHEDULER,
        "kubernetes/kubernetes#139034",
        (((1, 34, 0), (1, 36, 2)),),
        "does not count shared devices in shared counters, and can allocate a device twice",
        Withheld.SHARES,
        "The driver shares no cores on nodes whose devices consume shared counters.",
    ),
    KnownFault(
        Component.SCHEDULER,
        "kubernetes/kubernetes#136269",
        (((1, 34, 0), (1, 34, 4)), ((1, 35, 0), (1, 35, 1))),
        "can allocate a device to two claims when pods are scheduled very quickly",
        Withheld.NOTHING,
        "The driver refuses to prepare the second claim.",
    ),
    KnownFault(
        Component.SCHEDULER,
        "kubernetes/kubernetes#140436",
        (((1, 34, 0), (1, 36, 3)),),
        "loses count of the devices of a node with shared counters while it searches",
        Withheld.NOTHING,
        "Conversion requests device groups there by device ids, and NEU541 names claims that do not.",
        told=False,
    ),
    _ORDERS,
    KnownFault(
        Component.SCHEDULER,
        TAINT_RULES,
        (((1, 36, 0), (1, 36, 3)),),
        "ignores DeviceTaintRules, and panics when a ResourceSlice changes while there are any",
        Withheld.NOTHING,
        "`neuron-dra cordon` writes none, and the driver taints the devices.",
        told=False,
    ),
    KnownFault(
        Component.CONTROLLERS,
        "kubernetes/kubernetes#138407",
        (((1, 34, 0), (1, 37, 0)),),
        "writes the claims of a pod with several claim templates into its status by turns",
        Withheld.NOTHING,
        "A converted pod has one claim.",
        told=False,
    ),
    KnownFault(
        Component.KUBELET,
        "kubernetes/kubernetes#133920",
        (((1, 34, 0), (1, 34, 2)),),
        "can lose pods that use ResourceClaims",
        Withheld.DEVICES,
        "With kubeletPlugin.faultyKubelet=Withhold, the driver publishes no device there.",
    ),
    KnownFault(
        Component.KUBELET,
        "kubernetes/kubernetes#135901",
        (((1, 34, 0), (1, 34, 4)), ((1, 35, 0), (1, 35, 1))),
        "does not start a pod with several claims if another pod has one of them",
        Withheld.NOTHING,
        "A converted pod has one claim of its own.",
        told=False,
    ),
    KnownFault(
        Component.KUBELET,
        "kubernetes/kubernetes#140212",
        (((1, 34, 0), (1, 37, 0)),),
        "can unprepare a claim that another pod uses, when a pod that shares the claim ends before it was prepared",
        Withheld.NOTHING,
        "A converted pod has a claim of its own.",
        told=False,
    ),
)


def parse(version: str) -> Version | None:
    """A version such as `v1.34.1-eks-113cf36`; None if it is none."""
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2]), int(match[3])) if match is not None else None


def of(component: Component, version: str) -> Iterator[KnownFault]:
    """The faults of a component of this version; none if the version cannot be parsed."""
    number = parse(version)
    if number is not None:
        yield from (each for each in FAULTS if each.component is component and each.fixed_after(number))


def of_control_plane(version: str) -> Iterator[KnownFault]:
    """The faults of a control plane. `version`: `gitVersion` of `/version`."""
    yield from of(Component.SCHEDULER, version)
    yield from of(Component.CONTROLLERS, version)


def withheld(version: str) -> dict[Withheld, KnownFault]:
    """What the driver withholds with a control plane of this version, and why."""
    return {each.withheld: each for each in of_control_plane(version) if each.withheld is not Withheld.NOTHING}


def tries_orders(version: str) -> bool | None:
    """Whether a scheduler tries the devices of a request in every order; None if its version is not known."""
    number = parse(version)
    return None if number is None else bool(_ORDERS.fixed_after(number))


def oldest(versions: Iterable[str]) -> str:
    """The oldest of some versions of one component, as it is written; empty if one of them is not known."""
    found = [(parse(version), version) for version in versions]
    known = [(number, version) for number, version in found if number is not None]
    return min(known)[1] if known and len(known) == len(found) else ""


def sentence(fault: KnownFault, version: str) -> str:
    """What is wrong with a component of this version, with the issue and the version that is right."""
    number = parse(version)
    fixed = fault.fixed_after(number) if number is not None else ""
    issue = f" ({fault.issue})" if fault.issue else ""
    upgrade = f"; fixed in {fixed}" if fixed else ""
    return f"{fault.component} {version[:40]} {fault.effect}{issue}{upgrade}."
