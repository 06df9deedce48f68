"""Gives claims their shares back: what a version without shares dropped, and what a lost state had. Pure.

Such a version reads and writes every claim as one of whole devices. What it dropped is in the allocation (share id and
number of cores) and in the variables of the claim's containers (which cores). The variables are also in the processes
of the containers, and in `status.devices` of the claim, which the driver writes.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from kubeletplugin.claim_files import ClaimFile
from kubeletplugin.discover.processes import ProcessUse
from kubeletplugin.discover.sharing import physical_cores
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, Share
from kubeletplugin.prepare.decide import (
    NodeView,
    PrepareError,
    allocation_digest,
    core_size,
    share_amount,
    undecided_device,
)
from kubeletplugin.prepare.environment import read_visible_cores
from neuron import names
from neuron.api.allocation import AllocatedClaim, AllocatedDevice

Variables = Mapping[str, Mapping[str, str]]
"""Variables of containers, by request without its alternative."""


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What others know of the claims of a node whose state was lost.

    Attributes:
        containers: what runs, with its variables; only those that name claims count.
        by_status: variables in `status.devices`, by UID. Everything that may write this status can choose them.
        complete: whether all containers are known.
    """

    containers: tuple[ProcessUse, ...] = ()
    by_status: Mapping[str, Variables] = dataclasses.field(default_factory=dict)
    complete: bool = False

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

    def may_run(self, uid: str) -> bool:
        """Whether containers of the claim may run."""
        return not self.complete or any(self.named(uid))

    def number(self, claim: PreparedClaim) -> int | None:
        """The preparation of a restored claim: that of the containers that have its devices and cores."""
        return next((file.number for use, file in reversed([*self.named(claim.uid)]) if _fits(use, file, claim)), None)

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


def _fits(use: ProcessUse, file: ClaimFile, claim: PreparedClaim) -> bool:
    """Whether a container has what the claim has for the request."""
    devices = {i for each in claim.devices if each.parent_request == file.request for i in each.indices}
    mine = claim.environment.get(file.request, {}).get(names.ENV_VISIBLE_CORES)
    same = not use.environment or use.environment.get(names.ENV_VISIBLE_CORES) == mine
    return same and bool(devices) and (not use.indices or devices <= use.indices)


def as_told(claim: AllocatedClaim, variables: Variables, view: NodeView) -> PreparedClaim:
    """The claim with those of its shares that the variables of its containers tell."""
    devices = tuple(undecided_device(each.request, each.device, each.pool, None, view) for each in claim.devices)
    environment = {request: dict(found) for request, found in variables.items()}
    whole = PreparedClaim(claim.uid, claim.namespace, claim.name, "", devices, environment)
    restored = with_shares(whole, claim, view)
    known = tuple(each for each in restored.devices if each.share is not None and each.share.certain)
    return dataclasses.replace(restored, devices=known)


def lacks_shares(prepared: PreparedClaim, allocated: AllocatedClaim) -> bool:
    """Whether the claim is prepared for the same devices, and without a share that its allocation has."""
    pairs = list(_pairs(prepared, allocated))
    same = len(pairs) == len(prepared.devices) == len(allocated.devices)
    return same and any(device.share is None and result.share_id is not None for device, result in pairs)


def with_shares(prepared: PreparedClaim, allocated: AllocatedClaim, view: NodeView) -> PreparedClaim:
    """The claim with its shares. Where its containers' cores are not known, it holds the whole device, in doubt."""
    found: list[PreparedDevice] = []
    for device, result in _pairs(prepared, allocated):
        if device.share is None and result.share_id is not None:
            share = _share(result.share_id, prepared, allocated, (device, result), (view, found))
            found.append(dataclasses.replace(device, share=share))
        else:
            found.append(device)
    # A claim of which it was not decided how to prepare it still has to be.
    digest = prepared.allocation and allocation_digest(allocated)
    return dataclasses.replace(prepared, devices=tuple(found), allocation=digest)


def _pairs(prepared: PreparedClaim, allocated: AllocatedClaim) -> Iterator[tuple[PreparedDevice, AllocatedDevice]]:
    results = {(result.request, result.device): result for result in allocated.devices}
    for device in prepared.devices:
        result = results.get((device.request, device.device))
        if result is not None:
            yield device, result


def _share(
    share_id: str,
    prepared: PreparedClaim,
    allocated: AllocatedClaim,
    pair: tuple[PreparedDevice, AllocatedDevice],
    known: tuple[NodeView, Iterable[PreparedDevice]],
) -> Share:
    (device, result), (view, before) = pair, known
    size = core_size(allocated, device.request, view)
    try:
        amount = share_amount(result, view)
    except PrepareError:
        return Share(share_id, None, size, certain=False)
    if amount is None:
        return Share(share_id)
    [index] = device.indices
    all_cores = physical_cores(view.hardware, view.instance, index) or 0
    mine = {core for each in before if each.indices == device.indices for core in each.cores or ()}
    visible = read_visible_cores(prepared.environment.get(device.parent_request, {}).get(names.ENV_VISIBLE_CORES, ""))
    numbers = (core - index * all_cores for each in visible for core in range(each * size, (each + 1) * size))
    cores = tuple(sorted(core for core in numbers if 0 <= core < all_cores and core not in mine))[:amount]
    if len(cores) < amount:
        return Share(share_id, None, size, certain=False)
    return Share(share_id, cores, size)
