"""No type of any field of a review ends in HTTP 500, and answers are bounded."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.store import Store
from conversion.objects import wire
from policies.applying.requests import ClusterLookups
from policies.files.loader import load
from policies.files.store import Loaded, PolicyStore, StoreOptions
from policies.judging.rules import PolicySet
from tests.support.manifests import container, pod
from tests.support.trainium import trainium
from tests.support.trees import places
from tests.webhook.reviews.policed import (
    FORGED,
    FOUR,
    LOCKED,
    NEURON,
    PACKS,
    V1,
    Cluster,
    judged,
    reviewer,
    sent,
    written,
)
from tests.webhook.reviews.test_policed import NOW, policy
from webhook.edge.reviews import BadReviewError
from webhook.reviews.policed import PolicedValidator
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.reviewer import Reviewer
from webhook.reviews.steered import SteeredMutator
from webhook.reviews.validate import Validator
from webhook.server.standalone import MemoryTemplates

# --- no review ends in HTTP 500 -----------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SAMPLES: tuple[dict[str, Any], ...] = (
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", "namespace": "default", **FORGED},
        "spec": {
            "volumes": [{"name": "v", "hostPath": {"path": "/dev/neuron0"}}],
            "resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "t"}],
            "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"limits": {NEURON: "1"}}}],
            "containers": [
                {
                    "name": "main",
                    "env": [{"name": "NEURON_RT_NUM_CORES", "value": "1"}],
                    "envFrom": [{"prefix": "a"}],
                    "securityContext": {"privileged": False},
                    "resources": {"limits": {NEURON: "4", "cpu": 1}, "claims": [{"name": "neuron"}]},
                }
            ],
        },
    },
    {
        "apiVersion": V1,
        "kind": "ResourceClaim",
        "metadata": {"name": "x"},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "a",
                        "exactly": {"deviceClassName": "neuron.aws.com", "count": 1, "allocationMode": "All"},
                    },
                    {
                        "name": "b",
                        "firstAvailable": [{"name": "c", "deviceClassName": "fast", "selectors": [{"cel": {}}]}],
                    },
                ],
                "constraints": [{"requests": ["a"], "matchAttribute": "resource.aws.com/devicegroup4_id"}],
                "config": [{"opaque": {"driver": "neuron.aws.com", "parameters": {"logicalNeuronCore": 1}}}],
            }
        },
    },
)
OPTIONAL = ("resource", "userInfo", "options", "oldObject", "object")


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = replaced(value[first], tuple(rest), new)
    return copy


@st.composite
def odd_requests(draw: st.DrawFn) -> wire.AdmissionRequest:
    data = draw(st.sampled_from(SAMPLES))
    operation = draw(st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]))
    subresource = draw(st.sampled_from(["", "ephemeralcontainers", "status"]))
    odd = replaced(data, draw(st.sampled_from(list(places(data)))), draw(JSON))
    members: dict[str, Any] = {"object": odd, "oldObject": draw(st.sampled_from([None, data, odd]))}
    if draw(st.booleans()):
        members[draw(st.sampled_from(OPTIONAL))] = draw(JSON)
    if draw(st.booleans()):
        members["userInfo"] = {draw(st.sampled_from(["username", "uid", "groups", "extra"])): draw(JSON)}
    made = sent(None, operation=operation, subResource=subresource)
    kind = wire.GroupVersionKind(data["kind"], "" if data["kind"] == "Pod" else "resource.k8s.io", "v1")
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in members.items()}
    return msgspec.structs.replace(made, kind=kind, **raw)


READS = policy(
    "validations:\n- expression: request.userInfo.groups.all(g, g != 'x') && request.userInfo.username != 'y' &&"
    " request.userInfo.extra.all(k, request.userInfo.extra[k].all(v, v != 'z'))\n"
    "- expression: request.resource.resource != 'x' && request.options != 7",
    "reads",
).replace("operations: [CREATE], resources: [pods]", "operations: ['*'], resources: ['*/*']")
EVERYTHING = load(
    {name: text.partition("\n  tests:")[0].replace("[Audit]", "[Deny]").encode() for name, text in PACKS.items()}
    | {
        "reads.yaml": READS.encode(),
        "locked.yaml": (LOCKED % "neuron.devices > 2 && object.metadata.name != ''").encode(),
    }
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(odd_requests())
def test_any_type_at_any_field_is_answered(request: wire.AdmissionRequest) -> None:
    def validator(found: PolicySet) -> Reviewer:
        return Validator(trainium(), found.catalogue, Cluster())

    store = PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(EVERYTHING, {}), (), frozenset())
    lookups, metrics = ClusterLookups(Cluster()), PolicyMetrics(store)
    judge = PolicedValidator(validator, store, lookups, frozenset(), metrics, lambda: NOW)
    decision = asyncio.run(judge.review(request))
    assert len(decision.errors) <= 65
    mutator = SteeredMutator(trainium(), store, Store(), MemoryTemplates())
    asyncio.run(mutator.review(request))


@pytest.mark.parametrize("field", ["resource", "userInfo", "options"])
@pytest.mark.parametrize("value", [7, "x", [], None, True, 1.5, {"groups": 7}, {"extra": {"a": 7}}, {"resource": 7}])
def test_members_of_the_envelope_may_be_of_any_type(field: str, value: Any) -> None:
    try:
        request = sent(pod(container(neuron="4")), **{field: value})
    except BadReviewError:
        return  # HTTP 400
    decision = judged(written(READS), request)
    assert decision.allowed or {each.code for each in decision.errors} <= {"NEU801", "NEU803"}


def test_an_envelope_that_nests_too_deeply_is_refused() -> None:
    deep = msgspec.Raw(b"[" * 500 + b"]" * 500)
    for field in ("resource", "userInfo", "options"):
        request = msgspec.structs.replace(sent(pod(container(neuron="4"))), **{field: deep})
        assert [each.code for each in judged(written(READS), request).errors] == ["NEU114"]


def test_answers_are_bounded() -> None:
    checks = "".join(
        f"- {{expression: 'false', messageExpression: \"'{at} ' + object.metadata.name\"}}\n" for at in range(200)
    )
    data = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x" * 20_000}, "spec": {"containers": []}}
    decision = judged(written(policy(f"validations:\n{checks}")), sent(data))
    assert len(decision.errors) == 65
    assert decision.errors[-1].message == "136 more findings are left out."
    annotations = "".join(f"- {{key: k{at}, valueExpression: string(object.metadata.name)}}\n" for at in range(20))
    audit = judged(written(policy(f"auditAnnotations:\n{annotations}")), sent(data)).audit
    assert sum(map(len, audit.values())) <= 64 * 1024


def test_kinds_in_the_cache_are_small() -> None:
    judge = reviewer(written(policy(FOUR)))
    asyncio.run(judge.review(sent(pod(), resource={"resource": "x" * 100_000})))
    asyncio.run(judge.review(sent(pod())))
    assert len(judge._candidates._found) == 1
