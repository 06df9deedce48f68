"""Finds ResourceQuotas that do not count a converted pod, and suggests the quota line that counts it.

Source: `pkg/quota/v1/evaluator/core/resource_claims.go` of Kubernetes. A quota counts a claim by its DeviceClass and by
the class's `extendedResourceName`, if it has one (KEP-5004). A quota with scopes counts no claim.
"""

from collections.abc import Iterable

from neuron.findings import Finding, warning
from webhook.decisions.conversion_context import ConversionContext
from webhook.decisions.ports import LegacyQuota


def uncounted(quotas: Iterable[LegacyQuota], context: ConversionContext) -> list[Finding]:
    """NEU204 for each quota that does not count a converted pod."""
    return [_told(quota, context.options.device_class) for quota in quotas if not _counts_claims(quota, context)]


def _counts_claims(quota: LegacyQuota, context: ConversionContext) -> bool:
    served = (context.extended_resources.get(resource) == context.options.device_class for resource in quota.resources)
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
