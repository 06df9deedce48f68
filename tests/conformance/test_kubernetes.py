"""What is patched, generated and shipped has only fields of the Kubernetes API, with their types.

The schemas are closed, so a field that an API server would drop is a fault here. `tests/cluster/test_conformance.py`
sends the same objects to a real API server.
"""

from pathlib import Path

import pytest

from neuron.api.resource_versions import VERSIONS
from tests.conformance import objects
from tests.conformance.schemas import Object, definition_faults, is_known, kubernetes_faults

TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
ADDED_BY_OPERATORS = {"Certificate", "Issuer", "PodMonitor", "PrometheusRule", "ServiceMonitor"}
"""Kinds of the chart that a cluster has only with the operator that owns them."""
OF_THE_FUTURE = {
    ": Additional properties are not allowed ('futureTop' was unexpected)",
    "spec: Additional properties are not allowed ('futureSpec' was unexpected)",
    "spec.containers[0]: Additional properties are not allowed ('futureField' was unexpected)",
}


def faults(obj: Object) -> list[str]:
    """Of an object, or of the pod templates in one of a kind that Kubernetes does not have itself."""
    if is_known(obj):
        return kubernetes_faults(obj)
    return [fault for template in objects.templates_of(obj) for fault in definition_faults(TEMPLATE, template)]


@pytest.mark.parametrize("case", objects.MUTATED, ids=lambda case: case.name)
def test_patched_pods_and_their_templates_match_the_schema(case: Path) -> None:
    found = [fault for each in objects.mutated(case) for fault in faults(each)]
    # Fields that this version does not know are the API server's to judge: conversion keeps them.
    assert set(found) == (OF_THE_FUTURE if case.name == "unknown-fields-survive" else set())


@pytest.mark.parametrize("path", objects.CONVERTED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_converted_manifests_and_examples_match_the_schema(path: Path) -> None:
    assert [fault for each in objects.objects_of(path) for fault in faults(each)] == []


@pytest.mark.parametrize("values", objects.CHARTS)
def test_the_chart_matches_the_schema(values: str) -> None:
    rendered = objects.chart(values)
    assert {each["kind"] for each in rendered if not is_known(each)} <= ADDED_BY_OPERATORS
    assert [fault for each in rendered if is_known(each) for fault in kubernetes_faults(each)] == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("features", objects.FEATURES)
def test_slices_match_the_schema_of_every_api_version(features: str, version: str) -> None:
    found = objects.slices(objects.FEATURES[features], version)
    assert len(found) >= 2
    assert [fault for each in found for fault in kubernetes_faults(each)] == []


def test_exported_policies_match_the_schema() -> None:
    exported = objects.policies()
    assert exported
    assert [fault for each in exported for fault in kubernetes_faults(each)] == []


def test_events_and_leases_match_the_schema() -> None:
    assert [fault for each in objects.small() for fault in kubernetes_faults(each)] == []


def test_the_device_status_of_a_claim_matches_the_schema() -> None:
    assert definition_faults("io.k8s.api.resource.v1.AllocatedDeviceStatus", objects.claim_status_entry()) == []


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"containers": [{"name": "a", "imagePullpolicy": "Always"}]}, "'imagePullpolicy' was unexpected"),
        ({"containers": [{"name": 1}]}, "spec.containers[0].name: 1 is not of type 'string'"),
        ({"containers": [{"name": "a", "resources": {"claims": [{}]}}]}, "'name' is a required property"),
        ({"containers": [], "resourceClaims": [{"name": "a", "source": {}}]}, "'source' was unexpected"),
        ({"containers": [], "tolerations": {}}, "spec.tolerations: {} is not of type 'array'"),
    ],
    ids=["unknown-field", "type", "missing", "field-of-an-older-version", "list"],
)
def test_an_invalid_pod_is_found(spec: Object, fault: str) -> None:
    [found] = kubernetes_faults({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    assert fault in found
