"""A replica's Lease: writing and reading it."""

import datetime as dt

import pytest

from cluster.kinds.replicas import ANNOTATION_REPLICA, DURATION, ReplicaStatus, lease_body, micro_time, read_lease

NOW = dt.datetime(2026, 7, 1, 12, 30, 15, 250, tzinfo=dt.UTC)


def test_a_written_lease_is_read_back_unchanged() -> None:
    report = ReplicaStatus(version="1", mode="shadow", bundle="ab", ready=True, problems=("one",))
    replica = read_lease(lease_body("pod-1", report, NOW))
    assert replica is not None
    assert (replica.name, replica.renewed, replica.report) == ("pod-1", NOW, report)


def test_a_replica_lives_as_long_as_its_lease() -> None:
    replica = read_lease(lease_body("pod-1", ReplicaStatus(), NOW))
    assert replica is not None
    assert replica.lives(NOW + dt.timedelta(seconds=DURATION - 1))
    assert not replica.lives(NOW + dt.timedelta(seconds=DURATION))


def test_a_field_of_a_newer_version_is_skipped() -> None:
    body = lease_body("pod-1", ReplicaStatus(), NOW)
    body["metadata"]["annotations"][ANNOTATION_REPLICA] = '{"version": "9", "later": [1]}'
    replica = read_lease(body)
    assert replica is not None
    assert replica.report.version == "9"


@pytest.mark.parametrize(
    ("annotations", "spec"),
    [
        pytest.param(None, {"renewTime": micro_time(NOW)}, id="no annotation"),
        pytest.param({ANNOTATION_REPLICA: "{}"}, None, id="never renewed"),
        pytest.param({ANNOTATION_REPLICA: "{"}, {"renewTime": micro_time(NOW)}, id="no JSON"),
        pytest.param({ANNOTATION_REPLICA: "{}"}, {"renewTime": "yesterday"}, id="no time"),
    ],
)
def test_other_leases_do_not_count_as_replicas(annotations: dict[str, str] | None, spec: dict[str, str] | None) -> None:
    assert read_lease({"metadata": {"name": "x", "annotations": annotations}, "spec": spec}) is None


def test_the_lease_has_an_owner_reference() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod-1", "uid": "u"}
    assert lease_body("pod-1", ReplicaStatus(), NOW, owner)["metadata"]["ownerReferences"] == [owner]
