"""Capacities come from the catalogue, and none is invented."""

import dataclasses
from typing import Any

from neuron.hardware import capacities
from neuron.hardware.instances import Catalogue

TRN2 = next(entry for entry in Catalogue() if entry.name == "trn2.48xlarge")


def added(device: dict[str, Any], devices: int = 1) -> dict[str, Any]:
    capacities.add(device, TRN2, devices)
    found: dict[str, Any] = device["capacity"]
    return found


def test_one_device_and_a_whole_node() -> None:
    assert capacities.quantities(TRN2) == {"memory": "96Gi", "neuroncores": "8"}
    assert capacities.quantities(TRN2, 16) == {"memory": "1536Gi", "neuroncores": "128"}


def test_undocumented_capacities_are_left_out() -> None:
    entry = dataclasses.replace(TRN2, memory_gib=None)
    assert capacities.quantities(entry) == {"neuroncores": "8"}
    device: dict[str, Any] = {"name": "d"}
    capacities.add(device, dataclasses.replace(entry, cores_per_device=None))
    assert device == {"name": "d"}


def test_a_device_of_one_claim_has_no_request_policy() -> None:
    assert added({}) == {"memory": {"value": "96Gi"}, "neuroncores": {"value": "8"}}


def test_a_shared_device_does_not_give_all_its_memory_to_the_first_claim() -> None:
    cores = {"value": "8", "requestPolicy": {"default": "8", "validValues": ["0", "1", "2", "4", "8"]}}
    found = added({"allowMultipleAllocations": True, "capacity": {"neuroncores": cores}})
    assert found["neuroncores"] == cores
    assert found["memory"] == {"value": "96Gi", "requestPolicy": {"default": "0", "validRange": {"min": "0"}}}
