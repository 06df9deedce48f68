"""Claims of all API versions in one shape, and everything that can be wrong with their form."""

import copy
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron.api.claim_reader import read_claim, read_class
from neuron.api.claim_specs import KINDS, ClaimSpec
from neuron.api.taints import TolerationSpec
from tests.support.validation import (
    TRN2,
    V1,
    claim,
    devices,
    first_available,
    flattened,
    group,
    lnc,
    match,
    on,
    opaque,
    request,
)

V1BETA1, V1BETA2 = "resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2"

WHOLE = claim(
    request("a", 4, on(TRN2), adminAccess=True),
    first_available("b", big=devices(8, on(TRN2)), small=devices(None)),
    request("c", None, mode="All"),
    constraints=[match(group(4), "a"), {"distinctAttribute": "neuron.aws.com/deviceId"}],
    config=[opaque(lnc(1), requests=["a", "b/big"]), opaque(lnc(2), requests=[])],
)


def form(spec: Any, version: str = V1) -> list[str]:
    """Findings about the form of a claim, as `code path: message fix`."""
    return [f"{each.path}: {each}" for each in read_claim("ResourceClaim", version, spec)[1]]


def without_paths(value: Any) -> Any:
    """A claim without its field paths, which differ between versions."""
    if isinstance(value, tuple):
        return tuple(without_paths(each) for each in value)
    if hasattr(value, "path"):
        return {name: without_paths(getattr(value, name)) for name in value.__slots__ if name != "path"}
    return value


class TestModel:
    def test_every_field_of_a_claim_is_read(self) -> None:
        read, findings = read_claim("ResourceClaim", V1, WHOLE)
        assert findings == ()
        first, second, third = read.requests
        assert [each.reference for each in (*first.alternatives, *second.alternatives)] == ["a", "b/big", "b/small"]
        assert (first.alternatives[0].count, first.alternatives[0].admin_access, first.prioritised) == (4, True, False)
        assert [each.count for each in second.alternatives] == [8, 1]
        assert second.prioritised
        assert (third.alternatives[0].everything, third.alternatives[0].count) == (True, 0)
        assert read.constraints[0].match_attribute == group(4)
        assert read.constraints[1].distinct_attribute == "neuron.aws.com/deviceId"
        assert [config.requests for config in read.configs] == [("a", "b/big"), ()]
        assert read.references == ("a", "b", "b/big", "b/small", "c")

    @pytest.mark.parametrize("more", [{}, {"language": "cel"}])
    @pytest.mark.parametrize("kind", [dict, MappingProxyType])
    def test_every_selector_is_read(self, more: Any, kind: Any) -> None:
        spec = changed_claim(
            selectors=[kind({"cel": kind({"expression": each, **more})}) for each in ("true", "false")]
        )
        found = read_claim("ResourceClaim", V1, spec)[0].requests[0].alternatives[0].selectors
        path = f"{REQUEST}.exactly.selectors"
        assert [(each.path, each.expression) for each in found] == [
            (f"{path}[0].cel.expression", "true"),
            (f"{path}[1].cel.expression", "false"),
        ]

    @pytest.mark.parametrize(
        ("fields", "count", "everything"),
        [
            ({"count": 0}, 1, False),
            ({"count": None}, 1, False),
            ({"count": "4"}, 0, False),
            ({"count": -1}, 0, False),
            ({"count": 2**63}, 0, False),
            ({"count": 2**63 - 1}, 2**63 - 1, False),
            ({"count": None, "allocationMode": "all"}, 0, True),
            ({"count": 4, "allocationMode": "All"}, 0, True),
            ({"count": 4, "allocationMode": "Some"}, 4, False),
        ],
    )
    def test_the_count_is_what_can_be_meant(self, fields: Any, count: int, everything: bool) -> None:
        [found] = read_claim("ResourceClaim", V1, changed_claim(**fields))[0].requests[0].alternatives
        assert (found.count, found.everything) == (count, everything)

    def test_capacities_and_tolerations_are_read(self) -> None:
        toleration = {"key": "neuron.aws.com/held", "operator": "Exists", "effect": "NoExecute"}
        inner = {"capacity": {"requests": {"neuroncores": 2, "memory": "8Gi", "x": 0}}, "tolerations": [toleration]}
        spec = claim(request("a", 1, **inner), first_available("b", big=devices(2, **inner)))
        read, findings = read_claim("ResourceClaim", V1, spec)
        assert findings == ()
        for each in (read.requests[0].alternatives[0], read.requests[1].alternatives[0]):
            assert each.capacity == (("neuroncores", "2"), ("memory", "8Gi"), ("x", "0"))
            assert each.tolerations == (TolerationSpec("neuron.aws.com/held", "Exists", "", "NoExecute"),)
        assert read.requests[1].alternatives[0].path == "spec.devices.requests[1].firstAvailable[0]"
        assert read.requests[1].path == "spec.devices.requests[1]"

    def test_no_more_capacities_and_tolerations_are_read_than_a_device_has(self) -> None:
        many = {f"c{number}": "1" for number in range(40)}
        read, _ = read_claim("ResourceClaim", V1, claim(request(capacity={"requests": many}, tolerations=[{}] * 20)))
        [found] = read.requests[0].alternatives
        assert (len(found.capacity), len(found.tolerations)) == (32, 16)

    def test_a_config_of_a_class_names_no_requests(self) -> None:
        [said] = read_class(V1, {"config": [opaque(lnc(1), requests=["a"])]})[1]
        assert (said.path, said.code) == ("spec.config[0].requests", "NEU501")

    def test_paths_are_those_of_the_version_that_was_written(self) -> None:
        path = "spec.devices.requests[0].exactly.selectors[0].cel.expression"
        current, _ = read_claim("ResourceClaim", V1, WHOLE)
        assert current.requests[0].alternatives[0].selectors[0].path == path
        older, _ = read_claim("ResourceClaim", V1BETA1, flattened(WHOLE))
        assert older.requests[0].alternatives[0].selectors[0].path == path.replace(".exactly", "")

    def test_a_template_holds_a_claim(self) -> None:
        read, findings = read_claim("ResourceClaimTemplate", V1, {"metadata": {"labels": {}}, "spec": WHOLE})
        assert findings == ()
        assert read.path == "spec.spec.devices"
        assert without_paths(read.requests) == without_paths(read_claim("ResourceClaim", V1, WHOLE)[0].requests)

    @pytest.mark.parametrize(
        ("version", "spec"), [(V1BETA2, WHOLE), (V1BETA1, flattened(WHOLE))], ids=["v1beta2", "v1beta1"]
    )
    def test_older_versions_mean_the_same(self, version: str, spec: Any) -> None:
        read, findings = read_claim("ResourceClaim", version, spec)
        assert findings == ()
        assert without_paths(read.requests) == without_paths(read_claim("ResourceClaim", V1, WHOLE)[0].requests)

    def test_reads_a_class(self) -> None:
        spec = {
            "selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}],
            "config": [{"opaque": {"driver": "neuron.aws.com", "parameters": lnc(1)}}],
            "extendedResourceName": "aws.amazon.com/neuron",
        }
        read, findings = read_class(V1, spec)
        assert findings == ()
        assert [selector.path for selector in read.selectors] == ["spec.selectors[0].cel.expression"]
        assert [config.path for config in read.configs] == ["spec.config[0]"]

    def test_null_is_absent(self) -> None:
        assert read_claim("ResourceClaim", V1, {"devices": None}) == (ClaimSpec("spec.devices"), ())


def changed_claim(**fields: Any) -> dict[str, Any]:
    """A claim of one request with some of its fields changed; None takes one away."""
    spec = claim(request("neurons", 4, on(TRN2)))
    inner = spec["devices"]["requests"][0]["exactly"]
    for name, value in fields.items():
        inner[name] = value
        if value is None:
            del inner[name]
    return spec


REQUEST = "spec.devices.requests[0]"
FORM_CASES = {
    f"{REQUEST}.exactly.selector: NEU501: exactly has no field 'selector'. Did you mean 'selectors'? Its fields are"
    " deviceClassName, selectors, allocationMode, count, tolerations, capacity, adminAccess.": changed_claim(
        selector=[]
    ),
    f"{REQUEST}.count: NEU501: requests[0] has no field 'count' of its own: it belongs under exactly. Move it"
    " under exactly; only v1beta1 has it in the request itself.": (
        {"devices": {"requests": [{"name": "neurons", "count": 4, "exactly": {"deviceClassName": "neuron.aws.com"}}]}}
    ),
    f"{REQUEST}.exactly.deviceClassName: NEU502: deviceClassName is missing. Set deviceClassName.": changed_claim(
        deviceClassName=None
    ),
    f"{REQUEST}.exactly.deviceClassName: NEU502: deviceClassName is 7, an integer, not a string. Write a string.": (
        changed_claim(deviceClassName=7)
    ),
    f"{REQUEST}.exactly.count: NEU502: count is '4', a string, not an integer. Write an integer.": changed_claim(
        count="4"
    ),
    f"{REQUEST}.exactly.selectors: NEU502: selectors is an object, not a list. Write a list.": changed_claim(
        selectors={"cel": {}}
    ),
    f"{REQUEST}: NEU502: requests[0] is 'neurons', a string, not an object. Write an object.": (
        {"devices": {"requests": ["neurons"]}}
    ),
    "spec.devices.constraints[0].requests[0]: NEU502: requests[0] is 1, an integer, not a string. Write a string.": (
        claim(request(), constraints=[{"requests": [1], "matchAttribute": group(4)}])
    ),
    f"{REQUEST}.exactly.selectors[0].cel.expression: NEU502: expression is missing. Set expression.": changed_claim(
        selectors=[{"cel": {}}]
    ),
    "spec.devices.constraints[0].distinctAttribute: NEU502: distinctAttribute is 1, an integer, not a string. Write"
    " a string.": claim(
        request(), constraints=[{"requests": ["neurons"], "matchAttribute": group(4), "distinctAttribute": 1}]
    ),
    "spec.devices.config[0].opaque.params: NEU501: opaque has no field 'params'. Did you mean 'parameters'? Its"
    " fields are driver, parameters.": claim(
        request(), config=[{"opaque": {"driver": "neuron.aws.com", "params": lnc()}}]
    ),
    "spec.devices.constraints[0].matchAttribute: NEU502: the constraint has no matchAttribute. Write"
    " matchAttribute: resource.aws.com/devicegroup4_id, or drop the constraint.": claim(
        request(), constraints=[{"requests": ["neurons"]}]
    ),
    "spec.devices.config[0].opaque: NEU502: the config has no opaque section. Set opaque.driver and"
    " opaque.parameters.": claim(request(), config=[{"requests": ["neurons"]}]),
    "spec.devices.config[0].opaque.driver: NEU502: driver is missing. Set driver.": claim(
        request(), config=[{"opaque": {"parameters": lnc()}}]
    ),
    f"{REQUEST}: NEU504: request 'neurons' has neither a device class nor alternatives. Set exactly or"
    " firstAvailable, and not both.": {"devices": {"requests": [{"name": "neurons"}]}},
    f"{REQUEST}: NEU504: request 'neurons' has both one request and firstAvailable. Set exactly or"
    " firstAvailable, and not both.": (
        {"devices": {"requests": [{**request(), "firstAvailable": [{"name": "x", **devices()}]}]}}
    ),
    f"{REQUEST}.name: NEU502: name is missing. Set name.": {"devices": {"requests": [{"exactly": devices()}]}},
    f"{REQUEST}.name: NEU505: name 'Neurons_1' is no DNS label. Use lower-case letters, digits and dashes.": claim(
        request("Neurons_1")
    ),
    "spec.devices.requests[1].name: NEU505: the name 'a' is used twice. Rename one of the two.": claim(
        request("a"), request("a")
    ),
    f"{REQUEST}.exactly.allocationMode: NEU506: allocationMode 'all' is not known. Did you mean 'All'? Write"
    " ExactCount or All.": claim(request("neurons", None, mode="all")),
    f"{REQUEST}.exactly.allocationMode: NEU506: allocationMode 'ExactCnt' is not known. Did you mean"
    " 'ExactCount'? Write ExactCount or All.": claim(request("neurons", 1, mode="ExactCnt")),
    f"{REQUEST}.exactly.count: NEU507: allocationMode All requests all devices, and count is 4. Drop count, or"
    " write allocationMode: ExactCount.": claim(request("neurons", 4, mode="All")),
    f"{REQUEST}.exactly.count: NEU507: count is -1. Request 1 device or more.": changed_claim(count=-1),
    f"{REQUEST}.exactly.count: NEU507: count is 9223372036854775808, which is no 64-bit number. Request at most the"
    " devices of one node.": changed_claim(count=2**63),
    f"{REQUEST}.exactly.capacity.requests[neuroncores]: NEU502: capacity 'neuroncores' is 'two', a string, not a"
    " quantity of 0 or more. Write a number, such as 1.": changed_claim(capacity={"requests": {"neuroncores": "two"}}),
    f"{REQUEST}.exactly.capacity.requests[neuroncores]: NEU502: capacity 'neuroncores' is -1, an integer, not a"
    " quantity of 0 or more. Write a number, such as 1.": changed_claim(capacity={"requests": {"neuroncores": -1}}),
    f"{REQUEST}.exactly.capacity.requests: NEU502: requests is a list, not an object. Write an object.": changed_claim(
        capacity={"requests": ["neuroncores"]}
    ),
    f"{REQUEST}.exactly.capacity.request: NEU501: capacity has no field 'request'. Did you mean 'requests'? Its"
    " fields are requests.": changed_claim(capacity={"request": {}}),
    f"{REQUEST}.firstAvailable[0].name: NEU505: name 'Big' is no DNS label. Use lower-case letters, digits and"
    " dashes.": claim(first_available(Big=devices())),
    f"{REQUEST}.exactly.allocationMode: NEU502: allocationMode is 1, an integer, not a string. Write a string.": (
        changed_claim(allocationMode=1)
    ),
    "spec.devices.config[0].requests[0]: NEU508: 'neuron' names no request of this claim. Did you mean 'neurons'?"
    " Its requests are: neurons.": claim(request(), config=[opaque(lnc(), requests=["neuron"])]),
    "spec.devices.constraints[0].requests[0]: NEU508: 'neurons/bigger' names no request of this claim. Did you"
    " mean 'neurons/big'? Its requests are: neurons, neurons/big.": claim(
        first_available(big=devices(8)), constraints=[match(group(8), "neurons/bigger")]
    ),
    "spec.devices.constraints[0].requests[0]: NEU508: 'neurons/x' names no request of this claim. Did you mean"
    " 'neurons'? Its requests are: neurons.": claim(request(), constraints=[match(group(4), "neurons/x")]),
    "spec.devices.requests: NEU509: requests has 33 entries; Kubernetes allows 32. Keep 32 or fewer.": claim(
        *[request(f"r{index}") for index in range(33)]
    ),
    f"{REQUEST}.firstAvailable: NEU509: firstAvailable has 9 entries; Kubernetes allows 8. Keep 8 or fewer.": claim(
        first_available(**{f"a{index}": devices() for index in range(9)})
    ),
}


class TestForm:
    @pytest.mark.parametrize(("said", "spec"), FORM_CASES.items(), ids=FORM_CASES)
    def test_form_errors_have_path_and_message(self, spec: Any, said: str) -> None:
        assert form(spec) == [said]

    def test_an_unknown_version_is_reported_and_the_rest_is_read(self) -> None:
        assert form(changed_claim(count=-1), "resource.k8s.io/v1alpha3") == [
            "apiVersion: NEU503: apiVersion 'resource.k8s.io/v1alpha3' is not known. Did you mean"
            " 'resource.k8s.io/v1'? Write apiVersion: resource.k8s.io/v1.",
            f"{REQUEST}.exactly.count: NEU507: count is -1. Request 1 device or more.",
        ]

    def test_v1_fields_in_v1beta1_are_reported_with_their_right_place(self) -> None:
        assert form(claim(request("neurons", 4)), V1BETA1)[0] == (
            f"{REQUEST}.exactly: NEU501: requests[0] has no field 'exactly' in v1beta1. Write apiVersion:"
            " resource.k8s.io/v1, or move its fields into the request."
        )

    def test_all_form_errors_are_reported_together(self) -> None:
        spec = claim(request("A", -1, mode="all"), request("A"), constraints=[{}], config=[{}])
        assert len(form(spec)) == 7

    def test_subrequests_have_no_admin_access(self) -> None:
        [said] = form(claim(first_available(big=devices(adminAccess=True))))
        assert "NEU501: firstAvailable[0] has no field 'adminAccess'." in said

    def test_long_words_are_cut_in_messages(self) -> None:
        [said] = form(changed_claim(allocationMode="x" * 5000))
        assert len(said) < 300

    def test_words_of_other_scripts_are_escaped(self) -> None:
        [said] = form(changed_claim(allocationMode="Alle\u0301"))
        assert said.isascii()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value, with each of its keys."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += [(value, key), *places(item)]
    return found


class TestAnyJson:
    @settings(deadline=None)
    @given(JSON, st.sampled_from(KINDS))
    def test_any_json_is_read_without_an_exception(self, spec: Any, kind: str) -> None:
        read_class(V1, spec) if kind == "DeviceClass" else read_claim(kind, V1, spec)

    @settings(deadline=None)
    @given(st.data(), JSON)
    def test_a_claim_with_one_part_replaced_is_read_without_an_exception(self, data: st.DataObject, junk: Any) -> None:
        spec = copy.deepcopy(WHOLE)
        container, key = data.draw(st.sampled_from(places(spec)))
        container[key] = junk
        read_claim("ResourceClaim", V1, spec)
