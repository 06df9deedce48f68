"""Minimal JSON patches (RFC 6902) on an object exactly as it was sent.

No list is rebuilt from decoded fields, so unknown fields of any API version survive.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import orjson

from conversion.objects.nesting import key_of
from conversion.objects.pod_places import pointer
from conversion.patches.decision import Operation

MOST_BYTES: Final = 44 * 1024
"""Largest size of a patch as JSON. In base64 it has 59 KiB, and an answer has at most 64 KiB."""


def size_of(value: object) -> int:
    """Bytes of JSON-like data as JSON."""
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer of more than 64 bits, or a single surrogate
        return len(key_of(value).encode(errors="surrogatepass"))


def add(path: str, value: object) -> Operation:
    """Add a member, or insert an item."""
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Remove a member or an item."""
    return {"op": "remove", "path": path}


def replace(path: str, value: object) -> Operation:
    """Replace a member or an item."""
    return {"op": "replace", "path": path, "value": value}


def set_value(path: str, current: object, value: object) -> Operation:
    """Set a member that may be absent."""
    return add(path, value) if current is None else replace(path, value)


def append(path: str, current: Sequence[object] | None, values: Sequence[object]) -> list[Operation]:
    """Append to a list that may be absent."""
    if not values:
        return []
    if current is None:
        return [add(path, list(values))]
    return [add(f"{path}/-", value) for value in values]


def set_members(path: str, current: Mapping[str, object] | None, members: Mapping[str, object]) -> list[Operation]:
    """Set members of an object that may be absent. Members that have the value already need no operation."""
    if current is None:
        return [add(path, dict(members))] if members else []
    return [add(path + pointer(key), value) for key, value in members.items() if current.get(key) != value]


def remove_members(path: str, current: Mapping[str, object] | None, keys: Iterable[str]) -> list[Operation]:
    """Remove members that exist. An object that would become empty is removed."""
    present = [key for key in keys if key in (current or {})]
    if not present:
        return []
    if len(present) == len(current or {}):
        return [remove(path)]
    return [remove(path + pointer(key)) for key in present]
