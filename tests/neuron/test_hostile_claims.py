"""Claims that are made to take long: the time to judge them and the size of the findings are bounded.

The API server refuses most of them, but a mutating webhook sees them before it does, and so does the command line.
"""

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

from checks.claims.judging import validate
from neuron.api.claim_reader import read_claim
from neuron.api.configs import decode_object, decode_text
from neuron.findings import BOUNDS, Finding
from policies.judging.selectors import DeviceSelectors
from tests.support.timing import assert_below
from tests.support.validation import (
    TRN1,
    TRN2,
    V1,
    attribute,
    claim,
    codes,
    devices,
    first_available,
    group,
    judge,
    lnc,
    match,
    on,
    opaque,
    request,
    world,
)

GENEROUS = 5.0
"""Seconds. On a quiet machine the largest of these claims takes half a second beside its selectors' second."""
WORLD = world()
HUGE = 10**5000
"""More digits than Python writes."""


def timed(spec: Any, *, accepted: bool = False, api_version: str = V1) -> tuple[Finding, ...]:
    """Judge a claim with one second for its selectors; assert its time and the size of its findings."""
    DeviceSelectors().compile("true")  # The grammar is loaded once, and is nothing that a claim costs.
    where = structs.replace(WORLD, engine=DeviceSelectors())
    started = time.monotonic()
    found = validate("ResourceClaim", api_version, spec, where, accepted=accepted)
    assert_below(time.monotonic() - started, GENEROUS)
    assert len(found) <= 4 * (BOUNDS.collected + 1)
    for finding in found:
        assert len(finding.path) <= BOUNDS.path
        assert len(finding.value) <= BOUNDS.quoted
        assert len(str(finding)) <= 1000
    return found


class TestSums:
    def test_counts_that_are_powers_of_two_are_judged_in_time(self) -> None:
        found = timed(claim(*[request(f"r{number}", 2**number) for number in range(32)]))
        assert "NEU521" in codes(found)

    def test_many_counts_that_a_node_has(self) -> None:
        timed(claim(*[request(f"r{number}", 1 + number % 16, on(TRN1)) for number in range(32)]))

    def test_every_alternative_is_another_count(self) -> None:
        requests = [
            first_available(f"r{number}", **{f"a{each}": devices(1 + (number * 8 + each) % 16) for each in range(8)})
            for number in range(32)
        ]
        timed(claim(*requests))

    @pytest.mark.parametrize("count", [2**31, 2**63 - 1, 2**63, -(2**63), 10**300, HUGE], ids=list("abcdef"))
    def test_two_requests_of_any_count_are_judged_in_time(self, count: int) -> None:
        timed(claim(request("a", count), request("b", count)))

    def test_a_sum_that_the_type_serves_is_still_found(self) -> None:
        assert codes(judge(claim(request("a", 3, on(TRN1)), request("b", 5, on(TRN1))))) == []

    def test_a_sum_beyond_the_node_does_not_count(self) -> None:
        found = judge(claim(request("a", 7, on(TRN1)), request("b", 17, on(TRN1))))
        assert codes(found) == ["NEU520", "NEU521"]


class TestLists:
    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            (claim(*[request(f"r{number}") for number in range(65)]), "requests has 65 entries"),
            (claim(request(), config=[opaque(lnc(1))] * 65), "config has 65 entries"),
            (claim(request(), constraints=[match(group(4))] * 65), "constraints has 65 entries"),
            (claim(request("neurons", 1, *["true"] * 65)), "selectors has 65 entries"),
            (claim(first_available(**{f"a{number}": devices(1) for number in range(17)})), "firstAvailable has 17"),
            (claim(request(), config=[opaque(lnc(1), requests=["neurons"] * 65)]), "requests has 65 entries"),
        ],
    )
    def test_lists_that_are_too_long_to_read_are_errors_even_if_stored(self, spec: Any, said: str) -> None:
        for accepted in (True, False):
            [finding] = [each for each in timed(spec, accepted=accepted) if each.code == "NEU530"]
            assert said in finding.message
            assert finding.severity == "error"

    def test_lists_slightly_above_the_api_limit_are_judged(self) -> None:
        spec = claim(*[request(f"r{number}") for number in range(39)], request("last", 99))
        assert "spec.devices.requests[39].exactly.count" in [each.path for each in timed(spec, accepted=True)]

    def test_a_hundred_thousand_requests_are_judged_in_time(self) -> None:
        timed(claim(*[request(f"r{number}") for number in range(100_000)]))

    def test_a_name_of_a_megabyte_is_not_copied_into_every_alternative(self) -> None:
        spec = claim(first_available("n" * 1_000_000, **{f"a{number}": devices(1) for number in range(8)}))
        read, _ = read_claim("ResourceClaim", V1, spec)
        assert sum(len(each.reference) for each in read.requests[0].alternatives) < 2000


class TestConfigs:
    def test_many_misspelt_fields_in_many_configs(self) -> None:
        misspelt = {f"logicalNeuronCor{number}": 1 for number in range(380)}
        found = timed(claim(request(), config=[opaque({**lnc(1), **misspelt})] * 32), accepted=True)
        assert "more finding" in found[-1].message

    def test_a_config_with_many_wrong_fields_counts_those_it_does_not_show(self) -> None:
        for decoded in (
            decode_object({**lnc(1), **{f"x{number}": 1 for number in range(100)}}),
            decode_text(b'{"kind":"NeuronConfig",' + b",".join(b'"x%d":1' % (n // 2) for n in range(200)) + b"}"),
        ):
            assert len(decoded.findings) < 50
            assert "NeuronConfig has 84 more unknown fields." in [each.message for each in decoded.findings]

    def test_a_huge_config_is_measured_without_serializing_it(self) -> None:
        shared = ["x" * 1000] * 1000
        started = time.monotonic()
        [finding] = decode_object({"a": [shared] * 1000}).findings
        assert_below(time.monotonic() - started, 1)
        assert finding.code == "NEU403"
        assert "more than 102400 bytes" in finding.message

    def test_every_config_names_every_request(self) -> None:
        names = [f"r{number}" for number in range(32)]
        requests = [first_available(name, **{f"a{each}": devices(1) for each in range(8)}) for name in names]
        configs = [opaque(lnc(1 + number % 2), requests=names) for number in range(32)]
        constraints = [match(f"example.com/a{number}", *names) for number in range(32)]
        timed(claim(*requests, config=configs, constraints=constraints))


class TestQuotes:
    def test_a_pattern_is_quoted_in_part(self) -> None:
        pattern = "device.driver.matches('[" + "a" * 2000 + "')"
        found = timed(claim(*[request(f"r{number}", 1, *[pattern] * 32) for number in range(32)]))
        assert {finding.code for finding in found} == {"NEU602"}
        assert all(len(finding.message) < 350 for finding in found)

    @pytest.mark.parametrize(
        "expression",
        [
            f"device.attributes['{'d' * 5000}'].x == 1",
            f"device.attributes['neuron.aws.com'].{'x' * 5000} == 1",
            f"device.attributes['{'d' * 5000}'].instancetype == 'a'",
            f"{attribute('instanceType')} == '{'a' * 9000}'",
            f"{attribute('deviceId')} == '{'a' * 9000}'",
            f"device.driver == '{'a' * 9000}'",
            f"'{'a' * 9000}' + 1 == 2",
            f"device.attributes['neuron.aws.com']['{'a' * 9000}'].startsWith('a')",
        ],
    )
    def test_any_selector_text_is_judged_in_time(self, expression: str) -> None:
        assert timed(claim(request("neurons", 1, expression)))

    @pytest.mark.parametrize(
        "field", ["deviceClassName", "allocationMode", "count", "selectors", "adminAccess", "x" * 9999]
    )
    @pytest.mark.parametrize("value", ["v" * 100_000, HUGE, ["v" * 100_000], {"v" * 100_000: 1}], ids=list("abcd"))
    def test_any_value_in_a_field_is_judged_in_time(self, field: str, value: Any) -> None:
        entry = request()
        entry["exactly"][field] = value
        timed(claim(entry))
        timed(claim({"name": value, "exactly": devices(1)}))
        timed(
            claim(
                request(), constraints=[{"matchAttribute": value}], config=[opaque(lnc(value), driver="neuron.aws.con")]
            )
        )
        timed(
            claim(
                request(),
                constraints=[match(group(4), "v" * 9999)],
                config=[{value if isinstance(value, str) else "x": 1}],
            )
        )


# --- generated ----------------------------------------------------------------------------------------------------

NAMES = st.one_of(
    st.sampled_from(["a", "b", "a/b", "n" * 63, "n" * 300, "Ä", "", "neuron.aws.com", "neuron.aws.con"]),
    st.text(max_size=12),
)
COUNTS = st.one_of(st.integers(-2, 40), st.integers(0, 63).map(lambda power: 2**power), st.just(10**300))
EXPRESSIONS = st.one_of(
    st.sampled_from(
        [on(TRN1), on(TRN2), "true", "(", f"{attribute('topology_x')} == 0", f"{attribute('instancetyp')} == 'x'"]
    ),
    st.integers(0, 10**6).map(lambda number: f"{attribute('deviceId')} == {number}"),
    st.integers(1, 400).map(lambda size: " || ".join(f"{attribute(f'x{number}')} == 1" for number in range(size))),
)


@st.composite
def repeated(draw: st.DrawFn, entries: st.SearchStrategy[Any], most: int) -> list[Any]:
    """A list as long as it may be and longer, made of a few different entries: drawing each would take too long."""
    some = draw(st.lists(entries, min_size=1, max_size=4))
    return (some * most)[: draw(st.integers(0, most))]


SELECTORS = repeated(EXPRESSIONS.map(lambda text: {"cel": {"expression": text}}), 70)
DEVICES = st.fixed_dictionaries(
    {"deviceClassName": NAMES, "selectors": SELECTORS},
    optional={
        "count": COUNTS,
        "allocationMode": NAMES,
        "tolerations": repeated(st.fixed_dictionaries({"key": NAMES}), 500),
    },
)
ALTERNATIVES = repeated(st.tuples(NAMES, DEVICES).map(lambda each: {"name": each[0], **each[1]}), 20)
REFERENCES = repeated(NAMES, 70)


class Hostile:
    """A claim that is not printed: some have megabytes."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec


@st.composite
def hostile_claims(draw: st.DrawFn) -> Hostile:
    one = st.fixed_dictionaries({"name": NAMES, "exactly": DEVICES})
    several = st.fixed_dictionaries({"name": NAMES, "firstAvailable": ALTERNATIVES})
    requests = draw(repeated(st.one_of(one, several), 100))
    if draw(st.booleans()):
        requests = [{**each, "name": f"r{number}"} for number, each in enumerate(requests)]
    constraint = st.fixed_dictionaries({"requests": REFERENCES}, optional={"matchAttribute": NAMES | st.just(group(4))})
    config = st.builds(
        opaque,
        st.one_of(st.just(lnc(1)), st.just(lnc(2)), st.dictionaries(NAMES, COUNTS, max_size=5)),
        st.sampled_from(["neuron.aws.com", "neuron.aws.con", "gpu.nvidia.com"]),
        REFERENCES,
    )
    return Hostile(claim(*requests, constraints=draw(repeated(constraint, 100)), config=draw(repeated(config, 100))))


# Shrinking would try claims that take seconds for minutes.
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(hostile_claims(), st.booleans())
def test_hostile_claims_are_judged_in_time_with_bounded_findings(hostile: Hostile, accepted: bool) -> None:
    timed(hostile.spec, accepted=accepted)
