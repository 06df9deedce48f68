"""Whether the webhook may ask for permissions is said when a policy needs it, with the fix."""

import asyncio
import logging

import pytest

from runtime.api_server import UnreachableError
from tests.policies.policy_files import loaded, policy
from tests.support.answers import PreparedAnswers
from webhook.cluster.for_policies import AccessReviews

DENIED, ALLOWED = ({"status": {"allowed": each}} for each in (False, True))
ASKS = "authorizer.path('/x').check('get').allowed()"
PROBLEM = (
    "a policy reads authorizer, and the webhook may not create subjectaccessreviews: set validation.accessReviews: true"
    " in the chart's values"
)


def looked(reviews: AccessReviews, *, needed: bool = True) -> tuple[bool, str]:
    asyncio.run(reviews.look(needed=needed))
    return reviews.check()


def test_a_missing_right_is_said_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    server = PreparedAnswers(DENIED)
    reviews = AccessReviews(server)
    with caplog.at_level(logging.WARNING):
        assert [looked(reviews), looked(reviews)] == [(True, PROBLEM)] * 2
    assert [each.getMessage() for each in caplog.records] == ["policies cannot be evaluated"]
    attributes = {"group": "authorization.k8s.io", "resource": "subjectaccessreviews", "verb": "create"}
    assert server.asked == [("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")] * 2
    assert [each["body"]["spec"]["resourceAttributes"] for each in server.members] == [attributes] * 2


def test_a_right_that_was_granted_ends_the_problem() -> None:
    reviews = AccessReviews(PreparedAnswers(DENIED, ALLOWED))
    assert looked(reviews) == (True, PROBLEM)
    assert looked(reviews) == (True, "")


def test_nothing_is_asked_while_no_policy_needs_the_right() -> None:
    server = PreparedAnswers(DENIED)
    reviews = AccessReviews(server)
    looked(reviews)
    assert looked(reviews, needed=False) == (True, "")
    assert len(server.asked) == 1


def test_without_an_answer_the_last_one_stays() -> None:
    reviews = AccessReviews(PreparedAnswers(DENIED, UnreachableError("no answer")))
    looked(reviews)
    assert looked(reviews) == (True, PROBLEM)


@pytest.mark.parametrize(("expression", "asks"), [(ASKS, True), ("true", False)])
def test_which_policies_need_it(expression: str, asks: bool) -> None:
    assert loaded(policy(f'validations: [{{expression: "{expression}"}}]')).asks is asks
