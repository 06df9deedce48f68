"""How the API server is asked for each kind of objects of a store, and what is kept of one object."""

import dataclasses
from typing import Any, Final, Generic, TypeVar

from cluster import resources
from cluster.kinds import claim_templates, namespaces
from cluster.kinds.claim_templates import project_template
from cluster.kinds.device_classes import UNREADABLE_CLASS, project_class
from cluster.kinds.namespaces import project_namespace_record
from cluster.kinds.node_pools import project as project_pool
from cluster.kinds.nodes import project_node
from cluster.kinds.resource_quotas import project_limit_range, project_quota
from cluster.kinds.resource_slices import project_slice
from cluster.object_reader import Projection
from cluster.store import (
    AUTOSCALER,
    CLAIM_TEMPLATE,
    DEVICE_CLASS,
    LIMIT_RANGE,
    NAMESPACE,
    NODE,
    POOLS,
    RESOURCE_QUOTA,
    RESOURCE_SLICE,
    StoredKind,
)
from neuron import names
from neuron.api.workloads import resized_in_place
from runtime.api_server import Collection, Resource

T = TypeVar("T")

OUR_SLICES: Final = Collection(resources.RESOURCE_SLICES, parameters={"fieldSelector": f"spec.driver={names.DRIVER}"})
POOL_RESOURCES: Final = {
    "NodePool": resources.NODE_POOLS,
    "EC2NodeClass": resources.NODE_CLASSES,
    "MachineDeployment": resources.NODE_GROUPS,
}
"""What describes the pools of autoscalers, by kind. A cluster need not have their CustomResourceDefinitions."""
OLDER: Final = {
    each: Resource(each.group, "v1beta1", each.plural) for each in (resources.NODE_POOLS, resources.NODE_CLASSES)
}
"""What is read where only an older version is served (Karpenter 0.32 to 0.37). The fields that are read are equal."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeptKind(Generic[T]):
    """A kind, where its objects are, and what is kept of them.

    Attributes:
        needed: whether a store without its objects is of no use.
        installed: whether the API server always serves the collection. If not, it is empty while it is not served.
        older: a version that is read where that of `collection` is not served.
    """

    kind: StoredKind[T]
    collection: Collection
    projection: Projection[T]
    needed: bool = True
    installed: bool = True
    older: Collection | None = None


TEMPLATES: Final = KeptKind(
    CLAIM_TEMPLATE,
    Collection(resources.RESOURCE_CLAIM_TEMPLATES),
    Projection(
        project_template,
        claim_templates.UNREADABLE_TEMPLATE,
        claim_templates.LONGEST_TEMPLATE,
        claim_templates.BOUNDS,
    ),
)
OTHERS: Final[tuple[KeptKind[Any], ...]] = (
    KeptKind(RESOURCE_SLICE, OUR_SLICES, Projection(project_slice)),
    KeptKind(DEVICE_CLASS, Collection(resources.DEVICE_CLASSES), Projection(project_class, UNREADABLE_CLASS)),
    KeptKind(
        NAMESPACE, Collection(resources.NAMESPACES), Projection(project_namespace_record, bounds=namespaces.BOUNDS)
    ),
    KeptKind(RESOURCE_QUOTA, Collection(resources.RESOURCE_QUOTAS), Projection(project_quota)),
    KeptKind(LIMIT_RANGE, Collection(resources.LIMIT_RANGES), Projection(project_limit_range)),
)
"""What every store of a cluster has, beside the templates."""
RESIZERS: Final = KeptKind(
    AUTOSCALER,
    Collection(resources.VERTICAL_POD_AUTOSCALERS),
    Projection(resized_in_place),
    needed=False,
    installed=False,
)
"""Most clusters have none of them, or not even their CustomResourceDefinition: such a collection costs one request in
five minutes. Only a warning depends on them."""
SUPPLIES: Final[tuple[KeptKind[Any], ...]] = (
    KeptKind(NODE, Collection(resources.NODES, metadata_only=True), Projection(project_node), needed=False),
    *(
        KeptKind(
            POOLS[kind],
            Collection(each),
            Projection(project_pool(kind)),
            needed=False,
            installed=False,
            older=Collection(OLDER[each]) if each in OLDER else None,
        )
        for kind, each in POOL_RESOURCES.items()
    ),
)
"""Nodes, and the pools of autoscalers."""
