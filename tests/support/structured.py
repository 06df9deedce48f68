"""ResourceSlices and claims as the API has them, read into the allocator's model.

So one description of a case goes to the real scheduler and to the model. Selectors are evaluated as CEL.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from neuron import names
from neuron.allocator import Alternative, Capacity, Claim, Constraint, Device, Node, Request, Result, Value
from policies.selectors.engine import DeviceSelectors

Object = dict[str, Any]

_NO_CLOCK: Final = 0.0
_MOST_ANSWERS: Final = 200_000


def node_of(slices: Iterable[Mapping[str, Any]], *, counters_leak: bool = False, hurry: bool = False) -> Node:
    """The node that published these slices (bodies or specs), with nothing allocated."""
    specs = [each.get("spec", each) for each in slices]
    counters = {
        f"{group['name']}/{name}": int(counter["value"])
        for spec in specs
        for group in spec.get("sharedCounters") or ()
        for name, counter in group["counters"].items()
    }
    devices = (_device_of(entry) for spec in specs for entry in spec.get("devices") or ())
    return Node(devices, counters, counters_leak=counters_leak, hurry=hurry)


_devices: Final[dict[str, Device]] = {}
_known: Final[dict[int, tuple[Mapping[str, Any], Device]]] = {}
"""By identity of the entry, which the value keeps alive."""


def _device_of(entry: Mapping[str, Any]) -> Device:
    """Equal entries are one object, so that a selector is evaluated once for them."""
    known = _known.get(id(entry))
    if known is None:
        key = json.dumps(entry, sort_keys=True)
        known = _known[id(entry)] = entry, _devices.get(key) or _devices.setdefault(key, _device(entry))
    return known[1]


def _device(entry: Mapping[str, Any]) -> Device:
    return Device(
        name=entry["name"],
        attributes={_qualified(name): _value(value) for name, value in entry.get("attributes", {}).items()},
        shared=bool(entry.get("allowMultipleAllocations")),
        capacity={name: _capacity(value) for name, value in entry.get("capacity", {}).items()},
        counters={
            f"{group['counterSet']}/{name}": int(counter["value"])
            for group in entry.get("consumesCounters") or ()
            for name, counter in group["counters"].items()
        },
        tainted=bool(entry.get("taints")),
    )


def _qualified(name: str) -> str:
    return name if "/" in name else f"{names.DRIVER}/{name}"


def _value(value: Mapping[str, Value]) -> Value:
    [(_, content)] = value.items()
    return content


def _capacity(value: Mapping[str, Any]) -> Capacity:
    policy = value.get("requestPolicy") or {}
    valid = tuple(_amount(each) for each in policy.get("validValues") or ())
    return Capacity(_amount(value["value"]), valid, _amount(policy["default"]) if "default" in policy else None)


def _amount(quantity: str) -> int:
    return int(quantity.removesuffix("Gi")) * (2**30 if quantity.endswith("Gi") else 1)


def claim_of(spec: Mapping[str, Any]) -> Claim:
    """A claim's spec. The DeviceClass is the driver's own, which selects all of its devices."""
    devices = spec["devices"]
    constraints = (
        Constraint(each["matchAttribute"], frozenset(each.get("requests", ())))
        for each in devices.get("constraints", ())
    )
    return Claim(tuple(map(_request, devices["requests"])), tuple(constraints))


def _request(entry: Mapping[str, Any]) -> Request:
    if "exactly" in entry:
        return Request(entry["name"], (_alternative("", entry["exactly"]),))
    return Request(entry["name"], tuple(_alternative(each["name"], each) for each in entry["firstAvailable"]))


def _alternative(name: str, entry: Mapping[str, Any]) -> Alternative:
    every = entry.get("allocationMode", "ExactCount") == "All"
    tolerations = entry.get("tolerations", ())
    return Alternative(
        name,
        selects=_all_of([each["cel"]["expression"] for each in entry.get("selectors", ())]),
        count=None if every else entry.get("count", 1),
        capacity={key: _amount(value) for key, value in entry.get("capacity", {}).get("requests", {}).items()},
        admin_access=bool(entry.get("adminAccess")),
        tolerates=any(each.get("operator") == "Exists" and not each.get("key") for each in tolerations),
    )


def _all_of(expressions: list[str]) -> Callable[[Device], bool]:
    if len(expressions) == 1:
        return functools.partial(_selects, expressions[0])
    return lambda device: all(_selects(expression, device) for expression in expressions)


_answers: Final[dict[tuple[str, int], tuple[Device, bool]]] = {}
"""By expression and identity of the device, which the value keeps alive."""


def _selects(expression: str, device: Device) -> bool:
    key = (expression, id(device))
    found = _answers.get(key)
    if found is None:
        if len(_answers) > _MOST_ANSWERS:
            _answers.clear()
        found = _answers[key] = device, _evaluate(expression, tuple(sorted(device.attributes.items())))
    return found[1]


@functools.lru_cache(maxsize=65536, typed=True)
def _evaluate(expression: str, attributes: tuple[tuple[str, Value], ...]) -> bool:
    # A clock that stands still: what is bounded for tenants may take its time here.
    selector = DeviceSelectors(lambda: _NO_CLOCK).compile(expression)
    return selector.evaluate(names.DRIVER, dict(attributes))


def results_of(claim: Mapping[str, Any]) -> tuple[Result, ...] | None:
    """What an allocated claim holds, as the model says it; None where it is not allocated."""
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        return None
    return tuple(
        Result(
            each["request"],
            each["device"],
            {name: _amount(value) for name, value in (each.get("consumedCapacity") or {}).items()},
            bool(each.get("adminAccess")),
        )
        for each in allocation["devices"]["results"]
    )
