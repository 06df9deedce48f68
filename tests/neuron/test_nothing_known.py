"""If the instance types are not known, a pod is denied only if no released type of the catalogue serves it."""

import dataclasses

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from conversion.claims.candidates import NodeSelection, find
from conversion.claims.containers import Ask, Role
from conversion.claims.families import UNKNOWN
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from neuron import names
from neuron.hardware.instances import Catalogue, InstanceType

RELEASED = find(Catalogue(), NodeSelection(), UNKNOWN).types


def ask(amount: int, *, cores: bool = False, place: int = 0, role: Role = Role.APP) -> Ask:
    resource = names.RESOURCE_NEURONCORE if cores else names.RESOURCE_NEURON
    return Ask(f"c{place}", role, f"spec.containers[{place}]", resource, amount)


@st.composite
def pods(draw: st.DrawFn) -> list[Ask]:
    """One to three containers, init containers first."""
    drawn = draw(
        st.lists(st.tuples(st.integers(1, 20), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=3)
    )
    asks = [
        ask(amount * (6 if many else 1), cores=cores, place=place, role=Role.INIT if init and place == 0 else Role.APP)
        for place, (amount, cores, init, many) in enumerate(drawn)
    ]
    return asks if asks[-1].role is Role.APP else [structs.replace(asks[0], role=Role.APP)]


def serves(asks: list[Ask], types: tuple[InstanceType, ...], config: DeviceConfig) -> bool:
    made = make_claim(asks, types, config, names.DEVICE_CLASS, pin_types=False)
    return isinstance(made, Claim)


@given(
    pods(),
    st.sampled_from([DeviceConfig(), DeviceConfig(1), DeviceConfig(2), DeviceConfig(None, 2)]),
    st.booleans(),
)
@example([ask(7)], DeviceConfig(), False)
@example([ask(17)], DeviceConfig(), False)
@example([ask(9, cores=True)], DeviceConfig(), True)
@example([ask(16)], DeviceConfig(None, 4), False)
@example([ask(2, place=0), ask(3, place=1)], DeviceConfig(), False)
def test_a_pod_is_refused_only_if_no_type_serves_it(asks: list[Ask], config: DeviceConfig, shares: bool) -> None:
    types = tuple(dataclasses.replace(entry, shares_cores=shares and entry.consecutive) for entry in RELEASED)
    assert serves(asks, types, config) == any(serves(asks, (entry,), config) for entry in types)


def test_every_count_up_to_a_node_is_served_by_a_type() -> None:
    assert [count for count in range(1, 20) if serves([ask(count)], RELEASED, DeviceConfig())] == list(range(1, 17))
