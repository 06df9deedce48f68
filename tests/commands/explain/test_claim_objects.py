"""Claims and templates of files: every API version, wrong forms, and the findings of validation."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron import names
from runtime.console import Style
from tests.commands.explain.rendered import as_json, as_text
from tests.support.emulated import EmulatedCluster
from tests.support.explaining import Object, explained, legacy_pod, live

CONFIG = {"apiVersion": names.CONFIG_API_VERSION, "kind": "NeuronConfig"}
KEYS = (
    *("name", "requests", "exactly", "firstAvailable", "count", "selectors", "cel", "expression", "constraints"),
    *("matchAttribute", "config", "opaque", "parameters", "driver", "capacity", "tolerations", "key", "operator"),
    *("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "matchExpressions"),
    *("values", "resourceClaimTemplateName", "resources", "claims", "deviceClassName", names.RESOURCE_NEURON),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 99)
    | st.sampled_from(["", "4", "own", "mine", names.DEVICE_CLASS, "In"])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


def template_object(devices: Any, version: str = "v1") -> Object:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "own"},
        "spec": {"spec": {"devices": devices}},
    }


def claiming(**spec: Any) -> Object:
    found = legacy_pod({}, resourceClaims=[{"name": "mine", "resourceClaimTemplateName": "own"}], **spec)
    found["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine"}]}
    return found


def test_a_request_of_v1beta1_is_read_as_one_of_v1() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    old = template_object({"requests": [{"name": "r", "deviceClassName": names.DEVICE_CLASS, "count": 2}]}, "v1beta1")
    [found] = explained(old, claiming(), cluster=live(cluster))
    assert found.nodes is not None
    assert found.nodes[0].texts == ("neuron-device-0", "neuron-device-1")


def test_a_config_that_the_driver_would_refuse_is_an_error_before_the_pod_runs() -> None:
    parameters = {**CONFIG, "logicalNeuronCoreCount": 2}
    config = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    request = {"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS}}
    [found] = explained(template_object({"requests": [request], "config": config}), claiming())
    assert found.blocked
    text = as_text([found], Style())
    assert "  error     NEU407 " in text
    assert "Did you mean 'logicalNeuronCore'?" in text


def test_an_invalid_template_is_reported_and_nodes_are_not_judged() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    [found] = explained(template_object({"requests": ["r"]}), claiming(), cluster=live(cluster))
    assert found.nodes is None
    assert found.notes == ("Nodes are not judged: ResourceClaimTemplate own of claim mine has the wrong form.",)
    assert "NEU502" in as_text([found], Style())


def test_an_unknown_template_is_reported() -> None:
    text = as_text(explained(claiming()), Style())
    assert "its requests are not known: there is no ResourceClaimTemplate of this name" in text


@pytest.mark.parametrize("field", ["containers", "resourceClaims", "nodeSelector", "affinity", "tolerations"])
@given(value=JSON)
def test_no_pod_of_a_file_ends_in_a_traceback(field: str, value: Any) -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    hostile = claiming()
    hostile["spec"][field] = value
    found = explained(hostile, cluster=live(cluster))
    assert as_text(found, Style())
    assert as_json(found)


@given(devices=JSON, hard=JSON)
def test_no_template_and_no_quota_of_a_file_ends_in_a_traceback(devices: Any, hard: Any) -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    found = explained(template_object(devices), quota, claiming(), legacy_pod(name="legacy"), cluster=live(cluster))
    assert as_text(found, Style())
    assert as_json(found)
