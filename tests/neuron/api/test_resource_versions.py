"""Objects of `resource.k8s.io` in every version."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.api.resource_versions import VERSIONS, converted, convertible

EXACT = {"deviceClassName": "neuron.aws.com", "count": 2, "selectors": [{"cel": {"expression": "true"}}]}
FIRST = [{"name": "a", "deviceClassName": "x"}]


def versioned_claim(version: str, requests: Any, kind: str = "ResourceClaim") -> dict[str, Any]:
    spec: dict[str, Any] = {"devices": {"requests": requests, "config": [{"requests": ["r"]}]}}
    if kind == "ResourceClaimTemplate":
        spec = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    data = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    return data if kind == "ResourceClaimTemplate" else {**data, "status": {"allocation": {}}}


NESTED = [{"name": "r", "exactly": EXACT}, {"name": "s", "firstAvailable": FIRST}]
FLAT = [{"name": "r", **EXACT}, {"name": "s", "firstAvailable": FIRST}]


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("source", VERSIONS)
@pytest.mark.parametrize("target", VERSIONS)
def test_a_claim_in_another_version(kind: str, source: str, target: str) -> None:
    forms = {"v1": NESTED, "v1beta2": NESTED, "v1beta1": FLAT}
    before = versioned_claim(source, forms[source], kind)
    assert convertible(kind, source, target)
    assert converted(kind, before, target) == versioned_claim(target, forms[target], kind)
    assert before == versioned_claim(source, forms[source], kind)


def slice_of(version: str, devices: Any, **spec: Any) -> dict[str, Any]:
    body = {"driver": "d", "pool": {"name": "p"}, **spec, "devices": devices}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": "ResourceSlice", "metadata": {}, "spec": body}


def test_a_slice_in_another_version() -> None:
    inner = {"attributes": {"a": {"int": 1}}, "taints": []}
    flat = slice_of("v1beta1", [{"name": "d0", "basic": inner}, {"name": "d1"}], nodeName="", allNodes=True)
    current = slice_of("v1", [{"name": "d0", **inner}, {"name": "d1"}], allNodes=True)
    assert converted("ResourceSlice", flat, "v1") == current
    back = slice_of("v1beta1", [{"name": "d0", "basic": inner}, {"name": "d1", "basic": {}}], allNodes=True)
    assert converted("ResourceSlice", current, "v1beta1") == back


def test_a_device_class_differs_in_its_version_only() -> None:
    spec = {"selectors": [{"cel": {"expression": "true"}}], "extendedResourceName": "a/b"}
    before = {"apiVersion": "resource.k8s.io/v1beta1", "kind": "DeviceClass", "spec": spec}
    assert converted("DeviceClass", before, "v1") == {**before, "apiVersion": "resource.k8s.io/v1"}


def test_a_taint_rule_differs_in_its_version_only() -> None:
    before = {"apiVersion": "resource.k8s.io/v1alpha3", "kind": "DeviceTaintRule", "spec": {"taint": {"key": "a/b"}}}
    for version in ("v1", "v1beta2"):
        assert convertible("DeviceTaintRule", "v1alpha3", version)
        assert converted("DeviceTaintRule", before, version) == {**before, "apiVersion": f"resource.k8s.io/{version}"}
    assert not convertible("DeviceTaintRule", "v1", "v1beta1")


def test_other_kinds_cannot_be_converted() -> None:
    assert not convertible("ResourcePoolStatusRequest", "v1alpha3", "v1")
    assert convertible("ResourcePoolStatusRequest", "v1alpha3", "v1alpha3")
    assert not convertible("ResourceClaim", "v1alpha2", "v1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(["deviceClassName", "count", "selectors", "adminAccess", "tolerations", "capacity", "new"]),
    JSON,
    min_size=1,
)
REQUESTS = st.lists(
    st.builds(lambda fields: {"name": "r", "exactly": fields}, FIELDS)
    | st.builds(lambda entries: {"name": "r", "firstAvailable": entries}, st.lists(JSON, max_size=3))
    | st.sampled_from([{"name": "r"}, {}]),
    max_size=4,
)


@given(REQUESTS, st.sampled_from(["ResourceClaim", "ResourceClaimTemplate"]))
def test_no_field_is_lost_by_a_conversion_and_its_reverse(requests: list[dict[str, Any]], kind: str) -> None:
    before = versioned_claim("v1", requests, kind)
    assert converted(kind, converted(kind, before, "v1beta1"), "v1") == before


@given(JSON, st.sampled_from(["ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice"]))
def test_no_value_of_another_type_raises(value: Any, kind: str) -> None:
    for version in VERSIONS:
        for target in VERSIONS:
            before = {"apiVersion": f"resource.k8s.io/{version}", "spec": value}
            for data in (value, before, {**before, "spec": {"devices": value, "spec": value}}):
                converted(kind, data, target)
            converted(kind, {**before, "spec": {"devices": {"requests": value}}}, target)
