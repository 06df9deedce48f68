"""Reviews as policies see them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from policies.subjects import Subject, namespace_named, plural
from webhook.edge import nesting
from webhook.edge.wire import ABSENT, AdmissionRequest
from webhook.ports import NamespaceView


def bare_subject(request: AdmissionRequest) -> Subject:
    """What a review is about, without its objects."""
    kind = request.kind
    resource = _value(request.resource) or {}
    return Subject(
        operation=request.operation,
        group=kind.group,
        version=kind.version,
        kind=kind.kind,
        resource=str(resource.get("resource") or plural(kind.kind)),
        object=None,
        subresource=request.subResource,
    )


def subject_of(request: AdmissionRequest, namespaces: NamespaceView) -> Subject:
    """A review with its objects decoded.

    Raises:
        msgspec.DecodeError: one of them is no JSON that could be decoded, or nests too deeply.
    """
    return dataclasses.replace(
        bare_subject(request),
        namespace=request.namespace,
        name=request.name,
        object=_value(request.object),
        old_object=_value(request.oldObject),
        namespace_object=namespace_object(request.namespace, namespaces) if request.namespace else None,
        user_info=_value(request.userInfo) or {},
        dry_run=request.dryRun,
        options=_value(request.options),
        quotas=namespaces.quotas(request.namespace) if request.namespace else None,
    )


def namespace_object(name: str, namespaces: NamespaceView) -> Mapping[str, Any]:
    """A Namespace with its name, its labels, and its annotations under `neuron.aws.com/`."""
    known = namespace_named(name)
    known["metadata"]["labels"] |= namespaces.namespace_labels(name) or {}
    annotations = dict(namespaces.namespace(name).annotations)
    if annotations:
        known["metadata"]["annotations"] = annotations
    return known


def _value(raw: msgspec.Raw) -> Any:
    return None if raw == ABSENT else nesting.decode(raw)
