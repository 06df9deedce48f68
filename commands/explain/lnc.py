"""Whether claims that share a device use it with one logicalNeuronCore. Pure.

The scheduler does not know of the setting: it shares a device between claims with different sizes, and then the driver
refuses to prepare the second one.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neuron import names
from neuron.api.configs import ConfigEntry, Source, configs_in_force, decode_object
from runtime.text import named

Object = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Cores:
    """A share of a device.

    Attributes:
        holder: the pod or claim that has it, for messages.
        lnc: its logicalNeuronCore; None: the default of the instance type.
    """

    holder: str
    lnc: int | None

    @classmethod
    def of_claim(cls, claim: Object, result: Object) -> "Cores":
        """The share of one result of an allocated claim."""
        metadata, status = claim["metadata"], claim["status"]
        pods = [each["name"] for each in status.get("reservedFor") or () if each.get("resource") == "pods"]
        name = named(f"{metadata['namespace']}/{metadata['name']}")
        holder = named(f"{metadata['namespace']}/{pods[0]}") if pods else f"claim {name}"
        configs = (status["allocation"].get("devices") or {}).get("config") or ()
        return cls(holder, lnc_of(configs, str(result["request"])))


def lnc_of(configs: Sequence[Object], request: str) -> int | None:
    """The logicalNeuronCore in force for a request; None if none is set.

    Args:
        configs: of a claim's spec, or of its allocation.
        request: `req` or `req/sub`.
    """
    entries = []
    for config in configs:
        opaque = config.get("opaque") or {}
        if opaque.get("driver") != names.DRIVER:
            continue
        decoded = decode_object(opaque.get("parameters")).config
        if decoded is not None:
            source = Source(config.get("source", Source.FROM_CLAIM))
            entries.append(ConfigEntry(source, tuple(config.get("requests") or ()), decoded))
    return configs_in_force(tuple(entries), request).logical_neuron_core


def conflict(wanted: int, others: Iterable[Cores], default: int) -> str:
    """Which holder uses a device with another size, as a text; empty if none does.

    Args:
        wanted: size of the pod.
        others: shares that claims hold of the device.
        default: size of the instance type.
    """
    for other in others:
        if (other.lnc or default) != wanted:
            return f"{other.holder} uses it with logicalNeuronCore {other.lnc or default}, the pod needs {wanted}"
    return ""
