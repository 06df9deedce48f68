"""Finds Neuron resources at places of a pod where Kubernetes reads none. Pure.

The API server refuses an amount for the pod as a whole: pod-level resources have CPU, memory and huge pages only
(`pkg/apis/core/validation.validatePodResources`). kubectl refuses a field that does not exist, such as `limits` beside
`resources`; where the API server drops it instead, the pod gets no device.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from conversion.objects.pod_places import path_text
from neuron import names
from neuron.api.fields import mapping
from neuron.findings import Finding, quoted

_SECTIONS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")
_LEGACY: Final = frozenset(names.LEGACY_RESOURCES)
_MOST_CONTAINERS: Final = 64


def misplaced_resources(template: Mapping[str, object]) -> Iterator[Finding]:
    """NEU129. `template`: a pod, or a pod template, with values of any type."""
    spec = mapping(template.get("spec"))
    yield from _beside((), template, ("spec", "metadata", "status"))
    for field in _AMOUNTS:
        for resource in _legacy(mapping(spec.get("resources")).get(field)):
            where = path_text(("spec", "resources", field))
            message = f"the pod as a whole asks for {resource}: Kubernetes takes only CPU and memory there."
            fix = "The API server refuses the pod. Put it under resources.limits of the container."
            yield Finding("NEU129", f"{where}[{resource}]", message, fix, resource)
    yield from _beside(("spec",), spec, (*_SECTIONS, "resources", "nodeSelector", "overhead"))
    for section in _SECTIONS:
        containers = spec.get(section)
        for index, each in enumerate(containers[:_MOST_CONTAINERS] if isinstance(containers, list) else ()):
            path = ("spec", section, index)
            yield from _beside(path, mapping(each), ("resources",))
            resources = mapping(mapping(each).get("resources"))
            for resource in _legacy(resources):
                yield _unread((*path, "resources"), resource, resource)
            yield from _beside((*path, "resources"), resources, _AMOUNTS)


def _beside(path: Sequence[str | int], owner: Mapping[str, object], known: Sequence[str]) -> Iterator[Finding]:
    """Fields of a mapping, other than the known ones, that name a legacy resource."""
    for field, value in owner.items():
        if field in known or not (amounts := mapping(value)):
            continue
        inner = [amounts, *map(mapping, amounts.values())]
        resource = next((found for each in inner for found in _legacy(each)), "")
        if resource:
            yield _unread(path, field, resource)


def _legacy(amounts: object) -> Iterator[str]:
    return (each for each in mapping(amounts) if each in _LEGACY)


def _unread(path: Sequence[str | int], field: object, resource: str) -> Finding:
    where = path_text(path) or "the object"
    message = f"{where} has {quoted(field)} with {resource}, which is no field there: the pod gets no device."
    fix = "kubectl refuses the object, or the field is dropped. Put it under resources.limits of the container."
    return Finding("NEU129", path_text((*path, str(field))), message, fix, resource)
