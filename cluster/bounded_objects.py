"""How much is kept of a cluster: the content of a watch cache, bounded in bytes, and the table of bounds.

A tenant may store thousands of objects of 1.5 MB each. A cache keeps few bytes of each object, and bounds each
namespace, so that the objects of one tenant neither exhaust memory nor displace those of others.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, ValuesView
from typing import Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Key: TypeAlias = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""

ENTRY: Final = 512
"""Bytes of an entry without its projection."""

_WHOLE: Final = 0.75


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds(Generic[T]):
    """How much is kept of a collection.

    Attributes:
        total: bytes of all namespaces together.
        of_one: bytes of one namespace.
        weigh: approximate bytes of a projection.
        shorten: reduces a projection to the fact that the object exists; used when the whole does not fit.
    """

    total: int
    of_one: int
    weigh: Callable[[T], int]
    shorten: Callable[[T], T]


class Holdings(Generic[T]):
    """Projections by key.

    A key is kept as one text: 100,000 pairs take 5 MiB more.
    """

    def __init__(self, bounds: Bounds[T] | None = None) -> None:
        self._bounds = bounds
        self._objects: dict[str, T] = {}
        self._shares: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        return _text(key) in self._objects

    @property
    def weight(self) -> int:
        """Approximate bytes that are kept; 0 without bounds."""
        return self._total

    def get(self, key: Key) -> T | None:
        """The projection of an object."""
        return self._objects.get(_text(key))

    def keys(self) -> list[Key]:
        return list(map(_key, self._objects))

    def namespaces_of(self, name: str) -> list[str]:
        """Namespaces that have an object of this name."""
        end = _text(("", name))
        return [text[: -len(end)] for text in self._objects if text.endswith(end)]

    def items(self) -> list[tuple[Key, T]]:
        return [(_key(text), value) for text, value in self._objects.items()]

    def values(self) -> ValuesView[T]:
        return self._objects.values()

    def put(self, key: Key, value: T) -> T | None:
        """Keep a projection, shortened if the whole does not fit. Returns what is kept, or None."""
        self.remove(key)
        text = _text(key)
        if self._bounds is None:
            self._objects[text] = value
            return value
        # A quarter is reserved for shortened projections: existence of one object matters more than details of another.
        for form, part in ((value, _WHOLE), (self._bounds.shorten(value), 1.0)):
            weight = ENTRY + self._bounds.weigh(form)
            share = self._shares[key[0]] + weight
            if share <= self._bounds.of_one * part and self._total + weight <= self._bounds.total * part:
                self._objects[text] = form
                self._shares[key[0]] = share
                self._total += weight
                return form
        self._forget_share(key[0])
        return None

    def remove(self, key: Key) -> None:
        kept = self._objects.pop(_text(key), None)
        if kept is not None and self._bounds is not None:
            weight = ENTRY + self._bounds.weigh(kept)
            self._total -= weight
            self._shares[key[0]] -= weight
            self._forget_share(key[0])

    def _forget_share(self, namespace: str) -> None:
        if self._shares[namespace] <= 0:
            del self._shares[namespace]


def _text(key: Key) -> str:
    # Neither a namespace nor a name has a slash.
    return f"{key[0]}/{key[1]}"


def _key(text: str) -> Key:
    namespace, _, name = text.partition("/")
    return namespace, name


@dataclasses.dataclass(frozen=True, slots=True)
class StoreBounds:
    """What is kept of the objects of a cluster, in one table: bytes and numbers. docs/security.md lists them."""

    # --- ResourceClaimTemplates.
    template: int = 128 * 1024  # the requests of a longer one count as unknown
    templates: int = 64 * 1024 * 1024
    templates_of_one: int = 4 * 1024 * 1024  # namespace: some thousand typical templates need as much
    parts: int = 4096  # that templates share; beyond that the table begins again, and parts in use stay as they are
    part: int = 256  # characters of a text, and members of a tuple, that are looked up to be shared

    # --- Namespaces.
    namespace: int = 16 * 1024  # all that policies can read; of a longer one, labels and our annotations are kept
    namespaces: int = 32 * 1024 * 1024  # without what only policies read, it is enough for 65,536
    annotations: int = 64  # of ours
    labels: int = 1024
    value: int = 256  # characters of an annotation; no valid value is longer, and a shortened one stays invalid

    # --- Nodes. A kubelet chooses the labels of its own Node.
    types: int = 256  # observed instance types; EC2 has far fewer with Neuron devices
    node_labels: int = 64
    nodes: int = 256  # distinct nodes that are told apart; nodes of one group have equal labels


KEPT: Final = StoreBounds()
