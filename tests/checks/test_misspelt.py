import pytest

from checks.words import meant
from neuron import names


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("aws.amazon.com/neurons", "aws.amazon.com/neuron"),
        ("aws.amazon.com/neruon", "aws.amazon.com/neuron"),
        ("aws.amazon.com/Neuron", "aws.amazon.com/neuron"),
        ("aws.amazon.com/neuron-device", "aws.amazon.com/neurondevice"),
        ("aws.amazon.com/neuroncores", "aws.amazon.com/neuroncore"),
        ("amazonaws.com/neuron", "aws.amazon.com/neuron"),
        ("neuron", "aws.amazon.com/neuron"),
        ("neuron_core", "aws.amazon.com/neuroncore"),
        ("NEURON_DEVICES", "aws.amazon.com/neurondevice"),
    ],
)
def test_a_misspelt_resource_name_gets_a_suggestion(written: str, right: str) -> None:
    assert meant(written) == right


@pytest.mark.parametrize(
    "name",
    [
        *names.LEGACY_RESOURCES,
        *("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "nvidia.com/gpu", "vpc.amazonaws.com/efa", ""),
        *("aws.amazon.com/neuron-trn2", "example.com/neuron", "deviceclass.resource.kubernetes.io/neuron.aws.com"),
        "aws.amazon.com/neurons" + "s" * 200,
    ],
)
def test_other_resource_names_get_no_suggestion(name: str) -> None:
    assert meant(name) == ""
