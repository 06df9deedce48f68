"""Pods with claims that a VerticalPodAutoscaler resizes in place, which Kubernetes refuses. Pure.

Source: `validatePodResize` of Kubernetes.
"""

from collections.abc import Iterator, Mapping

from neuron.api.fields import mapping, mappings, text
from neuron.findings import Finding, short, warning


def resized(kind: str, data: Mapping[str, object], autoscalers: Mapping[tuple[str, str], str]) -> list[Finding]:
    """NEU233, if an autoscaler resizes the pods of an object in place.

    Args:
        kind: of the object, whose pods have claims.
        autoscalers: their names, by kind and name of the workload that each resizes.
    """
    for workload in workloads_of(kind, data):
        if workload in autoscalers:
            return [_resizes(autoscalers[workload], " ".join(workload))]
    return []


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


def _resizes(autoscaler: str, workload: str) -> Finding:
    message = (
        f"VerticalPodAutoscaler {short(autoscaler)} resizes pods of {short(workload)} in place, which Kubernetes"
        " refuses for pods with a claim: they are evicted instead, or keep their size."
    )
    return warning("NEU233", "spec", message, "Set updateMode to Initial, Recreate or Off.", short(autoscaler))
