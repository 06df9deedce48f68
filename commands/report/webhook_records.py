"""Reads the webhook's own records from a cluster: the logs of its replicas, and its Events."""

from typing import Final, TypeVar

from cluster.kinds.replicas import LABELS
from cluster.resources import EVENTS, POD_LOGS, PODS
from commands.cluster.reader import TIMEOUT, ClusterReader, Object, Seen, Unseen, items, unseen, whole
from commands.report import shadow
from commands.report.model import Shadowed
from neuron.names import EVENT_CONTROLLER, EVENT_REASON
from runtime.api_errors import ApiServerError

T = TypeVar("T")

_CONTAINER: Final = "webhook"
_LINES: Final = 20_000
"""Log lines that are read of each replica: about 6 MiB."""
_MOST_REPLICAS: Final = 16


async def read_records(
    reader: ClusterReader, webhook_namespace: str, namespace: str, notes: list[str]
) -> tuple[Shadowed, ...]:
    """What the webhook reported about pods.

    Args:
        webhook_namespace: where the webhook runs.
        namespace: only pods of this one; empty: all.
        notes: receives what cannot be read.
    """
    found = [*await _logged(reader, webhook_namespace, notes), *await _events(reader, namespace, notes)]
    return tuple(each for each in found if not namespace or each.namespace == namespace)


async def _logged(reader: ClusterReader, webhook_namespace: str, notes: list[str]) -> tuple[Shadowed, ...]:
    selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
    pods = await reader.list(PODS, webhook_namespace, keep=_name, labelSelector=selector)
    lines: list[bytes] = []
    for name in _read(pods, notes)[:_MOST_REPLICAS]:
        path = f"{PODS.path(webhook_namespace, name)}/log"
        query = {"container": _CONTAINER, "tailLines": str(_LINES)}
        try:
            log = await reader.server.request("GET", path, timeout=TIMEOUT, query=query, accept="*/*")
        except ApiServerError as error:
            notes.append(f"shadow mode: {unseen(error, POD_LOGS, 'get', webhook_namespace)}")
        else:
            lines += log.splitlines()
    return shadow.of_log(lines)


async def _events(reader: ClusterReader, namespace: str, notes: list[str]) -> tuple[Shadowed, ...]:
    ours = f"reason={EVENT_REASON},reportingController={EVENT_CONTROLLER}"
    return shadow.of_events(_read(await reader.list(EVENTS, namespace, keep=whole, fieldSelector=ours), notes))


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])


def _read(seen: Seen[T], notes: list[str]) -> tuple[T, ...]:
    if isinstance(seen, Unseen):
        notes.append(f"records of the webhook: {seen}")
    return items(seen)
