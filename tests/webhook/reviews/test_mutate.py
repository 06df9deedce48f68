import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jsonpatch
import pytest
from msgspec import Raw

from conversion.claims.templates import Template
from conversion.facts import NamespaceFacts
from conversion.objects.wire import AdmissionRequest, GroupVersionKind
from conversion.patches.decision import Decision
from neuron.findings import Finding
from neuron.hardware.instances import Observation
from policies.files.loader import load
from policies.judging.rules import PolicySet
from tests.support.clusters import FakeCluster, FakeTemplates, first_step, mutator, request, reviewed
from tests.support.manifests import container, pod
from tests.support.neuron_policies import neuron_policy
from webhook.reviews.reviewer import TemplateUnavailableError
from webhook.reviews.worker_threads import Inline

LEGACY = pod(container(neuron="4"))


def test_the_template_is_created_before_the_answer() -> None:
    templates = FakeTemplates()
    decision = reviewed(mutator(templates=templates), LEGACY)
    assert set(templates.made) == {("team-a", decision.templates[0].name)}


def test_an_unchanged_converted_pod_gets_its_template_too() -> None:
    subject, templates = mutator(), FakeTemplates()
    stored = jsonpatch.apply_patch(LEGACY, list(reviewed(subject, LEGACY).patch))
    decision = reviewed(mutator(templates=templates), stored, namespace="team-b")
    assert decision.patch == ()
    assert [namespace for namespace, _ in templates.made] == ["team-b"]


def test_a_dry_run_creates_no_template_and_warns() -> None:
    templates = FakeTemplates()
    decision = reviewed(mutator(templates=templates), LEGACY, dryRun=True)
    assert templates.made == {}
    assert decision.patch
    assert [str(each) for each in decision.warnings] == [
        f"NEU207: dry run: ResourceClaimTemplate {decision.templates[0].name} was not created."
    ]


def test_a_dry_run_does_not_warn_if_the_template_exists() -> None:
    templates = FakeTemplates()
    subject = mutator(templates=templates)
    reviewed(subject, LEGACY)
    assert reviewed(subject, LEGACY, dryRun=True).warnings == ()


def test_a_dry_run_asks_for_the_template_of_the_pods_namespace() -> None:
    class Behind(FakeTemplates):
        """The cache does not have the template yet, and the API server does."""

        async def check(self, namespace: str, template: Template) -> bool:  # noqa: ARG002 - any template
            return namespace == "team-a"

    assert reviewed(mutator(templates=Behind()), LEGACY, dryRun=True).warnings == ()
    assert reviewed(mutator(templates=Behind()), LEGACY, namespace="team-b", dryRun=True).warnings != ()


def test_a_template_is_made_although_the_one_before_exists() -> None:
    templates = FakeTemplates()
    subject = mutator(templates=templates)
    one = reviewed(subject, LEGACY)
    two = reviewed(mutator(), pod(container(neuron="1")))
    both = dataclasses.replace(one, templates=one.templates + two.templates)
    asyncio.run(subject._with_templates(both, request(LEGACY)))
    assert {name for _, name in templates.made} == {each.name for each in both.templates}


def unavailable() -> TemplateUnavailableError:
    finding = Finding("NEU301", "", "the API server refused.", "Add a rule.")
    return TemplateUnavailableError(finding, 403, "Forbidden")


def test_a_pod_whose_template_cannot_be_made_is_denied_with_the_cause() -> None:
    decision = reviewed(mutator(templates=FakeTemplates(unavailable())), LEGACY)
    assert (decision.outcome, decision.reason) == ("denied", "template-unavailable")
    assert (decision.status_code, decision.status_reason) == (403, "Forbidden")
    assert decision.resource == "aws.amazon.com/neuron"
    assert [str(each) for each in decision.errors] == ["NEU301: the API server refused. Add a rule."]


def test_a_pod_whose_template_cannot_be_made_can_be_admitted_with_a_warning() -> None:
    decision = reviewed(mutator(templates=FakeTemplates(unavailable()), on_template_failure="admit"), LEGACY)
    assert (decision.allowed, decision.reason) == (True, "template-unavailable")
    assert (decision.patch, decision.resource) == ((), "aws.amazon.com/neuron")
    assert [str(each) for each in decision.warnings] == ["NEU210: admitted unchanged: the API server refused."]


def test_shadow_creates_no_template() -> None:
    templates = FakeTemplates()
    reviewed(mutator(templates=templates, mode="shadow"), LEGACY)
    assert templates.made == {}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"namespace": "kube-system"}, "excluded-namespace"),
        ({"subResource": "status"}, "subresource"),
        ({"kind": "Deployment", "group": "apps"}, "unknown-kind"),
        ({"kind": "Pod", "group": "other.example"}, "unknown-kind"),
        ({"kind": "LeaderWorkerSet", "group": "other.example"}, "unknown-kind"),
        ({"kind": "LeaderWorkerSet", "group": "leaderworkerset.x-k8s.io", "operation": "UPDATE"}, "unknown-kind"),
        ({"operation": "CONNECT"}, "operation"),
    ],
    ids=["kube-system", "subresource", "deployment", "other-pod", "other-group", "updated-group", "connect"],
)
def test_other_objects_are_unchanged(fields: dict[str, Any], reason: str) -> None:
    assert reviewed(mutator(), LEGACY, **fields).reason == reason


def test_a_deletion_has_no_object() -> None:
    assert reviewed(mutator(), None, "DELETE", LEGACY).reason == "no-object"


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"containers": {}}, "$.spec.containers"),
        ({"containers": ["main"]}, "$.spec.containers[0]"),
        ({"containers": [{"name": 1}]}, "$.spec.containers[0].name"),
        (
            {"containers": [{"name": "a", "resources": {"limits": ["aws.amazon.com/neuron"]}}]},
            "$.spec.containers[0].resources.limits`",
        ),
        ({"containers": [container(neuron="4")], "nodeSelector": []}, "$.spec.nodeSelector`"),
        ({"containers": [container(neuron="4")], "tolerations": {}}, "$.spec.tolerations`"),
        ({"containers": [container(neuron="4")], "affinity": {"nodeAffinity": []}}, "$.spec.affinity.nodeAffinity`"),
        ({"containers": [container(neuron="4")], "resourceClaims": {}}, "$.spec.resourceClaims`"),
        ("text", "$.spec"),
    ],
    ids=str,
)
def test_an_object_of_the_wrong_shape_is_refused_with_the_place(spec: Any, where: str) -> None:
    marked = {"labels": {"neuron.aws.com/converted": "true"}}
    decision = reviewed(mutator(), {"metadata": marked, "spec": spec})
    (error,) = decision.errors
    assert str(error).startswith("NEU114: the object is not a readable Pod: Expected")
    assert where in error.message


def test_deep_nesting_is_denied() -> None:
    nested = b'{"x": "aws.amazon.com/neuron", "spec": {"containers": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}}"
    raw = AdmissionRequest("u", GroupVersionKind("Pod", "", "v1"), "CREATE", "team-a", object=Raw(nested))
    (error,) = asyncio.run(mutator().review(raw)).errors
    assert error.code == "NEU114"


def test_a_pod_without_neuron_is_not_decoded() -> None:
    deep = b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "spec": {"containers": 7}}'
    raw = AdmissionRequest("u", GroupVersionKind("Pod", "", "v1"), "CREATE", "team-a", object=Raw(deep))
    assert asyncio.run(mutator().review(raw)).reason == "not-neuron"


def test_a_pod_of_three_mebibytes_is_converted() -> None:
    large = pod(container(neuron="4") | {"env": [{"name": f"V{index}", "value": "x" * 1000} for index in range(3000)]})
    assert len(json.dumps(large)) > 3 * 2**20 - 2**17
    assert reviewed(mutator(), large).outcome == "converted"


def test_escaped_names_are_recognised() -> None:
    text = json.dumps(LEGACY).replace("aws.amazon.com/neuron", "aws.amazon.com\\/neur\\u006fn").encode()
    raw = AdmissionRequest("u", GroupVersionKind("Pod", "", "v1"), "CREATE", "team-a", object=Raw(text))
    assert asyncio.run(mutator().review(raw)).outcome == "converted"


def test_replicas_share_a_decision() -> None:
    subject = mutator()
    first = reviewed(subject, LEGACY)
    twin = json.loads(json.dumps(LEGACY))
    twin["metadata"]["name"] = "other"
    twin["metadata"]["labels"] = None
    assert reviewed(subject, LEGACY) is first
    assert reviewed(subject, twin).patch != ()


def test_a_change_of_the_cluster_clears_the_cached_decision() -> None:
    cluster = FakeCluster()
    subject = mutator(cluster)
    ring = pod(container(neuron="6"))
    assert not reviewed(subject, ring).allowed
    cluster.seen["inf2.24xlarge"] = Observation(6)
    cluster.version += 1
    assert reviewed(subject, ring).allowed


def test_replicas_of_a_large_pod_share_a_decision() -> None:
    subject = mutator()
    first, second = (reviewed(subject, pod(container(neuron="4"), note=note * 40_000)) for note in ("a", "b"))
    assert second is first


def test_large_pods_do_not_fill_the_memory() -> None:
    subject = mutator()
    for index in range(40):
        reviewed(subject, pod(container(f"c{index}", neuron="4"), note="x" * 400_000))
    assert 0 < subject._decisions.entries.size <= 4 * 1024 * 1024


def test_an_update_without_its_old_object_is_unchanged() -> None:
    assert reviewed(mutator(), LEGACY, "UPDATE").reason == "no-object"


def test_a_claim_name_of_the_wrong_type_is_refused_with_the_place() -> None:
    wrong = container(neuron="4")
    wrong["resources"]["claims"] = [{"name": ["x"]}]
    (error,) = reviewed(mutator(), pod(wrong)).errors
    assert (error.code, error.path) == ("NEU114", "spec.containers[0].resources.claims[0].name")


def test_remembered_decisions_are_bounded() -> None:
    subject = mutator()
    for index in range(400):
        padding = [{"key": "x" * 6_000, "operator": "Exists"}]
        reviewed(subject, pod(container(f"c{index}", neuron="4"), tolerations=padding))
    assert len(subject._decisions.entries) == 1
    assert 6_000 < subject._decisions.entries.size <= 2**16 + 2**13
    ((held, size),) = subject._decisions.entries._entries.values()
    assert len(held.by_names) < 12
    assert held.size <= size


def test_remembered_shapes_are_bounded() -> None:
    subject = mutator()
    for index in range(200):
        padding = [{"key": f"{index}" + "x" * 6_000, "operator": "Exists"}]
        reviewed(subject, pod(container(neuron="4"), tolerations=padding))
    assert 2**20 * 0.9 < subject._decisions.entries.size <= 2**20


def test_annotations_of_namespaces_count_in_the_cache_size() -> None:
    cluster = FakeCluster()
    subject = mutator(cluster)
    for index in range(100):
        note = ("neuron.aws.com/note", f"{index}" * 100_000)
        cluster.namespaces["team-a"] = NamespaceFacts((note,))
        reviewed(subject, LEGACY)
    assert subject._decisions.entries.size <= 8 * 2**20
    assert len(subject._decisions.entries) < 20


class CountingLane:
    """Runs everything in one other thread, and counts."""

    def __init__(self) -> None:
        self.namespaces: list[str] = []

    async def run(
        self,
        namespace: str,
        work: Callable[[], Any],
        seconds: float = 0.0,  # noqa: ARG002
        key: Hashable = None,  # noqa: ARG002
    ) -> Any:
        self.namespaces.append(namespace)
        return await asyncio.to_thread(work)


class LoopOnlyCluster(FakeCluster):
    """A cluster whose caches may be looked at on the event loop only."""

    def namespace(self, name: str) -> NamespaceFacts:
        assert threading.current_thread() is threading.main_thread()
        return super().namespace(name)

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        assert threading.current_thread() is threading.main_thread()
        return super().namespace_labels(name)

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        assert threading.current_thread() is threading.main_thread()
        return super().template_device_classes(namespace, name)

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        assert threading.current_thread() is threading.main_thread()
        return super().template_ultraserver_mode(namespace, name)


PADDED = {"note": "x" * 40_000}
STEERING = {
    "steer.json": neuron_policy(
        "ConversionPolicy",
        "trn2-only",
        match={"namespaceSelector": {"matchLabels": {"a": "b"}}},
        families=["trn2"],
    )
}


def lws(**fields: Any) -> dict[str, Any]:
    claims = [{"name": "n", "resourceClaimTemplateName": "us"}]
    template = {"spec": {"containers": [container(neuron="16")], "resourceClaims": claims}}
    return {"metadata": {}, "spec": {"leaderWorkerTemplate": {"workerTemplate": template}}, **fields}


@pytest.mark.parametrize("policies", [PolicySet(), load(STEERING)], ids=["no-policies", "policies"])
class TestLargeObjects:
    """They are decided beside the event loop, which alone looks into caches."""

    def decide(self, policies: PolicySet, *args: Any, **fields: Any) -> tuple[Decision, list[str]]:
        lane = CountingLane()
        cluster = LoopOnlyCluster(
            template_classes={("team-a", "mine"): frozenset({"neuron.aws.com"})},
            ultraserver_modes={("team-a", "us"): 4},
        )
        return reviewed(mutator(cluster, policies=policies, lane=lane), *args, **fields), lane.namespaces

    def test_a_pod_is_created(self, policies: PolicySet) -> None:
        own = [{"name": "extra", "resourceClaimTemplateName": "mine"}]
        small = pod(container(neuron="4"), resourceClaims=own)
        expected, none = self.decide(policies, small)
        decision, namespaces = self.decide(policies, small | PADDED)
        assert (none, namespaces) == ([], ["team-a", "team-a"])
        assert [finding.code for finding in decision.warnings] == ["NEU206"]
        assert (decision.patch, decision.warnings) == (expected.patch, expected.warnings)

    @pytest.mark.parametrize(("bytes_", "turns"), [(4_000, 0), (9_000, 2), (31_000, 2)])
    def test_ordinary_sizes_stay_on_the_loop(self, policies: PolicySet, bytes_: int, turns: int) -> None:
        _, namespaces = self.decide(policies, pod(container(neuron="4"), note="x" * bytes_))
        assert namespaces == ["team-a"] * turns

    def test_a_pod_is_updated(self, policies: PolicySet) -> None:
        created, _ = self.decide(policies, LEGACY)
        stored = jsonpatch.apply_patch(LEGACY, list(created.patch))
        expected, none = self.decide(policies, LEGACY, "UPDATE", stored)
        decision, namespaces = self.decide(policies, LEGACY, "UPDATE", stored | PADDED)
        assert (none, namespaces) == ([], ["team-a"])
        assert decision.patch == expected.patch
        assert decision.reason == "reapplied"

    def test_a_leader_worker_set_is_created(self, policies: PolicySet) -> None:
        kind = {"kind": "LeaderWorkerSet", "group": "leaderworkerset.x-k8s.io"}
        expected, none = self.decide(policies, lws(), **kind)
        decision, namespaces = self.decide(policies, lws(**PADDED), **kind)
        assert (none, namespaces) == ([], ["team-a", "team-a"])
        assert decision.outcome == "hinted"
        assert decision.patch == expected.patch

    def test_a_wrong_type_is_refused_with_the_place(self, policies: PolicySet) -> None:
        decision, _ = self.decide(
            policies, {"spec": {"containers": [container(neuron="4")], "tolerations": {}}} | PADDED
        )
        assert [(error.code, error.path) for error in decision.errors] == [("NEU114", "spec.tolerations")]

    def test_a_pod_that_does_not_mention_neuron_stays_on_the_loop(self, policies: PolicySet) -> None:
        decision, namespaces = self.decide(policies, pod(container()) | PADDED)
        assert (decision.reason, namespaces) == ("not-neuron", [])


def test_a_dry_run_is_refused_as_the_creation_would_be() -> None:
    templates = FakeTemplates(unavailable())
    decision = reviewed(mutator(templates=templates), LEGACY, dryRun=True)
    assert (decision.outcome, decision.reason, decision.status_code) == ("denied", "template-unavailable", 403)
    assert templates.made == {}


def test_decisions_about_pods_with_other_names_are_forgotten_when_the_cluster_changes() -> None:
    cluster = FakeCluster()
    subject = mutator(cluster)
    before = reviewed(subject, pod(container("a", neuron="4")))
    cluster.seen["inf2.48xlarge"] = Observation(12)
    cluster.version += 1
    after = reviewed(subject, pod(container("b", neuron="4")))
    assert after.patch == reviewed(mutator(cluster), pod(container("b", neuron="4"))).patch
    assert after.templates != before.templates


def test_a_decision_made_from_facts_that_changed_meanwhile_is_not_remembered() -> None:
    cluster = FakeCluster()
    ring = pod(container(neuron="6"))

    class Changing(Inline):
        """A lane with a change of the cluster, and a review of another pod, before a decision is back."""

        async def run(self, namespace: str, work: Callable[[], Any], seconds: float = 0.0, key: Hashable = None) -> Any:
            result = await super().run(namespace, work, seconds, key)
            if isinstance(result, Decision) and not cluster.seen:
                cluster.seen["inf2.24xlarge"] = Observation(6)
                cluster.version += 1
                first_step(subject.review(request(ring)))
            return result

    subject = mutator(cluster, lane=Changing())
    assert not reviewed(subject, ring | PADDED).allowed
    assert reviewed(subject, ring | PADDED).allowed


def test_a_decision_is_given_at_once_if_its_templates_exist_in_the_namespace() -> None:
    subject = mutator()
    assert first_step(subject.review(request(LEGACY))) is None
    decision = reviewed(subject, LEGACY)
    assert first_step(subject.review(request(LEGACY))) is decision
    assert first_step(subject.review(request(LEGACY, namespace="team-b"))) is None
    assert first_step(subject.review(request(LEGACY | PADDED))) is None
    excluded = first_step(subject.review(request(LEGACY, namespace="kube-system")))
    assert excluded is not None
    assert excluded.reason == "excluded-namespace"


def test_a_large_pod_with_other_names_is_read_and_not_decided_again() -> None:
    lane = CountingLane()
    subject = mutator(lane=lane)
    first = reviewed(subject, pod(container("a", neuron="4")) | PADDED)
    assert lane.namespaces == ["team-a"] * 2
    other = reviewed(subject, pod(container("b", neuron="4")) | PADDED)
    assert lane.namespaces == ["team-a"] * 3
    assert other.patch == reviewed(mutator(), pod(container("b", neuron="4"))).patch != first.patch
