"""No pod that hill climbing finds takes much work on the event loop, or more than its estimate."""

import asyncio
import json
import random
import tracemalloc
from typing import Any

import pytest

from conversion.claims import making
from conversion.claims.work import WorkAllowance
from conversion.objects.kinds import pods_of
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Outcome
from neuron.api.claim_reader import claim_spec
from neuron.hardware.instances import Catalogue
from policies.applying.requests import named_by
from policies.judging.device_counts import of_workload
from policies.judging.knowledge import DeviceKnowledge
from tests.attacks.worst_pods import MOST_CALLS, Shape, Work, climb, counted_calls
from tests.support.clusters import AskedCluster, first_step, mutator, request
from tests.support.trainium import trainium
from webhook.reviews import effort
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import LARGE_OBJECT, Inline
from webhook.reviews.workloads import read_workload
from webhook.server.standalone import StandaloneBackend

CALLS_OF_A_UNIT = 600
"""24 units are decided on the loop: 14,400 calls, `MOST_CALLS`. `webhook.reviews.effort` says the same."""
TRIES = 60


@pytest.mark.parametrize("seed", range(4))
def test_no_pod_takes_much_work_on_the_event_loop(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a search, no secret
    calls, shape = climb(draw, Work().on_the_loop, TRIES)
    assert calls < MOST_CALLS, shape


@pytest.mark.parametrize("seed", range(4))
def test_the_units_of_a_pod_bound_its_work(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []

    class Counting(WorkAllowance):
        def spend(self, units: int) -> None:
            spent.append(units)

    monkeypatch.setattr(effort, "on_the_loop", Counting)
    work = Work()

    def calls_of_a_unit(shape: Shape) -> int:
        spent.clear()
        return work.in_all(shape) // (sum(spent) + 10)  # what does not plan takes as much as ten units

    draw = random.Random(seed)  # noqa: S311 - a search, no secret
    calls, shape = climb(draw, calls_of_a_unit, TRIES)
    assert calls < CALLS_OF_A_UNIT, shape


class Recording(Inline):
    """A lane that notes the estimates."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def run(self, namespace: str, work: Any, seconds: float = 0.0, key: Any = None) -> Any:
        self.seconds.append(seconds)
        return await super().run(namespace, work, seconds, key)


@pytest.mark.parametrize(("pairs", "in_lane"), [(1, False), (6, True)])
def test_a_pod_that_takes_much_work_is_decided_in_the_lane(pairs: int, in_lane: bool) -> None:
    lane = Recording()
    shape = Shape(0, (("app", "aws.amazon.com/neuroncore", 3), ("app", "aws.amazon.com/neuron", 1)) * pairs, ())
    making._remembered.cache_clear()
    decision = asyncio.run(mutator(lane=lane).review(request(shape.pod())))
    assert decision.outcome is Outcome.CONVERTED
    assert (max(lane.seconds, default=0) > 0.01) is in_lane


def _workflow(templates: int, labels: int) -> Any:
    shared = {f"k{at}": "" for at in range(labels)}
    neuron = {"resources": {"limits": {"aws.amazon.com/neuron": 1}}}
    made = [{"container": neuron, "metadata": {"labels": {"own": "x"}}} for _ in range(templates)]
    return {"spec": {"templates": made, "podMetadata": {"labels": shared}}}


def _of_workflow(data: Any) -> AdmissionRequest:
    return request(data, kind="Workflow", group="argoproj.io")


def test_templates_that_share_metadata_take_little_work_on_the_event_loop() -> None:
    """8 KiB: 190,000 calls, when the place of each label was noted for each pod."""
    review = _of_workflow(_workflow(62, 180))
    assert len(bytes(review.object)) <= LARGE_OBJECT
    validator = Validator(trainium(), Catalogue(), StandaloneBackend().view)
    assert counted_calls(lambda: first_step(validator.review(review))) < MOST_CALLS


def test_templates_that_share_metadata_take_little_memory() -> None:
    """120 KiB: 1 GiB and seven seconds, when every template had a copy of all labels with their places."""
    review = _of_workflow(_workflow(1000, 2000))
    tracemalloc.start()
    try:
        read = read_workload(review, bytes(review.object))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(read.pods), read.left_out) == (64, 1000 - 64)
    assert most < 64 * 1024 * 1024


WORDS = ("trn", "inf", "trainium", "inferentia")


@pytest.mark.parametrize("affinity", [False, True])
def test_words_of_a_node_selection_are_looked_up(affinity: bool) -> None:
    """8 KiB with 1,000 words such as `trn713`: 88,000 calls, 19 ms, when a pattern was compiled for each."""
    values = [" ".join(f"{WORDS[at % 4]}{at}{each}" for each in range(10))[:63] for at in range(100)]
    shape = Shape(0, (("app", "aws.amazon.com/neuron", 1),), ())
    pod = shape.pod()
    if affinity:
        terms = [{"matchExpressions": [{"key": "k", "operator": "In", "values": [each]}]} for each in values[:56]]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod["spec"]["affinity"] = {"nodeAffinity": required}
    else:
        pod["spec"]["nodeSelector"] = {f"k{at}": value for at, value in enumerate(values)}
    assert len(json.dumps(pod)) <= LARGE_OBJECT
    work = Work()
    review = request(pod, dryRun=True)
    first_step(work.mutator_of(shape).review(review))
    found = work.mutator_of(shape)
    assert counted_calls(lambda: first_step(found.review(review))) < MOST_CALLS


def _sharing_claims(templates: int, claims: int, **more: Any) -> Any:
    declared = [{"name": f"c{at}", "resourceClaimTemplateName": f"t{at}"} for at in range(claims)]
    container = {"resources": {"claims": [{"name": "other"}]}}
    return {"spec": {"templates": [{"container": container}] * templates, "resourceClaims": declared, **more}}


def test_claims_that_templates_share_are_looked_up_once() -> None:
    """On the event loop. 8 KiB: 43,000 calls, when they were looked up for each pod; 62 KiB: 97,000."""
    review = _of_workflow(_sharing_claims(60, 60))
    assert len(bytes(review.object)) <= LARGE_OBJECT
    cluster = AskedCluster()
    asyncio.run(Validator(trainium(), Catalogue(), cluster).review(review))
    assert len(cluster.looked) < 5 * 60


def test_claims_of_all_pods_of_a_workload_are_not_all_looked_up() -> None:
    each = [{"name": f"c{at}", "resourceClaimTemplateName": f"t{at}"} for at in range(600)]
    templates = [{"container": {"resources": {}}, "resourceClaims": each[at:]} for at in range(6)]
    review = _of_workflow({"spec": {"templates": templates}})
    read = read_workload(review, bytes(review.object))
    assert [len(declared) for _, declared in read.pods] == [600, 424, 0, 0, 0, 0]


@pytest.mark.parametrize("patch", ["", '{"resourceClaims": []}'], ids=["plain", "patched"])
def test_devices_of_templates_that_share_claims_are_counted_in_linear_time(patch: str) -> None:
    """A Workflow of 500 KiB was not counted within any caller's time-out, and its thread went on."""

    def calls(size: int) -> int:
        data = _sharing_claims(size, size, podSpecPatch=patch)
        return counted_calls(
            lambda: (
                named_by(data, "argoproj.io", "Workflow"),
                of_workload(data, "argoproj.io", "Workflow", DeviceKnowledge()),
            )
        )

    assert calls(240) < 3 * calls(120)


def test_pods_that_share_a_list_of_claims_each_hold_them() -> None:
    names = ("a", "b")
    declared = [{"name": each, "resourceClaimName": each} for each in names]
    data = {"spec": {"templates": [{"container": {}}, {"container": {}}], "resourceClaims": declared}}
    devices = {"deviceClassName": "neuron.aws.com", "count": 2}
    spec = claim_spec({"devices": {"requests": [{"name": "r", "exactly": devices}]}})
    known = DeviceKnowledge(claims=dict.fromkeys(names, spec), classes={"neuron.aws.com": True})
    found = of_workload(data, "argoproj.io", "Workflow", known)
    assert found.pods is not None
    assert [each["devices"] for each in found.pods.templates] == [4, 4]
    assert found.named_claims == 4


def test_metadata_of_many_owners_is_joined_in_linear_time() -> None:
    overrides = [{"targetJobs": [{"name": "node"}], "metadata": {"labels": {f"k{at}": "v"}}} for at in range(4000)]
    resources = {"limits": {"aws.amazon.com/neuron": 1}}
    data = {"spec": {"trainer": {"resourcesPerNode": resources}, "podTemplateOverrides": overrides}}
    tracemalloc.start()
    try:
        (place,) = pods_of(data, "trainer.kubeflow.org", "TrainJob")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(place.template["metadata"]["labels"]) == 4000  # type: ignore[index]
    assert place.field_path("metadata.labels.k7") == "spec.podTemplateOverrides[7].metadata.labels[k7]"
    assert most < 8 * 1024 * 1024
