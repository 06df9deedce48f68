"""What policies are asked about: one request, and the values that expressions see of it."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from neuron import demand, names
from neuron.demand import Role
from policies.evaluator import types
from policies.evaluator.types import BOOL, DYN, INT, LIST, STRING, Type, list_of, map_of, record

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
        quotas: devices that the namespace's ResourceQuotas allow, by resource; None where nobody knows.
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
                    "username": user.get("username", ""),
                    "uid": user.get("uid", ""),
                    "groups": user.get("groups") or [],
                    "extra": user.get("extra") or {},
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
) -> Subject:
    """The request that an object would arrive in.

    Args:
        data: the object, as a manifest has it.
        operation: what is done with it.
        resource: plural name; None: guessed from the kind, as kubectl does.
        old_object: what it was before.
        namespace_object: its Namespace; None: one that has nothing but its name.
        user_info: who asks.
        quotas: what its namespace's ResourceQuotas allow.
    """
    group, _, version = str(data.get("apiVersion", "")).rpartition("/")
    kind = str(data.get("kind", ""))
    metadata = _mapping(data.get("metadata"))
    known = _mapping(_mapping(namespace_object).get("metadata")).get("name")
    namespace = "" if kind in CLUSTER_SCOPED else str(metadata.get("namespace") or known or "default")
    deleted = operation == "DELETE"
    return Subject(
        operation=operation,
        group=group,
        version=version,
        kind=kind,
        resource=resource or plural(kind),
        object=None if deleted else data,
        old_object=data if deleted else old_object,
        namespace=namespace,
        name=str(metadata.get("name", "")),
        namespace_object=namespace_object or (namespace_named(namespace) if namespace else None),
        user_info=user_info or {},
        quotas=quotas,
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
"""Kinds whose objects have no namespace, as far as nobody can ask an API server."""


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

    Of a pod: what its containers ask for now, or asked for before conversion. Of a claim or template: what it asks for.
    """
    data = subject.object if subject.object is not None else subject.old_object
    if subject.kind == "Pod" and subject.group == "":
        return _of_pod(_mapping(data))
    return _of_claim(_mapping(claim_spec(subject.kind, data)))


def claim_spec(kind: str, data: Any) -> Any:
    """The spec of a ResourceClaim, or the one inside a ResourceClaimTemplate; None for anything else."""
    spec = _mapping(data).get("spec")
    if kind == "ResourceClaim":
        return spec
    return _mapping(spec).get("spec") if kind == "ResourceClaimTemplate" else None


def _of_pod(pod: Mapping[str, Any]) -> dict[str, object]:
    metadata, spec = _mapping(pod.get("metadata")), _mapping(pod.get("spec"))
    annotations = _mapping(metadata.get("annotations"))
    record_ = _record(annotations.get(names.ANNOTATION_CONVERTED_FROM))
    requests = []
    held = {"devices": 0, "cores": 0}
    most_init = {"devices": 0, "cores": 0}
    for section in ("initContainers", "containers"):
        recorded = _mapping(record_.get(section))
        for container in _mappings(spec.get(section)):
            name = str(container.get("name", ""))
            resources = _mapping(container.get("resources"))
            limits = _mapping(recorded.get(name)) or _mapping(resources.get("limits"))
            role = Role.INIT if section == "initContainers" and container.get("restartPolicy") != "Always" else Role.APP
            ask, _ = demand.read(name, role, "", limits, {})
            if not ask.amount:
                continue
            unit = "cores" if ask.in_cores else "devices"
            requests.append({"container": name, "resource": ask.resource, "amount": ask.amount, "init": role == "init"})
            if role is Role.INIT:
                most_init[unit] = max(most_init[unit], ask.amount)
            else:
                held[unit] += ask.amount
    lnc = annotations.get(names.ANNOTATION_LNC)
    return {
        "requests": requests,
        "devices": max(held["devices"], most_init["devices"]),
        "cores": max(held["cores"], most_init["cores"]),
        "lnc": int(lnc) if lnc in ("1", "2") else 0,
        "converted": bool(record_) and _mapping(metadata.get("labels")).get(names.LABEL_CONVERTED) == "true",
    }


def _record(text: object) -> Mapping[str, Any]:
    if not isinstance(text, str):
        return {}
    try:
        return _mapping(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _of_claim(spec: Mapping[str, Any]) -> dict[str, object]:
    devices = _mapping(spec.get("devices"))
    requests = []
    for request in _mappings(devices.get("requests")):
        # Flat requests are those of v1beta1. Of alternatives the first is what the user would rather have.
        exact = _mapping(request.get("exactly")) or next(_mappings(request.get("firstAvailable")), request)
        device_class = str(exact.get("deviceClassName", ""))
        count = exact.get("count", 1)
        amount = count if isinstance(count, int) and not isinstance(count, bool) else 1
        requests.append({"request": str(request.get("name", "")), "resource": device_class, "amount": amount})
    parameters = (
        _mapping(_mapping(config.get("opaque")).get("parameters")) for config in _mappings(devices.get("config"))
    )
    settings = [value for each in parameters if (value := each.get("logicalNeuronCore")) in (1, 2)]
    ours = [request for request in requests if str(request["resource"]).startswith(names.DEVICE_CLASS)]
    return {
        "requests": ours,
        "devices": sum(request["amount"] for request in ours if isinstance(request["amount"], int)),
        "cores": 0,
        "lnc": int(settings[0]) if settings else 0,
        "converted": False,
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    entries: Iterable[object] = value if isinstance(value, list) else ()
    return (entry for entry in entries if isinstance(entry, dict))


def types_with(variables: Mapping[str, Type]) -> Mapping[str, Type]:
    """`VARIABLES` with a policy's own."""
    return {**VARIABLES, "variables": types.record("variables", variables)}
