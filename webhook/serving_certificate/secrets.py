"""The Secret with our certificates: watched, read and written through the API, not through a volume.

A mounted Secret is updated after a minute or more, at a different time on each node. Writes carry the `resourceVersion`
of the content they were decided on: if several replicas write at the same time, one succeeds and the others retry.

A deleted Secret is made again, by a server-side apply: RBAC knows the name of what an apply creates, and not that of a
POST. So the right to create is limited to this one Secret: who may create others may create the token of any
ServiceAccount of the namespace.
"""

import base64
import binascii
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import orjson

from certs.material import KEYS
from cluster.reflector import Projection, Reflector
from cluster.resources import SECRETS
from neuron.names import MANAGER
from runtime.api_server import (
    APPLY,
    CONFLICT,
    FORBIDDEN,
    MERGE_PATCH,
    NOT_FOUND,
    ApiAnswerError,
    ApiServer,
    ApiServerError,
    Collection,
    StatusError,
    explain,
    rule_text,
)
from runtime.retries import REQUEST_TIMEOUT
from runtime.watching import Timing

ANNOTATION_ROTATE: Final = "neuron.aws.com/rotate"
"""Annotation of the Secret: `ca` or `leaf` requests a rotation; removed when the rotation has begun."""

_OWNERS: Final = {
    "cert-manager.io/": "cert-manager",
    "controller.cert-manager.io/": "cert-manager",
}
"""Prefixes of annotations and labels -> the controller that sets them on Secrets it manages."""


@dataclasses.dataclass(frozen=True, slots=True)
class SecretFacts:
    """The cached fields of a Secret.

    Attributes:
        version: its `resourceVersion`.
        data: our keys, decoded from base64; invalid values are left out.
        requested: the rotation that the annotation requests; empty: none.
        keeper: another controller that writes this Secret; empty: none known.
    """

    version: str
    data: Mapping[str, bytes] = dataclasses.field(repr=False)
    requested: str
    keeper: str


def project_secret(item: Mapping[str, Any]) -> SecretFacts:
    """The fields of a Secret that are cached."""
    metadata = item["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    marks = (*annotations, *labels)
    keeper = next((who for mark in marks for prefix, who in _OWNERS.items() if mark.startswith(prefix)), "")
    data = {}
    for key in KEYS:
        try:
            data[key] = base64.b64decode((item.get("data") or {})[key], validate=True)
        except (KeyError, binascii.Error):
            continue
    requested = annotations.get(ANNOTATION_ROTATE, "")
    return SecretFacts(metadata["resourceVersion"], data, requested, keeper)


class ManagedSecret:
    """Access to the Secret.

    Attributes:
        cache: the caller runs it; `facts` reads it.
    """

    def __init__(self, server: ApiServer, namespace: str, name: str, timing: Timing | None = None) -> None:
        self.namespace = namespace
        self.name = name
        self.cache = Reflector(server, Collection(SECRETS, namespace, name), Projection(project_secret), timing=timing)
        self._server = server

    @property
    def missing(self) -> str:
        """The problem if it does not exist and this account may not make it, and its fix."""
        rule = rule_text("", (SECRETS.plural,), ("create",), (self.name,))
        return (
            f"Secret {self.namespace}/{self.name} does not exist, and the webhook may not make it: create it without "
            f"data (kubectl create secret generic {self.name} --namespace={self.namespace}), and give the webhook a "
            f"Role with this rule, as helm upgrade does: {rule}"
        )

    @property
    def facts(self) -> SecretFacts | None:
        """The Secret in the watch cache; None if it does not exist."""
        return self.cache.get(self.namespace, self.name)

    async def read(self) -> SecretFacts | None:
        """Get the Secret from the API server; None if it does not exist.

        Raises:
            ApiServerError: it cannot be read.
        """
        try:
            body = await self._server.request("GET", SECRETS.path(self.namespace, self.name), timeout=REQUEST_TIMEOUT)
        except StatusError as error:
            if error.code == NOT_FOUND:
                return None
            raise
        try:
            return project_secret(orjson.loads(body))
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ApiAnswerError("the answer is no Secret") from error

    async def make(self) -> bool:
        """Make the Secret without content, as the chart has it; False: this account may not. One that exists stays.

        Raises:
            ApiServerError: it cannot be made.
        """
        path, query = SECRETS.path(self.namespace, self.name), {"fieldManager": MANAGER}
        body = {
            "apiVersion": SECRETS.version,
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": self.namespace},
        }
        try:
            await self._server.request(
                "PATCH", path, timeout=REQUEST_TIMEOUT, query=query, body=body, content_type=APPLY
            )
        except StatusError as error:
            if error.code == FORBIDDEN and error.missing_right:
                return False
            raise
        return True

    async def write(self, before: SecretFacts, data: Mapping[str, bytes] | None, *, answered: bool) -> bool:
        """Write new content, or only remove the request for a rotation; False: another replica was first.

        Args:
            before: the content that the decision was made on.
            data: the whole content; None: unchanged.
            answered: remove the request for a rotation.

        Raises:
            ApiServerError: it cannot be written.
        """
        metadata: dict[str, object] = {"resourceVersion": before.version}
        if answered:
            metadata["annotations"] = {ANNOTATION_ROTATE: None}
        body: dict[str, object] = {"metadata": metadata}
        if data is not None:
            body["data"] = {key: _encoded(data[key]) if key in data else None for key in KEYS}
        path = SECRETS.path(self.namespace, self.name)
        try:
            await self._server.request("PATCH", path, timeout=REQUEST_TIMEOUT, body=body, content_type=MERGE_PATCH)
        except StatusError as error:
            gone = error.code == NOT_FOUND and error.details.get("kind") != "namespaces"
            if error.code == CONFLICT or gone:
                return False
            raise
        return True

    def explain(self, error: ApiServerError, verb: str) -> str:
        """The problem and its fix, for an operator."""
        return explain(error, verb, SECRETS, self.namespace, self.name)


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
