"""What policies need of the API server: claims by name, permissions of users, and the last good set of their files.

ResourceClaims are not cached, and a new template is not cached yet; policies that count the devices of a pod read them.
Permissions are for policies that read `authorizer`. The last good set is for the start of any replica: the chart makes
its ConfigMap, empty; the webhook may only read and replace it, and needs no right to create any.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from cluster.look_ups import MOST_LOOKUPS, RESOURCES, SECONDS, can_exist
from cluster.resources import ACCESS_REVIEWS, CONFIG_MAPS, SELF_ACCESS_REVIEWS
from conversion.objects import nesting
from kubecel.library.authorization import AccessDecision, Question
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec
from policies.files.folders import KeepError, is_kept
from runtime.api_server import (
    FORBIDDEN,
    NOT_FOUND,
    RESOURCE_GROUP,
    ApiServer,
    ApiServerError,
    StatusError,
    decoded,
    loaded_object,
)
from runtime.retries import REQUEST_TIMEOUT

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


_FIELD: Final = "policies.json.z"


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
            found = ""
            if needed:
                body = await self._server.request("POST", SELF_ACCESS_REVIEWS.path(), timeout=_TIMEOUT, body=_OWN)
                found = "" if decoded(_decode, body).status.allowed else f"a policy reads authorizer, and {_FIX}"
        except ApiServerError:
            return
        if found and not self.problem:
            log.warning("policies cannot be evaluated", extra={"problem": found})
        self.problem = found

    async def ask(self, user: Mapping[str, Any], question: Question) -> AccessDecision | str:
        """A `policies.applying.requests.ReviewAccess`."""
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


class ClaimContents:
    """Reads claims and templates from the API server by name.

    `find` is a `policies.applying.requests.FindClaims`.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def find(self, kind: str, namespace: str, names: Collection[str]) -> Mapping[str, ClaimSpec]:
        """The objects that the API server returns within `SECONDS`; none if there are more than `MOST_LOOKUPS` names.

        Args:
            kind: ResourceClaim or ResourceClaimTemplate.
        """
        if len(names) > MOST_LOOKUPS:
            return {}
        found = await asyncio.gather(*(self._read(kind, namespace, name) for name in names))
        return {name: spec for name, spec in zip(names, found, strict=True) if spec is not None}

    async def _read(self, kind: str, namespace: str, name: str) -> ClaimSpec | None:
        if not can_exist(name):
            return None
        path = RESOURCES[kind].path(namespace, name)
        try:
            body = await self._server.request("GET", path, timeout=SECONDS)
            # A larger answer is not decoded on the event loop. Few claims are.
            data = nesting.decode(body) if len(body) <= 64 * 1024 else None
        except (ApiServerError, msgspec.DecodeError):
            return None
        if not isinstance(data, dict):
            return None
        return read_claim(kind, f"{RESOURCE_GROUP}/{RESOURCES[kind].version}", data.get("spec"))[0]


class ConfigMapKeeper:
    """A `policies.files.folders.PolicyKeeper`."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self._server = server
        self._path = f"{CONFIG_MAPS.path(namespace)}/{name}"
        self._name = f"ConfigMap {namespace}/{name}"

    async def read(self) -> bytes | None:
        """What was kept last; None if nothing was.

        Raises:
            KeepError: it cannot be read.
        """
        return _content(await self._get())

    async def write(self, content: bytes, known: str) -> None:
        """Replace what was kept, unless it has the digest `known` already.

        Raises:
            KeepError: it cannot be written.
        """
        found = await self._get()
        if is_kept(_content(found), known):
            return
        # The version is that of the object that was read: another replica's write in between is a conflict.
        made = {**found, "binaryData": {_FIELD: base64.b64encode(content).decode()}}
        try:
            await self._server.request("PUT", self._path, timeout=REQUEST_TIMEOUT, body=made)
        except ApiServerError as error:
            raise KeepError(f"{self._name} cannot be written: {error}") from error

    async def _get(self) -> dict[str, object]:
        try:
            return loaded_object(await self._server.request("GET", self._path, timeout=REQUEST_TIMEOUT))
        except ApiServerError as error:
            if isinstance(error, StatusError) and error.code == NOT_FOUND:
                raise KeepError(f"{self._name} does not exist; apply it as shipped") from error
            raise KeepError(f"{self._name} cannot be read: {error}") from error


def _content(found: dict[str, object]) -> bytes | None:
    data = found.get("binaryData")
    text = data.get(_FIELD) if isinstance(data, dict) else None
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except binascii.Error:
        return b""
