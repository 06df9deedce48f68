"""A selector that can select a whole UltraServer node is never taken for one that selects a single device."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubecel.budget import SELECTOR_LIMITS, Budget
from kubecel.compile import Cel
from kubecel.devices import compile_selector, device_activation, matches
from kubecel.errors import CelError
from neuron import names
from neuron.hardware.device_shapes import DeviceShape, catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.judging.device_counts import of_claim
from policies.judging.knowledge import DeviceKnowledge, WholeNodes

D = 'device.attributes["neuron.aws.com"]'
ULTRASERVER = "trn2u.48xlarge"
SHAPES = [each for each in catalogue_shapes(Catalogue()) if each.instance_type == ULTRASERVER]
NODE = next(each for each in SHAPES if each.resource_type == names.RESOURCE_TYPE_NODE)
DEVICES = [each for each in SHAPES if each is not NODE]
OTHERS = {
    "neuron.aws.com/neuronDriverVersion": "2.25.4.0",
    "neuron.aws.com/networkNodeLayer1": "nn-1",
    "neuron.aws.com/capacityBlockId": "cr-1",
}
CATALOGUE = Catalogue()
KNOWN = {published: WholeNodes(CATALOGUE, [NODE] if published else []) for published in (True, False)}


def matched(expression: str, shape: DeviceShape) -> bool | None:
    """The engine's answer; None for a failure."""
    values: Mapping[str, Any] = {**OTHERS, **shape.fixed}
    engine = Cel(SELECTOR_LIMITS)
    activation = device_activation(names.DRIVER, values, shape.capacity, allow_multiple_allocations=shape.shared)
    try:
        return matches(compile_selector(engine, expression), activation, Budget(lambda: 0.0))
    except CelError:
        return None


def held(expression: str, *, published: bool = False, nodes: WholeNodes | None = None) -> int:
    request = {
        "name": "r",
        "exactly": {"deviceClassName": names.DRIVER, "selectors": [{"cel": {"expression": expression}}]},
    }
    known = DeviceKnowledge(CATALOGUE, whole_nodes=nodes or KNOWN[published])
    return of_claim({"devices": {"requests": [request]}}, known).devices


WHOLE = [
    f"{D}.resourceType == 'neuron_' + 'node'",
    f"{D}.resourceType.endsWith('node')",
    f"{D}.resourceType.matches('.*node')",
    f"{D}.resourceType.size() == 11",
    f"{D}.resourceType < 'neuron_o' && {D}.resourceType > 'neuron_e'",
    f"{D}['resource' + 'Type'] != 'neuron_device'",
    f"{D}.?resourceType.orValue('') != 'neuron_device'",
    f"{D}[?'resourceType'].hasValue() && !({D}.resourceType == 'neuron_device')",
    f"cel.bind(d, {D}, d.resourceType != 'neuron_device')",
    f"cel.bind(device, {D}, device.resourceType != 'neuron_device')",
    f"cel.bind(k, 'resourceType', {D}[k] != 'neuron_device')",
    "cel.bind(d, device, d.attributes['neuron.aws.com'].resourceType != 'neuron_device')",
    f"['resourceType'].exists(k, {D}[k] != 'neuron_device')",
    "device.attributes.exists(d, device.attributes[d].exists(k, device.attributes[d][k] == 'neuron_' + 'node'))",
    f"{D}.exists(k, {D}[k] == 'neuron_' + 'node')",
    f"{D}.all(k, {D}[k] != 'neuron_device')",
    f"{D} != {{'resourceType': 'neuron_device'}}",
    f"size({D}) < 8",
    f"{D}.?resourceType.optMap(t, t != 'neuron_device').orValue(false)",
    f"[{D}.resourceType].exists(t, t != 'neuron_device')",
    f"!({D}.resourceType in ['neuron_device'])",
    f"{D}.resourceType in ['neuron_' + 'node']",
    f"{D}.deviceId >= 16",
    f"{D}.deviceId == 16",
    f"!({D}.deviceId < 16)",
    f"{D}.deviceId in [3, 16]",
    "!('devicegroup4_id' in device.attributes['resource.aws.com'])",
    "!has(device.attributes['resource.aws.com'].devicegroup4_id)",
    f"device.capacity['neuron.aws.com'].{names.CAPACITY_CORES}.compareTo(quantity('64')) > 0",
    "device.capacity.exists(d, true)",
    f"true ? {D}.resourceType != 'neuron_device' : false",
    f"{D}.resourceType == 'neuron_device' ? false : true",
    f"({D}.resourceType == 'neuron_device') != true",
    ".device.attributes['neuron.aws.com'].resourceType != 'neuron_device'",
    "!device.allowMultipleAllocations",
]


@pytest.mark.parametrize("expression", WHOLE)
@pytest.mark.parametrize("published", [False, True])
def test_whole_nodes(expression: str, published: bool) -> None:
    assert held(expression, published=published) == 16, expression


SINGLE = [
    f"{D}.resourceType == 'neuron_device'",
    f"{D}.resourceType != 'neuron_node'",
    f"'neuron_device' == {D}.resourceType",
    f"{D}['resourceType'] in ['neuron_device']",
    f"{D}.?resourceType.orValue('neuron_device') == 'neuron_device'",
    f"cel.bind(d, {D}, d.resourceType == 'neuron_device')",
    f"{D}.resourceType.endsWith('device')",
    f"!('resourceType' in {D}) || {D}.resourceType == 'neuron_device'",
    f"has({D}.resourceType) ? {D}.resourceType == 'neuron_device' : true",
    f"{D}.instanceType == 'trn1.32xlarge' && {D}.deviceId >= 0",
    f"{D}.instanceType.startsWith('trn1.') && {D}.deviceId >= 0",
    "device.attributes['resource.aws.com'].devicegroup4_id != 'x'",
    "device.driver == 'gpu.example.com' && device.allowMultipleAllocations",
]


@pytest.mark.parametrize("expression", SINGLE)
@pytest.mark.parametrize("published", [False, True])
def test_single_devices(expression: str, published: bool) -> None:
    assert held(expression, published=published) == 1, expression


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver == 'neuron.aws.com'",
        f"{D}.instanceType == '{ULTRASERVER}'",
        f"'neuronDriverVersion' in {D} && {D}.neuronDriverVersion == '2.25.4.0'",
    ],
)
def test_selectors_that_select_no_whole_node_alone(expression: str) -> None:
    """They count as single devices while the cluster has no whole node."""
    assert (held(expression), held(expression, published=True)) == (1, 16)


@pytest.mark.parametrize("expression", [f"{D}.deviceId == 3", f"{D}.deviceId in [0, 1] || {D}.deviceId < 4"])
def test_the_number_of_a_whole_node_is_the_one_that_slices_show(expression: str) -> None:
    numbered = dataclasses.replace(NODE, fixed={**NODE.fixed, f"{names.DRIVER}/deviceId": 3})
    found = [held(expression, published=True), held(expression, nodes=WholeNodes(CATALOGUE, [numbered]))]
    assert found == [1, 16]


@pytest.mark.parametrize(
    ("amounts", "devices"),
    [
        ({"neuroncores": "4"}, 1),
        ({"memory": "96Gi"}, 1),
        ({"memory": "1Ti"}, 16),
        ({"neuroncores": "9"}, 16),
        ({"x": "1"}, 16),
    ],
)
def test_capacities_that_a_single_device_lacks(amounts: dict[str, str], devices: int) -> None:
    request = {"name": "r", "exactly": {"deviceClassName": names.DRIVER, "capacity": {"requests": amounts}}}
    assert of_claim({"devices": {"requests": [request]}}, DeviceKnowledge(CATALOGUE)).devices == devices


def test_selectors_of_the_class_count() -> None:
    def devices(expression: str, *, published: bool) -> int:
        known = DeviceKnowledge(
            CATALOGUE, class_selectors={"neuron.aws.com": (expression,)}, whole_nodes=KNOWN[published]
        )
        request = {"name": "r", "exactly": {"deviceClassName": names.DRIVER}}
        return of_claim({"devices": {"requests": [request]}}, known).devices

    assert devices(f"{D}.resourceType.endsWith('node')", published=False) == 16
    assert devices(f"{D}.resourceType == 'neuron_device'", published=True) == 1
    assert devices("device.driver == 'neuron.aws.com'", published=False) == 1


def test_many_or_long_selectors_count_as_a_node() -> None:
    assert held(f"{D}.resourceType == 'neuron_device' && '{'x' * 2000}' != ''") == 16


# --- generated selectors ----------------------------------------------------------------------------------------

NAMES = st.sampled_from(["resourceType", "instanceType", "deviceId", "topology_x", "neuronDriverVersion", "missing"])
TEXTS = st.sampled_from(["'neuron_node'", "'neuron_device'", "'neuron_' + 'node'", f"'{ULTRASERVER}'", "'x'"])
NUMBERS = st.sampled_from(["0", "3", "16", "17"])
HOLDERS = st.sampled_from(
    [D, "d", "device.attributes['neuron.' + 'aws.com']", "a['neuron.aws.com']", "device.attributes['resource.aws.com']"]
)
READS = st.builds(
    lambda holder, name, form: form.format(holder=holder, name=name),
    HOLDERS,
    NAMES,
    st.sampled_from(
        ["{holder}.{name}", "{holder}['{name}']", "{holder}.?{name}.orValue('')", "{holder}[?'{name}'].orValue('x')"]
    ),
)
LEAVES = st.one_of(
    st.builds("({} {} {})".format, READS, st.sampled_from(["==", "!=", "<", ">="]), st.one_of(TEXTS, NUMBERS)),
    st.builds("({} in [{}, {}])".format, READS, st.one_of(TEXTS, NUMBERS), TEXTS),
    st.builds("({} {} {})".format, st.one_of(TEXTS, NUMBERS), st.sampled_from(["==", "<", ">"]), READS),
    st.builds("'{}' in {}".format, NAMES, HOLDERS),
    st.builds("has({}.{})".format, HOLDERS, NAMES),
    st.builds("string({}).{}({})".format, READS, st.sampled_from(["startsWith", "contains"]), TEXTS),
    st.builds("{}.exists(k, {}[k] == {})".format, HOLDERS, HOLDERS, TEXTS),
    st.builds("[{}].exists(t, t != {})".format, READS, TEXTS),
    st.builds("(size({}) > {})".format, HOLDERS, NUMBERS),
    st.just("device.allowMultipleAllocations"),
    st.sampled_from(["true", "false", "device.driver == 'neuron.aws.com'"]),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("({} == {})".format, inner, inner),
        st.builds("cel.bind(v, {}, v || {})".format, inner, inner),
    ),
    max_leaves=6,
)
SELECTORS = st.builds(
    lambda condition: f"cel.bind(a, device.attributes, cel.bind(d, a['neuron.aws.com'], {condition}))", CONDITIONS
)


@given(SELECTORS)
def test_generated_selectors_never_hide_a_whole_node(expression: str) -> None:
    on_node = matched(expression, NODE)
    if on_node is not True:
        return
    assert held(expression, published=True) == 16, expression
    if any(matched(expression, each) is not True for each in DEVICES):
        assert held(expression) == 16, expression


def test_the_generated_selectors_are_not_trivial() -> None:
    """Both sides of the property are met: selectors of nodes only, and provable selectors of devices only."""
    assert matched(WHOLE[0], NODE) is True
    assert matched(WHOLE[0], DEVICES[0]) is False
    assert [matched(each, NODE) for each in SINGLE[:9]] == [False] * 9
