"""Workloads for Inf1 and Inf2 in the shapes in which people publish them, where only the manifest names a type.

The manifests are our own; node selectors, resources and kinds are those of public repositories and tutorials. Each is
converted or refused, and none is pinned to instance types that it does not name.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.converting import Converted, convert_texts

FOLDER = Path(__file__).parent / "inferentia"
ANY_INF2 = ["inf2.24xlarge", "inf2.48xlarge", "inf2.8xlarge", "inf2.xlarge"]
SEVERAL_INF2 = ["inf2.24xlarge", "inf2.48xlarge"]
ANY_INF1 = ["inf1.24xlarge", "inf1.2xlarge", "inf1.6xlarge", "inf1.xlarge"]
BIG_TRN1 = ["trn1.2xlarge", "trn1.32xlarge"]

CONVERTED: dict[str, tuple[list[str], list[str], list[int]]] = {
    # Codes of the warnings; the instance types of added node affinity; devices of each request or alternative.
    "accelerator-name": ([], ANY_INF2, [1]),
    "agnostic-node-pool": (["NEU217"], [], [1]),
    "compile-job": ([], [], [4, 4, 4]),
    "compile-then-serve": ([], [], [1]),
    "device-resource": ([], [], [6]),
    "either-family": ([], [*ANY_INF2, *BIG_TRN1], [1]),
    "inf1-hugepages": ([], [], [1]),
    "inf1-spot": (["NEU202"], ANY_INF1, [1]),
    "inf1-tensorflow": ([], [], [1]),
    "inf1-two-containers": ([], [], [1]),
    "no-selector-half-a-chip": (["NEU202", "NEU216"], [], [1]),
    "no-selector-nine-cores": (["NEU202", "NEU216", *["NEU219"] * 7, "NEU227"], [], [5] * 5 + [3] * 3),
    "no-selector-one-chip": (["NEU216"], [], [1]),
    "own-label-neuron": (["NEU216", "NEU901"], [], [1]),
    "ray-worker-12": (["NEU217"], [], [4, 4, 4]),
    "ray-worker-2-cores": (["NEU217"], [], [1]),
    "ray-worker-6": (["NEU217"], [], [6] * 7),
    "sagemaker": ([], [], [6]),
    "three-of-six": ([], [], [3, 3, 3]),
    "vllm-8xlarge": ([], [], [1]),
    "vllm-auto-mode": ([], ANY_INF2, [1]),
    "vllm-family-and-type": ([], [], [1]),
    "vllm-four-of-twelve": ([], [], [4] * 6),
    "vllm-karpenter-family": ([], SEVERAL_INF2, [2, 2]),
    "vllm-one-chip": ([], [], [1]),
    "zone-and-type": ([], [], [1]),
}
REFUSED = {
    "seventeen-chips": "NEU105: Instance type inf1.24xlarge does not support requests for device: 17.",
    "vllm-too-many-chips": "NEU105: Instance type inf2.xlarge does not support requests for device: 2.",
}
LEFT = {
    "knative-service": "NEU220: the Service is left as it is: Knative accepts no claims in it.",
    "wrong-type-name": "NEU218: inf2.4xlarge is not in the catalogue of instance types: the pod is left as it is."
    " Did you mean 'inf2.48xlarge'?",
}
"""Kinds that cannot hold claims, and unknown instance types, are left, with a message."""


def content(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text()


def convert(name: str) -> Converted:
    return convert_texts(content(name), families=(), karpenter_serves_claims=True)


def nested(value: Any, key: str) -> Iterator[Any]:
    """All values of a key, anywhere in an object."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        if name == key:
            yield child
        yield from nested(child, key)


def pinned(objects: list[dict[str, Any]]) -> list[str]:
    """The instance types that required node affinity names."""
    found = [each for item in objects for each in nested(item, "matchExpressions")]
    return sorted(
        value
        for expressions in found
        for each in expressions
        if each["key"] == "node.kubernetes.io/instance-type"
        for value in each["values"]
    )


def codes(converted: Converted) -> list[str]:
    return sorted(found for notice in converted.notices for found in re.findall(r": (NEU[0-9]{3}): ", notice))


def test_every_manifest_is_in_one_table() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted([*CONVERTED, *REFUSED, *LEFT])


@pytest.mark.parametrize("name", CONVERTED)
def test_a_manifest_is_converted(name: str) -> None:
    warned, types, counts = CONVERTED[name]
    converted = convert(name)
    assert not converted.conversion.refused
    assert codes(converted) == warned
    assert pinned(converted.objects) == types
    template = converted.named("ResourceClaimTemplate")
    assert list(nested(template, "count")) == counts
    workload = [each for each in converted.objects if each is not template]
    assert "aws.amazon.com/neuron" not in [key for each in nested(workload, "limits") for key in each]


@pytest.mark.parametrize("name", CONVERTED)
def test_a_manifest_is_pinned_only_to_types_of_families_that_it_names(name: str) -> None:
    families = {each.partition(".")[0] for each in pinned(convert(name).objects)}
    named = content(name).replace("inferentia2", "inf2")
    assert all(family in named for family in families)


@pytest.mark.parametrize(("name", "text"), REFUSED.items())
def test_a_manifest_is_refused(name: str, text: str) -> None:
    converted = convert(name)
    assert converted.conversion.refused
    assert text in " ".join(converted.notices)
    assert converted.yaml == content(name)


@pytest.mark.parametrize(("name", "text"), LEFT.items())
def test_a_manifest_is_left_with_a_message(name: str, text: str) -> None:
    converted = convert(name)
    assert text in " ".join(converted.notices)
    assert converted.yaml == content(name)
