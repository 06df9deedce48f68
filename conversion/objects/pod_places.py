"""Pods that an object describes, and where their fields are in the object. Pure.

`find_pods` finds them by structure, for kinds that `kinds` does not list: a mapping with `containers`, or the
`resources` of a single container.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from checks.words import meant
from neuron import names

Path: TypeAlias = tuple[str | int, ...]
"""Steps into a document: names of members and indices of items."""

ANY: Final = "*"
"""A step of a pattern: each item or member."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SECTIONS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")


@dataclasses.dataclass(frozen=True, slots=True)
class PodPlace:
    """A pod that an object describes.

    Attributes:
        path: in the object: of the pod template, or of what takes its place.
        template: the pod template. In kinds without pod templates, one that is made of the fields of the object.
        fields: for a made template: field paths in it, and where the object has them. Empty: the template is at `path`.
    """

    path: Path
    template: dict[str, object]
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def is_template(self) -> bool:
        """Whether the object has a pod template at `path`."""
        return not self.fields

    def field_path(self, path: str) -> str:
        """Field path in the object for a field path in the template."""
        outer = path_text(self.path)
        if not self.fields:
            return f"{outer}.{path}" if outer and path else outer or path
        known = [each for each in self.fields if _is_below(path, each[0])]
        if not known:
            return outer
        inner, found = max(known, key=lambda each: len(each[0]))
        return (found + path.removeprefix(inner)).removeprefix(".")


def find_pods(data: object) -> Iterator[PodPlace]:
    """The pods of an object of any kind that name a legacy resource, or one that looks like it."""
    return _search((), data, None)


def values_at(value: object, pattern: Path) -> Iterator[tuple[Path, object]]:
    """All values that match a pattern, with their paths."""
    found: list[tuple[Path, object]] = [((), value)]
    for step in pattern:
        found = [((*path, name), child) for path, parent in found for name, child in _children(parent, step)]
    return iter(found)


def matches(path: Path, pattern: Path) -> bool:
    """Whether a path is one of a pattern."""
    return len(path) == len(pattern) and all(step in (ANY, at) for at, step in zip(path, pattern, strict=True))


def path_text(path: Sequence[str | int]) -> str:
    """A path as Kubernetes writes field paths: `spec.containers[0].resources`."""
    steps = (f".{step}" if _NAME.fullmatch(str(step)) else f"[{step}]" for step in path)
    return "".join(steps).removeprefix(".")


def _children(parent: object, step: str | int) -> list[tuple[str | int, object]]:
    match parent:
        case dict() if step == ANY:
            return list(parent.items())
        case dict() if step in parent:
            return [(step, parent[step])]
        case list() if step == ANY:
            return list(enumerate(parent))
        case list() if isinstance(step, int) and step < len(parent):
            return [(step, parent[step])]
        case _:
            return []


def _is_below(path: str, outer: str) -> bool:
    """Whether a field path is that of a field or of a part of it."""
    return path == outer or (path.startswith(outer) and path[len(outer)] in ".[")


def _search(path: Path, value: object, parent: Mapping[str, object] | None) -> Iterator[PodPlace]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict | list):
                yield from _search((*path, index), item, None)
    if not isinstance(value, dict):
        return
    is_spec = isinstance(value.get("containers"), list) and any(map(_is_container, value["containers"]))
    if is_spec and any(_asks(each.get("resources")) for section in _SECTIONS for each in _containers(value, section)):
        yield _spec_place(path, value, parent)
    for name, item in value.items():
        if is_spec and name in _SECTIONS:
            continue
        if name.startswith("resources") and _asks(item):
            yield resources_place((*path, name), str(value.get("name") or (path[-1] if path else "main")), item)
        elif isinstance(item, dict | list):
            yield from _search((*path, name), item, value)


def resources_place(path: Path, container: str, resources: object) -> PodPlace:
    """A pod with one container, of which the object has the `resources` only. `path`: their path."""
    fields = (("spec.containers[0].resources", path_text(path)),)
    return PodPlace(path, {"spec": {"containers": [{"name": container, "resources": resources}]}}, fields)


def _spec_place(path: Path, spec: dict[str, object], parent: Mapping[str, object] | None) -> PodPlace:
    if path and path[-1] == "spec" and parent is not None and len(path) > 1:
        metadata = parent.get("metadata")
        return PodPlace(path[:-1], {**({"metadata": metadata} if isinstance(metadata, dict) else {}), "spec": spec})
    return PodPlace(path, {"spec": spec}, (("spec", path_text(path)),))


def _is_container(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _containers(spec: Mapping[str, object], section: str) -> list[dict[str, object]]:
    found = spec.get(section)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _asks(resources: object) -> bool:
    """Whether `resources` name a legacy resource, or one that looks like it."""
    if not isinstance(resources, dict):
        return False
    amounts = [resources.get(field) for field in _AMOUNTS]
    return any(
        isinstance(name, str) and (name in names.LEGACY_RESOURCES or bool(meant(name)))
        for each in amounts
        if isinstance(each, dict)
        for name in each
    )


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join([f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts])
