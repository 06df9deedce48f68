"""Lists templates and pods page by page, and keeps only the needed fields."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from cluster.resources import PODS, RESOURCE_CLAIM_TEMPLATES
from commands.cluster.discovery import served_kinds
from commands.cluster.listing import PAGE_SIZE, Lister
from commands.prune.decide import Generated, Key, User, read_generated
from neuron import names
from neuron.api.pod_groups import GROUP, POD_GROUP, WORKLOAD, claim_lists
from runtime.api_errors import (
    FORBIDDEN,
    NOT_FOUND,
    UNAUTHORIZED,
    ApiAnswerError,
    ApiServerError,
    StatusError,
)
from runtime.api_server import OLDEST_KUBERNETES, RESOURCE_GROUP, ApiServer, Resource, loaded
from runtime.explanations import rule_text
from runtime.raw_objects import ListMeta, Page, read_page

_OURS: Final = {"labelSelector": f"{names.LABEL_MANAGED_BY}={names.MANAGER}"}


class _ClaimNames(msgspec.Struct, frozen=True):
    template: str | None = msgspec.field(default=None, name="resourceClaimTemplateName")


class _PodSpec(msgspec.Struct, frozen=True):
    claims: list[_ClaimNames] | None = msgspec.field(default=None, name="resourceClaims")


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


class CannotListError(Exception):
    """A list failed; the message has the reason and the fix."""


class Reader:
    """Lists of one cluster. Retryable errors are retried."""

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
        self._lister = Lister(server, page_size=page_size, sleep=sleep)
        self._groups: tuple[tuple[str, Resource], ...] | None = None

    async def generated(self) -> tuple[Generated, ...]:
        """The generated templates, by namespace and name.

        Raises:
            CannotListError: they cannot be listed.
        """
        found: list[Generated] = []

        def take(page: Page) -> None:
            found.extend(filter(None, map(_generated, page.items or ())))

        await self._read(RESOURCE_CLAIM_TEMPLATES, read_page, take, found.clear, _OURS)
        return tuple(sorted(found, key=lambda each: each.key))

    async def references(self) -> Mapping[Key, tuple[User, ...]]:
        """Pods in any phase, PodGroups and Workloads that refer to a ResourceClaimTemplate, by template.

        Raises:
            CannotListError: a list failed.
        """
        found = await self._pods()
        for kind, resource in await self._served_groups():
            for key, users in (await self._users(kind, resource)).items():
                found[key] += users
        return {key: tuple(sorted(users)) for key, users in found.items()}

    async def _pods(self) -> defaultdict[Key, list[User]]:
        found: defaultdict[Key, list[User]] = defaultdict(list)

        def take(page: _PodPage) -> None:
            for pod in page.items or ():
                for template in _templates(pod):
                    found[pod.metadata.namespace, template].append(("Pod", pod.metadata.name))

        await self._read(PODS, _decode_pods, take, found.clear)
        return found

    async def _served_groups(self) -> tuple[tuple[str, Resource], ...]:
        """The kinds with claims of groups that the API server serves. The set does not change in one run."""
        if self._groups is None:
            try:
                served = await served_kinds(self._server)
            except ApiServerError as error:
                raise CannotListError(f"Cannot read which kinds the API server serves: {error}.") from error
            kinds = [(kind, served.get((GROUP, kind))) for kind in (POD_GROUP, WORKLOAD)]
            self._groups = tuple((kind, each.resource) for kind, each in kinds if each is not None)
        return self._groups

    async def _users(self, kind: str, resource: Resource) -> Mapping[Key, list[User]]:
        """PodGroups or Workloads that refer to a template."""
        found: defaultdict[Key, list[User]] = defaultdict(list)

        def take(page: Page) -> None:
            for raw in page.items or ():
                item = loaded(memoryview(raw))
                metadata = item["metadata"]
                claims = [each for claims in claim_lists(kind, item) for each in claims]
                for name in {name for each in claims for _, name in each.objects}:
                    found[metadata["namespace"], name].append((kind, metadata["name"]))

        await self._read(resource, read_page, take, found.clear)
        return found

    async def _read(
        self,
        resource: Resource,
        decode: Callable[[bytes], object],
        take: Callable[[Any], None],
        restart: Callable[[], None],
        query: Mapping[str, str] | None = None,
    ) -> None:
        try:
            await self._lister.read(resource.path(self._namespace), query or {}, decode, take, restart)
        except ApiServerError as error:
            raise CannotListError(message(error, "list", resource, self._namespace)) from error


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
