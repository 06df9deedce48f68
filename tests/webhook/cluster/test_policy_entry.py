"""The entry that follows the policies in force, on an API server's socket."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest
from kubernetes.aio.client.configuration import Configuration

from cluster.kinds.replicas import ReplicaStatus, lease_body
from policies.judging.rules import PolicySet
from runtime.api_transport import Connection
from tests.policies.policy_files import loaded, policy
from tests.support.fake_api import FakeApi, Object, answer, eventually
from webhook.cluster.leases import LeaseIdentity, Leases
from webhook.cluster.policy_entry import ENTRY, PolicyEntry

NAMESPACE, NAME, PLURAL = "neuron-dra", "neuron-dra", "validatingwebhookconfigurations"
EVERY = '- {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [%s]}'


def policies_about(resource: str) -> PolicySet:
    text = policy("validations: [{expression: 'true'}]", name=resource.strip("'*") or "all")
    return loaded(text.replace(EVERY % "pods", EVERY % resource))


@dataclasses.dataclass
class Held:
    current: PolicySet


@dataclasses.dataclass
class EntryBench:
    held: Held
    entry: PolicyEntry
    leases: Leases


def put(api: FakeApi, *resources: str, name: str = ENTRY) -> None:
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": list(resources), "scope": "*"}
    ]
    entry: Object = {"name": name, "clientConfig": {}}
    first: Object = {"name": "claims.validate.neuron.aws.com", "clientConfig": {}, "rules": rules}
    api.put(
        PLURAL, {"metadata": {"name": NAME}, "webhooks": [first, {**entry, **({"rules": rules} if resources else {})}]}
    )


def resources(api: FakeApi) -> list[str]:
    _, entry = api.get(PLURAL, NAME)["webhooks"]
    return [resource for rule in entry.get("rules", ()) for resource in rule["resources"]]


@contextlib.asynccontextmanager
async def following(
    api: FakeApi, current: PolicySet, replica: str = "pod-1", settle: float = 0.05
) -> AsyncIterator[EntryBench]:
    async def load() -> Configuration:
        return Configuration(host=api.url)

    async def soon(_: float) -> None:
        await asyncio.sleep(0.01)

    held = Held(current)
    connection = await Connection.open(load)
    identity = LeaseIdentity(NAMESPACE, replica)
    leases = Leases(connection, identity, lambda: ReplicaStatus(policies=held.current.digest))
    entry = PolicyEntry(connection, NAME, held, leases, settle=settle)
    work = [entry.cache.run(), entry.run(soon), leases.cache.run(), leases.run()]
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield EntryBench(held, entry, leases)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connection.close()


async def test_rules_follow_the_policies_in_force(api: FakeApi) -> None:
    put(api)
    async with following(api, policies_about("services")) as bench:
        await eventually(lambda: resources(api) == ["services"])
        bench.held.current = policies_about("namespaces")
        await eventually(lambda: resources(api) == ["namespaces"])
        bench.held.current = PolicySet()
        await eventually(lambda: resources(api) == [])
        assert bench.entry.check() == (True, "")
    assert api.get(PLURAL, NAME)["webhooks"][0]["rules"][0]["resources"] == [], "the other entry is left"


async def test_correct_rules_are_not_written_again(api: FakeApi) -> None:
    put(api, "services")
    async with following(api, policies_about("services")) as bench:
        await eventually(lambda: bench.entry._agreed_since is not None)
        await asyncio.sleep(0.1)
    assert api.calls("patch", PLURAL) == []


async def test_rules_stay_while_another_replica_has_other_policies(api: FakeApi) -> None:
    put(api)
    async with (
        following(api, policies_about("services")) as one,
        following(api, policies_about("namespaces"), "pod-2") as two,
    ):
        await eventually(lambda: resources(api) == ["namespaces", "services"])
        await eventually(lambda: len(one.leases.living()) == 2 and len(two.leases.living()) == 2)
        await asyncio.sleep(0.2)
        assert resources(api) == ["namespaces", "services"]
        writes = one.entry.writes + two.entry.writes
        assert writes <= 2
        two.held.current = one.held.current
        await eventually(lambda: resources(api) == ["services"])


async def test_rules_of_a_replica_that_is_gone_are_removed(api: FakeApi) -> None:
    put(api, "services", "namespaces")
    async with following(api, policies_about("services"), settle=0.0) as bench:
        other = lease_body("gone", ReplicaStatus(policies="other"), bench.leases._server.now())
        other["metadata"]["namespace"] = NAMESPACE
        api.put("leases", other)
        await eventually(lambda: len(bench.leases.living()) == 2 or resources(api) == ["services"])
        api.remove("leases", "gone", NAMESPACE)
        await eventually(lambda: resources(api) == ["services"])


async def test_a_conflict_is_no_problem(api: FakeApi) -> None:
    put(api)
    api.fault("patch", PLURAL, answer(409, "Conflict", "the object has been modified"))
    async with following(api, policies_about("services")) as bench:
        await eventually(lambda: resources(api) == ["services"])
        await eventually(lambda: bench.entry.writes == 1)
        assert bench.entry.check() == (True, "")


async def test_a_missing_right_is_named(api: FakeApi) -> None:
    put(api)
    api.forbid("patch", PLURAL, "admissionregistration.k8s.io")
    async with following(api, policies_about("services")) as bench:
        await eventually(lambda: bool(bench.entry.check()[1]))
        ready, detail = bench.entry.check()
    assert ready
    assert detail.endswith(
        "- {apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], resourceNames: "
        "[neuron-dra], verbs: [patch]}"
    )


@pytest.mark.parametrize(("name", "what"), [("other.neuron.aws.com", f"webhook {ENTRY}"), (None, "object")])
async def test_a_missing_webhook_entry_is_reported(api: FakeApi, name: str | None, what: str) -> None:
    if name is not None:
        put(api, name=name)
    async with following(api, policies_about("services")) as bench:
        await eventually(lambda: bool(bench.entry.check()[1]))
        assert bench.entry.check()[1] == (
            f"validatingwebhookconfigurations neuron-dra: there is no {what}, so requests that only policies need"
            " are not sent: set the chart's validation.followPolicies, or drop --follow-policies"
        )


async def test_rules_that_are_left_out_are_reported(api: FakeApi) -> None:
    put(api)
    async with following(api, policies_about("'*'")) as bench:
        await eventually(lambda: bool(bench.entry.check()[1]))
        assert bench.entry.check()[1].startswith("policy 'all' matches CREATE of every resource: no rule is made")
        await eventually(lambda: bench.entry._agreed_since is not None)
    assert api.calls("patch", PLURAL) == []
