import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.objects.current_versions import current
from commands.objects.manifests import manifests
from neuron.api.claim_reader import read_claim
from tests.support.converting import convert_texts, documents
from tests.support.yaml_styles import written

SELECTOR = {"cel": {"expression": "device.driver == 'neuron.aws.com'"}}
FIELDS = st.fixed_dictionaries(
    {"deviceClassName": st.sampled_from(["neuron.aws.com", "gpu.example.com"])},
    optional={
        "selectors": st.just([SELECTOR]),
        "allocationMode": st.sampled_from(["ExactCount", "All"]),
        "count": st.integers(1, 16),
        "adminAccess": st.booleans(),
    },
)
CONFIG = st.builds(
    lambda version, driver: {
        "opaque": {
            "driver": driver,
            "parameters": {"apiVersion": version, "kind": "NeuronConfig", "logicalNeuronCore": 1},
        }
    },
    st.sampled_from(["neuron.aws.com/v1alphav1", "resource.neuron.aws.com/v1alphav1", "neuron.aws.com/v1"]),
    st.sampled_from(["neuron.aws.com", "gpu.example.com"]),
)


@st.composite
def claims(draw: st.DrawFn) -> dict[str, Any]:
    requests = []
    for index in range(draw(st.integers(0, 3))):
        name, fields = {"name": f"r{index}"}, draw(FIELDS)
        if draw(st.booleans()):
            fields.pop("adminAccess", None)
            requests.append({**name, "firstAvailable": [{"name": "a", **fields}]})
        else:
            items = list({**name, **fields}.items())
            requests.append(dict(draw(st.permutations(items))))
    devices = {"requests": requests, "config": draw(st.lists(CONFIG, max_size=2))}
    template = draw(st.booleans())
    return {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
        "metadata": {"name": "x"},
        "spec": {"spec": {"devices": devices}} if template else {"devices": devices},
    }


@given(claims().flatmap(lambda claim: st.tuples(st.just(claim), written(claim))))
def test_a_claim_has_the_same_meaning_in_v1_however_it_is_written(case: tuple[dict[str, Any], str]) -> None:
    claim, text = case
    done = convert_texts(text)
    became = done.named(claim["kind"])
    assert became["apiVersion"] == "resource.k8s.io/v1"
    before, wrong = read_claim(claim["kind"], claim["apiVersion"], claim["spec"])
    after, found = read_claim(claim["kind"], became["apiVersion"], became["spec"])
    assert {each.code for each in found} == {each.code for each in wrong} <= {"NEU507"}
    devices = [
        [(each.reference, each.device_class, each.count, each.everything) for each in request.alternatives]
        for request in after.requests
    ]
    assert devices == [
        [(each.reference, each.device_class, each.count, each.everything) for each in request.alternatives]
        for request in before.requests
    ]
    drivers = [(each.driver, each.parameters["apiVersion"]) for each in after.configs if each.parameters]
    assert all(version == "neuron.aws.com/v1" for driver, version in drivers if driver == "neuron.aws.com")
    theirs = [each.parameters for each in before.configs if each.driver != "neuron.aws.com"]
    assert [each.parameters for each in after.configs if each.driver != "neuron.aws.com"] == theirs
    assert convert_texts(done.yaml).diff == ""


def of(data: dict[str, Any]) -> dict[str, Any] | None:
    (manifest,) = (each for document in documents(json.dumps(data)) for each in manifests(document))
    return current(manifest)


REQUEST = {"name": "a", "deviceClassName": "neuron.aws.com"}
CLAIM: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceClaim",
    "spec": {"devices": {"requests": [REQUEST]}},
}


def with_request(**fields: Any) -> dict[str, Any]:
    claim = copy.deepcopy(CLAIM)
    claim["spec"]["devices"]["requests"] = [fields]
    return claim


def test_a_request_in_both_forms_is_not_rewritten() -> None:
    assert of(with_request(**REQUEST, exactly={"deviceClassName": "x"})) is None


def test_a_request_that_has_exactly_already_needs_only_the_version() -> None:
    made = of(with_request(name="a", exactly={"deviceClassName": "x"}))
    assert made is not None
    assert made["spec"]["devices"]["requests"] == [{"name": "a", "exactly": {"deviceClassName": "x"}}]


@pytest.mark.parametrize(
    "data",
    [
        {**CLAIM, "apiVersion": "resource.k8s.io/v1"},
        {**CLAIM, "apiVersion": "resource.k8s.io/v1alpha3"},
        {**CLAIM, "apiVersion": "example.com/v1beta1"},
        {**CLAIM, "kind": "ResourceSlice"},
    ],
)
def test_other_objects_and_versions_are_not_rewritten(data: dict[str, Any]) -> None:
    assert of(data) is None


@pytest.mark.parametrize("spec", [None, [], "x", {"devices": []}, {"devices": {"requests": {}}}, {"spec": 1}])
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
def test_malformed_specs_are_kept(kind: str, spec: Any) -> None:
    made = of({"apiVersion": "resource.k8s.io/v1beta1", "kind": kind, "spec": spec})
    assert made == {"apiVersion": "resource.k8s.io/v1", "kind": kind, "spec": spec}
