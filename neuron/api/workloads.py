"""What objects around pods say of them: groups that share claims, AWS's UltraServers, and autoscalers.

A PodGroup (`scheduling.k8s.io`) has the claims that its pods share (KEP-4671, KEP-5729). The scheduler reserves such a
claim for the PodGroup, not for its pods. A pod of the group uses it by an entry of the same name that refers to the
same object. The fields are equal in v1alpha2 (Kubernetes 1.36) and v1beta1 (1.37).

AWS's UltraServer operator (`neuron.aws.com`, served as v1beta1) allocates UltraServers to a NeuronUltraServerWorkload
of a user, and then makes the ResourceClaimTemplate that it names, whose claims select its nodes by the attribute
`workloadId`. It makes a NeuronUltraServer for each UltraServer.

A VerticalPodAutoscaler (`autoscaling.k8s.io/v1`) may resize pods in place: `spec.updatePolicy.updateMode`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from neuron import names
from neuron.api.fields import mapping, mappings, text

SCHEDULING: Final = "scheduling.k8s.io"
POD_GROUP: Final = "PodGroup"
WORKLOAD: Final = "Workload"
"""Controllers make PodGroups from the `podGroupTemplates` of a Workload."""
MOST_CLAIMS: Final = 4
"""Claims of one PodGroup (MaxPodGroupResourceClaims of scheduling.k8s.io)."""

OBJECTS: Final = {"resourceClaimTemplateName": "ResourceClaimTemplate", "resourceClaimName": "ResourceClaim"}
"""Fields of an entry of `resourceClaims`, one of which is set, and the kind that each names."""


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
        objects = tuple([(kind, text(entry[field])) for field, kind in OBJECTS.items() if text(entry.get(field))])
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


ULTRASERVERS: Final = names.DRIVER
ULTRASERVERS_API: Final = f"{ULTRASERVERS}/v1beta1"
"""apiVersion of the only version of the CustomResourceDefinitions."""
ULTRASERVER_WORKLOAD: Final = "NeuronUltraServerWorkload"
ULTRASERVER: Final = "NeuronUltraServer"
ALLOCATED: Final = frozenset({"Allocated", "Bound"})
"""States of a workload that has its UltraServers: of the CustomResourceDefinition, and of AWS's documentation."""


def template_of(workload: Mapping[str, object]) -> str:
    """The name of the ResourceClaimTemplate that the operator makes: by default that of the workload."""
    named = mapping(mapping(workload.get("spec")).get("resourceClaimTemplate")).get("name")
    return text(named) or text(mapping(workload.get("metadata")).get("name"))


def state_of(workload: Mapping[str, object]) -> str:
    """`status.state`; empty if the operator has not written one."""
    return text(mapping(workload.get("status")).get("state"))


VERTICAL_AUTOSCALER: Final = ("autoscaling.k8s.io", "VerticalPodAutoscaler")
_IN_PLACE: Final = ("InPlaceOrRecreate", "InPlace")


def resized_in_place(data: Mapping[str, object]) -> tuple[str, str] | None:
    """Kind and name of the workload whose pods it resizes in place; None if it does not, or names none."""
    spec = mapping(data.get("spec"))
    target = mapping(spec.get("targetRef"))
    if mapping(spec.get("updatePolicy")).get("updateMode") not in _IN_PLACE:
        return None
    kind, name = text(target.get("kind")), text(target.get("name"))
    return (kind, name) if kind and name else None
