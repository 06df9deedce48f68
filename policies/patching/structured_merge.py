"""Merges an apply configuration into an object by the schema of its kind, as the API server does.

Maps and objects are merged key by key, `map` lists by their keys, `set` lists by value. Atomic values cannot be set: an
author who means one field would remove the others.
Source: sigs.k8s.io/structured-merge-diff (typed/merge.go, typed/validate.go) and
k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch/smd.go.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from conversion.objects.pod_places import pointer
from neuron.findings import did_you_mean
from policies.patching.json_patch import MISSING

_KINDS: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = {
    "s": ("text", (str,)),
    "i": ("a number", (int, float)),
    "d": ("a number", (int, float)),
    "b": ("true or false", (bool,)),
}


@dataclasses.dataclass(slots=True, eq=False)
class Shape:
    """The schema of a value. Not frozen: a type may contain itself.

    Attributes:
        name: of the type, for messages.
        scalar: `s`, `i`, `d` or `b` for a type of scalars, `x` for any scalar; empty: it is none.
        items: of a list.
        keys: of the items of a `map` list.
        is_set: whether it is a `set` list. A list that is neither is atomic.
        fields: of an object with known fields.
        values: of a map, or of the fields of an object that are not known; None: there are no others.
        atomic: whether the map or object as a whole is one value.
        defaults: of keys of the items of a list.
    """

    name: str = ""
    scalar: str = ""
    items: "Shape | None" = None
    keys: tuple[str, ...] = ()
    is_set: bool = False
    fields: Mapping[str, "Shape"] = dataclasses.field(default_factory=dict)
    values: "Shape | None" = None
    atomic: bool = False
    defaults: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def is_map(self) -> bool:
        return self.values is not None or bool(self.fields) or not (self.scalar or self.items)

    def child(self, key: str) -> "Shape | None":
        """The schema of a field; None if there is no such field."""
        return self.fields.get(key) or self.values


def deduced() -> Shape:
    """The schema of values without one: their form decides, and lists are atomic."""
    shape = Shape("any", "x")
    shape.items = shape.values = shape
    return shape


DEDUCED: Final = deduced()


class MergeError(Exception):
    """An apply configuration does not fit the schema. The message has the path, the problem and the fix."""


def merged(shape: Shape, live: Any, patch: Any) -> Any:
    """The object with an apply configuration merged into it; neither is changed.

    Raises:
        MergeError: the configuration has unknown fields, wrong types, atomic values, or duplicate items.
    """
    wrong = next(misfits(shape, patch), None)
    if wrong is not None:
        raise MergeError(wrong)
    atomics = list(_atomics(shape, patch, ()))
    if atomics:
        raise MergeError(
            f"{', '.join(map(_path, atomics))} is atomic, and an apply configuration cannot change it, because it would"
            " replace all of it: use a JSONPatch"
        )
    found = _merge(shape, live, patch)
    return {} if found is MISSING else found


# --- validation -----------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]


def misfits(shape: Shape, value: Any, place: Place = (), *, lists: bool = True) -> Iterator[str]:
    """What does not fit the schema; `lists`: whether null, duplicate items and missing keys of lists count too."""
    if value is None:
        if lists:
            yield f"{_path(place)}: null cannot be merged: leave the field out"
        return
    if isinstance(value, dict) and shape.is_map:
        for key, each in value.items():
            child = shape.child(key)
            if child is None:
                what = f"{shape.name} has no field '{key}'" if shape.name else f"there is no field '{key}'"
                yield f"{_path((*place, key))}: {what}.{did_you_mean(key, shape.fields)}".rstrip(".")
            else:
                yield from misfits(child, each, (*place, key), lists=lists)
    elif isinstance(value, list) and shape.items is not None:
        if lists:
            yield from _duplicates(shape, value, place)
        for at, each in enumerate(value):
            yield from misfits(shape.items, each, (*place, at), lists=lists)
    elif isinstance(value, dict | list) or not shape.scalar:
        wanted = "a list" if shape.items is not None else _KINDS.get(shape.scalar, ("an object",))[0]
        yield f"{_path(place)}: this must be {wanted}, and is {_named(value)}"
    elif shape.scalar in _KINDS:
        words, types = _KINDS[shape.scalar]
        fits = isinstance(value, types) and (not isinstance(value, bool) or bool in types)
        if not fits:
            yield f"{_path(place)}: this must be {words}, and is {_named(value)}"


def _named(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "true or false", str: "text"}
    return names.get(type(value), "a number")


def _duplicates(shape: Shape, items: Sequence[Any], place: Place) -> Iterator[str]:
    if not shape.keys and not shape.is_set:
        return
    seen: list[Any] = []
    for at, item in enumerate(items):
        identity = _identity(shape, item)
        if identity is None:
            wanted = f"needs {' or '.join(shape.keys)}" if shape.keys else "must be a plain value"
            yield f"{_path((*place, at))}: an item of this list {wanted}"
        elif identity in seen:
            yield f"{_path((*place, at))}: the list has this item twice"
        seen.append(identity)


def _identity(shape: Shape, item: Any) -> Any:
    """What tells an item of a `map` or `set` list from others, hashable; None if it has nothing."""
    if not shape.keys:
        return None if isinstance(item, dict | list) or item is None else (type(item), item)
    if not isinstance(item, dict):
        return None
    defaults = shape.items.defaults if shape.items is not None else {}
    found = [(key, item.get(key, defaults.get(key, MISSING))) for key in shape.keys]
    known = tuple((key, repr(value)) for key, value in found if value is not MISSING)
    return known or None


def _atomics(shape: Shape, value: Any, place: Place) -> Iterator[Place]:
    """Atomic lists, maps and objects in an apply configuration."""
    if isinstance(value, dict) and shape.is_map:
        if shape.atomic:
            yield place
        for key, each in value.items():
            if key in shape.fields:
                yield from _atomics(shape.fields[key], each, (*place, key))
    elif isinstance(value, list) and shape.items is not None:
        if not shape.keys and not shape.is_set:
            yield place
        for at, each in enumerate(value):
            yield from _atomics(shape.items, each, (*place, at))


def _path(place: Place) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place) or "the object"


def of_pointer(shape: Shape, keys: Sequence[str]) -> Shape | None:
    """The schema of the value at a JSON pointer; None if a field on the way is not known."""
    found: Shape | None = shape
    for key in keys:
        if found is None:
            return None
        found = found.items if found.items is not None and not found.is_map else found.child(key)
    return found


def unknown_at(shape: Shape, keys: Sequence[str]) -> str:
    """Why there is no such path in objects of this schema; empty if there is."""
    for number, key in enumerate(keys):
        parent = of_pointer(shape, keys[:number])
        if parent is None:
            return ""
        if parent.is_map and parent.child(key) is None and parent.scalar != "x":
            name = parent.name or "the object"
            return f"{pointer(*keys[: number + 1])}: {name} has no field '{key}'.{did_you_mean(key, parent.fields)}"
    return ""


# --- merging --------------------------------------------------------------------------------------------------


def _merge(shape: Shape | None, live: Any, patch: Any) -> Any:
    """The merged value; `MISSING` if nothing is left. One of the two may be `MISSING`."""
    if patch is MISSING:
        return live
    shape = shape or DEDUCED
    if isinstance(patch, dict) or (patch is None and isinstance(live, dict)):
        return _merge_maps(shape, live, patch)
    if isinstance(patch, list) or (patch is None and isinstance(live, list)):
        return _merge_lists(shape, live, patch)
    return patch


def _merge_maps(shape: Shape, live: Any, patch: Any) -> Any:
    left, right = (each if isinstance(each, dict) else {} for each in (live, patch))
    if shape.atomic or (not left and not right):
        return patch
    made: dict[str, Any] = {}
    for key in (*left, *(each for each in right if each not in left)):
        value = _merge(shape.child(key), left.get(key, MISSING), right.get(key, MISSING))
        if value is not MISSING:
            made[key] = value
    return made or MISSING


def _merge_lists(shape: Shape, live: Any, patch: Any) -> Any:
    left, right = (each if isinstance(each, list) else [] for each in (live, patch))
    if not (shape.keys or shape.is_set) or (not left and not right):
        return patch
    before, after = ([_identity(shape, item) for item in items] for items in (left, right))
    own: dict[Any, Any] = {}
    for identity, item in zip(before, left, strict=True):
        # Duplicates are not merged with the new item.
        own[identity] = None if identity in own else item
    new = dict(zip(after, right, strict=True))
    return _interleaved(shape, (left, before, own), (right, after, new))


def _interleaved(
    shape: Shape,
    live: tuple[list[Any], list[Any], Mapping[Any, Any]],
    patch: tuple[list[Any], list[Any], Mapping[Any, Any]],
) -> list[Any]:
    """The items of both lists: those of the patch in its order, others where they were (visitListItems)."""
    left, before, own = live
    right, after, new = patch
    shared = iter([identity for identity in after if identity in own])
    next_shared = next(shared, None)
    done: set[Any] = set()
    made: list[Any] = []
    here = there = 0

    def take(identity: Any) -> None:
        done.add(identity)
        made.append(_merge(shape.items, own.get(identity, MISSING), new[identity]))

    while here < len(left) or there < len(right):
        if here < len(left) and there < len(right):
            identity = before[here]
            if identity == after[there]:
                take(identity)
                here, there, next_shared = here + 1, there + 1, next(shared, None)
                continue
            if identity in new and next_shared is not None and next_shared != identity:
                here += 1
                continue
        if here < len(left):
            identity = before[here]
            if identity not in new:
                made.append(left[here])
                here += 1
                continue
            if identity in done:
                here += 1
        if there < len(right):
            identity = after[there]
            take(identity)
            there += 1
            if next_shared is not None and next_shared == identity:
                next_shared = next(shared, None)
    return made
