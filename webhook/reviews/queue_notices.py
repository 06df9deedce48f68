"""Says at the first converted pod of each namespace that its queue does not count the claim (NEU232); also at the first
whose claim has alternatives, which Kueue does not admit.

The memory has a bound: beyond it, further namespaces are not told, and their decisions are those of conversion alone.
"""

import dataclasses
from typing import Final

import msgspec

from conversion.objects import pods, queues
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision

MOST_NAMESPACES: Final = 4096


class _OwnedMetadata(msgspec.Struct, frozen=True):
    labels: dict[str, object] | None = None
    annotations: dict[str, object] | None = None
    ownerReferences: list[dict[str, object]] | None = None  # noqa: N815 - the API's spelling


class _QueuedSpec(msgspec.Struct, frozen=True):
    schedulerName: str | None = None  # noqa: N815


class _Queued(msgspec.Struct, frozen=True):
    """The fields that show a queue, and the owners, which are not in the view of a pod."""

    metadata: _OwnedMetadata = _OwnedMetadata()
    spec: _QueuedSpec = _QueuedSpec()


_decode: Final = msgspec.json.Decoder(_Queued).decode


class QueueNotices:
    """Remembers the namespaces that got the warning. Used on the event loop only."""

    def __init__(self, most: int = MOST_NAMESPACES) -> None:
        """Remember at most `most` namespaces."""
        self._most = most
        self._told: set[tuple[str, bool]] = set()

    def noted(self, request: AdmissionRequest, decision: Decision) -> Decision:
        """A decision that shows a queue, with NEU232 if it is the first of its namespace that the queue does not count.

        A dry run is told, and not remembered.
        """
        if not decision.claimed_class:
            return decision
        notice = request.namespace, decision.alternatives
        if notice in self._told or len(self._told) >= self._most:
            return decision
        found = _losing(bytes(request.object), _added(decision))
        if not found:
            return decision
        if not request.dryRun:
            self._told.add(notice)
        said = f"This is said once for namespace {request.namespace}."
        told = tuple(
            queues.uncounted(each, decision.claimed_class, said, alternatives=decision.alternatives) for each in found
        )
        return dataclasses.replace(decision, warnings=(*decision.warnings, *told))


def _losing(raw: bytes, added: dict[str, str]) -> tuple[queues.Queue, ...]:
    """The queues that do not count the claim of a pod. `added`: what conversion adds, see `_added`."""
    try:
        pod = _decode(raw)
    except pods.UnreadableError:
        return ()
    labels = {**(pod.metadata.labels or {}), **{key: value for key, value in added.items() if key != queues.SCHEDULER}}
    shown = {
        "metadata": {"labels": labels, "annotations": pod.metadata.annotations},
        "spec": {"schedulerName": added.get(queues.SCHEDULER, pod.spec.schedulerName)},
    }
    by_template = queues.owned_by_job(pod.metadata.ownerReferences)
    only_pods = by_template and queues.counted_alone(labels, pod.metadata.annotations or {})
    return queues.losing_count(queues.queues_of_pod(shown, only_pods=only_pods), by_template=by_template)


def _added(decision: Decision) -> dict[str, str]:
    """Queue labels, and the scheduler's name under its pointer, that policies add to the pod."""
    return {
        queues.POINTERS[operation["path"]]: str(operation["value"])
        for operation in decision.patch
        if operation["path"] in queues.POINTERS and operation["op"] != "remove"
    }
