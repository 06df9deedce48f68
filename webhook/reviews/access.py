"""Looks up the permissions that policies ask for, between evaluations: an evaluation ends at its first open question,
and begins again when the answer is there."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from kubecel.errors import CelRuntimeError
from kubecel.library.authorization import AccessDecision, Question
from policies.applying.knowledge import ReviewAccess
from policies.judging.rules import MutatingRule, ValidatingRule
from policies.judging.subjects import RequestSubject, UnansweredError
from webhook.reviews.policy_requests import look_up_seconds

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
