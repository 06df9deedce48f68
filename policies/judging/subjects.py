"""One admission request as policies see it, and the CEL variables that expressions read."""

import dataclasses
from collections.abc import Container, Mapping
from typing import Any, Final, TypeAlias

from kubecel import types
from kubecel.errors import CelRuntimeError
from kubecel.library.authorization import AccessDecision, Ask, Authorizer, Question
from kubecel.types import AUTHORIZER, BOOL, DYN, INT, LIST, STRING, TIMESTAMP, Type, list_of, map_of, record
from neuron.api import resource_versions
from neuron.api.claim_specs import GROUP
from neuron.api.fields import mapping, namespace_named, namespace_value, sequence, text
from policies.judging.device_counts import of_claim, of_pod, of_workload
from policies.judging.knowledge import NOTHING_KNOWN, DeviceKnowledge
from policies.judging.selectors import DeviceSelectors

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
"""The type of `namespaceObject` (k8s.io/apiserver/pkg/admission/plugin/cel, BuildNamespaceType), whose values
`neuron.api.fields` makes. Other fields, such as `managedFields`, are errors when an expression is compiled."""


class UnansweredError(Exception):
    """An evaluation ended at a permission that was not looked up yet. Its caller looks it up, and evaluates again."""

    def __init__(self, question: Question) -> None:
        super().__init__(str(question))
        self.question = question


def ask_nobody(question: Question) -> AccessDecision:
    """For evaluations without an API server.

    Raises:
        CelRuntimeError: always.
    """
    raise CelRuntimeError(
        f"the permission {question} is not known, because there is no API server to ask here: in a test, give the"
        " answer in `access`"
    )


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
        "requestKind": _GROUP_KIND,
        "requestResource": _GROUP_RESOURCE,
        "requestSubResource": STRING,
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
        "namedClaims": INT,
        "namedDevices": INT,
        "podDevices": INT,
        "podCores": INT,
        "podDevicesKnown": BOOL,
        "pods": INT,
        "podsKnown": BOOL,
        "templates": LIST,
        "quotas": map_of(STRING, INT),
        "quotasKnown": BOOL,
        "extendedResources": map_of(STRING, STRING),
    },
)
VARIABLES: Final[Mapping[str, Type]] = {
    "object": DYN,
    "oldObject": DYN,
    "request": REQUEST,
    "namespaceObject": NAMESPACE,
    "params": DYN,
    "authorizer": AUTHORIZER,
    "neuron": NEURON,
    "claim": DYN,
    "template": DYN,
}
"""The variables of every expression, except `variables`, which each policy declares itself."""
SAME_FOR_ALL: Final = frozenset(VARIABLES) - {"params"}
"""Those with the same values for all policies on one request."""


Api: TypeAlias = tuple[str, str]
"""API group (empty for core) and version."""


@dataclasses.dataclass(frozen=True, slots=True)
class RequestSubject:
    """One admission request.

    The object of a subresource may be of another API than the resource: `deployments/scale` of apps/v1 has a Scale of
    autoscaling/v1. Rules match the resource.

    Attributes:
        operation: CREATE, UPDATE, DELETE or CONNECT.
        group: API group of the object, empty for core.
        resource: plural name, e.g. `pods`.
        resource_api: group and version of the resource; None: those of the object.
        subresource: e.g. `scale`; empty for the object itself.
        namespace: empty for cluster-scoped objects.
        name: empty if the API server will generate it.
        object: JSON-like; None for DELETE. Not modified.
        old_object: JSON-like; None for CREATE.
        namespace_object: the known part of the Namespace; None for cluster-scoped objects.
        namespace_unknown: why only name and labels of the Namespace are known; empty if all is.
        user_info: `authentication.k8s.io/v1` UserInfo.
        dry_run: the object will not be stored.
        options: `request.options`.
        sent_as: kind, resource and subresource of the original request, if the API server converted the object to
            another API version; None: the same.
        quotas: devices that the namespace's ResourceQuotas allow, by resource; None if they are not known.
        ask: answers what expressions ask of `authorizer`.
    """

    operation: str
    group: str
    version: str
    kind: str
    resource: str
    object: Any
    old_object: Any = None
    subresource: str = ""
    resource_api: Api | None = None
    namespace: str = ""
    name: str = ""
    namespace_object: Mapping[str, Any] | None = None
    namespace_unknown: str = ""
    user_info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dry_run: bool = False
    options: Any = None
    sent_as: "SentAs | None" = None
    quotas: Mapping[str, int] | None = None
    knowledge: DeviceKnowledge = NOTHING_KNOWN
    ask: Ask = ask_nobody

    @property
    def api(self) -> Api:
        """Group and version of the resource, as the webhook receives it."""
        return (self.group, self.version) if self.resource_api is None else self.resource_api

    @property
    def sent_api(self) -> Api:
        """Group and version of the resource, as the user sent it."""
        if self.sent_as is None:
            return self.api
        resource = self.sent_as.resource
        return resource["group"], resource["version"]

    def in_api(self, wanted: Api) -> "RequestSubject | None":
        """The request as a policy for another API version sees it; None if the object cannot be converted."""
        group, version = self.api
        if wanted == (group, version):
            return self
        sent_as = self.sent_as or SentAs(*self._identity(), self.subresource)
        if self.group != group:
            # For example a Scale: it is the same for every version of the resource.
            return dataclasses.replace(self, resource_api=wanted, sent_as=sent_as)
        if not can_convert(self, wanted):
            return None
        data, old = (resource_versions.converted(self.kind, each, wanted[1]) for each in (self.object, self.old_object))
        return dataclasses.replace(
            self, version=wanted[1], resource_api=wanted, object=data, old_object=old, sent_as=sent_as
        )

    def activation(self, params: Mapping[str, Any] | None, time: DeviceSelectors | None = None) -> dict[str, Any]:
        """A value for every variable of `VARIABLES`; `time` bounds the counting of devices."""
        return {
            **self.versioned(),
            "namespaceObject": self.namespace_object,
            "params": params,
            "neuron": {
                **neuron_values(self, time),
                "quotas": dict(self.quotas or {}),
                "quotasKnown": self.quotas is not None,
                "extendedResources": dict(self.knowledge.extended),
            },
        }

    def versioned(self) -> dict[str, Any]:
        """The variables that depend on the API version in which a policy sees the object."""
        return {
            "object": self.object,
            "oldObject": self.old_object,
            "request": self._request(),
            "authorizer": self._authorizer(),
            "claim": claim_spec(self.kind, self.object),
            "template": self.object if self.kind == "ResourceClaimTemplate" else None,
        }

    def _authorizer(self) -> Authorizer:
        """The variable `authorizer`; `requestResource` is what the user sent."""
        group, resource = self.sent_api[0], self.resource
        subresource = self.subresource
        if self.sent_as is not None:
            resource, subresource = self.sent_as.resource["resource"], self.sent_as.subresource
        about = Question(
            group=group, resource=resource, subresource=subresource, namespace=self.namespace, name=self.name
        )
        return Authorizer(self.ask, about)

    def _identity(self) -> tuple[dict[str, str], dict[str, str]]:
        """`request.kind` and `request.resource`."""
        group, version = self.api
        return (
            {"group": self.group, "version": self.version, "kind": self.kind},
            {"group": group, "version": version, "resource": self.resource},
        )

    def _request(self) -> dict[str, Any]:
        """The variable `request`. As in the API server, empty fields are absent (k8s.io/api/admission/v1)."""
        kind, resource = self._identity()
        sent_as = self.sent_as or SentAs(kind, resource, self.subresource)
        request = {
            "kind": kind,
            "resource": resource,
            "requestKind": dict(sent_as.kind),
            "requestResource": dict(sent_as.resource),
            "operation": self.operation,
            "userInfo": _user_information(self.user_info),
            "dryRun": self.dry_run,
            "options": self.options,
        }
        optional = {
            "subResource": self.subresource,
            "requestSubResource": sent_as.subresource,
            "name": self.name,
            "namespace": self.namespace,
        }
        return request | {name: value for name, value in optional.items() if value}


def _user_information(user: Mapping[str, Any]) -> dict[str, Any]:
    """`request.userInfo`. Every user of an API server has a name and groups. Offline they are empty."""
    found: dict[str, Any] = {"username": "", "groups": []}
    if user:
        found = {"username": text(user.get("username")), "groups": _texts(user.get("groups"))}
        if uid := text(user.get("uid")):
            found["uid"] = uid
        if extra := mapping(user.get("extra")):
            found["extra"] = {key: _texts(values) for key, values in extra.items()}
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class SentAs:
    """What the user sent: `requestKind`, `requestResource` and `requestSubResource` of a request."""

    kind: Mapping[str, str]
    resource: Mapping[str, str]
    subresource: str


def can_convert(subject: RequestSubject, wanted: Api) -> bool:
    """Whether `RequestSubject.in_api` can convert the object."""
    group, version = subject.api
    if wanted == (group, version) or subject.group != group:
        return True
    return wanted[0] == group == GROUP and resource_versions.convertible(subject.kind, version, wanted[1])


def of_object(
    data: Mapping[str, Any],
    namespace_object: Mapping[str, Any] | None = None,
    *,
    operation: str = "CREATE",
    resource: str | None = None,
    old_object: Any = None,
    name: str = "",
) -> RequestSubject:
    """The request that would send an object to the API server.

    Args:
        namespace_object: the Namespace; None: one that has only its name.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        resource: plural name, with a subresource such as `pods/ephemeralcontainers` if the request is about one, and
            with version and group, as in `leaderworkersets.v1.leaderworkerset.x-k8s.io/scale`, if they are not those of
            the object; None: guessed from the kind, as kubectl does.
        old_object: the object before an UPDATE.
        name: of the object of the request; empty: that in its metadata.
    """
    group, _, version = str(data.get("apiVersion", "")).rpartition("/")
    kind = str(data.get("kind", ""))
    metadata = mapping(data.get("metadata"))
    full, _, subresource = (resource or plural(kind)).partition("/")
    plural_name, _, api = full.partition(".")
    resource_api = _api_of(api) if api else OWNERS.get((plural_name, subresource))
    name = name or str(metadata.get("name", ""))
    namespace, value = "", None
    if plural_name == NAMESPACES:
        # The API server sets the namespace of a request about a Namespace, and has no namespaceObject for it.
        namespace = name
    elif kind not in CLUSTER_SCOPED and plural_name not in _CLUSTER_SCOPED_OWNERS:
        known = mapping(mapping(namespace_object).get("metadata"))
        namespace = str(metadata.get("namespace") or known.get("name") or "default")
        value = namespace_value(namespace_object or namespace_named(namespace))
    deleted = operation == "DELETE"
    return RequestSubject(
        operation=operation,
        group=group,
        version=version,
        kind=kind,
        resource=plural_name,
        subresource=subresource,
        resource_api=resource_api,
        object=None if deleted else data,
        old_object=data if deleted else old_object,
        namespace=namespace,
        name=name,
        namespace_object=value,
    )


def _api_of(text: str) -> Api:
    """Version and group as in `pods.v1.` and `deployments.v1.apps` (apimachinery schema.ParseResourceArg)."""
    version, _, group = text.partition(".")
    return group, version


NAMESPACES: Final = "namespaces"
OWNERS: Final[Mapping[tuple[str, str], Api]] = {
    **{(each, "scale"): ("apps", "v1") for each in ("deployments", "replicasets", "statefulsets")},
    ("replicationcontrollers", "scale"): ("", "v1"),
    ("pods", "eviction"): ("", "v1"),
    ("serviceaccounts", "token"): ("", "v1"),
}
"""API of the resource, for the subresources of Kubernetes whose object is of another API."""
_CLUSTER_SCOPED_OWNERS: Final = (
    "nodes",
    "persistentvolumes",
    "certificatesigningrequests",
    "customresourcedefinitions",
)
"""Cluster-scoped resources with subresources whose object is of another kind or without metadata."""
CLUSTER_SCOPED: Final = frozenset(
    {
        *("Namespace", "Node", "DeviceClass", "ResourceSlice", "DeviceTaintRule", "PersistentVolume", "StorageClass"),
        *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "APIService", "PriorityClass"),
        *("RuntimeClass", "IngressClass", "CSIDriver", "ClusterTrainingRuntime", "ClusterQueue", "ResourceFlavor"),
        *("NodePool", "EC2NodeClass", "ClusterWorkflowTemplate", "ClusterServingRuntime"),
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
)
"""Cluster-scoped kinds, for use without an API server."""


def plural(kind: str) -> str:
    """The resource of a kind (apimachinery meta.UnsafeGuessKindToResource)."""
    word = kind.lower()
    if word.endswith("s"):
        return f"{word}es"
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


# --- neuron.* -----------------------------------------------------------------------------------------------


def neuron_values(subject: RequestSubject, time: DeviceSelectors | None = None) -> dict[str, object]:
    """The fields of the variable `neuron` that come from the object.

    For a pod: what it can hold at once, by its limits, its claims and the verified record of its conversion. For a
    claim or template: what it can hold. For any other object: what its pods can hold. `time` bounds the parsing of
    selectors.
    """
    data = mapping(subject.object if subject.object is not None else subject.old_object)
    if subject.kind == "Pod" and subject.group == "":
        return of_pod(data, subject.knowledge, time).values()
    spec = claim_spec(subject.kind, data) if subject.group == GROUP else None
    if spec is not None:
        return of_claim(spec, subject.knowledge, time, f"{GROUP}/{subject.version}").values()
    return of_workload(data, subject.group, subject.kind, subject.knowledge, time).values()


def claim_spec(kind: str, data: Any) -> Any:
    """The spec of a ResourceClaim, or the one inside a ResourceClaimTemplate; None for anything else."""
    if kind not in ("ResourceClaim", "ResourceClaimTemplate"):
        return None
    spec = mapping(data).get("spec")
    return spec if kind == "ResourceClaim" else mapping(spec).get("spec")


def _texts(value: object) -> list[str]:
    return [each for each in sequence(value) if isinstance(each, str)]


def types_with(variables: Mapping[str, Type], missing: Container[str] = ()) -> Mapping[str, Type]:
    """`VARIABLES` without those that are missing, and with `variables` as a policy declares them."""
    known = {name: each for name, each in VARIABLES.items() if name not in missing}
    return {**known, "variables": types.record("variables", variables)}
