"""Reads the webhook's own records from a cluster: the logs of its replicas, and its Events."""

from collections.abc import Mapping
from typing import Any, Final

from cluster.kinds.replicas import LABELS
from cluster.resources import EVENTS, POD_LOGS, PODS
from commands.cluster.listing import Lister, unseen
from commands.report import shadow
from commands.report.model import Shadowed
from neuron.names import EVENT_CONTROLLER, EVENT_REASON
from runtime.api_errors import ApiAnswerError, ApiServerError
from runtime.api_server import ApiServer, Resource, loaded_object
from runtime.raw_objects import Page, read_page

_CONTAINER: Final = "webhook"
_LINES: Final = 20_000
"""Log lines that are read of each replica: about 6 MiB."""
_MOST_REPLICAS: Final = 16
_TIMEOUT: Final = 60.0


async def read_records(
    server: ApiServer, webhook_namespace: str, namespace: str, notes: list[str]
) -> tuple[Shadowed, ...]:
    """What the webhook reported about pods.

    Args:
        webhook_namespace: where the webhook runs.
        namespace: only pods of this one; empty: all.
        notes: receives what cannot be read.
    """
    found = [*await _logged(server, webhook_namespace, notes), *await _events(server, namespace, notes)]
    return tuple(each for each in found if not namespace or each.namespace == namespace)


async def _logged(server: ApiServer, webhook_namespace: str, notes: list[str]) -> tuple[Shadowed, ...]:
    selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
    names = [
        str(item["metadata"]["name"])
        for item in await _list(server, PODS, webhook_namespace, {"labelSelector": selector}, notes)
    ]
    lines: list[bytes] = []
    for name in names[:_MOST_REPLICAS]:
        path = f"{PODS.path(webhook_namespace, name)}/log"
        query = {"container": _CONTAINER, "tailLines": str(_LINES)}
        try:
            lines += (await server.request("GET", path, timeout=_TIMEOUT, query=query, accept="*/*")).splitlines()
        except ApiServerError as error:
            notes.append(f"shadow mode: {_why(error, POD_LOGS, webhook_namespace)}")
    return shadow.of_log(lines)


async def _events(server: ApiServer, namespace: str, notes: list[str]) -> tuple[Shadowed, ...]:
    ours = {"fieldSelector": f"reason={EVENT_REASON},reportingController={EVENT_CONTROLLER}"}
    return shadow.of_events(await _list(server, EVENTS, namespace, ours, notes))


async def _list(
    server: ApiServer, resource: Resource, namespace: str, query: Mapping[str, str], notes: list[str]
) -> list[dict[str, Any]]:
    found: list[dict[str, object]] = []

    def take(page: Page) -> None:
        for raw in page.items or ():
            try:
                found.append(loaded_object(bytes(raw)))
            except ApiAnswerError:
                continue  # Not written by the webhook.

    try:
        await Lister(server).read(resource.path(namespace), query, read_page, take, found.clear)
    except ApiServerError as error:
        notes.append(f"records of the webhook: {_why(error, resource, namespace)}")
        return []
    return found


def _why(error: ApiServerError, resource: Resource, namespace: str) -> str:
    seen = unseen(error, resource, "get" if resource is POD_LOGS else "list", namespace)
    return str(seen)
