from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.findings.check_resources import misplaced_resources

NEURON = "aws.amazon.com/neuron"
ASKS = {NEURON: "4"}


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {}, "spec": {"containers": [{"name": "t", **(container or {})}], **spec}}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        (pod(resources={"limits": ASKS}), f"spec.resources.limits[{NEURON}]"),
        (
            pod(resources={"requests": {"aws.amazon.com/neuroncore": 1}}),
            "spec.resources.requests[aws.amazon.com/neuroncore]",
        ),
        (pod({"limits": ASKS}), "spec.containers[0].limits"),
        (pod({"requests": ASKS}), "spec.containers[0].requests"),
        (pod({"resource": {"limits": ASKS}}), "spec.containers[0].resource"),
        (pod({"Resources": {"limits": ASKS}}), "spec.containers[0].Resources"),
        (pod({"resources": ASKS}), f"spec.containers[0].resources[{NEURON}]"),
        (pod({"resources": {"limit": ASKS}}), "spec.containers[0].resources.limit"),
        (pod(limits=ASKS), "spec.limits"),
        (pod(resource={"limits": ASKS}), "spec.resource"),
        ({**pod(), "resources": {"limits": ASKS}}, "resources"),
        (pod(initContainers=[{"name": "i", "limits": ASKS}]), "spec.initContainers[0].limits"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_resource_where_kubernetes_reads_none_is_an_error(template: dict[str, Any], path: str) -> None:
    (finding,) = misplaced_resources(template)
    assert (finding.code, finding.path.replace("[aws.amazon.com/neuron]", f"[{NEURON}]")) == ("NEU129", path)
    assert str(finding.severity) == "error"


@pytest.mark.parametrize(
    "template",
    [
        pod({"resources": {"limits": ASKS, "requests": ASKS}}),
        pod(nodeSelector={NEURON: "true"}, overhead={"cpu": "1"}, resources={"limits": {"cpu": "1"}}),
        {**pod(), "metadata": {"annotations": {NEURON: "4"}}, "status": {"allocated": ASKS}},
        {},
        {"spec": None},
        {"spec": {"containers": {"a": ASKS}}},
        {"spec": {"containers": [1, None, {"resources": "x"}]}},
    ],
)
def test_other_places_are_not_reported(template: dict[str, Any]) -> None:
    assert [*misplaced_resources(template)] == []


JSON = st.recursive(
    st.none() | st.integers() | st.sampled_from([NEURON, "x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["spec", "containers", "resources", "limits", NEURON]), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.sampled_from(["spec", "resources", NEURON]), JSON))
def test_values_of_any_type_are_read(template: dict[str, Any]) -> None:
    assert {each.code for each in misplaced_resources(template)} <= {"NEU129"}
