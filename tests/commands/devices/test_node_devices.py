"""Node selection, taints, CPU and memory, as the scheduler reads them."""

from typing import Any

import pytest

from commands.cluster.snapshot import NodeLoads
from commands.devices.node_devices import requirement_text, taint_text, unmet_selection, untolerated
from neuron.api.nodes import UNSCHEDULABLE, Node, read_node, unmet_terms
from neuron.api.taints import Taint

LABELS = {"disk": "ssd", "cores": "128", "zone": "a"}


def node(**spec: Any) -> Node:
    return read_node({"metadata": {"name": "node-1", "labels": LABELS}, "spec": spec})


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("term", "meets"),
    [
        (requirement("disk", "In", "ssd", "nvme"), True),
        (requirement("disk", "In", "hdd"), False),
        (requirement("other", "In", ""), False),
        (requirement("disk", "NotIn", "hdd"), True),
        (requirement("other", "NotIn", "hdd"), True),
        (requirement("disk", "NotIn", "ssd"), False),
        (requirement("disk", "Exists"), True),
        (requirement("other", "Exists"), False),
        (requirement("disk", "DoesNotExist"), False),
        (requirement("other", "DoesNotExist"), True),
        (requirement("cores", "Gt", "64"), True),
        (requirement("cores", "Gt", "128"), False),
        (requirement("cores", "Lt", "129"), True),
        (requirement("disk", "Gt", "1"), False),
        (requirement("other", "Lt", "1"), False),
        (requirement("cores", "Gt", "many"), False),
        (requirement("disk", "Like", "s"), False),
    ],
)
def test_every_operator_is_evaluated(term: dict[str, Any], meets: bool) -> None:
    assert unmet_terms([{"matchExpressions": [term]}], "node-1", LABELS) == ([] if meets else [term])


def test_terms_are_alternatives_and_the_closest_is_reported() -> None:
    far = {"matchExpressions": [requirement("disk", "In", "hdd"), requirement("zone", "In", "b")]}
    near = {"matchExpressions": [requirement("disk", "In", "ssd"), requirement("zone", "In", "b")]}
    assert unmet_terms([far, near], "node-1", LABELS) == [requirement("zone", "In", "b")]
    assert unmet_terms([far, {"matchExpressions": [requirement("zone", "In", "a")]}], "node-1", LABELS) == []


def test_an_empty_term_matches_no_node() -> None:
    assert unmet_terms([{}], "node-1", LABELS)
    assert unmet_terms([], "node-1", LABELS)


def test_fields_are_those_of_the_node() -> None:
    fields = [requirement("metadata.name", "In", "node-1")]
    assert unmet_terms([{"matchFields": fields}], "node-1", LABELS) == []
    other = [requirement("metadata.name", "In", "node-2")]
    assert unmet_terms([{"matchFields": other}], "node-1", LABELS) == other


def test_node_selector_and_affinity_are_both_required() -> None:
    terms = [{"matchExpressions": [requirement("zone", "In", "b")]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    pod = {"spec": {"nodeSelector": {"disk": "hdd"}, "affinity": affinity}}
    assert [each["key"] for each in unmet_selection(pod, node())] == ["disk", "zone"]
    assert unmet_selection({"spec": {"nodeSelector": {"disk": "ssd"}}}, node()) == []


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "value": "b"}, True),
        ({"key": "team", "operator": "Equal", "value": "c"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoSchedule"}, True),
    ],
)
def test_tolerations_match_taints(toleration: dict[str, Any] | None, tolerated: bool) -> None:
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    pod = {"spec": {"tolerations": [toleration] if toleration else None}}
    assert untolerated(pod, node(taints=[taint])) == ([] if tolerated else [Taint.read(taint)])


def test_a_preference_excludes_no_node() -> None:
    mild = {"key": "team", "effect": "PreferNoSchedule"}
    assert untolerated({"spec": {}}, node(taints=[mild])) == []


def test_a_cordoned_node_has_the_taint_of_kubernetes() -> None:
    cordoned = node(unschedulable=True)
    assert [each.key for each in untolerated({"spec": {}}, cordoned)] == [UNSCHEDULABLE]
    pod = {"spec": {"tolerations": [{"key": UNSCHEDULABLE, "operator": "Exists"}]}}
    assert untolerated(pod, cordoned) == []


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (requirement("disk", "In", "ssd", "nvme"), "disk in (ssd, nvme)"),
        (requirement("disk", "NotIn", "hdd"), "disk not in (hdd)"),
        (requirement("disk", "Exists"), "disk exists"),
        (requirement("disk", "DoesNotExist"), "disk does not exist"),
        (requirement("cores", "Gt", "64"), "cores Gt 64"),
    ],
)
def test_requirements_are_described(term: dict[str, Any], text: str) -> None:
    assert requirement_text(term) == text


def test_taints_are_described() -> None:
    assert taint_text(Taint("a")) == "a:NoSchedule"
    assert taint_text(Taint("a", "b", "NoExecute")) == "a=b:NoExecute"


# --- CPU, memory and the number of pods ---------------------------------------------------------------------------


def requesting(**requests: str) -> Any:
    return {"name": "c", "resources": {"requests": requests}}


def loaded_node(**allocatable: str) -> Node:
    return Node("n", allocatable=allocatable)


def on_node(*containers: Any, phase: str = "Running", node: str = "n") -> Any:
    return {"spec": {"nodeName": node, "containers": list(containers)}, "status": {"phase": phase}}


NODE = loaded_node(cpu="8", memory="32Gi", pods="3")


@pytest.mark.parametrize(
    ("others", "spec", "lacking"),
    [
        pytest.param([], {"containers": [requesting(cpu="8", memory="32Gi")]}, {}, id="all of it"),
        pytest.param(
            [],
            {"containers": [requesting(cpu="8100m")]},
            {"cpu": "8 of 8 cpu free, the pod needs 8.1"},
            id="more than the node has",
        ),
        pytest.param(
            [on_node(requesting(cpu="5500m", memory="20Gi"))],
            {"containers": [requesting(cpu="4", memory="16Gi")]},
            {"cpu": "2.5 of 8 cpu free, the pod needs 4", "memory": "12Gi of 32Gi memory free, the pod needs 16Gi"},
            id="others have it",
        ),
        pytest.param(
            [on_node(requesting(cpu="8"), phase="Succeeded"), on_node(requesting(cpu="8"), node="other")],
            {"containers": [requesting(cpu="8")]},
            {},
            id="pods that ended, and pods of other nodes",
        ),
        pytest.param(
            [on_node(), on_node(), on_node()],
            {"containers": [requesting()]},
            {"pods": "0 of 3 pods free, the pod needs 1"},
            id="number of pods",
        ),
        pytest.param(
            [],
            {"containers": [{"name": "c", "resources": {"limits": {"cpu": "9"}}}]},
            {"cpu": "8 of 8 cpu free, the pod needs 9"},
            id="limit without request",
        ),
        pytest.param(
            [],
            {"containers": [requesting(cpu="1")], "initContainers": [requesting(cpu="9")]},
            {"cpu": "8 of 8 cpu free, the pod needs 9"},
            id="init container",
        ),
        pytest.param(
            [],
            {
                "containers": [requesting(cpu="5")],
                "initContainers": [requesting(cpu="4") | {"restartPolicy": "Always"}],
            },
            {"cpu": "8 of 8 cpu free, the pod needs 9"},
            id="sidecar",
        ),
        pytest.param(
            [],
            {"containers": [requesting(cpu="5")], "overhead": {"cpu": "4"}},
            {"cpu": "8 of 8 cpu free, the pod needs 9"},
            id="overhead",
        ),
        pytest.param(
            [],
            {"containers": [requesting(cpu="5")], "resources": {"requests": {"cpu": "9"}}},
            {"cpu": "8 of 8 cpu free, the pod needs 9"},
            id="requests of the pod",
        ),
        pytest.param([], {"containers": [requesting(cpu="no number", memory="-4Gi")]}, {}, id="wrong quantities"),
        pytest.param([], {"containers": [requesting(**{"ephemeral-storage": "9Ti"})]}, {}, id="not stated by the node"),
    ],
)
def test_free_cpu_and_memory_are_compared_with_requests(others: Any, spec: Any, lacking: Any) -> None:
    loads = NodeLoads()
    for each in others:
        loads.add(each)
    assert loads.lacking({"spec": spec}, NODE) == lacking


def test_loads_are_counted_again_after_a_list_that_broke() -> None:
    loads = NodeLoads()
    loads.add(on_node(requesting(cpu="8")))
    loads.clear()
    assert loads.lacking({"spec": {"containers": [requesting(cpu="8")]}}, NODE) == {}
