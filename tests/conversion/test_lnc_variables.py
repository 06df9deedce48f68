"""The logical NeuronCore that containers set by environment variables is a setting of the pod."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.conversion.test_convert_pods import decide as convert

LNC = "NEURON_LOGICAL_NC_CONFIG"
TYPE = "node.kubernetes.io/instance-type"
ANNOTATION = "neuron.aws.com/logical-neuron-core"


def cores_container(name: str, cores: int, *variables: Any) -> dict[str, Any]:
    env = [each if isinstance(each, dict) else {"name": LNC, "value": str(each)} for each in variables]
    return {"name": name, "env": env, "resources": {"limits": {"aws.amazon.com/neuroncore": str(cores)}}}


def typed_pod(*containers: Any, kind: str = "trn2.48xlarge", annotation: str | None = None) -> dict[str, Any]:
    metadata = {} if annotation is None else {"annotations": {ANNOTATION: annotation}}
    return {"metadata": metadata, "spec": {"nodeSelector": {TYPE: kind}, "containers": list(containers)}}


def lncs(decision: Any) -> list[int]:
    (template,) = decision.templates
    configs = template.spec["spec"]["devices"].get("config", ())
    return [each["opaque"]["parameters"]["logicalNeuronCore"] for each in configs]


def codes(findings: Sequence[Any]) -> list[str]:
    return [each.code for each in findings]


@pytest.mark.parametrize("name", [LNC, "NEURON_RT_VIRTUAL_CORE_SIZE"])
def test_the_variable_sets_the_logical_neuron_core_of_the_claim(name: str) -> None:
    decision = convert(typed_pod(cores_container("a", 8, {"name": name, "value": "1"})))
    (template,) = decision.templates
    (request,) = template.spec["spec"]["devices"]["requests"]
    assert (request["exactly"]["count"], lncs(decision)) == (1, [1])
    assert decision.warnings == ()


def test_a_whole_node_at_logical_neuron_core_1_is_converted() -> None:
    assert lncs(convert(typed_pod(cores_container("a", 128, 1)))) == [1]


def test_too_many_cores_name_the_annotation_and_the_variable() -> None:
    (error,) = convert(typed_pod(cores_container("a", 128))).errors
    assert error.code == "NEU106"
    assert ANNOTATION in error.fix
    assert LNC in error.fix


def test_containers_that_disagree_are_denied_with_both_names() -> None:
    (error,) = convert(typed_pod(cores_container("a", 4, 1), cores_container("b", 4, 2))).errors
    assert (error.code, error.path) == ("NEU126", "spec.containers[1].env")
    assert error.message.startswith(f"container a sets {LNC} to 1, and container b sets {LNC} to 2")


def test_containers_without_neuron_devices_do_not_count() -> None:
    assert lncs(convert(typed_pod(cores_container("a", 4, 1), cores_container("b", 0, 2)))) == [1]


def test_the_annotation_precedes_the_variable_and_says_so() -> None:
    decision = convert(typed_pod(cores_container("a", 4, 1), annotation="2"))
    assert lncs(decision) == [2]
    (found,) = [each for each in decision.warnings if each.code == "NEU226"]
    assert "the driver sets NEURON_LOGICAL_NC_CONFIG=2 in the container" in found.message


@pytest.mark.parametrize(
    "variable",
    [{"name": LNC, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}, {"name": LNC, "value": "3"}],
    ids=["from-elsewhere", "no-such-value"],
)
def test_a_value_that_is_not_known_is_reported(variable: dict[str, Any]) -> None:
    decision = convert(typed_pod(cores_container("a", 4, variable)))
    assert lncs(decision) == []
    assert codes(decision.warnings) == ["NEU225"]


def test_a_pod_that_may_be_right_with_a_value_that_is_not_known_is_left() -> None:
    variable = {"name": LNC, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}
    decision = convert(typed_pod(cores_container("a", 128, variable)))
    assert (decision.outcome.value, decision.patch) == ("unchanged", ())
    assert codes(decision.warnings) == ["NEU106", "NEU225"]


TAKEN = {"configMapKeyRef": {"name": "a", "key": "b"}}
OURS = {"prefix": "NEURON_", "configMapRef": {"name": "a"}}
ALL = {"configMapRef": {"name": "a"}}
OTHERS = {"prefix": "DB_", "secretRef": {"name": "a"}}


def takes(cores: int, *sources: Any, variables: Sequence[Any] = ()) -> dict[str, Any]:
    return {**cores_container("a", cores, *variables), "envFrom": list(sources)}


@pytest.mark.parametrize("source", [OURS, ALL, ALL | {"prefix": None}], ids=["prefix", "all", "null"])
def test_env_from_that_may_set_it_is_as_unknown_as_a_variable_from_elsewhere(source: dict[str, Any]) -> None:
    decision = convert(typed_pod(takes(128, OTHERS, source)))
    assert (decision.outcome.value, decision.patch) == ("unchanged", ())
    assert codes(decision.warnings) == ["NEU106", "NEU225"]
    assert str(decision.warnings[1]) == (
        "NEU225: container a takes variables from elsewhere, which may set NEURON_LOGICAL_NC_CONFIG: its value is not"
        " known here, and cores are counted with the default of the instance type. Write the value in env, or set the"
        " annotation neuron.aws.com/logical-neuron-core."
    )
    assert decision.warnings[1].path == "spec.containers[0].envFrom"


@pytest.mark.parametrize(
    "pod",
    [
        typed_pod(takes(128, OTHERS)),
        typed_pod(takes(128, ALL, variables=[2])),
        typed_pod(takes(128, ALL), annotation="2"),
        typed_pod({**cores_container("a", 128), "name": "b"}, {**takes(0, ALL)}),
    ],
    ids=["another prefix", "written in env", "annotation", "another container"],
)
def test_env_from_that_cannot_set_it_changes_nothing(pod: dict[str, Any]) -> None:
    assert codes(convert(pod).errors) == ["NEU106"]


def test_env_from_of_a_pod_that_can_be_converted_is_no_reason_to_warn() -> None:
    decision = convert(typed_pod(takes(4, ALL)))
    assert (decision.outcome.value, decision.warnings) == ("converted", ())


@pytest.mark.parametrize("where", [{"envFrom": [ALL]}, {"env": [{"name": LNC, "valueFrom": TAKEN}]}], ids=str)
@pytest.mark.parametrize(("cores", "kind"), [(129, "trn2.48xlarge"), (33, "trn1.32xlarge")])
def test_a_pod_that_no_value_makes_right_is_denied(where: dict[str, Any], cores: int, kind: str) -> None:
    assert codes(convert(typed_pod({**cores_container("a", cores), **where}, kind=kind)).errors) == ["NEU106"]


def test_a_type_without_the_setting_names_the_variable() -> None:
    (error,) = convert(typed_pod(cores_container("a", 2, 2), kind="trn1.32xlarge")).errors
    assert (error.code, error.path) == ("NEU111", "spec.containers[0].env")
    assert LNC in error.fix
