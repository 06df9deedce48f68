"""Device selectors are evaluated as the scheduler does: DRA's `device`, domains, versions, quantities.

Cases after k8s.io/dynamic-resource-allocation/cel/compile_test.go.
"""

import pytest

from kubecel.budget import Budget
from kubecel.devices import compile_selector, device_activation, matches
from kubecel.errors import CelRuntimeError, CelTypeError
from kubecel.library import kubernetes
from kubecel_tests.evaluating import ENGINE, frozen_clock

ATTRIBUTES = {
    "name": {"bool": True},
    "count": {"int": 4},
    "kind": {"string": "neuron_device"},
    "version": {"version": "1.2.3"},
    "names": {"strings": ["fish", "bird"]},
    "versions": {"versions": ["1.0.0", "2.0.0"]},
    "numbers": {"ints": [1, 2]},
    "flags": {"bools": [True, False]},
    "other.example.com/name": {"string": "other"},
}
CAPACITY = {"memory": {"value": "32Gi"}, "other.example.com/cores": "8"}
DEVICE = device_activation("dra.example.com", ATTRIBUTES, CAPACITY)
OWN = 'device.attributes["dra.example.com"]'


def matched(expression: str) -> bool:
    return matches(compile_selector(ENGINE, expression), DEVICE, Budget(frozen_clock))


MATCHING = [
    'device.driver == "dra.example.com"',
    "!device.allowMultipleAllocations",
    f"{OWN}.name",
    f'{OWN}["name"]',
    f"{OWN}.count > 3",
    f"{OWN}.count == 4.0",
    f'{OWN}.kind == "neuron_device"',
    f'{OWN}.kind.endsWith("_device")',
    f'{OWN}.version.isGreaterThan(semver("1.2.2"))',
    f'{OWN}.version == semver("v1.2.3", true)',
    f"{OWN}.version.major() == 1",
    f'"fish" in {OWN}.names',
    f'{OWN}.names.includes("bird") && {OWN}.kind.includes("neuron_device")',
    f"{OWN}.names.size() == 2 && {OWN}.flags.exists(f, f) && {OWN}.numbers.sum() == 3",
    f'{OWN}.versions.all(v, v.isGreaterThan(semver("0.0.1")))',
    'device.attributes["other.example.com"].name == "other"',
    f'cel.bind(own, {OWN}, own.name && own.kind == "neuron_device")',
    'device.capacity["dra.example.com"].memory.compareTo(quantity("32Gi")) == 0',
    'device.capacity["other.example.com"].cores.isGreaterThan(quantity("7"))',
    '"dra.example.com" in device.attributes && "dra.example.com" in device.capacity',
    f'{OWN}.exists(name, name == "kind")',
    'device.attributes["unknown.example.com"].size() == 0',
    'device.attributes["unknown.example.com"].?name.orValue(true)',
    f'!has(device.attributes["unknown.example.com"].name) && has({OWN}.name)',
]
OTHERS = [
    'device.driver == "neuron.aws.com"',
    '"unknown.example.com" in device.attributes',
    '"name" in device.attributes["unknown.example.com"]',
    f'"fish" in {OWN}.kind.split("_")',
    f'{OWN}.count == "4"',
]


@pytest.mark.parametrize("expression", MATCHING)
def test_a_matching_selector_matches(expression: str) -> None:
    assert matched(expression) is True


@pytest.mark.parametrize("expression", OTHERS)
def test_a_selector_that_does_not_match_is_false(expression: str) -> None:
    assert matched(expression) is False


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f"{OWN}.nope", "no such key: 'nope'"),
        ('device.attributes["unknown.example.com"].name', "no such key: 'name'"),
        ('device.attributes["unknown.example.com"]["name"] == 1', "no such key: 'name'"),
        ('device.capacity["unknown.example.com"].x.isGreaterThan(quantity("0"))', "no such key: 'x'"),
        (f"{OWN}.names", "the expression returns list, but must return bool"),
        (f"{OWN}.kind", "the expression returns string, but must return bool"),
        (f"{OWN}.count.exists(x, x > 0)", "'exists' loops over a list or a map, not over int"),
        (f'{OWN}.version == "1.2.3"', r"'==' does not take \(kubernetes.Semver, string\)"),
        (f"{OWN}.kind > 3", r"'>' does not take \(string, int\)"),
    ],
)
def test_an_error_that_aborts_scheduling_is_an_error_and_no_mismatch(expression: str, message: str) -> None:
    with pytest.raises(CelRuntimeError, match=message):
        matched(expression)


def test_a_selector_that_tests_the_driver_first_is_false_for_other_drivers() -> None:
    other = device_activation("gpu.example.com", {})
    selector = compile_selector(
        ENGINE, 'device.driver == "dra.example.com" && device.attributes["dra.example.com"].name'
    )
    assert matches(selector, other, Budget(frozen_clock)) is False


def test_an_invalid_selector_is_rejected() -> None:
    with pytest.raises(CelTypeError, match="the expression returns string, but must return bool"):
        compile_selector(ENGINE, "device.driver")
    with pytest.raises(CelTypeError, match=r"'device' has no field 'attribute'\. Did you mean 'attributes'\?"):
        compile_selector(ENGINE, 'device.attribute["a"].b')


def test_plain_python_values_are_accepted() -> None:
    device = device_activation(
        "d", {"a": 1, "b": "x", "v": kubernetes.parse_semver("1.0.0")}, {"m": "1Gi"}, allow_multiple_allocations=True
    )
    selector = compile_selector(
        ENGINE,
        'device.attributes["d"].a == 1 && device.attributes["d"].v.minor() == 0 && device.allowMultipleAllocations',
    )
    assert matches(selector, device, Budget(frozen_clock)) is True


def test_an_attribute_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a device attribute has one of int, bool, string, version, .*, not float"):
        device_activation("d", {"a": {"float": 1.5}})


def test_an_invalid_version_is_refused() -> None:
    with pytest.raises(CelRuntimeError, match=r"'2\.25\.4\.0' is not a semantic version"):
        device_activation("d", {"a": {"version": "2.25.4.0"}})
