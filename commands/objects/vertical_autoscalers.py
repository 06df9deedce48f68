"""VerticalPodAutoscalers that resize pods in place, which Kubernetes refuses for pods with claims. Pure.

Source: `spec.updatePolicy.updateMode` and `spec.targetRef` of autoscaling.k8s.io/v1; `validatePodResize` of Kubernetes.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from neuron.api.fields import mapping, mappings, text
from neuron.findings import Finding, short, warning

KIND: Final = ("autoscaling.k8s.io", "VerticalPodAutoscaler")
_IN_PLACE: Final = ("InPlaceOrRecreate", "InPlace")


def resized_in_place(data: Mapping[str, object]) -> tuple[str, str] | None:
    """Kind and name of the workload whose pods it resizes in place; None if it does not."""
    spec = mapping(data.get("spec"))
    target = mapping(spec.get("targetRef"))
    if mapping(spec.get("updatePolicy")).get("updateMode") not in _IN_PLACE:
        return None
    return text(target.get("kind")), text(target.get("name"))


def workloads_of(kind: str, data: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Kinds and names that a `targetRef` for an object can have: its own, and those of the workload that made it.

    A Deployment is not the owner of its pods. Their ReplicaSet has its name, and the hash that is their label.
    """
    metadata = mapping(data.get("metadata"))
    yield kind, text(metadata.get("name"))
    digest = text(mapping(metadata.get("labels")).get("pod-template-hash"))
    for owner in mappings(metadata.get("ownerReferences")):
        made_by, name = text(owner.get("kind")), text(owner.get("name"))
        yield made_by, name
        if made_by == "ReplicaSet" and digest and name.endswith(f"-{digest}"):
            yield "Deployment", name.removesuffix(f"-{digest}")


def resizes(autoscaler: str, workload: str) -> Finding:
    """NEU233. `workload`: kind and name."""
    message = (
        f"VerticalPodAutoscaler {short(autoscaler)} resizes pods of {short(workload)} in place, which Kubernetes"
        " refuses for pods with a claim: they are evicted instead, or keep their size."
    )
    return warning("NEU233", "spec", message, "Set updateMode to Initial, Recreate or Off.", short(autoscaler))
