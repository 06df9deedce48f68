"""A replica's Lease: writing and reading it, and what replicas tell each other."""

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping, Sequence

import pytest
from kubernetes.aio.client.configuration import Configuration

from cluster.kinds.replicas import ANNOTATION_REPLICA, DURATION, ReplicaStatus, lease_body, micro_time, read_lease
from runtime.api_transport import Connection
from tests.support.fake_api import FakeApi, eventually
from webhook.cluster.leases import LeaseIdentity, Leases

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


class Known:
    """The types of a replica."""

    def __init__(self, **types: tuple[str, ...]) -> None:
        self.types: dict[str, tuple[str, ...]] = {name.replace("_", "."): labels for name, labels in types.items()}
        self.on_types: Callable[[], None] = lambda: None

    def static_types(self) -> Mapping[str, tuple[str, ...]]:
        return self.types

    def learn_types(self, types: Mapping[str, Sequence[str]]) -> None:
        before = dict(self.types)
        self.types |= {name: tuple(labels) for name, labels in types.items()}
        if self.types != before:
            self.on_types()


async def test_replicas_with_different_histories_know_the_same_types() -> None:
    """Also one that starts later, and from a replica that has ended."""
    async with FakeApi().serve() as api:

        async def load() -> Configuration:
            return Configuration(host=api.url)

        connection = await Connection.open(load)
        one, two, three = Known(trn1_32xlarge=("trn1.32xlarge",)), Known(inf2_48xlarge=("ml.inf2.48xlarge",)), Known()
        tasks: list[asyncio.Task[None]] = []

        def start(name: str, known: Known) -> None:
            report = lambda: ReplicaStatus(types=dict(known.static_types()))  # noqa: E731
            leases = Leases(connection, LeaseIdentity("neuron-dra", name), report)
            leases.share(known)
            tasks.extend(asyncio.create_task(each) for each in (leases.cache.run(), leases.run()))

        start("one", one)
        start("two", two)
        both = {"trn1.32xlarge": ("trn1.32xlarge",), "inf2.48xlarge": ("ml.inf2.48xlarge",)}
        await eventually(lambda: one.types == both and two.types == both)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        start("three", three)
        await eventually(lambda: three.types == both)
        tasks[-1].cancel()
        tasks[-2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connection.close()
