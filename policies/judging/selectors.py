"""Compiles and evaluates device selectors with the CEL engine, as `checks.claims` wants it; makes contexts with it."""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from msgspec import structs

from checks.claims.analysis import DeviceField, analyse, drivers
from checks.claims.device_index import (
    CompiledSelector,
    DeviceIndex,
    SelectorError,
    SelectorRuntimeError,
    SelectorSyntaxError,
    SelectorTimeError,
    SelectorTooCostlyError,
    SelectorTypeError,
    SelectorUnsupportedError,
)
from checks.claims.judging import ClaimContext
from checks.claims.selectors import ExpressionMemory
from cluster.store import Store
from conversion.asks.conversion_context import ConversionOptions
from kubecel.budget import SELECTOR_LIMITS, Budget, Clock, Deadline
from kubecel.compile import Cel, Program
from kubecel.devices import compile_selector, device_activation, matches
from kubecel.errors import (
    CelBudgetExceededError,
    CelCompileError,
    CelCostExceededError,
    CelError,
    CelRuntimeError,
    CelSizeExceededError,
    CelSyntaxError,
    CelTimeExceededError,
    CelUnsupportedError,
)
from kubecel.library import kubernetes
from kubecel.syntax import nodes as syntax
from neuron.findings import did_you_mean, short
from neuron.hardware.device_shapes import Value, Version, catalogue_shapes
from neuron.hardware.instances import Catalogue

_ON_ALL_DEVICES: Final = dataclasses.replace(SELECTOR_LIMITS, steps=10 * SELECTOR_LIMITS.call)
"""For one selector on all devices together. The limit for one device is that of Kubernetes."""
_PLAIN_FIELDS: Final = (DeviceField.DRIVER, DeviceField.MULTIPLE)
_TIME_IS_OVER: Final = "the selectors of this object take too long to check"


class DeviceSelectors:
    """A `SelectorEngine` for one object: compiling and evaluating all its selectors may take one second together.

    Sixteen devices and a few hundred selectors take milliseconds. An object that needs more than a second gets an
    error, so that it does not delay others. Not for use by two threads.

    Attributes:
        exceeded: set by a caller that went on without an answer, because the time was over.
    """

    def __init__(self, clock: Clock = time.monotonic, deadline: float | None = None, most: float = math.inf) -> None:
        """`deadline`: when `clock` shows it, the time is over; None: a second after the first selector.

        `most`: selectors that are compiled; after them, the time is over, too.
        """
        self._clock = clock
        self._deadline = deadline
        self._left = most
        self.exceeded = False

    def for_one_object(self, clock: Clock | None) -> "DeviceSelectors":
        """See `checks.claims.device_index.SelectorEngine`."""
        return DeviceSelectors() if clock is None else DeviceSelectors(clock)

    def compile(self, expression: str) -> CompiledSelector:
        """Compile one expression; see `checks.claims.device_index.SelectorEngine`."""
        _load()
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + 1.0
        self._left -= 1
        if now > self._deadline or self._left < 0:
            raise SelectorTimeError(_TIME_IS_OVER)
        found = _compiled.get(expression)
        if found is None:
            found = _compile(expression, Deadline(self._clock, self._deadline))
            _compiled.put(expression, found)
        if isinstance(found, SelectorError):
            raise found.with_traceback(None)  # Raising it again would add frames each time.
        return _DeviceSelector(found, self._clock, self._deadline)


_compiled: Final = ExpressionMemory["_Analysed | SelectorError"]()


@functools.cache
def _load() -> None:
    """Load the grammar before the deadline starts: loading takes longer than compiling most selectors."""
    compile_selector(Cel(SELECTOR_LIMITS, hint=did_you_mean), "true")


def _compile(expression: str, deadline: Deadline) -> "_Analysed | SelectorError":
    try:
        return _Analysed(compile_selector(Cel(SELECTOR_LIMITS, hint=did_you_mean), expression, deadline))
    except CelTimeExceededError:
        # Raised, not returned, so that it is not cached: the next object may have more time.
        raise SelectorTimeError(_TIME_IS_OVER) from None
    except CelUnsupportedError as error:
        return SelectorUnsupportedError(error.message, _position(error))
    except CelSyntaxError as error:
        return SelectorSyntaxError(error.message, _position(error))
    except CelCompileError as error:
        return SelectorTypeError(error.message, _position(error))
    except CelCostExceededError as error:
        return SelectorTooCostlyError(error.message, _position(error))
    except CelBudgetExceededError as error:
        # Our own limits: Kubernetes may evaluate it.
        return SelectorUnsupportedError(error.message, _position(error))
    except (ArithmeticError, RecursionError, ValueError) as error:
        # A number or a nesting that Python itself rejects. It must not make a review fail.
        return SelectorUnsupportedError(f"it cannot be read: {short(str(error))}")


def _position(error: CelError) -> str:
    return "" if error.offset is None else f" (line {error.line}, column {error.column})"


class _Analysed:
    """A program, and the attributes that it reads."""

    def __init__(self, program: Program) -> None:
        self.program = program
        analysis = analyse(program.syntax)
        read = [each for each in analysis.lookups if each.subject.field is DeviceField.ATTRIBUTES]
        self.attributes = frozenset(each.subject.qualified for each in read) if _is_static(program.syntax) else None
        amounts = [each for each in analysis.lookups if each.subject.field is DeviceField.CAPACITY]
        self.capacities = frozenset(each.subject.qualified for each in amounts)
        self.lookups = tuple([each for each in analysis.lookups if each.subject.name and not each.tests])
        self.uses = tuple([each for each in analysis.uses if each.subject.field is DeviceField.ATTRIBUTES])
        self.drivers = tuple(drivers(analysis))
        self.reads_sharing = _reads_sharing(program.syntax)


class _DeviceSelector:
    """A `CompiledSelector`. All its evaluations share one budget, and the deadline of its object."""

    def __init__(self, analysed: _Analysed, clock: Clock, deadline: float) -> None:
        self.source = analysed.program.source
        self.lookups = analysed.lookups
        self.uses = analysed.uses
        self.attributes = analysed.attributes
        self.capacities = analysed.capacities
        self.drivers = analysed.drivers
        self.reads_sharing = analysed.reads_sharing
        self._program = analysed.program
        self._clock = clock
        self._deadline = deadline
        seconds = max(0.0, min(_ON_ALL_DEVICES.seconds, deadline - clock()))
        self._hurried = seconds < _ON_ALL_DEVICES.seconds
        self._budget = Budget(clock, dataclasses.replace(_ON_ALL_DEVICES, seconds=seconds))

    def evaluate(
        self,
        driver: str,
        attributes: Mapping[str, Value | None],
        capacity: Mapping[str, str] | None = None,
        *,
        shared: bool = False,
    ) -> bool:
        """Whether a device satisfies it; see `checks.claims.device_index.CompiledSelector`."""
        if self._clock() > self._deadline:
            raise SelectorTimeError(_TIME_IS_OVER)
        before = self._budget.spent
        known = {name: _in_cel(value) for name, value in attributes.items()}
        reads_capacity = self.capacities or self.attributes is None
        activation = device_activation(
            driver, known, capacity if reads_capacity else None, allow_multiple_allocations=shared
        )
        try:
            return matches(self._program, activation, self._budget)
        except CelRuntimeError as error:
            raise SelectorRuntimeError(error.message, _position(error)) from None
        except CelSizeExceededError as error:
            raise SelectorUnsupportedError(error.message, _position(error)) from None
        except CelBudgetExceededError as error:
            # Only the cost on one device is an error of the selector: Kubernetes counts the same cost.
            if self._budget.spent - before > SELECTOR_LIMITS.call:
                raise SelectorTooCostlyError(error.message, _position(error)) from None
            if self._hurried or self._clock() > self._deadline:
                raise SelectorTimeError(_TIME_IS_OVER) from None
            raise SelectorUnsupportedError("evaluating it on all known devices takes too long") from None


def _in_cel(value: Value | None) -> object:
    if isinstance(value, tuple):
        return [_in_cel(each) for each in value]
    if not isinstance(value, Version):
        return value
    try:
        return kubernetes.parse_semver(value.text)
    except CelRuntimeError:
        return value.text  # The API server admits no such value.


# --- whether the analysis sees everything -------------------------------------------------------------------------


def _is_static(node: syntax.Node) -> bool:
    """Whether a selector reads attributes and capacities only by names that are literals in the source.

    A selector that iterates over all of them, binds a domain to a variable or computes a name can read others.
    """
    match node:
        case syntax.Ident(name="device"):
            return False
        case syntax.Binary(operator="in", left=syntax.Literal()) if len(list(_steps(node.right))) == 3:
            return True
        case syntax.Select() | syntax.Index():
            steps = list(_steps(node))
            if len(steps) == 4 or (len(steps) == 2 and steps[1] in _PLAIN_FIELDS):
                return True
    return all(map(_is_static, syntax.children(node)))


def _reads_sharing(node: syntax.Node) -> bool:
    return list(_steps(node)) == ["device", DeviceField.MULTIPLE] or any(map(_reads_sharing, syntax.children(node)))


def _steps(node: syntax.Node) -> Iterator[str]:
    """The names in `device.attributes["domain"].name`; nothing for any other node."""
    match node:
        case syntax.Ident(name="device"):
            yield "device"
        case (
            syntax.Select(operand=operand, field=str(name))
            | syntax.Index(operand=operand, key=syntax.Literal(value=str(name)))
        ):
            steps = list(_steps(operand))
            if steps:
                yield from (*steps, name)


class ClaimPolicies(Protocol):
    """What policies set for every claim: a claim does not name its policy."""

    @property
    def unconnected(self) -> bool:
        """Whether counts that cannot be connected are allowed."""

    @property
    def network_classes(self) -> frozenset[str]:
        """DeviceClasses of EFA interfaces."""


def claim_context(
    options: ConversionOptions, catalogue: Catalogue, cluster: Store, policies: ClaimPolicies | None = None
) -> ClaimContext:
    """Build the context.

    Args:
        catalogue: instance types, completed by ResourceSlices.
        policies: those in force; None without policies.
    """
    classes = cluster.device_classes()
    context = ClaimContext(
        catalogue,
        DeviceIndex([*catalogue_shapes(catalogue), *cluster.device_shapes()], cluster.observations()),
        DeviceSelectors(),
        classes or {},
        classes is not None,
        options.device_class,
        memory=ExpressionMemory(),
    )
    if policies is None:
        return context
    return structs.replace(context, unconnected=policies.unconnected, network_classes=policies.network_classes)
