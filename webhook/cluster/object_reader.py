"""Reading one object of a list or watch at a time, whatever a tenant has put into it."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from neuron import api_objects
from webhook.cluster.api import ApiServerError, Resource, UnreadableError, loaded
from webhook.cluster.holdings import Key

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_NAMED: Final = 256
"""Objects that the log names as unreadable; a tenant may make thousands."""


@dataclasses.dataclass(slots=True)
class Counters:
    """What happened since the start; metrics read them."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    expired: int = 0
    failures: int = 0
    unreadable: int = 0


class ObjectReader(Generic[T]):
    """Makes projections of objects.

    One object that cannot be read must not keep all others out of a cache, and a tenant decides what is in it: levels,
    length, numbers and letters that no parser takes.
    """

    def __init__(
        self,
        resource: Resource,
        project: Callable[[dict[str, Any]], T | None],
        counters: Counters,
        longest: int,
        unreadable: T | None,
    ) -> None:
        """Read objects of `resource`; see `Reflector` for the rest."""
        self._resource = resource
        self._project = project
        self._counters = counters
        self._longest = longest
        self._unreadable = unreadable
        self._named: set[Key] = set()

    def read(self, raw: memoryview, *, deleted: bool = False) -> tuple[Key, str, T | None]:
        """Key, resourceVersion and projection of an object; no projection of one that is deleted.

        Key and resourceVersion are empty where not even they can be read.
        """
        try:
            if raw.nbytes > self._longest:
                raise UnreadableError(f"it is longer than {self._longest} bytes")
            item = loaded(raw)
            key, version = key_of(item), item["metadata"].get("resourceVersion", "")
        except (ApiServerError, KeyError, TypeError, AttributeError) as error:
            who = api_objects.identity(bytes(raw[: api_objects.WINDOW]))
            key = who.namespace, who.name
            return key, who.version, None if deleted or not who.name else self._left_out(key, error)
        return key, version, None if deleted else self.project(item)

    def project(self, item: dict[str, Any]) -> T | None:
        """The projection of an object that was decoded."""
        try:
            return self._project(item)
        except Exception as error:  # noqa: BLE001 - see the class
            return self._left_out(key_of(item), error)

    def _left_out(self, key: Key, error: Exception) -> T | None:
        """What is kept of an object that cannot be read. It is named once, and without what is in it."""
        self._counters.unreadable += 1
        if key not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(key)
            why = str(error) if isinstance(error, UnreadableError) else type(error).__name__
            log.warning("cannot read %s %s: %s", self._resource, "/".join(filter(None, key)), why)
        return self._unreadable


def key_of(item: Mapping[str, Any]) -> Key:
    """Namespace and name of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
