"""A reviewer with policies and a cluster, for tests that try to bypass policies."""

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import policies
from cluster.store import Store
from conversion.objects import wire
from conversion.patches.decision import Decision
from kubecel.budget import Clock
from neuron.api.claim_reader import read_claim, read_class
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from policies.applying.requests import ClusterLookups, FindClaims, find_nothing
from policies.files.loader import load
from policies.files.store import Loaded, PolicyStore, StoreOptions
from policies.judging.rules import PolicySet
from tests.support.manifests import container, pod
from tests.support.serving import Answering, decoded_review
from tests.support.trainium import trainium
from tests.webhook.reviews.test_policed import NOW
from webhook.reviews.policed import PolicedValidator
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_requests import Allowance, Execution
from webhook.reviews.reviewer import Reviewer
from webhook.reviews.steered import SteeredMutator
from webhook.reviews.worker_threads import Inline, Lane, Result
from webhook.server.standalone import MemoryTemplates

PACKS = {path.name: path.read_text() for path in (Path(policies.__file__).parent / "packs").glob("*.yaml")}
V1 = "resource.k8s.io/v1"
FOUR = "validations: [{expression: 'neuron.devices <= 4 && neuron.devicesKnown', message: at most four}]"
NEURON = "aws.amazon.com/neuron"
LOCKED = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: keep}
spec:
  order: 1
  match: {conditions: [{name: named, expression: "%s"}]}
  mode: convert
  locked: true
"""
FORGED = {
    "labels": {"neuron.aws.com/converted": "true"},
    "annotations": {"neuron.aws.com/converted-from": '{"containers": {"main": {"aws.amazon.com/neuron": "0"}}}'},
}


def denying(*names: str) -> PolicySet:
    """Shipped packs whose action an admin has set to Deny."""
    texts = {name: PACKS[name].partition("\n  tests:")[0] for name in names or PACKS}
    return load({name: text.replace("[Audit]", "[Deny]").encode() for name, text in texts.items()})


def written(*texts: str) -> PolicySet:
    return load({f"{at}.yaml": text.encode() for at, text in enumerate(texts)})


class Cluster(Store):
    """A cluster with a class of ours, one of others, and templates."""

    def __init__(self, **templates: Mapping[str, Any]) -> None:
        super().__init__()
        self.known = {name: read_claim("ResourceClaim", V1, spec)[0] for name, spec in templates.items()}

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:  # noqa: ARG002
        return {"team": "research"}

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        selectors = {"neuron.aws.com": "neuron.aws.com", "fast": "neuron.aws.com", "gpu": "gpu.example.com"}
        return {
            name: read_class(V1, {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]})[0]
            for name, driver in selectors.items()
        }

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:  # noqa: ARG002
        return self.known.get(name)


def reviewer(
    found: PolicySet,
    inner: Reviewer | None = None,
    *,
    lane: Lane | None = None,
    cluster: Store | None = None,
    find: FindClaims = find_nothing,
    allowance: Allowance | None = None,
    clock: Clock = time.perf_counter,
) -> PolicedValidator:
    store = PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(found, {}), (), frozenset())
    make: Callable[[PolicySet], Reviewer] = lambda _: inner or Answering(None)  # noqa: E731
    view = cluster or Cluster()
    metrics = PolicyMetrics(store)
    execution = Execution(clock, lane or Inline(), allowance or Allowance(clock))
    return PolicedValidator(make, store, ClusterLookups(view, find), frozenset(), metrics, lambda: NOW, execution)


def sent(data: Any, **members: Any) -> wire.AdmissionRequest:
    return decoded_review(**{"object": data, **members})


def of_claim(data: Mapping[str, Any], **members: Any) -> wire.AdmissionRequest:
    version = data["apiVersion"].partition("/")[2]
    plural = f"{data['kind'].lower()}s"
    kind = {"group": "resource.k8s.io", "version": version, "kind": data["kind"]}
    return sent(
        data, kind=kind, resource={"group": "resource.k8s.io", "version": version, "resource": plural}, **members
    )


def judged(found: PolicySet, request: wire.AdmissionRequest, **parts: Any) -> Decision:
    return asyncio.run(reviewer(found, **parts).review(request))


def many_names(count: int) -> dict[str, Any]:
    entries = [{"name": f"c{at}", "resourceClaimName": f"gone-{at}"} for at in range(count)]
    return {**pod(container(neuron="16")), "spec": {**pod(container(neuron="16"))["spec"], "resourceClaims": entries}}


def mutated(text: str, data: Mapping[str, Any], lane: Lane | None = None) -> Decision:
    store = PolicyStore(Path("policies"), StoreOptions(lambda: NOW), Loaded(written(text), {}), (), frozenset())
    mutator = SteeredMutator(trainium(), store, Store(), MemoryTemplates(), lane)
    return asyncio.run(mutator.review(sent({**data, "apiVersion": "v1", "kind": "Pod"})))


class Ticking:
    """A clock that goes on by 0.1 ms whenever it is read: evaluation reads it after each part of its work."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.reads / 10_000


class Watching(Inline):
    """A lane that notes what it was given."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    async def run(
        self, namespace: str, work: Callable[[], Result], seconds: float = 0.0, key: Hashable = None
    ) -> Result:
        self.threads.append(namespace)
        return await super().run(namespace, work, seconds, key)
