"""Instance types by the labels of Nodes, from a watch that gets only their metadata.

A cluster that has only the device plugin publishes no ResourceSlices, and its nodes still say what they are.
"""

import dataclasses
import re
import sys
from collections.abc import Mapping
from typing import Final

from neuron import names
from neuron.api.nodes import Node, read_node
from neuron.hardware.instances import Observation
from runtime.api_server import Collection, Resource

NODES: Final = Resource("", "v1", "nodes")
NODE_METADATA: Final = Collection(NODES, metadata_only=True)

MOST_TYPES: Final = 256
"""Observed instance types. EC2 has far fewer with Neuron devices; a kubelet chooses the labels of its own Node."""

_NEURON_TYPE: Final = re.compile(rf"({re.escape(names.SAGEMAKER_PREFIX)})?(inf|trn)[0-9][a-z0-9.-]{{0,56}}")


def project_node(item: Mapping[str, object]) -> str | None:
    """`neuron_label` of a Node as the API server returns it."""
    return neuron_label(read_node(item))


def neuron_label(node: Node) -> str | None:
    """The instance-type label of a Node; None if it is no type with Neuron devices."""
    # Thousands of nodes have the same value: one copy is kept.
    return sys.intern(node.type_label) if _NEURON_TYPE.fullmatch(node.type_label) else None


def with_node(observations: Mapping[str, Observation], label: str) -> Mapping[str, Observation]:
    """The observations with the instance-type label of a Node; the same mapping if it has nothing new."""
    name = label.removeprefix(names.SAGEMAKER_PREFIX)
    known = observations.get(name, Observation(0))
    if label in known.labels or (name not in observations and len(observations) >= MOST_TYPES):
        return observations
    labels = tuple(sorted((*known.labels, label)))
    return {**observations, name: dataclasses.replace(known, labels=labels)}
