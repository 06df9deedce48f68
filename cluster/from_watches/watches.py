"""A store that follows the API server: one cache for each collection that decisions read.

Each process has its own observations: a replica that starts while an instance type has no Node does not know the type
until there is one. Until then it may choose other candidates than older replicas. Its claims are valid too; pods that
must not depend on this name an instance type (annotation, node selector or policy). Whether a pod is converted does not
depend on observations, but on `Store.supply`: what exists now.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from cluster import resources
from cluster.bounded_objects import Key
from cluster.from_watches.look_ups import LookUps
from cluster.from_watches.object_reader import Projection
from cluster.from_watches.reflector import Reflector
from cluster.kinds import claim_templates, namespaces
from cluster.kinds.claim_templates import TemplateFacts, project_template
from cluster.kinds.device_classes import UNREADABLE_CLASS, project_class
from cluster.kinds.limit_ranges import project_limit_range
from cluster.kinds.namespaces import project_namespace_record
from cluster.kinds.node_pools import project as project_pool
from cluster.kinds.nodes import project_node
from cluster.kinds.resource_quotas import project_quota
from cluster.kinds.resource_slices import project_slice
from cluster.store import (
    CLAIM_TEMPLATE,
    DEVICE_CLASS,
    LIMIT_RANGE,
    NAMESPACE,
    NODE,
    POOLS,
    RESOURCE_QUOTA,
    RESOURCE_SLICE,
    Kind,
    Store,
)
from neuron import names
from runtime.api_server import ApiServer, Collection
from runtime.watching import Timing

T = TypeVar("T")

NODE_METADATA: Final = Collection(resources.NODES, metadata_only=True)
OUR_SLICES: Final = Collection(resources.RESOURCE_SLICES, parameters={"fieldSelector": f"spec.driver={names.DRIVER}"})
POOL_RESOURCES: Final = {
    "NodePool": resources.NODE_POOLS,
    "EC2NodeClass": resources.NODE_CLASSES,
    "MachineDeployment": resources.NODE_GROUPS,
}
"""What describes the pools of autoscalers, by kind. A cluster need not have their CustomResourceDefinitions."""


class Watches:
    """The caches of a cluster, and the store that they fill.

    Attributes:
        caches: the store is current while all of them run.
        templates: the ResourceClaimTemplates among them.
    """

    def __init__(
        self,
        server: ApiServer,
        timing: Timing | None = None,
        *,
        nodes: bool = True,
        seconds_left: Callable[[], float] = lambda: float("inf"),
    ) -> None:
        """Create the caches; they are filled when they run.

        Args:
            nodes: whether to watch Nodes, and the pools of autoscalers.
            seconds_left: seconds that the caller of the store has for an answer.
        """
        self._server = server
        self._timing = timing
        kept_templates = Projection(
            project_template,
            claim_templates.UNREADABLE_TEMPLATE,
            claim_templates.LONGEST_TEMPLATE,
            claim_templates.BOUNDS,
        )
        self.templates: Reflector[TemplateFacts] = Reflector(
            server, Collection(resources.RESOURCE_CLAIM_TEMPLATES), kept_templates, timing=timing
        )
        self.templates.on_synced(lambda: self.store.complete(CLAIM_TEMPLATE))
        look_ups = LookUps(server, self.templates.get, seconds_left)
        self.store = Store(templates=self.templates.get, look_up=look_ups.exist)
        self._supplies: tuple[Reflector[Any], ...] = ()
        kept_namespaces = Projection(project_namespace_record, bounds=namespaces.BOUNDS)
        self.caches: tuple[Reflector[Any], ...] = (
            self._cache(RESOURCE_SLICE, OUR_SLICES, Projection(project_slice)),
            self._cache(
                DEVICE_CLASS, Collection(resources.DEVICE_CLASSES), Projection(project_class, UNREADABLE_CLASS)
            ),
            self._cache(NAMESPACE, Collection(resources.NAMESPACES), kept_namespaces),
            self._cache(RESOURCE_QUOTA, Collection(resources.RESOURCE_QUOTAS), Projection(project_quota)),
            self._cache(LIMIT_RANGE, Collection(resources.LIMIT_RANGES), Projection(project_limit_range)),
            self.templates,
        )
        if nodes:
            self._supplies = (
                self._cache(NODE, NODE_METADATA, Projection(project_node), needed=False),
                *(
                    self._cache(
                        POOLS[kind], Collection(each), Projection(project_pool(kind)), needed=False, installed=False
                    )
                    for kind, each in POOL_RESOURCES.items()
                ),
            )
            self.caches = (*self.caches, *self._supplies)
            self.store.unlisted_pools(self._unlisted)

    def _cache(
        self,
        kind: Kind[T],
        collection: Collection,
        projection: Projection[T],
        *,
        needed: bool = True,
        installed: bool = True,
    ) -> Reflector[T]:
        cache: Reflector[T] = Reflector(
            self._server, collection, projection, timing=self._timing, needed=needed, installed=installed
        )

        def changed(key: Key, before: T | None, after: T | None) -> None:
            self.store.change(kind, key, before, after)

        cache.on_change(changed)
        cache.on_synced(lambda: self.store.complete(kind))
        return cache

    def _unlisted(self) -> str:
        """Why pools or Nodes were not seen, as a clause; empty if all were listed."""
        missing = [cache for cache in self._supplies if not cache.synced.is_set()]
        return next((cache.problem for cache in missing if cache.problem), "") or "".join(
            f"the list of {cache.resource} is not complete yet" for cache in missing[:1]
        )
