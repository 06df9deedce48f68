"""Checks the names of the resources that containers request, and where resources are written. Pure."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from checks.words import meant
from conversion.objects import pods
from conversion.objects.pod_places import path_text
from neuron import names
from neuron.api.fields import mapping
from neuron.findings import Finding, Suggestions, quoted, short, warning

_WORDS: Final = (b"neuron", b"aws", b"amazon", b"\\u")
_FIELDS: Final = ("requests", "limits")
_RESOURCES: Final = frozenset({*_FIELDS, "claims"})
_SHOWN: Final = 63
_MOST_NAMES: Final = 128
"""Resources of one pod that are compared: each comparison takes up to 0.1 ms."""
_KNOWN: Final = b"|".join(re.escape(name).encode() for name in ("cpu", "memory", *sorted(names.LEGACY_RESOURCES)))
_ONLY_KNOWN: Final = re.compile(
    rb'\{(?:"(?:limits|requests)":\{(?:"(?:%b)":"[^"\\]*",?)*+\},?'
    rb'|"claims":\[(?:\{(?:"(?:name|request)":"[^"\\]*",?)*+\},?)*+\],?)*+\}' % _KNOWN
).fullmatch
"""Matches the JSON of `resources` with no other names than those; a tenth of the cost of decoding it."""


def misspelt_resources(pod: pods.Pod, known: Collection[str] = ()) -> Iterator[Finding]:
    """NEU221 for names that look like a legacy resource and are none.

    Args:
        known: extended resources of DeviceClasses: an administrator can give them any name.
    """
    left, suggestions = _MOST_NAMES, Suggestions()
    for section, containers in (("initContainers", pod.init_containers), ("containers", pod.containers)):
        for index, container in enumerate(containers):
            raw = bytes(container.resources)
            if left <= 0 or _ONLY_KNOWN(raw) or not any(word in raw.lower() for word in _WORDS):
                continue
            path = f"spec.{section}[{index}]"
            resources = container.decode_resources(path) or {}
            yield from _misspelt_fields(container.name, f"{path}.resources", resources, suggestions)
            where = {name: field for field in _FIELDS for name in resources.get(field) or ()}
            for name in list(where)[:left]:
                left -= 1
                close = "" if name in known else meant(name)
                if close:
                    yield _misspelt(container.name, f"{path}.resources.{where[name]}[{name}]", name, close)


def _misspelt_fields(
    container: str, path: str, resources: Mapping[str, object], suggestions: Suggestions
) -> Iterator[Finding]:
    """NEU222 for fields such as `limit`, which Kubernetes does not know: kinds of others keep them."""
    for field in resources:
        close = "" if field in _RESOURCES else suggestions.closest_word(field, _FIELDS)
        if close:
            message = (
                f"container {container[:_SHOWN]} has resources.{short(field)}, which is no field. Did you mean {close}?"
            )
            yield warning(
                "NEU222", f"{path}.{short(field)}", message, "Correct the field: it is ignored.", short(field)
            )


def _misspelt(container: str, path: str, name: str, close: str) -> Finding:
    message = (
        f"container {container[:_SHOWN]} asks for {quoted(name)}, which no Neuron device plugin offers."
        f" Did you mean '{close}'?"
    )
    return warning("NEU221", path, message, "Correct the name: the pod would stay Pending, without devices.", name)


_SECTIONS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")
_LEGACY: Final = frozenset(names.LEGACY_RESOURCES)
_MOST_CONTAINERS: Final = 64
_HOLDERS: Final = frozenset({"limit", "limits", "request", "requests", "resource", "resources"})
"""Fields that somebody wrote to ask for resources, in lower case."""
_DEEPEST: Final = 4


def misplaced_resources(template: Mapping[str, object]) -> Iterator[Finding]:
    """NEU129. `template`: a pod, or a pod template, with values of any type."""
    spec = mapping(template.get("spec"))
    yield from _beside((), template, ("spec", "metadata", "status"))
    whole = mapping(spec.get("resources"))
    for field in _AMOUNTS:
        for resource in _legacy(whole.get(field)):
            where = path_text(("spec", "resources", field))
            message = f"the pod as a whole asks for {resource}: Kubernetes takes only CPU and memory there."
            fix = "The API server refuses the pod. Put it under resources.limits of the container."
            yield Finding("NEU129", f"{where}[{resource}]", message, fix, resource)
    yield from _beside(("spec",), spec, (*_SECTIONS, "resources", "nodeSelector", "overhead"))
    for section in _SECTIONS:
        containers = spec.get(section)
        for index, each in enumerate(containers[:_MOST_CONTAINERS] if isinstance(containers, list) else ()):
            place, container = ("spec", section, index), mapping(each)
            yield from _beside(place, container, ("resources",))
            resources = mapping(container.get("resources"))
            for resource in _legacy(resources):
                yield _unread((*place, "resources"), resource, resource)
            yield from _beside((*place, "resources"), resources, _AMOUNTS)
    others = spec.get("ephemeralContainers")
    for index, each in enumerate(others[:_MOST_CONTAINERS] if isinstance(others, list) else ()):
        if resource := _asked(mapping(each), _DEEPEST):
            where = path_text(("spec", "ephemeralContainers", index))
            message = f"an ephemeral container asks for {resource}: Kubernetes takes no resources there."
            fix = "The API server refuses it. Put it under resources.limits of a container."
            yield Finding("NEU129", where, message, fix, resource)


def misplaced_around(data: Mapping[str, object], path: Sequence[str | int]) -> Iterator[Finding]:
    """NEU129 for resources around a pod template, as `spec.resources` of a Deployment. `path`: of the pod template."""
    owner: object = data
    for depth, step in enumerate(path):
        for field, value in mapping(owner).items():
            resource = _asked({field: value}, 2) if field.lower() in _HOLDERS else ""
            if resource:
                yield _unread(path[:depth], field, resource)
        owner = mapping(owner).get(step) if isinstance(step, str) else None


def _beside(path: Sequence[str | int], owner: Mapping[str, object], known: Sequence[str]) -> Iterator[Finding]:
    """Fields of a mapping, other than the known ones, that name a legacy resource."""
    for field, value in owner.items():
        if field in known or not (amounts := mapping(value)):
            continue
        inner = [amounts, *map(mapping, amounts.values())]
        resource = next((found for each in inner for found in _legacy(each)), "") or _asked(amounts, _DEEPEST)
        if resource:
            yield _unread(path, field, resource)


def _asked(value: Mapping[str, object], depth: int) -> str:
    """A legacy resource that stands in a field for resources, at most so many mappings deep; empty if there is none."""
    for field, inner in value.items():
        below = mapping(inner)
        if str(field).lower() in _HOLDERS and (found := next(_legacy(below), "")):
            return found
        if depth > 1 and below and (found := _asked(below, depth - 1)):
            return found
    return ""


def _legacy(amounts: object) -> Iterator[str]:
    return (each for each in mapping(amounts) if each in _LEGACY)


def _unread(path: Sequence[str | int], field: object, resource: str) -> Finding:
    where = path_text(path) or "the object"
    held = "" if field == resource else f" with {resource}"
    message = f"{where} has {quoted(field)}{held}, which is no field there: the pod gets no device."
    fix = "kubectl refuses the object, or the field is dropped. Put it under resources.limits of the container."
    return Finding("NEU129", path_text((*path, str(field))), message, fix, resource)
