"""The logical NeuronCore that containers set by environment variables is a setting of the pod."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Refusal, make_claim
from neuron.hardware.instances import Catalogue, Observation
from policies.files.loader import load
from policies.judging.rules import PolicySet
from tests.conversion.test_convert_pods import decide as convert
from tests.conversion.test_convert_pods import namespace
from tests.support.clusters import FakeCluster, patched

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


BOTH = [{"name": LNC, "value": "1"}, {"name": "NEURON_RT_VIRTUAL_CORE_SIZE", "value": "2"}]


@pytest.mark.parametrize("others", [(), (cores_container("b", 4, 2),)], ids=["alone", "beside another"])
def test_a_container_that_contradicts_itself_is_denied(others: tuple[Any, ...]) -> None:
    (error,) = convert(typed_pod(cores_container("a", 4, *BOTH), *others)).errors
    assert (error.code, error.path, error.value) == ("NEU126", "spec.containers[0].env", "2")
    assert str(error) == (
        "NEU126: container a sets NEURON_LOGICAL_NC_CONFIG to 1 and NEURON_RT_VIRTUAL_CORE_SIZE to 2: a container has"
        " one logical NeuronCore. Remove NEURON_RT_VIRTUAL_CORE_SIZE, or set the annotation"
        " neuron.aws.com/logical-neuron-core."
    )
    assert lncs(convert(typed_pod(cores_container("a", 4, *BOTH), annotation="1"))) == [1]


def test_containers_without_neuron_devices_do_not_count() -> None:
    assert lncs(convert(typed_pod(cores_container("a", 4, 1), cores_container("b", 0, 2)))) == [1]


def test_the_annotation_precedes_the_variable_and_says_so() -> None:
    decision = convert(typed_pod(cores_container("a", 4, 1), annotation="2"))
    assert lncs(decision) == [2]
    (found,) = [each for each in decision.warnings if each.code == "NEU226"]
    assert "the driver sets NEURON_LOGICAL_NC_CONFIG=2 in the container" in found.message
    assert (found.path, found.value) == ("spec.containers[0].env", "1")
    assert found.fix.startswith("Make the variable and the setting")


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        (
            {"name": LNC, "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
            LNC,
            "container a takes NEURON_LOGICAL_NC_CONFIG from elsewhere: its value is not known here, and cores are"
            " counted with the default of the instance type. Write the value, or set the annotation"
            " neuron.aws.com/logical-neuron-core.",
        ),
        (
            {"name": LNC, "value": "3"},
            "3",
            "container a sets NEURON_LOGICAL_NC_CONFIG to '3', which is not 1 or 2: it does not count."
            " Set it to 1 or 2.",
        ),
    ],
    ids=["from-elsewhere", "no-such-value"],
)
def test_a_value_that_is_not_known_is_reported(variable: dict[str, Any], value: str, text: str) -> None:
    decision = convert(typed_pod(cores_container("a", 4, variable)))
    assert lncs(decision) == []
    (found,) = decision.warnings
    assert (str(found), found.path, found.value) == (f"NEU225: {text}", "spec.containers[0].env", value)


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


# --- containers that set different ones -------------------------------------------------------------------------


def devices_container(name: str, devices: int, *variables: Any) -> dict[str, Any]:
    return cores_container(name, 0, *variables) | {"resources": {"limits": {"aws.amazon.com/neuron": str(devices)}}}


def by_container(decision: Any, pod: Any) -> dict[str, tuple[int, set[int | None]]]:
    """Devices of each container, and the logical NeuronCores that the claim sets for its requests."""
    (template,) = decision.templates
    claim = template.spec["spec"]["devices"]
    counts = {each["name"]: each["exactly"]["count"] for each in claim["requests"]}
    sets = {
        name: each["opaque"]["parameters"]["logicalNeuronCore"]
        for each in claim.get("config", ())
        for name in each["requests"]
    }
    spec = patched(pod, decision)["spec"]
    found = {}
    for each in (*spec.get("initContainers", ()), *spec["containers"]):
        names = [entry.get("request") for entry in each["resources"].get("claims", ())]
        names = list(counts) if names == [None] else names
        found[each["name"]] = sum(counts[name] for name in names), {sets.get(name) for name in names}
    return found


APART = typed_pod(cores_container("a", 12, 1), cores_container("b", 12, 2), devices_container("c", 1))
"""12 cores are 1.5 devices, and 3."""
INIT = typed_pod(devices_container("a", 8, 1), devices_container("b", 4, 2)) | {"metadata": {}}


def requests(decision: Any) -> list[dict[str, Any]]:
    (template,) = decision.templates
    return list(template.spec["spec"]["devices"]["requests"])


def with_init(pod: Any, *containers: Any) -> Any:
    return pod | {"spec": pod["spec"] | {"initContainers": list(containers)}}


def policy(**spec: Any) -> PolicySet:
    document = {
        "apiVersion": "policy.neuron.aws.com/v1alpha1",
        "kind": "ConversionPolicy",
        "metadata": {"name": "sizes"},
        "spec": {"order": 1, "mode": "convert", **spec},
    }
    return load({"policies.yaml": json.dumps(document).encode()})


@pytest.mark.parametrize(
    ("pod", "set_by", "expected"),
    [
        (APART, {}, {"a": (2, {1}), "b": (3, {2}), "c": (1, {None})}),
        (APART, {"namespace": "1"}, {"a": (2, {1}), "b": (3, {2}), "c": (1, {1})}),
        (APART, {"default": 2}, {"a": (2, {1}), "b": (3, {2}), "c": (1, {2})}),
        (APART, {"namespace": "1", "default": 2}, {"a": (2, {1}), "b": (3, {2}), "c": (1, {1})}),
        (APART, {"locked": 2}, {"a": (3, {2}), "b": (3, {2}), "c": (1, {2})}),
        # They use 3 devices together, because that is one less.
        (APART, {"annotation": "1"}, {"a": (3, {1}), "b": (3, {1}), "c": (1, {1})}),
        # An init container uses devices of its own logical NeuronCore if they are enough, ...
        (with_init(INIT, devices_container("i", 4, 2)), {}, {"i": (4, {2}), "a": (8, {1}), "b": (4, {2})}),
        (with_init(INIT, devices_container("i", 4, 1)), {}, {"i": (8, {1}), "a": (8, {1}), "b": (4, {2})}),
        # ... else devices for which the claim sets none.
        (with_init(INIT, devices_container("i", 8, 2)), {}, {"i": (8, {None}), "a": (8, {None}), "b": (4, {2})}),
        (with_init(INIT, devices_container("i", 8)), {}, {"i": (8, {None}), "a": (8, {None}), "b": (4, {2})}),
        (with_init(INIT, devices_container("i", 8)), {"default": 1}, {"i": (8, {1}), "a": (8, {1}), "b": (4, {2})}),
        (
            with_init(typed_pod(devices_container("b", 16, 2)), devices_container("i", 16, 1)),
            {},
            {"i": (16, {None}), "b": (16, {None})},
        ),
    ],
)
def test_each_container_has_its_own(pod: Any, set_by: dict[str, Any], expected: dict[str, Any]) -> None:
    pod = pod | {"metadata": {"annotations": {ANNOTATION: set_by["annotation"]}} if "annotation" in set_by else {}}
    cluster = namespace(logical_neuron_core=set_by["namespace"]) if "namespace" in set_by else None
    lnc, locked = set_by.get("default") or set_by.get("locked"), "locked" in set_by
    policies = policy(logicalNeuronCore=lnc, locked=locked) if lnc else PolicySet()
    decision = convert(pod, cluster, policies=policies)
    assert by_container(decision, pod) == expected
    replaced = [each.code for each in decision.warnings if each.code == "NEU226"]
    assert len(replaced) == (1 if {"annotation", "locked"} & set_by.keys() else 0)


def test_containers_of_one_value_use_devices_together() -> None:
    pod = typed_pod(*[cores_container(*each) for each in (("a", 12, 1), ("b", 2, 2), ("c", 12, 1), ("d", 2, 2))])
    decision = convert(pod)
    # 24 cores of 8 on a device, and 4 of 4.
    assert by_container(decision, pod) == {"a": (3, {1}), "c": (3, {1}), "b": (1, {2}), "d": (1, {2})}
    assert [each["exactly"]["count"] for each in requests(decision)] == [3, 1]
    many = typed_pod(*[cores_container(f"c{index}", 4, 1 + index % 2) for index in range(14)])
    assert sum(request["exactly"]["count"] for request in requests(convert(many))) == 4 + 7
    with_sidecar = with_init(pod, cores_container("i", 2, 2), cores_container("s", 1, 1) | {"restartPolicy": "Always"})
    assert by_container(convert(with_sidecar), with_sidecar)["s"] == (1, {1})


def test_a_container_that_needs_a_setting_beside_a_variable_is_denied() -> None:
    pod = with_init(INIT, devices_container("i", 8))
    (error,) = convert(pod, namespace(logical_neuron_core="2")).errors
    assert (error.code, error.path) == ("NEU126", "spec.initContainers[0].env")
    assert str(error) == (
        "NEU126: container i gets logical NeuronCore 2 by a setting and uses the devices of container a, whose variable"
        " sets 1: the driver sets one for both. Set the variable NEURON_LOGICAL_NC_CONFIG in container i."
    )


def test_a_type_without_a_choice_serves_no_container_of_another_one() -> None:
    pod = typed_pod(*[cores_container(*each) for each in (("a", 2, 1), ("b", 2, 2), ("c", 2, 2))], kind="trn1.32xlarge")
    (error,) = convert(pod).errors
    assert (error.code, error.path, error.value) == ("NEU111", "spec.containers[1].env", "2")


def test_an_ultraserver_node_keeps_the_variable_of_each_container() -> None:
    pod = with_init(
        typed_pod(devices_container("main", 16, 2), kind="trn2u.48xlarge"), devices_container("init", 16, 1)
    )
    pod["metadata"] = {"annotations": {"neuron.aws.com/ultraserver-mode": "4"}}
    decision = convert(pod)
    (config,) = decision.templates[0].spec["spec"]["devices"]["config"]
    assert (config["requests"], config["opaque"]["parameters"]["kind"]) == (["n0"], "UltraServerConfig")
    assert decision.warnings == ()


def test_a_node_default_is_for_containers_without_a_variable() -> None:
    pod = typed_pod(*[devices_container(*each) for each in (("a", 1, 1), ("b", 1, 2), ("c", 1))])
    cluster = FakeCluster(seen={"trn2.48xlarge": Observation(devices=16, default_lnc=1)})
    assert by_container(convert(pod, cluster), pod)["c"] == (1, {1})
    pod = typed_pod(*[devices_container(*each) for each in (("a", 1, 1), ("b", 1, 2))], takes(1, ALL) | {"name": "c"})
    assert by_container(convert(pod, cluster), pod)["c"] == (1, {1})


BESIDE = (devices_container("a", 1, 1), devices_container("b", 1), devices_container("none", 0), {"name": "app"})


@pytest.mark.parametrize(
    ("pod", "node", "said"),
    [
        (typed_pod(*BESIDE), None, True),
        (with_init(typed_pod(BESIDE[0]), BESIDE[1]), None, True),
        # The annotation says it of all containers.
        (typed_pod(*BESIDE, annotation="1"), None, False),
        (typed_pod(*BESIDE), 1, False),
        (typed_pod(devices_container("a", 1, 2), BESIDE[1]), None, False),
        (typed_pod(*BESIDE, kind="trn1.32xlarge"), None, False),
        (typed_pod(BESIDE[0], BESIDE[1] | {"env": [{"name": LNC, "valueFrom": TAKEN}]}), None, False),
        (typed_pod(BESIDE[0], BESIDE[1] | {"envFrom": [ALL]}), None, False),
        (typed_pod(BESIDE[0], devices_container("b", 1, "x")), None, False),
    ],
    ids=["beside", "init", "annotation", "node", "default", "no choice", "elsewhere", "envFrom", "no such value"],
)
def test_a_container_without_a_variable_gets_that_of_the_others_and_is_told(
    pod: dict[str, Any], node: int | None, said: bool
) -> None:
    seen = {"trn2.48xlarge": Observation(devices=16, default_lnc=node), "trn1.32xlarge": Observation(devices=16)}
    decision = convert(pod, FakeCluster(seen=seen))
    found = [each for each in decision.warnings if each.code == "NEU226"]
    assert {each.value for each in found} == ({"1"} if said else set())
    assert [str(each) for each in found] == said * [
        "NEU226: container b sets no logical NeuronCore and gets 1, as container a sets it; the device plugin gave it"
        " 2, the default of trn2.48xlarge. Set NEURON_LOGICAL_NC_CONFIG in container b to the one for which its model"
        " is compiled."
    ]


@pytest.mark.parametrize("node", [None, 1], ids=["type", "node"])
def test_a_value_that_is_not_known_beside_different_ones_is_reported(node: int | None) -> None:
    unknown = {"name": LNC, "valueFrom": TAKEN}
    pod = typed_pod(*[devices_container(*each) for each in (("a", 1, 1), ("b", 1, 2), ("c", 1, unknown))])
    decision = convert(pod, FakeCluster(seen={"trn2.48xlarge": Observation(devices=16, default_lnc=node)}))
    assert codes(decision.warnings) == ["NEU225"]
    assert by_container(decision, pod)["c"] == (1, {None})


@pytest.mark.parametrize(("of_init", "mapped"), [(2, True), (1, False)], ids=["equal", "different"])
def test_a_template_of_an_operator_serves_no_pod_with_different_values(of_init: int, mapped: bool) -> None:
    policies = policy(templates=[{"demand": {"devices": 16}, "name": "whole"}])
    pod = with_init(typed_pod(devices_container("main", 16, 2)), devices_container("init", 16, of_init))
    decision = convert(pod, policies=policies)
    # The operator has not made it.
    assert any("whole" in str(each) for each in decision.errors) is mapped
    assert (decision.outcome.value == "converted") is not mapped


def test_claims_are_remembered_with_the_value_of_each_container() -> None:
    pods = [
        typed_pod(devices_container("a", 4, one), devices_container("b", 4, other))
        for one, other in ((1, 2), (2, 1), (1, 1), (2, 2))
    ]
    found = [by_container(convert(pod), pod) for pod in pods]
    assert [(each["a"][1], each["b"][1]) for each in found] == [({1}, {2}), ({2}, {1}), ({1}, {1}), ({2}, {2})]
    assert len({convert(pod).templates[0].name for pod in pods}) == 4


def test_a_manifest_that_is_applied_again_changes_nothing() -> None:
    stored = patched(APART, convert(APART))
    again = convert(stored)
    assert (again.outcome.value, again.patch) == ("unchanged", ())
    assert [each.name for each in again.templates] == [each.name for each in convert(APART).templates]


TRN2 = [entry for entry in Catalogue() if entry.name == "trn2.48xlarge"]
ROLES = (Role.INIT, Role.SIDECAR, Role.APP)


@st.composite
def apart(draw: st.DrawFn) -> list[Ask]:
    """Containers of which some set logical NeuronCore 1, some 2, and some none; init containers first."""
    amounts = st.one_of(
        st.tuples(st.just("aws.amazon.com/neuron"), st.sampled_from([1, 1, 1, 4, 4, 8, 16])),
        st.tuples(st.just("aws.amazon.com/neuroncore"), st.integers(1, 40)),
    )
    container = st.tuples(st.sampled_from(ROLES), amounts, st.sampled_from([1, 2, 2, 1, None]))
    found = draw(st.lists(container, min_size=2, max_size=7))
    found.sort(key=lambda each: each[0] is Role.APP)
    return [
        Ask(f"c{index}", role, f"spec.containers[{index}]", resource, amount, lnc=lnc)
        for index, (role, (resource, amount), lnc) in enumerate(found)
    ]


@given(apart(), st.sampled_from([None, None, 1, 2]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_container_gets_its_cores_and_configs_cover_the_requests_of_one_value(
    asks: list[Ask], others: int | None, shares: bool
) -> None:
    # Where devices are shared between claims, these pods get whole devices all the same.
    types = [dataclasses.replace(entry, shares_cores=shares) for entry in TRN2]
    config = DeviceConfig(others, lncs=(1, 2))
    claim = make_claim(asks, types, config, "neuron.aws.com", pin_types=False)
    if isinstance(claim, Refusal):
        (code, *_) = {each.code for each in claim.findings}
        assert code in ("NEU105", "NEU106", "NEU126")
        return
    devices = claim.template.spec["spec"]["devices"]
    forms = {each["name"]: each.get("firstAvailable") or [each["exactly"]] for each in devices["requests"]}
    counts = {name: form[0]["count"] for name, form in forms.items()}
    assert not any("capacity" in each for form in forms.values() for each in form)
    users: dict[str, list[Ask]] = {name: [] for name in counts}
    for ask, use in zip(asks, claim.uses, strict=True):
        held = list(counts) if use == () else use or ()
        lnc = ask.lnc or others or 2
        got = sum(counts[name] for name in held)
        assert (got * 8 // lnc if ask.in_cores else got) >= ask.amount
        for name in held:
            users[name].append(ask)
    sizes = {name: {ask.lnc or others for ask in of} for name, of in users.items()}
    sets = [
        (name, each["opaque"]["parameters"]["logicalNeuronCore"])
        for each in devices.get("config", ())
        for name in each["requests"]
    ]
    assert len(dict(sets)) == len(sets)
    assert dict(sets) == {
        reference: min(size)
        for name, size in sizes.items()
        if len(size) == 1 and None not in size
        for reference in ([f"{name}/{each['name']}" for each in forms[name]] if len(forms[name]) > 1 else [name])
    }
    covered = {reference.partition("/")[0] for reference in dict(sets)}
    for name, of in users.items():
        # Containers that run at one time have one value for a device, and the driver sets none that a container lacks.
        assert len({ask.lnc or others for ask in of if ask.role is not Role.INIT}) <= 1
        assert name in covered or others is None or all(ask.lnc for ask in of)
