"""Compiling loops (`all`, `map` and others), `cel.bind`, `optMap` and `optFlatMap`."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from kubecel import types
from kubecel.closures.access import innermost, located
from kubecel.closures.aggregates import LIST_COST, insert, sort
from kubecel.closures.compiler import BUDGET, Code, Compiler, Frame, Pending, Run, compiles
from kubecel.closures.operators import CONDITIONAL, check_bool, not_bool
from kubecel.errors import CelRuntimeError, CelTypeError
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Macro
from kubecel.types import BOOL, DYN, INT, STRING, Type
from kubecel.values import (
    NONE,
    Optional,
    is_list,
    keys_of,
    name_of,
    some,
    value_of_key,
)

Rounds = Callable[[Frame], Iterator[None]]
"""Iterates over the rounds of a loop: sets the variables in the frame and charges the round."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Loop:
    """A comprehension with its parts compiled.

    Attributes:
        rounds: the rounds for which the condition is true.
        slots: one or two slots, of the loop's variables.
        operand: type of the list or map.
        types: of the loop's variables.
        weight: cost of a round; without its body if there is a condition.
        start: cost of the list or map.
    """

    compiler: Compiler
    node: syntax.Comprehension
    rounds: Rounds
    slots: list[int]
    operand: Type
    types: tuple[Type, ...]
    body: Code
    weight: int
    start: int

    @property
    def name(self) -> str:
        """The macro, for messages."""
        return f"'{self.node.macro.value}'"


@compiles(syntax.Comprehension)
def _comprehension(compiler: Compiler, node: syntax.Comprehension) -> Code:
    operand = compiler.compile(node.operand)
    variables = _element_types(node, compiler.settled(operand.type))
    compiler.enter_loop(node)
    declared = dict(zip(node.variables, variables, strict=True))
    # The condition first, as in cel-go: it can settle the types of the variables that the body uses.
    parts = (node.body,) if node.condition is None else (node.condition, node.body)
    slots, (*conditions, body) = compiler.within(declared, *parts)
    compiler.leave_loop()
    if node.macro in _TESTING:
        check_bool(compiler, body, f"'{node.macro.value}'", node.body)
    round_cost = _ROUND[node.macro] + body.cost - (LIST_COST if node.macro in _LISTING and body.literal else 0)
    if node.condition is None:
        rounds = _rounds(operand.run, slots, round_cost, node)
    else:
        check_bool(compiler, conditions[0], f"'{node.macro.value}'", node.condition)
        rounds = _rounds(operand.run, slots, conditions[0].cost, node)
        rounds = _selected(rounds, conditions[0].run, round_cost, f"'{node.macro.value}'", node.condition.offset)
    loop = _Loop(compiler, node, rounds, slots, operand.type, variables, body, round_cost, operand.cost)
    code = _BUILDERS[node.macro](loop)
    # The result of these is a bool: it takes no memory. Libraries of policies repeat them.
    is_bool = node.macro in (Macro.ALL, Macro.EXISTS, Macro.EXISTS_ONE)
    text = compiler.shared_text(node) if is_bool else ""
    return dataclasses.replace(code, run=_remembered(code.run, text)) if text else code


_TESTING: Final = (Macro.ALL, Macro.EXISTS, Macro.EXISTS_ONE, Macro.FILTER)


def _remembered(run: Run, text: str) -> Run:
    """The loop, evaluated once for all expressions with the same `Budget.results`. Each is charged its cost."""

    def loop(frame: Frame) -> bool:
        budget = frame[BUDGET]
        results = budget.results
        if results is None:
            return bool(run(frame))
        known = results.get(text)
        if known is not None:
            value, cost = known
            budget.spend(cost)
            return bool(value)
        before = budget.left
        found = bool(run(frame))
        results[text] = found, before - budget.left
        return found

    return loop


def _element_types(node: syntax.Comprehension, operand: Type) -> tuple[Type, ...]:
    """Types of the loop's variables.

    Raises:
        CelTypeError: the operand cannot be looped over.
    """
    if operand.fields is not None:
        found: tuple[Type, Type] = (STRING, DYN)
    elif operand == DYN:
        found = (DYN, DYN)
    elif operand.name == "list":
        found = (INT, operand.parameters[0])
    elif operand.name == "map":
        found = (operand.parameters[0], operand.parameters[1])
    else:
        raise CelTypeError(f"'{node.macro.value}' loops over a list or a map, not over {operand}", node.offset)
    if node.macro is Macro.SORT_BY and operand.name == "map":
        raise CelTypeError(f"'sortBy' sorts a list, not {operand}", node.offset)
    if len(node.variables) > 1:
        return found
    return (found[1],) if operand.name == "list" else (found[0],)


_ROUND: Final[dict[Macro, int]] = {
    Macro.ALL: 3,
    Macro.EXISTS: 4,
    Macro.EXISTS_ONE: 0,
    Macro.FILTER: 0,
    Macro.MAP: 2 + LIST_COST,
    Macro.TRANSFORM_LIST: 2 + LIST_COST,
    Macro.TRANSFORM_MAP: 3,
    Macro.TRANSFORM_MAP_ENTRY: 2,
    Macro.SORT_BY: 2 + LIST_COST,
}
"""Cost of a round without its body: the reads and calls in every round of cel-go's expansion of the macro.

`all(x, p)` is a loop while `@not_strictly_false(accu)` (2) with the step `accu && p` (1). `map(x, t)` has the step
`accu + [t]`: a variable, a list and a call."""
_LISTING: Final = (Macro.MAP, Macro.TRANSFORM_LIST, Macro.SORT_BY)
"""Macros with the step `accu + [t]`: if `t` is a literal, so is the list, and it costs nothing."""
_CHOSEN: Final = {Macro.EXISTS_ONE: 2, Macro.FILTER: 3 + LIST_COST}
"""Additional cost of a round if its body is true: `accu + 1`, `accu + [x]`."""
_DECIDED: Final = {Macro.ALL: 2, Macro.EXISTS: 3}
"""Cost of the check that ends a loop early, before a further element."""


def _rounds(base: Run, slots: list[int], weight: int, node: syntax.Comprehension) -> Rounds:
    offset, name, sorts = node.offset, node.macro.value, node.macro is Macro.SORT_BY

    def fail(value: object) -> CelRuntimeError:
        taken = "a list" if sorts else "a list or a map"
        return CelRuntimeError(f"'{name}' loops over {taken}, not over {name_of(value)}", offset)

    def one(frame: Frame) -> Iterator[None]:
        value = base(frame)
        spend, slot = frame[BUDGET].spend, slots[0]
        if type(value) is not list:
            if isinstance(value, Mapping) and not sorts:
                value = keys_of(value)
            elif not is_list(value):
                raise fail(value)
        for frame[slot] in value:
            spend(weight)
            yield

    def two(frame: Frame) -> Iterator[None]:
        value = base(frame)
        spend, (first, second) = frame[BUDGET].spend, slots
        pairs: Iterable[tuple[object, object]]
        if isinstance(value, Mapping):
            pairs = ((value_of_key(key), item) for key, item in value.items())
        elif is_list(value):
            pairs = enumerate(value)
        else:
            raise fail(value)
        for frame[first], frame[second] in pairs:
            spend(weight)
            yield

    return one if len(slots) == 1 else two


def _selected(rounds: Rounds, test: Run, cost: int, what: str, offset: int) -> Rounds:
    """The rounds for which `test` is true; `cost` is charged for them only."""

    def selected(frame: Frame) -> Iterator[None]:
        for _ in rounds(frame):
            if _is_true(test(frame), what, offset):
                frame[BUDGET].left -= cost
                yield

    return selected


def _is_true(value: object, what: str, offset: int) -> bool:
    if value is True:
        return True
    if value is False:
        return False
    raise not_bool(value, what, offset)


# --- all, exists, exists_one ------------------------------------------------------------------------------


def _quantifier(loop: _Loop, deciding: bool) -> Code:
    """`all` (false decides) and `exists` (true decides). An error is raised only if no round decides."""
    rounds, run, neutral = loop.rounds, loop.body.run, not deciding
    what, offset = loop.name, loop.node.body.offset
    # The next round is begun to see if there is one, and costs the check only.
    saved = loop.weight - _DECIDED[loop.node.macro]

    def quantify(frame: Frame) -> bool:
        failure: CelRuntimeError | None = None
        remaining = rounds(frame)
        for _ in remaining:
            try:
                value = run(frame)
            except CelRuntimeError as error:
                failure = failure or error
                continue
            if value is deciding:
                frame[BUDGET].left += saved
                if next(remaining, neutral) is not None:
                    frame[BUDGET].left -= saved
                return not neutral
            if value is not neutral:
                failure = failure or not_bool(value, what, offset)
        if failure is not None:
            raise failure
        return neutral

    return Code(quantify, BOOL, cost=loop.start + 1)


def _exists_one(loop: _Loop) -> Code:
    rounds, run, what, offset = loop.rounds, loop.body.run, loop.name, loop.node.body.offset

    chosen = _CHOSEN[Macro.EXISTS_ONE]

    def count(frame: Frame) -> bool:
        found = 0
        for _ in rounds(frame):
            if _is_true(run(frame), what, offset):
                frame[BUDGET].left -= chosen
                found += 1
        return found == 1

    return Code(count, BOOL, cost=loop.start + 2)


# --- macros that build ------------------------------------------------------------------------------------


def _map(loop: _Loop) -> Code:
    rounds, run = loop.rounds, loop.body.run

    def collect(frame: Frame) -> list[object]:
        items = [run(frame) for _ in rounds(frame)]
        frame[BUDGET].items(len(items))
        return items

    return Code(collect, loop.compiler.types.resolve(types.list_of(loop.body.type)), cost=loop.start + 1)


def _filter(loop: _Loop) -> Code:
    rounds, run, slot = loop.rounds, loop.body.run, loop.slots[0]
    what, offset = loop.name, loop.node.body.offset

    chosen = _CHOSEN[Macro.FILTER]

    def keep(frame: Frame) -> list[object]:
        kept = []
        for _ in rounds(frame):
            if _is_true(run(frame), what, offset):
                frame[BUDGET].left -= chosen
                kept.append(frame[slot])
        frame[BUDGET].items(len(kept))
        return kept

    return Code(keep, loop.compiler.types.resolve(types.list_of(loop.types[0])), cost=loop.start + 1)


def _transform_map(loop: _Loop) -> Code:
    rounds, run, slot, offset = loop.rounds, loop.body.run, loop.slots[0], loop.node.offset

    def collect(frame: Frame) -> dict[object, object]:
        made: dict[object, object] = {}
        for _ in rounds(frame):
            insert(made, frame[slot], run(frame), offset)
        frame[BUDGET].items(len(made))
        return made

    described = loop.compiler.types.resolve(types.map_of(loop.types[0], loop.body.type))
    return Code(collect, described, cost=loop.start + 1)


def _transform_map_entry(loop: _Loop) -> Code:
    unifier = loop.compiler.types
    described = types.map_of(unifier.fresh(), unifier.fresh())
    if not unifier.assignable(loop.body.type, described):
        raise CelTypeError(f"{loop.name} requires a map, not {loop.body.type}", loop.node.body.offset)
    rounds, run, offset = loop.rounds, loop.body.run, loop.node.body.offset

    def collect(frame: Frame) -> dict[object, object]:
        made: dict[object, object] = {}
        for _ in rounds(frame):
            entries = run(frame)
            if not isinstance(entries, Mapping):
                raise CelRuntimeError(f"{loop.name} requires a map, not {name_of(entries)}", offset)
            frame[BUDGET].items(len(made) + len(entries), added=len(entries))
            for key, value in entries.items():
                insert(made, value_of_key(key), value, offset)
        return made

    return Code(collect, unifier.resolve(described), cost=loop.start + 1)


SORT_BY: Final = tuple((types.list_of(types.A), types.list_of(key), types.list_of(types.A)) for key in types.COMPARABLE)
"""Signatures of `sortBy`: the list, its keys, the result."""


def _sort_by(loop: _Loop) -> Code:
    found, result = loop.compiler.types.result(SORT_BY, (loop.operand, types.list_of(loop.body.type)))
    if not found:
        raise CelTypeError(f"{loop.name} cannot order by {loop.body.type}", loop.node.body.offset)
    rounds, run, slot, offset = loop.rounds, loop.body.run, loop.slots[0], loop.node.offset
    known = len(found) == 1

    def collect(frame: Frame) -> list[object]:
        pairs = [(run(frame), frame[slot]) for _ in rounds(frame)]
        budget = frame[BUDGET]
        try:
            with contextlib.nullcontext() if known else budget.free():
                return sort(budget, [item for _, item in pairs], [key for key, _ in pairs])
        except CelRuntimeError as error:
            raise located(error, offset) from None

    # cel-go: cel.bind(input, <operand>, input.@sortByAssociatedKeys(input.map(x, <key>)))
    return Code(collect, result, cost=loop.start + 4)


_BUILDERS: Final[dict[Macro, Callable[[_Loop], Code]]] = {
    Macro.ALL: functools.partial(_quantifier, deciding=False),
    Macro.EXISTS: functools.partial(_quantifier, deciding=True),
    Macro.EXISTS_ONE: _exists_one,
    Macro.MAP: _map,
    Macro.FILTER: _filter,
    Macro.TRANSFORM_LIST: _map,
    Macro.TRANSFORM_MAP: _transform_map,
    Macro.TRANSFORM_MAP_ENTRY: _transform_map_entry,
    Macro.SORT_BY: _sort_by,
}


# --- bindings ---------------------------------------------------------------------------------------------


@compiles(syntax.Bind)
def _bind(compiler: Compiler, node: syntax.Bind) -> Code:
    value = compiler.compile(node.value)
    (slot,), (body,) = compiler.within({node.variable: value.type}, node.body, pending=True)
    # As in cel-go, the value is computed when it is read first, so an error of an unused value is ignored.
    pending, run = Pending(value.run, value.cost), body.run

    def bind(frame: Frame) -> object:
        frame[slot] = pending
        return run(frame)

    return Code(bind, body.type, cost=body.cost)


VALUE: Final = ((types.optional_of(types.A), types.A),)
"""Signature of the access to the value of an optional, for `optMap` and `optFlatMap`."""


@compiles(syntax.OptionalMap)
def _optional_map(compiler: Compiler, node: syntax.OptionalMap) -> Code:
    name = "'optFlatMap'" if node.flat else "'optMap'"
    operand = compiler.compile(node.operand)
    found, inner = compiler.types.result(VALUE, (operand.type,))
    if not found:
        raise CelTypeError(f"{name} requires an optional, not {operand.type}", node.offset)
    (slot,), (body,) = compiler.within({node.variable: inner}, node.body, pending=True)
    # cel-go: <operand>.hasValue() ? optional.of(<a binding of <operand>.value()>) : optional.none()
    whole = body.type if node.flat else types.optional_of(body.type)
    found, result = compiler.types.result(CONDITIONAL, (whole, types.optional_of(compiler.types.fresh())))
    if not found:
        raise CelTypeError(f"{name} requires an expression that returns an optional, not {body.type}", node.body.offset)
    base, run, flat, offset = operand.run, body.run, node.flat, node.offset
    present, again = body.cost + (0 if flat else 1), operand.cost + 1

    def apply(frame: Frame) -> object:
        budget = frame[BUDGET]
        before = budget.left + budget.once
        value = base(frame)
        if not isinstance(value, Optional):
            raise CelRuntimeError(f"{name} requires an optional, not {name_of(value)}", offset)
        if not value.present:
            budget.left -= 1
            return NONE
        # The macro copies the operand: it is charged again when the variable is read first, except for variables that
        # the operand read first.
        frame[slot] = Pending(lambda _: value.value, again + before - budget.left - budget.once)
        budget.left -= present
        found = run(frame)
        made = found if flat else some(found)
        return innermost(made) if type(found) is Optional else made

    return Code(apply, result, cost=operand.cost + 1, lookup=True)
