"""What reviewers with policies need of a request: the policies that may match it, its Namespace, and permissions."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from conversion.facts import NamespaceView
from conversion.objects.wire import AdmissionRequest
from kubecel.errors import CelRuntimeError
from kubecel.library.authorization import AccessDecision, Question
from neuron.findings import Finding
from policies.applying.requests import ReviewAccess, bare_subject, placed, with_whole_namespace
from policies.judging import matching
from policies.judging.knowledge import NOTHING_KNOWN, DeviceKnowledge
from policies.judging.rules import MutatingRule, ValidatingRule
from policies.judging.subjects import RequestSubject, UnansweredError
from webhook.reviews.worker_threads import seconds_left

_LOOK_UP: Final = 0.4
"""Share of a review's remaining time that look-ups may use."""
_LONGEST_LOOK_UP: Final = 1.0
"""Seconds."""
_NAMESPACE_POLL: Final = 0.02
_KINDS_REMEMBERED: Final = 512
_LONGEST_KIND: Final = 1024


def look_up_seconds() -> float:
    """How long a look-up may take now; the rest of the review's time is for evaluation."""
    return min(_LONGEST_LOOK_UP, max(0.0, seconds_left() * _LOOK_UP))


AnyRule = TypeVar("AnyRule", bound=ValidatingRule | MutatingRule)


class MatchingPolicies(Generic[AnyRule]):
    """The policies whose resource rules can match a request; remembered by kind, and none for most kinds."""

    def __init__(self, rules: Iterable[AnyRule]) -> None:
        self._rules = tuple(rules)
        self._found: dict[tuple[object, ...], tuple[AnyRule, ...]] = {}

    def of(self, request: AdmissionRequest) -> tuple[AnyRule, ...]:
        """The policies for such a request.

        Raises:
            msgspec.DecodeError: `resource` nests too deeply.
        """
        kind = request.kind
        resources = bytes(request.resource), bytes(request.requestResource)
        key = (kind, *resources, request.subResource, request.operation, bool(request.namespace))
        found = self._found.get(key)
        if found is None:
            bare = dataclasses.replace(bare_subject(request), namespace="any" if request.namespace else "")
            found = tuple(rule for rule in self._rules if matching.could_match(rule.match, bare))
            if len(self._found) < _KINDS_REMEMBERED and _length(key) <= _LONGEST_KIND:
                self._found[key] = found
        return found


def _length(key: tuple[object, ...]) -> int:
    """Characters of a cache key; the sender of the request chooses them."""
    kind, *others = key
    texts = [getattr(kind, field) for field in ("kind", "group", "version")] + others
    return sum(len(text) for text in texts if isinstance(text, str | bytes))


def unreadable(request: AdmissionRequest, error: Exception) -> Finding:
    """The error for an object that cannot be decoded: policies must not admit it."""
    message = f"policies cannot read the {request.kind.kind}: {error}."
    return Finding("NEU114", "", message, "Compare it with the API reference of its kind.")


async def subject_for(
    rules: Iterable[ValidatingRule | MutatingRule],
    request: AdmissionRequest,
    view: NamespaceView,
    knowledge: DeviceKnowledge = NOTHING_KNOWN,
) -> RequestSubject:
    """The subject of a request, without its objects, and with what policies read of its Namespace.

    Raises:
        msgspec.DecodeError: `resource` nests too deeply.
    """
    subject = bare_subject(request, view, knowledge)
    for rule in rules:
        if rule.reads_namespace:
            return await _with_namespace(subject, view)
    return subject


async def _with_namespace(subject: RequestSubject, view: NamespaceView) -> RequestSubject:
    """The subject with all fields of its Namespace. A new Namespace reaches the cache after a moment."""
    found = with_whole_namespace(subject, view)
    if not found.namespace_unknown or view.namespace_labels(subject.namespace) is not None:
        return found
    for _ in range(int(look_up_seconds() / _NAMESPACE_POLL)):
        await asyncio.sleep(_NAMESPACE_POLL)
        if view.namespace_labels(subject.namespace) is not None:
            break
    return with_whole_namespace(placed(subject, view), view)


MOST: Final = 32
"""Questions of one request; the cost of one allows a policy 28."""
LONGEST: Final = 16 * 1024
"""Characters of one question, which is sent to the API server: expressions make it of what users write."""
_Result = TypeVar("_Result")


class Asking:
    """Which policies of a set ask for permissions, and where they are looked up."""

    def __init__(self, rules: Iterable[ValidatingRule | MutatingRule], review: ReviewAccess) -> None:
        self._names = {rule.name for rule in rules if rule.asks}
        self._review = review

    def prepared(
        self, candidates: Iterable[ValidatingRule | MutatingRule], subject: RequestSubject
    ) -> tuple[RequestSubject, "Answers"]:
        """The subject with the answers for its request, if one of the policies asks, and these answers."""
        answers = Answers(self._review, subject.user_info)
        if self._names and any(rule.name in self._names for rule in candidates):
            subject = dataclasses.replace(subject, ask=answers)
        return subject, answers


class Answers:
    """The answers for one request, each asked once."""

    def __init__(self, review: ReviewAccess, user: Mapping[str, Any]) -> None:
        self._review = review
        self._user = user
        self._known: dict[Question, AccessDecision | str] = {}

    def __call__(self, question: Question) -> AccessDecision:
        """A `kubecel.library.authorization.Ask`.

        Raises:
            UnansweredError: it was not asked yet.
            CelRuntimeError: there is no answer.
        """
        found = self._known.get(question)
        if found is None:
            raise UnansweredError(question)
        if isinstance(found, str):
            raise CelRuntimeError(f"the permission {question} is not known: {found}")
        return found

    async def complete(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """The result of an evaluation, which is repeated for each question."""
        while True:
            try:
                return await work()
            except UnansweredError as error:
                self._known[error.question] = await self._answer(error.question)

    async def _answer(self, question: Question) -> AccessDecision | str:
        if len(self._known) >= MOST:
            return f"policies ask for more than {MOST} permissions of one request"
        if sum(len(part) for part in dataclasses.astuple(question) if isinstance(part, str)) > LONGEST:
            return f"the question has more than {LONGEST} characters"
        try:
            async with asyncio.timeout(look_up_seconds()):
                return await self._review(self._user, question)
        except TimeoutError:
            return "the API server did not answer in time"
