"""Writes the results of an audit as report objects: creates, replaces and deletes its own, and no others."""

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from commands.cluster.reader import ClusterReader, Object, Unseen, unseen, whole
from commands.report.model import Report
from commands.report.policy_reports import KINDS, LABELS, ReportApi, bodies
from runtime.api_errors import CONFLICT, NOT_FOUND, ApiServerError, StatusError
from runtime.api_server import ApiServer, Resource

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
        await _send(server, "DELETE", _resource(api, key), key, None)
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
        await _send(server, "POST", _resource(api, key), key, body)
        return "created"
    if all(known.get(field) == body.get(field) for field in _COMPARED):
        return "unchanged"
    metadata = {**body["metadata"], "resourceVersion": known["metadata"]["resourceVersion"]}
    await _send(server, "PUT", _resource(api, key), key, {**body, "metadata": metadata})
    return "updated"


_VERBS: Final = {"POST": "create", "PUT": "update", "DELETE": "delete"}
_FINE: Final = {"PUT": CONFLICT, "DELETE": NOT_FOUND}
"""Answers after which the next run puts things right: another run has written or deleted the object."""


async def _send(server: ApiServer, method: str, resource: Resource, key: Key, body: dict[str, Any] | None) -> None:
    namespace, name = key
    path = resource.path(namespace, "" if method == "POST" else name)
    try:
        await server.request(method, path, timeout=_TIMEOUT, body=body)
    except ApiServerError as error:
        if isinstance(error, StatusError) and error.code == _FINE.get(method):
            return
        raise CannotPublishError(str(unseen(error, resource, _VERBS[method], namespace))) from error


def _resource(api: ReportApi, key: Key) -> Resource:
    return api.resource(namespaced=bool(key[0]))


def _key(item: Mapping[str, Any]) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
