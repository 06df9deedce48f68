"""Objects made to get past policies are refused."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.store import Store
from neuron.api.claim_reader import read_claim
from policies.files.store import Loaded, PolicyStore, StoreOptions
from policies.judging.rules import PolicySet
from tests.support.manifests import container, pod
from tests.support.trainium import trainium
from tests.webhook.reviews.policed import (
    FORGED,
    LOCKED,
    V1,
    Cluster,
    Watching,
    denying,
    judged,
    mutated,
    of_claim,
    sent,
    written,
)
from tests.webhook.reviews.test_policed import NOW, policy, texts_of
from webhook.reviews.steered import SteeredMutator
from webhook.reviews.worker_threads import ThreadLane
from webhook.server.standalone import MemoryTemplates

# --- escapes ------------------------------------------------------------------------------------------------------


def devices(*requests: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"devices": {"requests": list(requests), **more}}


def request_a(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "exactly": {"deviceClassName": "neuron.aws.com", **fields}}


@pytest.mark.parametrize(
    ("version", "spec"),
    [
        pytest.param("v1", devices(request_a(allocationMode="All")), id="all"),
        pytest.param(
            "v1", devices({"name": "a", "firstAvailable": [request_a(count=n)["exactly"] for n in (1, 16)]}), id="or"
        ),
        pytest.param("v1", devices(request_a(count=16, deviceClassName="fast")), id="class"),
        pytest.param("v1", devices(request_a(deviceClassName="unknown")), id="unknown-class"),
        pytest.param("v1beta1", devices({"name": "a", "deviceClassName": "neuron.aws.com", "count": 16}), id="flat"),
        pytest.param("v1beta2", devices(request_a(count=16)), id="v1beta2"),
    ],
)
def test_device_limit_is_not_escaped_by_claims(version: str, spec: dict[str, Any]) -> None:
    claim = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": spec,
    }
    decision = judged(denying("device-limit.yaml"), of_claim(claim))
    assert [each.code for each in decision.errors] == ["NEU801"]
    template = {**claim, "kind": "ResourceClaimTemplate", "spec": {"spec": spec}}
    assert not judged(denying("device-limit.yaml"), of_claim(template)).allowed


def test_the_device_limit_ignores_claims_of_other_drivers() -> None:
    spec = devices(request_a(deviceClassName="gpu", count=64))
    claim = {"apiVersion": V1, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}
    assert judged(denying("device-limit.yaml", "namespace-quota.yaml"), of_claim(claim)).allowed


@pytest.mark.parametrize("record", ['{"x":1}', '{"containers": {"main": {"aws.amazon.com/neuron": "0"}}}', "{}", "[1]"])
def test_a_forged_record_does_not_hide_devices_from_the_limit(record: str) -> None:
    annotations = {"neuron.aws.com/converted-from": record, "neuron.aws.com/convert": "off"}
    data = pod(container(neuron="16"), labels=FORGED["labels"], annotations=annotations)
    assert not judged(denying("device-limit.yaml"), sent(data)).allowed
    converted = written(policy("validations: [{expression: '!neuron.converted'}]"))
    assert judged(converted, sent(data)).allowed


def test_the_devices_of_a_genuine_record_count() -> None:
    templates = MemoryTemplates()
    store = PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(PolicySet(), {}), (), frozenset())
    mutator = SteeredMutator(trainium(), store, Store(), templates)
    data = {**pod(container(neuron="4")), "apiVersion": "v1", "kind": "Pod"}
    decision = asyncio.run(mutator.review(sent(data)))
    import jsonpatch

    converted = jsonpatch.apply_patch(data, list(decision.patch))
    ((_, template),) = list(templates)
    cluster = Cluster()
    cluster.known[template.name] = read_claim("ResourceClaimTemplate", V1, template.spec)[0]
    check = "validations: [{expression: 'neuron.converted && neuron.devices == 4 && neuron.devicesKnown'}]"
    assert texts_of(judged(written(policy(check)), sent(converted), cluster=cluster).errors) == []
    assert judged(denying("device-limit.yaml", "pinned-cores.yaml"), sent(converted), cluster=cluster).allowed
    # The same record with a template that asks for more is not believed.
    cluster.known[template.name] = read_claim("ResourceClaim", V1, devices(request_a(count=16)))[0]
    assert not judged(denying("device-limit.yaml"), sent(converted), cluster=cluster).allowed


def test_a_dry_run_counts_the_template_that_it_does_not_make() -> None:
    mutator = SteeredMutator(
        trainium(),
        PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(PolicySet(), {}), (), frozenset()),
        Store(),
        MemoryTemplates(),
    )

    def converted(devices: str) -> dict[str, Any]:
        data = {**pod(container(neuron=devices)), "apiVersion": "v1", "kind": "Pod"}
        decision = asyncio.run(mutator.review(sent(data, dryRun=True)))
        import jsonpatch

        return dict(jsonpatch.apply_patch(data, list(decision.patch)))

    limit = written(policy("validations: [{expression: neuron.devicesKnown && neuron.devices <= 4}]"))
    assert judged(limit, sent(converted("4"), dryRun=True)).allowed
    assert not judged(limit, sent(converted("8"), dryRun=True)).allowed
    assert not judged(limit, sent(converted("4"))).allowed
    # A name that we do not give is no template of a conversion.
    named = converted("4")
    named["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "neuron-a"
    assert not judged(limit, sent(named, dryRun=True)).allowed
    # Existing devices count.
    ours = converted("4")
    cluster = Cluster(**{ours["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]: devices(request_a(count=16))})
    assert not judged(limit, sent(ours, dryRun=True), cluster=cluster).allowed
    # The record is for one claim and does not affect others.
    more = converted("4")
    more["spec"]["resourceClaims"].append({"name": "more", "resourceClaimTemplateName": "unknown"})
    assert not judged(limit, sent(more, dryRun=True)).allowed


# --- policies on pods ---------------------------------------------------------------------------------------------


def generated(**annotations: str) -> dict[str, Any]:
    data = pod(container(neuron="4"), annotations={"neuron.aws.com/convert": "off", **annotations})
    return {**data, "metadata": {"generateName": "x-", "annotations": data["metadata"]["annotations"]}}


def test_a_locked_policy_that_cannot_be_evaluated_denies() -> None:
    text = LOCKED % "object.metadata.name.startsWith('a')"
    decision = mutated(text, generated())
    assert [f"{each.code}: {each.message}" for each in decision.errors] == [
        "NEU803: policy 'keep' is locked, and it is not known whether it matches this pod: match condition 'named' "
        "failed: no such key: 'name' (line 1, column 17)."
    ]
    assert decision.errors[0].fix.endswith("or to set failurePolicy: Ignore.")
    assert mutated(f"{text}  failurePolicy: Ignore\n", generated()).allowed


def test_a_locked_policy_whose_budget_is_used_up_denies() -> None:
    everything = (
        "object.metadata.annotations.x.split('').all(a, object.metadata.annotations.x.split('').all(b, a == b))"
    )
    decision = mutated(LOCKED % everything, generated(x="a" * 3000), ThreadLane())
    assert [each.code for each in decision.errors] == ["NEU803"]


def test_steering_that_is_slow_on_the_loop_starts_again_in_the_lane() -> None:
    text = LOCKED % "object.spec.containers.all(c, object.spec.containers.all(d, d.name != 'x'))"
    many = [{"name": f"c{at}"} for at in range(400)]
    data = {**generated(), "spec": {"containers": [container(neuron="4"), *many]}}
    lane = Watching()
    assert mutated(f"{text}  failurePolicy: Ignore\n", data, lane).allowed
    assert lane.threads
