"""No review ends in HTTP 500: every value at every field of its envelope is answered, or refused with a message."""

import datetime as dt
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client.registry import CollectorRegistry

from neuron.hardware.instances import Catalogue
from policies.applying.requests import ClusterLookups
from policies.files.store import PolicyStore, StoreOptions
from tests.support.serving import Client, Running, serving
from tests.support.trainium import trainium
from webhook.reviews.mutate import Mutator
from webhook.reviews.policed import PolicedValidator
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.reviewer import Reviewer
from webhook.reviews.steered import SteeredMutator
from webhook.reviews.validate import Validator
from webhook.server.standalone import StandaloneBackend

POLICIES = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: judge}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*"]}]
  validations:
    - expression: >-
        request.userInfo.username != 'x' && !('x' in request.userInfo.groups) && request.name != 'x' &&
        request.namespace != 'x' && request.operation != 'x' && !request.dryRun && request.resource.resource != 'x' &&
        request.kind.kind != 'x' && object != oldObject && request.options != {}
      message: never
---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: steer}
spec:
  order: 1
  match: {conditions: [{name: any, expression: "request.userInfo.username != 'x'"}]}
"""
LIMITS = {"resources": {"limits": {"aws.amazon.com/neuron": "4"}}}
POD_SPEC: dict[str, Any] = {"containers": [{"name": "a", **LIMITS}]}
CLAIM: dict[str, Any] = {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "neuron.aws.com"}}]}}
OBJECTS: dict[str, tuple[dict[str, str], str, dict[str, Any]]] = {
    "pod": ({"group": "", "version": "v1", "kind": "Pod"}, "pods", POD_SPEC),
    "claim": ({"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}, "resourceclaims", CLAIM),
    "template": (
        {"group": "resource.k8s.io", "version": "v1beta1", "kind": "ResourceClaimTemplate"},
        "resourceclaimtemplates",
        {"spec": CLAIM},
    ),
    "class": ({"group": "resource.k8s.io", "version": "v1", "kind": "DeviceClass"}, "deviceclasses", {"selectors": []}),
    "deployment": (
        {"group": "apps", "version": "v1", "kind": "Deployment"},
        "deployments",
        {"template": {"spec": POD_SPEC}},
    ),
    "workers": (
        {"group": "leaderworkerset.x-k8s.io", "version": "v1", "kind": "LeaderWorkerSet"},
        "leaderworkersets",
        {"leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": POD_SPEC}}},
    ),
    "unknown": ({"group": "example.com", "version": "v9", "kind": "Unknown"}, "unknowns", {"a": 1}),
}
FIELDS = (
    *(("apiVersion",), ("kind",), ("request",), ("response",)),
    *(
        ("request", name)
        for name in (
            *("uid", "kind", "resource", "subResource", "requestKind", "requestResource", "requestSubResource", "name"),
            *("namespace", "operation", "userInfo", "object", "oldObject", "dryRun", "options"),
        )
    ),
    *(("request", "kind", name) for name in ("group", "version", "kind")),
    *(("request", "resource", name) for name in ("group", "version", "resource")),
    *(("request", "userInfo", name) for name in ("username", "uid", "groups", "extra")),
    *(("request", "options", name) for name in ("kind", "apiVersion", "dryRun")),
)
TOKENS = (
    *("null", "true", "false", "0", "-1", "1.5", '""', "[]", "{}", "[{}]", "[null]", '{"":null}', '{"a":{"b":[1]}}'),
    *("1e999999", "-1e999999", "1e-999999", "9" * 4301, "-" + "9" * 19, "1" + "0" * 400 + ".5", "18446744073709551616"),
    *('"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u2028\\u202e"', '"é\U0001f600"', '"%s"' % ("n" * 100_000)),
    *('"%s"' % ("\\u0000" * 20_000), "[" * 120 + "]" * 120, '{"a":' * 120 + "1" + "}" * 120, '"CREATE"', '"DELETE"'),
    *('"UPDATE"', '"CONNECT"', '"v1"', '"Pod"', '"neuron.aws.com"', '{"kind":1}', '{"resource":1}', '{"username":1}'),
    *('{"groups":{"a":"b"}}', '{"metadata":1}', '{"metadata":null,"spec":null}', '{"spec":[]}'),
    *('{"metadata":[],"spec":1}', '{"a":1,"a":2}', "NaN", "Infinity", "tru", "'a'", "01", "", '"a', "\x00", "[1,]"),
    "{a:1}",
)
JUNK = st.sampled_from(TOKENS) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
).map(json.dumps)


@pytest.fixture(scope="module", params=["plain", "policed"])
def running(
    request: pytest.FixtureRequest, tls_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    world, options = StandaloneBackend(), trainium()
    reviewers: dict[str, Reviewer] = {
        "/mutate": Mutator(options, Catalogue(), world.view, world.templates),
        "/validate": Validator(options, Catalogue(), world.view),
    }
    if request.param == "policed":
        folder = tmp_path_factory.mktemp("policies")
        (folder / "all.yaml").write_text(POLICIES)
        store = PolicyStore.open(folder, StoreOptions(lambda: dt.datetime.now(dt.UTC)))
        metrics = PolicyMetrics(store)
        CollectorRegistry().register(metrics)
        reviewers = {
            "/mutate": SteeredMutator(options, store, world.view, world.templates),
            "/validate": PolicedValidator(
                lambda policies: Validator(options, policies.catalogue, world.view),
                store,
                ClusterLookups(world.view),
                frozenset(),
                metrics,
                lambda: dt.datetime.now(dt.UTC),
            ),
        }
    with serving(tls_directory, reviewers) as started:
        yield started


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[Client]:
    with running.client() as connected:
        yield connected


def envelope(name: str, operation: str) -> dict[str, Any]:
    kind, resource, spec = OBJECTS[name]
    body = {"apiVersion": "x", "kind": kind["kind"], "metadata": {"name": "a", "namespace": "default"}, "spec": spec}
    where = {"group": kind["group"], "version": kind["version"], "resource": resource}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": kind,
            "resource": where,
            "subResource": "",
            "requestKind": kind,
            "requestResource": where,
            "name": "a",
            "namespace": "default",
            "operation": operation,
            "userInfo": {"username": "u", "uid": "1", "groups": ["g"], "extra": {"e": ["f"]}},
            "object": None if operation == "DELETE" else body,
            "oldObject": None if operation == "CREATE" else body,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


def written(review: dict[str, Any], junk: dict[tuple[str, ...], str]) -> bytes:
    """The review as JSON, with texts that need not be JSON at some places."""
    review = json.loads(json.dumps(review))  # a copy
    tokens = []
    for path, token in junk.items():
        place: Any = review
        for step in path[:-1]:
            place = place.get(step) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[path[-1]] = f"@{len(tokens)}@"
            tokens.append(token)
    text = re.sub(r'"@(\d+)@"', lambda found: tokens[int(found[1])], json.dumps(review))
    return text.encode("utf-8", "surrogatepass")


def check_answer(client: Client, path: str, body: bytes) -> None:
    reply = client.review(body, path)
    assert reply.status in (200, 400), (reply.status, reply.body, body[:2000])
    if reply.status == 400:
        assert set(reply.json) == {"message"}
        assert 0 < len(reply.json["message"]) < 1000
        assert reply.json["message"].isprintable()
    else:
        assert isinstance(reply.response["uid"], str)
        assert isinstance(reply.response["allowed"], bool)
        assert len(reply.body) < 200_000 or len(body) > 100_000


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(OBJECTS)),
    operation=st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]),
    junk=st.dictionaries(st.sampled_from(FIELDS), JUNK, min_size=1, max_size=3),
)
@example(name="pod", operation="CREATE", junk={("request", "resource"): "1"})
@example(name="pod", operation="CREATE", junk={("request", "userInfo"): "1"})
@example(name="claim", operation="CREATE", junk={("request", "resource"): '{"\\u001f": null}'})
@example(name="claim", operation="UPDATE", junk={("request", "options"): '"a"'})
def test_any_value_at_any_field_is_answered(
    client: Client, path: str, name: str, operation: str, junk: dict[tuple[str, ...], str]
) -> None:
    check_answer(client, path, written(envelope(name, operation), junk))


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_every_odd_value_at_every_field_is_answered(client: Client, path: str, field: tuple[str, ...]) -> None:
    for name, operation in (("pod", "CREATE"), ("template", "UPDATE")):
        before, after = written(envelope(name, operation), {field: "<odd>"}).split(b"<odd>")
        for token in TOKENS:
            check_answer(client, path, before + token.encode("utf-8", "surrogatepass") + after)


@pytest.mark.parametrize(
    "field", [("request", "resource"), ("request", "userInfo"), ("request", "options")], ids=".".join
)
@pytest.mark.parametrize("token", ["1", '"a"', "[]", "true"])
def test_members_of_the_envelope_must_be_objects(client: Client, field: tuple[str, ...], token: str) -> None:
    reply = client.review(written(envelope("pod", "CREATE"), {field: token}), "/mutate")
    assert reply.status == 400
    said = f"The body is not an AdmissionReview: `{'.'.join(field)}`: Expected `object | null`, got `"
    assert reply.json["message"].startswith(said)


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_large_names_are_truncated_everywhere(client: Client, path: str) -> None:
    for field in FIELDS:
        if field == ("request", "uid"):
            continue
        body = written(envelope("pod", "CREATE"), {field: json.dumps("n" * 100_000)})
        assert len(client.review(body, path).body) < 10_000, field
