"""Removes generated ResourceClaimTemplates that no pod and no PodGroup needs, safely beside concurrent admissions.

    look     list templates, pods, PodGroups and Workloads: templates to which none refers are candidates
    mark     annotate each candidate with the time of its removal
    wait     the grace period: reviews that relied on the unmarked template have ended by then
    look     list these again: a candidate to which one refers now loses its mark
    remove   the other candidates, if they did not change since the mark (uid and resourceVersion)
    heal     list them once more: a removed template to which one refers is created again

The webhook does not rely on a marked template (`webhook.cluster.templates`): it removes the mark first, which changes
the resourceVersion. A run that is killed leaves only marks; the next run continues with them.
"""

import asyncio
import dataclasses
import datetime as dt
import enum
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from cluster.resources import PODS, RESOURCE_CLAIM_TEMPLATES, SELF_ACCESS_REVIEWS
from commands.cluster.reader import TIMEOUT, ClusterReader
from conversion.claims import templates
from neuron import names
from neuron.api.workloads import POD_GROUP, SCHEDULING, WORKLOAD, claim_lists
from runtime.api_server import (
    COMPACT,
    CONFLICT,
    FORBIDDEN,
    JSON,
    MERGE_PATCH,
    NOT_FOUND,
    OLDEST_KUBERNETES,
    RESOURCE_GROUP,
    UNAUTHORIZED,
    ApiAnswerError,
    ApiServerError,
    Resource,
    StatusError,
    TimedApiServer,
    decoded,
    loaded,
    loaded_object,
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
            where = f"in namespace {self._namespace}" if self._namespace else "in all namespaces"
            raise CannotListError(f"Cannot list {resource} {where}: {reason(error, resource)}.") from error


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


# --- the run ----------------------------------------------------------------------------------------------------------


_VERBS: Final = ("patch", "delete", "create")
_PARALLEL: Final = 8
_QUERY: Final = {"fieldManager": names.MANAGER}


class CannotPruneError(Exception):
    """Nothing was changed; the message has the reason and the fix."""


class PruneAction(enum.StrEnum):
    """What happened to a candidate."""

    CANDIDATE = "candidate"
    """Dry run: it would have been marked."""
    REMOVED = "removed"
    KEPT = "kept"
    """A pod, PodGroup or Workload refers to it now, or another client changed it."""
    GONE = "gone"
    """Another client removed it."""
    RESTORED = "restored"
    """Removed, and created again for a new pod."""
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class PruneCandidate:
    """One candidate.

    Attributes:
        detail: the reason, or empty.
    """

    template: Generated
    outcome: PruneAction
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class PruneReport:
    """The result of a run.

    Attributes:
        entries: candidates, by namespace and name.
        in_use: number of generated templates to which something referred at the start.
        problem: why the run stopped early, or empty.
    """

    entries: tuple[PruneCandidate, ...]
    generated: int
    in_use: int
    problem: str = ""

    @property
    def failed(self) -> bool:
        """Whether an operator must act."""
        return bool(self.problem) or any(entry.outcome is PruneAction.FAILED for entry in self.entries)


class Pruner:
    """Prunes one cluster or one namespace. Concurrent runs are safe: the later marks win."""

    def __init__(
        self,
        server: TimedApiServer,
        namespace: str = "",
        *,
        reader: Reader | None = None,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            namespace: to prune; empty: all namespaces.
            reader: reads the same namespace; None: a new one.
            now: wall clock, aware.
            sleep: waits a number of seconds.
        """
        self._server = server
        self._namespace = namespace
        self._reader = reader or Reader(ClusterReader(server, sleep=sleep), namespace)
        self._now = now
        self._sleep = sleep
        self._say = say
        self._generated = 0
        self._in_use = 0
        self._entries: dict[Key, PruneCandidate] = {}

    async def plan(self, older_than: dt.timedelta) -> PruneReport:
        """What `prune` would remove. Changes nothing.

        Raises:
            CannotPruneError: a list failed.
        """
        for each in await self._candidates(older_than):
            self._note(each, PruneAction.CANDIDATE)
        return self._report()

    async def prune(self, older_than: dt.timedelta, grace: dt.timedelta) -> PruneReport:
        """Remove templates to which nothing refers.

        Args:
            older_than: younger templates are kept.
            grace: time between mark and removal. If pods are admitted meanwhile, at least the longest silence of the
                webhook's watch (`reflector.Timing.stall`) plus the longest API request (`--request-timeout` of
                kube-apiserver: one minute).

        Raises:
            CannotPruneError: a list failed, or a permission is missing. Nothing was changed.
        """
        found = await self._candidates(older_than)
        if not found:
            return self._report()
        await self._may()
        waiting = [each for each in found if not left_over(each, self._now())]
        marked = {each.key: each for each in found if each not in waiting}
        await _each(waiting, lambda each: self._mark(each, grace, marked))
        if not marked:
            return self._report()
        if not marked.keys().isdisjoint(each.key for each in waiting):
            self._say(f"Marked {len(marked)}; checking again in {grace.total_seconds():g} s.")
            await self._sleep(grace.total_seconds())
        try:
            referred = await self._reader.references()
        except CannotListError as error:
            return self._report(f"{error} Nothing was removed; the next run continues with the marked templates.")
        doubtful: list[Generated] = []
        await _each(marked.values(), lambda each: self._sweep(each, referred, doubtful))
        return await self._heal(doubtful)

    async def look(self) -> tuple[tuple[Generated, ...], Mapping[Key, tuple[User, ...]]]:
        """Generated templates, and what refers to each.

        Raises:
            CannotPruneError: a list failed.
        """
        try:
            return await self._reader.generated(), await self._reader.references()
        except CannotListError as error:
            raise CannotPruneError(str(error)) from error

    async def _candidates(self, older_than: dt.timedelta) -> tuple[Generated, ...]:
        generated, referred = await self.look()
        self._generated = len(generated)
        self._in_use = sum(each.key in referred for each in generated)
        self._entries.clear()
        return candidates(generated, referred, self._now(), older_than)

    async def _may(self) -> None:
        """Check permissions. Without `create`, a removed template could not be created again."""
        missing = [verb for verb in _VERBS if not await self._allowed(verb)]
        if missing:
            role = f"a Role in namespace {self._namespace}" if self._namespace else "a ClusterRole"
            rule = rule_text(RESOURCE_CLAIM_TEMPLATES.group, (RESOURCE_CLAIM_TEMPLATES.plural,), missing)
            raise CannotPruneError(f"Not allowed to prune: give this account {role} with the rule {rule}")

    async def _allowed(self, verb: str) -> bool:
        resource = RESOURCE_CLAIM_TEMPLATES
        attributes = {
            "verb": verb,
            "group": resource.group,
            "version": resource.version,
            "resource": resource.plural,
            "namespace": self._namespace,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            answer = await self._server.request("POST", SELF_ACCESS_REVIEWS.path(), timeout=TIMEOUT, body=review)
            return bool(loaded_object(answer)["status"]["allowed"])
        except (ApiServerError, KeyError, TypeError):
            # The review itself was denied. The requests may still be allowed; if not, they fail with the reason.
            return True

    async def _mark(self, template: Generated, grace: dt.timedelta, marked: dict[Key, Generated]) -> None:
        stamp = mark(self._now(), grace)
        try:
            version = await self._annotate(template, stamp)
        except StatusError as error:
            if error.code == NOT_FOUND:
                self._note(template, PruneAction.GONE)
            elif error.code == CONFLICT:
                self._note(template, PruneAction.KEPT, "another client changed it before it could be marked")
            else:
                self._fail(template, "marked", error)
        except ApiServerError as error:
            self._fail(template, "marked", error)
        else:
            marked[template.key] = dataclasses.replace(template, version=version, mark=stamp)

    async def _annotate(self, template: Generated, stamp: str | None) -> str:
        """Set or remove the mark, if the template has not changed. Returns the new resourceVersion."""
        metadata = {
            "uid": template.uid,
            "resourceVersion": template.version,
            "annotations": {names.ANNOTATION_PRUNE_AFTER: stamp},
        }
        answer = await self._send("PATCH", template, {"metadata": metadata}, MERGE_PATCH)
        version = (loaded_object(answer).get("metadata") or {}).get("resourceVersion")
        if not isinstance(version, str):
            raise ApiAnswerError("the answer is not a ResourceClaimTemplate")
        return version

    async def _sweep(
        self, template: Generated, referred: Mapping[Key, Collection[User]], doubtful: list[Generated]
    ) -> None:
        users = referred.get(template.key)
        try:
            if users:
                self._note(template, PruneAction.KEPT, _needed(users))
                await self._annotate(template, None)
                return
            preconditions = {"uid": template.uid, "resourceVersion": template.version}
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
            await self._send("DELETE", template, body)
        except StatusError as error:
            if error.code == NOT_FOUND:
                # Perhaps we removed it: the transport sends a DELETE twice if the connection breaks.
                self._note(template, PruneAction.GONE)
                doubtful.append(template)
            elif error.code != CONFLICT:
                self._fail(template, "unmarked" if users else "removed", error)
            elif not users:
                self._note(template, PruneAction.KEPT, "a webhook used it after it was marked")
        except ApiServerError as error:
            if not users:
                doubtful.append(template)  # it may be deleted although the request failed
            self._fail(template, "unmarked" if users else "removed", error)
        else:
            self._note(template, PruneAction.REMOVED)
            doubtful.append(template)

    async def _heal(self, removed: Collection[Generated]) -> PruneReport:
        if not removed:
            return self._report()
        try:
            referred = await self._reader.references()
        except CannotListError as error:
            return self._report(f"{error} It is unknown whether a new pod needs a removed template.")
        lost = [each for each in removed if each.key in referred]
        await _each(lost, lambda each: self._restore(each, referred[each.key]))
        return self._report()

    async def _restore(self, template: Generated, users: Collection[User]) -> None:
        path = RESOURCE_CLAIM_TEMPLATES.path(template.namespace)
        try:
            await self._server.request(
                "POST", path, timeout=TIMEOUT, query=_QUERY, body=template.manifest(), content_type=COMPACT
            )
        except StatusError as error:
            # The review that admitted the pod created it again, or the namespace is deleted.
            if error.code != CONFLICT and not error.cause("NamespaceTerminating"):
                self._fail(template, "created again", error, f"{_needed(users)}, and it ")
        except ApiServerError as error:
            self._fail(template, "created again", error, f"{_needed(users)}, and it ")
        else:
            self._note(template, PruneAction.RESTORED, _needed(users))

    async def _send(
        self, method: str, template: Generated, body: Mapping[str, object], content_type: str = JSON
    ) -> bytes:
        path = RESOURCE_CLAIM_TEMPLATES.path(*template.key)
        query = _QUERY if method == "PATCH" else None
        return await self._server.request(
            method, path, timeout=TIMEOUT, query=query, body=body, content_type=content_type
        )

    def _note(self, template: Generated, outcome: PruneAction, detail: str = "") -> None:
        self._entries[template.key] = PruneCandidate(template, outcome, detail)

    def _fail(self, template: Generated, done: str, error: ApiServerError, start: str = "") -> None:
        self._note(
            template, PruneAction.FAILED, f"{start}could not be {done}: {reason(error, RESOURCE_CLAIM_TEMPLATES)}"
        )

    def _report(self, problem: str = "") -> PruneReport:
        entries = tuple(self._entries[key] for key in sorted(self._entries))
        return PruneReport(entries, self._generated, self._in_use, problem)


async def _each(items: Iterable[Generated], action: Callable[[Generated], Awaitable[None]]) -> None:
    """Run `action` for all items, `_PARALLEL` at a time."""
    gate = asyncio.Semaphore(_PARALLEL)

    async def one(item: Generated) -> None:
        async with gate:
            await action(item)

    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(one(item), name=f"prune {item.namespace}/{item.name}")


def _needed(users: Collection[User]) -> str:
    (kind, name), *others = users
    more = f" and {len(others)} more" if others else ""
    return f"{'pod' if kind == 'Pod' else kind} {name}{more} refer{'' if others else 's'} to it"
