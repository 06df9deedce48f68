"""Hostile nesting: everywhere in a review, on both paths, with and without policies."""

import contextlib
import datetime as dt
import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.registry import CollectorRegistry

from conversion.objects import nesting
from neuron.hardware.instances import Catalogue
from policies.applying.requests import ClusterLookups
from policies.files.store import PolicyStore, StoreOptions
from tests.support.serving import Reply, Running, serving
from tests.support.timing import assert_below
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
kind: ConversionPolicy
metadata: {name: steer}
spec:
  order: 1
  match: {conditions: [{name: any, expression: object.metadata == object.metadata}]}
---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: judge}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*"]}]
  validations: [{expression: "object == object && object != {'a': 1}", message: never}]
"""
QUICK = 2.0
"""Seconds of the server's processor time that no review may take, on a machine that is busy with others."""
NEURON = '"resources":{"limits":{"aws.amazon.com/neuron":"4"}}'
OPAQUE = '"config":[{"opaque":{"driver":"neuron.aws.com","parameters":@}}]'
REQUESTS = '"requests":[{"name":"a","exactly":{"deviceClassName":"neuron.aws.com","count":1}}]'
POD, TEMPLATE, CLASS, DEPLOYMENT, WORKERS = (
    ("", "v1", "Pod", "pods"),
    ("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    ("resource.k8s.io", "v1", "DeviceClass", "deviceclasses"),
    ("apps", "v1", "Deployment", "deployments"),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
)
# path, kind, object with @ where it is deep, whether the object's content there is ever read without policies
OBJECTS = {
    "whole-object": ("/mutate", POD, '{"x":@}', False),
    "pod-unread": (
        "/mutate",
        POD,
        '{"metadata":{},"spec":{"x":@,"containers":[{"name":"a",%s}]}}'.replace("%s", NEURON),
        False,
    ),
    "pod-affinity": (
        "/mutate",
        POD,
        '{"spec":{"affinity":{"x":@},"containers":[{"name":"a",%s}]}}'.replace("%s", NEURON),
        True,
    ),
    "pod-resources": (
        "/mutate",
        POD,
        '{"spec":{"containers":[{"name":"a","resources":{"limits":{"aws.amazon.com/neuron":"4"},"x":@}}]}}',
        True,
    ),
    "pod-claims": ("/validate", POD, '{"spec":{"resourceClaims":[{"name":"n","x":@}],"containers":[]}}', True),
    "template-spec": ("/validate", TEMPLATE, '{"spec":{"spec":{"devices":{"x":@}}}}', True),
    "template-opaque": (
        "/validate",
        TEMPLATE,
        '{"spec":{"spec":{"devices":{%s}}}}'.replace("%s", f"{REQUESTS},{OPAQUE}"),
        True,
    ),
    "class-opaque": ("/validate", CLASS, '{"spec":{%s}}'.replace("%s", OPAQUE), True),
    "workload": (
        "/validate",
        DEPLOYMENT,
        '{"spec":{"template":{"spec":{"containers":[{"name":"a",%s,"x":@}]}}}}'.replace("%s", NEURON),
        True,
    ),
    "leader-worker-set": ("/mutate", WORKERS, '{"spec":{"leaderWorkerTemplate":{"x":@}}}', False),
}
SHAPES = {
    "lists": lambda levels: "[" * levels + "]" * levels,
    "objects": lambda levels: '{"a":' * levels + "1" + "}" * levels,
}
DEPTHS = {"just-too-deep": 101, "below-the-parser's-limit": 700, "above-it": 30_000, "megabytes": 1_300_000}


@pytest.fixture(scope="module")
def plain(tls_directory: Path) -> Iterator[Running]:
    world, options = StandaloneBackend(), trainium()
    reviewers: dict[str, Reviewer] = {
        "/mutate": Mutator(options, Catalogue(), world.view, world.templates),
        "/validate": Validator(options, Catalogue(), world.view),
    }
    with serving(tls_directory, reviewers) as running:
        yield running


@pytest.fixture(scope="module")
def policed(tls_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("policies")
    (folder / "all.yaml").write_text(POLICIES)
    world, options = StandaloneBackend(), trainium()
    store = PolicyStore.open(folder, StoreOptions(lambda: dt.datetime.now(dt.UTC)))
    metrics = PolicyMetrics(store)
    CollectorRegistry().register(metrics)
    reviewers: dict[str, Reviewer] = {
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
    with serving(tls_directory, reviewers) as running:
        yield running


def body(
    kind: tuple[str, str, str, str], content: str, *, user: str = "{}", old: str = "null", more: str = ""
) -> bytes:
    """A review as the API server writes it: what it is about first."""
    group, version, name, resource = kind
    about = json.dumps({"group": group, "version": version, "kind": name})
    plural = json.dumps({"group": group, "version": version, "resource": resource})
    request = (
        f'"uid":"u-1","kind":{about},"resource":{plural},"namespace":"team","operation":"CREATE","userInfo":{user},'
        f'"object":{content},"oldObject":{old},"dryRun":false,"options":null'
    )
    head = '"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"'
    return f'{{{head},{more}"request":{{{request}}}}}'.encode()


def ask(running: Running, path: str, sent: bytes) -> Reply:
    """Client and server share a process: its processor time is at least the server's."""
    started = time.process_time()
    with running.client() as client:
        reply = client.review(sent, path)
        assert_below(time.process_time() - started, QUICK)
        assert client.review(body(POD, '{"spec":{}}'), path).status == 200, "the server goes on"
    return reply


def is_too_deep(reply: Reply) -> bool:
    """Whether it is a refusal in the review's own name that gives the cap."""
    assert reply.status == 200
    assert reply.response["uid"] == "u-1"
    if reply.response["allowed"]:
        return False
    message = reply.response["status"]["message"]
    assert message.startswith("NEU114: ")
    assert "it is nested deeper than 100 levels" in message
    return True


@pytest.mark.parametrize("levels", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("where", OBJECTS)
def test_a_deep_object_is_refused_wherever_it_is_read(plain: Running, where: str, shape: str, levels: int) -> None:
    path, kind, template, is_read = OBJECTS[where]
    reply = ask(plain, path, body(kind, template.replace("@", SHAPES[shape](levels))))
    assert is_too_deep(reply) or (levels < 1000 and not is_read), "only what is skipped may be deep"


@pytest.mark.parametrize("levels", DEPTHS.values(), ids=DEPTHS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("where", OBJECTS)
def test_deeply_nested_objects_are_denied_if_policies_match(
    policed: Running, where: str, shape: str, levels: int
) -> None:
    path, kind, template, _ = OBJECTS[where]
    reply = ask(policed, path, body(kind, template.replace("@", SHAPES[shape](levels))))
    assert is_too_deep(reply) or where in ("whole-object", "leader-worker-set"), (
        "mutation policies are about Neuron pods"
    )


@pytest.mark.parametrize("where", OBJECTS)
def test_an_object_at_the_nesting_limit_is_judged(policed: Running, where: str) -> None:
    path, kind, template, _ = OBJECTS[where]
    shallow = SHAPES["objects"](
        100 - template.count("{", 0, template.index("@")) - template.count("[", 0, template.index("@"))
    )
    assert not refused_for_depth(ask(policed, path, body(kind, template.replace("@", shallow))))


def refused_for_depth(reply: Reply) -> bool:
    assert reply.status == 200
    return b"nested" in reply.body


@pytest.mark.parametrize("levels", [30_000, 1_300_000])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", ["/mutate", "/validate"])
@pytest.mark.parametrize("part", ["user", "more"])
def test_deep_nesting_outside_of_the_object_is_status_400(
    policed: Running, path: str, part: str, shape: str, levels: int
) -> None:
    deep = SHAPES[shape](levels)
    parts = {"user": deep} if part == "user" else {"more": f'"x":{deep},'}
    reply = ask(policed, path, body(POD, '{"spec":{}}', **parts))
    assert (reply.status, reply.json) == (
        400,
        {"message": "The body cannot be read: it is nested deeper than 100 levels."},
    )


@pytest.mark.parametrize(
    "sent",
    [b"[" * (8 << 20), b'{"a":' * (1 << 20), b'{"request":{"object":' + b"[" * (1 << 20), b'["' * (4 << 20)],
    ids=["lists", "objects", "no-review", "quotes"],
)
def test_a_body_of_brackets_only_is_status_400(plain: Running, sent: bytes) -> None:
    assert ask(plain, "/mutate", sent).status == 400


@pytest.mark.parametrize("levels", [500, 1_000_000])
def test_nested_json_in_an_annotation_does_not_matter(policed: Running, levels: int) -> None:
    text = json.dumps("[" * levels + "]" * levels)
    pod = (
        '{"metadata":{"labels":{"neuron.aws.com/converted":"true"},"annotations":{"neuron.aws.com/converted-from":%s}},'
        '"spec":{"resourceClaims":[{"name":"neuron","resourceClaimTemplateName":"neuron-4-fdc84041cb55"}],'
        '"containers":[{"name":"a"}]}}'
    ).replace("%s", text)
    for path in ("/mutate", "/validate"):
        assert ask(policed, path, body(POD, pod)).response["allowed"]


def test_an_old_object_that_is_deep_is_refused_too(plain: Running) -> None:
    deep = '{"spec":@}'.replace("@", SHAPES["lists"](30_000))
    assert is_too_deep(ask(plain, "/validate", body(TEMPLATE, '{"spec":{}}', old=deep)))


# --- the check itself -----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab[]{}"\\ é\n', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='a[]{}"\\', max_size=4), inner, max_size=3)
    ),
    max_leaves=40,
)


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(JSON, st.integers(80, 105), st.booleans())
def test_exactly_the_texts_deeper_than_the_limit_are_refused(value: object, levels: int, ascii_only: bool) -> None:
    for _ in range(levels):
        value = [value, "]]]}"] if levels % 2 else {"[{": value, "}": "]"}
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    if depth_of(value) > nesting.MOST_LEVELS:
        with pytest.raises(nesting.TooDeepError, match=r"^it is nested deeper than 100 levels$"):
            nesting.decode(text)
    else:
        assert nesting.decode(text) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(text: bytes) -> None:
    try:
        nesting.decode(b"[" * 101 + text)
    except msgspec.DecodeError:
        return
    raise AssertionError("101 open lists are no JSON")


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError, match=r"^it is not UTF-8: invalid start byte$"):
        nesting.decode(b'"\xff"')


@pytest.mark.parametrize("text", [b"[" + b"{}," * 100_000 + b"1]", b"[" + b"[]," * 2_000_000 + b"1]"])
def test_more_lists_and_objects_than_the_limit_are_refused(text: bytes) -> None:
    with pytest.raises(nesting.TooDeepError, match=r"^it has more than 100000 lists and objects$"):
        nesting.check(text)


@pytest.mark.parametrize("value", [b"1", b'"a"', b"1.5", b'"\\",{}[]"', b"null"])
def test_more_values_than_the_limit_are_refused(value: bytes) -> None:
    nesting.check(b"[" + (value + b",") * 249_990 + b"1]")
    with pytest.raises(nesting.TooDeepError, match=r"^it has more than 250000 values$"):
        nesting.check(b"[" + (value + b",") * 250_000 + b"1]")


def test_members_of_objects_count_as_values() -> None:
    members = b",".join(b'"k%06x":1' % number for number in range(260_000))
    with pytest.raises(nesting.TooDeepError, match=r"^it has more than 250000 values$"):
        nesting.check(b"{" + members + b"}")


@given(st.binary(min_size=1, max_size=12), st.integers(1, 40), st.integers(1, 64))
def test_the_check_does_not_depend_on_the_piece_boundaries(text: bytes, times: int, piece: int) -> None:
    text = b'["' + text.replace(b'"', b'\\"[') * times + b'\\\\",[{}],"]"' + b"]"

    def look(size: int) -> tuple[int, int, int]:
        scan = nesting.Scan(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nesting, "_PIECE", size)
            while scan.goes_on():
                pass
        return scan._depth, scan._containers, scan._values

    assert look(piece) == look(1 << 20)


HOSTILE = {
    "groups": (b"[" * 99 + b"]" * 99 + b",") * 42_000,
    "strings": b'["' + b"[" * (8 << 20) + b'"]',
    "quotes": b'"[' * (4 << 20),
    "empty-strings": b'["",' * (2 << 20),
    "escapes": b'["' + b'\\"[' * (2 << 20) + b'"]',
    "closing": b"]" * (8 << 20),
    "commas": b"[" + b"1," * (4 << 20),
    "names": b'{"a":' * (1 << 20),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_the_check_of_hostile_text_is_fast(text: bytes) -> None:
    started = time.process_time()
    with contextlib.suppress(nesting.TooDeepError):
        nesting.check(text)
    assert_below(time.process_time() - started, QUICK)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_each_step_of_the_check_is_short(text: bytes) -> None:
    scan = nesting.Scan(text)
    longest = 0.0
    with contextlib.suppress(nesting.TooDeepError):
        going_on = True
        while going_on:
            started = time.thread_time()
            going_on = scan.goes_on()
            longest = max(longest, time.thread_time() - started)
    assert longest < 0.05, "a step takes about a millisecond"


def test_a_text_without_a_closing_quote_is_scanned_once() -> None:
    begun = time.perf_counter()
    for end in (b"", b"\\"):
        assert nesting.without_objects(b'{"request":{"' + b'\\"' * 32_000 + end) is None
    assert_below(time.perf_counter() - begun, 0.5)
