"""What a watch cache keeps, within a number of bytes.

A tenant may store thousands of objects of 1.5 MB each. A cache keeps few bytes of each, and of one namespace no more
than its share, so that one tenant's objects neither end the process nor displace those of others.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, ItemsView, ValuesView
from typing import Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Key: TypeAlias = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""

ENTRY: Final = 512
"""Bytes that an entry takes besides what its projection holds."""

_WHOLE: Final = 0.75


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds(Generic[T]):
    """How much is kept of a collection.

    Attributes:
        total: bytes, of all namespaces together.
        of_one: bytes, of one namespace.
        weigh: bytes that a projection takes, about.
        shorten: what is kept of a projection where the whole is too much: that the object is there.
    """

    total: int
    of_one: int
    weigh: Callable[[T], int]
    shorten: Callable[[T], T]


class Holdings(Generic[T]):
    """Projections by key. Without bounds, everything is kept whole."""

    def __init__(self, bounds: Bounds[T] | None = None) -> None:
        self._bounds = bounds
        self._objects: dict[Key, T] = {}
        self._weights: dict[Key, int] = {}
        self._shares: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    @property
    def weight(self) -> int:
        """Bytes that are kept, about; 0 without bounds."""
        return self._total

    def get(self, key: Key) -> T | None:
        """What is kept of an object."""
        return self._objects.get(key)

    def keys(self) -> list[Key]:
        """Keys of what is kept now."""
        return list(self._objects)

    def items(self) -> ItemsView[Key, T]:
        """Everything, by key."""
        return self._objects.items()

    def values(self) -> ValuesView[T]:
        """All projections."""
        return self._objects.values()

    def put(self, key: Key, value: T) -> T | None:
        """Keep a projection, shortened where the whole is too much; None where nothing of it could be kept."""
        self.remove(key)
        if self._bounds is None:
            self._objects[key] = value
            return value
        # A quarter is kept for what is shortened: that an object is there is worth more than all of another one.
        for form, part in ((value, _WHOLE), (self._bounds.shorten(value), 1.0)):
            weight = ENTRY + self._bounds.weigh(form)
            share = self._shares[key[0]] + weight
            if share <= self._bounds.of_one * part and self._total + weight <= self._bounds.total * part:
                self._objects[key], self._weights[key] = form, weight
                self._shares[key[0]] = share
                self._total += weight
                return form
        self._forget_share(key[0])
        return None

    def remove(self, key: Key) -> None:
        """Keep nothing of an object."""
        self._objects.pop(key, None)
        weight = self._weights.pop(key, 0)
        if weight:
            self._total -= weight
            self._shares[key[0]] -= weight
            self._forget_share(key[0])

    def _forget_share(self, namespace: str) -> None:
        if self._shares[namespace] <= 0:
            del self._shares[namespace]
