"""Messages about kinds for which converting the pod templates is not enough."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from commands.objects.manifests import Manifest
from conversion.objects.pod_places import Path
from neuron import names

_RAY: Final = "ray.io"
_RAY_CORES: Final = "neuron_cores"


def advice(manifest: Manifest, converted: Collection[Path]) -> Iterator[tuple[Path, str]]:
    """Messages about an object, with their paths.

    Args:
        manifest: the object before conversion.
        converted: paths of the pod templates that are converted.
    """
    if not manifest.kind or "apiVersion" not in manifest.data:
        yield (), "left unchanged: without apiVersion and kind it is not a Kubernetes object."
    elif manifest.group == _RAY:
        yield from _ray(manifest, converted)
    elif manifest.kind == "ClusterTrainingRuntime" and converted:
        yield (
            (),
            "its pods run in the namespaces of TrainJobs: apply the ResourceClaimTemplates before it in each of them.",
        )


def _ray(manifest: Manifest, converted: Collection[Path]) -> Iterator[tuple[Path, str]]:
    """Ask for `neuron_cores` in `rayStartParams`.

    KubeRay derives it from the legacy resource of the first container (`customAcceleratorToRayResourceMap` in its
    `controllers/ray/common/pod.go`), which conversion removes.
    """
    for path, template in manifest.pod_templates():
        if path not in converted or path[-1] != "template":
            continue
        group: Any = manifest.data
        for step in path[:-1]:
            group = group[step]
        parameters = group.get("rayStartParams")
        known = parameters.get("resources") if isinstance(parameters, dict) else None
        cores = _cores_of_first(template)
        if cores and _RAY_CORES not in str(known):
            text = f"KubeRay derives {_RAY_CORES} from {names.RESOURCE_NEURONCORE}, which conversion removed."
            fix = f"Add {_RAY_CORES}: {cores} to resources in rayStartParams."
            yield (*path[:-1], "rayStartParams"), f"{text} {fix}"


def _cores_of_first(template: dict[str, Any]) -> Any:
    """Cores that the first container of a pod template requests."""
    containers = (template.get("spec") or {}).get("containers") or [{}]
    limits = (containers[0].get("resources") or {}).get("limits") or {}
    return limits.get(names.RESOURCE_NEURONCORE)
