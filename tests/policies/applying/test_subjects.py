"""Admission requests as policies see them."""

from cluster.collections import Watches
from cluster.kinds.namespaces import project_namespace_record
from cluster.resources import NAMESPACES
from cluster.store import Store
from conversion.facts import NamespaceFacts
from conversion.objects.kinds import KINDS
from policies.applying.requests import bare_subject, namespace_object, subject_of
from policies.judging.subjects import CLUSTER_SCOPED
from tests.support.answers import UncalledServer
from tests.support.serving import decoded_review


class Team(Store):
    """A cluster that knows one namespace."""

    def namespace(self, name: str) -> NamespaceFacts:
        return NamespaceFacts(annotations=(("neuron.aws.com/convert", "shadow"),) if name == "team" else ())

    def namespace_labels(self, name: str) -> dict[str, str] | None:
        return {"tier": "a"} if name == "team" else None


def test_a_namespace_has_its_labels_and_our_annotations() -> None:
    assert namespace_object("team", Team())["metadata"] == {
        "name": "team",
        "labels": {"kubernetes.io/metadata.name": "team", "tier": "a"},
        "annotations": {"neuron.aws.com/convert": "shadow"},
    }


def test_an_unknown_namespace_has_only_its_name() -> None:
    known = namespace_object("new", Team())
    assert known["metadata"] == {"name": "new", "labels": {"kubernetes.io/metadata.name": "new"}}


def test_cluster_scoped_objects_have_no_namespace() -> None:
    assert subject_of(decoded_review(namespace=""), Team()).namespace_object is None


def test_the_cluster_scoped_kinds_with_pods_are_known_without_a_cluster() -> None:
    assert {each.kind for each in KINDS.values() if not each.namespaced} <= CLUSTER_SCOPED


def test_the_resource_is_the_one_that_was_sent_or_else_guessed() -> None:
    assert bare_subject(decoded_review(resource={"group": "", "version": "v1", "resource": "podz"})).resource == "podz"
    assert bare_subject(decoded_review(resource=None)).resource == "pods"


def test_objects_are_decoded_and_absent_ones_are_null() -> None:
    subject = subject_of(decoded_review(operation="DELETE", object=None, oldObject={"kind": "Pod"}), Team())
    assert (subject.object, subject.old_object, subject.user_info) == (None, {"kind": "Pod"}, {})


def test_the_view_keeps_all_labels_and_our_annotations_of_a_namespace() -> None:
    metadata = {"name": "a", "labels": {"x": "y"}, "annotations": {"neuron.aws.com/convert": "off", "other": "z"}}
    record = project_namespace_record({"metadata": metadata})
    assert (record.labels, record.annotations) == ({"x": "y"}, (("neuron.aws.com/convert", "off"),))
    assert project_namespace_record({"metadata": {"name": "b"}}).labels == {}


def test_the_cluster_follows_the_labels_of_namespaces() -> None:
    cluster = Watches(UncalledServer())
    (namespaces,) = (cache for cache in cluster.caches if cache.resource == NAMESPACES)
    item = {"metadata": {"name": "a", "labels": {"x": "y"}}}
    assert cluster.store.namespace_labels("a") is None
    namespaces.observe("ADDED", item)
    assert cluster.store.namespace_labels("a") == {"x": "y"}
    namespaces.observe("DELETED", item)
    assert cluster.store.namespace_labels("a") is None


def test_request_kind_has_the_version_that_the_user_sent() -> None:
    sent = decoded_review(
        resource={"group": "apps", "version": "v1", "resource": "deployments"},
        requestKind={"group": "apps", "version": "v1beta1", "kind": "Deployment"},
        requestResource={"group": "apps", "version": "v1beta1", "resource": "deployments"},
        requestSubResource="scale",
        subResource="scale",
    )
    made = subject_of(sent, Team()).activation({})["request"]
    assert made["requestKind"]["version"] == made["requestResource"]["version"] == "v1beta1"
    assert made["requestSubResource"] == "scale"
    same = subject_of(decoded_review(), Team()).activation({})["request"]
    assert (same["requestKind"], same["requestResource"]) == (same["kind"], same["resource"])


def test_empty_fields_are_absent_as_in_the_api_server() -> None:
    made = subject_of(decoded_review(name="", namespace="", subResource=""), Team()).activation({})["request"]
    assert made.keys().isdisjoint({"subResource", "requestSubResource", "name", "namespace"})
    assert made["userInfo"].keys() == {"username", "groups"}
