"""Namespaces: our annotations, labels, all that policies can read of them, and limits on Neuron devices.

Limits: which ResourceQuotas count legacy resources, the amounts per namespace, what claims count in them, and
LimitRanges. Source: `pkg/quota/v1/evaluator/core/resource_claims.go` and `pods.go` of Kubernetes. All quotas of a
namespace apply, so the smallest amount counts. A quota with scopes bounds some pods and no claims: its amounts are
ignored here.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from checks.words import unread_keys
from cluster.bounded_objects import KEPT, Bounds
from conversion.facts import LegacyQuota
from neuron import names
from neuron.api.claim_specs import ClaimSpec
from neuron.api.fields import mapping, namespace_value
from neuron.quantities import NotACountError, parse_count
from runtime.text import named

_OUR_ANNOTATIONS: Final = f"{names.DRIVER}/"


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """What is kept of a Namespace.

    Attributes:
        annotations: those under `neuron.aws.com/`, sorted.
        whole: all that policies can read, as JSON; None: too large.
        unread: as `NamespaceFacts.unread`.
    """

    annotations: tuple[tuple[str, str], ...]
    labels: Mapping[str, str]
    whole: bytes | None = None
    unread: tuple[tuple[str, str], ...] = ()


BOUNDS: Final[Bounds[NamespaceRecord]] = Bounds(
    KEPT.namespaces,
    KEPT.namespaces,
    weigh=lambda record: len(record.whole or b""),
    shorten=lambda record: dataclasses.replace(record, whole=None),
)


def project_namespace_record(item: Mapping[str, Any]) -> NamespaceRecord:
    """`neuron.aws.com/` annotations of a Namespace, its labels, and all that policies can read."""
    labels = item["metadata"].get("labels") or {}
    whole: bytes | None = msgspec.json.encode(namespace_value(item))
    if whole is not None and len(whole) > KEPT.namespace:
        whole = None
    kept = dict(itertools.islice(labels.items(), KEPT.labels))
    annotations = item["metadata"].get("annotations") or {}
    # A Namespace in a file may have values that are no text, which the API server would refuse: they are left out.
    ours = sorted(
        (key, value[: KEPT.value])
        for key, value in annotations.items()
        if key.startswith(_OUR_ANNOTATIONS) and isinstance(value, str)
    )
    return NamespaceRecord(tuple(ours[: KEPT.annotations]), kept, whole, unread_keys(item["metadata"]))


NO_QUOTAS: Final[Mapping[str, int]] = MappingProxyType({})

_PREFIXES: Final = ("requests", "limits")
_LEGACY: Final = {f"{prefix}.{resource}": resource for prefix in _PREFIXES for resource in names.LEGACY_RESOURCES}
_REQUESTS: Final = "requests."


@dataclasses.dataclass(frozen=True, slots=True)
class QuotaFacts:
    """What is kept of a ResourceQuota.

    Attributes:
        legacy: legacy resources that it counts, sorted.
        scoped: whether it has scopes.
        hard: amounts of `spec.hard` that bound devices, by name, sorted.
    """

    legacy: tuple[str, ...]
    scoped: bool
    hard: tuple[tuple[str, int], ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """DeviceClasses whose devices it counts."""
        return tuple(name.removesuffix(names.CLASS_QUOTA) for name, _ in self.hard if name.endswith(names.CLASS_QUOTA))


def project_quota(item: Mapping[str, Any]) -> QuotaFacts | None:
    """The limits of a ResourceQuota on devices; None if it has none."""
    spec = item["spec"]
    hard = spec.get("hard") or {}
    scoped = bool(spec.get("scopes") or spec.get("scopeSelector"))
    amounts = [] if scoped else [(name, amount) for name in sorted(hard) if (amount := _amount(name, hard)) is not None]
    legacy = tuple(sorted({_LEGACY[name] for name in hard if name in _LEGACY}))
    return QuotaFacts(legacy, scoped, tuple(amounts)) if legacy or amounts else None


def _amount(name: str, hard: Mapping[str, object]) -> int | None:
    # An extended resource counts the claims of a DeviceClass with this extendedResourceName, too.
    extended = name.startswith(_REQUESTS) and "/" in name
    if name not in _LEGACY and not name.endswith(names.CLASS_QUOTA) and not extended:
        return None
    return _count(hard[name])


def _count(quantity: object) -> int | None:
    try:
        return None if quantity is None else parse_count(quantity)
    except NotACountError:
        return None


def merged(quotas: Iterable[QuotaFacts]) -> Mapping[str, int]:
    """What all quotas of one namespace allow together."""
    least: dict[str, int] = {}
    for quota in quotas:
        for name, amount in quota.hard:
            least[name] = min(amount, least.get(name, amount))
    return MappingProxyType(least) if least else NO_QUOTAS


class NamespaceQuotas:
    """Amounts by namespace, merged when a quota changes; reading is one dictionary look-up."""

    def __init__(self) -> None:
        self._quotas: dict[str, dict[str, QuotaFacts]] = {}
        self._merged: dict[str, Mapping[str, int]] = {}

    def keep(self, namespace: str, name: str, facts: QuotaFacts | None) -> None:
        """Store a quota; None: it was deleted or does not bound devices."""
        known = self._quotas.setdefault(namespace, {})
        if facts is None:
            known.pop(name, None)
        else:
            known[name] = facts
        if known:
            self._merged[namespace] = merged(known.values())
        else:
            del self._quotas[namespace]
            self._merged.pop(namespace, None)

    def of(self, namespace: str) -> Mapping[str, int]:
        """The amounts of a namespace, by name."""
        return self._merged.get(namespace, NO_QUOTAS)

    def legacy(self, namespace: str) -> tuple[LegacyQuota, ...]:
        """The quotas of a namespace that count a legacy resource, by name."""
        known = sorted(self._quotas.get(namespace, {}).items())
        return tuple(
            LegacyQuota(name, facts.legacy, facts.scoped, facts.classes) for name, facts in known if facts.legacy
        )


_LIMITED_TYPES: Final = ("Container", "Pod")
# Each of the three denies a pod without a limit of that name (plugin/pkg/admission/limitranger).
_LIMITS: Final = ("min", "max", "maxLimitRequestRatio")


def project_limit_range(item: Mapping[str, Any]) -> bool | None:
    """True if a LimitRange denies pods without a legacy resource, else None."""
    for limit in item["spec"].get("limits") or ():
        if limit.get("type") in _LIMITED_TYPES:
            bounded = {name for field in _LIMITS for name in limit.get(field) or ()}
            if not bounded.isdisjoint(names.LEGACY_RESOURCES):
                return True
    return None


# --- what claims count in ResourceQuotas ------------------------------------------------------------------------------

# Of `firstAvailable`, the largest alternative of each class counts.

CLAIM_COUNT: Final = "count/resourceclaims.resource.k8s.io"
_IMPLICIT_PREFIX: Final = f"{_REQUESTS}deviceclass.resource.kubernetes.io/"


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


def quota_effects(
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
            counted[device_class + names.CLASS_QUOTA] += devices
            counted[_IMPLICIT_PREFIX + device_class] += devices
            for resource, served_by in extended_resources.items():
                if served_by == device_class:
                    counted[_REQUESTS + resource] += devices
    return counted


def devices_by_class(claim: ClaimSpec) -> Counter[str]:
    """Devices by class, in the worst case."""
    total: Counter[str] = Counter()
    for request in claim.requests:
        most: dict[str, int] = {}
        for part in request.alternatives:
            count = names.MAX_DEVICES_PER_CLAIM if part.everything else part.count
            if part.device_class:
                most[part.device_class] = max(most.get(part.device_class, 0), count)
        total.update(most)
    return total
