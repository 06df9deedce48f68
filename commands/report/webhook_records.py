"""The webhook's own records in a cluster: the logs of its replicas, and its Events."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from cluster.kinds.replicas import LABELS
from cluster.resources import EVENTS, POD_LOGS, PODS
from commands.cluster.reader import TIMEOUT, ClusterReader, Object, Seen, Unseen, items, unseen, whole
from commands.report.model import LOG, Shadowed, Workload
from neuron.api.fields import mapping
from neuron.codes import CODES
from neuron.findings import known_codes
from neuron.names import EVENT_CONTROLLER, EVENT_REASON
from runtime.api_server import ApiServerError
from runtime.text import named

MOST: Final = 1000
"""Entries of a report; those with the most pods are kept."""
_SHADOWED: Final = "shadowed"


class _Line(msgspec.Struct, frozen=True):
    """The fields of a line of the decision log that are read."""

    event: str = ""
    decision: str = ""
    reason: str = ""
    kind: str = ""
    dry_run: bool = False
    findings: tuple[str, ...] = ()
    namespace: str = ""
    name: str = ""
    generateName: str = ""  # noqa: N815 - the log's spelling


_decode: Final = msgspec.json.Decoder(_Line).decode


def of_log(lines: Iterable[bytes]) -> tuple[Shadowed, ...]:
    """Pods that the webhook saw in shadow mode, by name and outcome. Other lines are ignored."""
    found: Counter[tuple[str, str, str, tuple[str, ...]]] = Counter()
    for line in lines:
        if b'"shadowed"' not in line:
            continue
        try:
            read = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if (read.event, read.decision, read.dry_run) == ("decision", _SHADOWED, False):
            codes = tuple(sorted((set(read.findings) & CODES.keys()) - {"NEU208"}))
            found[read.namespace, read.generateName or read.name, read.reason, codes] += 1
    return _sorted(Shadowed(*key, count) for key, count in found.items())


def of_events(items: Iterable[Mapping[str, object]]) -> tuple[Shadowed, ...]:
    """Refusals by the webhook's Events (`events.k8s.io/v1`)."""
    found = []
    for item in items:
        regarding, series = mapping(item.get("regarding")), mapping(item.get("series"))
        note = str(item.get("note") or "")
        codes = tuple(known_codes(note))
        namespace = str(mapping(item.get("metadata")).get("namespace") or "")
        about = f"{named(regarding.get('kind') or '')} {named(regarding.get('name') or '')}"
        source = f"Event {named(mapping(item.get('metadata')).get('name') or '')}"
        count = series.get("count")
        found.append(Shadowed(namespace, about, "denied", codes, count if isinstance(count, int) else 1, source, note))
    return _sorted(found)


def by_workload(found: Sequence[Shadowed], workloads: Iterable[Workload]) -> tuple[Shadowed, ...]:
    """The same by workload: names of pods begin with the name of their controller."""
    names: dict[tuple[str, str], str] = {}
    for each in workloads:
        names[each.ref.namespace, each.ref.name] = f"{named(each.ref.kind)} {named(each.ref.name)}"
    sums: Counter[tuple[str, str, str, tuple[str, ...], str, str]] = Counter()
    for one in found:
        shown = named(one.name) if one.source == LOG else one.name
        parts = one.name.rstrip("-").split("-")
        heads = ("-".join(parts[:end]) for end in range(len(parts), 0, -1))
        name = next((names[one.namespace, head] for head in heads if (one.namespace, head) in names), shown)
        sums[one.namespace, name, one.outcome, one.codes, one.source, one.note] += one.pods
    return _sorted(
        Shadowed(namespace, name, outcome, codes, count, source, note)
        for (namespace, name, outcome, codes, source, note), count in sums.items()
    )


def _sorted(found: Iterable[Shadowed]) -> tuple[Shadowed, ...]:
    return tuple(sorted(found, key=lambda each: (-each.pods, each.namespace, each.name, each.outcome))[:MOST])


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
    return of_log(lines)


async def _events(reader: ClusterReader, namespace: str, notes: list[str]) -> tuple[Shadowed, ...]:
    ours = f"reason={EVENT_REASON},reportingController={EVENT_CONTROLLER}"
    return of_events(_read(await reader.list(EVENTS, namespace, keep=whole, fieldSelector=ours), notes))


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])


def _read(seen: Seen[T], notes: list[str]) -> tuple[T, ...]:
    if isinstance(seen, Unseen):
        notes.append(f"records of the webhook: {seen}")
    return items(seen)
