"""Reads fields of JSON objects whose types are not checked: a value of another type counts as empty."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_SHOWN: Final = 60


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a JSON object; else an empty mapping."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """The JSON objects in a list; nothing if the value is not a list."""
    entries: Iterable[object] = value if isinstance(value, list) else ()
    return (entry for entry in entries if isinstance(entry, dict))


def shown(name: str) -> str:
    """A name for a message: cut, and on one line."""
    return ascii(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")
