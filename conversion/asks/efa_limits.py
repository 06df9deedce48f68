"""Reads the EFA limits of a pod that a ConversionPolicy moves into the claim of its Neuron devices. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from conversion.asks.conversion_context import ConversionContext
from conversion.asks.pod_demand import ContainerDemand, PodDemand
from conversion.asks.records import EfaRequest
from conversion.asks.steering import Steering
from conversion.claims.interfaces import Interfaces, refused
from neuron import names, quantities
from neuron.findings import Finding, short, warning


@dataclasses.dataclass(frozen=True, slots=True)
class EfaLimits:
    """What happens to the EFA limits of a pod.

    Attributes:
        moved: the interfaces that the claim includes; None if the limits stay.
        errors: NEU125.
        warnings: NEU231.
    """

    moved: Interfaces | None = None
    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()


NO_LIMITS = EfaLimits()


def read(demand: PodDemand, context: ConversionContext, steering: Steering) -> EfaLimits:
    """What happens to the EFA limits of a pod that is converted.

    The record of an earlier conversion restates the limit that is gone. The DeviceClass is that of the policy in force.
    """
    asked = None if demand.earlier is None else demand.earlier.efa
    if asked is not None:
        available = context.class_names is None or steering.efa in context.class_names
        if steering.efa is None or not available:
            return EfaLimits(errors=(_not_served(demand, asked, steering),))
        return EfaLimits(Interfaces(asked.container, asked.count, steering.efa))
    if steering.efa is None:
        return NO_LIMITS
    limited = [each for each in demand.containers if amounts(each.resources)]
    if not limited:
        return NO_LIMITS
    path = f"spec.{limited[0].section}[{limited[0].index}]"
    if context.class_names is not None and steering.efa not in context.class_names:
        return EfaLimits(warnings=(_no_class(path, steering),))
    counts: dict[str, int] = {}
    for each in limited:
        found = count(each.resources)
        if found is None:
            return EfaLimits(errors=(_no_count(each),))
        counts[each.container.name] = found
    with_devices = [each.ask.container for each in demand.containers if each.ask.amount]
    wanted = [each for each in limited if counts[each.container.name]]
    if not wanted:
        return NO_LIMITS
    first = wanted[0]
    if len(wanted) > 1 or len(with_devices) > 1 or not first.ask.amount:
        return EfaLimits(errors=(_not_one_container(path, steering),))
    return EfaLimits(Interfaces(first.container.name, counts[first.container.name], steering.efa))


def amounts(resources: Mapping[str, Any] | None) -> dict[str, object]:
    """The EFA amounts of a container's `resources`, by field."""
    return {
        field: values[names.RESOURCE_EFA]
        for field in ("limits", "requests")
        if names.RESOURCE_EFA in (values := (resources or {}).get(field) or {})
    }


def count(resources: Mapping[str, object] | None) -> int | None:
    """EFA interfaces that a container limits; None if the limit is missing, or is no count, or the request differs."""
    given = amounts(resources)
    try:
        counts = {field: quantities.parse_count(value) for field, value in given.items()}
    except quantities.NotACountError:
        return None
    if not counts:
        return 0
    return counts.get("limits") if counts.get("requests", counts.get("limits")) == counts.get("limits") else None


def _no_count(demand: ContainerDemand) -> Finding:
    """NEU125 about an EFA limit that is none: the API server does not see a limit that is removed."""
    given = ", ".join(
        f"{field} {quantities.amount_text(value)!r}" for field, value in amounts(demand.resources).items()
    )
    message = (
        f"container {short(demand.container.name)} asks for {names.RESOURCE_EFA} in {given}: it needs a limit that is a"
        " whole number, and an equal request or none."
    )
    return refused(f"spec.{demand.section}[{demand.index}]", message, "Correct the limit.", given)


def _not_one_container(path: str, steering: Steering) -> Finding:
    message = (
        f"policy {steering.policy('efa')} requests {names.RESOURCE_EFA} in the claim of the Neuron devices, which needs"
        " one container that has both limits, and no other container with either."
    )
    return refused(path, message, "Spread the containers over several pods, or ask the cluster's admins.")


def _not_served(demand: PodDemand, asked: EfaRequest, steering: Steering) -> Finding:
    """NEU125 for a record with interfaces that no claim can have here: their limit is gone from the pod."""
    each = next(each for each in demand.containers if each.container.name == asked.container)
    why = "no ConversionPolicy that matches the pod requests them from a DeviceClass"
    if steering.efa is not None:
        why = f"DeviceClass {steering.efa} of policy {steering.policy('efa')} does not exist in this cluster"
    message = (
        f"container {short(asked.container)} had {names.RESOURCE_EFA}: {asked.count} in its claim when the pod was"
        f" converted, and {why}."
    )
    fix = (
        f"Restore the limit, and remove label {names.LABEL_CONVERTED} and annotation {names.ANNOTATION_CONVERTED_FROM}."
    )
    return refused(f"spec.{each.section}[{each.index}]", message, fix, asked.count)


def _no_class(path: str, steering: Steering) -> Finding:
    return warning(
        "NEU231",
        f"{path}.resources.limits[{names.RESOURCE_EFA}]",
        f"policy {steering.policy('efa')} requests {names.RESOURCE_EFA} from DeviceClass {steering.efa}, which does not"
        " exist in this cluster: the limit stays, and the interfaces need not be near the Neuron devices.",
        "Install the DRA network driver, or name its DeviceClass in spec.efa.deviceClass of the policy.",
        str(steering.efa),
    )
