"""JSON patches (RFC 6902) on decoded JSON, as the API server applies them.

An object is never changed: the result shares what a patch leaves.
Source: gopkg.in/evanphx/json-patch.v4, with its defaults (negative indices are allowed).
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from conversion.objects.pod_places import pointer
from conversion.patches.decision import Operation, add, remove, replace, size_of

MISSING: Final = object()
"""Stands for a value that is not there."""
MOST_COPIED: Final = 1024 * 1024
"""Bytes of JSON that the copy operations of one patch copy together."""
_INDEX: Final = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


class PatchError(Exception):
    """A patch cannot be applied. The message is one clause with the path."""


class MisfitError(PatchError):
    """The object after a patch is none of its kind. The API server then refuses the request, whatever a policy says."""


class PatchTestFailedError(PatchError):
    """A `test` operation does not hold: the patch must not be applied, and this is no error."""


@dataclasses.dataclass(frozen=True, slots=True)
class PatchOperation:
    """One operation; `value` is `MISSING` if it has none, `source` is its `from`."""

    op: str
    path: str
    source: str = ""
    value: Any = MISSING


def applied(data: Any, operations: Sequence[PatchOperation]) -> Any:
    """The object after a patch.

    Raises:
        PatchTestFailedError: a test does not hold.
        PatchError: an operation cannot be applied.
    """
    room = MOST_COPIED
    for each in operations:
        if each.op not in _OPERATIONS:
            raise PatchError(f"operation '{each.op}' is none of {', '.join(_OPERATIONS)}")
        if each.op == "copy":
            # Copies of copies double each time.
            copied = _at(data, each.source)
            room -= 0 if copied is MISSING else size_of(copied)
            if room < 0:
                raise PatchError(f"copy operations copy more than {MOST_COPIED} bytes")
        data = _after(data, each)
    return data


def patched(data: Any, patch: Iterable[Operation]) -> Any:
    """The object with the operations of a decision. Raises as `applied`."""
    return applied(data, [PatchOperation(each["op"], each["path"], value=each.get("value")) for each in patch])


def tokens(path: str) -> list[str]:
    """The keys of a JSON pointer; empty for the whole document.

    Raises:
        PatchError: it does not begin with a slash.
    """
    if not path:
        return []
    if not path.startswith("/"):
        raise PatchError(f"the path '{path}' must begin with '/'")
    return steps(path)


def steps(path: str) -> list[str]:
    """The keys behind the slashes of a JSON pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON: true is not 1, and 1.0 is 1."""
    if a is b:
        return True
    if isinstance(a, bool) or isinstance(b, bool):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b) if isinstance(a, str) or isinstance(b, str) else bool(a == b)


# --- operations -----------------------------------------------------------------------------------------------


_OPERATIONS: Final = ("add", "remove", "replace", "move", "copy", "test")


def _after(data: Any, operation: PatchOperation) -> Any:
    """The object after one of `_OPERATIONS`."""
    path, source = operation.path, operation.source
    value = None if operation.value is MISSING else operation.value
    match operation.op:
        case "remove":
            return _changed(data, path, _removed)
        case "replace":
            if not path:
                raise PatchError("the whole object cannot be replaced")
            return _changed(data, path, lambda parent, key: _replaced(parent, key, value))
        case "test":
            found = _at(data, path)
            if not same(None if found is MISSING else found, value):
                raise PatchTestFailedError(f"the value at '{path}' is another one")
            return data
        case "move":
            value = _at(data, source)
            data = _changed(data, source, _removed)
        case "copy":
            value = _at(data, source)
            value = None if value is MISSING else value
    return _changed(data, path, lambda parent, key: _added(parent, key, value))


# --- places ---------------------------------------------------------------------------------------------------


def _at(data: Any, path: str) -> Any:
    """The value at a path; `MISSING` if the last key is not in its object.

    Raises:
        PatchError: a parent is missing, or an index is wrong.
    """
    keys = tokens(path)
    for number, key in enumerate(keys):
        last = number == len(keys) - 1
        if isinstance(data, dict):
            data = data.get(key, MISSING)
        elif isinstance(data, list):
            data = data[_index(key, len(data), path)]
        else:
            data = MISSING
        if data is MISSING and not last:
            raise PatchError(f"there is nothing at '{pointer(*keys[: number + 1])}' of '{path}'")
    return data


def _changed(data: Any, path: str, change: Callable[[Any, str], Any]) -> Any:
    """The document with the parent of a path changed; only containers on the way are copied."""
    keys = tokens(path)
    if not keys:
        raise PatchError("the path must name a field, such as /metadata/labels")
    return _within(data, keys, 0, path, change)


def _within(data: Any, keys: Sequence[str], depth: int, path: str, change: Callable[[Any, str], Any]) -> Any:
    if not isinstance(data, dict | list):
        raise PatchError(f"there is nothing at '{pointer(*keys[:depth])}', the parent in the path '{path}'")
    key = keys[depth]
    if depth == len(keys) - 1:
        try:
            return change(data, key)
        except PatchError as error:
            raise PatchError(f"at '{path}': {error}") from None
    if isinstance(data, dict):
        if data.get(key) is None:
            raise PatchError(f"there is nothing at '{pointer(*keys[: depth + 1])}', the parent in the path '{path}'")
        return {**data, key: _within(data[key], keys, depth + 1, path, change)}
    at = _index(key, len(data), path)
    return [*data[:at], _within(data[at], keys, depth + 1, path, change), *data[at + 1 :]]


def _added(parent: Any, key: str, value: Any) -> Any:
    if value is MISSING:
        raise PatchError("there is no value to add")
    if isinstance(parent, dict):
        return {**parent, key: value}
    if key == "-":
        return [*parent, value]
    at = _index(key, len(parent) + 1, key)
    return [*parent[:at], value, *parent[at:]]


def _removed(parent: Any, key: str) -> Any:
    if isinstance(parent, dict):
        if key not in parent:
            raise PatchError(f"there is no key '{key}' to remove")
        return {name: value for name, value in parent.items() if name != key}
    at = _index(key, len(parent), key)
    return [*parent[:at], *parent[at + 1 :]]


def _replaced(parent: Any, key: str, value: Any) -> Any:
    if isinstance(parent, dict):
        # As in the API server's library, a missing key is added.
        return {**parent, key: value}
    at = _index(key, len(parent), key)
    return [*parent[:at], value, *parent[at + 1 :]]


def _index(key: str, size: int, path: str) -> int:
    if not _INDEX.fullmatch(key):
        raise PatchError(f"'{key}' in '{path}' is no index of a list")
    at = int(key)
    if not -size <= at < size:
        raise PatchError(f"the index {key} in '{path}' is outside of the list of {size}")
    return at + size if at < 0 else at


def difference(before: Any, after: Any) -> tuple[Operation, ...]:
    """The operations, in the order in which they have to be applied."""
    return tuple(_difference(before, after, ""))


def _difference(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from (remove(path + pointer(key)) for key in before if key not in after)
        for key, value in after.items():
            here = path + pointer(key)
            if key in before:
                yield from _difference(before[key], value, here)
            else:
                yield add(here, value)
    elif isinstance(before, list) and isinstance(after, list):
        front, back = _equal_ends(before, after)
        shared = min(len(before), len(after)) - back
        for at in range(front, shared):
            yield from _difference(before[at], after[at], f"{path}/{at}")
        # From the end, so that the indices before it stay right.
        yield from (remove(f"{path}/{at}") for at in reversed(range(shared, len(before) - back)))
        for at in range(shared, len(after) - back):
            yield add(f"{path}/{at}" if back else f"{path}/-", after[at])
    elif not same(before, after):
        yield replace(path, after)


def _equal_ends(before: list[Any], after: list[Any]) -> tuple[int, int]:
    """How many items at the beginning and at the end are the same."""
    least = min(len(before), len(after))
    front = next((at for at in range(least) if not same(before[at], after[at])), least)
    back = next((at for at in range(least - front) if not same(before[-1 - at], after[-1 - at])), least - front)
    return front, back
