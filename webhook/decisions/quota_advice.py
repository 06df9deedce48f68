"""Which quotas stop to count a pod when it is converted, and what counts it instead.

Source: `pkg/quota/v1/evaluator/core/resource_claims.go` of Kubernetes. A claim is counted by its DeviceClass, and
by the class's `extendedResourceName` where it has one (KEP-5004); never by a quota with scopes.
"""

from collections.abc import Iterable

from neuron.findings import Finding, warning
from webhook.decisions.ports import LegacyQuota
from webhook.decisions.world import ConversionContext


def uncounted(quotas: Iterable[LegacyQuota], world: ConversionContext) -> list[Finding]:
    """NEU204 for each quota that does not count a converted pod."""
    return [_told(quota, world.options.device_class) for quota in quotas if not _counts_claims(quota, world)]


def _counts_claims(quota: LegacyQuota, world: ConversionContext) -> bool:
    served = (world.extended_resources.get(resource) == world.options.device_class for resource in quota.resources)
    return not quota.scoped and all(served)


def _told(quota: LegacyQuota, device_class: str) -> Finding:
    place = (
        "the spec.hard of a quota without scopes: with scopes it counts no claim" if quota.scoped else "its spec.hard"
    )
    return warning(
        "NEU204",
        "metadata.namespace",
        f"ResourceQuota {quota.name} no longer counts this pod.",
        f"Use {device_class}.deviceclass.resource.k8s.io/devices in {place}.",
        quota.name,
    )
