"""Policies that ask for permissions: looked up once for each review, and never while they are evaluated."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.store import Store
from conversion.patches.decision import Decision
from kubecel.library.authorization import AccessDecision, Question
from policies.applying.requests import ClusterLookups, review_nothing
from policies.files.store import Loaded, PolicyStore, StoreOptions
from tests.policies.judging.test_mutations import mutating_text
from tests.support.callers import caller_waits
from tests.support.manifests import container, pod
from tests.support.mutating_policies import json_patch
from tests.support.serving import Answering
from tests.support.trainium import trainium
from tests.webhook.reviews.policed import Watching, sent, written
from tests.webhook.reviews.test_policed import NOW, policy
from webhook.cluster.for_policies import review
from webhook.reviews.policed import PolicedValidator
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_requests import LONGEST_QUESTION, MOST_QUESTIONS, Execution
from webhook.reviews.steered import SteeredMutator
from webhook.reviews.worker_threads import Lane
from webhook.server.standalone import MemoryTemplates

USER = {"username": "ada", "groups": ["research"], "uid": "1", "extra": {"scopes": ["a"]}}
POD = {**pod(container()), "apiVersion": "v1", "kind": "Pod"}
MAY_CREATE = "authorizer.group('resource.k8s.io').resource('deviceclasses').check('create').allowed()"


class Cluster:
    """Answers questions, and remembers them."""

    def __init__(self, answer: AccessDecision | str = AccessDecision(allowed=True)) -> None:
        self.asked: list[tuple[Mapping[str, Any], Question]] = []
        self._answer = answer

    async def review(self, user: Mapping[str, Any], question: Question) -> AccessDecision | str:
        await asyncio.sleep(0)
        self.asked.append((user, question))
        return self._answer


def judged_with_access(
    *texts: str, cluster: Cluster | None = None, lane: Lane | None = None, data: Any = POD
) -> Decision:
    store = PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(written(*texts), {}), (), frozenset())
    look_up = review_nothing if cluster is None else cluster.review
    execution = Execution() if lane is None else Execution(lane=lane)
    validator = PolicedValidator(
        lambda _: Answering(),
        store,
        ClusterLookups(Store(), review=look_up),
        frozenset(),
        PolicyMetrics(store),
        lambda: NOW,
        execution,
    )
    return asyncio.run(validator.review(sent(data, userInfo=USER)))


def of(expression: str, name: str = "p") -> str:
    return policy(f'validations: [{{expression: "{expression}", message: "no"}}]', name)


@pytest.mark.parametrize(("allowed", "denied"), [(True, []), (False, ["policy 'p': no"])])
def test_the_answer_of_the_cluster_decides(allowed: bool, denied: list[str]) -> None:
    cluster = Cluster(AccessDecision(allowed))
    assert [each.message for each in judged_with_access(of(MAY_CREATE), cluster=cluster).errors] == denied
    ((user, question),) = cluster.asked
    assert user == USER
    assert question == Question("create", group="resource.k8s.io", resource="deviceclasses")


def test_a_question_of_several_policies_is_asked_once() -> None:
    cluster = Cluster()
    other = "authorizer.path('/x').check('get').allowed()"
    assert not judged_with_access(
        of(MAY_CREATE, "a"), of(MAY_CREATE, "b"), of(f"{MAY_CREATE} && {other}", "c"), cluster=cluster
    ).errors
    assert [question.verb for _, question in cluster.asked] == ["create", "get"]


def test_the_resource_of_the_request() -> None:
    cluster = Cluster()
    judged_with_access(of("authorizer.requestResource.check('delete').allowed()"), cluster=cluster)
    assert cluster.asked[0][1] == Question("delete", resource="pods", namespace="default")


def test_without_a_cluster_the_failure_policy_decides() -> None:
    (finding,) = judged_with_access(of(MAY_CREATE)).errors
    assert (
        "the permission 'create' on 'deviceclasses.resource.k8s.io' is not known: this webhook runs without a cluster"
        in finding.message
    )


def test_an_unknown_answer_says_why() -> None:
    (finding,) = judged_with_access(of(MAY_CREATE), cluster=Cluster("the API server is away")).errors
    assert "is not known: the API server is away" in finding.message


def test_the_number_of_questions_is_bounded() -> None:
    many = [of(f"authorizer.path('/{at}').check('get').allowed()", f"p{at}") for at in range(MOST_QUESTIONS + 2)]
    cluster = Cluster()
    errors = judged_with_access(*many, cluster=cluster).errors
    assert len(cluster.asked) == MOST_QUESTIONS
    assert [f"more than {MOST_QUESTIONS} permissions" in each.message for each in errors] == [True, True]


def test_a_question_is_bounded() -> None:
    data = {**POD, "metadata": {**POD["metadata"], "annotations": {"a": "x" * (LONGEST_QUESTION + 1)}}}
    cluster = Cluster()
    asks = of("authorizer.path('/' + object.metadata.annotations.a).check('get').allowed()")
    (finding,) = judged_with_access(asks, cluster=cluster, data=data).errors
    assert f"the question has more than {LONGEST_QUESTION} characters" in finding.message
    assert cluster.asked == []


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    async def wait(_user: Mapping[str, Any], _question: Question) -> AccessDecision | str:
        await asyncio.sleep(60)
        raise AssertionError

    cluster = Cluster()
    cluster.review = wait  # type: ignore[method-assign]
    with caller_waits(0.05):
        (finding,) = judged_with_access(of(MAY_CREATE), cluster=cluster).errors
    assert "the API server did not answer in time" in finding.message or "not evaluated" in finding.message


def test_large_objects_are_evaluated_in_the_lane() -> None:
    lane, cluster = Watching(), Cluster()
    data = {**POD, "metadata": {**POD["metadata"], "annotations": {"a": "x" * 100_000}}}
    assert not judged_with_access(of(MAY_CREATE), cluster=cluster, lane=lane, data=data).errors
    assert len(cluster.asked) == 1
    assert lane.threads


def test_policies_that_ask_nothing_look_nothing_up() -> None:
    cluster = Cluster()
    judged_with_access(of("object.kind == 'Pod'"), cluster=cluster)
    assert cluster.asked == []


def test_a_mutating_policy_asks_before_and_after_conversion() -> None:
    value = "{'may': string(has(object.spec.resourceClaims))}"
    expression = f"{MAY_CREATE} ? [JSONPatch{{op: 'add', path: '/metadata/labels', value: {value}}}] : []"
    cluster = Cluster()
    policies = written(mutating_text(json_patch(expression, reinvocationPolicy="IfNeeded")))
    store = PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(policies, {}), (), frozenset())
    mutator = SteeredMutator(trainium(), store, Store(), MemoryTemplates(), review=cluster.review)
    neuron = {**pod(container(neuron="4")), "apiVersion": "v1", "kind": "Pod"}
    decision = asyncio.run(mutator.review(sent(neuron, userInfo=USER)))
    assert not decision.errors
    assert any(each.get("value") == "true" for each in decision.patch if each["path"].endswith("/may"))
    assert len(cluster.asked) == 1


@pytest.mark.parametrize(
    ("question", "spec"),
    [
        (
            Question("get", resource="pods", namespace="a", name="b", subresource="log"),
            {
                "user": "ada",
                "groups": ["research"],
                "uid": "1",
                "extra": {"scopes": ["a"]},
                "resourceAttributes": {
                    "group": "",
                    "version": "*",
                    "resource": "pods",
                    "subresource": "log",
                    "namespace": "a",
                    "name": "b",
                    "verb": "get",
                },
            },
        ),
        (
            Question("get", ("a", "b"), "/x"),
            {
                "user": "system:serviceaccount:a:b",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:a"],
                "nonResourceAttributes": {"path": "/x", "verb": "get"},
            },
        ),
    ],
    ids=["user", "service-account"],
)
def test_the_review_that_is_created(question: Question, spec: Mapping[str, Any]) -> None:
    assert review(USER, question)["spec"] == spec


def test_selectors_of_a_review() -> None:
    made: Any = review({}, Question("list", resource="pods", field_selector="a=b", label_selector="c"))["spec"]
    attributes = made["resourceAttributes"]
    assert (attributes["fieldSelector"], attributes["labelSelector"]) == ({"rawSelector": "a=b"}, {"rawSelector": "c"})
