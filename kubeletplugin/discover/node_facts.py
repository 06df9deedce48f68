"""What the Node object and the hardware say of the node, and its type by the instance catalogue in force.

The catalogue is the built-in one, or that of a folder of policy files, which is followed. Only this module reads policy
files, and only if a folder is given: the models of policies need time and memory.
"""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kubeletplugin.discover.sysfs import NodeHardware
from neuron.api.nodes import Node
from neuron.hardware.instances import Catalogue, InstanceType, Topology

LABEL_NETWORK_NODE: Final = "topology.k8s.aws/network-node-layer-{}"

LABEL_CAPACITY_BLOCK: Final = "topology.k8s.aws/capacity-block-id"

NETWORK_LAYERS: Final = (1, 2, 3)


_PROBLEMS_LOGGED: Final = 20

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts from the Node object.

    Attributes:
        name: of the node, and so of the pool.
        uid: of the Node object, which owns the slices.
        instance_type: from the well-known label, for nodes whose DMI does not have it; None without the label.
        network_nodes: EC2 network node by layer, from labels.
        capacity_block: EC2 capacity block, from a label.
        kubelet: version of the kubelet; empty if the Node does not say.
        runtime: name and version of the container runtime; empty if the Node does not say.
    """

    name: str
    uid: str
    instance_type: str | None = None
    network_nodes: Mapping[int, str] = dataclasses.field(default_factory=dict)
    capacity_block: str | None = None
    kubelet: str = ""
    runtime: str = ""


def node_facts(node: Node) -> NodeFacts:
    """The facts from a Node object."""
    layers = {layer: node.labels.get(LABEL_NETWORK_NODE.format(layer)) for layer in NETWORK_LAYERS}
    return NodeFacts(
        name=node.name,
        uid=node.uid,
        instance_type=node.instance_type or None,
        network_nodes={layer: value for layer, value in layers.items() if value},
        capacity_block=node.labels.get(LABEL_CAPACITY_BLOCK),
        kubelet=node.kubelet,
        runtime=node.runtime,
    )


def instance_type(hardware: NodeHardware, facts: NodeFacts | None, catalogue: Catalogue) -> InstanceType | None:
    """The node's instance type. For a type that the catalogue does not have, only discovered facts are set.

    Returns:
        None if neither DMI nor the node's label names a type.
    """
    name = hardware.instance_type or (facts.instance_type if facts else None)
    if name is None:
        return None
    known = catalogue.get(name)
    if known is not None:
        return known
    topology = Topology.SINGLE if len(hardware.devices) == 1 else Topology.SWITCH
    return InstanceType(name, name.partition(".")[0], None, None, (), 1, None, topology)


class Catalogues:
    """Reads the InstanceTypeCatalogs of a folder, again after each change."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder, the catalogue is always the built-in one."""
        self._folder = folder
        self._current = Catalogue()
        self._look: object = None
        self.problem = ""

    def current(self) -> Catalogue:
        """The catalogue of the files as they are now.

        If they have a problem, it is logged once, and the catalogue stays as it was.
        """
        if self._folder is None:
            return self._current
        from policies.files import folders, reading

        look = folders.fingerprint(self._folder)
        if look == self._look:
            return self._current
        self._look = look
        try:
            self._current = reading.read_catalogue(folders.read_folder(self._folder))
        except folders.PolicyError as error:
            shown = [str(problem) for problem in error.problems[:_PROBLEMS_LOGGED]]
            extra = {"folder": str(self._folder), "problems": shown, "number": len(error.problems)}
            _log.error("instance types not read: the catalogue in force stays", extra=extra)
            self.problem = "; ".join(shown)
        else:
            self.problem = ""
            _log.info("instance types read", extra={"folder": str(self._folder), "types": len(self._current.names())})
        return self._current
