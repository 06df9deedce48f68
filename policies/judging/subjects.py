"""What policies are asked about: one request, and the values that expressions see of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from kubecel import types
from kubecel.types import BOOL, DYN, INT, LIST, STRING, Type, list_of, map_of, record
from policies.judging.holdings import mapping, of_claim, of_pod
from policies.judging.knowledge import NOTHING_KNOWN, DeviceKnowledge

_GROUP_KIND: Final = record("kind", {"group": STRING, "version": STRING, "kind": STRING})
_GROUP_RESOURCE: Final = record("resource", {"group": STRING, "version": STRING, "resource": STRING})
_USER: Final = record(
    "userInfo",
    {"username": STRING, "uid": STRING, "groups": list_of(STRING), "extra": map_of(STRING, list_of(STRING))},
)
REQUEST: Final = record(
    "request",
    {
        "kind": _GROUP_KIND,
        "resource": _GROUP_RESOURCE,
        "subResource": STRING,
        "name": STRING,
        "namespace": STRING,
        "operation": STRING,
        "userInfo": _USER,
        "dryRun": BOOL,
        "options": DYN,
    },
)
NEURON: Final = record(
    "neuron",
    {
        "requests": LIST,
        "devices": INT,
        "cores": INT,
        "lnc": INT,
        "lncs": list_of(INT),
        "classes": list_of(STRING),
        "devicesKnown": BOOL,
        "unknown": STRING,
        "converted": BOOL,
        "quotas": map_of(STRING, INT),
        "quotasKnown": BOOL,
    },
)
VARIABLES: Final[Mapping[str, Type]] = {
    "object": DYN,
    "oldObject": DYN,
    "request": REQUEST,
    "namespaceObject": DYN,
    "params": DYN,
    "neuron": NEURON,
    "claim": DYN,
    "template": DYN,
}
"""The variables of every expression, but for `variables`, which each policy declares itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """One admission request.

    Attributes:
        operation: CREATE, UPDATE, DELETE or CONNECT.
        group: API group of the object, empty for core.
        version: its version.
        kind: its kind.
        resource: plural name, e.g. `pods`.
        subresource: e.g. `scale`; empty for the object itself.
        namespace: empty for cluster-scoped objects.
        name: empty where the server makes it up.
        object: JSON-like; None for DELETE. Never changed.
        old_object: JSON-like; None for CREATE.
        namespace_object: the Namespace as far as it is known; None for cluster-scoped objects.
        user_info: `authentication.k8s.io/v1` UserInfo.
        dry_run: nothing will be stored.
        options: `request.options`.
        quotas: devices that the namespace's ResourceQuotas allow, by resource; None if they are not known.
        knowledge: what has to be known beside the object to count its devices.
    """

    operation: str
    group: str
    version: str
    kind: str
    resource: str
    object: Any
    old_object: Any = None
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    namespace_object: Mapping[str, Any] | None = None
    user_info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dry_run: bool = False
    options: Any = None
    quotas: Mapping[str, int] | None = None
    knowledge: DeviceKnowledge = NOTHING_KNOWN

    def activation(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A value for every variable of `VARIABLES`."""
        user = self.user_info
        return {
            "object": self.object,
            "oldObject": self.old_object,
            "request": {
                "kind": {"group": self.group, "version": self.version, "kind": self.kind},
                "resource": {"group": self.group, "version": self.version, "resource": self.resource},
                "subResource": self.subresource,
                "name": self.name,
                "namespace": self.namespace,
                "operation": self.operation,
                "userInfo": {
                    "username": _text(user.get("username")),
                    "uid": _text(user.get("uid")),
                    "groups": _texts(user.get("groups")),
                    "extra": {key: _texts(values) for key, values in mapping(user.get("extra")).items()},
                },
                "dryRun": self.dry_run,
                "options": self.options,
            },
            "namespaceObject": self.namespace_object,
            "params": params,
            "neuron": {
                **neuron_values(self),
                "quotas": dict(self.quotas or {}),
                "quotasKnown": self.quotas is not None,
            },
            "claim": claim_spec(self.kind, self.object),
            "template": self.object if self.kind == "ResourceClaimTemplate" else None,
        }


def of_object(
    data: Mapping[str, Any],
    *,
    operation: str = "CREATE",
    resource: str | None = None,
    old_object: Any = None,
    namespace_object: Mapping[str, Any] | None = None,
    user_info: Mapping[str, Any] | None = None,
    quotas: Mapping[str, int] | None = None,
    knowledge: DeviceKnowledge = NOTHING_KNOWN,
) -> Subject:
    """The request that an object would arrive in.

    Args:
        data: the object, as a manifest has it.
        operation: what is done with it.
        resource: plural name, with a subresource such as `pods/ephemeralcontainers` where it is about one; None:
            guessed from the kind, as kubectl does.
        old_object: what it was before.
        namespace_object: its Namespace; None: one that has nothing but its name.
        user_info: who asks.
        quotas: what its namespace's ResourceQuotas allow.
        knowledge: what has to be known beside the object to count its devices.
    """
    group, _, version = str(data.get("apiVersion", "")).rpartition("/")
    kind = str(data.get("kind", ""))
    metadata = mapping(data.get("metadata"))
    known = mapping(mapping(namespace_object).get("metadata")).get("name")
    namespace = "" if kind in CLUSTER_SCOPED else str(metadata.get("namespace") or known or "default")
    deleted = operation == "DELETE"
    return Subject(
        operation=operation,
        group=group,
        version=version,
        kind=kind,
        resource=(resource or plural(kind)).partition("/")[0],
        subresource=(resource or "").partition("/")[2],
        object=None if deleted else data,
        old_object=data if deleted else old_object,
        namespace=namespace,
        name=str(metadata.get("name", "")),
        namespace_object=namespace_object or (namespace_named(namespace) if namespace else None),
        user_info=user_info or {},
        quotas=quotas,
        knowledge=knowledge,
    )


CLUSTER_SCOPED: Final = frozenset(
    {
        *("Namespace", "Node", "DeviceClass", "ResourceSlice", "DeviceTaintRule", "PersistentVolume", "StorageClass"),
        *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "APIService", "PriorityClass"),
        *("RuntimeClass", "IngressClass", "CSIDriver", "ClusterTrainingRuntime", "ClusterQueue", "ResourceFlavor"),
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
)
"""Kinds whose objects have no namespace, for use without an API server."""


def namespace_named(name: str) -> dict[str, Any]:
    """A Namespace of which only the name is known; every Namespace has this label."""
    metadata = {"name": name, "labels": {"kubernetes.io/metadata.name": name}}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def plural(kind: str) -> str:
    """The resource of a kind (apimachinery meta.UnsafeGuessKindToResource)."""
    word = kind.lower()
    if word.endswith("s"):
        return f"{word}es"
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


# --- neuron.* -----------------------------------------------------------------------------------------------


def neuron_values(subject: Subject) -> dict[str, object]:
    """The variable `neuron`, as far as the object says it.

    Of a pod: what it can hold at once, by its limits, its claims and a verified record of its conversion. Of a claim or
    template: what it can hold.
    """
    data = subject.object if subject.object is not None else subject.old_object
    if subject.kind == "Pod" and subject.group == "":
        return of_pod(mapping(data), subject.knowledge).values()
    return of_claim(mapping(claim_spec(subject.kind, data)), subject.knowledge).values()


def claim_spec(kind: str, data: Any) -> Any:
    """The spec of a ResourceClaim, or the one inside a ResourceClaimTemplate; None for anything else."""
    spec = mapping(data).get("spec")
    if kind == "ResourceClaim":
        return spec
    return mapping(spec).get("spec") if kind == "ResourceClaimTemplate" else None


def _text(value: object) -> str:
    """What expressions are promised to be a text."""
    return value if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def types_with(variables: Mapping[str, Type]) -> Mapping[str, Type]:
    """`VARIABLES` with a policy's own."""
    return {**VARIABLES, "variables": types.record("variables", variables)}
