"""The webhook configurations of a cluster against those of the release, on an API server's socket."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration
from prometheus_client import CollectorRegistry

from cluster.kinds.rendered_entries import CONFIG_MAP, MUTATING, VALIDATING
from runtime.api_transport import Connection
from tests.deploy.charts import EVERYTHING, find, render
from tests.support.fake_api import FakeApi, answer
from webhook.cluster.entry_checks import EntryChecks

NAME = "neuron-dra"
PLURALS = {MUTATING: "mutatingwebhookconfigurations", VALIDATING: "validatingwebhookconfigurations"}
RENDERED = render(EVERYTHING)
NAMESPACE = find(RENDERED, "ConfigMap", CONFIG_MAP)["metadata"]["namespace"]
MUTATE, CLAIMS = "mutate.neuron.aws.com", "claims.validate.neuron.aws.com"
NOW = 1_700_000_000.0


class Bench:
    def __init__(self, api: FakeApi, connection: Connection) -> None:
        self.api = api
        self.now = NOW
        self.checks = EntryChecks(connection, NAMESPACE, CONFIG_MAP, NAME, NAME, clock=lambda: self.now)
        self._registry = CollectorRegistry()
        self._registry.register(self.checks)

    def entry(self, name: str) -> Any:
        for plural in PLURALS.values():
            for entry in self.api.get(plural, NAME)["webhooks"]:
                if entry["name"] == name:
                    return entry
        raise AssertionError(name)

    def series(self) -> dict[tuple[str, str], float]:
        [family] = [each for each in self._registry.collect() if each.name == "neuron_dra_webhook_configuration_ok"]
        return {(each.labels["configuration"], each.labels["entry"]): each.value for each in family.samples}

    def bad(self) -> set[str]:
        return {entry for (_, entry), value in self.series().items() if not value}

    def age(self) -> float | None:
        return self._registry.get_sample_value("neuron_dra_webhook_configuration_check_age_seconds")


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Bench]:
    async with FakeApi().serve() as api:

        async def load() -> Configuration:
            return Configuration(host=api.url)

        api.put("configmaps", find(RENDERED, "ConfigMap", CONFIG_MAP))
        for kind, plural in PLURALS.items():
            made = api.put(plural, find(RENDERED, kind))
            for entry in made["webhooks"]:
                entry["clientConfig"]["caBundle"] = "eA=="
        connection = await Connection.open(load)
        try:
            yield Bench(api, connection)
        finally:
            await connection.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with serving() as made:
        yield made


async def test_every_entry_of_an_untouched_release_is_well(bench: Bench) -> None:
    bench.now += 7
    assert (bench.series(), bench.age()) == ({}, 7)
    await bench.checks.compare()
    names = {(kind, entry["name"]) for kind in PLURALS for entry in find(RENDERED, kind)["webhooks"]}
    assert bench.series() == dict.fromkeys(names, 1.0)
    assert bench.age() == 0
    assert bench.checks.check() == (True, "")


def edit(**fields: Any) -> Callable[[Any], None]:
    return lambda entry: entry.update(fields)


def client(**fields: Any) -> Callable[[Any], None]:
    return lambda entry: entry["clientConfig"].update(fields)


OTHER = {"namespace": NAMESPACE, "name": "other", "path": "/mutate"}


ALTERED: dict[str, Any] = {
    "failurePolicy is not as the release renders it": edit(failurePolicy="Ignore"),
    "rules is not as the release renders it": edit(rules=[]),
    "matchConditions is not as the release renders it": edit(matchConditions=[{"name": "no", "expression": "false"}]),
    "objectSelector is not as": edit(objectSelector={"matchLabels": {"a": "b"}}),
    "it has no caBundle": client(caBundle=""),
    f"it calls Service {NAMESPACE}/other/mutate instead of Service {NAMESPACE}/neuron-dra/mutate": client(
        service=OTHER
    ),
    f"it calls Service {NAMESPACE}/neuron-dra instead of": client(service={"namespace": NAMESPACE, "name": NAME}),
    "it calls https://elsewhere/mutate instead of": edit(
        clientConfig={"url": "https://elsewhere/mutate", "caBundle": "eA=="}
    ),
}


@pytest.mark.parametrize(("message", "change"), ALTERED.items(), ids=ALTERED)
async def test_an_altered_entry_is_not_well_until_it_is_put_back(
    bench: Bench, change: Callable[[Any], None], message: str
) -> None:
    entry = bench.entry(MUTATE)
    before = {**entry, "clientConfig": dict(entry["clientConfig"])}
    change(entry)
    await bench.checks.compare()
    assert bench.bad() == {MUTATE}
    ready, detail = bench.checks.check()
    assert ready, "reviews that arrive are answered"
    assert detail.startswith(f"{MUTATING} {NAME}, entry {MUTATE}: {message}")
    entry.clear()
    entry.update(before)
    await bench.checks.compare()
    assert (bench.bad(), bench.checks.check()) == (set(), (True, ""))


@pytest.mark.parametrize("kind", list(PLURALS))
async def test_no_entry_of_a_deleted_configuration_is_well(bench: Bench, kind: str) -> None:
    bench.api.remove(PLURALS[kind], NAME)
    await bench.checks.compare()
    assert bench.bad() == {entry["name"] for entry in find(RENDERED, kind)["webhooks"]}
    assert "it does not exist" in bench.checks.check()[1]


async def test_an_entry_that_was_removed_or_added_is_not_well(bench: Bench) -> None:
    entries = bench.api.get(PLURALS[VALIDATING], NAME)["webhooks"]
    [claims] = [each for each in entries if each["name"] == CLAIMS]
    entries.remove(claims)
    entries.append({**claims, "name": "more.validate.neuron.aws.com"})
    await bench.checks.compare()
    assert bench.bad() == {CLAIMS, "more.validate.neuron.aws.com"}
    assert f"entry {CLAIMS}: it does not exist" in bench.checks.check()[1]
    assert "entry more.validate.neuron.aws.com: the release has no such entry" in bench.checks.check()[1]


@pytest.mark.parametrize(
    ("verb", "plural", "message"),
    [
        pytest.param("get", "configmaps", "not allowed to get configmaps named neuron-dra-rendered", id="config map"),
        pytest.param("get", PLURALS[MUTATING], f"not allowed to get {PLURALS[MUTATING]} named", id="mutating"),
        pytest.param("get", PLURALS[VALIDATING], f"not allowed to get {PLURALS[VALIDATING]} named", id="validating"),
    ],
)
async def test_without_a_permission_the_last_result_stays_with_its_age(
    bench: Bench, verb: str, plural: str, message: str
) -> None:
    bench.entry(MUTATE)["failurePolicy"] = "Ignore"
    await bench.checks.compare()
    before = bench.series()
    bench.entry(MUTATE)["failurePolicy"] = "Fail"
    bench.api.forbid(verb, plural, "" if plural == "configmaps" else "admissionregistration.k8s.io")
    bench.now += 60
    await bench.checks.compare()
    assert (bench.series(), bench.age()) == (before, 60)
    ready, detail = bench.checks.check()
    assert ready
    assert detail.startswith(f"the webhook configurations are not compared with the release: {message}")
    assert "with this rule: - {apiGroups:" in detail


async def test_without_the_config_map_nothing_is_compared(bench: Bench) -> None:
    bench.api.remove("configmaps", CONFIG_MAP, NAMESPACE)
    bench.now += 7
    await bench.checks.compare()
    assert (bench.series(), bench.age()) == ({}, 7)
    assert "cannot get configmaps neuron-dra-rendered" in bench.checks.check()[1]


async def test_an_unavailable_api_server_is_asked_again(bench: Bench) -> None:
    bench.api.fault("get", "configmaps", answer(503, "ServiceUnavailable", "starting"))
    bench.now += 7
    await bench.checks.compare()
    assert bench.age() == 7
    await bench.checks.compare()
    assert bench.age() == 0
