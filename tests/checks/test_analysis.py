"""What the analysis finds in device selectors: every lookup with its guards, every comparison with its constants."""

import pytest

from checks.claims import analysis
from checks.claims.analysis import DeviceField, SelectorSubject, SubjectUse, analyse
from kubecel.compile import parse
from neuron.hardware.device_shapes import Version

D = 'device.attributes["neuron.aws.com"]'
TYPE = SelectorSubject(DeviceField.ATTRIBUTES, "neuron.aws.com", "resourceType")
ID = SelectorSubject(DeviceField.ATTRIBUTES, "neuron.aws.com", "deviceId")
VERSION = SelectorSubject(DeviceField.ATTRIBUTES, "neuron.aws.com", "draDriverVersion")
MEMORY = SelectorSubject(DeviceField.CAPACITY, "neuron.aws.com", "memory")
DRIVER = SelectorSubject(DeviceField.DRIVER)


def lookups(source: str) -> list[tuple[str, bool]]:
    """Names that are really read, each with whether it is guarded."""
    found = analyse(parse(source)).lookups
    return [(lookup.subject.name, lookup.guarded) for lookup in found if not lookup.tests]


UNGUARDED = {
    "field": f'{D}.resourceType == "neuron_device"',
    "brackets": f'{D}["resourceType"] == "neuron_device"',
    "other attribute guarded": f'"deviceId" in {D} && {D}.resourceType == "a"',
    "other domain guarded": f'"resourceType" in device.attributes["other.example.com"] && {D}.resourceType == "a"',
    "guard of capacity": f'"resourceType" in device.capacity["neuron.aws.com"] && {D}.resourceType == "a"',
    "domain only": f'"neuron.aws.com" in device.attributes && {D}.resourceType == "a"',
    "guard on one side of or": f'("resourceType" in {D} || true) && {D}.resourceType == "a"',
    "guard negated": f'!("resourceType" in {D}) && {D}.resourceType == "a"',
    "guard in or": f'"resourceType" in {D} || {D}.resourceType == "a"',
    "wrong branch": f'"resourceType" in {D} ? true : {D}.resourceType == "a"',
    "value of an optional": f'{D}.?resourceType.value() == "a"',
    "bound": f'cel.bind(d, {D}, d.resourceType == "a")',
    "driver": f'device.driver == "neuron.aws.com" && {D}.resourceType == "a"',
    "shadowed": f'["x"].all(device, "resourceType" in device) && {D}.resourceType == "a"',
}
GUARDED = {
    "in before": f'"resourceType" in {D} && {D}.resourceType == "a"',
    "in after, which absorbs the error too": f'{D}.resourceType == "a" && "resourceType" in {D}',
    "has": f'has({D}.resourceType) && {D}.resourceType == "a"',
    "brackets and field": f'"resourceType" in {D} && {D}["resourceType"] == "a"',
    "implication": f'!("resourceType" in {D}) || {D}.resourceType == "a"',
    "negated has": f'!has({D}.resourceType) || {D}.resourceType == "a"',
    "ternary": f'"resourceType" in {D} ? {D}.resourceType == "a" : false',
    "negated ternary": f'!has({D}.resourceType) ? false : {D}.resourceType == "a"',
    "among others": f'device.driver == "a" && "resourceType" in {D} && true && {D}.resourceType == "a"',
    "two guards at once": f'("resourceType" in {D} && "deviceId" in {D}) && {D}.resourceType == "a"',
    "guard outside": f'has({D}.resourceType) && (true && ({D}.resourceType == "a" || {D}.resourceType == "b"))',
    "compared with true": f'has({D}.resourceType) == true && {D}.resourceType == "a"',
    "not false": f'has({D}.resourceType) != false && {D}.resourceType == "a"',
    "both alternatives guard": f'(has({D}.resourceType) || "resourceType" in {D}) && {D}.resourceType == "a"',
    "hasValue": f'{D}.?resourceType.hasValue() && {D}.resourceType == "a"',
    "hasValue and value": f'{D}.?resourceType.hasValue() && {D}.?resourceType.value() == "a"',
    "bound": f'cel.bind(d, {D}, "resourceType" in d && d.resourceType == "a")',
    "bound condition": f'cel.bind(d, {D}, has(d.resourceType)) && {D}.resourceType == "a"',
    "inside a loop": f'has({D}.resourceType) && ["a", "b"].exists(t, t == {D}.resourceType)',
}


@pytest.mark.parametrize("source", UNGUARDED.values(), ids=UNGUARDED)
def test_lookups_without_a_guard_are_found(source: str) -> None:
    assert ("resourceType", False) in lookups(source)


@pytest.mark.parametrize("source", GUARDED.values(), ids=GUARDED)
def test_guards_are_understood(source: str) -> None:
    found = lookups(source)
    assert all(guarded for _, guarded in found)


@pytest.mark.parametrize(
    "source",
    [
        f'{D}.?resourceType.orValue("") == "a"',
        f'{D}[?"resourceType"].orValue("") == "a"',
        'device.?attributes["neuron.aws.com"].resourceType.orValue("") == "a"',
        f'{D}.?resourceType.or(optional.of("")).orValue("") == "a"',
        f'{D}.?resourceType == optional.of("a")',
        'device.attributes[?"neuron.aws.com"].or(optional.none()).resourceType.orValue("") == "a"',
    ],
)
def test_optional_lookups_count_as_tests_only(source: str) -> None:
    (lookup,) = analyse(parse(source)).lookups
    assert (lookup.subject, lookup.tests, lookup.guarded) == (TYPE, True, True)


def test_tests_are_reported_with_their_place() -> None:
    source = f'"resourceTyp" in {D} && has({D}.deviceID)'
    found = analyse(parse(source)).lookups
    assert [(lookup.subject.name, lookup.tests) for lookup in found] == [("resourceTyp", True), ("deviceID", True)]
    assert [source[lookup.offset :][:11] for lookup in found] == ['"resourceTy', "deviceID)"]


def test_capacities_are_lookups_too() -> None:
    source = 'device.capacity["neuron.aws.com"].memory.compareTo(quantity("32Gi")) >= 0'
    found = analyse(parse(source))
    assert [(lookup.subject, lookup.guarded) for lookup in found.lookups] == [(MEMORY, False)]
    assert found.uses[0] == SubjectUse(MEMORY, "compareTo", ("32Gi",), source.index("compareTo"))


USES = {
    "equality": (f'{D}.resourceType == "a"', SubjectUse(TYPE, "==", ("a",), 49)),
    "flipped": (f"4 < {D}.deviceId", SubjectUse(ID, ">", (4,), 2)),
    "negative": (f"{D}.deviceId >= -1", SubjectUse(ID, ">=", (-1,), 45)),
    "signed": (f"{D}.deviceId >= - 1", SubjectUse(ID, ">=", (-1,), 45)),
    "wrong type": (f'{D}.deviceId == "4"', SubjectUse(ID, "==", ("4",), 45)),
    "bool": (f"{D}.deviceId != true", SubjectUse(ID, "!=", (True,), 45)),
    "in": (f"{D}.deviceId in [0, 1]", SubjectUse(ID, "in", (0, 1), 45)),
    "in a computed list": (f"{D}.deviceId in [0, size(device.driver)]", SubjectUse(ID, "in", None, 45)),
    "element of a list": (f'"a" in {D}.resourceType', SubjectUse(TYPE, "includes", ("a",), 4)),
    "method": (
        f'{D}.resourceType.startsWith("a")',
        SubjectUse(TYPE, "startsWith", ("a",), 49),
    ),
    "computed argument": (f"{D}.resourceType.startsWith(device.driver)", SubjectUse(TYPE, "startsWith", None, 49)),
    "function": (f"size({D}.resourceType) > 0", SubjectUse(TYPE, "size", (), 0)),
    "version": (
        f'{D}.draDriverVersion.isGreaterThan(semver("1.0.0"))',
        SubjectUse(VERSION, "isGreaterThan", (Version("1.0.0"),), 53),
    ),
    "default": (
        f'{D}.?resourceType.orValue("x") == "a"',
        SubjectUse(TYPE, "==", ("a",), 63),
    ),
    "by itself": (f"{D}.resourceType", SubjectUse(TYPE, "bool", (), 36)),
    "negated": (f"!{D}.resourceType", SubjectUse(TYPE, "bool", (), 37)),
    "condition": (f"{D}.resourceType ? true : false", SubjectUse(TYPE, "bool", (), 36)),
    "term": (f"true && {D}.resourceType", SubjectUse(TYPE, "bool", (), 44)),
    "bound": (
        f'cel.bind(t, {D}.resourceType, t == "a")',
        SubjectUse(TYPE, "==", ("a",), 64),
    ),
    "optMap": (
        f'{D}.?resourceType.optMap(t, t == "a").orValue(false)',
        SubjectUse(TYPE, "==", ("a",), 62),
    ),
    "driver": ('device.driver == "a"', SubjectUse(DRIVER, "==", ("a",), 14)),
    "other field": (
        "device.allowMultipleAllocations",
        SubjectUse(SelectorSubject(DeviceField.MULTIPLE), "bool", (), 7),
    ),
}


@pytest.mark.parametrize(("source", "use"), USES.values(), ids=USES)
def test_uses_are_found_with_their_constants(source: str, use: SubjectUse) -> None:
    assert use in analyse(parse(source)).uses


def test_a_presence_test_is_not_a_use_of_the_value() -> None:
    found = analyse(parse(f'has({D}.resourceType) && "deviceId" in {D}'))
    assert found.uses == ()


def test_drivers_are_listed() -> None:
    source = 'device.driver == "neuron.aws.con" || device.driver in ["a", "b"]'
    assert list(analysis.drivers(analyse(parse(source)))) == ["neuron.aws.con", "a", "b"]


def test_names_are_shown_as_slices_spell_them() -> None:
    assert TYPE.qualified == "neuron.aws.com/resourceType"
    assert DRIVER.qualified == "driver"


def test_domains_may_be_written_as_fields() -> None:
    (lookup,) = analyse(parse("device.attributes.gpu.memory > 3")).lookups
    assert lookup.subject == SelectorSubject(DeviceField.ATTRIBUTES, "gpu", "memory")


def test_computed_names_are_ignored() -> None:
    source = f'["a"].all(n, {D}[n] == 1) && device.attributes[device.driver].x == 1'
    assert analyse(parse(source)).lookups == ()
