"""ResourceSlices and claims as the API has them, read into the allocator's model.

So one description of a case goes to the real scheduler and to the model. The readers are those of `neuron-dra explain`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from commands.explain.model import PodClaim, Selects, read_counters, read_demand, read_device, read_results
from neuron.allocator.search import Claim, Device, Node, Result

Object = dict[str, Any]

_selects: Final = Selects()
_devices: Final[dict[str, Device]] = {}


def node_of(slices: Iterable[Mapping[str, Any]], *, counters_leak: bool = False, hurry: bool = False) -> Node:
    """The node that published these slices (bodies or specs), with nothing allocated."""
    specs = [each.get("spec", each) for each in slices]
    devices = [_device_of(entry) for spec in specs for entry in spec.get("devices") or ()]
    return Node(devices, read_counters(specs), counters_leak=counters_leak, hurry=hurry)


_known: Final[dict[int, tuple[Mapping[str, Any], Device]]] = {}
"""By identity of the entry, which the value keeps alive."""


def _device_of(entry: Mapping[str, Any]) -> Device:
    """Equal entries are one object, so that a selector is evaluated once for them."""
    known = _known.get(id(entry))
    if known is None:
        key = json.dumps(entry, sort_keys=True)
        known = _known[id(entry)] = entry, _devices.get(key) or _devices.setdefault(key, read_device(entry))
    return known[1]


def claim_of(spec: Mapping[str, Any]) -> Claim:
    """A claim's spec. The DeviceClass is the driver's own, which selects all of its devices."""
    return read_demand([PodClaim("neuron", spec)], None, _selects).claim


def results_of(claim: Mapping[str, Any]) -> tuple[Result, ...] | None:
    """The devices of an allocated claim in the form of the model; None if it is not allocated."""
    allocated = bool((claim.get("status") or {}).get("allocation"))
    return read_results(claim) if allocated else None
