"""Report objects in a cluster: created, replaced, deleted; others are left alone."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from commands.cluster.reader import ClusterReader
from commands.report.model import Report
from commands.report.publish import CannotPublishError, publish
from runtime.api_transport import Connection, load_configuration
from tests.policies.policy_files import policy
from tests.support.fake_api import FakeApi, answer
from tests.support.reports import deployment, report

OPEN = [
    ("openreports.io", "v1alpha1", "Report", "reports", True),
    ("openreports.io", "v1alpha1", "ClusterReport", "clusterreports", False),
]
OLDER = [
    ("wgpolicyk8s.io", "v1alpha2", "PolicyReport", "policyreports", True),
    ("wgpolicyk8s.io", "v1alpha2", "ClusterPolicyReport", "clusterpolicyreports", False),
]


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi().serve() as api:
        api.kinds = [*OPEN, *OLDER]
        yield api


@pytest.fixture
async def server(api: FakeApi, tmp_path: Path) -> AsyncIterator[Connection]:
    path = api.kubeconfig(tmp_path)
    server = await Connection.open(lambda: load_configuration(path))
    try:
        yield server
    finally:
        await server.close()


def audited(*names: str, namespace: str = "team-a", most: int = 2) -> Report:
    few = policy(f'validations: [{{expression: "neuron.devices <= {most}", message: too many}}]')
    return report(*(deployment(name, namespace=namespace) for name in names), policies=[few])


def foreign(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team-a", "labels": labels}, "results": []}


async def test_a_report_is_created_kept_replaced_and_deleted(api: FakeApi, server: Connection) -> None:
    assert await publish(ClusterReader(server), audited("train")) == (
        "Report objects of openreports.io/v1alpha1: 1 created, 0 updated, 0 unchanged, 0 deleted."
    )
    assert "1 unchanged" in await publish(ClusterReader(server), audited("train"))
    assert "1 updated" in await publish(ClusterReader(server), audited("train", "other"))
    found = api.get("reports", "neuron-dra", "team-a")
    assert found["summary"]["fail"] == 2
    assert "1 deleted" in await publish(
        ClusterReader(server), report(policies=[policy('validations: [{expression: "true"}]')])
    )
    assert api.calls("delete", "reports")


async def test_the_older_api_is_used_where_the_newer_one_is_not_served(api: FakeApi, server: Connection) -> None:
    api.kinds = [*OLDER]
    assert "PolicyReport objects of wgpolicyk8s.io/v1alpha2: 1 created" in await publish(
        ClusterReader(server), audited("train")
    )
    assert api.get("policyreports", "neuron-dra", "team-a")["kind"] == "PolicyReport"


@pytest.mark.parametrize(
    ("kinds", "forbidden", "message"),
    [
        ([], "", "no API for policy reports: install .* openreports.io or wgpolicyk8s"),
        ([("a", "v1", "B", 7, True)], "", "cannot read which APIs are served"),
        (None, "create", r"rule.*apiGroups: \[openreports.io\], resources: \[reports\]"),
        (None, "list", r"not allowed to list reports\.openreports\.io"),
    ],
    ids=["no API", "unreadable APIs", "no permission to create", "no permission to list"],
)
async def test_reports_that_cannot_be_written_are_an_error_with_the_fix(
    api: FakeApi, server: Connection, kinds: Any, forbidden: str, message: str
) -> None:
    if kinds is not None:
        api.kinds = kinds
    if forbidden:
        api.forbid(forbidden, "reports", "openreports.io")
    with pytest.raises(CannotPublishError, match=message):
        await publish(ClusterReader(server), audited("train"))


async def test_no_report_is_written_without_an_audit(server: Connection) -> None:
    with pytest.raises(CannotPublishError, match="no policy for validation was loaded"):
        await publish(ClusterReader(server), report())


async def test_another_run_at_the_same_time_is_no_error(api: FakeApi, server: Connection) -> None:
    await publish(ClusterReader(server), audited("train"))
    api.fault("update", "reports", answer(409, "Conflict", "the object has been modified"))
    await publish(ClusterReader(server), audited("train", "other"))
    assert api.get("reports", "neuron-dra", "team-a")["summary"]["fail"] == 1


async def test_one_namespace_leaves_the_reports_of_others_alone(api: FakeApi, server: Connection) -> None:
    await publish(ClusterReader(server), audited("a", namespace="team-b"))
    await publish(ClusterReader(server), audited("a", namespace="team-a"), "team-a")
    assert api.get("reports", "neuron-dra", "team-b")
    assert not api.calls("list", "clusterreports")[1:]
    assert {seen.query["labelSelector"] for seen in api.calls("list", "reports")} == {
        "app.kubernetes.io/managed-by=neuron-dra,app.kubernetes.io/name=neuron-dra"
    }
