"""What reviewers with policies need of a request: the policies that may match it, its Namespace, permissions; and where
policies are evaluated on it: on the event loop for a bounded time, else in the lane.

Many short evaluations together delay other reviews as much as one long evaluation. So each namespace has a token bucket
of event-loop time. When it is empty, the policies on the namespace's objects run in the lane. All namespaces together
have one more, because a client that reaches the port can send reviews of any number of namespaces. When it is empty, an
evaluation that takes longer than an ordinary review is repeated in the lane.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

from conversion.facts import NamespaceView
from conversion.objects.wire import AdmissionRequest
from kubecel.budget import Clock
from kubecel.errors import CelRuntimeError
from kubecel.library.authorization import AccessDecision, Question
from neuron.findings import Finding
from policies.applying.requests import ReviewAccess, bare_subject, placed, with_whole_namespace
from policies.judging import matching
from policies.judging.evaluate import REVIEW_LIMIT, TakesLongError, TimeLimit
from policies.judging.knowledge import NOTHING_KNOWN, DeviceKnowledge
from policies.judging.rules import MutatingRule, ValidatingRule
from policies.judging.subjects import RequestSubject, UnansweredError
from runtime.retries import Once
from webhook.reviews import effort
from webhook.reviews.worker_threads import LARGE_OBJECT, Inline, Lane, LaneFullError, Result, seconds_left

log = logging.getLogger(__name__)

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
            # The sender of the request chooses how long they are.
            texts = (kind.kind, kind.group, kind.version, *resources, request.subResource, request.operation)
            if len(self._found) < _KINDS_REMEMBERED and sum(map(len, texts)) <= _LONGEST_KIND:
                self._found[key] = found
        return found


class FailureLog:
    """Logs each error of a policy once, for one set of policies."""

    def __init__(self) -> None:
        self._logged: Once[tuple[str, str]] = Once()

    def log(self, failures: Iterable[tuple[str, str]]) -> None:
        """Names of policies, and the places of their errors."""
        for policy, place in failures:
            if self._logged.first((policy, place)):
                log.warning("policy failed", extra={"policy": policy, "error": place})


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


MOST_QUESTIONS: Final = 32
"""Questions of one request; the cost of one allows a policy 28."""
LONGEST_QUESTION: Final = 16 * 1024
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
        if len(self._known) >= MOST_QUESTIONS:
            return f"policies ask for more than {MOST_QUESTIONS} permissions of one request"
        if sum(len(part) for part in dataclasses.astuple(question) if isinstance(part, str)) > LONGEST_QUESTION:
            return f"the question has more than {LONGEST_QUESTION} characters"
        try:
            async with asyncio.timeout(look_up_seconds()):
                return await self._review(self._user, question)
        except TimeoutError:
            return "the API server did not answer in time"


# --- where policies are evaluated -----------------------------------------------------------------------------------

_NEW_SELECTORS: Final = 2
"""Compiling one takes one or two milliseconds. A claim with more of them is evaluated in the lane at once: an attempt
that is given up costs the event loop as much as a review."""
ON_LOOP: Final = TimeLimit(0.005, raises=True, selectors=_NEW_SELECTORS)
"""For the policies on one small object on the event loop; a longer evaluation is repeated in the lane."""
MOST: Final = 0.02
"""Seconds on the event loop for the policies on all objects of one namespace, within `WINDOW`."""
WINDOW: Final = 0.1
"""Seconds."""
ORDINARY: Final = 0.001
"""Seconds that one evaluation may take without being counted: a review takes as long without policies."""
OF_ALL: Final = 2
"""All namespaces together may use so many times the time of one."""
_MOST_NAMESPACES: Final = 1024
_BRIEF: Final = TimeLimit(ORDINARY, raises=True, selectors=_NEW_SELECTORS)
_TURN: Final = 0.02
"""Seconds between two attempts of a small review to enter a full lane."""


class Allowance:
    """The remaining event-loop time by namespace. Used on the event loop only."""

    def __init__(self, clock: Clock = time.perf_counter, *, most: float = MOST, window: float = WINDOW) -> None:
        """Allow each namespace `most` seconds in any `window`; `clock` is monotonic, in seconds."""
        self._clock = clock
        # Wall-clock time includes waiting for the interpreter lock while the lane's thread has it.
        self._worked = time.thread_time if clock is time.perf_counter else clock
        self._most = most
        self._rate = most / window
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._of_all = (0.0, 0.0)

    def lasts(self, namespace: str) -> bool:
        """Whether policies may be evaluated on the event loop for the namespace."""
        return self._owed(namespace, self._clock()) < self._most

    def limit(self) -> TimeLimit:
        """The time limit of one evaluation on the event loop."""
        used, then = self._of_all
        if not used or used - (self._clock() - then) * self._rate * OF_ALL < self._most * OF_ALL:
            return ON_LOOP
        return _BRIEF

    @contextlib.contextmanager
    def spending(self, namespace: str) -> Iterator[None]:
        """Count the time inside the context."""
        started = self._worked()
        try:
            yield
        finally:
            now, worked = self._clock(), self._worked() - started
            if worked > ORDINARY:
                self._used[namespace] = (self._owed(namespace, now) + worked, now)
                used, then = self._of_all
                self._of_all = (max(0.0, used - (now - then) * self._rate * OF_ALL) + worked, now)
                self._used.move_to_end(namespace)
                if len(self._used) > _MOST_NAMESPACES:
                    self._used.popitem(last=False)

    def _owed(self, namespace: str, now: float) -> float:
        """Seconds that the namespace has used, minus the seconds refilled since."""
        used, then = self._used.get(namespace, (0.0, now))
        return max(0.0, used - (now - then) * self._rate)


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """Where policies are evaluated, and the clock that bounds them.

    Attributes:
        clock: monotonic, in seconds.
        allowance: the time for policies on the event loop.
    """

    clock: Clock = time.perf_counter
    lane: Lane = dataclasses.field(default_factory=Inline)
    allowance: Allowance = dataclasses.field(default_factory=Allowance)

    async def read(self, namespace: str, size: int, work: Callable[[], Result]) -> Result:
        """What a request of `size` bytes has, read on the event loop or in the lane.

        Raises:
            LaneError: it is not done before the caller's time-out.
        """
        return work() if size <= LARGE_OBJECT else await self.lane.run(namespace, work, effort.of_reading(size))

    async def run(
        self,
        namespace: str,
        size: int,
        work: Callable[[TimeLimit], Result],
        estimate: Callable[[], float],
        expected: Callable[[], float] = float,
    ) -> Result:
        """The result of policies on a request of `size` bytes: on the event loop if that takes milliseconds, else in
        the lane.

        Args:
            work: evaluates within a time limit; with one that raises on the event loop. Pure.
            estimate: seconds in the lane.
            expected: seconds that such work took before.

        Raises:
            LaneError: it is not done before the caller's time-out.
        """
        run = self.lane.run
        if size <= LARGE_OBJECT:
            limit = self.allowance.limit()
            if self.allowance.lasts(namespace) and (limit is ON_LOOP or expected() <= limit.seconds):
                with self.allowance.spending(namespace), contextlib.suppress(TakesLongError):
                    return work(limit)
            run = functools.partial(run_with_retry, self.lane)
        until = self.clock() + seconds_left()

        def in_turn() -> Result:
            return work(TimeLimit(min(REVIEW_LIMIT.seconds, max(0.0, until - self.clock()))))

        return await run(namespace, in_turn, estimate())


async def run_with_retry(lane: Lane, namespace: str, work: Callable[[], Result], seconds: float = 0.0) -> Result:
    """Run work on a small object in the lane; retry while the lane is full.

    Raises:
        LaneError: it is not done before the caller's time-out.
    """
    while True:
        try:
            return await lane.run(namespace, work, seconds)
        except LaneFullError:
            if seconds_left() <= 2 * _TURN:
                raise
            await asyncio.sleep(_TURN)
