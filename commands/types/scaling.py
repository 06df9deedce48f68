"""Which connected counts of devices an autoscaler gets for a type, by the model of the scheduler's allocator."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from commands.devices.allocator_inputs import PodClaim, Selects, hardware_of, read_demand
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from neuron import names
from neuron.api.claim_reader import claim_spec
from neuron.api.claim_specs import ClassSpec, Selector
from neuron.api.slices import read_slice
from neuron.hardware.instances import InstanceType

_CLASS: Final = {names.DEVICE_CLASS: ClassSpec((Selector("spec.selectors[0]", f"device.driver == '{names.DRIVER}'"),))}


def claims_of(entry: InstanceType) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Each count of devices that one container can request on a type, with the spec of its claim."""
    for count in range(1, (entry.devices or 0) + 1):
        ask = Ask("main", Role.APP, "spec.containers[0]", names.RESOURCE_NEURON, count)
        made = make_claim([ask], [entry], DeviceConfig(), names.DEVICE_CLASS, pin_types=False)
        if isinstance(made, Claim):
            yield count, made.template.spec["spec"]


def fits(spec: Mapping[str, object], slices: Sequence[Mapping[str, object]]) -> bool:
    """Whether the scheduler allocates a claim on an empty node with these ResourceSlices."""
    node = hardware_of(map(read_slice, slices)).node()
    demand = read_demand([PodClaim("neuron", claim_spec(spec))], _CLASS, Selects())
    return node.allocate(demand.claim) is not None
