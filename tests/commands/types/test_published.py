"""What is generated for autoscalers is what the driver publishes on a node of that type, and serves the same claims."""

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from commands import types as published
from commands.types import NodeTemplate
from kubeletplugin.publish.slices import driver_version
from neuron.hardware.instances import TYPES, Catalogue, InstanceType
from tests.kubeletplugin.fakes import NODE, FakeApi, FakeClock, Node
from tests.kubeletplugin.publish.test_publisher import publishing

KNOWN = [entry for entry in TYPES if entry.devices is not None]


SHAPES = (
    "trn1.32xlarge",
    "trn1.2xlarge",
    "trn2.48xlarge",
    "trn2u.48xlarge",
    "trn3.48xlarge",
    "trn3e.24xlarge",
    "inf2.48xlarge",
    "inf2.24xlarge",
    "inf1.6xlarge",
)
"""One type for each kind of slices."""


def known(name: str) -> InstanceType:
    entry = Catalogue().get(name)
    assert entry is not None
    return entry


@functools.cache
def generated_for(name: str) -> list[dict[str, Any]]:
    return published.resource_slices(NodeTemplate(known(name), NODE))


@pytest.fixture(scope="module")
def by_driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """Finds the slices that a driver on an emulated node of a type has written to the API server."""

    @functools.cache
    def written(name: str) -> list[dict[str, Any]]:
        api, clock = FakeApi(), FakeClock()

        async def scenario() -> None:
            async with publishing(Node(tmp_path_factory.mktemp("node"), name), api, clock) as at:
                await at.until(lambda: bool(api.stored))
                await at.settled()

        asyncio.run(scenario())
        return [body for _, body in sorted(api.stored.items())]

    return written


def comparable(slices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what belongs to one object of the API, and the labels of the fake Node."""
    specs = json.loads(json.dumps([each["spec"] for each in slices]))
    for spec in specs:
        for device in spec.get("devices", ()):
            for attribute in (*(f"networkNodeLayer{layer}" for layer in (1, 2, 3)), "capacityBlockId"):
                device["attributes"].pop(attribute, None)
            device["attributes"].pop("draDriverVersion")
    return specs


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry.name)
def test_the_generated_slices_are_those_that_the_driver_publishes(
    by_driver: Callable[[str], list[dict[str, Any]]], entry: InstanceType
) -> None:
    generated = generated_for(entry.name)
    written = by_driver(entry.name)
    assert [each["metadata"]["name"] for each in generated] == [each["metadata"]["name"] for each in written]
    assert comparable(generated) == comparable(written)


def test_generated_devices_show_the_versions() -> None:
    [made] = published.resource_slices(NodeTemplate(known("trn3e.24xlarge"), "n", "2.31.7.0"))
    attributes = made["spec"]["devices"][0]["attributes"]
    assert attributes["neuronDriverVersion"] == {"string": "2.31.7.0"}
    assert attributes["draDriverVersion"] == {"version": driver_version()}
    assert "ownerReferences" not in made["metadata"]


@pytest.mark.parametrize(
    ("kubernetes", "kinds", "shared"),
    [("", 17, True), ("1.36.2", 17, True), ("1.36.0", 16, True), ("1.35.6", 16, False), ("1.34.9", 16, False)],
)
def test_what_the_control_plane_does_not_keep_is_left_out(kubernetes: str, kinds: int, shared: bool) -> None:
    slices = published.resource_slices(NodeTemplate(known("trn2u.48xlarge"), "n", kubernetes=kubernetes))
    assert sum(len(each["spec"].get("devices", ())) for each in slices) == kinds
    assert any("sharedCounters" in each["spec"] for each in slices) == (kinds == 17)
    [ring] = published.resource_slices(NodeTemplate(known("inf2.48xlarge"), "n", kubernetes=kubernetes))
    assert all(device.get("allowMultipleAllocations", False) is shared for device in ring["spec"]["devices"])


@pytest.mark.parametrize("entry", [*map(known, SHAPES)], ids=SHAPES)
def test_every_claim_of_a_type_fits_the_slices_of_its_template(
    by_driver: Callable[[str], list[dict[str, Any]]], entry: InstanceType
) -> None:
    generated = generated_for(entry.name)
    written = by_driver(entry.name)
    [pool] = published.karpenter_config([NodeTemplate(entry, NODE)])["spec"]["pools"]
    shared = {"driver": "neuron.aws.com", "pool": {"name": NODE}}
    karpenter = [{"spec": {**shared, **each}} for each in pool["resourceSlices"]]
    counts = []
    for count, spec in published.claims_of(entry):
        counts.append(count)
        assert published.fits(spec, generated), count
        assert published.fits(spec, written), count
        assert published.fits(spec, karpenter), count
    assert counts == [*entry.counts] if not entry.consecutive else counts == [*range(1, (entry.devices or 0) + 1)]


@pytest.mark.parametrize("entry", [*map(known, SHAPES)], ids=SHAPES)
def test_a_claim_of_another_type_fits_the_template_if_and_only_if_it_fits_the_node(
    by_driver: Callable[[str], list[dict[str, Any]]], entry: InstanceType
) -> None:
    generated = generated_for(entry.name)
    written = by_driver(entry.name)
    answers = set()
    for other in ("trn1.32xlarge", "trn3e.24xlarge", "inf2.24xlarge"):
        for count, spec in published.claims_of(known(other)):
            fits = published.fits(spec, generated)
            answers.add(fits)
            assert fits == published.fits(spec, written), (other, count)
    assert answers == {True, False}


def test_cluster_autoscaler_starts_a_first_node_for_single_devices_only() -> None:
    for name in ("trn2.48xlarge", "trn3e.24xlarge", "inf2.48xlarge"):
        seen = published.slices_of_annotations(known(name), "n")
        assert [count for count, spec in published.claims_of(known(name)) if published.fits(spec, seen)] == [1]


def test_the_annotations_have_the_number_of_devices() -> None:
    assert published.capacity_annotations(known("trn3e.24xlarge")) == {
        "capacity.cluster-autoscaler.kubernetes.io/dra-driver": "neuron.aws.com",
        "capacity.cluster-autoscaler.kubernetes.io/gpu-count": "4",
    }


def test_the_karpenter_config_selects_nodes_of_the_type() -> None:
    config = published.karpenter_config([NodeTemplate(known(name), "n") for name in ("trn2u.48xlarge", "inf2.xlarge")])
    assert (config["apiVersion"], config["kind"]) == ("test.karpenter.sh/v1alpha1", "DRAConfig")
    assert [pool["name"] for pool in config["spec"]["pools"]] == ["trn2u-48xlarge", "inf2-xlarge"]
    [expression] = config["spec"]["pools"][0]["nodeSelectorTerms"][0]["matchExpressions"]
    assert expression["values"] == ["trn2u.48xlarge", "ml.trn2u.48xlarge"]
    devices = [each for part in config["spec"]["pools"][0]["resourceSlices"] for each in part["devices"]]
    assert (len(devices), any("consumesCounters" in each for each in devices)) == (16, False)
