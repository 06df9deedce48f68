"""The store of ResourceClaimTemplates: looks them up in the watch cache, and creates missing ones.

A template's name is a hash of its content, and templates do not change. Creating one twice is harmless: the second
attempt finds the first. If a user deletes a template, the watch reports it; a pod that is admitted before that stays
pending until the template exists again.

`neuron-dra templates prune` marks a template (`names.ANNOTATION_PRUNE_AFTER`) some time before it removes it. A review
that needs a marked template removes the mark first, which makes the removal fail.
"""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from cluster.kinds.claim_templates import TemplateFacts
from cluster.reflector import Key, Reflector
from cluster.resources import RESOURCE_CLAIM_TEMPLATES
from conversion.claims.templates import API_VERSION, KIND, Template, digest, version_of
from conversion.findings import named_templates
from neuron import names
from neuron.api.claim_reader import read_claim
from neuron.findings import Finding
from runtime.api_server import (
    COMPACT,
    CONFLICT,
    FORBIDDEN,
    MERGE_PATCH,
    NOT_FOUND,
    OLDEST_KUBERNETES,
    UNAUTHORIZED,
    ApiAnswerError,
    ApiServer,
    ApiServerError,
    StatusError,
    TooLongError,
    UnreachableError,
    loaded_object,
    rule_text,
)
from runtime.retries import Backoff
from webhook.reviews.reviewer import FoundTemplate, OtherTemplateError, TemplateUnavailableError

# Measures how late the event loop runs. After a time-out, the answer may have come and waited in this process: the
# time-out is then no fault of the server.
_TICK: Final = 0.02
"""Seconds between two looks at the clock."""
_LATE: Final = 0.5
"""Share of the time by which the loop was late, above which an answer may have waited in this process."""


class Punctuality:
    """How late the event loop runs while a request is under way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._due = clock()
        self._lost = 0.0

    async def watch(self) -> None:
        """Look at the clock until cancelled."""
        while True:
            self._due = self._clock() + _TICK
            await asyncio.sleep(_TICK)
            self._lost += max(0.0, self._clock() - self._due)

    @property
    def late(self) -> bool:
        """Whether this process was late for most of the time, so that an answer may have waited in it."""
        now = self._clock()
        lost = self._lost + max(0.0, now - self._due)
        return lost > _LATE * (now - self._begun)


@contextlib.contextmanager
def punctuality() -> Iterator[Punctuality]:
    """Watch the running event loop inside the context."""
    found = Punctuality()
    watching = asyncio.get_running_loop().create_task(found.watch(), name="punctuality")
    try:
        yield found
    finally:
        watching.cancel()


_REMEMBERED: Final = 60.0
_MOST_REMEMBERED: Final = 10_000
"""Templates that count as existing before the watch reports them: about 4 MiB, since names are bounded."""
# Removes any mark. Without a mark, the patch does not change the resourceVersion.
_UNMARKED: Final = {"metadata": {"annotations": {names.ANNOTATION_PRUNE_AFTER: None}}}
_CREATED: Final = "created"
_KEPT: Final = "kept from pruning"
_READ: Final = "read"


@dataclasses.dataclass(slots=True)
class TemplateCounters:
    """Templates that were not in the cache, since the start; for metrics.

    Attributes:
        created: by this process.
        found: created by another client in the meantime, with the right spec.
        failed: not created, by error code.
    """

    created: int = 0
    found: int = 0
    failed: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class _RecentTemplate:
    digest: str
    until: float


class KubeTemplates:
    """A `TemplateStore` in one cluster.

    A template that was just created, or whose mark was just removed, counts as existing until the watch reports it, at
    most a minute. So the pods of a large workload, which arrive together, create their template once.
    """

    def __init__(
        self,
        server: ApiServer,
        cache: Reflector[TemplateFacts],
        *,
        budget: float = 3.5,
        pause: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        punctuality: Callable[[], contextlib.AbstractContextManager[Punctuality]] = punctuality,
    ) -> None:
        """Create templates through `server` that are not in `cache`.

        Args:
            budget: time-out of `ensure` in seconds, within what the decision may use of the webhook's time-out.
            pause: seconds before the first retry, where the API server does not name any; doubled before each other.
            clock: monotonic seconds.
            sleep: waits a number of seconds.
            punctuality: watches how late this process is.
        """
        self._punctuality = punctuality
        self._server = server
        self._cache = cache
        self._budget = budget
        self._pause = pause
        self._clock = clock
        self._sleep = sleep
        self._made: dict[Key, _RecentTemplate] = {}
        self._flights: dict[Key, asyncio.Task[None]] = {}
        self.counters = TemplateCounters()
        cache.on_change(self._watched)

    def holds(self, namespace: str, template: Template) -> bool:
        """Whether this template, with this content, exists and is not marked. Reads memory only."""
        facts = self._cache.get(namespace, template.name)
        if facts is not None and (facts.digest != template.digest or not facts.prune_after):
            return facts.digest == template.digest
        made = self._made.get((namespace, template.name))
        return made is not None and made.digest == template.digest and self._clock() < made.until

    def other(self, namespace: str, template: Template) -> int | None:
        """See `TemplateStore.other`."""
        facts = self._cache.get(namespace, template.name)
        if facts is None or facts.digest == template.digest or 0 < facts.version < template.version:
            return None
        return facts.version

    async def ensure(self, namespace: str, template: Template) -> None:
        """Return when the template exists in the namespace; create it, or remove its mark, if necessary.

        Concurrent calls for the same template share one attempt, which continues if some callers are cancelled.

        Raises:
            OtherTemplateError: see there.
            TemplateUnavailableError: it cannot be created within the budget, or its mark cannot be removed.
        """
        if self.holds(namespace, template):
            return
        key = (namespace, template.name)
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._create(namespace, template), name=f"create {namespace}/{template.name}")
            self._flights[key] = flight
            flight.add_done_callback(functools.partial(self._landed, key))
        await asyncio.shield(flight)

    async def check(self, namespace: str, template: Template) -> bool:
        """Whether the template exists in the namespace, for a dry run: nothing is created or changed.

        A mark is ignored: `ensure` would remove it.

        Raises:
            TemplateUnavailableError: a template with this name has another spec, or the request failed.
        """
        if self.holds(namespace, template):
            return True
        try:
            found = await self._get(namespace, template)
        except StatusError:
            return False
        if found is None or _digest(found) != template.digest:
            if found is not None and 0 < version_of(found) < template.version:
                return False
            raise foreign(namespace, template, found)
        return True

    async def read(self, namespace: str, name: str) -> FoundTemplate:
        """The template of an operator, from the cache or else from the API server.

        Raises:
            TemplateUnavailableError: the request failed.
        """
        facts = self._cache.get(namespace, name)
        if facts is not None and facts.spec is not None:
            return FoundTemplate(facts.spec)
        try:
            found = await self._get(namespace, Template(name, {}, ""))
        except StatusError:
            elsewhere = set(self._cache.namespaces_of(name)) - {namespace}
            return FoundTemplate(missing=True, elsewhere=bool(elsewhere))
        return FoundTemplate() if found is None else FoundTemplate(read_claim(KIND, API_VERSION, found["spec"])[0])

    async def _get(self, namespace: str, template: Template) -> dict[str, object] | None:
        """The template as it is stored; None if it cannot be read.

        Raises:
            StatusError: it does not exist.
            TemplateUnavailableError: the request failed in another way.
        """
        path = RESOURCE_CLAIM_TEMPLATES.path(namespace, template.name)
        try:
            return _stored(await self._server.request("GET", path, timeout=self._budget))
        except TooLongError:
            return None
        except ApiServerError as error:
            if isinstance(error, StatusError) and error.code == NOT_FOUND:
                raise
            raise unavailable(error, namespace, template, _READ) from error

    async def close(self) -> None:
        """Cancel all creations."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _landed(self, key: Key, flight: asyncio.Task[None]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            error = flight.exception()  # retrieved, or asyncio logs it if all callers were cancelled
            if isinstance(error, TemplateUnavailableError):
                code = error.finding.code
                self.counters.failed[code] = self.counters.failed.get(code, 0) + 1

    def _watched(self, key: Key, _before: TemplateFacts | None, _after: TemplateFacts | None) -> None:
        self._made.pop(key, None)

    def _mark(self, key: Key, template: Template) -> str:
        facts = self._cache.get(*key)
        return facts.prune_after if facts and facts.digest == template.digest else ""

    def _remember(self, key: Key, template: Template, mark: str) -> None:
        now = self._clock()
        self._made.pop(key, None)
        while self._made and (len(self._made) >= _MOST_REMEMBERED or next(iter(self._made.values())).until <= now):
            del self._made[next(iter(self._made))]
        # A mark that appeared in the cache during the attempt may be newer than the attempt's write.
        if self._mark(key, template) == mark and (mark or self._cache.get(*key) is None):
            self._made[key] = _RecentTemplate(template.digest, now + _REMEMBERED)

    async def _create(self, namespace: str, template: Template) -> None:
        deadline = self._clock() + self._budget
        key = (namespace, template.name)
        mark = self._mark(key, template)
        pauses = Backoff(self._pause, 0.5)
        with self._punctuality() as punctuality:
            while True:
                try:
                    if not mark or not await self._keep(namespace, template, deadline):
                        await self._post(namespace, template, deadline)
                except ApiServerError as error:
                    pause = max(pauses.failed(), error.retry_after)
                    if not error.passing or self._clock() + pause >= deadline:
                        if isinstance(error, UnreachableError) and punctuality.late:
                            raise late(namespace, template, _CREATED) from error
                        raise unavailable(error, namespace, template, _CREATED) from error
                    await self._sleep(pause)
                else:
                    self._remember(key, template, mark)
                    return

    async def _keep(self, namespace: str, template: Template, deadline: float) -> bool:
        """Remove the mark of a template; False if the template does not exist."""
        try:
            kept = await self._server.request(
                "PATCH",
                RESOURCE_CLAIM_TEMPLATES.path(namespace, template.name),
                timeout=self._left(deadline),
                query={"fieldManager": names.MANAGER},
                body=_UNMARKED,
                content_type=MERGE_PATCH,
            )
        except StatusError as error:
            if error.code == NOT_FOUND:
                return False
            if error.passing:
                raise
            raise unavailable(error, namespace, template, _KEPT) from error
        found = _stored(kept)
        if found is None or _digest(found) != template.digest:
            raise foreign(namespace, template, found)
        return True

    async def _post(self, namespace: str, template: Template, deadline: float) -> None:
        try:
            stored = await self._server.request(
                "POST",
                RESOURCE_CLAIM_TEMPLATES.path(namespace),
                timeout=self._left(deadline),
                query={"fieldManager": names.MANAGER},
                body=template.manifest(namespace),
                content_type=COMPACT,
            )
        except StatusError as error:
            if error.code != CONFLICT:
                raise
        else:
            if _digest(_loaded(stored)) != template.digest:
                raise changed(namespace, template)
            self.counters.created += 1
            return
        try:
            path = RESOURCE_CLAIM_TEMPLATES.path(namespace, template.name)
            found = _stored(await self._server.request("GET", path, timeout=self._left(deadline)))
        except TooLongError:
            found = None
        except StatusError as error:
            if error.code == NOT_FOUND:
                raise UnreachableError("it existed, and was deleted before it could be read") from error
            raise
        if found is None or _digest(found) != template.digest:
            await self._replace(namespace, template, found, deadline)
            return
        self.counters.found += 1
        marked = names.ANNOTATION_PRUNE_AFTER in (found["metadata"].get("annotations") or {})
        if marked and not await self._keep(namespace, template, deadline):
            raise UnreachableError("it existed, and was pruned before it could be kept")

    async def _replace(self, namespace: str, template: Template, found: dict[str, Any] | None, deadline: float) -> None:
        """Create a template in the place of an earlier version of it; no other template is touched.

        Templates cannot change, so the earlier one is deleted, if it is still the one that was read.
        """
        if found is None or not 0 < version_of(found) < template.version:
            raise foreign(namespace, template, found)
        metadata = found["metadata"]
        same = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        path = RESOURCE_CLAIM_TEMPLATES.path(namespace, template.name)
        try:
            await self._server.request(
                "DELETE",
                path,
                timeout=self._left(deadline),
                body={"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": same},
            )
        except StatusError as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise
        raise UnreachableError("an earlier version was deleted")  # The caller tries again.

    def _left(self, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise UnreachableError(f"no time left of {self._budget:g} s")
        return left


def _loaded(body: bytes) -> dict[str, object]:
    item = loaded_object(body)
    if not all(isinstance(item.get(part), dict) for part in ("metadata", "spec")):
        raise ApiAnswerError("the answer is not a ResourceClaimTemplate")
    return item


def _stored(body: bytes) -> dict[str, Any] | None:
    """The template in an answer to GET or PATCH; None if the stored object cannot be read.

    Raises:
        ApiAnswerError: the answer does not come from the API server.
    """
    try:
        return _loaded(body)
    except ApiAnswerError:
        # A stored object is always a JSON object, whatever its content. An error page of a proxy is not.
        if body[:1] == b"{":
            return None
        raise


def _digest(item: dict[str, Any]) -> str:
    """The hash of a template's spec; empty, which matches no generated template, if it cannot be computed."""
    try:
        return digest(item["spec"])
    except (ValueError, RecursionError):
        return ""


# --- errors, for the user: cause and fix ----------------------------------------------------------------------------

_PATH: Final = "spec.resourceClaims"
"""The field of the pod that needs the template."""
_UNPROCESSABLE: Final = (422, "Invalid")
_CONFLICT: Final = (CONFLICT, "Conflict")
_UNAVAILABLE: Final = (503, "ServiceUnavailable")


def _error(code: str, status: tuple[int, str], template: Template, message: str, fix: str) -> TemplateUnavailableError:
    return TemplateUnavailableError(Finding(code, _PATH, message, fix, template.name), *status)


def foreign(namespace: str, template: Template, found: dict[str, Any] | None) -> TemplateUnavailableError:
    """The name has another spec: NEU303, or NEU122 or NEU721 for a policy's template.

    Args:
        found: the object; None: it is unreadable.
    """
    if template.version:
        version = 0 if found is None else version_of(found)
        return OtherTemplateError(named_templates.other(namespace, template, version), version)
    if template.policy:
        return _error(
            "NEU122",
            _CONFLICT,
            template,
            f"ResourceClaimTemplate {namespace}/{template.name} exists with another spec than policy"
            f" '{template.policy}' gives it, and templates cannot change.",
            "Give the template a new name in the policy, or delete the existing one if no pod uses it.",
        )
    labels = ((found or {}).get("metadata") or {}).get("labels") or {}
    ours = labels.get(names.LABEL_MANAGED_BY) == names.MANAGER
    labelled = f"it is {'' if ours else 'not '}labelled {names.LABEL_MANAGED_BY}={names.MANAGER}"
    return _error(
        "NEU303",
        _CONFLICT,
        template,
        f"ResourceClaimTemplate {namespace}/{template.name} exists with another spec than its name's hash; "
        f"{'it cannot be read' if found is None else labelled}.",
        "If nothing else uses it, delete it; it is then created again with the right spec: "
        f"kubectl delete resourceclaimtemplate {template.name} -n {namespace}",
    )


def changed(namespace: str, template: Template) -> TemplateUnavailableError:
    """NEU301: the API server stored another spec than it was sent."""
    return _error(
        "NEU301",
        _UNPROCESSABLE,
        template,
        f"ResourceClaimTemplate {namespace}/{template.name} was not stored as it was sent: the API server "
        "dropped fields whose feature gates are off, or another admission webhook changed them.",
        "Turn on the feature gates of Dynamic Resource Allocation that the pod needs, or exempt templates labelled "
        f"{names.LABEL_MANAGED_BY}={names.MANAGER} from that webhook; then delete the template.",
    )


def unavailable(error: ApiServerError, namespace: str, template: Template, done: str) -> TemplateUnavailableError:
    """NEU301, NEU302 or NEU304: a request failed. `done`: what was tried, such as `created`."""
    start = _start(namespace, template, done)
    if isinstance(error, StatusError) and error.passing:
        fix = "Try again. If the error lasts, look for what loads the API server, and at its own logs."
        return _error("NEU304", _UNAVAILABLE, template, f"{start}the API server answered {_words(error)}", fix)
    if not isinstance(error, StatusError):
        fix = "Try again. If the error lasts, check the API server and the network between it and the webhook."
        return _error("NEU302", _UNAVAILABLE, template, f"{start}{_words(error)}", fix)
    if error.code == UNAUTHORIZED:
        # Not returned as 401: the webhook's credentials are refused, not the user's.
        why = "the API server does not accept the webhook's credentials."
        return _error("NEU302", _UNAVAILABLE, template, start + why, "Restart the webhook or fix its kubeconfig.")
    why, fix = _refusal(error, namespace)
    return _error("NEU301", (error.code, error.reason or "Unknown"), template, start + why, fix)


def late(namespace: str, template: Template, done: str) -> TemplateUnavailableError:
    """NEU305: this process was too late to read an answer. `done`: as for `unavailable`."""
    why = "this replica of the webhook had too much other work to read the answer."
    fix = "Try again. If the error lasts, give the webhook more replicas or CPU (docs/operations.md)."
    return _error("NEU305", _UNAVAILABLE, template, _start(namespace, template, done) + why, fix)


def _start(namespace: str, template: Template, done: str) -> str:
    return f"ResourceClaimTemplate {namespace}/{template.name} could not be {done}: "


def _refusal(error: StatusError, namespace: str) -> tuple[str, str]:
    """Reason and fix for a refusal that a retry does not change."""
    if error.cause("NamespaceTerminating"):
        return f'namespace "{namespace}" is being deleted.', "Wait until it is deleted, create it again and try again."
    if error.code == FORBIDDEN and "exceeded quota" in error.message:
        fix = "Raise count/resourceclaimtemplates.resource.k8s.io there, or delete unused templates."
        return _words(error), fix
    if error.missing_right:
        user, verb = error.missing_right
        denied = f'is not allowed to {verb} {RESOURCE_CLAIM_TEMPLATES} in namespace "{namespace}".'
        why = f'the webhook runs as "{user}", which {denied}'
        rule = rule_text(RESOURCE_CLAIM_TEMPLATES.group, (RESOURCE_CLAIM_TEMPLATES.plural,), (verb,))
        return why, f"An administrator has to add this rule to its ClusterRole: {rule}"
    if error.code == NOT_FOUND and error.details.get("kind") == "namespaces":
        return f'namespace "{namespace}" does not exist.', f"Create it: kubectl create namespace {namespace}"
    if error.code == NOT_FOUND:
        why = "the API server does not serve resource.k8s.io/v1."
        return why, f"Kubernetes >= {OLDEST_KUBERNETES} is needed."
    return _words(error), "Change what the API server names, or the policy that refuses it."


def _words(error: ApiServerError) -> str:
    text = str(error).rstrip(".")
    return f"{text}."
