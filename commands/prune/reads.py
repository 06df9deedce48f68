"""Lists templates, and what refers to them, page by page; and decides which templates may be removed."""

import dataclasses
import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from cluster.resources import PODS, RESOURCE_CLAIM_TEMPLATES
from commands.cluster.reader import ClusterReader
from conversion.claims import templates
from neuron import names
from neuron.api.workloads import POD_GROUP, SCHEDULING, WORKLOAD, claim_lists
from runtime.api_server import (
    FORBIDDEN,
    NOT_FOUND,
    OLDEST_KUBERNETES,
    RESOURCE_GROUP,
    UNAUTHORIZED,
    ApiAnswerError,
    ApiServerError,
    Resource,
    StatusError,
    decoded,
    loaded,
    rule_text,
)

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""

User: TypeAlias = tuple[str, str]
"""Kind and name of an object that refers to a template: `Pod`, `PodGroup` or `Workload`."""

CLOCK_TOLERANCE: Final = dt.timedelta(minutes=5)
"""Tolerated difference between the clocks of two machines that prune."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """A ResourceClaimTemplate that the webhook created and that no other client changed.

    Attributes:
        name: `templates.Template.name`.
        uid: `metadata.uid`.
        version: `metadata.resourceVersion`.
        created: `metadata.creationTimestamp`.
        mark: its annotation `names.ANNOTATION_PRUNE_AFTER`, or empty.
        labels: all labels.
        annotations: all others.
    """

    namespace: str
    name: str
    uid: str
    version: str
    created: dt.datetime
    mark: str
    labels: Mapping[str, str]
    spec: Mapping[str, object]
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name

    def manifest(self) -> dict[str, object]:
        """The body to create it again."""
        metadata: dict[str, object] = {"name": self.name, "namespace": self.namespace, "labels": dict(self.labels)}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        return {"apiVersion": templates.API_VERSION, "kind": templates.KIND, "metadata": metadata, "spec": self.spec}


def read_generated(item: Mapping[str, Any]) -> Generated | None:
    """A ResourceClaimTemplate (`resource.k8s.io/v1`) if prune may remove it, else None.

    It may if it has the label, the name of a generated template or the annotation of one that a policy carries, and
    only the webhook wrote it (`metadata.managedFields`). `neuron-dra convert` prints the same objects; those that users
    apply are kept.
    """
    metadata, spec = item["metadata"], item["spec"]
    labels = metadata.get("labels") or {}
    annotations = metadata.get("annotations") or {}
    if not templates.is_written_by_us(metadata) or metadata.get("deletionTimestamp"):
        return None
    if not templates.is_unchanged(metadata["name"], annotations, spec):
        return None
    created = _time(metadata.get("creationTimestamp"))
    if created is None:
        return None
    return Generated(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        created,
        annotations.get(names.ANNOTATION_PRUNE_AFTER) or "",
        labels,
        spec,
        {name: value for name, value in annotations.items() if name != names.ANNOTATION_PRUNE_AFTER},
    )


def candidates(
    generated: Iterable[Generated], referred: Collection[Key], now: dt.datetime, older_than: dt.timedelta
) -> tuple[Generated, ...]:
    """Templates to which nothing refers and that are older than `older_than`, by namespace and name.

    Args:
        generated: all generated templates.
        referred: templates to which pods, PodGroups or Workloads refer.
        now: an aware time.
        older_than: the minimum age.
    """
    found = [each for each in generated if each.key not in referred and now - each.created > older_than]
    return tuple(sorted(found, key=lambda each: each.key))


def mark(now: dt.datetime, grace: dt.timedelta) -> str:
    """The value of the annotation: RFC 3339 with microseconds, so that marks are unique."""
    return (now + grace).astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def left_over(template: Generated, now: dt.datetime) -> bool:
    """Whether it has a mark of an earlier run that is due, with tolerance for the clocks of other machines.

    Other templates must be marked again: without a mark, with a recent one, or with one that cannot be parsed.
    """
    due = _time(template.mark)
    return due is not None and due <= now - CLOCK_TOLERANCE


def _time(text: Any) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else None


class _ClaimNames(msgspec.Struct, frozen=True):
    template: str | None = msgspec.field(default=None, name="resourceClaimTemplateName")


class _PodSpec(msgspec.Struct, frozen=True):
    claims: list[_ClaimNames] | None = msgspec.field(default=None, name="resourceClaims")


class _PodMeta(msgspec.Struct, frozen=True):
    name: str
    namespace: str


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodMeta
    spec: _PodSpec


_decode_pod: Final = msgspec.json.Decoder(_Pod).decode


class CannotListError(Exception):
    """A list failed; the message has the reason and the fix."""


class Reader:
    """What prune reads of one cluster, or of one namespace.

    A list with an object that cannot be read is no answer: it could refer to any template.
    """

    def __init__(self, reader: ClusterReader, namespace: str = "") -> None:
        self._reader = reader
        self._namespace = namespace

    async def generated(self) -> tuple[Generated, ...]:
        """The generated templates, by namespace and name.

        Raises:
            CannotListError: they cannot be listed.
        """
        found: list[Generated] = []

        def take(raw: msgspec.Raw) -> None:
            template = _generated(raw)
            if template is not None:
                found.append(template)

        ours = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
        await self._read(RESOURCE_CLAIM_TEMPLATES, take, found.clear, labelSelector=ours)
        return tuple(sorted(found, key=lambda each: each.key))

    async def references(self) -> Mapping[Key, tuple[User, ...]]:
        """Pods in any phase, PodGroups and Workloads that refer to a ResourceClaimTemplate, by template.

        Raises:
            CannotListError: a list failed.
        """
        found: defaultdict[Key, list[User]] = defaultdict(list)
        try:
            served = await self._reader.served()
        except ApiServerError as error:
            raise CannotListError(f"Cannot read which kinds the API server serves: {error}.") from error
        groups = [
            (kind, served[SCHEDULING, kind].resource) for kind in (POD_GROUP, WORKLOAD) if (SCHEDULING, kind) in served
        ]
        for kind, resource in (("Pod", PODS), *groups):
            for key, user in await self._users(kind, resource):
                found[key].append(user)
        return {key: tuple(sorted(users)) for key, users in found.items()}

    async def _users(self, kind: str, resource: Resource) -> Sequence[tuple[Key, User]]:
        """What refers to templates, among the objects of one kind."""
        users: list[tuple[Key, User]] = []
        await self._read(resource, lambda raw: users.extend(_references(kind, raw)), users.clear)
        return users

    async def _read(
        self, resource: Resource, take: Callable[[msgspec.Raw], None], restart: Callable[[], None], **query: str
    ) -> None:
        try:
            await self._reader.read(resource, take, restart, self._namespace, **query)
        except ApiServerError as error:
            raise CannotListError(message(error, "list", resource, self._namespace)) from error


def _generated(raw: msgspec.Raw) -> Generated | None:
    """The template if prune may remove it; one that cannot be read may not be removed."""
    try:
        return read_generated(loaded(memoryview(raw)))
    except (ApiAnswerError, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None


def _references(kind: str, raw: msgspec.Raw) -> Iterable[tuple[Key, User]]:
    """The templates to which a pod, PodGroup or Workload refers."""
    if kind == "Pod":
        pod = decoded(_decode_pod, raw)
        wanted = {claim.template or "" for claim in pod.spec.claims or ()}
        namespace, name = pod.metadata.namespace, pod.metadata.name
    else:
        item = loaded(memoryview(raw))
        wanted = {name for claims in claim_lists(kind, item) for each in claims for _, name in each.objects}
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
    return [((namespace, template), (kind, name)) for template in wanted if template]


def reason(error: ApiServerError, resource: Resource) -> str:
    """The error with its fix, as the end of a sentence."""
    if not isinstance(error, StatusError):
        return str(error)
    if error.code == UNAUTHORIZED:
        return "the API server does not accept the credentials; renew them in the kubeconfig"
    if error.code == FORBIDDEN and error.missing_right:
        user, verb = error.missing_right
        return f'"{user}" lacks the rule {rule_text(resource.group, (resource.plural,), (verb,))}'
    if error.code == NOT_FOUND and resource.group == RESOURCE_GROUP:
        return f"the API server does not serve {RESOURCE_GROUP}/v1; Kubernetes >= {OLDEST_KUBERNETES} is needed"
    return str(error)


def message(error: ApiServerError, verb: str, resource: Resource, namespace: str = "") -> str:
    """The error with its fix, as a sentence for an operator."""
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    return f"Cannot {verb} {resource} {where}: {reason(error, resource)}."


def review(verb: str, namespace: str) -> dict[str, Any]:
    """A SelfSubjectAccessReview for templates in a namespace (empty: all namespaces)."""
    attributes = {
        "verb": verb,
        "group": RESOURCE_CLAIM_TEMPLATES.group,
        "version": RESOURCE_CLAIM_TEMPLATES.version,
        "resource": RESOURCE_CLAIM_TEMPLATES.plural,
        "namespace": namespace,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
