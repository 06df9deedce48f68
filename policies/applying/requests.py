"""Requests as policies see them: the request with its objects, and facts of the cluster that counting devices needs.

The facts are gathered on the event loop before policies run.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from checks.claims.device_index import DeviceIndex, SelectorError
from cluster.store import Store
from conversion.asks.claimed import Restated, restated
from conversion.facts import NamespaceView
from conversion.findings.verification import Sources, Verified, verify
from conversion.objects import nesting, pods
from conversion.objects.kinds import controller_of_pods
from conversion.objects.pod_numbers import pods_of_workload
from conversion.objects.queues import copied_labels
from conversion.objects.wire import ABSENT, AdmissionRequest
from kubecel.library.authorization import AccessDecision, Question
from neuron import names
from neuron.api.claim_specs import ClaimSpec, Selector
from neuron.api.fields import mapping, mappings, namespace_named, text
from neuron.api.workloads import OBJECTS
from neuron.hardware.device_shapes import DeviceShape, catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.judging.knowledge import NOTHING_KNOWN, DeviceKnowledge, WholeNodes
from policies.judging.selectors import DeviceSelectors
from policies.judging.subjects import NAMESPACES, RequestSubject, SentAs, plural
from policies.judging.tally import lncs_of


def bare_subject(
    request: AdmissionRequest, namespaces: NamespaceView | None = None, knowledge: DeviceKnowledge = NOTHING_KNOWN
) -> RequestSubject:
    """The subject of a request, without its objects, but with the known facts of its namespace.

    Raises:
        msgspec.DecodeError: `resource` nests too deeply.
    """
    kind = request.kind
    resource = mapping(_value(request.resource))
    named = text(resource.get("resource"))
    plural_name, api = named or plural(kind.kind), (text(resource.get("group")), text(resource.get("version")))
    known = _of_namespace(request.namespace, plural_name, api[0] if named else kind.group, namespaces)
    return RequestSubject(
        operation=request.operation,
        group=kind.group,
        version=kind.version,
        kind=kind.kind,
        resource=plural_name,
        resource_api=api if named else None,
        object=None,
        subresource=request.subResource,
        namespace=request.namespace,
        name=request.name,
        namespace_object=known[0],
        dry_run=request.dryRun,
        sent_as=_sent_as(request),
        quotas=known[1],
        knowledge=knowledge,
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
    known, quotas = _of_namespace(subject.namespace, subject.resource, subject.api[0], namespaces)
    return dataclasses.replace(subject, namespace_object=known, quotas=quotas)


def _of_namespace(
    namespace: str, resource: str, group: str, namespaces: NamespaceView | None
) -> tuple[Mapping[str, object] | None, Mapping[str, int] | None]:
    """The known part of the Namespace of a request, and its quotas; None if it has none, or nothing is known."""
    if namespaces is None or not namespace or (resource == NAMESPACES and group == ""):
        # As in the API server: a request about a Namespace has no namespaceObject.
        return None, None
    return namespace_object(namespace, namespaces), namespaces.quotas(namespace)


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
    return decoded(bare_subject(request, namespaces), request)


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


FindClaims = Callable[[str, str, Collection[str]], Awaitable[Mapping[str, ClaimSpec]]]
"""Reads claims or templates from the API server: kind, namespace and names -> those that were found, by name."""


async def find_nothing(kind: str, namespace: str, wanted: Collection[str]) -> Mapping[str, Any]:  # noqa: ARG001
    """A `FindClaims` for use without an API server."""
    return {}


ReviewAccess = Callable[[Mapping[str, Any], Question], Awaitable[AccessDecision | str]]
"""Takes the user of a request (`UserInfo`) and a question. Returns the answer, or why there is none."""


async def review_nothing(user: Mapping[str, Any], question: Question) -> AccessDecision | str:  # noqa: ARG001
    """A `ReviewAccess` for use without an API server."""
    return "this webhook runs without a cluster, which alone knows the permissions of its users"


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """The templates and claims that a pod names, each once and in order, up to the number that is looked up."""

    templates: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()


NOTHING_NAMED: Final = Named()


def named_by(data: object, group: str = "", kind: str = "Pod") -> Named:
    """The templates and claims that the `spec.resourceClaims` of a pod, or of a workload's pods, name. Pure."""
    found: dict[str, dict[str, None]] = {field: {} for field in OBJECTS}
    room = 256  # the others count as not known
    if (group, kind) == ("", "Pod"):
        made = [mapping(data)]
    else:
        made = [mapping(each.template) for each in pods_of_workload(mapping(data), group, kind) or ()]
    specs = [mapping(each.get("spec")) for each in made]
    for entry in itertools.chain.from_iterable(mappings(spec.get("resourceClaims")) for spec in specs):
        for field, known in found.items():
            name = entry.get(field)
            if isinstance(name, str) and name and name not in known and room:
                known[name] = None
                room -= 1
    templates, claims = found.values()
    return Named(tuple(templates), tuple(claims)) if templates or claims else NOTHING_NAMED


def verified(
    pod: object, templates: Mapping[str, ClaimSpec], sources: Sources, *, dry_run: bool = False
) -> Verified | Restated | None:
    """The conversion of a pod that is verified, and has lost no reference. Pure.

    In a dry run conversion creates no template. So a pod whose template is not known counts as what it asks for by its
    record: conversion would make the claim of it. Nothing is stored.
    """
    if not _is_labelled(pod):
        return None
    try:
        view = pods.view(pod)
        found = verify(view, templates.get, sources)
        if found is not None:
            return None if found.lost else found
        asked = restated(view) if dry_run else None
    except pods.UnreadableError:
        return None
    return None if asked is None or asked.template in templates else asked


def asked_for(pod: object) -> Restated | None:
    """What a pod asks for by its record. Not verified: `/mutate` makes the claim of it, as it would of limits."""
    if not _is_labelled(pod):
        return None
    try:
        return restated(pods.view(pod))
    except pods.UnreadableError:
        return None


def with_record(
    knowledge: DeviceKnowledge, conversion: Verified | Restated | None, *, strips: bool = False
) -> DeviceKnowledge:
    """The same with the record of a conversion; `strips`: conversion removes the limits of recorded containers."""
    if conversion is None:
        return knowledge
    sections = {"containers": conversion.containers, "initContainers": conversion.init_containers}
    record = {name: {container: dict(each) for container, each in found.items()} for name, found in sections.items()}
    return dataclasses.replace(knowledge, record=record, recorded_claim=conversion.claim, strips_limits=strips)


def _is_labelled(pod: object) -> bool:
    labels = mapping(mapping(mapping(pod).get("metadata")).get("labels"))
    return labels.get(names.LABEL_CONVERTED) == "true"


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterLookups:
    """Where policies get facts of the cluster.

    Attributes:
        find: reads claims and templates that the caches do not have.
        review: looks up permissions.
        device_class: DeviceClass of generated requests, by the server's settings.
    """

    view: Store
    find: FindClaims = find_nothing
    device_class: str = names.DEVICE_CLASS
    review: ReviewAccess = review_nothing


class DeviceKnower:
    """Derives facts about DeviceClasses and nodes from a view, and keeps them until the view changes.

    Belongs to the event loop, except `last` and `templates`, which other threads may read.
    """

    def __init__(self, view: Store, catalogue: Catalogue) -> None:
        self._view = view
        self._catalogue = catalogue
        self._seen: tuple[int, int] | None = None
        self._shapes: tuple[DeviceShape, ...] = ()
        self._nodes = WholeNodes(catalogue)
        self._index: DeviceIndex | None = None
        self._has_devices = functools.lru_cache(maxsize=512)(self._judge)
        self._base = DeviceKnowledge(catalogue)

    @property
    def base(self) -> DeviceKnowledge:
        """The facts for every object; the same value until the view changes."""
        seen = (self._view.version, self._view.claim_version)
        if seen != self._seen:
            self._look()
            self._seen = seen
        return self._base

    @property
    def last(self) -> DeviceKnowledge:
        """The value of `base` when it was last read."""
        return self._base

    def templates(self, namespace: str, wanted: Collection[str]) -> dict[str, ClaimSpec]:
        found = {name: self._view.claim_template(namespace, name) for name in wanted}
        return {name: spec for name, spec in found.items() if spec is not None}

    def _look(self) -> None:
        shapes = tuple(self._view.device_shapes())
        if self._index is None or shapes != self._shapes:
            self._shapes, self._index = shapes, None
            whole = (each for each in shapes if each.resource_type == names.RESOURCE_TYPE_NODE)
            self._nodes = WholeNodes(self._catalogue, whole)
            self._has_devices.cache_clear()
        classes = self._view.device_classes()
        self._base = DeviceKnowledge(
            self._catalogue.observed(self._view.observations()),
            None if classes is None else {name: self._has_devices(spec.selectors) for name, spec in classes.items()},
            {name: lncs for name, spec in (classes or {}).items() if (lncs := lncs_of(spec.configs))},
            {name: tuple(each.expression for each in spec.selectors) for name, spec in (classes or {}).items()},
            dict(self._view.extended_resources()),
            whole_nodes=self._nodes,
        )

    def _judge(self, selectors: tuple[Selector, ...]) -> bool | None:
        """Whether a class can have Neuron devices; None if that is not known. Cluster admins write its selectors."""
        if self._index is None:
            # One device of every instance type and kind.
            shapes = (*catalogue_shapes(self._catalogue), *self._shapes)
            samples = {(each.instance_type, each.resource_type, each.published): each for each in shapes}
            self._index = DeviceIndex(list(samples.values()))
        engine = DeviceSelectors(time.thread_time)
        alive, named, judged = self._index.everything, False, True
        for selector in selectors:
            try:
                compiled = engine.compile(selector.expression)
                named = named or names.DRIVER in compiled.drivers
                alive &= self._index.match(compiled).matched
            except SelectorError:
                judged = False  # It may narrow the class in an unknown way.
        if alive:
            return True if judged else None
        # A class that names our driver and matches no known device may be for devices of the future.
        return None if named else False


def knowledge_for(
    base: DeviceKnowledge,
    knower: DeviceKnower,
    namespace: str,
    named: Named,
    found: Mapping[str, Mapping[str, ClaimSpec]] | None = None,
) -> DeviceKnowledge:
    """The facts for one pod.

    Args:
        knower: has cached templates.
        found: claims and templates read from the API server, by kind and name.
    """
    if named is NOTHING_NAMED:
        return base
    found = found or {}
    templates = {**found.get("ResourceClaimTemplate", {}), **knower.templates(namespace, named.templates)}
    return dataclasses.replace(base, templates=templates, claims=found.get("ResourceClaim", {}))
