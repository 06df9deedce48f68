"""A claim's spec in words: its requests, what must be connected, its configs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import orjson

from neuron.api.claim_specs import ClaimSpec, Constraint, DeviceRequest
from neuron.names import DRIVER
from runtime.text import named

_MOST_WAYS: Final = 2


def lines(spec: ClaimSpec) -> Iterator[str]:
    """One line for each request and each config."""
    for request in spec.requests:
        name = named(request.name)
        if not request.prioritised:
            for part in request.alternatives:
                yield f"{name}: {_part(part)}{_connected(_tied((request.name,), spec.constraints))}"
            continue
        # Alternatives of one request mostly differ only in where the devices are.
        texts: dict[str, list[str]] = {}
        for part in request.alternatives:
            ways = texts.setdefault(_part(part), [])
            if part.count > 1:
                tied = _tied((request.name, part.reference), spec.constraints)
                ways += [" and ".join(tied) or "by device id"]
        yield f"{name}: " + ", or ".join(f"{text}{_connected(ways)}" for text, ways in texts.items())
    for config in spec.configs:
        parameters = config.parameters
        if config.driver == DRIVER and isinstance(parameters, Mapping):
            values = {key: value for key, value in parameters.items() if key not in ("apiVersion", "kind")}
            yield f"config: {named(parameters.get('kind'))} {orjson.dumps(values).decode()}"


def _part(part: DeviceRequest) -> str:
    devices = "all devices" if part.everything else f"{part.count} device{'' if part.count == 1 else 's'}"
    share = "".join(f", {named(value)} {named(name)} of each" for name, value in part.capacity)
    admin = ", with adminAccess" if part.admin_access else ""
    return f"{devices} of {named(part.device_class)}{share}{admin}"


def _connected(ways: Sequence[str]) -> str:
    """How devices are kept together, in the order of the alternatives."""
    if not ways:
        return ""
    rest = len(ways) - _MOST_WAYS
    more = f" or {rest} more way{'' if rest == 1 else 's'}" if rest > 0 else ""
    return f", connected ({' or '.join(ways[:_MOST_WAYS])}{more})"


def _tied(references: Sequence[str], constraints: Sequence[Constraint]) -> list[str]:
    """Attributes, without their domain, that must be equal on the devices of a request or alternative."""
    found = []
    for each in constraints:
        covered = each.requests or references
        if each.match_attribute and any(reference in covered for reference in references):
            found.append(named(each.match_attribute.rpartition("/")[2]))
    return found
