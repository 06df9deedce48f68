"""Which devices are connected: the documented matrices, and no link twice."""

import pytest

from neuron.hardware.connections import links, neighbours
from neuron.hardware.instances import Topology


def test_the_torus_of_the_documentation() -> None:
    assert set(neighbours(Topology.TORUS, 0, 16)) == {12, 3, 4, 1}
    assert set(neighbours(Topology.TORUS, 10, 16)) == {6, 9, 14, 11}
    assert len(links(Topology.TORUS, 16)) == 32


@pytest.mark.parametrize(
    ("topology", "devices", "expected"),
    [
        (Topology.RING, 4, ((0, 1), (0, 3), (1, 2), (2, 3))),
        (Topology.RING, 2, ((0, 1),)),
        (Topology.CHAIN, 3, ((0, 1), (1, 2))),
        (Topology.SWITCH, 4, ()),
        (Topology.SINGLE, 1, ()),
        (Topology.TORUS, 6, ()),
    ],
)
def test_links_are_listed_once(topology: Topology, devices: int, expected: tuple[tuple[int, int], ...]) -> None:
    assert links(topology, devices) == expected
