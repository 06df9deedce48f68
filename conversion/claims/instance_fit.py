"""Whether and how one instance type can serve the asks of a pod.

Connected counts are those of the Neuron scheduler extension and of the device groups that the DRA driver publishes.
Unconnected devices are used only if a policy allows it.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct, structs

from conversion.claims.containers import Ask, Role, are_devices_of, contradiction
from conversion.claims.interfaces import Interfaces, refused
from conversion.claims.layout import Grant, Layout, fits, lay_out, lay_out_shares, share_of
from conversion.claims.placement_options import LEAST_COVERED, Arrangement, ConnectedSet, arrange, may_be_beside
from neuron import names
from neuron.findings import Finding
from neuron.hardware import device_groups
from neuron.hardware.instances import InstanceType

_SHOWN: Final = 63
"""Characters of a container's name in messages."""


class DeviceConfig(Struct, frozen=True):
    """Settings for all devices of a pod, by annotations and policies.

    Attributes:
        lnc: logical NeuronCore setting, 1 or 2; None for the node's default.
        ultraserver_mode: nodes of the UltraServer set, 1, 2 or 4; None for single devices.
        efa: EFA interfaces that the claim includes, for the one container that requests devices.
        divides: whether one container may get several requests, for a short search of the scheduler.
        rounds_cores: whether cores become a count of devices that is a connected set of its own, such as 4 or 8.
        lncs: what the variables of containers set, if it is not the same (`Ask.lnc`). `lnc` is for the others, then.
    """

    lnc: int | None = None
    ultraserver_mode: int | None = None
    efa: Interfaces | None = None
    divides: bool = True
    rounds_cores: bool = False
    lncs: tuple[int, ...] = ()

    @property
    def fills_sets(self) -> bool:
        """Whether cores need all devices of a set: interfaces and UltraServers belong to a whole group or node."""
        return self.rounds_cores or self.efa is not None or self.ultraserver_mode is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Serving:
    """How one instance type serves a pod.

    Attributes:
        arrangement: not compared: it depends on the layout and the sets. A plan makes servings with others.
        sets_lnc: whether a NeuronConfig has to set the logical NeuronCore.
        devices: number of whole devices for each ask; 0 for none.
        pools: sets of asks for cores that use one request together.
    """

    entry: InstanceType
    layout: Layout
    connected_sets: tuple[ConnectedSet, ...]
    arrangement: Arrangement = dataclasses.field(compare=False)
    sets_lnc: bool
    devices: tuple[int, ...]
    pools: tuple[tuple[int, ...], ...] = ()

    def cores(self, index: int, lnc: int | None) -> int:
        """Logical cores that the container of an ask can use, at the LNC in force (None: the default)."""
        per_device = self.entry.cores_per_device or 0
        return self.layout.cores(self.layout.uses[index], per_device) // (lnc or self.entry.default_logical_neuron_core)

    def unused(self, asks: Sequence[Ask], config: DeviceConfig) -> dict[tuple[int, ...], int]:
        """Cores that containers get and did not request, by the asks that use them together."""
        uses = self.layout.uses
        pooled = [uses[pool[0]] for pool in self.pools]
        alone = [(i,) for i, ask in enumerate(asks) if ask.in_cores and ask.amount and uses[i] not in pooled]
        together = [*alone, *self.pools]
        return {
            each: self.cores(each[0], asks[each[0]].lnc or config.lnc) - sum(asks[index].amount for index in each)
            for each in together
        }

    def is_loose(self, index: int) -> bool:
        """Whether the devices of an ask may be unconnected."""
        use = self.layout.uses[index]
        return self.layout.size(use) > 1 and not any(set(use) <= set(each.requests) for each in self.connected_sets)

    @property
    def splits(self) -> bool:
        """Whether a container gets whole devices and a share beside them, in two requests."""
        shares = self.layout.shares
        return bool(shares) and any(share_of(identity) in shares for identity in self.layout.counts)


@dataclasses.dataclass(frozen=True, slots=True)
class TypeRefusal:
    """Why one instance type cannot serve a pod.

    Attributes:
        findings: the errors, if the refusal names this type; not empty.
        unsuitable: whether the type lacks a requested setting, for any number of devices.
        unknown: whether the type may serve the pod: its devices, groups, cores or UltraServers are not known.
    """

    findings: tuple[Finding, ...]
    unsuitable: bool = False
    unknown: bool = False


def counts_of(entry: InstanceType) -> Sequence[int]:
    """Device counts that one container can get connected, ascending: on a ring or chain, every count."""
    return entry.counts if entry.line is None else range(1, entry.line.devices + 1)


def serve(
    entry: InstanceType,
    asks: Sequence[Ask],
    config: DeviceConfig,
    *,
    unconnected: bool = False,
    splits: bool = True,
    pools: bool = True,
) -> Serving | TypeRefusal:
    """Serve the whole pod from one node of this type.

    Args:
        asks: one per container; init containers first.
        unconnected: whether unconnected devices may serve a count that cannot be connected. Not on rings and chains,
            where a count means consecutive devices.
        splits: whether a container may get whole devices and cores of another one, in two requests.
        pools: whether containers may use one request together, where that takes fewer devices and no claim has shares.
    """
    refusal = _refuse_config(entry, config)
    if refusal is not None:
        return refusal
    sets_lnc = (config.lnc is not None or config.lncs != ()) and entry.configures_logical_neuron_core
    # Claims that share a device must agree on LNC, so a pod that sets it gets whole devices.
    if entry.shares_cores and not sets_lnc and config.ultraserver_mode is None:
        shared = _serve_shared(entry, asks, config, unconnected=unconnected, splits=splits)
        if shared is not None:
            return shared
    return _serve_whole(entry, asks, config, unconnected=unconnected, pools=pools, sets_lnc=sets_lnc)


def _serve_whole(
    entry: InstanceType,
    asks: Sequence[Ask],
    config: DeviceConfig,
    *,
    unconnected: bool,
    pools: bool,
    sets_lnc: bool,
) -> Serving | TypeRefusal:
    """Serve the pod with whole devices."""
    together = _pools(entry, asks, config) if pools else ()
    for pool in together:
        asks = _together(asks, pool)
    answers = [_devices_for(entry, ask, config, unconnected=unconnected) for ask in asks]
    if refusals := [answer for answer in answers if isinstance(answer, TypeRefusal)]:
        findings = tuple(finding for each in refusals for finding in each.findings)
        return TypeRefusal(findings, unknown=all(each.unknown for each in refusals))
    devices = [answer for answer in answers if isinstance(answer, int)]
    # Checked before `lay_out`, whose cost grows with the number of devices.
    held = sum(count for ask, count in zip(asks, devices, strict=True) if ask.role is not Role.INIT)
    if (refusal := _too_many(entry, held, asks, config.lnc)) is not None:
        return refusal
    long_lived = sum(1 for ask in asks if ask.amount and ask.role is not Role.INIT)
    if long_lived > names.MAX_REQUESTS_PER_CLAIM:
        return TypeRefusal((too_many_requests(long_lived),))
    layout = lay_out(asks, devices, counts_of(entry), alone=entry.line is not None, apart=config.lncs != ())
    if config.lncs:
        layout = structs.replace(layout, lncs=_lncs(layout, asks, config))
        if (conflict := _unset(layout, asks, config)) is not None:
            return TypeRefusal((conflict,))
    for pool in together:
        layout, devices = _used_together(layout, devices, pool)
    if (refusal := _too_many(entry, layout.total, asks, config.lnc)) is not None:
        return refusal
    if config.ultraserver_mode is not None and list(layout.counts.values()) != [entry.devices]:
        return TypeRefusal((_whole_node_only(entry, layout, config.ultraserver_mode, asks),))
    connected_sets = _connected_sets(entry, layout, devices, unconnected=unconnected)
    if connected_sets is None:
        return TypeRefusal((_unconnectable(entry, layout, asks),))
    arrangement = arrange(entry, layout, connected_sets)
    return Serving(entry, layout, connected_sets, arrangement, sets_lnc, tuple(devices), together)


def _lncs(layout: Layout, asks: Sequence[Ask], config: DeviceConfig) -> dict[int, int | None]:
    """The LNC of each request: that of the containers that use it, None if they differ or if it is the node's default.

    The driver sets a variable for all containers of a request. Without a NeuronConfig it sets none, and each container
    keeps its own.
    """
    found: dict[int, int | None] = {}
    for identity in layout.counts:
        users = {ask.lnc or config.lnc for ask, use in zip(asks, layout.uses, strict=True) if identity in use}
        found[identity] = users.pop() if len(users) == 1 else None
    return found


def _unset(layout: Layout, asks: Sequence[Ask], config: DeviceConfig) -> Finding | None:
    """NEU126 for a container without a variable that needs a NeuronConfig, and uses a request that can have none."""
    lncs = layout.lncs or {}
    for ask, use in zip(asks, layout.uses, strict=True):
        if ask.lnc is None and config.lnc is not None and (shared := [each for each in use if lncs[each] is None]):
            others = zip(asks, layout.uses, strict=True)
            other = next(each for each, used in others if shared[0] in used and each.lnc not in (None, config.lnc))
            return Finding(
                "NEU126",
                f"{ask.path}.env",
                f"container {ask.container} gets logical NeuronCore {config.lnc} by a setting and uses the devices of"
                f" container {other.container}, whose variable sets {other.lnc}: the driver sets one for both.",
                f"Set the variable {names.LNC_VARIABLES[0]} in container {ask.container}.",
                str(config.lnc),
            )
    return None


def _pools(entry: InstanceType, asks: Sequence[Ask], config: DeviceConfig) -> tuple[tuple[int, ...], ...]:
    """The sets of asks that use one request together. Containers of different LNC cannot use a device at one time."""
    if not config.lncs:
        pool = _pool(entry, asks, config.lnc)
        return (pool,) if pool else ()
    found = []
    for lnc in dict.fromkeys([ask.lnc or config.lnc for ask in asks]):
        # For a pool, an init container of another LNC is as one that asks for whole devices.
        alike = [
            ask
            if (ask.lnc or config.lnc) == lnc
            else structs.replace(ask, resource=names.RESOURCE_NEURON, amount=ask.amount * (ask.role is Role.INIT))
            for ask in asks
        ]
        found.append(_pool(entry, alike, lnc))
    return tuple(filter(None, found))


def _pool(entry: InstanceType, asks: Sequence[Ask], lnc: int | None) -> tuple[int, ...]:
    """The asks for cores that use one request together, because that takes fewer devices; empty if none do.

    The Neuron runtime of each container reserves the next free cores for itself, as many as NEURON_RT_NUM_CORES says.
    A container that fills its devices has them alone. So has a sidecar, if an init container, which uses what starts
    later, does not find its cores free beside it. The containers of `spec.containers` come first.
    """
    per_device = entry.cores(lnc)
    if per_device is None:
        return ()

    def parts(role: Role) -> list[int]:
        return [i for i, ask in enumerate(asks) if ask.role is role and ask.in_cores and ask.amount % per_device]

    def cores(indices: Iterable[int]) -> int:
        return sum(asks[index].amount for index in indices)

    apps, sidecars = parts(Role.APP), parts(Role.SIDECAR)
    beside = -(-cores([*apps, *sidecars]) // per_device) * per_device - cores(sidecars)
    init = [ask for ask in asks if ask.role is Role.INIT and ask.amount]
    fits = all(ask.in_cores and ask.amount <= beside for ask in init) if apps else not init
    found = [*apps, *sidecars] if fits else apps
    alone = sum(-(-asks[index].amount // per_device) for index in found)
    together = -(-cores(found) // per_device)
    # A refusal counts the devices of each container.
    return tuple(found) if together < alone and together <= (entry.devices or together) else ()


def _together(asks: Sequence[Ask], pool: Sequence[int]) -> list[Ask]:
    """The asks, where the first one of a pool asks for the cores of all, and the others for nothing."""
    first, total = pool[0], sum(asks[index].amount for index in pool)
    return [
        ask
        if index not in pool
        else Ask(ask.container, ask.role, ask.path, ask.resource, total if index == first else 0, lnc=ask.lnc)
        for index, ask in enumerate(asks)
    ]


def _used_together(layout: Layout, devices: Sequence[int], pool: Sequence[int]) -> tuple[Layout, list[int]]:
    """The layout and devices, where all asks of a pool have what the first one has."""
    first = pool[0]
    uses = tuple(layout.uses[first] if index in pool else use for index, use in enumerate(layout.uses))
    return structs.replace(layout, uses=uses), [
        devices[first] if index in pool else count for index, count in enumerate(devices)
    ]


def _serve_shared(
    entry: InstanceType, asks: Sequence[Ask], config: DeviceConfig, *, unconnected: bool, splits: bool
) -> Serving | None:
    """Serve cores as cores; None if no container gets a share of a device, or if whole devices have to do."""
    per_device = entry.cores_per_device
    if per_device is None or entry.devices is None or not any(ask.in_cores and ask.amount for ask in asks):
        return None
    grants: list[Grant] = []
    for ask in asks:
        found = _grant(entry, ask, config, splits=splits, unconnected=unconnected)
        if found is None:
            return None
        grants.append(found)
    layout = lay_out_shares(asks, grants, per_device)
    if layout is None or not layout.shares:
        return None
    if len(layout.counts) + len(layout.shares) > names.MAX_REQUESTS_PER_CLAIM:
        return None
    whole, shares = sum(layout.counts.values()), tuple(layout.shares.values())
    if layout.total > names.MAX_DEVICES_PER_CLAIM or not fits(entry.devices, per_device, (), whole, shares):
        return None
    connected_sets = _own_sets(entry, layout, unconnected=unconnected)
    arrangement = arrange(entry, layout, connected_sets)
    if arrangement.fixed:
        return None
    return Serving(entry, layout, connected_sets, arrangement, False, tuple(grant.devices for grant in grants))


def _grant(entry: InstanceType, ask: Ask, config: DeviceConfig, *, splits: bool, unconnected: bool) -> Grant | None:
    """What a container gets where cores are shared; None if the type cannot serve it."""
    per_device = entry.cores_per_device or 1
    whole, rest = divmod(ask.amount * entry.default_logical_neuron_core, per_device)
    share = 1 << (rest - 1).bit_length() if rest else 0
    devices = _devices_for(entry, ask, config, unconnected=unconnected)
    if ask.in_cores and 0 < share < per_device:
        if entry.line is None:
            # The share is of the last of the devices, in the group of all of them.
            beside = devices == whole + 1 and not unconnected and (entry.groups_known or devices in entry.counts)
        else:
            beside = may_be_beside(entry, whole, 1) >= LEAST_COVERED
        if whole == 0 or (splits and beside):
            return Grant(whole, share)
    return Grant(devices) if isinstance(devices, int) else None


def _own_sets(entry: InstanceType, layout: Layout, *, unconnected: bool) -> tuple[ConnectedSet, ...]:
    """The connected sets where every container uses requests of its own, or of one other container."""
    found: dict[tuple[int, ...], ConnectedSet] = {}
    for use in layout.uses:
        size = layout.size(use)
        if entry.line is None:
            if size > 1 and (size in entry.counts or not unconnected):
                found[use] = ConnectedSet(use, _group_for(entry, size))
        elif len(use) > 1 and size != entry.devices:
            found[use] = ConnectedSet(use, None)
    return tuple(found.values())


def _group_for(entry: InstanceType, size: int) -> int | None:
    """The size of the smallest group that has so many devices; None: only the whole node has."""
    return next((group for group in entry.groups if group >= size), None)


def _refuse_config(entry: InstanceType, config: DeviceConfig) -> TypeRefusal | None:
    lncs = (config.lnc, *config.lncs) if config.lncs else (config.lnc,)
    for lnc in lncs:
        if lnc is None or lnc in entry.logical_neuron_cores:
            continue
        allowed = ", ".join(map(str, entry.logical_neuron_cores)) or "unknown"
        finding = Finding(
            "NEU111",
            f"metadata.annotations[{names.ANNOTATION_LNC}]",
            f"Instance type {entry.name} does not support logical NeuronCore {lnc} (allowed: {allowed}).",
            "Change the annotation, or select a trn2 or trn3 instance type.",
            str(lnc),
        )
        return TypeRefusal((finding,), unsuitable=True)
    mode, sizes = config.ultraserver_mode, entry.ultraserver_nodes
    if mode is not None and sizes is None:
        return TypeRefusal((_not_in_ultraserver(entry, mode),), unknown=True)
    if sizes is not None and mode in sizes and not entry.whole_node:
        return TypeRefusal((_no_whole_node(entry, mode),))
    if mode is None and not entry.single_devices:
        return TypeRefusal((_no_single_devices(entry),))
    if mode is not None and sizes is not None and mode not in sizes:
        return TypeRefusal((_not_in_ultraserver(entry, mode),), unsuitable=True)
    return None


def _not_in_ultraserver(entry: InstanceType, mode: int) -> Finding:
    return Finding(
        "NEU112",
        f"metadata.annotations[{names.ANNOTATION_ULTRASERVER_MODE}]",
        f"Instance type {entry.name} is in no UltraServer of {mode} nodes.",
        "Select trn2u.48xlarge, or drop the annotation.",
        str(mode),
    )


def _no_whole_node(entry: InstanceType, mode: int | None) -> Finding:
    return Finding(
        "NEU118",
        f"metadata.annotations[{names.ANNOTATION_ULTRASERVER_MODE}]",
        f"No node of type {entry.name} publishes the whole node, which ultraserver-mode {mode} needs: they publish"
        " their devices one by one.",
        f"Set the label {names.LABEL_ULTRASERVER_PUBLISH}=node on the nodes, or enable the feature gate "
        "DRAPartitionableDevices.",
        str(mode),
    )


def _no_single_devices(entry: InstanceType) -> Finding:
    return Finding(
        "NEU118",
        "spec.containers",
        f"The nodes of type {entry.name} publish only the whole node, not their devices one by one.",
        f"Set the annotation {names.ANNOTATION_ULTRASERVER_MODE}, or set the label "
        f"{names.LABEL_ULTRASERVER_PUBLISH}=devices on nodes for such pods.",
    )


def _devices_for(entry: InstanceType, ask: Ask, config: DeviceConfig, *, unconnected: bool) -> int | TypeRefusal:
    """Number of devices for one ask: for cores, the fewest whole devices that hold them.

    These are inside one group of the next size, or are all devices of it if that is asked for. If it is not known
    whether a smaller group would do, the type is not known well enough.
    """
    if not ask.amount:
        return 0
    loose = unconnected and not entry.consecutive
    counts = counts_of(entry)
    if ask.cores and (refusal := _contradicted(entry, ask)) is not None:
        return refusal
    if not ask.in_cores:
        if ask.amount in counts or (loose and ask.amount <= max(counts)):
            return ask.amount
        return TypeRefusal((_unsupported_count(entry, ask),), unknown=_may_have(entry, ask.amount))
    lnc = ask.lnc or config.lnc
    per_device = entry.cores(lnc)
    if per_device is None:
        return TypeRefusal((_unknown_cores(entry, ask),), unknown=True)
    exact = -(-ask.amount // per_device)
    if loose and exact <= max(counts) and not config.fills_sets:
        return exact
    rounded = next((count for count in counts if count >= exact), None)
    group = next((size for size in (1, *device_groups.GROUP_SIZES) if size >= exact), exact)
    may_have = _may_have(entry, group)
    if rounded is None:
        return TypeRefusal((_too_many_cores(entry, ask, lnc),), unknown=may_have)
    if may_have and group < rounded:
        return TypeRefusal((_unsupported_count(entry, ask),), unknown=True)
    return rounded if config.fills_sets else exact


def _contradicted(entry: InstanceType, ask: Ask) -> TypeRefusal | None:
    """Refuse an ask whose cores are not those of its devices, at any logical NeuronCore."""
    if entry.cores_per_device is None:
        return TypeRefusal((_unknown_cores(entry, ask),), unknown=True)
    if are_devices_of(ask.cores, ask.amount, entry.cores_per_device, entry.logical_neuron_cores or (1,)):
        return None
    named = (ask.resource, ask.amount), (names.RESOURCE_NEURONCORE, ask.cores)
    return TypeRefusal((contradiction(ask.container, ask.path, *named, entry.name),))


def _may_have(entry: InstanceType, devices: int) -> bool:
    """Whether a type of unknown size or with unknown groups may serve this many devices.

    The groups that it is known to have are allowed.
    """
    if entry.devices is None:
        return devices > max(entry.groups, default=0)
    return not entry.groups_known and devices in device_groups.GROUP_SIZES and devices < entry.devices


def _connected_sets(
    entry: InstanceType, layout: Layout, devices: Sequence[int], *, unconnected: bool
) -> tuple[ConnectedSet, ...] | None:
    """The connected sets of a layout; None if one of them cannot be requested.

    A container whose count may be unconnected needs no set.
    """
    if entry.line is not None:
        return _consecutive_sets(entry, layout)
    connected_sets: dict[tuple[int, ...], ConnectedSet] = {}
    for used, count in zip(layout.uses, devices, strict=True):
        use, size = tuple(sorted(used)), layout.size(used)
        if size < 2 or (unconnected and count not in entry.counts):
            continue
        group = _group_for(entry, size)
        if group is None and (size > (entry.devices or 0) or (size != entry.devices and count in entry.counts)):
            return None
        connected_sets[use] = ConnectedSet(use, group)
    return (
        tuple(connected_sets[use] for use in sorted(connected_sets))
        if _satisfiable(layout, connected_sets.values())
        else None
    )


def _consecutive_sets(entry: InstanceType, layout: Layout) -> tuple[ConnectedSet, ...] | None:
    """The connected sets on a ring or chain; None if one cannot be requested.

    A whole node and a single request are connected. Otherwise requests are beside each other, if none is in two sets.
    """
    found = sorted({tuple(sorted(use)) for use in layout.uses if len(use) > 1 and layout.size(use) != entry.devices})
    members = [identity for use in found for identity in use]
    return tuple(ConnectedSet(use, None) for use in found) if len(set(members)) == len(members) else None


def _satisfiable(layout: Layout, connected_sets: Collection[ConnectedSet]) -> bool:
    """Whether sets that share requests fit into one group together. One set alone fits: its group was chosen by size.

    Groups are nested: sets that overlap must all be in the largest group among them.
    """
    if len(connected_sets) < 2:
        return True
    islands: list[tuple[set[int], int | None]] = []
    for each_set in connected_sets:
        island, group = set(each_set.requests), each_set.group
        apart = []
        for other, other_group in islands:
            if island & other:
                island |= other
                group = None if group is None or other_group is None else max(group, other_group)
            else:
                apart.append((other, other_group))
        islands = [*apart, (island, group)]
    return all(group is None or layout.size(tuple(island)) <= group for island, group in islands)


def _unsupported_count(entry: InstanceType, ask: Ask) -> Finding:
    unit = "core" if ask.in_cores else "device"
    return Finding(
        "NEU105",
        ask.resource_path,
        # The exact text of the Neuron scheduler extension, so that users find its documentation.
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
    most = max(counts_of(entry)) * (entry.cores(lnc) or 0)
    return Finding(
        "NEU106",
        ask.resource_path,
        f"Instance type {entry.name} gives one container at most {most} NeuronCores at logical NeuronCore"
        f" {lnc or entry.default_logical_neuron_core}, and {ask.amount} are requested.",
        f"Request {most} or fewer.{_with_less(entry, ask, lnc)}",
        str(ask.amount),
    )


def _with_less(entry: InstanceType, ask: Ask, lnc: int | None) -> str:
    """The LNC setting with which a type has the cores, with the ways to set it; empty if there is none."""
    smallest = min(entry.logical_neuron_cores, default=1)
    if smallest >= (lnc or entry.default_logical_neuron_core):
        return ""
    most = max(counts_of(entry)) * (entry.cores(smallest) or 0)
    if ask.amount > most:
        return ""
    return (
        f" With logical NeuronCore {smallest} there are {most}: set the annotation {names.ANNOTATION_LNC}, or the"
        f" variable {names.LNC_VARIABLES[0]} of the container."
    )


def _too_many(entry: InstanceType, total: int, asks: Sequence[Ask], lnc: int | None) -> TypeRefusal | None:
    """Refuse more devices than a node has or a claim can contain."""
    # If the number of devices is unknown and groups are published, the largest group is the whole node.
    most = entry.devices or max(entry.groups, default=names.MAX_DEVICES_PER_CLAIM)
    if total <= min(most, names.MAX_DEVICES_PER_CLAIM):
        return None
    held = [ask for ask in asks if ask.role is not Role.INIT]
    default = lnc or entry.default_logical_neuron_core
    cores = sum(ask.amount * (ask.lnc or default) for ask in held if ask.in_cores)
    together = sum(ask.amount for ask in held if not ask.in_cores) - (-cores // (entry.cores_per_device or 1))
    rounded = cores and together <= min(most, names.MAX_DEVICES_PER_CLAIM)
    why = ", because the cores of each container are rounded up to whole devices" if rounded else ""
    message = f"the pod's containers need {total} Neuron devices in all{why}, and"
    fix = "Spread the containers over several pods, or request fewer devices."
    if total > most:
        return TypeRefusal((Finding("NEU106", _where(asks), f"{message} {entry.name} has {most}.", fix, str(total)),))
    limit = f"{message} a ResourceClaim holds at most {names.MAX_DEVICES_PER_CLAIM}."
    return TypeRefusal((Finding("NEU108", _where(asks), limit, fix, str(total)),))


def too_many_requests(count: int) -> Finding:
    """NEU108: more containers that need a request of their own than a claim has requests."""
    return Finding(
        "NEU108",
        "spec.containers",
        f"{count} containers ask for Neuron devices, and a ResourceClaim holds at most"
        f" {names.MAX_REQUESTS_PER_CLAIM} requests.",
        "Spread the containers over several pods.",
        str(count),
    )


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
    """Field path of the limit if one container requests devices, else of all containers."""
    asking = [ask for ask in asks if ask.amount]
    return asking[0].resource_path if len(asking) == 1 else "spec.containers"


def group_of(serving: Serving) -> int:
    """Size of the device group that ties the devices of a pod to interfaces; 0 if there is none."""
    size = sum(serving.layout.counts.values())
    whole = not serving.layout.shares and (size == 1 or size in serving.entry.groups)
    return size if whole and device_groups.interfaces(serving.entry.name, size) else 0


def most_interfaces(entry: InstanceType) -> int:
    """EFA interfaces of a node; 0 if AWS publishes no map."""
    return device_groups.interfaces(entry.name, entry.devices or 0)


def tied(serving: Serving, asks: Sequence[Ask], config: DeviceConfig) -> Serving | TypeRefusal:
    """The serving if the interfaces of `config` fit into the group of its devices; else NEU125.

    The Neuron driver and the EFA driver both publish `resource.aws.com/devicegroup<size>_id`, so one constraint
    connects the interfaces and the devices of a group. Only whole groups have such an id.
    """
    wanted = config.efa
    if wanted is None:
        return serving
    size = group_of(serving)
    name, devices = serving.entry.name, sum(serving.layout.counts.values())
    most = device_groups.interfaces(name, size)
    if size and wanted.count <= most and config.ultraserver_mode is None:
        return serving
    if config.ultraserver_mode is not None:
        why, fix = "a whole UltraServer node has no device group", "Drop the annotation, or the EFA limit."
    elif serving.layout.shares:
        why, fix = f"a share of a device of {name} has no device group", "Request whole devices."
    elif size:
        why = device_groups.described(name, size)
        fix = f"Request at most {most}."
    elif most_interfaces(serving.entry):
        why = f"{devices} devices of {name} are no connected group"
        fix = f"Request {', '.join(map(str, sorted({1, *serving.entry.groups})))} devices."
    else:
        why = f"{name} has no device groups that tie EFA interfaces to Neuron devices"
        fix = "Select an instance type of trn1, trn1n, trn2 or trn3 with 16 devices, or drop the EFA limit."
    path = next(each.path for each in asks if each.amount)
    asked = f"container {wanted.container[:_SHOWN]} asks for {names.RESOURCE_EFA}: {wanted.count}"
    beside = "one device" if devices == 1 else f"{devices} devices"
    return TypeRefusal((refused(path, f"{asked} with {beside}, and {why}.", fix, wanted.count),))
