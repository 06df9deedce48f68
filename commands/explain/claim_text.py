"""A claim's spec in words: its requests, what must be connected, its configs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from neuron.api.claim_specs import ALL
from neuron.names import DRIVER
from runtime.text import named

Object = Mapping[str, Any]

_MOST_WAYS: Final = 2


def lines(spec: Object) -> Iterator[str]:
    """One line for each request and each config."""
    devices = spec.get("devices") or {}
    constraints = devices.get("constraints") or ()
    for request in devices.get("requests") or ():
        key = str(request.get("name"))
        name = named(key)
        exact, parts = request.get("exactly"), request.get("firstAvailable") or ()
        if exact:
            yield f"{name}: {_part(exact)}{_connected(_tied((key,), constraints))}"
            continue
        # Alternatives of one request mostly differ only in where the devices are.
        texts: dict[str, list[str]] = {}
        for part in parts:
            ways = texts.setdefault(_part(part), [])
            if part.get("count", 1) != 1:
                ways += [" and ".join(_tied((key, f"{key}/{part.get('name')}"), constraints)) or "by device id"]
        yield f"{name}: " + ", or ".join(f"{text}{_connected(ways)}" for text, ways in texts.items())
    for config in devices.get("config") or ():
        opaque = config.get("opaque") or {}
        parameters = opaque.get("parameters")
        if opaque.get("driver") == DRIVER and isinstance(parameters, Mapping):
            values = {key: value for key, value in parameters.items() if key not in ("apiVersion", "kind")}
            yield f"config: {named(parameters.get('kind'))} {orjson.dumps(values).decode()}"


def _part(part: Object) -> str:
    everything = part.get("allocationMode") == ALL
    count = int(part.get("count") or 1)
    devices = "all devices" if everything else f"{count} device{'' if count == 1 else 's'}"
    amounts = (part.get("capacity") or {}).get("requests") or {}
    share = "".join(f", {named(value)} {named(name)} of each" for name, value in amounts.items())
    admin = ", with adminAccess" if part.get("adminAccess") else ""
    return f"{devices} of {named(part.get('deviceClassName'))}{share}{admin}"


def _connected(ways: Sequence[str]) -> str:
    """How devices are kept together, in the order of the alternatives."""
    if not ways:
        return ""
    more = f" or {len(ways) - _MOST_WAYS} more ways" if len(ways) > _MOST_WAYS else ""
    return f", connected ({' or '.join(ways[:_MOST_WAYS])}{more})"


def _tied(references: Sequence[str], constraints: Sequence[Object]) -> list[str]:
    """Attributes, without their domain, that must be equal on the devices of a request or alternative."""
    found = []
    for each in constraints:
        attribute, covered = each.get("matchAttribute"), each.get("requests") or references
        if attribute and any(reference in covered for reference in references):
            found.append(named(str(attribute).rpartition("/")[2]))
    return found
