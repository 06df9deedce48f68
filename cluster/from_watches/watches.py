"""A store that follows the API server: one cache for each collection that decisions read.

Replicas tell each other the instance types that they have seen (`Store.learn_types`, by their Leases), also a replica
that starts while a type has no Node. So all choose the same candidates, until the last replica that knows the type has
ended; pods that must not depend on this name an instance type (annotation, node selector or policy). Whether a pod is
converted does not depend on observations, but on `Store.supply`: what exists now.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from cluster.bounded_objects import Key
from cluster.collections import OTHERS, RESIZERS, SUPPLIES, TEMPLATES, KeptKind
from cluster.from_watches.reflector import Reflector
from cluster.kinds.claim_templates import TemplateFacts
from cluster.look_ups import LookUps
from cluster.store import CLAIM_TEMPLATE, Store
from runtime.api_server import ApiServer
from runtime.watching import Timing

T = TypeVar("T")


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
