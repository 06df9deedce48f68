from typing import Any

import pytest

from conversion.objects.pod_places import find_pods

MAIN = {"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": 1}}}
OTHER = {"name": "other", "resources": {"limits": {"cpu": 1}}}
LIMIT = "spec.containers[0].resources.limits[aws.amazon.com/neuron]"


def paths(data: Any) -> list[str]:
    """Where the first limit of each pod is."""
    return [place.field_path(LIMIT) for place in find_pods(data)]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"spec": {"containers": [MAIN]}}, ["spec.containers[0].resources.limits[aws.amazon.com/neuron]"]),
        (
            {"spec": {"pods": [{"spec": {"containers": [MAIN]}}]}},
            ["spec.pods[0].spec.containers[0].resources.limits[aws.amazon.com/neuron]"],
        ),
        (
            {"spec": {"predictor": {"containers": [MAIN]}}},
            ["spec.predictor.containers[0].resources.limits[aws.amazon.com/neuron]"],
        ),
        (
            {"spec": {"worker": {"resourcesPerNode": {"requests": {"aws.amazon.com/neuroncore": 2}}}}},
            ["spec.worker.resourcesPerNode.limits[aws.amazon.com/neuron]"],
        ),
        (
            {"spec": {"initContainers": [MAIN], "containers": [OTHER]}},
            ["spec.containers[0].resources.limits[aws.amazon.com/neuron]"],
        ),
        ({"spec": {"containers": [OTHER]}}, []),
        ({"spec": {"limits": {"aws.amazon.com/neuron": 16}}}, []),
        ({"spec": {"hard": {"requests.aws.amazon.com/neuron": 16}}}, []),
        ({"spec": {"resources": ["aws.amazon.com/neuron"]}}, []),
        ({"data": {"resources": "limits: {aws.amazon.com/neuron: 4}"}}, []),
    ],
)
def test_pods_are_found_by_their_structure(data: Any, found: list[str]) -> None:
    assert paths(data) == found


def test_metadata_beside_the_spec_belongs_to_the_pod() -> None:
    template = {"metadata": {"annotations": {"neuron.aws.com/convert": "off"}}, "spec": {"containers": [MAIN]}}
    (place,) = find_pods({"spec": {"pod": template}})
    assert place.template == template
    assert place.field_path("metadata.annotations") == "spec.pod.metadata.annotations"
    assert place.field_path("") == "spec.pod"


def test_a_finding_about_the_whole_pod_is_at_its_place() -> None:
    (place,) = find_pods({"spec": {"predictor": {"containers": [MAIN]}}})
    assert place.field_path("metadata.annotations") == "spec.predictor"
