"""Decides how to prepare an allocated claim: its devices, the cores of its shares, its variables. Changes nothing.

The scheduler decides which devices, and how many cores of a shared device. A claim is refused if the node cannot serve
it or if another prepared claim holds what it needs.

A claim whose state was lost gets its shares back: id and number of cores are in the allocation; which cores, in the
variables of its containers. Their processes have these, and `status.devices` of the claim, which the driver writes.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from kubeletplugin.discover.devices import NODE_DEVICE, Side, assign_cores, device_index, physical_cores, side_of
from kubeletplugin.discover.processes import ClaimFile, ProcessUse
from kubeletplugin.discover.sysfs import NeuronDevice, NodeHardware, UltraServer
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare.cdi import UltraServerError, documents, environment, read_visible_cores, visible_cores
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, Share
from neuron import names
from neuron.api.allocation import AllocatedClaim, AllocatedDevice, check_hardware
from neuron.hardware.instances import InstanceType, Topology


class PrepareError(Exception):
    """The claim cannot be prepared; the message has the reason and the fix."""


class DeviceHeldError(PrepareError):
    """Another claim still holds a device or its cores. Retryable.

    Attributes:
        holder: UID of one such claim; empty if there is none.
        ended: whether that claim has ended, so that only its processes hold the device.
    """

    def __init__(self, message: str, holder: PreparedClaim | None = None) -> None:
        super().__init__(message)
        self.holder = holder.uid if holder is not None else ""
        self.ended = holder is not None and holder.has_ended


@dataclasses.dataclass(frozen=True, slots=True)
class NodeView:
    """The hardware, for preparation.

    Attributes:
        hardware: as last discovered.
        instance: the node's type; None if it is not known.
        read_ultraserver: what the UltraServer files say now: they change while nodes elect. Raises UltraServerError.
        admin_namespaces: namespaces whose claims may have adminAccess; None: all.
        attributes: returns the published attributes of a device; empty while the Node is not known.
    """

    hardware: NodeHardware
    instance: InstanceType | None
    read_ultraserver: Callable[[], UltraServer | None]
    admin_namespaces: frozenset[str] | None = None
    attributes: Callable[[str], JsonObject] = lambda _: {}

    @property
    def wraps(self) -> bool:
        """Whether the last device is connected with the first."""
        links = self.hardware.links
        if links is None:
            return self.instance is not None and self.instance.topology is Topology.RING
        return (0, self.devices - 1) in links or (self.devices - 1, 0) in links

    @property
    def devices(self) -> int:
        """Number of devices that the node should have."""
        return (self.instance and self.instance.devices) or len(self.hardware.devices)


@dataclasses.dataclass(frozen=True, slots=True)
class Others:
    """The prepared claims of the node.

    Attributes:
        claims: all of them; an older state of the claim itself is among them, if it was prepared before.
        number: of this preparation.
    """

    claims: Collection[PreparedClaim] = ()
    number: int = 1

    def hold(self, claim: PreparedClaim) -> bool:
        """Whether other claims are known to hold any device of this one; shares of one device hold parts of it."""
        pairs = ((mine, each) for mine in claim.devices for index in mine.indices for each, _ in self.on(claim, index))
        return any(
            each.share is None or (not each.in_doubt and (each.cores is None or mine.share is None))
            for mine, each in pairs
        )

    def on(self, claim: AllocatedClaim | PreparedClaim, index: int) -> Iterator[tuple[PreparedDevice, PreparedClaim]]:
        """What other claims than this one hold of a device."""
        for other in self.claims:
            if other.uid == claim.uid:
                continue  # not what it held before its end: processes may still have that
            for device in other.devices:
                if not device.admin_access and index in device.indices:
                    yield device, other

    def before(self, claim: AllocatedClaim, share_id: str) -> tuple[int, ...]:
        """The cores of the same share, as the claim itself had them; none if it had it not."""
        mine = (each.share for other in self.claims if other.uid == claim.uid for each in other.devices)
        return next((share.cores or () for share in mine if share is not None and share.id == share_id), ())


_SHARED_DEVICE: Final = tuple(field.name for field in dataclasses.fields(AllocatedDevice))
_WHOLE_DEVICE: Final = tuple(name for name in _SHARED_DEVICE if name not in ("share_id", "cores"))


def allocation_digest(claim: AllocatedClaim) -> str:
    """A digest of the allocated devices and their configs; for claims without shares, that of older versions."""
    devices = [
        {name: getattr(device, name) for name in (_WHOLE_DEVICE if device.share_id is None else _SHARED_DEVICE)}
        for device in claim.devices
    ]
    content = msgspec.json.encode((devices, [dataclasses.asdict(entry) for entry in claim.configs]))
    return hashlib.sha256(content).hexdigest()[:16]


def decide(claim: AllocatedClaim, view: NodeView, others: Others) -> PreparedClaim:
    """Decide how to prepare a claim.

    Raises:
        PrepareError: a device is not on the node or is held by another claim, the hardware does not support the
            settings, or the claim may not have adminAccess.
    """
    _refuse_admin_access(claim, view.admin_namespaces)
    here = {device.index: device for device in view.hardware.devices}
    whole = [_device(result, here, view) for result in claim.devices]
    amounts = [share_amount(result, view) for result in claim.devices]
    _refuse_overlaps(claim, whole, amounts, others)
    variables = _variables(claim, whole, view)
    devices = _with_shares(claim, tuple(zip(whole, amounts, strict=True)), view, others)
    for request, numbers in _visible_cores(claim, devices, view).items():
        variables[request][names.ENV_VISIBLE_CORES] = visible_cores(numbers)
    used = {request: values for request, values in variables.items() if values}
    number = others.number
    told = documents(claim, devices, used, view.attributes, view.hardware, view.instance, number)
    digest = allocation_digest(claim)
    return PreparedClaim(
        claim.uid, claim.namespace, claim.name, digest, tuple(devices), used, told, number=number, asked=number
    )


def undecided(claim: AllocatedClaim, view: NodeView) -> PreparedClaim:
    """A claim that pods may use, although it cannot be decided how: it holds its devices, with all of their cores."""
    devices = (
        undecided_device(each.parent_request, each.device, each.pool, each.share_id, view) for each in claim.devices
    )
    return PreparedClaim(claim.uid, claim.namespace, claim.name, "", tuple(devices))


def undecided_device(request: str, device: str, pool: str, share_id: str | None, view: NodeView) -> PreparedDevice:
    """A device of such a claim. A whole node has all devices of its type, also those that have vanished."""
    index = device_index(device)
    indices = (index,) if index is not None else tuple(range(view.devices))
    share = None if share_id is None else Share(share_id, certain=False)
    return PreparedDevice(request, pool, device, indices, share=share)


def _refuse_admin_access(claim: AllocatedClaim, allowed: frozenset[str] | None) -> None:
    """The API server admits adminAccess in every namespace with a label, so it depends on who may set labels."""
    if allowed is None or claim.namespace in allowed:
        return
    if any(device.admin_access for device in claim.devices):
        raise PrepareError(
            f"ResourceClaim {claim.namespace}/{claim.name} has adminAccess, which the driver refuses in namespace "
            f"{claim.namespace}. Request devices without adminAccess, or add the namespace to adminAccess.namespaces "
            "of the chart (--admin-access-namespace of the driver)."
        )


def _device(result: AllocatedDevice, found: Mapping[int, NeuronDevice], view: NodeView) -> PreparedDevice:
    """The device on this node, by index in `found`. A share of it has no cores yet, so it is a whole device."""
    if result.device == NODE_DEVICE:
        expected = view.instance.devices if view.instance else None
        indices = tuple(found) if found and len(found) == (expected or len(found)) else ()
    else:
        index = device_index(result.device)
        indices = () if index is None or index not in found else (index,)
    if not indices:
        here = ", ".join(map(str, found)) or "none"
        raise PrepareError(
            f"The node does not have the device {result.device}: its Neuron devices are {here}. It has vanished since "
            "the claim was allocated; delete the pod to have it allocated again."
        )
    missing = [f"/dev/neuron{index}" for index in indices if not found[index].has_node]
    if missing:
        raise PrepareError(
            f"Device {result.device} has no device node {', '.join(missing)}: check the Neuron kernel driver."
        )
    share = None if result.share_id is None else Share(result.share_id)
    return PreparedDevice(result.request, result.pool, result.device, indices, result.admin_access, share)


def _refuse_overlaps(
    claim: AllocatedClaim, devices: Iterable[PreparedDevice], amounts: Iterable[int | None], others: Others
) -> None:
    """KEP-4381: a force-deleted pod may still run; its devices are free only after unpreparation."""
    for device, amount in zip(devices, amounts, strict=True):
        if device.admin_access:
            continue
        for index in device.indices:
            for held, other in others.on(claim, index):
                if held.cores is None or amount is None:
                    if held.in_doubt:
                        raise DeviceHeldError(
                            f"Device {device.device} is shared with ResourceClaim {other}, and the driver lost which "
                            "of its cores that claim uses. No other claim gets cores of this device until the pods of "
                            "that claim have ended.",
                            other,
                        )
                    raise DeviceHeldError(
                        f"Device {device.device} is still prepared for ResourceClaim {other} as {held.device}. It "
                        "becomes free when the kubelet has stopped the pod that used it; the kubelet tries again by "
                        "itself.",
                        other,
                    )


def _variables(claim: AllocatedClaim, devices: Iterable[PreparedDevice], view: NodeView) -> dict[str, dict[str, str]]:
    variables: dict[str, dict[str, str]] = {}
    ultraserver = None
    for device in devices:
        in_force = claim.in_force(device.request)
        if device.parent_request in variables or device.admin_access:
            continue
        if view.instance is not None:
            whole_node = device.device == NODE_DEVICE
            resource_type = names.RESOURCE_TYPE_NODE if whole_node else names.RESOURCE_TYPE_DEVICE
            findings = check_hardware(in_force, view.instance, resource_type)
            if findings:
                raise PrepareError(" ".join(str(finding) for finding in findings))
        try:
            if in_force.ultraserver_mode is not None:
                ultraserver = ultraserver or view.read_ultraserver()
            variables[device.parent_request] = environment(in_force, ultraserver)
        except UltraServerError as error:
            raise PrepareError(str(error)) from error
    return variables


# --- shares -------------------------------------------------------------------------------------------------


def _with_shares(
    claim: AllocatedClaim, wanted: Collection[tuple[PreparedDevice, int | None]], view: NodeView, others: Others
) -> list[PreparedDevice]:
    whole = [device for device, amount in wanted if amount is None and not device.admin_access]
    found: list[PreparedDevice] = []
    for device, amount in wanted:
        if amount is None:
            found.append(device)
            continue
        together = claim.together(device.parent_request)
        run = {each.indices[0] for each in whole if each.parent_request in together}
        side = side_of(device.indices[0], run, view.devices, view.wraps)
        mine = [each for each in (*whole, *found) if each.indices == device.indices and not each.admin_access]
        share = _share(claim, device, amount, side, mine, view, others)
        found.append(dataclasses.replace(device, share=share))
    return found


def share_amount(result: AllocatedDevice, view: NodeView) -> int | None:
    """Cores of a part of a device; None for a whole device and for admin access, which holds nothing."""
    index = device_index(result.device)
    if result.admin_access or result.cores is None or index is None:
        return None
    all_cores = physical_cores(view.hardware, view.instance, index)
    if all_cores is None:
        raise PrepareError(
            f"Device {result.device} is allocated with {result.cores} cores, but neither sysfs nor the catalogue says "
            "how many it has: check that the driver can read core_count."
        )
    if result.cores == 0:
        raise PrepareError(
            f"Device {result.device} is allocated with no cores: {names.CAPACITY_CORES} 0 is for requests with "
            f"adminAccess. Request at least 1, or leave out {names.CAPACITY_CORES} for the whole device."
        )
    return result.cores if result.cores < all_cores else None


def _share(
    claim: AllocatedClaim,
    device: PreparedDevice,
    amount: int,
    side: Side | None,
    mine: Collection[PreparedDevice],
    view: NodeView,
    others: Others,
) -> Share:
    """The cores of a share. `mine`: what the claim has of the device already."""
    [index] = device.indices
    share_id = device.share.id if device.share is not None else ""
    lnc = core_size(claim, device.request, view)
    if amount % lnc:
        raise PrepareError(
            f"Device {device.device} is allocated with {amount} physical cores, which is no multiple of "
            f"logicalNeuronCore {lnc}. Request a multiple of {lnc}, or set logicalNeuronCore to 1."
        )
    held = [*others.on(claim, index), *((each, None) for each in mine)]
    for each, other in held:
        if each.share is not None and each.share.logical_neuron_core != lnc:
            holder = f"ResourceClaim {other}" if other is not None else f"request {each.parent_request} of this claim"
            raise PrepareError(
                f"Device {device.device} is shared with {holder}, which uses it with logicalNeuronCore "
                f"{each.share.logical_neuron_core}; this claim uses {lnc}. Claims on one device need the same size: "
                "set it to the same value, or request whole devices."
            )
    all_cores = physical_cores(view.hardware, view.instance, index) or 0
    taken = {core for each, _ in held for core in each.cores or range(all_cores)}
    before = others.before(claim, share_id)
    if len(before) == amount and not taken.intersection(before):
        return Share(share_id, before, lnc)
    chosen = assign_cores(all_cores, amount, lnc, taken, side)
    if chosen is None:
        holders = ", ".join(sorted({str(other) for _, other in held if other is not None})) or "this claim"
        raise DeviceHeldError(
            f"Device {device.device} has {all_cores - len(taken)} of {all_cores} cores free, and the claim needs "
            f"{amount}: the others are still prepared for {holders}. They become free when the kubelet has "
            "stopped the pods that used them; the kubelet tries again by itself.",
            # One that has ended first: it can be released at once.
            max((other for _, other in held if other is not None), key=lambda other: other.has_ended, default=None),
        )
    return Share(share_id, chosen, lnc)


def core_size(claim: AllocatedClaim, request: str, view: NodeView) -> int:
    """Physical cores of one logical core of a request."""
    lnc = claim.in_force(request).logical_neuron_core
    return lnc or (view.instance.default_logical_neuron_core if view.instance is not None else 1)


def _visible_cores(claim: AllocatedClaim, devices: Iterable[PreparedDevice], view: NodeView) -> Mapping[str, list[int]]:
    """Logical cores by request, for requests with a share and for those that constraints connect with one."""
    held = [device for device in devices if not device.admin_access]
    found: dict[str, list[int]] = {}
    for request in {device.parent_request for device in held if device.cores is not None}:
        together = claim.together(request)
        members = [device for device in held if device.parent_request in together]
        sizes = {core_size(claim, device.request, view) for device in members}
        if len(sizes) > 1:
            raise PrepareError(
                f"The requests {', '.join(sorted(together))} are used together, but their logicalNeuronCore differs "
                f"({', '.join(map(str, sorted(sizes)))}): set one value for all of them."
            )
        [size] = sizes
        numbers: set[int] = set()  # as the host counts them
        for member in members:
            for index in member.indices:
                all_cores = physical_cores(view.hardware, view.instance, index) or 0
                cores = range(all_cores) if member.cores is None else member.cores
                numbers |= {(index * all_cores + core) // size for core in cores}
        found |= {device.parent_request: sorted(numbers) for device in members}
    return found


# --- a lost state -----------------------------------------------------------------------------------------------

Variables = Mapping[str, Mapping[str, str]]
"""Variables of containers, by request without its alternative."""


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What others know of the claims of a node whose state was lost.

    Attributes:
        containers: what runs, with its variables.
        by_status: variables in `status.devices`, by UID. Everything that may write this status can choose them.
    """

    containers: tuple[ProcessUse, ...] = ()
    by_status: Mapping[str, Variables] = dataclasses.field(default_factory=dict)

    def named(self, uid: str) -> Iterator[tuple[ProcessUse, ClaimFile]]:
        """The containers that name a claim, and how; the last preparation last."""
        found = [(use, file) for use in self.containers for file in use.files if file.uid == uid]
        yield from sorted(found, key=lambda each: each[1].number)

    @property
    def numbers(self) -> list[int]:
        """The preparations that containers name."""
        return [file.number for use in self.containers for file in use.files]

    def variables(self, uid: str) -> Variables | None:
        """The variables of a claim; None if they are not known."""
        found = {file.request: use.environment for use, file in self.named(uid) if use.environment}
        return found or self.by_status.get(uid) or None

    def rank(self, uid: str) -> tuple[bool, bool]:
        """The order in which claims are restored, best known first."""
        return not any(self.named(uid)), uid not in self.by_status

    def number(self, claim: PreparedClaim) -> int | None:
        """The preparation of a restored claim: that of the containers that have its devices and cores."""
        for use, file in reversed([*self.named(claim.uid)]):
            devices = {i for each in claim.devices if each.parent_request == file.request for i in each.indices}
            mine = claim.environment.get(file.request, {}).get(names.ENV_VISIBLE_CORES)
            same = not use.environment or use.environment.get(names.ENV_VISIBLE_CORES) == mine
            if same and devices and (not use.indices or devices <= use.indices):
                return file.number
        return None

    def ended(self, prepared: Mapping[str, PreparedClaim], view: NodeView) -> dict[str, frozenset[int]]:
        """Devices of containers that run on after the end of their claim, by its UID.

        Args:
            prepared: the restored claims.
        """
        found: dict[str, frozenset[int]] = {}
        for use in self.containers:
            now = [file.uid for file in use.files if _is_of(file, prepared)]
            others = frozenset(index for uid in now for device in prepared[uid].devices for index in device.indices)
            for file in use.files:
                if not _is_of(file, prepared):
                    # Without the right to see them, it may have all.
                    mine = (use.indices - others) or use.indices or frozenset(range(view.devices))
                    found[file.uid] = found.get(file.uid, frozenset()) | mine
        return found


def _is_of(file: ClaimFile, prepared: Mapping[str, PreparedClaim]) -> bool:
    return file.uid in prepared and prepared[file.uid].number == file.number


def as_told(claim: AllocatedClaim, variables: Variables, view: NodeView) -> PreparedClaim:
    """The claim with those of its shares that the variables of its containers tell."""
    found: list[PreparedDevice] = []
    for each in claim.devices:
        if each.share_id is not None:
            device = undecided_device(each.request, each.device, each.pool, None, view)
            value = variables.get(each.parent_request, {}).get(names.ENV_VISIBLE_CORES, "")
            mine = {core for other in found if other.indices == device.indices for core in other.cores or ()}
            share = _told_share(claim, each, device, read_visible_cores(value), mine, view)
            found += [dataclasses.replace(device, share=share)] if share is not None else []
    return PreparedClaim(claim.uid, claim.namespace, claim.name, "", tuple(found))


def _told_share(
    claim: AllocatedClaim,
    result: AllocatedDevice,
    device: PreparedDevice,
    visible: Collection[int],
    mine: Collection[int],
    view: NodeView,
) -> Share | None:
    """The share of a device by the logical cores that a container sees; None if they do not tell it.

    Args:
        mine: physical cores of the device that earlier shares of the claim have.
    """
    share_id, size = result.share_id or "", core_size(claim, device.request, view)
    try:
        amount = share_amount(result, view)
    except PrepareError:
        return None
    if amount is None:
        return Share(share_id)
    [index] = device.indices
    all_cores = physical_cores(view.hardware, view.instance, index) or 0
    numbers = (core - index * all_cores for each in visible for core in range(each * size, (each + 1) * size))
    cores = tuple(sorted(core for core in numbers if 0 <= core < all_cores and core not in mine))[:amount]
    return Share(share_id, cores, size) if len(cores) == amount else None
