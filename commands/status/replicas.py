"""Checks of the webhook: Deployment, Service, and the status of each replica in its Lease."""

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from cluster.kinds.replicas import LABELS, Replica, read_lease
from commands.cluster.reader import Object, Unseen, items
from commands.present import listed
from commands.status.lines import StatusCheck, StatusLine
from commands.status.snapshot import NAME, StatusSnapshot
from runtime.text import cited, counted, named

CHECK: Final = StatusCheck("replicas")
SERVICE: Final = StatusCheck("service")
POLICIES: Final = StatusCheck("policies")

_LOOK: Final = "kubectl -n {} get pods -l app.kubernetes.io/component=webhook"
_SAME: Final[tuple[tuple[str, Callable[[Replica], str]], ...]] = (
    ("versions", lambda replica: replica.report.version),
    ("modes", lambda replica: replica.report.mode),
    ("CA bundles", lambda replica: replica.report.bundle[:12]),
    ("certificates", lambda replica: replica.report.serving[:12]),
    ("policies", lambda replica: replica.report.policies[:12]),
)


def living(snapshot: StatusSnapshot, now: dt.datetime) -> tuple[Replica, ...]:
    """Replicas whose Lease has not expired, by name."""
    return tuple(each for each in _replicas(snapshot) if each.lives(now))


def _replicas(snapshot: StatusSnapshot) -> list[Replica]:
    return sorted(filter(None, map(read_lease, items(snapshot.leases))), key=lambda replica: replica.name)


def check(snapshot: StatusSnapshot, now: dt.datetime) -> Iterator[StatusLine]:
    """Check the Deployment, then the Leases."""
    yield from _deployment(snapshot)
    if isinstance(snapshot.leases, Unseen):
        yield CHECK.unseen(snapshot.leases)
        return
    alive = living(snapshot, now)
    gone = [each for each in _replicas(snapshot) if not each.lives(now)]
    if gone:
        last = max(each.renewed for each in gone)
        text = f"{counted(len(gone), 'replica')} stopped reporting, the last on {last:%Y-%m-%d %H:%M} UTC: "
        yield CHECK.note(f"{text}{listed(named(each.name) for each in gone)}.")
    serving = _serving(snapshot)
    for each in alive:
        if serving is not None and each.report.ready and each.name not in serving:
            text = f"{named(each.name)} reported to be ready at {each.renewed:%H:%M:%S} UTC, and its pod is no ready"
            yield CHECK.note(
                f"{text} endpoint of the Service: it was killed or deleted, or its node does not answer.",
                _LOOK.format(snapshot.namespace),
            )
        else:
            yield from _replica(each)
    yield from _differences(alive)
    if not alive:
        yield CHECK.note("no replica reports on itself by a Lease.")


def _deployment(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    if isinstance(snapshot.deployments, Unseen):
        yield CHECK.unseen(snapshot.deployments)
        return
    ours = [item for item in snapshot.deployments if _is_ours(item, snapshot.namespace)]
    if not ours and snapshot.outside:
        yield CHECK.note("the webhook runs outside the cluster: its configurations call a URL.")
    elif not ours:
        labels = ",".join(f"{key}={value}" for key, value in LABELS.items())
        text = f"there is no Deployment with labels {labels} in namespace {snapshot.namespace}."
        yield CHECK.wrong(text, "Set --namespace to its namespace, or install it.")
    for item in ours:
        yield _availability(item, snapshot.namespace)


def _availability(item: Object, namespace: str) -> StatusLine:
    name, status = item["metadata"]["name"], item.get("status") or {}
    wanted, available = item["spec"].get("replicas", 1), status.get("availableReplicas") or 0
    text = f"Deployment {name}: {available} of {wanted} available"
    if available < wanted or not wanted:
        fix = _LOOK.format(namespace) if wanted else f"kubectl -n {namespace} scale deployment {name} --replicas=2"
        return CHECK.wrong(f"{text}.", fix)
    if (status.get("updatedReplicas") or 0) < wanted:
        return CHECK.note(f"{text}, a rollout is under way.")
    return CHECK.well(f"{text}.")


def _is_ours(item: Object, namespace: str) -> bool:
    metadata = item["metadata"]
    return bool(metadata["namespace"] == namespace and LABELS.items() <= (metadata.get("labels") or {}).items())


def _serving(snapshot: StatusSnapshot) -> set[str] | None:
    """Names of the pods that are ready endpoints; None if the endpoints do not tell: they are not seen, or no pods."""
    if isinstance(snapshot.endpoint_slices, Unseen) or not snapshot.service or snapshot.outside:
        return None
    endpoints = _endpoints(snapshot.endpoint_slices)
    if any((each.get("targetRef") or {}).get("kind") != "Pod" for each in endpoints):
        return None
    return {each["targetRef"]["name"] for each in endpoints if _receives(each)}


def _endpoints(slices: Iterable[Object]) -> list[Object]:
    return [each for item in slices for each in item.get("endpoints") or ()]


def _receives(endpoint: Object) -> bool:
    """Whether an endpoint gets requests; discovery.k8s.io/v1: no condition means ready."""
    return bool((endpoint.get("conditions") or {}).get("ready", True))


def _replica(replica: Replica) -> Iterator[StatusLine]:
    report = replica.report
    what = ", ".join(
        filter(
            None, (report.version and f"version {named(report.version)}", report.mode and f"mode {named(report.mode)}")
        )
    )
    if not report.ready:
        why = "; ".join(map(cited, report.problems)) or "it reports no reason"
        yield CHECK.wrong(f"{named(replica.name)} is not ready: {why}.")
        return
    yield CHECK.well(f"{named(replica.name)} is ready{': ' + what if what else ''}.")
    for problem in report.problems:
        yield CHECK.note(f"{named(replica.name)} reports: {cited(problem)}.")


def _differences(replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    for words, value in _SAME:
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for each in replicas:
            groups[value(each)].append(each.name)
        if len(groups) > 1:
            shown = "; ".join(f"{named(key or 'none')}: {listed(names)}" for key, names in sorted(groups.items()))
            yield CHECK.note(f"replicas differ in their {words}: {shown}. Normal during a rollout.")


def check_service(snapshot: StatusSnapshot) -> Iterator[StatusLine]:
    """Check that calls can reach the webhook."""
    if snapshot.outside:
        return
    for seen in (snapshot.service, snapshot.endpoint_slices):
        if isinstance(seen, Unseen):
            yield SERVICE.unseen(seen)
    if isinstance(snapshot.service, Unseen):
        return
    where = f"Service {snapshot.namespace}/{NAME}"
    if not snapshot.service:
        yield SERVICE.wrong(f"{where} does not exist: no call can arrive.", "Apply it as shipped.")
        return
    if isinstance(snapshot.endpoint_slices, Unseen):
        return
    if ready := sum(map(_receives, _endpoints(snapshot.endpoint_slices))):
        yield SERVICE.well(f"{where}: {counted(ready, 'ready endpoint')}.")
    else:
        text = f"{where} has no ready endpoint: every call fails."
        yield SERVICE.wrong(text, _LOOK.format(snapshot.namespace))


def check_policies(replicas: Sequence[Replica]) -> Iterator[StatusLine]:
    """Check the active policies, and refused changes."""
    refused = [each for each in replicas if each.report.policies_problem]
    for each in refused:
        since = f" of {named(each.report.policies_since)}" if each.report.policies_since else ""
        text = f"{named(each.name)} keeps its last valid policies{since}: {cited(each.report.policies_problem)}"
        yield POLICIES.wrong(text, "Fix the policy file; `neuron-dra policy check` reads it as the webhook does.")
    digests = sorted({each.report.policies[:12] for each in replicas if each.report.policies})
    if digests and not refused:
        yield POLICIES.well(f"in force: {listed(map(named, digests))}.")
    if replicas and not digests:
        yield POLICIES.well("none.")
