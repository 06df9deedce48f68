"""PodGroups and Workloads (`scheduling.k8s.io`): the claims that the pods of a group share (KEP-4671, KEP-5729).

The scheduler reserves such a claim for the PodGroup, not for its pods. A pod of the group uses it by an entry of the
same name that refers to the same object. The fields are equal in v1alpha2 (Kubernetes 1.36) and v1beta1 (1.37).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from neuron.api.fields import mapping, mappings, text

GROUP: Final = "scheduling.k8s.io"
POD_GROUP: Final = "PodGroup"
WORKLOAD: Final = "Workload"
"""Controllers make PodGroups from the `podGroupTemplates` of a Workload."""
MOST_CLAIMS: Final = 4
"""Claims of one PodGroup (MaxPodGroupResourceClaims of scheduling.k8s.io)."""

_OBJECTS: Final = (("resourceClaimTemplateName", "ResourceClaimTemplate"), ("resourceClaimName", "ResourceClaim"))


class GroupClaim(Struct, frozen=True):
    """An entry of `resourceClaims` of a PodGroup, of a template of a Workload, or of a pod: they have equal fields.

    Attributes:
        path: field path in the object.
        objects: kind and name of what it refers to: one of the two kinds, if the API server accepts it.
    """

    path: str
    name: str
    objects: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, entry: Mapping[str, object], path: str) -> "GroupClaim":
        """Values of another type are taken for absent: the API server has the schema."""
        objects = tuple([(kind, text(entry[field])) for field, kind in _OBJECTS if text(entry.get(field))])
        return cls(path, text(entry.get("name")), objects)


def claim_lists(kind: str, item: Mapping[str, object]) -> Iterator[list[GroupClaim]]:
    """The claims of a PodGroup, or of each template of a Workload."""
    spec = mapping(item.get("spec"))
    owners = [("spec", spec)]
    if kind == WORKLOAD:
        templates = enumerate(mappings(spec.get("podGroupTemplates")))
        owners = [(f"spec.podGroupTemplates[{index}]", each) for index, each in templates]
    for path, owner in owners:
        entries = enumerate(mappings(owner.get("resourceClaims")))
        yield [GroupClaim.read(each, f"{path}.resourceClaims[{index}]") for index, each in entries]


def group_of(pod: Mapping[str, object]) -> str:
    """The name of the PodGroup that a pod or pod template belongs to; empty for none."""
    return text(mapping(mapping(pod.get("spec")).get("schedulingGroup")).get("podGroupName"))
