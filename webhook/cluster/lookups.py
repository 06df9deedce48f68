"""How often the API server is asked on behalf of one namespace.

Every pod may name objects that no cache has. A namespace that creates such pods all the time would have the webhook
ask all the time, and the API server count that against the webhook, whose own writes then wait.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BURST: Final = 128
PER_SECOND: Final = 64.0
_MOST_NAMESPACES: Final = 4096


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
