from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.findings.check_pods import misplaced_around, misplaced_resources

NEURON = "aws.amazon.com/neuron"
ASKS = {NEURON: "4"}


def one_container(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {}, "spec": {"containers": [{"name": "t", **(container or {})}], **spec}}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        (one_container(resources={"limits": ASKS}), f"spec.resources.limits[{NEURON}]"),
        (
            one_container(resources={"requests": {"aws.amazon.com/neuroncore": 1}}),
            "spec.resources.requests[aws.amazon.com/neuroncore]",
        ),
        (one_container({"limits": ASKS}), "spec.containers[0].limits"),
        (one_container({"requests": ASKS}), "spec.containers[0].requests"),
        (one_container({"resource": {"limits": ASKS}}), "spec.containers[0].resource"),
        (one_container({"Resources": {"limits": ASKS}}), "spec.containers[0].Resources"),
        (one_container({"resources": ASKS}), f"spec.containers[0].resources[{NEURON}]"),
        (one_container({"resources": {"limit": ASKS}}), "spec.containers[0].resources.limit"),
        (one_container(limits=ASKS), "spec.limits"),
        (one_container(resource={"limits": ASKS}), "spec.resource"),
        ({**one_container(), "resources": {"limits": ASKS}}, "resources"),
        (one_container(initContainers=[{"name": "i", "limits": ASKS}]), "spec.initContainers[0].limits"),
        (one_container({"securityContext": {"resources": {"limits": ASKS}}}), "spec.containers[0].securityContext"),
        (one_container(ephemeralContainers=[{"resources": {"limits": ASKS}}]), "spec.ephemeralContainers[0]"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_resource_where_kubernetes_reads_none_is_an_error(template: dict[str, Any], path: str) -> None:
    (finding,) = misplaced_resources(template)
    assert (finding.code, finding.path.replace("[aws.amazon.com/neuron]", f"[{NEURON}]")) == ("NEU129", path)
    assert str(finding.severity) == "error"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            one_container(resources={"limits": ASKS}),
            f"NEU129: the pod as a whole asks for {NEURON}: Kubernetes takes only CPU and memory there. The API server "
            "refuses the pod. Put it under resources.limits of the container.",
        ),
        (
            one_container({"limits": ASKS}),
            f"NEU129: spec.containers[0] has 'limits' with {NEURON}, which is no field there: the pod gets no device. "
            "kubectl refuses the object, or the field is dropped. Put it under resources.limits of the container.",
        ),
        (
            {**one_container(), "resources": {"limits": ASKS}},
            f"NEU129: the object has 'resources' with {NEURON}, which is no field there: the pod gets no device. "
            "kubectl refuses the object, or the field is dropped. Put it under resources.limits of the container.",
        ),
        (
            one_container({"resources": ASKS}),
            f"NEU129: spec.containers[0].resources has '{NEURON}', which is no field there: the pod gets no device. "
            "kubectl refuses the object, or the field is dropped. Put it under resources.limits of the container.",
        ),
        (
            one_container(ephemeralContainers=[{"resources": {"limits": ASKS}}]),
            f"NEU129: an ephemeral container asks for {NEURON}: Kubernetes takes no resources there. The API server "
            "refuses it. Put it under resources.limits of a container.",
        ),
    ],
    ids=["pod", "container", "object", "without-limits", "ephemeral-container"],
)
def test_the_finding_says_where_the_resource_belongs(template: dict[str, Any], text: str) -> None:
    (finding,) = misplaced_resources(template)
    assert (str(finding), finding.value) == (text, NEURON)


@pytest.mark.parametrize(
    "template",
    [
        one_container({"resources": {"limits": ASKS, "requests": ASKS}}),
        one_container(nodeSelector={NEURON: "true"}, overhead=ASKS, resources={"limits": {"cpu": "1"}}),
        {**one_container(), "metadata": {"annotations": {NEURON: "4"}}, "status": {"allocated": ASKS}},
        {},
        {"spec": None},
        {"spec": {"containers": {"a": ASKS}}},
        one_container(ephemeralContainers=[{"resources": {"limits": {"cpu": 1}}}, 1]),
        one_container(affinity={"podAffinity": {"a": [{"labelSelector": {"matchLabels": ASKS}}]}}),
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


TEMPLATE = ("spec", "jobTemplate", "spec", "template")


@pytest.mark.parametrize(
    ("owner", "path"),
    [
        ({"spec": {"resources": {"limits": ASKS}}}, "spec.resources"),
        ({"spec": {"jobTemplate": {"limits": ASKS}}}, "spec.jobTemplate.limits"),
        ({"spec": {"jobTemplate": {"spec": {"Resources": ASKS}}}}, "spec.jobTemplate.spec.Resources"),
        ({"resource": {"requests": ASKS}}, "resource"),
    ],
)
def test_resources_around_a_pod_template_are_an_error(owner: dict[str, Any], path: str) -> None:
    (finding,) = misplaced_around(owner, TEMPLATE)
    assert (finding.code, finding.path) == ("NEU129", path)


@pytest.mark.parametrize(
    "owner",
    [
        {"metadata": {"annotations": ASKS, "labels": ASKS}, "spec": {"selector": {"matchLabels": ASKS}}},
        {"spec": {"jobTemplate": {"spec": {"template": {"resources": ASKS}}}}},
        {"spec": {"resources": {"limits": {"cpu": 1}}, "limits": 1}},
        {"spec": [1]},
    ],
)
def test_other_fields_around_it_are_not_reported(owner: dict[str, Any]) -> None:
    assert [*misplaced_around(owner, TEMPLATE)] == []
