"""The type of the variable `namespaceObject`, as in the API server.

Source: k8s.io/apiserver/pkg/admission/plugin/cel, BuildNamespaceType. The values are made by `neuron.api.namespaces`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from kubecel.engine import Program
from kubecel.types import INT, STRING, TIMESTAMP, Type, list_of, map_of, record

_CONDITION: Final = record(
    "namespaceObject.status.conditions[]",
    {"status": STRING, "type": STRING, "lastTransitionTime": TIMESTAMP, "message": STRING, "reason": STRING},
)
_METADATA: Final[Mapping[str, Type]] = {
    "name": STRING,
    "generateName": STRING,
    "namespace": STRING,
    "labels": map_of(STRING, STRING),
    "annotations": map_of(STRING, STRING),
    # The object has the field `uid`: as in the API server, an expression that reads `UID` compiles and then fails.
    "UID": STRING,
    "creationTimestamp": TIMESTAMP,
    "deletionGracePeriodSeconds": INT,
    "deletionTimestamp": TIMESTAMP,
    "generation": INT,
    "resourceVersion": STRING,
    "finalizers": list_of(STRING),
}
NAMESPACE: Final = record(
    "namespaceObject",
    {
        "metadata": record("namespaceObject.metadata", _METADATA),
        "spec": record("namespaceObject.spec", {"finalizers": list_of(STRING)}),
        "status": record("namespaceObject.status", {"conditions": list_of(_CONDITION), "phase": STRING}),
    },
)
"""Other fields, such as `managedFields` and `ownerReferences`, are errors when an expression is compiled."""

_ALWAYS_KNOWN: Final = (("metadata", "name"), ("metadata", "labels"))
"""Fields that the webhook knows of every Namespace, also of one that is new."""


def reads_whole_namespace(programs: Iterable[Program]) -> bool:
    """Whether an expression reads more of `namespaceObject` than its name and labels."""
    return any(
        path[0] == "namespaceObject" and path[1:3] not in _ALWAYS_KNOWN
        for program in programs
        for path in program.references
    )
