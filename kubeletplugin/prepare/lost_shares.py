"""Gives claims the shares back that a lost state had. Pure.

Share id and number of cores are in the allocation; which cores, in the variables of the claim's containers. Their
processes have these, and `status.devices` of the claim, which the driver writes.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from kubeletplugin.discover.devices import physical_cores
from kubeletplugin.discover.processes import ClaimFile, ProcessUse
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, Share
from kubeletplugin.prepare.containers import read_visible_cores
from kubeletplugin.prepare.decide import (
    NodeView,
    PrepareError,
    core_size,
    share_amount,
    undecided_device,
)
from neuron import names
from neuron.api.allocation import AllocatedClaim, AllocatedDevice

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
    found: list[PreparedDevice] = []
    for each in claim.devices:
        if each.share_id is not None:
            device = undecided_device(each.request, each.device, each.pool, None, view)
            value = variables.get(each.parent_request, {}).get(names.ENV_VISIBLE_CORES, "")
            mine = {core for other in found if other.indices == device.indices for core in other.cores or ()}
            share = _share(claim, each, device, read_visible_cores(value), mine, view)
            found += [dataclasses.replace(device, share=share)] if share is not None else []
    return PreparedClaim(claim.uid, claim.namespace, claim.name, "", tuple(found))


def _share(
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
