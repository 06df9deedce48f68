"""Finds the pods that an object of any kind describes, by their structure. Pure.

Kinds whose pod templates can be rewritten are in `pod_templates`. Other objects also hold pods: a mapping with
`containers`, or a single container's `resources` (an Argo template, a KServe model, a TrainJob's `resourcesPerNode`).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from neuron import names
from neuron.check.misspelt import meant
from webhook.decisions.pod_templates import Path, path_text

_SECTIONS: Final = ("containers", "initContainers")
_AMOUNTS: Final = ("limits", "requests")

_ARGO: Final = "its templates have no field for claims"
_KNATIVE: Final = "Knative accepts no claims in it"
_KSERVE: Final = "KServe merges it with the containers of a ServingRuntime"

NOT_REWRITTEN: Final[Mapping[tuple[str, str], str]] = {
    **{
        ("argoproj.io", kind): _ARGO
        for kind in ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")
    },
    **{("serving.knative.dev", kind): _KNATIVE for kind in ("Service", "Configuration", "Revision")},
    **{
        ("serving.kserve.io", kind): _KSERVE for kind in ("InferenceService", "ServingRuntime", "ClusterServingRuntime")
    },
    ("trainer.kubeflow.org", "TrainJob"): "its pod templates are those of a TrainingRuntime",
}
"""Kinds that hold pods and cannot hold claims, and why: by API group and kind, for all versions."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodPlace:
    """A pod that an object describes.

    Attributes:
        path: of the pod template, of the pod spec, or of `resources`, in the object.
        template: a pod template with the same containers.
        inner: field path in `template` of what is at `path`.
    """

    path: Path
    template: dict[str, Any]
    inner: str = ""

    def field_path(self, path: str) -> str:
        """Field path in the object for a field path in the template."""
        outer = path_text(self.path)
        if not self.inner:
            return f"{outer}.{path}" if path else outer
        return outer + path.removeprefix(self.inner) if path.startswith(self.inner) else outer


def find_pods(data: Any) -> Iterator[PodPlace]:
    """The pods of an object that name a legacy resource, or one that looks like it."""
    return _search((), data, None)


def _search(path: Path, value: Any, parent: Mapping[str, Any] | None) -> Iterator[PodPlace]:
    if isinstance(value, list):
        for index, item in enumerate(value):
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
            container = {"name": str(value.get("name") or (path[-1] if path else "main")), "resources": item}
            yield PodPlace((*path, name), {"spec": {"containers": [container]}}, "spec.containers[0].resources")
        else:
            yield from _search((*path, name), item, value)


def _spec_place(path: Path, spec: dict[str, Any], parent: Mapping[str, Any] | None) -> PodPlace:
    if path and path[-1] == "spec" and parent is not None and len(path) > 1:
        metadata = parent.get("metadata")
        return PodPlace(path[:-1], {**({"metadata": metadata} if isinstance(metadata, dict) else {}), "spec": spec})
    return PodPlace(path, {"spec": spec}, "spec")


def _is_container(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


def _containers(spec: Mapping[str, Any], section: str) -> list[dict[str, Any]]:
    found = spec.get(section)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _asks(resources: Any) -> bool:
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
