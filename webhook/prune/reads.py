"""Lists templates and pods page by page, and keeps only the needed fields.

Lists leave `resourceVersion` unset: they show the most recent state, and all pages of one list show the same state
(https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks).
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from neuron import names
from neuron.api_objects import ListMeta, Page, read_page
from runtime import paging
from runtime.api_errors import (
    FORBIDDEN,
    GONE,
    NOT_FOUND,
    UNAUTHORIZED,
    ApiAnswerError,
    ApiServerError,
    StatusError,
    TooLongError,
)
from webhook.cluster.api import OLDEST_KUBERNETES, RESOURCE_GROUP, ApiServer, Resource, decoded, loaded, rule_text
from webhook.cluster.caches import RESOURCE_CLAIM_TEMPLATES
from webhook.prune.decide import Generated, Key, read_generated

PODS: Final = Resource("", "v1", "pods")
PAGE_SIZE: Final = 500
TIMEOUT: Final = 60.0
"""Seconds that one request may take."""

_ATTEMPTS: Final = 3
_PAUSE: Final = 1.0
_OURS: Final = {"labelSelector": f"{names.LABEL_MANAGED_BY}={names.MANAGER}"}

P = TypeVar("P", bound=paging.ListPage)


class _Claim(msgspec.Struct, frozen=True):
    template: str | None = msgspec.field(default=None, name="resourceClaimTemplateName")


class _PodSpec(msgspec.Struct, frozen=True):
    claims: list[_Claim] | None = msgspec.field(default=None, name="resourceClaims")


class _PodMeta(msgspec.Struct, frozen=True):
    name: str
    namespace: str


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodMeta
    spec: _PodSpec


class _PodPage(msgspec.Struct, frozen=True):
    metadata: ListMeta
    items: list[_Pod] | None = None


_decode_pods: Final = msgspec.json.Decoder(_PodPage).decode


class Reader:
    """Lists of one cluster. Retryable errors are retried; others are raised as `ApiServerError`."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str = "",
        *,
        page_size: int = PAGE_SIZE,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._namespace = namespace
        self._page_size = page_size
        self._sleep = sleep

    async def generated(self) -> tuple[Generated, ...]:
        """The generated templates, by namespace and name."""
        found: list[Generated] = []

        def take(page: Page) -> None:
            found.extend(filter(None, map(_generated, page.items or ())))

        await self._list(RESOURCE_CLAIM_TEMPLATES, _OURS, read_page, take, found.clear)
        return tuple(sorted(found, key=lambda each: each.key))

    async def references(self) -> Mapping[Key, tuple[str, ...]]:
        """Pods in any phase that refer to a ResourceClaimTemplate: names of pods, by template."""
        found: defaultdict[Key, list[str]] = defaultdict(list)

        def take(page: _PodPage) -> None:
            for pod in page.items or ():
                for template in _templates(pod):
                    found[pod.metadata.namespace, template].append(pod.metadata.name)

        await self._list(PODS, {}, _decode_pods, take, found.clear)
        return {key: tuple(sorted(pods)) for key, pods in found.items()}

    async def _list(
        self,
        resource: Resource,
        query: Mapping[str, str],
        decode: Callable[[bytes], P],
        take: Callable[[P], None],
        restart: Callable[[], None],
    ) -> None:
        """Call `take` with each page; `restart` before the first page of every attempt."""
        path = resource.path(self._namespace)

        async def fetch(asked: Mapping[str, str]) -> P:
            return decoded(decode, await self._get(path, asked))

        for attempt in range(1, _ATTEMPTS + 1):
            restart()
            try:
                async with contextlib.aclosing(paging.pages(fetch, query, self._page_size, TooLongError)) as listed:
                    async for page in listed:
                        take(page)
            except StatusError as error:
                # The continue token is older than the server's history: only a new list shows one state.
                if error.code != GONE or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def _get(self, path: str, query: Mapping[str, str]) -> bytes:
        for attempt in range(1, _ATTEMPTS):
            asked_to_wait = 0.0
            try:
                return await self._server.request("GET", path, timeout=TIMEOUT, query=query)
            except StatusError as error:
                if not error.passing:
                    raise
                asked_to_wait = error.retry_after
            except TooLongError:
                raise
            except ApiServerError:
                pass  # the last attempt raises it
            await self._sleep(max(asked_to_wait, _PAUSE * attempt))
        return await self._server.request("GET", path, timeout=TIMEOUT, query=query)


def _generated(raw: msgspec.Raw) -> Generated | None:
    """The template if prune may remove it; one that cannot be read may not be removed."""
    try:
        return read_generated(loaded(memoryview(raw)))
    except (ApiAnswerError, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None


def _templates(pod: _Pod) -> Iterable[str]:
    return {claim.template for claim in pod.spec.claims or () if claim.template}


def reason(error: ApiServerError, resource: Resource) -> str:
    """The error with its fix, as the end of a sentence."""
    if not isinstance(error, StatusError):
        return str(error)
    if error.code == UNAUTHORIZED:
        return "the API server does not accept the credentials; renew them in the kubeconfig"
    if error.code == FORBIDDEN and error.missing_right:
        user, verb = error.missing_right
        return f'"{user}" lacks the rule {rule_text(resource.group, (resource.plural,), (verb,))}'
    if error.code == NOT_FOUND and resource.group == RESOURCE_GROUP:
        return f"the API server does not serve {RESOURCE_GROUP}/v1; Kubernetes >= {OLDEST_KUBERNETES} is needed"
    return str(error)


def message(error: ApiServerError, verb: str, resource: Resource, namespace: str = "") -> str:
    """The error with its fix, as a sentence for an operator."""
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    return f"Cannot {verb} {resource} {where}: {reason(error, resource)}."


def review(verb: str, namespace: str) -> dict[str, Any]:
    """A SelfSubjectAccessReview for templates in a namespace (empty: all namespaces)."""
    attributes = {
        "verb": verb,
        "group": RESOURCE_CLAIM_TEMPLATES.group,
        "version": RESOURCE_CLAIM_TEMPLATES.version,
        "resource": RESOURCE_CLAIM_TEMPLATES.plural,
        "namespace": namespace,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
