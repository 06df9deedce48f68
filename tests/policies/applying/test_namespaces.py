"""`namespaceObject` has the fields and the values of the API server."""

import asyncio
import json
from typing import Any

import pytest

from cluster.bounded_objects import KEPT
from cluster.collections import Watches
from cluster.resources import NAMESPACES
from cluster.store import NAMESPACE, Store
from neuron.api.fields import namespace_value
from policies.applying.requests import subject_of
from policies.files.folders import PolicyError
from policies.files.loader import load
from tests.support.answers import UncalledServer
from tests.webhook.reviews.test_policed import Bench, pod_review, policy

TEAM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": "default",
        "uid": "1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"kubernetes.io/metadata.name": "default"},
        "annotations": {"owner": "ml"},
        "finalizers": ["example.com/a"],
        "managedFields": [{"manager": "kubectl"}],
        "ownerReferences": [{"name": "x"}],
    },
    "spec": {"finalizers": ["kubernetes"]},
    "status": {"phase": "Active"},
}


def watches_of(*items: dict[str, Any]) -> Watches:
    made = Watches(UncalledServer())
    made.store.complete(NAMESPACE)
    (namespaces,) = (cache for cache in made.caches if cache.resource == NAMESPACES)
    for item in items:
        namespaces.observe("ADDED", item)
    return made


def judged(view: Watches, spec: str) -> list[str]:
    bench = Bench(policy(spec))
    bench.reviewer._view = view.store
    return [str(finding) for finding in bench.review().errors]


@pytest.mark.parametrize(
    "expression",
    [
        "namespaceObject.metadata.annotations.owner == 'ml'",
        "namespaceObject.metadata.?annotations['owner'].orValue('') == 'ml'",
        "has(namespaceObject.metadata.finalizers) && 'example.com/a' in namespaceObject.metadata.finalizers",
        "namespaceObject.status.phase == 'Active' && !has(namespaceObject.status.conditions)",
        "namespaceObject.spec.finalizers == ['kubernetes']",
        "dyn(namespaceObject.metadata.creationTimestamp) == '2026-01-01T00:00:00Z'",
        "!has(namespaceObject.metadata.deletionTimestamp) && namespaceObject.metadata.resourceVersion == '7'",
        "dyn(namespaceObject).metadata.uid == '1' && !('managedFields' in dyn(namespaceObject).metadata)",
        "!('kind' in dyn(namespaceObject))",
    ],
)
def test_expressions_read_every_field_of_the_namespace(expression: str) -> None:
    said = judged(watches_of(TEAM), f'validations: [{{expression: "!({expression})", message: seen}}]')
    assert said == ["NEU801: policy 'p': seen"]


@pytest.mark.parametrize(
    "field",
    ["metadata.managedFields", "metadata.ownerReferences", "metadata.uid", "metadata.selfLink", "kind", "spec.phase"],
)
def test_fields_that_the_api_server_does_not_have_are_errors(field: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load({"p.yaml": policy(f'validations: [{{expression: "has(namespaceObject.{field})"}}]').encode()})
    assert field.rpartition(".")[2] in str(caught.value)


def test_a_namespace_that_is_not_known_follows_the_failure_policy() -> None:
    spec = 'validations: [{expression: "has(namespaceObject.metadata.annotations)"}]'
    view = watches_of()
    (said,) = judged(view, spec)
    assert "only name and labels of Namespace 'default' are known" in said
    assert judged(view, f"failurePolicy: Ignore\n{spec}") == []
    large = {**TEAM, "metadata": {**TEAM["metadata"], "annotations": {"a": "x" * KEPT.namespace}}}
    (said,) = judged(watches_of(large), spec)
    assert "larger than 16 KiB" in said
    assert judged(watches_of(large), 'validations: [{expression: "size(namespaceObject.metadata.labels) == 1"}]') == []


def test_a_policy_that_reads_name_and_labels_needs_no_other_fields() -> None:
    spec = "validations: [{expression: \"namespaceObject.metadata.name != 'default'\", message: seen}]"
    assert judged(watches_of(), spec) == ["NEU801: policy 'p': seen"]


def test_a_request_about_a_namespace_has_no_namespace_object() -> None:
    sent = pod_review(
        kind={"group": "", "version": "v1", "kind": "Namespace"},
        resource={"group": "", "version": "v1", "resource": "namespaces"},
        namespace="default",
        name="default",
        object=TEAM,
    )
    made = subject_of(sent, Store()).activation({})
    assert (made["namespaceObject"], made["request"]["namespace"]) == (None, "default")


def test_the_value_has_no_other_fields() -> None:
    kept = json.loads(json.dumps(namespace_value(TEAM)))
    assert kept.keys() == {"metadata", "spec", "status"}
    assert kept["metadata"].keys() == TEAM["metadata"].keys() - {"managedFields", "ownerReferences"}
    assert namespace_value({}) == {"metadata": {}}


def test_the_cluster_follows_changes_of_a_namespace() -> None:
    made = watches_of(TEAM)
    (namespaces,) = (cache for cache in made.caches if cache.resource == NAMESPACES)
    namespaces.observe("MODIFIED", {**TEAM, "status": {"phase": "Terminating"}})
    known = made.store.namespace_object("default")
    assert known is not None
    assert known["status"] == {"phase": "Terminating"}
    namespaces.observe("DELETED", TEAM)
    assert made.store.namespace_object("default") is None


async def test_a_new_namespace_is_awaited() -> None:
    view = watches_of()
    (namespaces,) = (cache for cache in view.caches if cache.resource == NAMESPACES)
    bench = Bench(
        policy("validations: [{expression: \"namespaceObject.metadata.annotations.owner != 'ml'\", message: seen}]")
    )
    bench.reviewer._view = view.store

    asyncio.get_running_loop().call_later(0.05, namespaces.observe, "ADDED", TEAM)
    decision = await bench.reviewer.review(pod_review())
    assert [str(each) for each in decision.errors] == ["NEU801: policy 'p': seen"]
