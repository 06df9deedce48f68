"""Admission requests as policies see them (`policies.judging.subjects.Subject`)."""

import dataclasses
from collections.abc import Mapping

import msgspec

from conversion.facts import NamespaceView
from conversion.objects import nesting
from conversion.objects.kinds import controller_of_pods
from conversion.objects.queues import copied_labels
from conversion.objects.wire import ABSENT, AdmissionRequest
from neuron.api.fields import mapping, namespace_named, text
from policies.judging.subjects import NAMESPACES, RequestSubject, SentAs, plural


def bare_subject(request: AdmissionRequest) -> RequestSubject:
    """The subject of a request, without its objects.

    Raises:
        msgspec.DecodeError: `resource` nests too deeply.
    """
    kind = request.kind
    resource = mapping(_value(request.resource))
    named = text(resource.get("resource"))
    return RequestSubject(
        operation=request.operation,
        group=kind.group,
        version=kind.version,
        kind=kind.kind,
        resource=named or plural(kind.kind),
        resource_api=(text(resource.get("group")), text(resource.get("version"))) if named else None,
        object=None,
        subresource=request.subResource,
        namespace=request.namespace,
        name=request.name,
        dry_run=request.dryRun,
        sent_as=_sent_as(request),
    )


def decoded(subject: RequestSubject, request: AdmissionRequest) -> RequestSubject:
    """The subject with the request's objects decoded. Pure: it may run in the lane.

    Raises:
        msgspec.DecodeError: an object is not valid JSON, or nests too deeply.
    """
    return dataclasses.replace(
        subject,
        object=_value(request.object),
        old_object=_value(request.oldObject),
        user_info=mapping(_value(request.userInfo)),
        options=_value(request.options),
    )


def _sent_as(request: AdmissionRequest) -> SentAs | None:
    """The kind and resource that the user sent; None if the API server did not convert the object."""
    if request.requestResource in (ABSENT, request.resource) and request.requestSubResource == request.subResource:
        return None
    kind, resource = mapping(_value(request.requestKind)), mapping(_value(request.requestResource))
    if not kind or not resource:
        return None
    return SentAs(
        {name: text(kind.get(name)) for name in ("group", "version", "kind")},
        {name: text(resource.get(name)) for name in ("group", "version", "resource")},
        request.requestSubResource,
    )


def placed(subject: RequestSubject, namespaces: NamespaceView) -> RequestSubject:
    """The subject with the known facts of its namespace."""
    namespace = subject.namespace
    if not namespace or (subject.resource == NAMESPACES and subject.api[0] == ""):
        # As in the API server: a request about a Namespace has no namespaceObject.
        return subject
    known, quotas = namespace_object(namespace, namespaces), namespaces.quotas(namespace)
    return dataclasses.replace(subject, namespace_object=known, quotas=quotas)


def with_whole_namespace(subject: RequestSubject, namespaces: NamespaceView) -> RequestSubject:
    """The subject with all fields of its Namespace, or with the reason why they are unknown."""
    if subject.namespace_object is None:
        return subject
    known = namespaces.namespace_object(subject.namespace)
    if known is None:
        why = (
            f"not evaluated: only name and labels of Namespace '{subject.namespace}' are known. It is new, or its"
            " annotations and status are larger than 16 KiB"
        )
        return dataclasses.replace(subject, namespace_unknown=why)
    return dataclasses.replace(subject, namespace_object=known, namespace_unknown="")


def subject_of(request: AdmissionRequest, namespaces: NamespaceView) -> RequestSubject:
    """The subject of a request, with its objects decoded and the known facts of its namespace.

    Raises:
        msgspec.DecodeError: an object is not valid JSON, or nests too deeply.
    """
    return decoded(placed(bare_subject(request), namespaces), request)


def created_pod(
    template: Mapping[str, object], namespace: str, owner: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The Pod that a pod template creates, as the API server receives it.

    Args:
        template: of any content.
        namespace: of the Pod; empty: not known.
        owner: the workload with the template; None for what has none.
    """
    metadata = dict(mapping(template.get("metadata")))
    if owner is not None:
        version, kind, known = text(owner.get("apiVersion")), text(owner.get("kind")), mapping(owner.get("metadata"))
        group = version.rpartition("/")[0]
        api_version, controller = controller_of_pods(group, kind, version)
        name = text(known.get("name")) or text(known.get("generateName"))
        reference = {"apiVersion": api_version, "kind": controller, "name": name, "uid": "", "controller": True}
        metadata |= {"generateName": f"{name.rstrip('-')}-", "ownerReferences": [reference]}
        copied = copied_labels(group, kind, owner)
        if copied:
            metadata["labels"] = {**mapping(metadata.get("labels")), **copied}
    if namespace:
        metadata["namespace"] = namespace
    return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def size_of(request: AdmissionRequest) -> int:
    """Bytes of the parts of a request that policies read."""
    parts = (
        *(request.object, request.oldObject, request.userInfo, request.options),
        *(request.resource, request.requestKind, request.requestResource),
    )
    return sum(memoryview(part).nbytes for part in parts)


def namespace_object(name: str, namespaces: NamespaceView) -> Mapping[str, object]:
    """A Namespace with its name, its labels, and its annotations under `neuron.aws.com/`."""
    known = namespace_named(name)
    known["metadata"]["labels"] |= namespaces.namespace_labels(name) or {}
    annotations = dict(namespaces.namespace(name).annotations)
    if annotations:
        known["metadata"]["annotations"] = annotations
    return known


def _value(raw: msgspec.Raw) -> object:
    return None if raw == ABSENT else nesting.decode(raw)
