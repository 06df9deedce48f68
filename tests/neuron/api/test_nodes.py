"""Nodes as one type, and the part that a list of metadata has."""

from typing import Any

import pytest

from neuron import names
from neuron.api.fields import WrongFormError
from neuron.api.nodes import UNSCHEDULABLE, Condition, Node, read_node
from neuron.api.taints import Taint


def body(**more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, **more}


def test_metadata_alone_is_enough() -> None:
    assert read_node(body()) == Node("a")
    labels = {names.LABEL_INSTANCE_TYPE: "ml.trn1.32xlarge"}
    found = read_node({"metadata": {"name": "a", "labels": labels, "annotations": None}, "spec": None})
    assert (found.type_label, found.instance_type, found.annotations) == ("ml.trn1.32xlarge", "trn1.32xlarge", {})


def test_what_commands_read() -> None:
    status = {
        "allocatable": {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "0", "cpu": "192"},
        "conditions": [{"type": "Ready", "status": "Unknown"}, {"type": "NeuronHealth", "status": "True"}],
        "nodeInfo": {"kubeletVersion": "v1.36.2"},
        "images": [{}],
    }
    found = read_node(
        body(spec={"unschedulable": True, "taints": [{"key": "k", "effect": "NoExecute"}]}, status=status)
    )
    assert found.taints == (Taint("k", "", "NoExecute"), Taint(UNSCHEDULABLE))
    assert (found.cordoned, found.ready, found.kubelet) == (True, False, "v1.36.2")
    assert (found.legacy, found.legacy_devices, found.offered("absent")) == ({"aws.amazon.com/neuron": 16}, 16, 0)
    assert found.reported_fault == Condition("NeuronHealth", "True")


def test_another_form_is_refused_with_its_path() -> None:
    with pytest.raises(WrongFormError, match=r"Expected `str`, got `int` - at `\$\.metadata\.labels\[\.\.\.\]`"):
        read_node({"metadata": {"name": "a", "labels": {"a": 1}}})
