"""Whether claims that share a device use it with one logicalNeuronCore. Pure.

The scheduler does not know of the setting: it shares a device between claims with different sizes, and then the driver
refuses to prepare the second one.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from neuron import names
from neuron.api.allocation import config_entries
from neuron.api.configs import ConfigEntry, configs_in_force
from neuron.api.stored_claims import StoredClaim
from runtime.text import named


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
    def of_claim(cls, claim: StoredClaim, request: str) -> "Cores":
        """The share that a request of an allocated claim has."""
        namespace, name = claim.metadata.namespace, claim.metadata.name
        holder = named(f"{namespace}/{claim.pods[0].name}") if claim.pods else f"claim {named(f'{namespace}/{name}')}"
        configs = claim.allocation.configs if claim.allocation is not None else ()
        return cls(holder, lnc_of(config_entries(configs, names.DRIVER)[0], request))


def lnc_of(configs: Sequence[ConfigEntry], request: str) -> int | None:
    """The logicalNeuronCore in force for a request, `req` or `req/sub`; None if none is set."""
    return configs_in_force(configs, request).logical_neuron_core


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
