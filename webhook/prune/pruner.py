"""Removes templates that no pod needs, in an order that no admission can fall through.

    look     templates and pods: candidates are those without a pod
    mark     each candidate is annotated with the time at which it goes
    wait     the grace: a review that relied on the unmarked template has ended by then
    look     pods again: a candidate that a pod refers to by now loses its mark
    remove   the others, if they were not changed since the mark (uid and resourceVersion)
    heal     pods once more: a template that one refers to after all is made again

The webhook does not rely on a marked template: it takes the mark away first, which changes the resourceVersion. A run
that is killed leaves marks and nothing else; the next run goes on with them.
"""

import asyncio
import dataclasses
import datetime as dt
import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final

from neuron import names
from webhook.cluster.api import (
    CONFLICT,
    JSON,
    MERGE_PATCH,
    NOT_FOUND,
    ApiAnswerError,
    ApiServer,
    ApiServerError,
    Resource,
    StatusError,
    loaded_object,
    rule_text,
)
from webhook.cluster.caches import RESOURCE_CLAIM_TEMPLATES
from webhook.prune.decide import Generated, Key, candidates, left_over, mark
from webhook.prune.reads import PODS, TIMEOUT, Reader, message, reason, review

_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
_VERBS: Final = ("patch", "delete", "create")
_PARALLEL: Final = 8
_QUERY: Final = {"fieldManager": names.MANAGER}


class CannotPruneError(Exception):
    """Nothing was changed; the message says why and what to do."""


class PruneAction(enum.StrEnum):
    """What became of a candidate."""

    CANDIDATE = "candidate"
    """A dry run: it would have been marked."""
    REMOVED = "removed"
    KEPT = "kept"
    """A pod refers to it by now, or somebody has touched it since it was marked."""
    GONE = "gone"
    """Somebody else removed it."""
    RESTORED = "restored"
    """Removed, and made again for a pod that turned up."""
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One candidate.

    Attributes:
        template: as it was found.
        outcome: what became of it.
        detail: why; empty where the outcome says it.
    """

    template: Generated
    outcome: PruneAction
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class PruneReport:
    """What a run did.

    Attributes:
        entries: candidates, by namespace and name.
        generated: how many templates are ours.
        in_use: how many of them pods referred to at the start.
        problem: what stopped the run before its end; empty where nothing did.
    """

    entries: tuple[Entry, ...]
    generated: int
    in_use: int
    problem: str = ""

    @property
    def failed(self) -> bool:
        """Whether somebody has to look."""
        return bool(self.problem) or any(entry.outcome is PruneAction.FAILED for entry in self.entries)


class Pruner:
    """Runs in one cluster, or in one namespace of it. Several at a time do no harm: the later marks win."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str = "",
        *,
        reader: Reader | None = None,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            server: where the templates are.
            namespace: the only one to prune; empty: all.
            reader: of the same; made where it is not given.
            now: the time of day, aware.
            sleep: waits that many seconds.
            say: takes a line about what goes on.
        """
        self._server = server
        self._namespace = namespace
        self._reader = reader or Reader(server, namespace, sleep=sleep)
        self._now = now
        self._sleep = sleep
        self._say = say
        self._generated = 0
        self._in_use = 0
        self._entries: dict[Key, Entry] = {}

    async def plan(self, older_than: dt.timedelta) -> PruneReport:
        """What `prune` would take on now. Changes nothing.

        Raises:
            CannotPruneError: templates or pods cannot be listed.
        """
        for each in await self._candidates(older_than):
            self._note(each, PruneAction.CANDIDATE)
        return self._report()

    async def prune(self, older_than: dt.timedelta, grace: dt.timedelta) -> PruneReport:
        """Remove what no pod refers to.

        Args:
            older_than: younger templates stay.
            grace: time between mark and removal. Where pods are admitted meanwhile, at least as long as a webhook's
                watch may be silent before it is given up (`reflector.Timing.stall`), and an API request may take after
                that (`--request-timeout` of kube-apiserver: one minute).

        Raises:
            CannotPruneError: lists cannot be had, or a permission is missing. Nothing was changed.
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
            self._say(f"Marked {len(marked)}; looking again in {grace.total_seconds():g} s.")
            await self._sleep(grace.total_seconds())
        try:
            referred = await self._reader.references()
        except ApiServerError as error:
            why = message(error, "list", PODS, self._namespace)
            return self._report(f"{why} Nothing was removed; the next run goes on with what is marked.")
        doubtful: list[Generated] = []
        await _each(marked.values(), lambda each: self._sweep(each, referred, doubtful))
        return await self._heal(doubtful)

    async def look(self) -> tuple[tuple[Generated, ...], Mapping[Key, tuple[str, ...]]]:
        """Templates that are ours, and pods by the template that they refer to.

        Raises:
            CannotPruneError: templates or pods cannot be listed.
        """
        try:
            generated = await self._reader.generated()
        except ApiServerError as error:
            raise CannotPruneError(message(error, "list", RESOURCE_CLAIM_TEMPLATES, self._namespace)) from error
        try:
            referred = await self._reader.references()
        except ApiServerError as error:
            raise CannotPruneError(message(error, "list", PODS, self._namespace)) from error
        return generated, referred

    async def _candidates(self, older_than: dt.timedelta) -> tuple[Generated, ...]:
        generated, referred = await self.look()
        self._generated = len(generated)
        self._in_use = sum(each.key in referred for each in generated)
        self._entries.clear()
        return candidates(generated, referred, self._now(), older_than)

    async def _may(self) -> None:
        """Without the right to create, what was removed could not be brought back: better not to begin."""
        missing = [verb for verb in _VERBS if not await self._allowed(verb)]
        if missing:
            role = f"a Role in namespace {self._namespace}" if self._namespace else "a ClusterRole"
            rule = rule_text(RESOURCE_CLAIM_TEMPLATES.group, (RESOURCE_CLAIM_TEMPLATES.plural,), missing)
            raise CannotPruneError(f"Not allowed to prune: give this account {role} with the rule {rule}")

    async def _allowed(self, verb: str) -> bool:
        try:
            answer = await self._server.request(
                "POST", _REVIEWS.path(), timeout=TIMEOUT, body=review(verb, self._namespace)
            )
            return bool(loaded_object(answer)["status"]["allowed"])
        except (ApiServerError, KeyError, TypeError):
            # Who may not ask, may still be allowed; if not, the request itself says so.
            return True

    async def _mark(self, template: Generated, grace: dt.timedelta, marked: dict[Key, Generated]) -> None:
        stamp = mark(self._now(), grace)
        try:
            version = await self._annotate(template, stamp)
        except StatusError as error:
            if error.code == NOT_FOUND:
                self._note(template, PruneAction.GONE)
            elif error.code == CONFLICT:
                self._note(template, PruneAction.KEPT, "somebody changed it before it could be marked")
            else:
                self._fail(template, "marked", error)
        except ApiServerError as error:
            self._fail(template, "marked", error)
        else:
            marked[template.key] = dataclasses.replace(template, version=version, mark=stamp)

    async def _annotate(self, template: Generated, stamp: str | None) -> str:
        """Set or take the mark of the very template that was seen; its resourceVersion afterwards."""
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
        self, template: Generated, referred: Mapping[Key, Collection[str]], doubtful: list[Generated]
    ) -> None:
        pods = referred.get(template.key)
        try:
            if pods:
                self._note(template, PruneAction.KEPT, _needed(pods))
                await self._annotate(template, None)
                return
            await self._send("DELETE", template, _preconditions(template))
        except StatusError as error:
            if error.code == NOT_FOUND:
                # Perhaps we removed it: the transport sends a DELETE twice if the connection breaks.
                self._note(template, PruneAction.GONE)
                doubtful.append(template)
            elif error.code != CONFLICT:
                self._fail(template, "unmarked" if pods else "removed", error)
            elif not pods:
                self._note(template, PruneAction.KEPT, "somebody needed it after it was marked")
        except ApiServerError as error:
            if not pods:
                doubtful.append(template)  # it may be gone, whatever was heard of it
            self._fail(template, "unmarked" if pods else "removed", error)
        else:
            self._note(template, PruneAction.REMOVED)
            doubtful.append(template)

    async def _heal(self, removed: Collection[Generated]) -> PruneReport:
        if not removed:
            return self._report()
        try:
            referred = await self._reader.references()
        except ApiServerError as error:
            why = message(error, "list", PODS, self._namespace)
            return self._report(f"{why} Whether a pod turned up that needs what was removed is not known.")
        lost = [each for each in removed if each.key in referred]
        await _each(lost, lambda each: self._restore(each, referred[each.key]))
        return self._report()

    async def _restore(self, template: Generated, pods: Collection[str]) -> None:
        path = RESOURCE_CLAIM_TEMPLATES.path(template.namespace)
        try:
            await self._server.request("POST", path, timeout=TIMEOUT, query=_QUERY, body=template.manifest())
        except StatusError as error:
            # The review that admitted the pod has made it again, or the pod is gone.
            if error.code != CONFLICT and not error.cause("NamespaceTerminating"):
                self._fail(template, "made again", error, f"{_needed(pods)}, and it ")
        except ApiServerError as error:
            self._fail(template, "made again", error, f"{_needed(pods)}, and it ")
        else:
            self._note(template, PruneAction.RESTORED, _needed(pods))

    async def _send(self, method: str, template: Generated, body: Mapping[str, Any], content_type: str = JSON) -> bytes:
        path = RESOURCE_CLAIM_TEMPLATES.path(*template.key)
        query = _QUERY if method == "PATCH" else None
        return await self._server.request(
            method, path, timeout=TIMEOUT, query=query, body=body, content_type=content_type
        )

    def _note(self, template: Generated, outcome: PruneAction, detail: str = "") -> None:
        self._entries[template.key] = Entry(template, outcome, detail)

    def _fail(self, template: Generated, done: str, error: ApiServerError, start: str = "") -> None:
        self._note(
            template, PruneAction.FAILED, f"{start}could not be {done}: {reason(error, RESOURCE_CLAIM_TEMPLATES)}"
        )

    def _report(self, problem: str = "") -> PruneReport:
        entries = tuple(self._entries[key] for key in sorted(self._entries))
        return PruneReport(entries, self._generated, self._in_use, problem)


async def _each(items: Iterable[Generated], action: Callable[[Generated], Awaitable[None]]) -> None:
    """Do it for all, a few at a time."""
    gate = asyncio.Semaphore(_PARALLEL)

    async def one(item: Generated) -> None:
        async with gate:
            await action(item)

    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(one(item), name=f"prune {item.namespace}/{item.name}")


def _preconditions(template: Generated) -> dict[str, Any]:
    preconditions = {"uid": template.uid, "resourceVersion": template.version}
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}


def _needed(pods: Collection[str]) -> str:
    first, *others = pods
    more = f" and {len(others)} more" if others else ""
    return f"pod {first}{more} refer{'' if others else 's'} to it"
