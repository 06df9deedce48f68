"""LimitRanges that deny pods without a legacy resource."""

from collections.abc import Mapping
from typing import Any, Final

from neuron import names

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
