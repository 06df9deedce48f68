"""Asks the API server for the permissions of users, for policies that read `authorizer`."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cluster.resources import ACCESS_REVIEWS, SELF_ACCESS_REVIEWS
from kubecel.library.authorization import AccessDecision, Question
from runtime.api_errors import FORBIDDEN, ApiServerError, StatusError
from runtime.api_server import ApiServer, decoded

log = logging.getLogger(__name__)

_TIMEOUT: Final = 1.0
_PAUSE: Final = 10.0
"""Seconds between looks at the own right to ask."""
_OWN: Final = {
    "apiVersion": "authorization.k8s.io/v1",
    "kind": "SelfSubjectAccessReview",
    "spec": {
        "resourceAttributes": {"group": ACCESS_REVIEWS.group, "resource": ACCESS_REVIEWS.plural, "verb": "create"}
    },
}
_SELECTORS: Final = {"fieldSelector": "field_selector", "labelSelector": "label_selector"}
_FIX: Final = (
    "the webhook may not create subjectaccessreviews: set validation.accessReviews: true in the chart's values"
)


class _ReviewStatus(msgspec.Struct):
    allowed: bool = False
    reason: str = ""
    evaluationError: str = ""  # noqa: N815 - the API's spelling


class _Review(msgspec.Struct):
    status: _ReviewStatus


_decode: Final = msgspec.json.Decoder(_Review).decode


class AccessReviews:
    """Creates SubjectAccessReviews.

    Attributes:
        problem: that a policy reads `authorizer`, and the webhook may not ask, with the fix; empty if it may.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.problem = ""

    def check(self) -> tuple[bool, str]:
        """For `/readyz`: always ready, because other policies need no such right."""
        return True, self.problem

    async def watch(self, needed: Callable[[], bool]) -> None:
        """Compare the own right with what the policies in force need, until cancelled."""
        while True:
            await self.look(needed=needed())
            await asyncio.sleep(_PAUSE)

    async def look(self, *, needed: bool) -> None:
        """Set `problem`; it stays as it is while the API server does not answer."""
        try:
            found = "" if not needed or await self._may_ask() else f"a policy reads authorizer, and {_FIX}"
        except ApiServerError:
            return
        if found and not self.problem:
            log.warning("policies cannot be evaluated", extra={"problem": found})
        self.problem = found

    async def _may_ask(self) -> bool:
        body = await self._server.request("POST", SELF_ACCESS_REVIEWS.path(), timeout=_TIMEOUT, body=_OWN)
        return decoded(_decode, body).status.allowed

    async def ask(self, user: Mapping[str, Any], question: Question) -> AccessDecision | str:
        """A `policies.applying.knowledge.ReviewAccess`."""
        try:
            body = await self._server.request(
                "POST", ACCESS_REVIEWS.path(), timeout=_TIMEOUT, body=review(user, question)
            )
            status = decoded(_decode, body).status
        except StatusError as error:
            return _FIX if error.code == FORBIDDEN else str(error)
        except ApiServerError as error:
            return str(error)
        return AccessDecision(status.allowed, status.reason, status.evaluationError)


def review(user: Mapping[str, Any], question: Question) -> dict[str, object]:
    """The SubjectAccessReview for a question."""
    if question.account is None:
        spec: dict[str, object] = {"user": user.get("username") or "", "groups": user.get("groups") or []}
        spec |= {key: user[key] for key in ("uid", "extra") if user.get(key)}
    else:
        namespace, name = question.account
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        spec = {"user": f"system:serviceaccount:{namespace}:{name}", "groups": groups}
    if question.path:
        spec["nonResourceAttributes"] = {"path": question.path, "verb": question.verb}
    else:
        fields = ("group", "resource", "subresource", "namespace", "name", "verb")
        about: dict[str, object] = {"version": "*", **{key: getattr(question, key) for key in fields}}
        # The API server leaves out a selector that it cannot parse, as the authorizer of its own policies does.
        selectors = {key: getattr(question, attribute) for key, attribute in _SELECTORS.items()}
        about |= {key: {"rawSelector": text} for key, text in selectors.items() if text}
        spec["resourceAttributes"] = about
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
