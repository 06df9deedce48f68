"""The CEL engine as the domain sees it: what an expression reads, and what it gives on a device."""

from collections.abc import Callable

import pytest

from checks.claims.device_index import (
    SelectorError,
    SelectorRuntimeError,
    SelectorSyntaxError,
    SelectorTimeError,
    SelectorTooCostlyError,
    SelectorTypeError,
    SelectorUnsupportedError,
)
from neuron.hardware.device_shapes import Version
from policies.judging.selectors import DeviceSelectors
from tests.support.clocks import Clock
from tests.support.validation import TRN2, attribute, on

TYPE, DRIVER_VERSION = "neuron.aws.com/instanceType", "neuron.aws.com/draDriverVersion"
LOOP = "[" + ", ".join(map(str, range(100))) + "]"


def ticking(step: float) -> Callable[[], float]:
    """A clock that advances by the same amount at every read."""
    now = [0.0]

    def clock() -> float:
        now[0] += step
        return now[0]

    return clock


class TestReading:
    def test_lookups_and_uses(self) -> None:
        selector = DeviceSelectors().compile(f"{on(TRN2)} && device.driver == 'neuron.aws.com'")
        assert [(each.attribute, each.guarded) for each in selector.lookups] == [(TYPE, False)]
        assert (TYPE, "==", (TRN2,)) in [(each.attribute, each.operator, each.operands) for each in selector.uses]
        assert selector.drivers == ("neuron.aws.com",)
        assert selector.attributes == {TYPE}

    def test_a_guard_counts_as_read_but_not_as_lookup(self) -> None:
        selector = DeviceSelectors().compile("'topology_x' in device.attributes['neuron.aws.com']")
        assert selector.lookups == ()
        assert selector.attributes == {"neuron.aws.com/topology_x"}

    def test_constants_of_versions_are_versions(self) -> None:
        selector = DeviceSelectors().compile(f"{attribute('draDriverVersion')} == semver('1.2.3')")
        uses = [(each.attribute, each.operator, each.operands) for each in selector.uses]
        assert (DRIVER_VERSION, "==", (Version("1.2.3"),)) in uses

    @pytest.mark.parametrize(
        "expression",
        [
            "device.attributes['neuron.aws.com'].exists(name, name == 'a')",
            "device.attributes[device.driver].instanceType == 'a'",
            "cel.bind(d, device.attributes['neuron.aws.com'], d.instanceType == 'a')",
            "size(device.attributes) > 0",
        ],
    )
    def test_attributes_are_unknown_if_they_cannot_be_listed(self, expression: str) -> None:
        assert DeviceSelectors().compile(expression).attributes is None


class TestEvaluation:
    @pytest.mark.parametrize(
        ("expression", "matches"),
        [
            (on(TRN2), True),
            (on("trn1.32xlarge"), False),
            (f"{attribute('draDriverVersion')}.isGreaterThan(semver('1.0.0'))", True),
            ("'absent' in device.attributes['neuron.aws.com']", False),
            ("'absent' in device.attributes['other.example.com']", False),
            ("device.driver == 'neuron.aws.com' && !device.allowMultipleAllocations", True),
        ],
    )
    def test_answers_for_a_device(self, expression: str, matches: bool) -> None:
        device = {TYPE: TRN2, DRIVER_VERSION: Version("1.2.3")}
        assert DeviceSelectors().compile(expression).evaluate("neuron.aws.com", device) is matches

    @pytest.mark.parametrize(
        ("expression", "matches"),
        [
            (f"{attribute('numa')}.includes(1)", True),
            (f"{attribute('numa')}.exists(each, each > 1)", True),
            (f"{attribute('numa')} == 1", False),
            (f"1 in {attribute('numa')}", True),
            (f"{attribute('releases')}.includes(semver('2.0.0'))", True),
            (f"{attribute('deviceId')}.includes(3)", True),
        ],
    )
    def test_answers_for_list_type_attributes(self, expression: str, matches: bool) -> None:
        lists = {"numa": (1, 2), "releases": (Version("1.0.0"), Version("2.0.0")), "deviceId": 3}
        device = {f"neuron.aws.com/{name}": value for name, value in lists.items()}
        assert DeviceSelectors().compile(expression).evaluate("neuron.aws.com", device) is matches

    def test_a_missing_attribute_fails(self) -> None:
        selector = DeviceSelectors().compile(f"{attribute('absent')} == 1")
        with pytest.raises(SelectorRuntimeError, match="no such key: 'absent'") as caught:
            selector.evaluate("neuron.aws.com", {})
        assert caught.value.position == " (line 1, column 37)"

    def test_a_function_call_on_an_unknown_value_is_an_error(self) -> None:
        selector = DeviceSelectors().compile(f"{attribute('instanceType')}.startsWith('trn')")
        with pytest.raises(SelectorRuntimeError):
            selector.evaluate("neuron.aws.com", {TYPE: None})


class TestRefusals:
    @pytest.mark.parametrize(
        ("expression", "error"),
        [
            ("device.driver ==", SelectorSyntaxError),
            ("device.color == 1", SelectorTypeError),
            ("authorizer.path('/').check('get').allowed()", SelectorError),
        ],
    )
    def test_each_kind_of_error_has_its_class(self, expression: str, error: type[SelectorError]) -> None:
        with pytest.raises(error):
            DeviceSelectors().compile(expression)

    def test_a_selector_with_too_many_steps_on_one_device_is_too_costly(self) -> None:
        loops = f"{LOOP}.all(a, {LOOP}.all(b, {LOOP}.all(c, a + b + c >= 0)))"
        with pytest.raises(SelectorTooCostlyError):
            DeviceSelectors().compile(loops).evaluate("neuron.aws.com", {})

    def test_a_selector_with_too_many_steps_on_all_devices_is_not_judged(self) -> None:
        selector = DeviceSelectors().compile(f"{LOOP}.all(a, {LOOP}.all(b, a + b >= 0))")

        def on_every_device() -> None:
            for _ in range(1000):
                selector.evaluate("neuron.aws.com", {})

        with pytest.raises(SelectorUnsupportedError, match="on all known devices takes too long"):
            on_every_device()

    def test_a_selector_can_be_found_too_costly_during_evaluation_only(self) -> None:
        # The API server estimates 64 characters. The clock stands still, so that nothing but the cost can stop it.
        reads = f"{attribute('serial')}.contains('s')"
        costly = DeviceSelectors(ticking(0)).compile(" && ".join([reads] * 20))
        assert costly.evaluate("neuron.aws.com", {"neuron.aws.com/serial": "s" * 64})
        with pytest.raises(SelectorTooCostlyError, match="more than 1000000 steps"):
            costly.evaluate("neuron.aws.com", {"neuron.aws.com/serial": "s" * 600_000})

    def test_a_selector_that_is_slow_on_the_first_device_is_not_judged(self) -> None:
        selector = DeviceSelectors(ticking(0.002)).compile(f"{LOOP}.all(a, {LOOP}.all(b, a + b >= 0))")
        with pytest.raises(SelectorUnsupportedError, match="on all known devices takes too long") as caught:
            selector.evaluate("neuron.aws.com", {})
        assert not isinstance(caught.value, SelectorTimeError)

    def test_a_selector_that_got_less_than_its_time_is_judged_again(self) -> None:
        engine = DeviceSelectors(ticking(0.002))
        for number in range(140):
            engine.compile(f"device.driver == '{number % 2}'")
        selector = engine.compile(f"{LOOP}.all(a, {LOOP}.all(b, a + b >= 0))")
        with pytest.raises(SelectorTimeError):
            selector.evaluate("neuron.aws.com", {})

    @pytest.mark.parametrize(
        ("expression", "said"),
        [
            ("lists.range(20000).size() > 0", "a list or map of 20000 elements"),
            (f"({attribute('a')} + {attribute('a')}).size() > 0", "a text of 80000 characters"),
        ],
    )
    def test_values_that_only_this_engine_finds_too_large_are_not_judged(self, expression: str, said: str) -> None:
        with pytest.raises(SelectorUnsupportedError, match=said):
            DeviceSelectors().compile(expression).evaluate("neuron.aws.com", {"neuron.aws.com/a": "a" * 40_000})

    def test_all_selectors_of_an_object_share_a_second(self) -> None:
        clock = Clock()
        engine = DeviceSelectors(clock)
        for number in range(2):
            engine.compile(f"device.driver == '{number}'")
            clock.now += 0.6
        with pytest.raises(SelectorUnsupportedError, match="the selectors of this object take too long to check"):
            engine.compile("device.driver == 'x'")
