"""ResourceSlices and claims as the API has them, read into the allocator's model.

So one description of a case goes to the real scheduler and to the model. The readers are those of `neuron-dra explain`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from commands.devices.allocator_inputs import PodClaim, Selects, device_of, read_demand, result_of
from neuron import names
from neuron.allocator.search import AllocatorClaim, AllocatorDevice, AllocatorNode, AllocatorResult
from neuron.api.claim_reader import claim_spec
from neuron.api.slices import PublishedDevice, Slice, read_slice
from neuron.api.stored_claims import read_stored_claim

Object = dict[str, Any]

_selects: Final = Selects()
_devices: Final[dict[str, AllocatorDevice]] = {}


def node_of(slices: Iterable[Mapping[str, Any]], *, counters_leak: bool = False, hurry: bool = False) -> AllocatorNode:
    """The node that published these slices (bodies or specs), with nothing allocated."""
    found = [_read(each.get("spec", each)) for each in slices]
    devices = [_device_of(device) for each in found for device in each.devices]
    counters = {name: value for each in found for name, value in each.counters.items()}
    return AllocatorNode(devices, counters, counters_leak=counters_leak, hurry=hurry)


_known: Final[dict[int, tuple[Mapping[str, Any], Slice]]] = {}
"""By identity of the spec, which the value keeps alive."""


def _read(spec: Mapping[str, Any]) -> Slice:
    if id(spec) not in _known:
        _known[id(spec)] = spec, read_slice({"spec": {"driver": names.DRIVER, "pool": {"name": "p"}, **spec}})
    return _known[id(spec)][1]


def _device_of(published: PublishedDevice) -> AllocatorDevice:
    """Equal devices are one object, so that a selector is evaluated once for them."""
    key = repr(published)
    return _devices.get(key) or _devices.setdefault(key, device_of(published))


def claim_of(spec: Mapping[str, Any]) -> AllocatorClaim:
    """A claim's spec. The DeviceClass is the driver's own, which selects all of its devices."""
    return read_demand([PodClaim("neuron", claim_spec(spec))], None, _selects).claim


def results_of(claim: Mapping[str, Any]) -> tuple[AllocatorResult, ...] | None:
    """The devices of an allocated claim in the form of the model; None if it is not allocated."""
    found = read_stored_claim(claim)
    return None if found.allocation is None else tuple(map(result_of, found.ours))
