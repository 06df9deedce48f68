"""Looking up the claims and templates that a pod names: where they are, which names can exist, how often to ask.

Every pod may name objects that no cache has. A namespace that creates such pods all the time would have the webhook
ask all the time, and the API server count that against the webhook, whose own writes then wait.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from webhook.cluster.api import RESOURCE_GROUP, Resource

VERSION: Final = "v1"
RESOURCES: Final = {
    kind: Resource(RESOURCE_GROUP, VERSION, plural)
    for kind, plural in (("ResourceClaim", "resourceclaims"), ("ResourceClaimTemplate", "resourceclaimtemplates"))
}
MOST_LOOKUPS: Final = 16
"""Objects of one pod and kind that the API server is asked about, all at the same time."""
SECONDS: Final = 1.0
"""For all of them together."""

_LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
BURST: Final = 128
PER_SECOND: Final = 64.0
_MOST_NAMESPACES: Final = 4096


def can_exist(name: str) -> bool:
    """Whether an object can have this name (apimachinery IsDNS1123Subdomain). No other name may be part of a URL."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


class Lookups:
    """A bucket of look-ups for each namespace."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, namespace: str, wanted: int) -> int:
        """How many of the wanted look-ups may be done now."""
        now = self._clock()
        left, since = self._buckets.pop(namespace, (float(BURST), now))
        left = min(BURST, left + (now - since) * PER_SECOND)
        given = min(wanted, int(left))
        self._buckets[namespace] = (left - given, now)
        if len(self._buckets) > _MOST_NAMESPACES:
            self._buckets.popitem(last=False)
        return given
