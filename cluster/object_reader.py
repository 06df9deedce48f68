"""Reads one object of a list or watch at a time. An object that cannot be read does not affect the others."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from cluster.bounded_objects import Bounds, Key
from runtime import raw_objects
from runtime.api_errors import ApiAnswerError, ApiServerError
from runtime.api_server import Resource, loaded
from runtime.retries import Once
from runtime.watching import LONGEST_OBJECT, Counters

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Projection(Generic[T]):
    """What a cache keeps of each object.

    Attributes:
        project: returns a value that compares by content; None: the object is not kept.
        unreadable: is kept for an object that cannot be read; None: nothing is kept.
        longest: bytes of an object; a longer one counts as unreadable.
        bounds: how many bytes are kept in all; None: no bound.
    """

    project: Callable[[dict[str, object]], T | None]
    unreadable: T | None = None
    longest: int = LONGEST_OBJECT
    bounds: Bounds[T] | None = None


class ObjectReader(Generic[T]):
    """Makes projections of objects.

    Tenants choose the content of their objects: depth, length, numbers and characters that parsers refuse. One such
    object must not keep all others out of the cache.
    """

    def __init__(self, resource: Resource, projection: Projection[T], counters: Counters) -> None:
        self._resource = resource
        self._projection = projection
        self._counters = counters
        self._named: Once[Key] = Once()

    def read(self, raw: memoryview, *, deleted: bool = False) -> tuple[Key, str, T | None]:
        """Key, resourceVersion and projection of an object; no projection of a deleted object.

        Key and resourceVersion are empty if they cannot be read.
        """
        try:
            if raw.nbytes > self._projection.longest:
                raise ApiAnswerError(f"it is longer than {self._projection.longest} bytes")
            item = loaded(raw)
            key, version = key_of(item), item["metadata"].get("resourceVersion", "")
        except (ApiServerError, KeyError, TypeError, AttributeError) as error:
            identity = raw_objects.identity(bytes(raw[: raw_objects.WINDOW]))
            key = identity.namespace, identity.name
            return key, identity.version, None if deleted or not identity.name else self._left_out(key, error)
        return key, version, None if deleted else self.project(item)

    def project(self, item: dict[str, object]) -> T | None:
        """The projection of a decoded object."""
        try:
            return self._projection.project(item)
        except Exception as error:  # noqa: BLE001 - see the class
            return self._left_out(key_of(item), error)

    def _left_out(self, key: Key, error: Exception) -> T | None:
        """Count and log an object that cannot be read: its name, without its content."""
        self._counters.unreadable += 1
        if self._named.first(key):
            why = str(error) if isinstance(error, ApiAnswerError) else type(error).__name__
            log.warning("cannot read %s %s: %s", self._resource, "/".join(filter(None, key)), why)
        return self._projection.unreadable


def key_of(item: Mapping[str, Any]) -> Key:
    """Namespace and name of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
