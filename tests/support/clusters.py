"""A cluster and a template store whose content a test sets."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jsonpatch
from msgspec import Raw

from conversion.claims.pools import NO_SUPPLY, Supply
from conversion.claims.templates import Template
from conversion.facts import NO_FACTS, NamespaceFacts
from conversion.objects.wire import ABSENT, AdmissionRequest, GroupVersionKind
from conversion.patches.decision import Decision
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.api.fields import namespace_named
from neuron.hardware.device_shapes import DeviceShape
from neuron.hardware.instances import Observation
from policies.applying.steering import finder
from policies.judging.rules import PolicySet
from tests.support.trainium import trainium
from webhook.reviews.mutate import Mutator
from webhook.reviews.policy_steering import PolicySteer
from webhook.reviews.reviewer import FirstSteps, FoundTemplate, TemplateUnavailableError
from webhook.reviews.steered import TemplateChecks
from webhook.reviews.worker_threads import Lane

first_step: Final = FirstSteps()
"""For tests that run a first step without an endpoint."""


@dataclasses.dataclass
class FakeCluster:
    version: int = 1
    seen: dict[str, Observation] = dataclasses.field(default_factory=dict)
    classes: dict[str, str] = dataclasses.field(default_factory=dict)
    namespaces: dict[str, NamespaceFacts] = dataclasses.field(default_factory=dict)
    template_classes: dict[tuple[str, str], frozenset[str]] = dataclasses.field(default_factory=dict)
    named_classes: frozenset[str] | None = None
    claim_templates: dict[tuple[str, str], ClaimSpec] = dataclasses.field(default_factory=dict)
    ultraserver_modes: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    kubernetes: str = ""
    supplied: Supply = NO_SUPPLY
    autoscalers: dict[str, dict[tuple[str, str], str]] = dataclasses.field(default_factory=dict)

    def kubernetes_version(self) -> str:
        return self.kubernetes

    def observations(self) -> Mapping[str, Observation]:
        return self.seen

    def extended_resources(self) -> Mapping[str, str]:
        return self.classes

    def supply(self) -> Supply:
        return self.supplied

    def class_names(self) -> frozenset[str] | None:
        return self.named_classes

    def namespace(self, name: str) -> NamespaceFacts:
        return self.namespaces.get(name, NO_FACTS)

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        return {} if name in self.namespaces else None

    def namespace_object(self, name: str) -> Mapping[str, Any] | None:
        return namespace_named(name) if name in self.namespaces else None

    def quotas(self, name: str) -> Mapping[str, int] | None:  # noqa: ARG002 - unknown in this cluster
        return None

    def resizers(self, namespace: str) -> Mapping[tuple[str, str], str]:
        return self.autoscalers.get(namespace, {})

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        return self.template_classes.get((namespace, name), frozenset())

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        return self.ultraserver_modes.get((namespace, name))

    @property
    def claim_version(self) -> int:
        return self.version

    def device_shapes(self) -> Sequence[DeviceShape]:
        return ()

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        return None

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        return self.claim_templates.get((namespace, name))


@dataclasses.dataclass
class AskedCluster(FakeCluster):
    """Records the names of the claims and templates that are looked up."""

    looked: list[str] = dataclasses.field(default_factory=list)

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        self.looked.append(name)
        return super().claim_template(namespace, name)

    async def exist(self, kind: str, namespace: str, wanted: Sequence[str]) -> dict[str, bool | None]:  # noqa: ARG002
        self.looked.extend(wanted)
        return dict.fromkeys(wanted)


class FakeTemplates:
    """Records the requested templates; raises the given error."""

    def __init__(
        self,
        refusal: TemplateUnavailableError | None = None,
        operators: Mapping[tuple[str, str], ClaimSpec] | None = None,
    ) -> None:
        self.made: dict[tuple[str, str], Template] = {}
        self.operators = operators or {}
        self.refusal = refusal
        self.others: dict[tuple[str, str], int] = {}

    def holds(self, namespace: str, template: Template) -> bool:
        return (namespace, template.name) in self.made

    def other(self, namespace: str, template: Template) -> int | None:
        return self.others.get((namespace, template.name))

    async def read(self, namespace: str, name: str) -> FoundTemplate:
        if self.refusal is not None:
            raise self.refusal
        found = self.operators.get((namespace, name))
        elsewhere = any(other == name for _, other in self.operators)
        return FoundTemplate(found, missing=found is None, elsewhere=found is None and elsewhere)

    async def check(self, namespace: str, template: Template) -> bool:
        if self.refusal is not None:
            raise self.refusal
        return self.holds(namespace, template)

    async def ensure(self, namespace: str, template: Template) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.made[namespace, template.name] = template


def mutator(
    cluster: FakeCluster | None = None,
    templates: FakeTemplates | None = None,
    policies: PolicySet = PolicySet(),
    lane: Lane | None = None,
    **options: Any,
) -> Mutator:
    cluster = cluster or FakeCluster()
    # No time passes: with a real clock, a busy machine would need the lane, which only the server has.
    steer = PolicySteer(policies, cluster, clock=lambda: 0.0)
    store = templates or FakeTemplates()
    checks = TemplateChecks(trainium(**options), policies.catalogue, cluster, store, lane).find
    return Mutator(
        trainium(**options), policies.catalogue, cluster, store, steer, lane=lane, checks=checks, named=finder(policies)
    )


def request(
    manifest: Any,
    operation: str = "CREATE",
    old: Any = None,
    *,
    kind: str = "Pod",
    group: str = "",
    namespace: str = "team-a",
    **fields: Any,
) -> AdmissionRequest:
    def raw(value: Any) -> Raw:
        # As the API server writes it: bounds are in bytes.
        return ABSENT if value is None else Raw(json.dumps(value, separators=(",", ":")).encode())

    gvk = GroupVersionKind(kind, group, "v1")
    return AdmissionRequest("uid-1", gvk, operation, namespace, object=raw(manifest), oldObject=raw(old), **fields)


def patched(manifest: Any, decision: Decision) -> Any:
    """The object after a decision."""
    return jsonpatch.apply_patch(manifest, list(decision.patch))


def reviewed(subject: Mutator, manifest: Any, *args: Any, **fields: Any) -> Decision:
    """The decision about a manifest; `args` and `fields` are those of `request`."""
    return asyncio.run(subject.review(request(manifest, *args, **fields)))
