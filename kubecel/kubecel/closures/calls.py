"""Compiling calls of functions and methods."""

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any, Final

from kubecel import types
from kubecel.budget import Budget
from kubecel.checking import Dispatcher, LiteralCheck, Overload, matching
from kubecel.closures.access import located
from kubecel.closures.compiler import BUDGET, Code, Compiler, Frame, Run, compiles, folded
from kubecel.closures.operators import CALL_COST
from kubecel.errors import CelBudgetExceededError, CelRuntimeError, CelTypeError, CelUnsupportedError
from kubecel.syntax import nodes as syntax
from kubecel.types import A
from kubecel.values import Optional, kind_of, no_overload

CLAUSE: Final = re.compile(r"%(?:(?P<literal>%)|(?:\.(?P<precision>[0-9]+))?(?P<verb>[a-zA-Z])?)")
"""A clause of the template of `format`; `%%` is a literal."""
_CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
"""cel-go common/overloads, IsTypeConversionFunction."""
_CHARGED_BY_SIGNATURE: Final = frozenset({"bytes", "string", "sort"})
"""Functions for which cel-go charges 1 if several signatures accept the static types of the arguments."""
_BY_VALUE: Final = frozenset({"size"})
"""Functions that cel-go calls by the type of the value, whatever the static type of the argument is."""
_OF_ELEMENTS: Final = frozenset({"isSorted", "sum", "min", "max"})
"""Methods of lists that have a signature for each type of elements."""
_OPTIONAL_ALTERNATIVES: Final = frozenset({"or", "orValue"})
OR: Final = ((types.optional_of(A), types.optional_of(A), types.optional_of(A)),)
OR_VALUE: Final = ((types.optional_of(A), A, A),)
"""Signatures of `optional.or(other)` and `optional.orValue(value)`."""


@compiles(syntax.Call)
def _call(compiler: Compiler, node: syntax.Call) -> Code:
    namespaced = _namespaced(compiler, node)
    if namespaced is not None:
        return _apply(compiler, node, namespaced, list(node.arguments))
    if node.target is None:
        candidates = compiler.library.find(node.function, method=False)
        if not candidates:
            raise _no_function(compiler, node, method=False)
        return _apply(compiler, node, candidates, list(node.arguments))
    if node.function in _OPTIONAL_ALTERNATIVES and len(node.arguments) == 1:
        return _alternative(compiler, node, node.target)
    candidates = compiler.library.find(node.function, method=True)
    if not candidates:
        raise _no_function(compiler, node, method=True)
    return _apply(compiler, node, candidates, [node.target, *node.arguments])


def _namespaced(compiler: Compiler, node: syntax.Call) -> tuple[Overload, ...] | None:
    """The signatures of a function with a namespace, such as `sets.contains`, which parses as a method call."""
    if isinstance(node.target, syntax.Ident):
        return compiler.library.find(f"{node.target.name}.{node.function}", method=False) or None
    return None


def _no_function(compiler: Compiler, node: syntax.Call, *, method: bool) -> CelUnsupportedError:
    name, what = node.function, "method" if method else "function"
    if isinstance(node.target, syntax.Ident) and compiler.lookup(node.target) is None:
        name, what, method = f"{node.target.name}.{name}", "function", False
    if compiler.library.find(node.function, method=not method) and node.target is None:
        return CelUnsupportedError(f"'{name}' is a method: write value.{name}(…)", node.offset)
    known = compiler.library.names(method=method)
    namespace, dot, _ = name.rpartition(".")
    hint = compiler.hint(name, [other for other in known if other.startswith(namespace + dot)])
    return CelUnsupportedError(f"there is no {what} '{name}' here.{hint}", node.offset)


def _apply(
    compiler: Compiler, node: syntax.Call, candidates: tuple[Overload, ...], arguments: list[syntax.Node]
) -> Code:
    code = _arguments(compiler, node, arguments, candidates[0].method)
    found, result = matching(compiler.types, candidates, tuple(argument.type for argument in code))
    name = candidates[0].name
    if not found:
        receiver, given = ("", code) if not candidates[0].method else (f"{code[0].type}.", code[1:])
        shown = ", ".join(str(argument.type) for argument in given)
        raise CelTypeError(f"'{name}' does not take {receiver}({shown})", node.offset)
    literal = name in _CONVERSIONS and all(argument.literal for argument in code)
    cost = 0 if literal else CALL_COST + sum(argument.cost for argument in code)
    called = found
    if name in _BY_VALUE:
        called = candidates
    elif len(found) > 1 and name in _CHARGED_BY_SIGNATURE:
        called = tuple(map(_uncharged, found))
    elif len(found) == 1:
        called = (_strict(found[0]),)
    run = _invocation(called, name, [argument.run for argument in code], node.offset)
    compiled = Code(run, result, cost=cost, literal=literal)
    if all(argument.is_constant for argument in code):
        compiled = _folded(compiler, compiled, node)
    if found[0].literal is not None:
        position, check = found[0].literal
        if not compiled.is_constant:
            _check_literal(compiler, position, check, code, node)
        if node.target is None and isinstance(arguments[0], syntax.Literal):
            # cel-go's validator checks the first argument of `matches`, which is the text in `matches(text, pattern)`.
            _check_literal(compiler, 0, check, code, node)
    return compiled


def _compiled(compiler: Compiler, arguments: list[syntax.Node], receives: bool) -> list[Code]:
    """The code of arguments; `receives`: the first is a receiver, whose type cel-go checks after the others."""
    if not receives:
        return [compiler.compile(argument) for argument in arguments]
    others = [compiler.compile(argument) for argument in arguments[1:]]
    return [compiler.compile(arguments[0]), *others]


def _arguments(compiler: Compiler, node: syntax.Call, arguments: list[syntax.Node], receives: bool) -> list[Code]:
    if node.function != "format":
        return _compiled(compiler, arguments, receives)
    # Only `format` takes a list of mixed types.
    outer, compiler.mixes_types = compiler.mixes_types, True
    try:
        code = _compiled(compiler, arguments, receives)
    finally:
        compiler.mixes_types = outer
    template, values = arguments[0], arguments[1:]
    if isinstance(template, syntax.Literal) and isinstance(template.value, str) and len(values) == 1:
        listed = values[0]
        if isinstance(listed, syntax.ListLiteral):
            compiler.at_end.append(functools.partial(_check_clauses, compiler, template.value, listed, node))
    return code


_INTEGERS: Final = frozenset({"int", "uint"})
_DOUBLES: Final = frozenset({"double", "string"})
_HEXADECIMAL: Final = _INTEGERS | {"string", "bytes"}
_WRITTEN: Final = frozenset({"list", "map", "double", "bool", "type", "null_type"}) | _HEXADECIMAL
_TAKEN: Final = {
    "s": _WRITTEN | {types.TIMESTAMP.name, types.DURATION.name},
    "d": _INTEGERS,
    "f": _DOUBLES,
    "e": _DOUBLES,
    "b": _INTEGERS | {"bool"},
    "x": _HEXADECIMAL,
    "X": _HEXADECIMAL,
    "o": _INTEGERS,
}
"""The static types that each clause of format takes: cel-go ext/formatting.go, stringFormatChecker."""


def _check_clauses(compiler: Compiler, template: str, values: syntax.ListLiteral, node: syntax.Call) -> None:
    """Refuse a format with wrong clauses, or whose clauses do not fit the static types of the values."""
    clauses = [match for match in CLAUSE.finditer(template) if not match["literal"]]
    if len(clauses) != len(values.elements):
        raise CelTypeError(f"format has {len(clauses)} clauses and {len(values.elements)} values", node.offset)
    for clause, element in zip(clauses, values.elements, strict=True):
        taken = _TAKEN.get(clause["verb"] or "")
        if taken is None:
            raise CelTypeError(
                f"'{clause[0]}' is not a clause of format: write one of %{', %'.join(_TAKEN)}", node.offset
            )
        parts = _nested_literals(element.value) if clause["verb"] == "s" else (element.value,)
        for part in parts:
            described = compiler.type_of(part)
            if not types.is_open(described) and described.fields is None and described.name not in taken:
                raise CelTypeError(f"%{clause['verb']} of format does not take a {described.name}", part.offset)


def _nested_literals(node: syntax.Node) -> Iterator[syntax.Node]:
    """The node, and the parts of a literal list or map."""
    yield node
    if isinstance(node, syntax.ListLiteral | syntax.MapLiteral):
        for part in syntax.children(node):
            yield from _nested_literals(part)


def _folded(compiler: Compiler, code: Code, node: syntax.Call) -> Code:
    try:
        return folded(code, compiler)
    except CelRuntimeError as error:
        if code.literal:
            raise CelTypeError(error.message, node.offset) from None
        return code


def _check_literal(compiler: Compiler, index: int, check: LiteralCheck, code: list[Code], node: syntax.Call) -> None:
    """Refuse a constant argument with which every call fails, such as an invalid regular expression."""
    text = code[index].constant
    if code[index].literal and isinstance(text, str) and compiler.unfolded is None:
        try:
            check(compiler.folding, text)
        except CelBudgetExceededError as error:
            compiler.unfolded = error
        except CelRuntimeError as error:
            raise CelTypeError(error.message, node.offset) from None


def _strict(overload: Overload) -> Overload:
    """The overload; a list must have elements of the signature's type: cel-go checks the first one.

    The checker takes the first signature for elements whose type is not known: `[].max()` is an int.
    """
    if overload.name not in _OF_ELEMENTS or overload.parameters[0].name != "list":
        return overload
    call, element = overload.call, overload.parameters[0].parameters[0].name

    def checked(budget: Budget, items: Any, *arguments: object) -> object:
        if items and kind_of(items[0]).name != element:
            raise no_overload(overload.name, items, *arguments)
        return call(budget, items, *arguments)

    return dataclasses.replace(overload, call=checked)


def _uncharged(overload: Overload) -> Overload:
    """The overload without the cost of what it reads."""
    if not overload.budgeted:
        return overload
    call = overload.call

    def free(budget: Budget, *arguments: object) -> object:
        with budget.free():
            return call(budget, *arguments)

    return dataclasses.replace(overload, call=free)


def _invocation(found: tuple[Overload, ...], name: str, runs: list[Run], offset: int) -> Run:
    dispatcher = Dispatcher(name, found)
    builder = _BUDGETED if dispatcher.budgeted else _PLAIN
    return builder.get(len(runs), _many)(dispatcher, runs, offset)


def _none(dispatcher: Dispatcher, _: list[Run], __: int) -> Run:
    implementation = dispatcher.resolve()
    return lambda _: implementation()


def _one(dispatcher: Dispatcher, runs: list[Run], offset: int) -> Run:
    table, resolve, (first,) = dispatcher.table, dispatcher.resolve, runs

    def invoke(frame: Frame) -> object:
        a = first(frame)
        try:
            return (table.get(type(a)) or resolve(a))(a)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return invoke


def _two(dispatcher: Dispatcher, runs: list[Run], offset: int) -> Run:
    table, resolve, (first, second) = dispatcher.table, dispatcher.resolve, runs

    def invoke(frame: Frame) -> object:
        a, b = first(frame), second(frame)
        try:
            return (table.get((type(a), type(b))) or resolve(a, b))(a, b)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return invoke


def _one_budgeted(dispatcher: Dispatcher, runs: list[Run], offset: int) -> Run:
    table, resolve, (first,) = dispatcher.table, dispatcher.resolve, runs

    def invoke(frame: Frame) -> Any:
        a = first(frame)
        try:
            return (table.get(type(a)) or resolve(a))(frame[BUDGET], a)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return invoke


def _two_budgeted(dispatcher: Dispatcher, runs: list[Run], offset: int) -> Run:
    table, resolve, (first, second) = dispatcher.table, dispatcher.resolve, runs

    def invoke(frame: Frame) -> Any:
        a, b = first(frame), second(frame)
        try:
            return (table.get((type(a), type(b))) or resolve(a, b))(frame[BUDGET], a, b)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return invoke


def _many(dispatcher: Dispatcher, runs: list[Run], offset: int) -> Run:
    table, resolve, budgeted = dispatcher.table, dispatcher.resolve, dispatcher.budgeted

    def invoke(frame: Frame) -> object:
        values = [run(frame) for run in runs]
        try:
            implementation = table.get(tuple(map(type, values))) or resolve(*values)
            return implementation(frame[BUDGET], *values) if budgeted else implementation(*values)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return invoke


_PLAIN: Final = {0: _none, 1: _one, 2: _two}
_BUDGETED: Final = {1: _one_budgeted, 2: _two_budgeted}


def _alternative(compiler: Compiler, node: syntax.Call, target: syntax.Node) -> Code:
    """`optional.or(other)` and `optional.orValue(value)`: the argument is computed only if it is needed.

    A value of unknown type that is no optional is the result (cel-go cel/library.go, evalOptionalOrValue).
    """
    operand, other = _compiled(compiler, [target, node.arguments[0]], receives=True)
    name, offset, unwraps = f"'{node.function}'", node.offset, node.function == "orValue"
    found, result = compiler.types.result(OR_VALUE if unwraps else OR, (operand.type, other.type))
    if not found and operand.type.name != "optional_type":
        raise CelTypeError(f"{name} requires an optional, not {operand.type}", offset)
    if not found:
        raise CelTypeError(f"{name} of an {operand.type} does not take ({other.type})", offset)
    base, fallback, cost = operand.run, other.run, other.cost

    def choose(frame: Frame) -> object:
        value = base(frame)
        if type(value) is not Optional:
            return value
        if value.present:
            return value.value if unwraps else value
        if cost:
            frame[BUDGET].left -= cost
        return fallback(frame)

    return Code(choose, result, cost=operand.cost)
