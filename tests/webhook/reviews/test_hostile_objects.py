"""Objects whose fields have any JSON type anywhere: every review is answered, and every answer is small."""

import asyncio
import copy
import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from conversion.objects.wire import AdmissionRequest, GroupVersionKind
from tests.support.manifests import pod
from tests.support.timing import assert_below
from tests.support.trees import places
from tests.support.validation import (
    TRN1,
    TRN2,
    FakeClaims,
    claim,
    devices,
    first_available,
    group,
    lnc,
    match,
    on,
    opaque,
    request,
    template,
    ultraserver,
    validator,
)
from webhook.edge import reviews

LARGEST_ANSWER = 64 * 1024

CLAIM = claim(
    request("neurons", 4, on(TRN2), adminAccess=False, tolerations=[{"key": "a", "operator": "Exists"}]),
    first_available("other", big=devices(8, on(TRN2)), small=devices(None, on(TRN1), mode="All")),
    constraints=[
        match(group(4), "neurons"),
        {"requests": ["other/big"], "distinctAttribute": "neuron.aws.com/deviceId"},
    ],
    config=[opaque(lnc(1)), opaque(ultraserver(4), requests=["other/big"]), opaque({"x": 1}, "gpu.nvidia.com")],
)
POD = pod(
    {
        "name": "main",
        "restartPolicy": "Always",
        "env": [{"name": "NEURON_RT_NUM_CORES", "value": "1"}],
        "resources": {
            "limits": {"aws.amazon.com/neuron": "4"},
            "requests": {"aws.amazon.com/neuron": "4"},
            "claims": [{"name": "mine", "request": "neurons"}, {"name": "named"}],
        },
    },
    labels={"neuron.aws.com/converted": "true"},
    annotations={
        "neuron.aws.com/converted-from": '{"containers":{"main":{"aws.amazon.com/neuron":"4"}}}',
        "neuron.aws.com/convert": "true",
    },
    resourceClaims=[
        {"name": "mine", "resourceClaimTemplateName": "big"},
        {"name": "named", "resourceClaimName": "absent"},
    ],
    nodeSelector={"node.kubernetes.io/instance-type": TRN2},
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
            }
        }
    },
    tolerations=[{"key": "aws.amazon.com/neuron", "operator": "Exists"}],
    schedulerName="my-scheduler",
)
PLAIN = {key: value for key, value in POD.items() if key in ("metadata", "spec")}
SEEDS: list[dict[str, Any]] = [
    template(CLAIM),
    {**template(CLAIM), "kind": "ResourceClaim", "spec": CLAIM},
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "own"},
        "spec": {
            "selectors": [{"cel": {"expression": on(TRN2)}}],
            "config": [{"opaque": {"driver": "neuron.aws.com", "parameters": lnc(1)}}],
            "extendedResourceName": "example.com/x",
        },
    },
    POD,
    {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": PLAIN}},
    {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "j"},
        "spec": {"replicatedJobs": [{"name": "a", "template": {"spec": {"template": PLAIN}}}]},
    },
    {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "l"},
        "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": PLAIN}},
    },
]

SURROGATE = Raw(b'"\\ud800"')
HUGE = Raw(b"9" * 4301)
DEEP = Raw(b"[" * 90 + b"]" * 90)
TOO_DEEP = Raw(b'{"a":' * 2000 + b"1" + b"}" * 2000)
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**31, max_value=2**200),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(
        [SURROGATE, HUGE, DEEP, TOO_DEEP, "a" * 5000, "\x00\x1b\u2028\u202e", "neuron.aws.com", "All", "1e3", "é" * 300]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def replaced(node: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    made = copy.copy(node)
    made[at[0]] = replaced(node[at[0]], at[1:], value)
    return made


def raw(value: Any) -> bytes:
    """JSON of plain data in which pieces are JSON already; numbers as Python has them, of any size."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, dict):
        return b"{" + b",".join(json.dumps(key).encode() + b":" + raw(each) for key, each in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(raw, value)) + b"]"
    return json.dumps(value).encode()


def sent(seed: dict[str, Any], body: bytes, old: bytes = b"null") -> AdmissionRequest:
    api_group, _, version = seed["apiVersion"].rpartition("/")
    return AdmissionRequest(
        uid="u",
        kind=GroupVersionKind(seed["kind"], api_group, version),
        operation="CREATE" if old == b"null" else "UPDATE",
        namespace="team-a",
        name="x",
        object=Raw(body),
        oldObject=Raw(old),
    )


def claims_cluster() -> FakeClaims:
    known = FakeClaims(objects=set())
    known.add_template("big", CLAIM)
    return known


def answered(review: AdmissionRequest) -> dict[str, Any]:
    decision = asyncio.run(JUDGE.review(review))
    answer = reviews.encode(review, decision)
    assert len(answer) < LARGEST_ANSWER
    response: dict[str, Any] = json.loads(answer)["response"]
    return response


JUDGE = validator(claims_cluster())


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_type_at_any_field_is_answered(data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(SEEDS))
    changed: Any = seed
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(list(places(changed))))
        changed = replaced(changed, at, data.draw(VALUES))
        if not isinstance(changed, dict | list):
            break
    body = raw(changed)
    answered(sent(seed, body))
    answered(sent(seed, raw(seed), old=body))
    answered(sent(seed, body, old=raw(seed)))


@pytest.mark.parametrize(
    "value", [None, True, 7, "x", [], {}, [None], {"a": None}, 1.5, HUGE, SURROGATE, DEEP, TOO_DEEP]
)
@pytest.mark.parametrize("seed", SEEDS, ids=[str(seed["kind"]) for seed in SEEDS])
def test_each_of_the_types_at_each_field_is_answered(seed: dict[str, Any], value: Any) -> None:
    for at in places(seed):
        answered(sent(seed, raw(replaced(seed, at, value))))


def test_a_leader_worker_set_with_a_spec_of_a_wrong_type_is_answered() -> None:
    seed = SEEDS[-1]
    assert answered(sent(seed, raw({**seed, "spec": ["neuron", "claims"]})))["allowed"] is True


@pytest.mark.parametrize(
    "expression",
    [
        "9" * 4301 + " == 1",
        "-" * 4000 + "1 == 1",
        "(" * 5000,
        "device.driver.matches('" + "(a?){1000}" * 100 + "')",
        "1e400 == 1.0",
        "'\\U0010ffff' == ''",
        "9223372036854775807 + 1 == 0",
        "1 / 0 == 1",
        "\x00",
        "é" * 6000,
        " || ".join(f"device.attributes['d{number}'].x == 'y'" for number in range(250)),
        " || ".join(f"device.attributes['neuron.aws.com'].x{number} == 1" for number in range(200)),
        "device.attributes['neuron.aws.com'].instanceType in [" + ",".join(["'a'"] * 2400) + "]",
    ],
    ids=lambda expression: expression[:20],
)
def test_any_selector_is_answered(expression: str) -> None:
    requests = [request(f"r{number}", 1, expression) for number in range(32)]
    started = time.monotonic()
    answered(sent(SEEDS[0], raw(template(claim(*requests)))))
    assert_below(time.monotonic() - started, 10)
