"""Removes templates that no pod and no PodGroup needs, in an order that is safe against concurrent admissions.

    look     list templates, pods, PodGroups and Workloads: templates to which none refers are candidates
    mark     annotate each candidate with the time of its removal
    wait     the grace period: reviews that relied on the unmarked template have ended by then
    look     list these again: a candidate to which one refers now loses its mark
    remove   the other candidates, if they did not change since the mark (uid and resourceVersion)
    heal     list them once more: a removed template to which one refers is created again

The webhook does not rely on a marked template: it removes the mark first, which changes the resourceVersion. A run that
is killed leaves only marks; the next run continues with them.
"""

import asyncio
import dataclasses
import datetime as dt
import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from cluster.resources import RESOURCE_CLAIM_TEMPLATES, SELF_ACCESS_REVIEWS
from commands.cluster.reader import TIMEOUT, ClusterReader
from commands.prune.reads import (
    CannotListError,
    Generated,
    Key,
    Reader,
    User,
    candidates,
    left_over,
    mark,
    reason,
    review,
)
from neuron import names
from runtime.api_server import (
    COMPACT,
    CONFLICT,
    JSON,
    MERGE_PATCH,
    NOT_FOUND,
    ApiAnswerError,
    ApiServerError,
    StatusError,
    TimedApiServer,
    loaded_object,
    rule_text,
)

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
        try:
            answer = await self._server.request(
                "POST", SELF_ACCESS_REVIEWS.path(), timeout=TIMEOUT, body=review(verb, self._namespace)
            )
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
            await self._send("DELETE", template, _preconditions(template))
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


def _preconditions(template: Generated) -> dict[str, object]:
    preconditions = {"uid": template.uid, "resourceVersion": template.version}
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}


def _needed(users: Collection[User]) -> str:
    (kind, name), *others = users
    more = f" and {len(others)} more" if others else ""
    return f"{'pod' if kind == 'Pod' else kind} {name}{more} refer{'' if others else 's'} to it"
