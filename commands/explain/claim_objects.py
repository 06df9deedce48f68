"""Claims and templates among the objects of files and cluster: specs, findings, and what they count in quotas."""

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import structs

from checks.claims.judging import ClaimContext, validate
from commands.objects.manifests import Manifest
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import GROUP, ClaimSpec
from neuron.api.fields import mapping
from neuron.api.resource_versions import converted
from neuron.findings import Finding, Severity
from neuron.names import MAX_DEVICES_PER_CLAIM
from neuron.quantities import NotACountError, parse_count
from policies.judging.selectors import DeviceSelectors
from runtime.text import named

_KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate")


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimObject:
    """A claim or template.

    Attributes:
        spec: of the claim; None if its form is wrong.
        body: the spec as of `resource.k8s.io/v1`, for JSON; None if its form is wrong.
        findings: of validation, as `neuron-dra validate` reports them.
    """

    spec: ClaimSpec | None
    body: Mapping[str, object] | None
    findings: tuple[Finding, ...] = ()


class ClaimObjects:
    """Claims and templates by kind, namespace and name. Of two with one name, the first counts."""

    def __init__(
        self,
        objects: Iterable[Manifest],
        context: Callable[[], ClaimContext],
        stored: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    ) -> None:
        """`context` makes the facts for validation, when they are needed; `stored`: as the webhook stores a claim."""
        self._stored = stored
        self._found: dict[tuple[str, str, str], Manifest] = {}
        self._read: dict[tuple[str, str, str], ClaimObject] = {}
        self._context = functools.cache(context)
        for each in objects:
            if each.kind in _KINDS and each.group == GROUP:
                self._found.setdefault((each.kind, each.namespace, each.name), each)

    def find(self, kind: str, namespace: str, name: str) -> ClaimObject | None:
        """A claim or template; None if it is not known."""
        key = (kind, namespace, name)
        manifest = self._found.get(key)
        if manifest is None:
            return None
        if key not in self._read:
            self._read[key] = self._claim(self._stored(manifest))
        return self._read[key]

    def _claim(self, manifest: Manifest) -> ClaimObject:
        version, spec = str(manifest.data.get("apiVersion")), manifest.data.get("spec")
        read, form = read_claim(manifest.kind, version, spec)
        context = structs.replace(self._context(), engine=DeviceSelectors(time.process_time))
        findings = validate(manifest.kind, version, spec, context, accepted=False)
        wrong = any(each.severity is Severity.ERROR for each in form) or not isinstance(spec, Mapping)
        return ClaimObject(None, None, findings) if wrong else ClaimObject(read, _body(manifest), findings)


def _body(manifest: Manifest) -> Mapping[str, object]:
    spec = mapping(converted(manifest.kind, manifest.data, "v1").get("spec"))
    return mapping(spec.get("spec")) if manifest.kind == "ResourceClaimTemplate" else spec


# --- what claims count in ResourceQuotas ------------------------------------------------------------------------------

# Source: `pkg/quota/v1/evaluator/core/resource_claims.go` of Kubernetes: of `firstAvailable` the largest alternative of
# each class counts, and a quota with scopes counts no claim.


CLAIM_COUNT: Final = "count/resourceclaims.resource.k8s.io"

_CLASS_SUFFIX: Final = ".deviceclass.resource.k8s.io/devices"
_IMPLICIT_PREFIX: Final = "requests.deviceclass.resource.kubernetes.io/"


@dataclasses.dataclass(frozen=True, slots=True)
class QuotaEffect:
    """The effect on one amount of one ResourceQuota.

    Attributes:
        resource: key of `spec.hard`.
        amount: what the pod's claims count.
        used: what other objects count; None if it is not known, as in files.
    """

    quota: str
    resource: str
    amount: int
    hard: int
    used: int | None = None

    @property
    def exceeded(self) -> bool:
        """Whether the claim cannot be created."""
        return (self.used or 0) + self.amount > self.hard

    def __str__(self) -> str:
        before = f"{self.used} used and " if self.used is not None else ""
        verdict = ", exceeded: the claim cannot be created" if self.exceeded else ""
        return f"{named(self.quota)}: {named(self.resource)}: {before}{self.amount} of {self.hard}{verdict}"


def effects(
    quotas: Iterable[Mapping[str, object]], claims: Iterable[ClaimSpec], extended_resources: Mapping[str, str]
) -> Iterator[QuotaEffect]:
    """The effects of creating claims.

    Args:
        quotas: ResourceQuotas of the namespace.
        claims: what is created.
        extended_resources: `extendedResourceName` -> DeviceClass (KEP-5004).
    """
    counted = _counted(claims, extended_resources)
    if not counted:
        return
    for quota in quotas:
        spec = mapping(quota.get("spec"))
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        used = mapping(mapping(quota.get("status")).get("used"))
        for resource, hard in mapping(spec.get("hard")).items():
            limit = _count(hard)
            if resource in counted and limit is not None:
                name = str(mapping(quota.get("metadata")).get("name") or "")
                yield QuotaEffect(name, resource, counted[resource], limit, _count(used.get(resource)))


def _counted(claims: Iterable[ClaimSpec], extended_resources: Mapping[str, str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for claim in claims:
        counted[CLAIM_COUNT] += 1
        for device_class, devices in devices_by_class(claim).items():
            counted[device_class + _CLASS_SUFFIX] += devices
            counted[_IMPLICIT_PREFIX + device_class] += devices
            for resource, served_by in extended_resources.items():
                if served_by == device_class:
                    counted[f"requests.{resource}"] += devices
    return counted


def devices_by_class(claim: ClaimSpec) -> Counter[str]:
    """Devices by class, in the worst case."""
    total: Counter[str] = Counter()
    for request in claim.requests:
        most: dict[str, int] = {}
        for part in request.alternatives:
            count = MAX_DEVICES_PER_CLAIM if part.everything else part.count
            if part.device_class:
                most[part.device_class] = max(most.get(part.device_class, 0), count)
        total.update(most)
    return total


def _count(quantity: object) -> int | None:
    try:
        return None if quantity is None else parse_count(quantity)
    except NotACountError:
        return None
