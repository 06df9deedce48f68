"""The alerts over the series of each fault: its own alert fires, and no other."""

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.charts import find, render
from tests.support.promql import Rule, Series, labels_of

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/chart/files/alerts.yaml"
RULES = [Rule.make(rule) for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
METRICS = (ROOT / "docs/reference/metrics.md").read_text()
PROMTOOL = shutil.which("promtool")

BEGIN: Final = 65
"""Minute in which a fault begins: an alert may compare with the hour before."""
LONG: Final = 45
"""Minutes after which the alerts of a fault are read; the longest `for` is 30."""

GONE: Final = "_"
"""The series has ended."""
WEBHOOKS: Final = ("webhook-1", "webhook-2")
DRIVERS: Final = ("driver-1", "driver-2", "driver-3")
_PER_MINUTE: Final = re.compile(r"\+(\d+)")


def webhook(name: str, instance: str = "webhook-1", **labels: str) -> str:
    return series(name, job="neuron-dra", instance=instance, **labels)


def driver(name: str, instance: str = "driver-1", **labels: str) -> str:
    return series(name, job="neuron-dra/neuron-dra-kubelet-plugin", instance=instance, **labels)


def daemon_set(name: str) -> str:
    return series(f"kube_daemonset_status_{name}", namespace="neuron-dra", daemonset="neuron-dra-kubelet-plugin")


def series(name: str, **labels: str) -> str:
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in sorted(labels.items()))}}}"


def gauges(made: Any, instance: str, values: Mapping[str, str]) -> dict[str, str]:
    return {made(name, instance): value for name, value in values.items()}


FAR: Final = "99999999"
OK, CHECKED = "neuron_dra_webhook_configuration_ok", "neuron_dra_webhook_configuration_check_age_seconds"
ANSWERED, SKEW = "neuron_dra_api_server_answer_age_seconds", "neuron_dra_clock_skew_seconds"
DRIVER_SKEW: Final = "neuron_dra_plugin_clock_skew_seconds"
PROBLEM: Final = "neuron_dra_problem"
PARTS: Final = ("certificate", "ca-bundle", "leases", "policy-rules", "client-ca", "device-class")
MUTATING = {"configuration": "MutatingWebhookConfiguration"}
VALIDATING = {"configuration": "ValidatingWebhookConfiguration"}
ENTRIES: Final = (
    MUTATING | {"entry": "mutate.neuron.aws.com"},
    MUTATING | {"entry": "groups.mutate.neuron.aws.com"},
    VALIDATING | {"entry": "claims.validate.neuron.aws.com"},
)
RESOURCES: Final = ("namespaces", "nodes", "resourceslices.resource.k8s.io")
COMPONENTS: Final = ("publish", "sweep", "node", "claim-status")
DURATION: Final = "neuron_dra_review_duration_seconds"


def healthy() -> dict[str, str]:
    """Series -> its value, or `+N` for a counter that increases by N a minute."""
    made: dict[str, str] = {}
    for replica in WEBHOOKS:
        made |= gauges(
            webhook,
            replica,
            {
                "up": "1",
                "neuron_dra_ready": "1",
                CHECKED: "20",
                ANSWERED: "5",
                SKEW: "0.4",
                f"{DURATION}_count": "+0",
                "neuron_dra_serving_certificate_not_after_timestamp_seconds": FAR,
                "neuron_dra_ca_not_after_timestamp_seconds": FAR,
                "neuron_dra_policy_last_reload_success": "1",
                "neuron_dra_policy_older_set_timestamp_seconds": "0",
                "neuron_dra_policy_kept": "1",
            },
        )
        made |= {webhook(OK, replica, **entry): "1" for entry in ENTRIES}
        made |= {
            webhook(f"{DURATION}_count", replica, path="/mutate"): "+60",
            webhook(f"{DURATION}_bucket", replica, path="/mutate", le="0.1"): "+60",
            webhook(f"{DURATION}_bucket", replica, path="/mutate", le="5"): "+60",
            webhook(f"{DURATION}_bucket", replica, path="/mutate", le="+Inf"): "+60",
            webhook("neuron_dra_review_errors_total", replica, path="/mutate", code="503"): "+0",
            webhook("neuron_dra_shed_reviews_total", replica, path="/mutate", reason="busy"): "+0",
            webhook("neuron_dra_policy_errors_total", replica, policy="few"): "+0",
            webhook(EXPIRY, replica, policy="few", exception="old"): FAR,
            webhook("neuron_dra_template_failures_total", replica, code="NEU301"): "+0",
            webhook("neuron_dra_events_total", replica, result="failed"): "+0",
            webhook("neuron_dra_decision_lines_lost_total", replica): "+0",
            webhook("neuron_dra_refused_connections_total", replica): "+0",
            webhook(CONVERSIONS, replica, outcome="converted", reason="", resource="neuron"): "+10",
            webhook(CONVERSIONS, replica, outcome="denied", reason="count", resource="neuron"): "+0",
        }
        del made[webhook(f"{DURATION}_count", replica)]
        made |= {webhook(PROBLEM, replica, part=part): "0" for part in PARTS}
        made |= {
            webhook(name, replica, resource=resource): value
            for name, value in (("neuron_dra_cache_behind", "0"), ("neuron_dra_cache_age_seconds", "60"))
            for resource in RESOURCES
        }
    for node in DRIVERS:
        made |= gauges(
            driver,
            node,
            {
                "up": "1",
                "neuron_dra_plugin_slices_published": "1",
                "neuron_dra_plugin_device_plugin_active": "0",
                "neuron_dra_plugin_other_driver_active": "0",
                "neuron_dra_plugin_registered": "1",
                DRIVER_SKEW: "0.4",
                "neuron_dra_plugin_faulty_kubelet": "0",
                "neuron_dra_plugin_slice_dropped_fields": "0",
            },
        )
        made |= {driver(CONSECUTIVE, node, component=component): "0" for component in COMPONENTS}
        made |= {
            driver(CLAIMS, node, operation="prepare", result="error"): "+0",
            driver("neuron_dra_plugin_kept_claims", node, reason="in-use"): "0",
            driver("neuron_dra_plugin_node_check", node, check="CDI", result="wrong"): "0",
            driver("neuron_dra_plugin_ultraserver_publish", node, offer="both"): "1",
            driver("neuron_dra_plugin_ultraserver_publish", node, offer="node"): "0",
            driver("neuron_dra_plugin_devices", node, health="unhealthy"): "0",
            driver(MEMORY, node, **HELD): "4096",
            driver(POWER, node, device="neuron-device-0"): "0",
        }
    return made | {daemon_set("desired_number_scheduled"): "3", daemon_set("number_available"): "3"}


EXPIRY = "neuron_dra_policy_exception_expiry_timestamp_seconds"
CONVERSIONS = "neuron_dra_conversions_total"
MEMORY, POWER = "neuron_dra_device_memory_used_bytes", "neuron_dra_device_power_ratio"
HELD = {"device": "neuron-device-0", "cores": "0-7", "namespace": "ns", "pod": "p", "container": "main", "claim": "c"}
CLAIMS = "neuron_dra_plugin_claims_total"
CONSECUTIVE = "neuron_dra_plugin_consecutive_errors"


@dataclasses.dataclass(frozen=True)
class Fault:
    """What a fault changes in the series, and the alerts that fire.

    Attributes:
        changes: series -> its values from then on, as in `healthy`; or several, each for a number of minutes: `1x5 0`.
        fires: name of an alert -> how many of it.
        minutes: for which the fault lasts until the alerts are read.
    """

    changes: Mapping[str, str]
    fires: Mapping[str, int]
    minutes: int = LONG


def all_of(instance: str) -> dict[str, str]:
    """Every series of one instance has ended."""
    return {name: GONE for name in healthy() if f'instance="{instance}"' in name}


def down(instance: str, made: Any = driver) -> dict[str, str]:
    """A process that does not answer a scrape."""
    return all_of(instance) | {made("up", instance): "0"}


def on_all(made: Any, instances: tuple[str, ...], name: str, value: str, **labels: str) -> dict[str, str]:
    return {made(name, each, **labels): value for each in instances}


def fault(name: str, changes: Mapping[str, str], *alerts: str, minutes: int = LONG) -> Any:
    """A case whose name begins with the alert that fires once, unless other alerts are given."""
    fires = alerts or (name.partition(":")[0],)
    return pytest.param(Fault(changes, dict.fromkeys(fires, 1), minutes), id=name)


AVAILABLE = daemon_set("number_available")
DESIRED = daemon_set("desired_number_scheduled")
NO_API_SERVER = (
    {driver(CONSECUTIVE, node, component=component): "1x1 2x1 3" for node in DRIVERS for component in COMPONENTS}
    | {name: "1" for name in healthy() if name.startswith("neuron_dra_cache_behind")}
    | {name: "60x1 +60" for name in healthy() if name.startswith("neuron_dra_cache_age_seconds")}
    | {webhook(PROBLEM, each, part=part): "1" for each in WEBHOOKS for part in ("leases", "ca-bundle", "policy-rules")}
    | on_all(webhook, WEBHOOKS, "neuron_dra_policy_kept", "0")
    | on_all(webhook, WEBHOOKS, CHECKED, "60x1 +60")
    | on_all(webhook, WEBHOOKS, ANSWERED, "60x1 +60")
)
FAULTS = [
    fault("NeuronDRAWebhookDown: its pods are gone", all_of("webhook-1") | all_of("webhook-2")),
    fault("NeuronDRAWebhookDown: its pods do not answer", down("webhook-1", webhook) | down("webhook-2", webhook)),
    fault("NeuronDRAReplicaNotReady", {webhook("neuron_dra_ready"): "0"}),
    fault("NeuronDRAReplicaNotReady: it does not answer", down("webhook-1", webhook)),
    fault(
        "NeuronDRAWebhookConfigurationChanged: one entry", on_all(webhook, WEBHOOKS, OK, "0", **ENTRIES[0]), minutes=4
    ),
    fault(
        "NeuronDRAWebhookConfigurationChanged: deleted",
        {name: "0" for name in healthy() if name.startswith(OK) and "Mutating" in name},
        minutes=4,
    ),
    fault("NeuronDRAWebhookConfigurationUnknown", on_all(webhook, WEBHOOKS, CHECKED, "60x1 +60")),
    fault(
        "NeuronDRACacheBehind: one resource may not be watched",
        {name: "1" for name in healthy() if name.startswith("neuron_dra_cache_behind") and '"nodes"' in name},
    ),
    fault(
        "NeuronDRACertificatesNotKept: the Secret is deleted and may not be made",
        on_all(webhook, WEBHOOKS, PROBLEM, "1", part="certificate"),
    ),
    fault("NeuronDRACertificatesNotKept", {webhook(PROBLEM, part="ca-bundle"): "1"}),
    fault("NeuronDRALeasesFail", {webhook(PROBLEM, part="leases"): "1"}),
    fault("NeuronDRAPolicyRulesNotFollowed", {webhook(PROBLEM, part="policy-rules"): "1"}),
    fault("NeuronDRAClientCANotLoaded", {webhook(PROBLEM, part="client-ca"): "1"}),
    fault("NeuronDRADeviceClassMissing", {webhook(PROBLEM, part="device-class"): "1"}),
    fault("clocks behind", on_all(webhook, WEBHOOKS, SKEW, "3600"), "NeuronDRAClockSkewed"),
    fault("NeuronDRAClockSkewed", {webhook(SKEW): "-90"}),
    fault("NeuronDRAClockSkewed", {driver(DRIVER_SKEW): "90"}),
    fault("NeuronDRAClockSkewed", {driver(DRIVER_SKEW): "-90"}),
    fault("NeuronDRAEventsNotWritten", {webhook("neuron_dra_events_total", result="failed"): "+1"}),
    fault("NeuronDRALogLinesLost", {webhook("neuron_dra_decision_lines_lost_total"): "+1"}),
    fault("NeuronDRAConnectionsRefused", {webhook("neuron_dra_refused_connections_total"): "+1"}),
    fault("NeuronDRAOtherDriver", {driver("neuron_dra_plugin_other_driver_active"): "1"}),
    fault("NeuronDRAReviewsFailing", {webhook("neuron_dra_review_errors_total", path="/mutate", code="503"): "+6"}),
    fault("NeuronDRAReviewsSlow", on_all(webhook, WEBHOOKS, f"{DURATION}_bucket", "+0", path="/mutate", le="0.1")),
    fault("NeuronDRAReviewsShed", {webhook("neuron_dra_shed_reviews_total", path="/mutate", reason="busy"): "+1"}),
    fault(
        "NeuronDRACertificateEnds", {webhook("neuron_dra_serving_certificate_not_after_timestamp_seconds"): "500000"}
    ),
    fault("NeuronDRAPolicyReloadFailed", {webhook("neuron_dra_policy_last_reload_success"): "0"}),
    fault(
        "NeuronDRAOldPoliciesInForce",
        {
            webhook("neuron_dra_policy_last_reload_success"): "0",
            webhook("neuron_dra_policy_older_set_timestamp_seconds"): str(BEGIN * 60),
        },
        minutes=25 * 60,
    ),
    fault("NeuronDRAPoliciesNotKept", {webhook("neuron_dra_policy_kept"): "0"}),
    fault("NeuronDRAPolicyErrors", {webhook("neuron_dra_policy_errors_total", policy="few"): "+1"}),
    fault("NeuronDRAPolicyExceptionEnds", {webhook(EXPIRY, policy="few", exception="old"): "500000"}),
    fault("NeuronDRACacheBehind", {webhook("neuron_dra_cache_age_seconds", resource="namespaces"): "400"}),
    fault("NeuronDRATemplatesFail", {webhook("neuron_dra_template_failures_total", code="NEU301"): "+1"}),
    fault(
        "NeuronDRAConversionsRefused",
        on_all(webhook, WEBHOOKS, CONVERSIONS, "+0", outcome="converted", reason="", resource="neuron")
        | on_all(webhook, WEBHOOKS, CONVERSIONS, "+5", outcome="denied", reason="count", resource="neuron"),
    ),
    fault("NeuronDRAPluginClaimsFail", {driver(CLAIMS, operation="prepare", result="error"): "+1"}),
    fault("NeuronDRADriverDown: its pod is gone", all_of("driver-1") | {AVAILABLE: "2"}),
    fault("NeuronDRADriverDown: its pod does not answer", down("driver-1") | {AVAILABLE: "2"}),
    fault(
        "NeuronDRADriverDown: its DaemonSet is deleted",
        all_of("driver-1") | all_of("driver-2") | all_of("driver-3") | {AVAILABLE: GONE, DESIRED: GONE},
        minutes=30,
    ),
    fault("NeuronDRADriverNotScraped", down("driver-1") | down("driver-2")),
    fault("NeuronDRAPluginErrors", {driver(CONSECUTIVE, component="publish"): "3"}),
    fault("NeuronDRAPluginNothingPublished", {driver("neuron_dra_plugin_slices_published"): "0"}),
    fault("NeuronDRADeviceKept", {driver("neuron_dra_plugin_kept_claims", reason="in-use"): "1"}),
    fault("NeuronDRANodeCheckWrong", {driver("neuron_dra_plugin_node_check", check="CDI", result="wrong"): "1"}),
    fault("NeuronDRADevicePluginActive", {driver("neuron_dra_plugin_device_plugin_active"): "1"}),
    fault(
        "NeuronDRAUltraServerPublishesOneKind",
        {
            driver("neuron_dra_plugin_ultraserver_publish", offer="both"): "0",
            driver("neuron_dra_plugin_ultraserver_publish", offer="node"): "1",
        },
    ),
    fault("NeuronDRAPluginNotRegistered", {driver("neuron_dra_plugin_registered"): "0"}),
    fault("NeuronDRAFaultyKubelet", {driver("neuron_dra_plugin_faulty_kubelet"): "1"}),
    fault("NeuronDRADevicesUnhealthy", {driver("neuron_dra_plugin_devices", health="unhealthy"): "1"}),
    fault("NeuronDRADeviceIdle", {driver(MEMORY, **HELD): "0"}, minutes=5 * 60),
    fault("NeuronDRAPluginFieldsDropped", {driver("neuron_dra_plugin_slice_dropped_fields"): "3"}),
    # Several alerts have one cause only if that cause is common to all of them.
    fault("no API server for an hour", NO_API_SERVER, "NeuronDRAApiServerUnreachable"),
    fault(
        "no API server for one replica, and a missing right of the other",
        {name: value for name, value in NO_API_SERVER.items() if "webhook-2" not in name and "driver" not in name}
        | on_all(webhook, WEBHOOKS, "neuron_dra_cache_behind", "1", resource="nodes"),
        "NeuronDRAApiServerUnreachable",
        "NeuronDRACacheBehind",
    ),
]


def early(name: str) -> str:
    """The value of a series in the first minute without the API server."""
    return "3" if CONSECUTIVE in name else "80" if "_age_" in name else "0" if "kept" in name else "1"


QUIET = [
    pytest.param({}, id="nothing happens"),
    pytest.param(
        {name: f"{early(name)}x1 {healthy()[name]}" for name in NO_API_SERVER},
        id="no API server for a minute",
    ),
    pytest.param({driver(CLAIMS, operation="prepare", result="error"): "1"}, id="one claim fails"),
    pytest.param({driver(MEMORY, **HELD): "0"}, id="a device is idle for some minutes"),
    pytest.param(down("webhook-1", webhook) | {webhook("up"): "0x1 _"}, id="a replica is replaced"),
    pytest.param(
        all_of("driver-1") | {AVAILABLE: "2x3 3", driver("up", "driver-4"): "1", driver("up"): "0x1 _"},
        id="a driver's pod is replaced",
    ),
    pytest.param(all_of("driver-1") | {AVAILABLE: "2", DESIRED: "2"}, id="a node leaves"),
    pytest.param(
        all_of("driver-1") | all_of("driver-2") | all_of("driver-3") | {AVAILABLE: "0", DESIRED: "0"},
        id="every Neuron node leaves",
    ),
    pytest.param({DESIRED: "4", AVAILABLE: "3x5 4"}, id="a node joins"),
    pytest.param(
        {name: "0x1 1" for name in healthy() if name.startswith(OK)}, id="the configurations are applied again"
    ),
]


def samples(before: str, after: str, minutes: int) -> list[float | None]:
    """A value a minute; None: no sample."""
    made, last = expanded(before, BEGIN, 0), (BEGIN - 1) * rate(before)
    for part in after.split():
        value, _, length = part.partition("x")
        made += expanded(value, int(length or minutes), last + rate(value))
        last += int(length or minutes) * rate(value)
    return made


def rate(value: str) -> int:
    found = _PER_MINUTE.fullmatch(value)
    return int(found[1]) if found else 0


def expanded(value: str, length: int, start: int) -> list[float | None]:
    if _PER_MINUTE.fullmatch(value):
        return [float(start + at * rate(value)) for at in range(length)]
    return [None if value == GONE else float(value)] * length


def firing(directory: Path, changes: Mapping[str, str], *minutes: int) -> dict[str, int]:
    """Names and numbers of the alerts that fire after one of so many minutes; promtool has the same, where it is."""
    normal = healthy()
    made = {
        name: samples(normal.get(name, GONE), changes.get(name, normal.get(name, GONE)), minutes[-1])
        for name in normal.keys() | changes.keys()
    }
    series = Series({labels_of(name): each for name, each in made.items()})
    found = {
        each: {rule.name: number for rule in RULES if (number := len(rule.firing(series, BEGIN + each - 1)))}
        for each in minutes
    }
    if PROMTOOL is not None:
        assert by_promtool(directory, made, minutes) == found
    return {name: number for each in found.values() for name, number in each.items()}


def by_promtool(
    directory: Path, series: Mapping[str, Sequence[float | None]], minutes: Sequence[int]
) -> dict[int, dict[str, int]]:
    """The alerts of each minute, by Prometheus itself."""
    inputs = [
        {"series": name, "values": " ".join("_" if each is None else f"{each:.0f}" for each in values)}
        for name, values in series.items()
    ]
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    # promtool prints what it finds only if it expects something else.
    other = [{"labels": '{alertname="none"}', "value": -1}]
    queries = [{"expr": expression, "eval_time": f"{BEGIN + each - 1}m", "exp_samples": other} for each in minutes]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": queries}
    file = directory / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": [test]}))
    ran = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    got = re.findall(r"^\s*got: ?(.*)$", said, re.MULTILINE)
    assert len(got) == len(minutes), said
    return {
        minute: {name: int(number) for name, number in re.findall(r'alertname="(\w+)"\} (\d+)', each)}
        for minute, each in zip(minutes, got, strict=True)
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_an_alert_fires_by_its_own_fault_and_no_other_does(tmp_path: Path, fault: Fault) -> None:
    assert firing(tmp_path, fault.changes, fault.minutes) == fault.fires


@pytest.mark.parametrize("changes", QUIET)
def test_no_alert_fires_without_a_fault(tmp_path: Path, changes: Mapping[str, str]) -> None:
    assert firing(tmp_path, changes, 2, 4, 8, 12, 20, LONG) == {}


def test_a_device_that_takes_power_is_not_idle(tmp_path: Path) -> None:
    changes = {driver(MEMORY, **HELD): "0", driver(POWER, device="neuron-device-0"): "1"}
    assert firing(tmp_path, changes, 5 * 60) == {}


def test_every_alert_has_a_fault() -> None:
    assert sorted({alert for each in FAULTS for alert in each.values[0].fires}) == sorted(rule.name for rule in RULES)


def test_the_series_of_the_faults_have_the_labels_that_the_programs_export() -> None:
    told = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(neuron_dra_\w+)` \| ([^|]*) \|", METRICS, re.MULTILINE)
    }
    for each in healthy():
        name, _, inside = each.partition("{")
        family = re.sub(r"_(bucket|count)$", "", name)
        if name.startswith("neuron_dra_"):
            labels = set(re.findall(r"(\w+)=", inside)) - {"job", "instance", "le"}
            assert labels == told.get(name, told.get(family)), name


def test_times_come_from_certificates_and_policy_files_only() -> None:
    """Prometheus' clock differs from that of a node; a time by a node's clock would raise the wrong alert."""
    compared = set(re.findall(r"(neuron_dra_\w+_timestamp_seconds)", FILE.read_text()))
    assert compared == {
        "neuron_dra_serving_certificate_not_after_timestamp_seconds",
        "neuron_dra_ca_not_after_timestamp_seconds",
        "neuron_dra_policy_exception_expiry_timestamp_seconds",
        # Compared with a whole day.
        "neuron_dra_policy_older_set_timestamp_seconds",
    }


def test_the_monitors_of_the_chart_make_the_jobs_that_the_alerts_select() -> None:
    objects = render(
        {"monitoring": {"serviceMonitor": {"enabled": True}}, "networkPolicy": {"metricsFrom": [{"podSelector": {}}]}}
    )
    monitor = find(objects, "ServiceMonitor")
    [service] = [
        each
        for each in objects
        if each["kind"] == "Service"
        and monitor["spec"]["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    plugin = find(objects, "PodMonitor", "neuron-dra-kubelet-plugin")["metadata"]
    # Prometheus's operator: the name of the Service, and namespace and name of the PodMonitor.
    jobs = {service["metadata"]["name"], f"{plugin['namespace']}/{plugin['name']}"}
    selected = re.findall(r'up\{job=~"([^"]+)"\}', FILE.read_text())
    assert {job for job in jobs for pattern in selected if re.fullmatch(pattern, job)} == jobs
    assert all(sum(re.fullmatch(pattern, job) is not None for job in jobs) == 1 for pattern in selected)
    assert find(objects, "DaemonSet", *set(re.findall(r'daemonset="([^"]+)"', FILE.read_text())))
