"""Equal parts of cached objects are kept once: texts, tuples, sets and records.

A cluster has many objects that differ in little: of 100,000 templates, most field paths and classes are equal.
"""

import dataclasses
import functools
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

T = TypeVar("T")

MOST: Final = 4096
"""Parts that are kept to be shared. Beyond that the table begins again; parts that are in use stay as they are."""
LONGEST: Final = 256
"""Characters of a text and members of a tuple that are looked up."""


class SharedParts:
    """A table of parts. For one thread. A field of a record has values of one type, so equal records are the same."""

    def __init__(self, most: int = MOST) -> None:
        """Keep at most `most` parts."""
        self._most = most
        self._parts: dict[object, object] = {}

    def __len__(self) -> int:
        """Number of parts."""
        return len(self._parts)

    def of(self, value: T) -> T:
        """An equal value, whose parts are shared with those of earlier values. The fields of its records are set.

        Args:
            value: a frozen dataclass or Struct that no other thread has.
        """
        shared: T = self._inside(value)
        return shared

    def _inside(self, value: object) -> Any:
        """The value, with shared parts."""
        if isinstance(value, tuple | frozenset):
            return type(value)(map(self._part, value)) if len(value) <= LONGEST else value
        kind: Any = type(value)
        assign: Any = force_setattr if issubclass(kind, Struct) else object.__setattr__
        for name in _fields(kind):
            part = getattr(value, name)
            kept = self._part(part)
            if kept is not part:
                assign(value, name, kept)
        return value

    def _part(self, value: Any) -> Any:
        """The part that stands for all equal ones."""
        kind: object = type(value)
        if kind is str:
            if len(value) > LONGEST:
                return value
        elif kind is tuple or kind is frozenset or _fields(kind):
            value = self._inside(value)
        else:
            return value
        key = (kind, value)
        try:
            kept = self._parts.get(key)
        except TypeError:  # it contains parsed JSON, which has no hash
            return value
        if kept is None:
            if len(self._parts) >= self._most:
                self._parts.clear()
            kept = self._parts[key] = value
        return kept


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass or Struct; empty for another type."""
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
