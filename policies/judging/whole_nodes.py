"""Can one "device" of a request be a whole UltraServer node?

The driver publishes such a node as one device of resourceType `neuron_node` beside its single devices, so a request
for one "device" can get all devices of a node. Selectors are evaluated on the whole nodes of the catalogue and of the
cluster, within a time, and the answers are remembered.
"""

import dataclasses
import functools
import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from checks.claims.device_index import CompiledSelector, DeviceIndex, SelectorError, SelectorTimeError
from conversion.claims import selectors
from kubecel.budget import Clock
from neuron import names
from neuron.hardware.device_shapes import DeviceShape, catalogue_shapes, qualified
from neuron.hardware.instances import Catalogue
from policies.selectors.engine import DeviceSelectors
from runtime.remembered import Remembered

_LONGEST: Final = 1024
"""Longest selector that is evaluated, in characters: exclusions are short."""
_MOST: Final = 8
"""Selectors of one request that are evaluated."""
_REMEMBERED: Final = 1024 * 1024
"""Bytes of remembered answers."""
_BYTES_PER_CHARACTER: Final = 4
_ALIKE: Final = frozenset(
    map(
        qualified,
        (
            *(names.ATTRIBUTE_INSTANCE_TYPE, "neuronDriverVersion", "draDriverVersion", "capacityBlockId"),
            *(f"networkNodeLayer{layer}" for layer in (1, 2, 3)),
        ),
    )
)
"""Attributes that are equal for a whole node and for its single devices."""

_Answer: TypeAlias = tuple[int, bool]
"""The whole nodes that a selector matches, as a mask, and whether it can tell them from their single devices."""


class ParsingTime:
    """The time in which the selectors of one object are compiled and evaluated for the first time.

    Attributes:
        exceeded: whether a selector was not evaluated because the time was over.
    """

    def __init__(self, clock: Clock, end: float, selectors: float = math.inf) -> None:
        """Evaluate until `end`, and at most so many selectors."""
        self._engine = DeviceSelectors(clock, end)
        self._selectors = selectors
        self.exceeded = False

    def compile(self, expression: str) -> CompiledSelector:
        """Compile a selector.

        Raises:
            SelectorTimeError: the time is over.
            SelectorError: it cannot be compiled.
        """
        self._selectors -= 1
        if self._selectors < 0:
            raise SelectorTimeError("reading the selectors takes too long")
        return self._engine.compile(expression)


class WholeNodes:
    """The whole nodes that a request may get. Threads may share it."""

    def __init__(self, catalogue: Catalogue, published: Iterable[DeviceShape] = ()) -> None:
        """`published`: the whole nodes that slices show."""
        self._catalogue = catalogue
        self._shapes = tuple(published)
        self.published: Final = bool(self._shapes)
        """Whether the cluster has whole nodes. If not, selectors that cannot tell a whole node from a single device
        make no request for one."""
        self._known: Remembered[str, _Answer] = Remembered(_REMEMBERED)
        self._lock = threading.Lock()

    @functools.cached_property
    def _index(self) -> DeviceIndex:
        known = Catalogue(entry for entry in self._catalogue if entry.ultraserver_nodes)
        nodes = [each for each in catalogue_shapes(known) if each.resource_type == names.RESOURCE_TYPE_NODE]
        # A node may lack each attribute that varies: a selector can count them.
        bare = [dataclasses.replace(each, varying={}) for each in nodes]
        return DeviceIndex([*nodes, *bare, *self._shapes])

    def can_match(self, expressions: Sequence[str], within: ParsingTime | None = None) -> bool:
        """Whether a device that satisfies all these selectors can be a whole node; True in doubt.

        Args:
            expressions: CEL selectors of one request and of its DeviceClass.
            within: bounds the time; None: not bounded.

        Raises:
            SelectorTimeError: the time was over before the answer was known.
        """
        if not expressions:
            return self.published
        tells_apart = self.published or len(expressions) > _MOST
        alive = self._index.everything
        for expression in expressions[:_MOST]:
            matched, tells = self._answer(expression, within)
            alive &= matched
            tells_apart = tells_apart or tells
        return bool(alive) and tells_apart

    def _answer(self, expression: str, within: ParsingTime | None) -> _Answer:
        if selectors.selects_single_devices(expression):
            return 0, True
        if len(expression) > _LONGEST:
            return self._index.everything, True
        with self._lock:
            known = self._known.get(expression)
        if known is None:
            known = self._evaluated(expression, within or ParsingTime(time.monotonic, math.inf))
            with self._lock:
                self._known.put(expression, known, _BYTES_PER_CHARACTER * len(expression))
        return known

    def _evaluated(self, expression: str, within: ParsingTime) -> _Answer:
        try:
            compiled = within.compile(expression)
            return self._index.match(compiled).matched, _tells_apart(compiled)
        except SelectorTimeError:
            within.exceeded = True
            raise  # The answer is not remembered: the next evaluation may have more time.
        except SelectorError:
            return self._index.everything, True


def _tells_apart(selector: CompiledSelector) -> bool:
    """Whether the result on a whole node can differ from that on its single devices."""
    read = selector.attributes
    return read is None or not read <= _ALIKE or bool(selector.capacities) or selector.reads_sharing


@functools.lru_cache(maxsize=4)
def of_catalogue(catalogue: Catalogue) -> WholeNodes:
    """The whole nodes of a catalogue, in a cluster that publishes none."""
    return WholeNodes(catalogue)
