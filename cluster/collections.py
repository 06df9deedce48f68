"""How the API server is asked for each kind of objects of a store, and the caches of a store that follows it.

Replicas tell each other the instance types that they have seen (`Store.learn_types`, by their Leases), also a replica
that starts while a type has no Node. So all choose the same candidates, until the last replica that knows the type has
ended; pods that must not depend on this name an instance type (annotation, node selector or policy). Whether a pod is
converted does not depend on observations, but on `Store.supply`: what exists now.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from cluster import resources
from cluster.bounded_objects import KEPT, Key
from cluster.kinds.claim_templates import TemplateFacts
from cluster.look_ups import LookUps
from cluster.reflector import Projection, Reflector
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
    Store,
    StoredKind,
)
from neuron import names
from runtime.api_server import ApiServer, Collection, Resource
from runtime.watching import LONGEST_OBJECT, Timing

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
    """A kind, and where its objects are.

    Attributes:
        needed: whether a store without its objects is of no use.
        installed: whether the API server always serves the collection. If not, it is empty while it is not served.
        older: a version that is read where that of `collection` is not served.
        longest: bytes of an object; a longer one counts as unreadable.
    """

    kind: StoredKind[T]
    collection: Collection
    needed: bool = True
    installed: bool = True
    older: Collection | None = None
    longest: int = LONGEST_OBJECT

    @property
    def projection(self) -> Projection[T]:
        """What a cache keeps of each object."""
        return Projection(self.kind.project, self.kind.unreadable, self.longest, self.kind.bounds)


TEMPLATES: Final = KeptKind(CLAIM_TEMPLATE, Collection(resources.RESOURCE_CLAIM_TEMPLATES), longest=KEPT.template)
OTHERS: Final[tuple[KeptKind[Any], ...]] = (
    KeptKind(RESOURCE_SLICE, OUR_SLICES),
    KeptKind(DEVICE_CLASS, Collection(resources.DEVICE_CLASSES)),
    KeptKind(NAMESPACE, Collection(resources.NAMESPACES)),
    KeptKind(RESOURCE_QUOTA, Collection(resources.RESOURCE_QUOTAS)),
    KeptKind(LIMIT_RANGE, Collection(resources.LIMIT_RANGES)),
)
"""What every store of a cluster has, beside the templates."""
RESIZERS: Final = KeptKind(AUTOSCALER, Collection(resources.VERTICAL_POD_AUTOSCALERS), needed=False, installed=False)
"""Most clusters have none of them, or not even their CustomResourceDefinition: such a collection costs one request in
five minutes. Only a warning depends on them."""
SUPPLIES: Final[tuple[KeptKind[Any], ...]] = (
    KeptKind(NODE, Collection(resources.NODES, metadata_only=True), needed=False),
    *(
        KeptKind(
            POOLS[kind],
            Collection(each),
            needed=False,
            installed=False,
            older=Collection(OLDER[each]) if each in OLDER else None,
        )
        for kind, each in POOL_RESOURCES.items()
    ),
)
"""Nodes, and the pools of autoscalers."""


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
        self.templates: Reflector[TemplateFacts] = self._reflector(TEMPLATES)
        self.templates.on_synced(lambda: self.store.complete(CLAIM_TEMPLATE))
        look_ups = LookUps(server, seconds_left)
        self.store = Store(templates=self.templates.get, look_up=look_ups.exist)
        self._supplies: tuple[Reflector[Any], ...] = tuple(map(self._cache, SUPPLIES)) if nodes else ()
        self.caches: tuple[Reflector[Any], ...] = (
            *map(self._cache, (*OTHERS, RESIZERS)),
            self.templates,
            *self._supplies,
        )
        self.store.unlisted_pools(self._unlisted)

    def _reflector(self, kept: KeptKind[T]) -> Reflector[T]:
        return Reflector(
            self._server,
            kept.collection,
            kept.projection,
            timing=self._timing,
            needed=kept.needed,
            installed=kept.installed,
            older=kept.older,
        )

    def _cache(self, kept: KeptKind[T]) -> Reflector[T]:
        cache = self._reflector(kept)

        def changed(key: Key, before: T | None, after: T | None) -> None:
            self.store.change(kept.kind, key, before, after)

        cache.on_change(changed)
        cache.on_synced(lambda: self.store.complete(kept.kind))
        return cache

    def _unlisted(self) -> str:
        """Why pools or Nodes were not seen, as a clause; empty if all were listed."""
        missing = [cache for cache in self._supplies if not cache.synced.is_set()]
        return next((cache.problem for cache in missing if cache.problem), "") or "".join(
            f"the list of {cache.resource} is not complete yet" for cache in missing[:1]
        )
