"""Whether and how one instance type serves a pod's demand.

The counts that go together are those of the Neuron scheduler extension and of the device groups that the DRA
driver publishes; nothing is served by unconnected devices, unless a policy allows it.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from neuron import names
from neuron.demand import Ask, Role
from neuron.findings import Finding
from neuron.instances import InstanceType, Topology
from neuron.layout import Layout, lay_out


@dataclasses.dataclass(frozen=True, slots=True)
class Wishes:
    """What annotations ask of the whole pod.

    Attributes:
        lnc: logical NeuronCore setting, 1 or 2; None where the node's default is right.
        ultraserver_mode: nodes of the UltraServer set, 1, 2 or 4; None for plain devices.
    """

    lnc: int | None = None
    ultraserver_mode: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Requests that have to be connected with each other: one container uses them together.

    Attributes:
        requests: request ids, in ascending order.
        group: size of the device group that must hold them all; None where they are the whole node.
    """

    requests: tuple[int, ...]
    group: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """How one instance type serves a pod.

    Attributes:
        entry: the instance type.
        layout: its requests.
        spans: the connected sets.
        sets_lnc: whether a NeuronConfig has to set the logical NeuronCore.
        devices: devices that every ask became, 0 for none.
    """

    entry: InstanceType
    layout: Layout
    spans: tuple[Span, ...]
    sets_lnc: bool
    devices: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why one instance type cannot serve a pod.

    Attributes:
        findings: what to tell where this type is the one to name; never empty.
        ring: whether consecutive devices of a ring would serve it.
        unsuitable: whether the type lacks a setting that is asked for, whatever the number of devices.
    """

    findings: tuple[Finding, ...]
    ring: bool = False
    unsuitable: bool = False


def serve(entry: InstanceType, asks: Sequence[Ask], wishes: Wishes, *, unconnected: bool = False) -> Serving | Refusal:
    """Serve the whole pod from one node of this type, or say why not.

    Args:
        entry: the instance type.
        asks: the pod's containers; init containers first.
        wishes: what annotations ask.
        unconnected: whether a count that cannot be connected is served by devices that need not be. Rings excepted:
            what their counts mean is consecutive devices.
    """
    refusal = _refuse_wishes(entry, wishes)
    if refusal is not None:
        return refusal
    answers = [_devices_for(entry, ask, wishes, unconnected=unconnected) for ask in asks]
    if refusals := [answer for answer in answers if isinstance(answer, Refusal)]:
        findings = tuple(finding for each in refusals for finding in each.findings)
        return Refusal(findings, ring=all(each.ring for each in refusals))
    devices = [answer for answer in answers if isinstance(answer, int)]
    # Before the layout, whose cost grows with the sums it has to try.
    held = sum(count for ask, count in zip(asks, devices, strict=True) if ask.role is not Role.INIT)
    if (refusal := _too_many(entry, held, asks)) is not None:
        return refusal
    layout = lay_out(asks, devices, entry.counts)
    if (refusal := _too_many(entry, layout.total, asks)) is not None:
        return refusal
    if wishes.ultraserver_mode is not None and list(layout.counts.values()) != [entry.devices]:
        return Refusal((_whole_node_only(entry, layout, wishes.ultraserver_mode, asks),))
    spans = _spans(entry, layout, devices)
    if spans is None:
        return Refusal((_unconnectable(entry, layout, asks),))
    sets_lnc = wishes.lnc is not None and entry.configures_logical_neuron_core
    return Serving(entry, layout, spans, sets_lnc, tuple(devices))


def _refuse_wishes(entry: InstanceType, wishes: Wishes) -> Refusal | None:
    """Refuse settings that this type does not have."""
    if wishes.lnc is not None and wishes.lnc not in entry.logical_neuron_cores:
        allowed = ", ".join(map(str, entry.logical_neuron_cores)) or "unknown"
        finding = Finding(
            "NEU111",
            f"metadata.annotations[{names.ANNOTATION_LNC}]",
            f"Instance type {entry.name} does not support logical NeuronCore {wishes.lnc} (allowed: {allowed}).",
            "Change the annotation, or select a trn2 or trn3 instance type.",
            str(wishes.lnc),
        )
        return Refusal((finding,), unsuitable=True)
    mode = wishes.ultraserver_mode
    if mode is not None and mode not in entry.ultraserver_nodes:
        finding = Finding(
            "NEU112",
            f"metadata.annotations[{names.ANNOTATION_ULTRASERVER_MODE}]",
            f"Instance type {entry.name} is in no UltraServer of {mode} nodes.",
            "Select trn2u.48xlarge, or drop the annotation.",
            str(mode),
        )
        return Refusal((finding,), unsuitable=True)
    return None


def _devices_for(entry: InstanceType, ask: Ask, wishes: Wishes, *, unconnected: bool) -> int | Refusal:
    """Devices that one ask becomes; cores are rounded up to a count that can be connected.

    Where devices need not be connected, cores are rounded up to whole devices only: nothing else is bought with more.
    """
    if not ask.amount:
        return 0
    loose = unconnected and entry.topology is not Topology.RING
    if not ask.in_cores:
        if ask.amount in entry.counts or (loose and ask.amount <= max(entry.counts)):
            return ask.amount
        ring = entry.topology is Topology.RING and entry.devices is not None and ask.amount < entry.devices
        return Refusal((_unsupported_count(entry, ask),), ring)
    per_device = entry.cores(wishes.lnc)
    if per_device is None:
        return Refusal((_unknown_cores(entry, ask),))
    exact = -(-ask.amount // per_device)
    rounded = next((count for count in entry.counts if count >= exact), None)
    if rounded is None:
        return Refusal((_too_many_cores(entry, ask, wishes.lnc),))
    if loose:
        return exact
    # Three devices of a ring are consecutive; rounding them up to all twelve would quadruple the bill.
    if entry.topology is Topology.RING and rounded != exact:
        return Refusal((_unsupported_count(entry, ask),), ring=True)
    return rounded


def _spans(entry: InstanceType, layout: Layout, devices: Sequence[int]) -> tuple[Span, ...] | None:
    """The connected sets of a layout; None where one of them cannot be asked for.

    A container that was granted a count that is not sure to be connected needs no set.
    """
    spans: dict[tuple[int, ...], Span] = {}
    for use in {
        tuple(sorted(use)) for use, count in zip(layout.uses, devices, strict=True) if use and count in entry.counts
    }:
        size = layout.size(use)
        if size == 1:
            continue
        group = next((group for group in entry.groups if group >= size), None)
        if group is None and size != entry.devices:
            return None
        spans[use] = Span(use, group)
    return tuple(spans[use] for use in sorted(spans)) if _satisfiable(layout, spans.values()) else None


def _satisfiable(layout: Layout, spans: Iterable[Span]) -> bool:
    """Whether spans that share requests fit into one group together.

    Groups are nested: whatever overlaps has to be in the largest group of them all.
    """
    islands: list[tuple[set[int], int | None]] = []
    for span in spans:
        island, group = set(span.requests), span.group
        apart = []
        for other, other_group in islands:
            if island & other:
                island |= other
                group = None if group is None or other_group is None else max(group, other_group)
            else:
                apart.append((other, other_group))
        islands = [*apart, (island, group)]
    return all(group is None or layout.size(tuple(island)) <= group for island, group in islands)


def nearest(count: int, valid: Iterable[int]) -> str:
    """The closest valid counts below and above, as words: `4 or 8`."""
    counts = sorted(set(valid))
    below = [str(each) for each in counts if each < count][-1:]
    above = [str(each) for each in counts if each > count][:1]
    return " or ".join(below + above)


def _unsupported_count(entry: InstanceType, ask: Ask) -> Finding:
    unit = "core" if ask.in_cores else "device"
    return Finding(
        "NEU105",
        ask.resource_path,
        # Word for word what the Neuron scheduler extension says, so that searching for it still helps.
        f"Instance type {entry.name} does not support requests for {unit}: {ask.amount}."
        " Please request a different number of devices.",
        value=str(ask.amount),
    )


def _unknown_cores(entry: InstanceType, ask: Ask) -> Finding:
    return Finding(
        "NEU106",
        ask.resource_path,
        f"Instance type {entry.name} has an unknown number of cores per device, so {ask.resource}: {ask.amount}"
        " cannot become devices.",
        "Request devices (aws.amazon.com/neuron) instead.",
        str(ask.amount),
    )


def _too_many_cores(entry: InstanceType, ask: Ask, lnc: int | None) -> Finding:
    most = max(entry.counts) * (entry.cores(lnc) or 0)
    return Finding(
        "NEU106",
        ask.resource_path,
        f"Instance type {entry.name} gives one container at most {most} NeuronCores at logical NeuronCore"
        f" {lnc or entry.default_logical_neuron_core}, and {ask.amount} are requested.",
        f"Request {most} or fewer.",
        str(ask.amount),
    )


def _too_many(entry: InstanceType, total: int, asks: Sequence[Ask]) -> Refusal | None:
    """Refuse more devices than a node has, or a claim can hold."""
    fix = "Spread the containers over several pods, or request fewer devices."
    message = f"the pod's containers need {total} Neuron devices in all, and"
    # Where the number of devices is unknown but groups are published, the largest group is the whole node.
    most = entry.devices or max(entry.groups, default=names.MAX_DEVICES_PER_CLAIM)
    if total > most:
        return Refusal((Finding("NEU106", _where(asks), f"{message} {entry.name} has {most}.", fix, str(total)),))
    if total > names.MAX_DEVICES_PER_CLAIM:
        limit = f"{message} a ResourceClaim holds at most {names.MAX_DEVICES_PER_CLAIM}."
        return Refusal((Finding("NEU108", _where(asks), limit, fix, str(total)),))
    return None


def _whole_node_only(entry: InstanceType, layout: Layout, mode: int, asks: Sequence[Ask]) -> Finding:
    asked = " + ".join(str(count) for count in layout.counts.values())
    return Finding(
        "NEU112",
        _where(asks),
        f"ultraserver-mode {mode} needs the whole node: one container with {entry.devices} devices, not {asked}.",
        f"Request aws.amazon.com/neuron: {entry.devices} in one container, or drop the annotation.",
        asked,
    )


def _unconnectable(entry: InstanceType, layout: Layout, asks: Sequence[Ask]) -> Finding:
    return Finding(
        "NEU106",
        _where(asks),
        f"the containers' shares ({', '.join(map(str, layout.counts.values()))} devices) do not add up to connected"
        f" sets on {entry.name}.",
        "Give init containers no more devices than one of the later containers has.",
    )


def _where(asks: Sequence[Ask]) -> str:
    """The one container that asks, or all of them."""
    asking = [ask for ask in asks if ask.amount]
    return asking[0].resource_path if len(asking) == 1 else "spec.containers"
