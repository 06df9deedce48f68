"""Findings about DeviceTaintRules: what they select, and their taint."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from neuron import names
from neuron.api.taint_rules import NARROWING
from neuron.findings import Finding, closest_word, quoted, warning

EFFECTS: Final = ("None", "NoSchedule", "NoExecute")
_DEVICE: Final = re.compile(r"neuron-?device-?[0-9]{1,3}", re.ASCII)
"""Device names in both spellings of AWS."""
_FIELDS: Final = ("driver", "pool", "device")
_SPEC: Final = "spec.deviceSelector"
_NIL_ISSUE: Final = "kubernetes/kubernetes#141620"


def check_taint_rule(item: Mapping[str, object]) -> Iterator[Finding]:
    """The findings about one rule, in the order of its fields."""
    spec = item.get("spec")
    if not isinstance(spec, Mapping):
        yield Finding("NEU546", "spec", "the DeviceTaintRule has no spec.", "Give it a selector and a taint.")
        return
    yield from _selector(spec.get("deviceSelector"))
    taint = spec.get("taint")
    effect = taint.get("effect") if isinstance(taint, Mapping) else None
    if effect not in EFFECTS:
        close = closest_word(effect, EFFECTS) if isinstance(effect, str) else ""
        hint = f" Did you mean '{close}'?" if close else ""
        message = f"the effect {quoted(effect)} of a device taint does not exist.{hint}"
        yield Finding("NEU546", "spec.taint.effect", message, f"Use one of {', '.join(EFFECTS)}.", str(effect))


def _selector(selector: object) -> Iterator[Finding]:
    if selector is None:
        message = (
            "the DeviceTaintRule has no deviceSelector: by its documentation it taints nothing, and schedulers of"
            f" Kubernetes 1.37 taint every device of every driver by it ({_NIL_ISSUE})."
        )
        yield warning("NEU545", _SPEC, message, "Name driver, pool and device.")
        return
    if not isinstance(selector, Mapping):
        yield Finding(
            "NEU546", _SPEC, f"the deviceSelector is {quoted(selector)}, not an object.", "Name driver and pool."
        )
        return
    for field in selector:
        if field in NARROWING:
            message = (
                f"the field {field} of a deviceSelector exists up to Kubernetes 1.34 only, and later versions drop it."
            )
            yield warning("NEU545", f"{_SPEC}.{field}", message, "Select by driver, pool and device.", field)
        elif field not in _FIELDS:
            close = closest_word(str(field), _FIELDS)
            hint = f" Did you mean '{close}'?" if close else ""
            message = f"a deviceSelector has no field {quoted(field)}.{hint}"
            yield Finding("NEU546", f"{_SPEC}.{field}", message, f"Its fields are {', '.join(_FIELDS)}.", str(field))
    if not any(selector.get(field) for field in (*_FIELDS, *NARROWING)):
        message = "the DeviceTaintRule selects every device of every driver in the cluster."
        yield warning("NEU545", _SPEC, message, f"Set driver: {names.DRIVER}, and a pool or device.")
    driver = selector.get("driver")
    if isinstance(driver, str) and driver != names.DRIVER and closest_word(driver, [names.DRIVER]):
        message = f"the driver {quoted(driver)} publishes no devices. Did you mean '{names.DRIVER}'?"
        yield Finding("NEU546", f"{_SPEC}.driver", message, f"Write driver: {names.DRIVER}.", driver)
    device = selector.get("device")
    if driver == names.DRIVER and isinstance(device, str) and not _is_device(device):
        message = f"the device {quoted(device)} is no name that the Neuron driver publishes."
        fix = f"Its devices are neuron-device-0, neuron-device-1 and so on, and {names.NODE_DEVICE}."
        yield warning("NEU545", f"{_SPEC}.device", message, fix, device)


def _is_device(name: str) -> bool:
    return name == names.NODE_DEVICE or _DEVICE.fullmatch(name) is not None
