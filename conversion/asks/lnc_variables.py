"""The logical NeuronCore that containers set by environment variables, a setting of the pod as its annotation. Pure.

The annotation of the pod precedes the variables; they precede the Namespace's annotation and the default of a policy. A
locked policy precedes all. Where another setting is in force, the driver replaces the variable of the container.

Variables that agree are the setting of all containers of the pod with devices. If they differ, each is that of its own
container, and the settings that they precede are for the containers without one.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from msgspec import structs

from conversion.asks.pod_demand import ContainerDemand, PodDemand
from conversion.asks.steering import ModeSettings, Steering, combined
from conversion.claims.containers import Ask
from conversion.claims.instance_fit import DeviceConfig
from neuron import names
from neuron.findings import Finding, quoted, short, warning
from neuron.hardware.instances import InstanceType

_MOST_NAME = 63
BY_VARIABLE = "variable"
"""`ModeSettings.lnc_source`, if a variable sets the logical NeuronCore."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Variable:
    """One variable of a container with Neuron devices.

    Attributes:
        value: as in `environment.logical_neuron_cores`.
        written: the beginning of the value as it is written; empty if it comes from elsewhere.
    """

    container: str
    path: str
    name: str
    value: int | None
    written: str


def settled(annotated: ModeSettings, demand: PodDemand, steering: Steering) -> ModeSettings:
    """The settings of a pod: by its annotations, the variables of its containers, and policies.

    A container whose two variables disagree is NEU126 in `findings`, if nothing precedes the variables.
    """
    found = [each for each in _variables(demand) if each.value]
    locked = steering.lnc_locked and steering.lnc is not None
    if found and annotated.lnc_source != "pod" and not locked:
        first = found[0]
        config = annotated.device_config
        if all([each.value == first.value for each in found]):
            config = structs.replace(config, lnc=first.value)
        else:
            disagree = (_disagree(one, other) for one, other in itertools.pairwise(found) if one.path == other.path)
            findings = (*annotated.findings, *(each for each in disagree if each))
            annotated = structs.replace(annotated, findings=findings)
            config = structs.replace(config, lncs=tuple(sorted({each.value for each in found if each.value})))
        annotated = structs.replace(annotated, device_config=config, lnc_source=BY_VARIABLE)
    return combined(annotated, steering)


def asks_apart(demand: PodDemand) -> list[Ask]:
    """The asks of a pod whose containers set different logical NeuronCores (`DeviceConfig.lncs`), each with its own."""
    found = {each.path: each.value for each in _variables(demand) if each.value}
    return [structs.replace(ask, lnc=found.get(f"{ask.path}.env")) for ask in demand.asks]


def with_node_default(
    types: Sequence[InstanceType], demand: PodDemand, config: DeviceConfig
) -> tuple[Sequence[InstanceType], DeviceConfig]:
    """Types and settings of a pod that sets no logical NeuronCore, on nodes whose files set another default.

    The device plugin counts cores by that default, and sets it in containers. So the claim gets it as a NeuronConfig.
    """
    sizes = {entry.node_lnc for entry in types}
    lnc = sizes.pop() if len(sizes) == 1 else None
    if lnc is None or config.lnc is not None:
        return types, config
    if any([each.value is None or not config.lncs for each in _variables(demand)]):
        return types, config
    by_nodes = [dataclasses.replace(entry, default_logical_neuron_core=lnc) for entry in types]
    return by_nodes, structs.replace(config, lnc=lnc)


def named(findings: Sequence[Finding], settings: ModeSettings, demand: PodDemand) -> tuple[Finding, ...]:
    """The errors, where NEU111 names the variable if one sets the logical NeuronCore."""
    if settings.lnc_source != BY_VARIABLE:
        return tuple(findings)
    found = {str(each.value): each for each in reversed(_variables(demand)) if each.value}
    return tuple([_by_variable(each, found.get(each.value)) if each.code == "NEU111" else each for each in findings])


def _by_variable(finding: Finding, variable: _Variable | None) -> Finding:
    if variable is None:
        return finding
    fix = f"Change the variable {variable.name}, or select a trn2 or trn3 instance type."
    return dataclasses.replace(finding, path=variable.path, fix=fix)


def unknown(demand: PodDemand, settings: ModeSettings) -> Finding | None:
    """NEU225 for the first variable whose value is not known, if the number of cores depends on it.

    Variables of `envFrom` are not known at all, and few of them are ours: they count only here, where a pod would
    otherwise be refused.
    """
    if settings.device_config.lnc is not None or not any(ask.in_cores for ask in demand.asks):
        return None
    written = (_unknown(each) for each in _variables(demand) if each.value is None)
    taken = (_taken(each) for each in demand.containers if each.ask.amount and each.container.may_take_lnc)
    return next(itertools.chain(written, taken), None)


def warnings(demand: PodDemand, settings: ModeSettings, types: Sequence[InstanceType]) -> Iterator[Finding]:
    """NEU225 and NEU226 for each variable that is not known, that has no such value, or that the driver replaces.

    NEU226 as well for each container without a variable that gets the value of another's, and had another value.

    Args:
        types: those of the claim, if it has a NeuronConfig for the setting; else none.
    """
    lnc, sets_lnc = settings.device_config.lnc, bool(types)
    replaced = lnc is not None and sets_lnc and not settings.device_config.lncs
    found = _variables(demand)
    if replaced and settings.lnc_source == BY_VARIABLE and len(demand.containers) > 1:
        yield from _without_variable(demand, next(each for each in found if each.value), types)
    for each in found:
        if each.value is not None and each.value not in (0, lnc) and replaced:
            message = (
                f"container {each.container} sets {each.name} to {each.value}, and the claim has logical NeuronCore"
                f" {lnc}: the driver sets {names.LNC_VARIABLES[0]}={lnc} in the container."
            )
            fix = f"Make the variable and the setting ({names.ANNOTATION_LNC}, or the policy's) agree."
            yield warning("NEU226", each.path, message, fix, str(each.value))
        elif each.value is None and not (lnc is not None and sets_lnc):
            yield _unknown(each)
        elif each.value == 0:
            written = quoted(each.written)
            message = (
                f"container {each.container} sets {each.name} to {written}, which is not 1 or 2: it does not count."
            )
            yield warning("NEU225", each.path, message, "Set it to 1 or 2.", each.written)


def _without_variable(demand: PodDemand, set_by: _Variable, types: Sequence[InstanceType]) -> Iterator[Finding]:
    defaults = ((each.name, each.node_lnc or each.default_logical_neuron_core) for each in types)
    name, had = next((each for each in defaults if each[1] != set_by.value), ("", 0))
    for each in demand.containers if name else ():
        container = each.container
        if each.ask.amount and not container.logical_neuron_cores and not container.may_take_lnc:
            who = short(container.name, _MOST_NAME)
            yield warning(
                "NEU226",
                f"spec.{each.section}[{each.index}].env",
                f"container {who} sets no logical NeuronCore and gets {set_by.value}, as container {set_by.container}"
                f" sets it; the device plugin gave it {had}, the default of {name}.",
                f"Set {names.LNC_VARIABLES[0]} in container {who} to the one for which its model is compiled.",
                str(set_by.value),
            )


def _variables(demand: PodDemand) -> list[_Variable]:
    return [
        _Variable(
            short(each.container.name, _MOST_NAME), f"spec.{each.section}[{each.index}].env", name, value, written[name]
        )
        for each in demand.containers
        if each.sets_variables
        for written in [dict(each.container.device_variables)]
        for name, value in each.container.logical_neuron_cores.items()
    ]


def _disagree(one: _Variable, other: _Variable) -> Finding | None:
    if one.value == other.value:
        return None
    return Finding(
        "NEU126",
        other.path,
        f"container {one.container} sets {one.name} to {one.value} and {other.name} to {other.value}: a container has"
        " one logical NeuronCore.",
        f"Remove {other.name}, or set the annotation {names.ANNOTATION_LNC}.",
        str(other.value),
    )


def _unknown(variable: _Variable) -> Finding:
    return warning(
        "NEU225",
        variable.path,
        f"container {variable.container} takes {variable.name} from elsewhere: its value is not known here, and cores"
        " are counted with the default of the instance type.",
        f"Write the value, or set the annotation {names.ANNOTATION_LNC}.",
        variable.name,
    )


def _taken(demand: ContainerDemand) -> Finding:
    return warning(
        "NEU225",
        f"spec.{demand.section}[{demand.index}].envFrom",
        f"container {short(demand.container.name, _MOST_NAME)} takes variables from elsewhere, which may set"
        f" {names.LNC_VARIABLES[0]}: its value is not known here, and cores are counted with the default of the"
        " instance type.",
        f"Write the value in env, or set the annotation {names.ANNOTATION_LNC}.",
        names.LNC_VARIABLES[0],
    )
