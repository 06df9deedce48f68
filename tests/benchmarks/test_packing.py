"""The packing simulation: what it counts, and that the order of claims keeps up with any start."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks import arrivals, packing
from neuron.hardware.instances import Catalogue
from neuron.hardware.windows import Line


def test_demand_for_single_devices_is_served_while_devices_are_free() -> None:
    line = Line(6, wraps=False)
    assert packing.served(line, {1: 1.0}, packing.ORDERS["shift 0 only"], 0.2, seed=1) == 1.0


def test_the_same_seed_gives_the_same_figure() -> None:
    line, demand = Line(12, wraps=True), {1: 2.0, 5: 1.0, 12: 1.0}
    order = packing.ORDERS["any start (the extension's rule)"]
    assert packing.served(line, demand, order, 0.9, 7) == packing.served(line, demand, order, 0.9, 7)


@pytest.mark.parametrize("line", [Line(12, wraps=True), Line(6, wraps=False)], ids=["ring", "chain"])
def test_every_order_tries_windows_of_the_size(line: Line) -> None:
    for order in packing.ORDERS.values():
        for size in range(2, line.devices):
            tried = list(order(line, size))
            assert tried
            assert all(window.bit_count() == size for window in tried)


def test_claims_allocate_nearly_as_many_devices_as_any_start_allows() -> None:
    line, demand = Line(12, wraps=True), {1: 30.0, 2: 20.0, 3: 10.0, 4: 15.0, 6: 10.0}
    any_start, listed, *_ = packing.ORDERS.values()
    best, ours, worst = (
        packing.served(line, demand, order, 0.9, 1) for order in (any_start, listed, packing.ORDERS["shift 0 only"])
    )
    assert worst < ours
    assert ours > 0.97 * best


@pytest.mark.parametrize("mix", ["devices", "cores", "both"])
@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge"])
def test_pods_are_refused_no_more_often_than_by_the_extension(name: str, mix: str) -> None:
    entry = Catalogue().get(name)
    assert entry is not None
    ours, extension = (
        arrivals.refused(entry, mix, arrivals.placers(entry)[who](), arrivals.LOAD, seed=0)
        for who in ("ours", "extension")
    )
    assert 0 < ours <= extension + 0.005


def test_the_plot_is_well_formed_and_names_every_order() -> None:
    rows = {order: [1.0, 0.98, 0.95] for order in packing.ORDERS}
    plot = packing.plot({"inf2.48xlarge, ring of 12": rows})
    assert ET.fromstring(plot).tag.endswith("svg")  # noqa: S314 - our own text
    assert all(order in plot for order in packing.ORDERS)
