"""Can one "device" of a request be a whole UltraServer node?

The driver publishes such a node as one device of resourceType `neuron_node` beside its single devices, so a request
for one "device" can get all devices of a node. `policies.selectors.whole_nodes` judges each selector; this module
bounds the time, and remembers the answers.
"""

import threading
from collections.abc import Sequence
from typing import Final

from conversion.claims import selectors
from kubecel.budget import Clock
from kubecel.compile import parse
from kubecel.deadlines import Deadline
from kubecel.errors import CelError, CelTimeExceededError
from policies.selectors.whole_nodes import NodeDevice, WholeNodeFindings, judge
from runtime.remembered import Remembered

_LONGEST: Final = 1024
"""Longest selector that is parsed, in characters: exclusions are short."""
_MOST: Final = 8
"""Selectors of one request that are parsed."""
_UNKNOWN: Final = WholeNodeFindings(matches=True, tells_apart=True)
"""Findings for a selector that was not parsed."""
_SINGLE: Final = WholeNodeFindings(matches=False, tells_apart=True)
_REMEMBERED: Final = 1024 * 1024
"""Bytes of remembered answers."""
_BYTES_PER_CHARACTER: Final = 4


class ParsingTime(Deadline):
    """The time in which the selectors of one object are parsed.

    Attributes:
        exceeded: whether a selector was not parsed because the time was over.
    """

    __slots__ = ("_selectors", "exceeded")

    def __init__(self, clock: Clock, end: float, selectors: int | None = None) -> None:
        """Parse until `end`, and at most so many selectors."""
        super().__init__(clock, end)
        self._selectors = selectors
        self.exceeded = False

    def another(self) -> bool:
        """Whether one more selector may be parsed."""
        if self._selectors is not None:
            self._selectors -= 1
        self.exceeded = (self._selectors is not None and self._selectors < 0) or not self.left
        return not self.exceeded


class _Answers:
    """Answers by selector, counted in bytes. The event loop and the lane share them, so they have a lock."""

    def __init__(self) -> None:
        self._known: Remembered[tuple[str, NodeDevice], WholeNodeFindings] = Remembered(_REMEMBERED)
        self._lock = threading.Lock()

    def get(self, key: tuple[str, NodeDevice]) -> WholeNodeFindings | None:
        with self._lock:
            return self._known.get(key)

    def put(self, key: tuple[str, NodeDevice], found: WholeNodeFindings) -> None:
        with self._lock:
            self._known.put(key, found, _BYTES_PER_CHARACTER * len(key[0]))


_answers: Final = _Answers()


def can_be_whole_node(
    expressions: Sequence[str], device: NodeDevice, time: ParsingTime | None = None, *, published: bool
) -> bool:
    """Whether a device that satisfies all these selectors can be a whole node; True in doubt.

    Args:
        expressions: CEL selectors of one request and of its DeviceClass.
        device: what is known about whole nodes.
        time: bounds the parsing; None: not bounded.
        published: whether the cluster has whole nodes. If not, selectors that cannot tell a whole node from a single
            device make no request for one.

    Raises:
        CelTimeExceededError: the time was over before the answer was known.
    """
    tells_apart = published or len(expressions) > _MOST
    for expression in expressions[:_MOST]:
        found = _findings(expression, device, time)
        if not found.matches:
            return False
        tells_apart = tells_apart or found.tells_apart
    return tells_apart


def _findings(expression: str, device: NodeDevice, time: ParsingTime | None) -> WholeNodeFindings:
    if selectors.selects_single_devices(expression):
        return _SINGLE
    if len(expression) > _LONGEST:
        return _UNKNOWN
    key = (expression, device)
    known = _answers.get(key)
    if known is None:
        known = _parsed(expression, device, time)
        _answers.put(key, known)
    return known


def _parsed(expression: str, device: NodeDevice, time: ParsingTime | None) -> WholeNodeFindings:
    if time is not None and not time.another():
        raise CelTimeExceededError("reading the selectors takes too long")
    try:
        return judge(parse(expression, deadline=time), device)
    except CelTimeExceededError:
        if time is not None:
            time.exceeded = True
        raise  # The answer is not remembered: the next evaluation may have more time.
    except CelError:
        return _UNKNOWN
