"""`/mutate` with mutating policies: before conversion, and after it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from cluster.store import Store
from conversion.patches.decision import Decision
from policies.applying import steering
from policies.files.store import Loaded, PolicyStore, StoreOptions
from tests.policies.judging.test_mutations import mutating_text
from tests.support.manifests import container, pod
from tests.support.mutating_policies import configuration, json_patch
from tests.support.trainium import trainium
from tests.webhook.reviews.policed import Watching, sent, written
from tests.webhook.reviews.test_policed import NOW
from webhook.reviews import steered
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.steered import SteeredMutator
from webhook.reviews.worker_threads import LARGE_OBJECT, Inline
from webhook.server.standalone import MemoryTemplates

OFF = configuration("Object{metadata: Object.metadata{annotations: {'neuron.aws.com/convert': 'off'}}}")
LIMITS = configuration(
    "Object{spec: Object.spec{containers: object.spec.containers.map(c, Object.spec.containers{name: c.name,"
    " resources: Object.spec.containers.resources{limits: {'aws.amazon.com/neuron': '4'}}})}}"
)
SEEN = "[JSONPatch{op: 'add', path: '/metadata/annotations/claims', value: string(object.spec.?resourceClaims.orValue([]).size())}]"  # noqa: E501
NEURON = {**pod(container(neuron="4")), "apiVersion": "v1", "kind": "Pod"}


def mutator(*texts: str, **parts: Any) -> SteeredMutator:
    store = PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(written(*texts), {}), (), frozenset())
    return SteeredMutator(trainium(), store, Store(), MemoryTemplates(), metrics=PolicyMetrics(store), **parts)


def decided(*texts: str, data: Any = NEURON, **parts: Any) -> Decision:
    return asyncio.run(mutator(*texts, **parts).review(sent(data)))


def made(decision: Decision, data: Any = NEURON) -> Any:
    return jsonpatch.apply_patch(json.loads(json.dumps(data)), json.loads(json.dumps(list(decision.patch))))


def test_conversion_sees_what_policies_made() -> None:
    assert decided().outcome == "converted"
    decision = decided(mutating_text(OFF))
    assert (decision.outcome, decision.reason) == ("mutated", "policy")
    assert made(decision)["metadata"]["annotations"] == {"neuron.aws.com/convert": "off"}
    assert decision.audit["changed-by"] == "change"


def test_what_policies_add_is_converted() -> None:
    plain = {**NEURON, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    decision = decided(mutating_text(LIMITS), data=plain)
    assert (decision.outcome, len(decision.templates)) == ("converted", 1)
    result = made(decision, plain)
    assert "limits" not in result["spec"]["containers"][0].get("resources", {})
    assert result["spec"]["resourceClaims"][0]["name"] == "neuron"


@pytest.mark.parametrize(("again", "claims"), [("Never", "0"), ("IfNeeded", "1")])
def test_a_policy_that_asks_sees_the_converted_pod(again: str, claims: str) -> None:
    data = {**NEURON, "metadata": {**NEURON["metadata"], "annotations": {"a": "b"}}}
    decision = decided(mutating_text(json_patch(SEEN, reinvocationPolicy=again)), data=data)
    assert decision.outcome == "converted"
    assert made(decision, data)["metadata"]["annotations"]["claims"] == claims


def test_what_is_added_after_conversion_is_converted_too() -> None:
    late = json_patch(
        "object.spec.?resourceClaims.orValue([]).size() == 0 ? [] : [JSONPatch{op: 'add',"
        " path: '/spec/containers/0/resources/limits', value: {'aws.amazon.com/neuron': '4'}}]",
        reinvocationPolicy="IfNeeded",
    )
    decision = decided(mutating_text(late))
    assert not decision.errors
    assert "aws.amazon.com/neuron" not in json.dumps(made(decision)["spec"]["containers"])


def test_a_policy_that_fails_denies() -> None:
    decision = decided(mutating_text(json_patch("[JSONPatch{op: 'remove', path: '/spec/nothing'}]")))
    (finding,) = decision.errors
    assert (decision.reason, finding.code) == ("policy", "NEU806")
    assert finding.message == (
        "policy 'change' cannot change the object: mutations[0] (JSONPatch) failed: at '/spec/nothing': there is no key"
        " 'nothing' to remove."
    )


def test_a_failure_that_is_ignored_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    fields = json_patch("[JSONPatch{op: 'remove', path: '/spec/nothing'}]", failurePolicy="Ignore")
    changing = mutator(mutating_text(fields))
    first, second = (asyncio.run(changing.review(sent(NEURON))) for _ in range(2))
    assert (first.outcome, first.patch) == ("converted", second.patch)
    assert [each.message for each in caplog.records].count("policy failed") == 1


def test_a_patch_that_is_too_large_is_denied() -> None:
    fields = configuration("Object{metadata: Object.metadata{annotations: {'big': object.metadata.annotations.a.replace('x', 'yyyyyyyyyyyyyyyy')}}}")  # fmt: skip # noqa: E501
    data = {**NEURON, "metadata": {**NEURON["metadata"], "annotations": {"a": "x" * 3000}}}
    (finding,) = decided(mutating_text(fields), data=data).errors
    assert finding.code == "NEU806"
    assert finding.message.startswith("policies change change too much: with conversion, the patch has ")


def test_large_objects_are_compared_and_written_in_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of 1.2 MiB kept the event loop for 20 ms."""
    where: list[bool] = []

    class Noting(Inline):
        working = False

        async def run(self, namespace: str, work: Any, seconds: float = 0.0, key: Any = None) -> Any:
            def noted() -> Any:
                self.working = True
                try:
                    return work()
                finally:
                    self.working = False

            return await super().run(namespace, noted, seconds, key)

    lane = Noting()
    for module, name in ((steered, "_with_object"), (steering, "difference")):
        found = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *each, found=found: (where.append(lane.working), found(*each))[1])
    large = {**NEURON, "metadata": {**NEURON["metadata"], "annotations": {"a": "x" * LARGE_OBJECT}}}
    for data, in_lane in ((large, True), (NEURON, False)):
        where.clear()
        assert not decided(mutating_text(OFF), data=data, lane=lane).errors
        assert where == [in_lane] * len(where) != []


def test_other_requests_pass() -> None:
    changing = mutator(mutating_text(OFF))
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}
    update = sent(other, operation="UPDATE", oldObject=other)
    assert asyncio.run(changing.review(update)) == asyncio.run(mutator().review(update))
    node = sent(
        {**other, "kind": "Node"},
        kind={"group": "", "version": "v1", "kind": "Node"},
        resource={"group": "", "version": "v1", "resource": "nodes"},
    )
    assert asyncio.run(changing.review(node)) is asyncio.run(mutator().review(node))
    system = sent(NEURON, namespace="kube-system")
    assert asyncio.run(changing.review(system)).reason == "excluded-namespace"


def test_a_large_object_is_changed_in_the_lane() -> None:
    lane = Watching()
    data = {**NEURON, "metadata": {**NEURON["metadata"], "annotations": {"a": "x" * 100_000}}}
    assert decided(mutating_text(OFF), data=data, lane=lane).outcome == "mutated"
    assert lane.threads


def test_an_object_that_cannot_be_decoded_is_denied() -> None:
    request = sent(NEURON)
    broken = type(request)(**{**{each: getattr(request, each) for each in request.__struct_fields__}, "object": type(request.object)(b'{"a": ' * 200 + b"1" + b"}" * 200)})  # fmt: skip # noqa: E501
    (finding,) = asyncio.run(mutator(mutating_text(OFF)).review(broken)).errors
    assert finding.code == "NEU114"


def test_results_are_counted() -> None:
    changing = mutator(mutating_text(OFF))
    asyncio.run(changing.review(sent(NEURON)))
    metrics = changing._metrics
    assert metrics is not None
    samples = [sample for family in metrics.collect() for sample in family.samples]
    counted = {
        sample.labels["outcome"]: sample.value for sample in samples if sample.name == "neuron_dra_policy_results_total"
    }
    assert counted == {"changed": 1}
