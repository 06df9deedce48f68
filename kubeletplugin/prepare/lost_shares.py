"""Gives prepared claims the shares back that a version of the driver without shares dropped. Pure.

Such a version reads and writes every claim as one of whole devices. What it dropped is in the allocation (share id and
number of cores) and in the variables of the claim's containers (which cores).
"""

import dataclasses
from collections.abc import Iterable, Iterator

from kubeletplugin.discover.sharing import physical_cores
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, Share
from kubeletplugin.prepare.decide import NodeView, PrepareError, allocation_digest, core_size, share_amount
from kubeletplugin.prepare.environment import read_visible_cores
from neuron import names
from neuron.api.allocation import AllocatedClaim, AllocatedDevice


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
