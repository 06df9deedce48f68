"""VerticalPodAutoscalers that resize pods in place.

Source: `spec.updatePolicy.updateMode` and `spec.targetRef` of autoscaling.k8s.io/v1.
"""

from collections.abc import Mapping
from typing import Final

from neuron.api.fields import mapping, text

KIND: Final = ("autoscaling.k8s.io", "VerticalPodAutoscaler")
_IN_PLACE: Final = ("InPlaceOrRecreate", "InPlace")


def resized_in_place(data: Mapping[str, object]) -> tuple[str, str] | None:
    """Kind and name of the workload whose pods it resizes in place; None if it does not, or names none."""
    spec = mapping(data.get("spec"))
    target = mapping(spec.get("targetRef"))
    if mapping(spec.get("updatePolicy")).get("updateMode") not in _IN_PLACE:
        return None
    kind, name = text(target.get("kind")), text(target.get("name"))
    return (kind, name) if kind and name else None
