"""Objects of AWS's UltraServer operator: what its CustomResourceDefinitions admit and it cannot serve."""

from typing import Any

import pytest

from checks.workloads import check_ultraserver, check_workload
from neuron.api.workloads import template_of

NODE = {"nodeId": 0, "nodeName": "n0", "linkStatusHorizontal": "up", "linkStatusVertical": "up"}


def ultraserver_workload(without: str = "", version: str = "v1beta1", **spec: Any) -> dict[str, Any]:
    fields = {"instanceType": "trn3-dev0.48xlarge", "topologySize": 4, "serverCount": 2, **spec}
    fields.pop(without, None)
    kind = "NeuronUltraServerWorkload"
    return {"apiVersion": f"neuron.aws.com/{version}", "kind": kind, "metadata": {"name": "train"}, "spec": fields}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_workload_as_documented_has_no_findings(size: int) -> None:
    whole = ultraserver_workload(
        topologySize=size,
        allocationPolicy={"failureStrategy": "MigrateAffected"},
        resourceClaimTemplate={"name": "train-rct"},
        config={"logicalNeuronCore": 1},
    )
    assert not [*check_workload(whole), *check_workload(ultraserver_workload())]


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (
            ultraserver_workload(topologySize=3),
            "error spec.topologySize: topologySize is 3, an integer, not 1, 2 or 4.",
        ),
        (
            ultraserver_workload(topologySize=True),
            "error spec.topologySize: topologySize is true, a boolean, not 1, 2 or 4.",
        ),
        (
            ultraserver_workload(topologySize="4"),
            "error spec.topologySize: topologySize is '4', a string, not 1, 2 or 4.",
        ),
        (
            ultraserver_workload(serverCount=0),
            "error spec.serverCount: serverCount is 0, an integer, not a number from 1 on.",
        ),
        (ultraserver_workload("instanceType"), "error spec.instanceType: instanceType is missing."),
        (ultraserver_workload(instanceType=""), "error spec.instanceType: instanceType is '', a string, not a name."),
        (
            ultraserver_workload(config={"logicalNeuronCore": 3}),
            "error spec.config.logicalNeuronCore: logicalNeuronCore is 3, an integer, not 1 or 2.",
        ),
        (
            ultraserver_workload(config={"logicalNeuronCores": 1}),
            "error spec.config.logicalNeuronCores: config has no field 'logicalNeuronCores'. Did you mean"
            " 'logicalNeuronCore'?",
        ),
        (
            ultraserver_workload(allocationPolicy={"failureStrategy": "restartAll"}),
            "error spec.allocationPolicy.failureStrategy: failureStrategy is 'restartAll', a string, not NoOp,"
            " RestartAll or MigrateAffected. Did you mean 'RestartAll'?",
        ),
        (
            ultraserver_workload(allocationPolicy={"failureStrategy": ["NoOp"]}),
            "error spec.allocationPolicy.failureStrategy: failureStrategy is a list, not NoOp, RestartAll or"
            " MigrateAffected.",
        ),
        (
            ultraserver_workload(allocationPolicy={"failureStrategy": "ReplaceAffected"}),
            "warning spec.allocationPolicy.failureStrategy: failureStrategy ReplaceAffected is of AWS's documentation;"
            " the operator calls it MigrateAffected.",
        ),
        (ultraserver_workload(resourceClaimTemplate={}), "error spec.resourceClaimTemplate.name: name is missing."),
        (
            ultraserver_workload(version="v1"),
            "warning apiVersion: AWS's UltraServer operator serves NeuronUltraServerWorkload as"
            " neuron.aws.com/v1beta1, not 'neuron.aws.com/v1'.",
        ),
    ],
)
def test_a_field_that_the_operator_cannot_serve_is_found(item: Any, found: str) -> None:
    assert [f"{each.severity} {each.path}: {each.message}" for each in check_workload(item)] == [found]


@pytest.mark.parametrize("spec", [None, [], "text", {}, {"config": 5, "allocationPolicy": "x"}])
def test_objects_of_any_type_are_read(spec: Any) -> None:
    found = [*check_workload({"spec": spec}), *check_ultraserver({"spec": spec})]
    assert {each.code for each in found} == {"NEU715", "NEU716"}


@pytest.mark.parametrize(
    ("node", "paths"),
    [
        (NODE, []),
        ({**NODE, "nodeId": "0"}, ["spec.topology[0].nodeId"]),
        ({**NODE, "nodeName": 1}, ["spec.topology[0].nodeName"]),
        ({"nodeId": 1}, [f"spec.topology[0].{field}" for field in list(NODE)[1:]]),
        ({**NODE, "linkStatus": "up"}, ["spec.topology[0].linkStatus"]),
    ],
)
def test_an_ultraserver_is_checked(node: Any, paths: list[str]) -> None:
    spec = {"instanceType": "trn3-dev0.48xlarge", "topology": [node]}
    item = {"apiVersion": "neuron.aws.com/v1beta1", "kind": "NeuronUltraServer", "spec": spec}
    assert [each.path for each in check_ultraserver(item)] == paths


def test_the_template_has_the_name_of_the_workload_by_default() -> None:
    assert template_of(ultraserver_workload()) == "train"
    assert template_of(ultraserver_workload(resourceClaimTemplate={"name": "rct"})) == "rct"
