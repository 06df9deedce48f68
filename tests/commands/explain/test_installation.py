"""The webhook's settings, as its Deployment gives them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.kinds.replicas import LABELS
from commands.explain.reads import read_installation

MANIFEST = Path(__file__).parents[3] / "deploy/manifests/webhook.yaml"


CALLS_OPS: list[Any] = [
    {"webhooks": [{"name": "mutate.neuron.aws.com", "clientConfig": {"service": {"namespace": "ops", "name": "x"}}}]}
]


def deployment(*arguments: str, env: list[dict[str, Any]] | None = None, volumes: list[Any] | None = None) -> Any:
    container = {"command": ["neuron-dra-webhook"], "args": list(arguments), "env": env or []}
    spec = {"template": {"spec": {"containers": [container], "volumes": volumes or []}}}
    return {"metadata": {"name": "neuron-dra", "namespace": "ops", "labels": dict(LABELS)}, "spec": spec}


def test_the_shipped_manifest_is_read() -> None:
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    deployments = [each for each in documents if each["kind"] == "Deployment"]
    configurations = [each for each in documents if each["kind"] == "MutatingWebhookConfiguration"]
    found = read_installation(deployments, configurations)
    assert found.options is not None
    assert found.options.mode == "shadow"
    assert "kube-system" in found.options.excluded_namespaces
    assert found.called is True
    assert found.default == "the webhook's default (Deployment neuron-dra/neuron-dra, --mode)"


def test_flags_in_both_forms_switches_and_lists() -> None:
    arguments = (
        "--mode",
        "off",
        "--no-hint-affinity",
        "--hint-scheduler",
        "--families=trn1,trn2",
        "--exclude-namespace=a",
        "--exclude-namespace",
        "b",
        "--port=9443",
        "--config=/etc/secret.yaml",
    )
    options = read_installation([deployment(*arguments)], CALLS_OPS).options
    assert options is not None
    assert (options.mode, options.hint_affinity, options.hint_scheduler) == ("off", False, True)
    assert (options.families, options.excluded_namespaces) == (("trn1", "trn2"), frozenset({"a", "b"}))


def test_variables_are_read_and_files_of_this_machine_are_not() -> None:
    env = [
        {"name": "NEURON_DRA_MODE", "value": "off"},
        {"name": "NEURON_DRA_CONFIG", "value": "/nowhere/config.yaml"},
        {"name": "NEURON_DRA_POD_NAME", "valueFrom": {}},
    ]
    options = read_installation([deployment(env=env)], CALLS_OPS).options
    assert options is not None
    assert options.mode == "off"


def test_settings_that_cannot_be_read_are_not_known() -> None:
    found = read_installation([deployment("--mode=sometimes")], None)
    assert (found.options, found.called) == (None, None)


def test_other_deployments_are_not_the_webhook() -> None:
    other = deployment("--mode=off")
    other["metadata"]["labels"] = {}
    found = read_installation([other], [{"webhooks": [{"name": "mutate.example.com"}]}])
    assert (found.options, found.called) == (None, False)
    assert found.why_not == "the cluster has no MutatingWebhookConfiguration of neuron-dra"


@pytest.mark.parametrize(
    "volume",
    [
        {"name": "policies", "configMap": {"name": "rules"}},
        {"name": "policies", "projected": {"sources": [{"secret": {}}, {"configMap": {"name": "rules"}}]}},
    ],
)
def test_config_maps_with_policies_are_found(volume: dict[str, Any]) -> None:
    other = {"name": "tls", "configMap": {"name": "ca"}}
    assert read_installation([deployment(volumes=[other, volume])], CALLS_OPS).config_maps == (("ops", "rules"),)


def test_a_namespace_that_the_selector_leaves_out() -> None:
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "team-b"]}
    entry = {"name": "mutate.neuron.aws.com", "namespaceSelector": {"matchExpressions": [expression]}}
    found = read_installation([], [{"webhooks": [entry]}])
    assert found.not_called("team-a", {}) == ""
    assert found.not_called("team-b", None) == ""
    assert found.not_called("team-b", {}) == (
        "The namespaceSelector of the webhook configuration leaves namespace team-b out."
    )


def test_a_selector_of_an_unknown_form_selects_everything() -> None:
    entry = {"name": "mutate.neuron.aws.com", "namespaceSelector": {"matchExpressions": 7}}
    assert read_installation([], [{"webhooks": [entry]}]).not_called("team-a", {}) == ""


@pytest.mark.parametrize("configurations", [CALLS_OPS, None], ids=["known", "not readable"])
def test_a_deployment_with_our_label_in_a_tenants_namespace_is_ignored(configurations: list[Any] | None) -> None:
    forged = deployment("--mode=off", volumes=[{"name": "policies", "configMap": {"name": "forged"}}])
    forged["metadata"]["namespace"] = "tenant"
    found = read_installation([forged, deployment("--mode=shadow")], configurations)
    assert found.config_maps == ()
    assert found.options is None if configurations is None else found.options is not None
    assert found.options is None or found.options.mode == "shadow"
