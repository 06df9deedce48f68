"""Look-ups of the claims and templates that a pod names: resources, valid names, and a rate limit per namespace.

Every pod may name objects that are not in a cache. Without a limit, a namespace that creates such pods could make the
webhook send requests all the time. The API server would throttle the webhook, and delay its writes.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from runtime.api_server import RESOURCE_GROUP, Resource

VERSION: Final = "v1"
RESOURCES: Final = {
    kind: Resource(RESOURCE_GROUP, VERSION, plural)
    for kind, plural in (("ResourceClaim", "resourceclaims"), ("ResourceClaimTemplate", "resourceclaimtemplates"))
}
MOST_LOOKUPS: Final = 16
"""Objects of one pod and kind that are requested, all in parallel."""
SECONDS: Final = 1.0
"""Time-out for all of them together."""

_LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
BURST: Final = 128
PER_SECOND: Final = 64.0
_MOST_NAMESPACES: Final = 4096


def can_exist(name: str) -> bool:
    """Whether an object can have this name (apimachinery IsDNS1123Subdomain). Other names are not put into a URL."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


class Lookups:
    """A token bucket of look-ups per namespace."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, namespace: str, wanted: int) -> int:
        """Take up to `wanted` tokens; returns how many look-ups are allowed now."""
        now = self._clock()
        left, since = self._buckets.pop(namespace, (float(BURST), now))
        left = min(BURST, left + (now - since) * PER_SECOND)
        given = min(wanted, int(left))
        self._buckets[namespace] = (left - given, now)
        if len(self._buckets) > _MOST_NAMESPACES:
            self._buckets.popitem(last=False)
        return given
