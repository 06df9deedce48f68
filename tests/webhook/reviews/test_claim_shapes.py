"""Claims that differ only in the names and tolerations of their requests share a decision, if they have no findings."""

import asyncio
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.patches.decision import Decision
from tests.support.validation import (
    TRN2,
    claim,
    first_available,
    flattened,
    group,
    lnc,
    match,
    on,
    opaque,
    request,
    review,
    template,
    validator,
)
from webhook.reviews import validate
from webhook.reviews.claim_reading import shape_of
from webhook.reviews.validate import Validator

GOOD = claim(request("neurons", 4, on(TRN2)), constraints=[match(group(4), "neurons")], config=[opaque(lnc(1))])
NAMES = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["count", "exactly", "requests", "name", "a" * 63, "a" * 64, "", "A", "a/b", "e\u00e9", "neurons"]),
)


def renamed(spec: Any, containers: dict[str, str]) -> Any:
    """The spec with other names of requests, wherever it refers to them."""
    made = copy.deepcopy(spec)
    devices = made["devices"]
    for each in devices["requests"]:
        each["name"] = containers.get(each["name"], each["name"])
    for each in (*devices.get("constraints", ()), *devices.get("config", ())):
        if "requests" in each:
            parts = [reference.partition("/") for reference in each["requests"]]
            each["requests"] = [containers.get(name, name) + slash + rest for name, slash, rest in parts]
    return made


def decide_template(subject: Validator, spec: Any, api_version: str = "resource.k8s.io/v1") -> Decision:
    return asyncio.run(subject.review(review(template(spec, api_version=api_version))))


def shape(spec: Any, kind: str = "ResourceClaim") -> Any:
    return shape_of(kind, "v1", json.dumps(spec).encode())


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The specs that were judged."""
    seen: list[Any] = []
    judge_read = validate.judge_read

    def judge(what: Any, *args: Any, **fields: Any) -> Any:
        seen.append(what.spec)
        return judge_read(what, *args, **fields)

    monkeypatch.setattr(validate, "judge_read", judge)
    return seen


REQUESTS = st.sampled_from(
    [
        request("x", 4, on(TRN2)),
        request("x", 7, on(TRN2)),
        request("x", None, mode="All"),
        request("x", 1, device_class="gpu.example"),
        request("x", 0),
        first_available("x", big=request("x", 4)["exactly"], small=request("x", 1)["exactly"]),
        {"name": "x"},
        {"name": "x", "exactly": {}, "unknown": 1},
        {"name": "x", "exactly": "text"},
    ]
)


TOLERATIONS = st.one_of(
    st.none(),
    st.lists(
        st.fixed_dictionaries({"key": st.text(max_size=4), "operator": st.sampled_from(["Exists", "Equal", "x"])})
    ),
    st.sampled_from(["text", 7, {"key": "x"}, [None], [[]]]),
)


def tolerating(spec: Any, tolerations: Any) -> Any:
    """The spec; its requests have these tolerations."""
    made = copy.deepcopy(spec)
    for each in made["devices"]["requests"]:
        if isinstance(each.get("exactly"), dict):
            each["exactly"]["tolerations"] = tolerations
    return made


@st.composite
def claims(draw: st.DrawFn) -> Any:
    requests = [{**each, "name": f"r{index}"} for index, each in enumerate(draw(st.lists(REQUESTS, max_size=3)))]
    references = st.lists(st.sampled_from(["r0", "r1", "r2", "r0/big", "r1/none", "other"]), max_size=2)
    constraints = [match(group(4), *draw(references)) for _ in range(draw(st.integers(0, 2)))]
    config = [
        opaque(draw(st.sampled_from([lnc(1), lnc(3)])), requests=draw(references))
        for _ in range(draw(st.integers(0, 2)))
    ]
    return claim(*requests, constraints=constraints, config=config)


@given(claims(), st.lists(NAMES, min_size=3, max_size=3))
def test_the_cached_decision_equals_that_of_an_empty_cache(spec: Any, made: list[str]) -> None:
    other = renamed(spec, dict(zip(("r0", "r1", "r2"), made, strict=True)))
    subject = validator()
    decide_template(subject, spec)
    assert decide_template(subject, other) == decide_template(validator(), other)


@given(claims(), TOLERATIONS, TOLERATIONS)
def test_tolerations_are_no_part_of_a_decision(spec: Any, one: Any, two: Any) -> None:
    subject = validator()
    decide_template(subject, tolerating(spec, one))
    assert decide_template(subject, tolerating(spec, two)) == decide_template(validator(), tolerating(spec, two))
    assert shape(tolerating(spec, one)) == shape(tolerating(spec, two))


@given(claims(), claims())
def test_claims_of_one_shape_have_equal_findings(one: Any, two: Any) -> None:
    if shape(one) is not None and shape(one) == shape(two):
        assert decide_template(validator(), one) == decide_template(validator(), two)


def test_a_claim_with_other_names_is_not_judged_again(judged: list[Any]) -> None:
    subject = validator()
    assert decide_template(subject, GOOD) == decide_template(subject, renamed(GOOD, {"neurons": "trainium"}))
    assert len(judged) == 1


def test_a_claim_with_other_tolerations_is_not_judged_again(judged: list[Any]) -> None:
    subject = validator()
    other = tolerating(GOOD, [{"key": "team", "operator": "Exists"}])
    assert decide_template(subject, GOOD) == decide_template(subject, other)
    assert len(judged) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deviceClassName", "gpu.example"),
        ("selectors", []),
        ("allocationMode", "All"),
        ("count", 2),
        ("adminAccess", True),
        ("capacity", {"requests": {"cores": "1"}}),
    ],
)
def test_each_field_that_a_check_reads_is_a_part_of_the_shape(field: str, value: Any) -> None:
    other = copy.deepcopy(GOOD)
    other["devices"]["requests"][0]["exactly"][field] = value
    assert shape(other) != shape(GOOD) is not None


def test_metadata_of_its_claims_is_no_part_of_a_template() -> None:
    named = [{"metadata": {"labels": {"team": each}}, "spec": GOOD} for each in "ab"]
    assert shape(named[0], "ResourceClaimTemplate") == shape(named[1], "ResourceClaimTemplate") is not None


def test_a_claim_with_findings_is_judged_every_time(judged: list[Any]) -> None:
    subject = validator()
    bad = claim(request("neurons", 7, on(TRN2)))
    first, second = decide_template(subject, bad), decide_template(subject, renamed(bad, {"neurons": "trainium"}))
    assert first.warnings == second.warnings != ()
    assert len(judged) == 2


def test_v1beta1_has_no_shape() -> None:
    assert shape(flattened(GOOD)) is None


SAME_NAME = claim(request("a", 4), request("a", 4))
DANGLING = claim(request("a", 4), constraints=[match(group(4), "b")])
NO_LABEL = claim(request("A", 4))
UNKNOWN = {"devices": {**GOOD["devices"], "unknown": 1}}


@pytest.mark.parametrize(
    "spec",
    [SAME_NAME, DANGLING, NO_LABEL, UNKNOWN, {}, {"devices": None}, {"devices": {"requests": None}}, [], "text", None],
    ids=[
        "same-name",
        "dangling",
        "no-label",
        "unknown-field",
        "empty",
        "no-devices",
        "no-requests",
        "list",
        "text",
        "null",
    ],
)
def test_a_claim_whose_names_have_findings_has_no_shape(spec: Any) -> None:
    assert shape(spec) is None


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 100_000, b'{"devices":{"requests":[{"name":"\xff"}]}}'], ids=str)
def test_invalid_json_has_no_shape(raw: bytes) -> None:
    assert shape_of("ResourceClaim", "v1", raw) is None


def test_a_device_class_has_no_shape() -> None:
    assert shape({"selectors": []}, "DeviceClass") is None
