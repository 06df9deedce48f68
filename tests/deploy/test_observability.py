"""Alerts, dashboard and docs use only series that a running webhook and plugin export."""

import asyncio
import contextlib
import dataclasses
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import promql_parser as promql
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from cluster.kinds.rendered_entries import CONFIG_MAP, MUTATING, VALIDATING
from kubeletplugin.checks.table import Grade
from kubeletplugin.discover.health import HealthStatus
from kubeletplugin.metrics import CoreUse, DeviceUse, PluginMetrics
from tests.deploy.charts import find, render
from tests.support.fake_api import FakeApi, answer, eventually
from tests.support.manifests import container, pod
from tests.support.serving import free_port, make_certificates, review
from webhook.server import app, settings

ROOT = Path(__file__).parents[2]
ALERTS = yaml.safe_load((ROOT / "deploy/chart/files/alerts.yaml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/chart/files/dashboard.json").read_text())
OPERATIONS = (ROOT / "docs/operations.md").read_text()
METRICS = (ROOT / "docs/reference/metrics.md").read_text()

TARGET = frozenset({"instance", "job", "namespace", "pod"})
"""Labels that Prometheus adds to every target."""

OTHERS = {
    "up": TARGET,
    "kube_daemonset_status_desired_number_scheduled": frozenset({"daemonset", "namespace"}),
    "kube_daemonset_status_number_available": frozenset({"daemonset", "namespace"}),
}
"""Labels of the series of Prometheus and kube-state-metrics."""

POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: few}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  validations:
    - expression: neuron.devices <= 4
    - expression: object.spec.priority > 1
  exceptions:
    - name: old
      owner: team-a
      reason: moving
      expires: "2099-01-01"
      matchConditions: [{name: exempt, expression: object.metadata.name == 'exempt'}]
"""


@dataclasses.dataclass(frozen=True)
class Exported:
    """Scraped series: labels by series, and values by label."""

    labels: dict[str, set[str]]
    values: dict[tuple[str, str], set[str]]
    kinds: dict[str, str]
    meanings: dict[str, str]
    """By family: the name without `_total`, `_bucket` and so on."""

    @classmethod
    def read(cls, *texts: str) -> "Exported":
        made = cls({}, {}, {}, {})
        for text in texts:
            for family in text_string_to_metric_families(text):
                made.meanings[family.name] = family.documentation
                for sample in family.samples:
                    made.kinds[sample.name] = family.type
                    made.labels.setdefault(sample.name, set()).update(sample.labels)
                    for label, value in sample.labels.items():
                        made.values.setdefault((sample.name, label), set()).add(value)
        return made


# --- a webhook and a plugin with traffic ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def webhook(directory: Path, api: FakeApi) -> AsyncIterator[app.RunningWebhook]:
    release = render()
    rendered = find(release, "ConfigMap", CONFIG_MAP)
    api.put("configmaps", rendered)
    for kind in (MUTATING, VALIDATING):
        api.put(f"{kind.lower()}s", find(release, kind))
    certificates = make_certificates(directory / "tls")
    (directory / "policies").mkdir()
    (directory / "policies" / "few.yaml").write_text(POLICY)
    flags: dict[str, Any] = {
        "kubeconfig": str(api.kubeconfig(directory)),
        "tls_dir": str(certificates.certificate.parent),
        "policies": str(directory / "policies"),
        "rendered_config_map": CONFIG_MAP,
        "families": ("trn1", "trn2"),
        "namespace": rendered["metadata"]["namespace"],
        "host": "127.0.0.1",
        "port": "0",
        "metrics_host": "127.0.0.1",
        "drain_delay": "0",
    }
    async with app.assemble(settings.load({**flags, "metrics_port": str(free_port())}, {})) as service:
        running = asyncio.create_task(service.run())
        yield service
        service.stop()
        await running


async def traffic(service: app.RunningWebhook, api: FakeApi) -> None:
    """Requests that set every label."""
    context = ssl.create_default_context(cafile=str(service.ca))
    async with httpx.AsyncClient(verify=context, base_url=service.url, trust_env=False) as client:

        async def ask(path: str, manifest: Any, **fields: Any) -> Any:
            answered = await client.post(path, json=review(object=manifest, namespace="team-a", **fields))
            return answered.json()["response"]

        assert (await ask("/mutate", pod(container(neuron=4))))["allowed"]
        assert not (await ask("/mutate", pod(container(neuron=17))))["allowed"]
        api.fault("create", "resourceclaimtemplates", answer(403, "Forbidden", "no"))
        assert not (await ask("/mutate", pod(container(neuron=8))))["allowed"]
        await ask("/validate", pod(container(neuron=4)))
        exempt = pod(container(neuron=8))
        exempt["metadata"]["name"] = "exempt"
        await ask("/validate", exempt, name="exempt")
        assert (await client.post("/mutate", content=b"{", headers={"content-type": "application/json"})).is_error
        await eventually(lambda: api.calls("create", "events"))
        await eventually(lambda: api.calls("get", "validatingwebhookconfigurations"))


@dataclasses.dataclass(frozen=True)
class Exposition:
    """One program's series in both formats that Prometheus asks for."""

    plain: str
    openmetrics: str


async def scraped(directory: Path) -> Exposition:
    async with FakeApi().serve() as api, webhook(directory, api) as service:
        await traffic(service, api)
        async with httpx.AsyncClient(trust_env=False) as client:
            plain = await client.get(service.metrics_url, headers={"accept": "text/plain"})
            accept = {"accept": "application/openmetrics-text; version=1.0.0"}
            other = await client.get(service.metrics_url, headers=accept)
            assert other.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
            return Exposition(plain.text, other.text)


def plugin() -> Exposition:
    metrics = PluginMetrics()
    for operation in ("prepare", "unprepare"):
        with contextlib.suppress(ZeroDivisionError), metrics.measured(operation):
            raise ZeroDivisionError
        metrics.slice_writes.labels("create").inc()
    for status in HealthStatus:
        metrics.devices.labels(status.name.lower()).set(1)
    for offer in ("devices", "node", "both"):
        metrics.ultraserver_publish.labels(offer).set(1)
    for grade in Grade:
        metrics.node_checks.labels("CDI", grade.value).set(1)
    use = DeviceUse("neuron-device-0", "0-7", "p", "ns", "main", "c")
    metrics.device_series.used = {use: CoreUse(memory=0, busy=0.0)}
    metrics.device_series.power = {"neuron-device-0": 0.25}
    metrics.device_series.healthy = {"neuron-device-0": True}
    return Exposition(
        generate_latest(metrics.registry).decode(), openmetrics.generate_latest(metrics.registry).decode()
    )


@pytest.fixture(scope="module")
def expositions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exposition, Exposition]:
    return asyncio.run(scraped(tmp_path_factory.mktemp("webhook"))), plugin()


@pytest.fixture(scope="module")
def exported(expositions: tuple[Exposition, Exposition]) -> Exported:
    return Exported.read(*(each.plain for each in expositions))


# --- formats ------------------------------------------------------------------------------------------------------


def series(families: Iterable[Metric]) -> set[str]:
    """All samples but times of creation, without values."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}"
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_both_formats_are_valid_and_have_the_same_series(expositions: tuple[Exposition, Exposition]) -> None:
    for each in expositions:
        # The parser of OpenMetrics is strict: order, suffixes, buckets, the end.
        found = list(openmetrics_families(each.openmetrics))
        assert {family.type for family in found} <= {"counter", "gauge", "histogram", "info"}
        assert all(family.documentation for family in found)
        assert series(text_string_to_metric_families(each.plain)) == series(found)


# --- expressions of alerts and dashboard -------------------------------------------------------------------------


def rules() -> Iterator[Any]:
    for group in ALERTS["groups"]:
        yield from group["rules"]


def panels() -> Iterator[Any]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


EXPRESSIONS = [pytest.param(rule["expr"], id=rule["alert"]) for rule in rules()] + [
    pytest.param(target["expr"].replace("$__rate_interval", "5m"), id=f"{panel['title']} {target['refId']}")
    for panel in panels()
    for target in panel["targets"]
]


def visited(expression: str, visit: Callable[[Any], None]) -> None:
    assert promql.walk(promql.parse(expression), visit)


def selectors(expression: str) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        elif isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)

    visited(expression, visit)
    return found


def grouping(expression: str) -> set[str]:
    found: set[str] = set()

    def visit(node: Any) -> None:
        modifier = getattr(node, "modifier", None)
        labels = getattr(modifier, "labels", None) or getattr(getattr(modifier, "matching", None), "labels", None)
        found.update(labels or ())

    visited(expression, visit)
    return found


def known(exported: Exported, name: str) -> set[str] | frozenset[str] | None:
    return OTHERS.get(name, exported.labels.get(name))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_uses_existing_series_and_labels(exported: Exported, expression: str) -> None:
    names = [selector.name for selector in selectors(expression)]
    assert names
    assert [name for name in names if known(exported, name) is None] == []
    everything = TARGET.union(*(known(exported, name) or () for name in names))
    assert grouping(expression) <= everything
    for selector in selectors(expression):
        for matcher in selector.matchers.matchers:
            assert matcher.name in (known(exported, selector.name) or ())
            if str(matcher.op) == "MatchOp.Equal" and selector.name not in OTHERS:
                assert matcher.value in exported.values[selector.name, matcher.name]


def test_rates_are_taken_of_counters_only(exported: Exported) -> None:
    names = {name for each in EXPRESSIONS for name in re.findall(r"(?:rate|increase)\((\w+)", str(each.values[0]))}
    assert names
    assert {name for name in names if exported.kinds.get(name) not in ("counter", "histogram")} == set()


def quoted(text: str) -> set[str]:
    return set(re.findall(r"\$labels\.(\w+)", text))


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in rules()])
def test_an_alert_uses_labels_that_its_expression_keeps(exported: Exported, rule: Any) -> None:
    kept = grouping(rule["expr"])
    if not kept:
        kept = set(TARGET).union(*(known(exported, each.name) or () for each in selectors(rule["expr"])))
    assert quoted(json.dumps(rule["annotations"])) <= kept
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_alert_has_a_runbook() -> None:
    told = re.findall(r"^### (NeuronDRA\w+)$", OPERATIONS, re.MULTILINE)
    assert sorted(told) == sorted(rule["alert"] for rule in rules())


def test_no_helm_template_is_in_the_files() -> None:
    for name in ("alerts.yaml", "dashboard.json"):
        text = (ROOT / "deploy/chart/files" / name).read_text()
        assert not re.search(r"\{\{-?\s*(\.|include|if|range|end)", text)


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert taken.isdisjoint(cells)
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["description"] for panel in panels())


ROW = re.compile(r"^\| `(neuron_dra_\w+)` \| ([^|]*) \| (.*) \|$", re.MULTILINE)


def test_the_reference_lists_every_series_with_its_labels(exported: Exported) -> None:
    told = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels, _ in ROW.findall(METRICS)}
    ours: dict[str, set[str]] = {}
    for name, labels in exported.labels.items():
        family = re.sub(r"_(bucket|sum|count)$", "", name) if exported.kinds[name] == "histogram" else name
        if name.startswith("neuron_dra_") and not name.endswith("_created"):
            ours.setdefault(family, set()).update(labels - {"le"})
    assert told == ours


def test_the_reference_has_the_help_text_of_every_series(exported: Exported) -> None:
    for name, _, meaning in ROW.findall(METRICS):
        family = re.sub(r"_(total|info)$", "", name)
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meaning).replace("`", "")
        assert text == exported.meanings.get(family, exported.meanings.get(name))
