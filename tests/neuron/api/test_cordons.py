"""The annotation of a Node that names its cordoned devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.api.taints import Cordon, cordon_annotation, read_cordon

READ = {
    "none": (None, Cordon()),
    "empty": ("", Cordon()),
    "node": ("*", Cordon(node=True)),
    "devices": ("neuron-device-3, neuron-device-1,", Cordon(devices=("neuron-device-1", "neuron-device-3"))),
    "both": ("neuron-device-3,*,neuron-device-3", Cordon(node=True, devices=("neuron-device-3",))),
}


@pytest.mark.parametrize("name", READ)
def test_a_cordon_annotation_is_read(name: str) -> None:
    text, cordon = READ[name]
    assert read_cordon(text) == cordon
    assert bool(cordon) is (name not in ("none", "empty"))


def test_reading_a_long_cordon_annotation_is_fast() -> None:
    assert len(read_cordon(",".join(f"d{number}" for number in range(100_000))).devices) == 256


def test_a_cordon_of_the_node_leaves_those_of_its_devices() -> None:
    one = Cordon().added("neuron-device-3")
    both = one.added("")
    assert cordon_annotation(both) == "*,neuron-device-3"
    assert both.removed("") == one
    assert both.removed("neuron-device-3") == Cordon(node=True)
    assert cordon_annotation(one.removed("neuron-device-3")) is None


@given(st.booleans(), st.frozensets(st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True), max_size=20))
def test_an_annotation_is_read_as_it_was_written(node: bool, devices: frozenset[str]) -> None:
    cordon = Cordon(node, tuple(sorted(devices)))
    assert read_cordon(cordon_annotation(cordon)) == cordon
