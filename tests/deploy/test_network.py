"""NetworkPolicies of the chart: who may reach its pods, and what they may reach."""

import helm_python as helm
import pytest

from tests.deploy.charts import EVERYTHING, Object, find, render

DRIVER = "neuron-dra-kubelet-plugin"


@pytest.fixture(scope="module")
def default() -> list[Object]:
    return render()


def test_ingress_is_for_reviews_and_egress_for_the_api_server_only(default: list[Object]) -> None:
    assert find(default, "NetworkPolicy")["spec"]["ingress"] == [{"ports": [{"port": "https"}]}]
    for name in ("neuron-dra", DRIVER, "neuron-dra-jobs"):
        policy = find(default, "NetworkPolicy", name)["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert policy["egress"] == [{"ports": [{"port": 443}, {"port": 6443}]}]
        assert name == "neuron-dra" or "ingress" not in policy


def test_every_pod_has_a_network_policy() -> None:
    everything = render(EVERYTHING)
    chosen = [each["spec"]["podSelector"] for each in everything if each["kind"] == "NetworkPolicy"]
    labels = [
        each["spec"].get("jobTemplate", each)["spec"]["template"]["metadata"]["labels"]
        for each in everything
        if each["kind"] in ("Deployment", "DaemonSet", "CronJob")
    ]
    labels += [each["metadata"]["labels"] for each in everything if each["kind"] == "Pod"]
    assert len(labels) == 6
    for each in labels:
        assert any(selects(selector, each) for selector in chosen), each


def selects(selector: Object, labels: Object) -> bool:
    listed = selector.get("matchExpressions", ())
    return selector["matchLabels"].items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in listed
    )


def test_values_open_metrics_and_egress() -> None:
    allowed = EVERYTHING["networkPolicy"]["metricsFrom"]
    server = [{"ipBlock": {"cidr": "10.0.0.10/32"}}]
    dns = {"ports": [{"port": 53, "protocol": "UDP"}], "to": [{"namespaceSelector": {}}]}
    values = {"networkPolicy": {"metricsFrom": allowed, "apiServerTo": server, "extraEgress": [dns]}}
    objects = render(values)
    scraped = {"ports": [{"port": "metrics"}], "from": allowed}
    assert find(objects, "NetworkPolicy")["spec"]["ingress"] == [{"ports": [{"port": "https"}]}, scraped]
    assert find(objects, "NetworkPolicy", DRIVER)["spec"]["ingress"] == [scraped]
    for name in ("neuron-dra", DRIVER, "neuron-dra-jobs"):
        egress = find(objects, "NetworkPolicy", name)["spec"]["egress"]
        assert egress == [{"ports": [{"port": 443}, {"port": 6443}], "to": server}, dns]


DNS = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


@pytest.mark.parametrize(
    ("endpoint", "port", "dns"),
    [
        ("http://collector.observability:4318", 4318, [DNS]),
        ("https://traces.example.com/otlp", 443, [DNS]),
        ("http://collector", 80, [DNS]),
        ("http://10.0.0.1:4318", 4318, []),
        ("http://[fd00::1]:4318", 4318, []),
    ],
    ids=["service", "https", "http", "IPv4", "IPv6"],
)
def test_pods_that_send_traces_reach_the_collector(endpoint: str, port: int, dns: list[Object]) -> None:
    there = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}]
    objects = render({"tracing": {"endpoint": endpoint}, "networkPolicy": {"collectorTo": there}})
    server = {"ports": [{"port": 443}, {"port": 6443}]}
    for name in ("neuron-dra", DRIVER):
        egress = find(objects, "NetworkPolicy", name)["spec"]["egress"]
        assert egress == [server, {"ports": [{"port": port}], "to": there}, *dns]
    assert find(objects, "NetworkPolicy", "neuron-dra-jobs")["spec"]["egress"] == [server]


def test_the_dns_of_openshift_listens_at_another_port() -> None:
    objects = render({"tracing": {"endpoint": "http://collector:4318"}, "openshift": {"enabled": True}})
    ports = find(objects, "NetworkPolicy")["spec"]["egress"][-1]["ports"]
    assert [each["port"] for each in ports] == [5353, 5353]


def test_a_monitor_without_a_way_to_the_metrics_is_refused() -> None:
    monitoring = {"serviceMonitor": {"enabled": True}}
    with pytest.raises(helm.HelmRenderError, match=r"networkPolicy\.metricsFrom is empty, so Prometheus cannot read"):
        render({"monitoring": monitoring})
    assert render({"monitoring": monitoring, "networkPolicy": {"enabled": False}})


def test_the_webhooks_port_can_be_closed_to_all_but_the_api_server() -> None:
    allowed = [{"ipBlock": {"cidr": "10.0.0.10/32"}}]
    rules = find(render({"networkPolicy": {"webhookFrom": allowed}}), "NetworkPolicy")["spec"]["ingress"]
    assert rules == [{"ports": [{"port": "https"}], "from": allowed}]
