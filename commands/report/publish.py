"""Makes and writes report objects of an audit: `Report` of openreports.io/v1alpha1, or `PolicyReport` of
wgpolicyk8s.io. It creates, replaces and deletes its own, and no others.

Sources: the schemas of openreports/reports-api and kubernetes-sigs/wg-policy-prototypes. Both groups have the same
fields but for `source` and `configuration`, and the severities that older versions of the second do not know.

One report per namespace, and one for cluster-scoped objects. A report has the results that are not `pass`; its summary
counts all. A long one continues in further objects.
"""

import dataclasses
import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from commands.cluster.reader import ClusterReader, Object, Unseen, unseen, whole
from commands.report.model import RESULTS, Audit, AuditViolation, Report
from neuron import names
from neuron.findings import short
from runtime.api_server import CONFLICT, NOT_FOUND, ApiServer, ApiServerError, Resource, StatusError

SOURCE: Final = names.MANAGER
NAME: Final = "neuron-dra"
LABELS: Final = {names.LABEL_MANAGED_BY: names.MANAGER, "app.kubernetes.io/name": NAME}
MOST_RESULTS: Final = 500
"""Results of one object: with the longest messages about 1 MB, below the 1.5 MiB of etcd."""
_LONGEST_MESSAGE: Final = 800


@dataclasses.dataclass(frozen=True, slots=True)
class ReportApi:
    """The API of report objects that a cluster serves."""

    group: str
    version: str

    @property
    def open(self) -> bool:
        """Whether it is openreports.io."""
        return self.group == OPEN_REPORTS

    def resource(self, *, namespaced: bool) -> Resource:
        plural = ("reports" if namespaced else "clusterreports") if self.open else None
        return Resource(self.group, self.version, plural or ("policyreports" if namespaced else "clusterpolicyreports"))

    def kind(self, *, namespaced: bool) -> str:
        kind = "Report" if self.open else "PolicyReport"
        return kind if namespaced else f"Cluster{kind}"


OPEN_REPORTS: Final = "openreports.io"
POLICY_REPORTS: Final = "wgpolicyk8s.io"
KINDS: Final = {OPEN_REPORTS: "Report", POLICY_REPORTS: "PolicyReport"}
"""API groups in order of preference, and the kind that must be served."""
_OLDER_SEVERITIES: Final = {"critical": "high", "info": "low"}


def bodies(
    audit: Audit, api: ReportApi, now: dt.datetime, known: Iterable[Mapping[str, object]]
) -> list[dict[str, object]]:
    """The report objects, by namespace and name.

    Args:
        now: the time of new results.
        known: the objects of the last run; a result that is in them keeps its time.
    """
    times = _times(known)
    by_namespace: defaultdict[str, list[AuditViolation]] = defaultdict(list)
    summaries: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (namespace, result), count in audit.counts.items():
        summaries[namespace][result] += count
    for violation in audit.violations:
        by_namespace[violation.ref.namespace].append(violation)
    made = []
    for namespace in sorted(summaries):
        found = sorted(
            by_namespace[namespace],
            key=lambda each: (each.policy, each.ref.kind, each.ref.name, each.path, each.result, each.message),
        )
        parts = [found[at : at + MOST_RESULTS] for at in range(0, len(found), MOST_RESULTS)] or [[]]
        for number, part in enumerate(parts, start=1):
            counts = Counter(each.result for each in part)
            if number == 1:
                counts["pass"] = summaries[namespace]["pass"]
            results = [_result(each, api, times, now) for each in part]
            made.append(_body(namespace, number, api, counts, results))
    return made


def _body(
    namespace: str, number: int, api: ReportApi, counts: Counter[str], results: Sequence[dict[str, object]]
) -> dict[str, object]:
    metadata: dict[str, object] = {"name": NAME if number == 1 else f"{NAME}-{number}", "labels": dict(LABELS)}
    scope: dict[str, object] = {}
    if namespace:
        metadata["namespace"] = namespace
        scope = {"scope": {"apiVersion": "v1", "kind": "Namespace", "name": namespace}}
    extra: dict[str, object] = {}
    if api.open:
        limits = {"maxResults": MOST_RESULTS, "statusFilter": list(RESULTS[1:])}
        extra = {"source": SOURCE, "configuration": {"limits": limits}}
    return {
        "apiVersion": f"{api.group}/{api.version}",
        "kind": api.kind(namespaced=bool(namespace)),
        "metadata": metadata,
        **extra,
        **scope,
        "summary": {result: counts[result] for result in RESULTS},
        "results": list(results),
    }


def _result(
    violation: AuditViolation, api: ReportApi, times: Mapping[object, int], now: dt.datetime
) -> dict[str, object]:
    ref = violation.ref
    subject = {**ref.fields, "uid": ref.uid}
    severity = violation.severity if api.open else _OLDER_SEVERITIES.get(violation.severity, violation.severity)
    properties = {"action": violation.action, "podTemplate": violation.path, "severity": violation.severity}
    made: dict[str, object] = {
        "source": SOURCE,
        "policy": violation.policy,
        "category": "Neuron",
        "severity": severity,
        "result": violation.result,
        "scored": violation.result != "warn",
        "message": short(violation.message, _LONGEST_MESSAGE),
        "resources": [{key: value for key, value in subject.items() if value}],
        "properties": {key: value for key, value in properties.items() if value},
    }
    seconds = times.get(_identity(made), int(now.timestamp()))
    return {**made, "timestamp": {"seconds": seconds, "nanos": 0}}


def _times(known: Iterable[Mapping[str, Any]]) -> dict[Any, int]:
    found: dict[object, int] = {}
    for each in known:
        for result in each.get("results") or ():
            seconds = (result.get("timestamp") or {}).get("seconds")
            if isinstance(seconds, int):
                found[_identity(result)] = seconds
    return found


def _identity(result: Mapping[str, Any]) -> tuple[Any, ...]:
    resource: Mapping[str, object] = (result.get("resources") or ({},))[0]
    path = (result.get("properties") or {}).get("podTemplate")
    own = (result.get(key) for key in ("policy", "result", "message"))
    return (*own, path, *(resource.get(key) for key in ("kind", "namespace", "name", "uid")))


_TIMEOUT: Final = 30.0
_OURS: Final = ",".join(f"{key}={value}" for key, value in LABELS.items())
_COMPARED: Final = ("apiVersion", "kind", "source", "configuration", "scope", "summary", "results")

Key = tuple[str, str]
"""Namespace and name."""


class CannotPublishError(Exception):
    """The results cannot be written; the message has the reason and the fix."""


async def publish(reader: ClusterReader, report: Report, namespace: str = "") -> str:
    """Write the results of a report's audit.

    Args:
        namespace: only this one was read; empty: all.

    Returns:
        What was written, one sentence.

    Raises:
        CannotPublishError: no report API is served, or a permission is missing.
    """
    if report.audit is None:
        raise CannotPublishError("there are no results: no policy for validation was loaded.")
    server = reader.server
    api = await _api(reader)
    known = await _known(reader, api, namespace)
    now = dt.datetime.fromisoformat(report.made)
    wanted = {_key(body): body for body in bodies(report.audit, api, now, known.values())}
    counts = {"created": 0, "updated": 0, "unchanged": 0, "deleted": 0}
    for key, body in wanted.items():
        counts[await _write(server, api, body, known.get(key))] += 1
    for key in known.keys() - wanted.keys():
        await _send(server, "DELETE", api, key, None)
        counts["deleted"] += 1
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{api.kind(namespaced=True)} objects of {api.group}/{api.version}: {told}."


async def _api(reader: ClusterReader) -> ReportApi:
    try:
        served = await reader.served()
    except ApiServerError as error:
        raise CannotPublishError(f"cannot read which APIs are served: {error}.") from error
    for group, kind in KINDS.items():
        found = served.get((group, kind))
        if found is not None:
            return ReportApi(group, found.resource.version)
    raise CannotPublishError(
        f"the cluster serves no API for policy reports: install the CustomResourceDefinitions of {' or '.join(KINDS)}."
    )


async def _known(reader: ClusterReader, api: ReportApi, namespace: str) -> dict[Key, Object]:
    """The objects of the last run. With a namespace, cluster-scoped ones are left alone."""
    found: dict[Key, Object] = {}
    for namespaced in (True, False) if not namespace else (True,):
        resource = api.resource(namespaced=namespaced)
        seen = await reader.list(resource, namespace if namespaced else "", keep=whole, labelSelector=_OURS)
        if isinstance(seen, Unseen):
            raise CannotPublishError(str(seen))
        found |= {_key(item): item for item in seen}
    return found


async def _write(server: ApiServer, api: ReportApi, body: dict[str, Any], known: Mapping[str, Any] | None) -> str:
    key = _key(body)
    if known is None:
        await _send(server, "POST", api, key, body)
        return "created"
    if all(known.get(field) == body.get(field) for field in _COMPARED):
        return "unchanged"
    metadata = {**body["metadata"], "resourceVersion": known["metadata"]["resourceVersion"]}
    await _send(server, "PUT", api, key, {**body, "metadata": metadata})
    return "updated"


_VERBS: Final = {"POST": "create", "PUT": "update", "DELETE": "delete"}
_FINE: Final = {"PUT": CONFLICT, "DELETE": NOT_FOUND}
"""Answers after which the next run puts things right: another run has written or deleted the object."""


async def _send(server: ApiServer, method: str, api: ReportApi, key: Key, body: dict[str, Any] | None) -> None:
    namespace, name = key
    resource = api.resource(namespaced=bool(namespace))
    path = resource.path(namespace, "" if method == "POST" else name)
    try:
        await server.request(method, path, timeout=_TIMEOUT, body=body)
    except ApiServerError as error:
        if isinstance(error, StatusError) and error.code == _FINE.get(method):
            return
        raise CannotPublishError(str(unseen(error, resource, _VERBS[method], namespace))) from error


def _key(item: Mapping[str, Any]) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
