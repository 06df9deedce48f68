"""Expands an expression to the tree of cel-go's checker: macros are loops, operators are calls with signatures.

Estimates are defined on that tree (`estimate`). Parts that cel-go copies are shared objects here: `optMap` uses its
operand twice, so nested calls of it would double the tree each time.

Source: cel-go parser/macro.go, ext/comprehensions.go, ext/lists.go (sortBy), ext/bindings.go, cel/library.go (optMap).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from kubecel import types
from kubecel.checking import matching
from kubecel.closures import access, arithmetic, calls, operators
from kubecel.closures.compiler import Compiler
from kubecel.closures.comprehensions import SORT_BY
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Macro
from kubecel.types import BOOL, DYN, INT, STRING, Type, Unifier

Signature: TypeAlias = tuple[Type, ...]
"""Types of the arguments of a call; a method's receiver comes first."""

ACCUMULATOR: Final = "@result"


@dataclasses.dataclass(slots=True, eq=False)
class Constant:
    """A literal."""

    value: object
    type: Type


@dataclasses.dataclass(slots=True, eq=False)
class Name:
    """A variable, or the name of a type; `rooted` as in `nodes.Ident`."""

    name: str
    type: Type
    rooted: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Field:
    """`operand.name`, or `has(operand.name)` if `test`."""

    operand: "Expression"
    name: str
    test: bool
    type: Type


@dataclasses.dataclass(slots=True, eq=False)
class Apply:
    """A call; operators have their names of cel-go, such as `_+_`.

    Attributes:
        candidates: the signatures that accept the arguments.
    """

    function: str
    candidates: tuple[Signature, ...]
    target: "Expression | None"
    arguments: tuple["Expression", ...]
    type: Type


@dataclasses.dataclass(slots=True, eq=False)
class Listing:
    """A list literal."""

    elements: tuple["Expression", ...]
    type: Type


@dataclasses.dataclass(slots=True, eq=False)
class Mapping:
    """A map literal."""

    entries: tuple[tuple["Expression", "Expression"], ...]
    type: Type


@dataclasses.dataclass(slots=True, eq=False)
class Fold:
    """A loop: `accumulator` starts as `init`, becomes `step` in every round, and `result` is computed at the end."""

    over: "Expression"
    variables: tuple[str, ...]
    init: "Expression"
    condition: "Expression"
    step: "Expression"
    result: "Expression"
    type: Type


@dataclasses.dataclass(slots=True, eq=False)
class Let:
    """`cel.bind(variable, value, body)`."""

    variable: str
    value: "Expression"
    body: "Expression"
    type: Type


Expression: TypeAlias = Constant | Name | Field | Apply | Listing | Mapping | Fold | Let

_ORDER: Final = dict.fromkeys(("<", "<=", ">", ">="), operators.ORDER)
_EQUALITY: Final = dict.fromkeys(("==", "!="), operators.EQUALITY)
_BINARY: Final = {**arithmetic.SIGNATURES, **_ORDER, **_EQUALITY, "in": operators.MEMBERSHIP}
_TRUE: Final = Constant(True, BOOL)
_ONE: Final = Constant(1, INT)
_SORTED: Final = "@__sortBy_input__"


class Expander:
    """Expands the tree of one compiled expression."""

    def __init__(self, compiler: Compiler, source: str) -> None:
        self._compiler = compiler
        self._source = source

    def expand(self, node: syntax.Node) -> Expression:
        self._compiler.deadline.look()
        return _EXPANSIONS[type(node)](self, node)

    def _type(self, node: syntax.Node) -> Type:
        return self._compiler.type_of(node)

    def _call(
        self, function: str, signatures: Sequence[Signature], arguments: Sequence[Expression], result: Type
    ) -> Apply:
        """A call of an operator; signatures end with their results."""
        found, _ = Unifier().result(signatures, [argument.type for argument in arguments])
        return Apply(function, tuple(signatures[at][:-1] for at in found), None, tuple(arguments), result)

    def literal(self, node: syntax.Literal) -> Expression:
        return Constant(node.value, self._type(node))

    def ident(self, node: syntax.Ident) -> Expression:
        return Name(node.name, self._type(node), node.rooted)

    def select(self, node: syntax.Select) -> Expression:
        """A field, `.?field`, or the dotted name of a type."""
        if not self._compiler.compiled(node.operand):
            return Name(node.field, self._type(node))
        operand = self.expand(node.operand)
        if node.optional:
            field = Constant(node.field, STRING)
            return Apply("_?._", ((DYN, STRING),), None, (operand, field), self._type(node))
        return Field(operand, node.field, node.test, self._type(node))

    def index(self, node: syntax.Index) -> Expression:
        """`value[key]` and `value[?key]`."""
        operand, key = self.expand(node.operand), self.expand(node.key)
        if operand.type.fields is not None and isinstance(key, Constant) and not node.optional:
            return Field(operand, str(key.value), False, self._type(node))
        signatures = access.OPTIONAL_INDEX if node.optional else access.INDEX
        return self._call("_[?_]" if node.optional else "_[_]", signatures, (operand, key), self._type(node))

    def call(self, node: syntax.Call) -> Expression:
        """A function or a method."""
        arguments = tuple(map(self.expand, node.arguments))
        library, name, target = self._compiler.library, node.function, node.target
        if isinstance(target, syntax.Ident) and library.find(f"{target.name}.{name}", method=False):
            name, target = f"{target.name}.{name}", None
        receiver = None if target is None else self.expand(target)
        given = (
            tuple(part.type for part in arguments)
            if receiver is None
            else (
                receiver.type,
                *(part.type for part in arguments),
            )
        )
        if receiver is not None and name in _ALTERNATIVES and len(arguments) == 1:
            return Apply(name, (_ALTERNATIVES[name],), receiver, arguments, self._type(node))
        found, _ = matching(Unifier(), library.find(name, method=receiver is not None), given)
        candidates = tuple(overload.parameters for overload in found)
        return Apply(name, candidates, receiver, arguments, self._type(node))

    def unary(self, node: syntax.Unary) -> Expression:
        """`!value`, `-value`; two in a row cancel out, as in cel-go's parser."""
        inner = node.operand
        adjacent = not self._source[node.start + 1 : inner.start].strip()
        if adjacent and isinstance(inner, syntax.Unary):
            return self.expand(inner.operand)
        if (
            node.operator == "-"
            and adjacent
            and isinstance(inner, syntax.Literal)
            and isinstance(inner.value, int | float)
        ):
            return Constant(-inner.value, self._type(node))
        operand = self.expand(inner)
        signatures = ((BOOL, BOOL),) if node.operator == "!" else arithmetic.NEGATABLE
        return self._call(f"{node.operator}_", signatures, (operand,), self._type(node))

    def binary(self, node: syntax.Binary) -> Expression:
        """Arithmetic, comparison, `in`."""
        sides = (self.expand(node.left), self.expand(node.right))
        name = "@in" if node.operator == "in" else f"_{node.operator}_"
        return self._call(name, _BINARY[node.operator], sides, self._type(node))

    def logic(self, node: syntax.Logic) -> Expression:
        """`a && b && …`."""
        return _logic(node.operator, *map(self.expand, node.terms))

    def conditional(self, node: syntax.Conditional) -> Expression:
        """`condition ? then : otherwise`."""
        parts = (self.expand(node.condition), self.expand(node.then), self.expand(node.otherwise))
        return _conditional(*parts, self._type(node))

    def list(self, node: syntax.ListLiteral) -> Expression:
        """`[a, ?b]`."""
        return Listing(tuple(self.expand(element.value) for element in node.elements), self._type(node))

    def map(self, node: syntax.MapLiteral) -> Expression:
        """`{k: v}`."""
        entries = tuple((self.expand(entry.key), self.expand(entry.value)) for entry in node.entries)
        return Mapping(entries, self._type(node))

    def bind(self, node: syntax.Bind) -> Expression:
        """`cel.bind(variable, value, body)`."""
        return Let(node.variable, self.expand(node.value), self.expand(node.body), self._type(node))

    def optional_map(self, node: syntax.OptionalMap) -> Expression:
        """`operand.hasValue() ? optional.of(cel.bind(variable, operand.value(), body)) : optional.none()`."""
        operand, described = self.expand(node.operand), self._type(node)
        optional = (types.optional_of(DYN),)
        inner = operand.type.parameters[0] if operand.type.name == "optional_type" else DYN
        present = Apply("hasValue", (optional,), operand, (), BOOL)
        value = Apply("value", (optional,), operand, (), inner)
        body: Expression = Let(node.variable, value, self.expand(node.body), self._type(node.body))
        if not node.flat:
            body = Apply("optional.of", ((DYN,),), None, (body,), described)
        return _conditional(present, body, Apply("optional.none", ((),), None, (), described), described)

    def comprehension(self, node: syntax.Comprehension) -> Expression:
        """A macro that loops."""
        over, body = self.expand(node.operand), self.expand(node.body)
        if node.macro is Macro.SORT_BY:
            return self._sort_by(node, over, body)
        init, condition, step, result = _STEPS[node.macro](node, body, self._type(node))
        if node.condition is not None:
            accumulator = Name(ACCUMULATOR, init.type)
            step = _conditional(self.expand(node.condition), step, accumulator, init.type)
        return Fold(over, node.variables, init, condition, step, result, self._type(node))

    def _sort_by(self, node: syntax.Comprehension, over: Expression, body: Expression) -> Expression:
        described = self._type(node)
        keys = types.list_of(body.type)
        init, condition, step, result = _build_list(node, body, keys)
        mapped = Fold(Name(_SORTED, over.type), node.variables, init, condition, step, result, keys)
        found, _ = Unifier().result(SORT_BY, (over.type, keys))
        signatures = tuple(SORT_BY[at][:-1] for at in found)
        call = Apply("@sortByAssociatedKeys", signatures, Name(_SORTED, over.type), (mapped,), described)
        return Let(_SORTED, over, call, described)


_ALTERNATIVES: Final[dict[str, Signature]] = {"or": calls.OR[0][:-1], "orValue": calls.OR_VALUE[0][:-1]}


def _logic(operator: str, *terms: Expression) -> Apply:
    return Apply(f"_{operator}_", ((BOOL,) * len(terms),), None, terms, BOOL)


def _conditional(condition: Expression, then: Expression, otherwise: Expression, described: Type) -> Apply:
    return Apply("_?:_", ((BOOL, DYN, DYN),), None, (condition, then, otherwise), described)


Steps: TypeAlias = tuple[Expression, Expression, Expression, Expression]
"""Start value of the accumulator, condition of the loop, step of a round, and result."""


def _quantifier(operator: str) -> Callable[[syntax.Comprehension, Expression, Type], Steps]:
    def steps(_: syntax.Comprehension, body: Expression, __: Type) -> Steps:
        accumulator = Name(ACCUMULATOR, BOOL)
        going: Expression = accumulator
        if operator == "||":
            going = Apply("!_", ((BOOL,),), None, (accumulator,), BOOL)
        condition = Apply("@not_strictly_false", ((BOOL,),), None, (going,), BOOL)
        return Constant(operator == "&&", BOOL), condition, _logic(operator, accumulator, body), accumulator

    return steps


def _count_one(_: syntax.Comprehension, body: Expression, __: Type) -> Steps:
    accumulator = Name(ACCUMULATOR, INT)
    more = Apply("_+_", ((INT, INT),), None, (accumulator, _ONE), INT)
    result = Apply("_==_", ((INT, INT),), None, (accumulator, _ONE), BOOL)
    return Constant(0, INT), _TRUE, _conditional(body, more, accumulator, INT), result


def _appended(part: Expression, described: Type) -> tuple[Name, Expression]:
    accumulator = Name(ACCUMULATOR, described)
    longer = Apply(
        "_+_", ((types.LIST, types.LIST),), None, (accumulator, Listing((part,), types.list_of(part.type))), described
    )
    return accumulator, longer


def _build_list(_: syntax.Comprehension, body: Expression, described: Type) -> Steps:
    accumulator, longer = _appended(body, described)
    return Listing((), described), _TRUE, longer, accumulator


def _filter(node: syntax.Comprehension, body: Expression, described: Type) -> Steps:
    accumulator, longer = _appended(Name(node.variables[0], described.parameters[0]), described)
    return Listing((), described), _TRUE, _conditional(body, longer, accumulator, described), accumulator


def _build_map(node: syntax.Comprehension, body: Expression, described: Type) -> Steps:
    accumulator = Name(ACCUMULATOR, described)
    key: tuple[Expression, ...] = ()
    if node.macro is Macro.TRANSFORM_MAP:
        key = (Name(node.variables[0], described.parameters[0]),)
    arguments = (accumulator, *key, body)
    larger = Apply("cel.@mapInsert", ((DYN,) * len(arguments),), None, arguments, described)
    return Mapping((), described), _TRUE, larger, accumulator


_STEPS: Final[dict[Macro, Callable[[syntax.Comprehension, Expression, Type], Steps]]] = {
    Macro.ALL: _quantifier("&&"),
    Macro.EXISTS: _quantifier("||"),
    Macro.EXISTS_ONE: _count_one,
    Macro.MAP: _build_list,
    Macro.FILTER: _filter,
    Macro.TRANSFORM_LIST: _build_list,
    Macro.TRANSFORM_MAP: _build_map,
    Macro.TRANSFORM_MAP_ENTRY: _build_map,
}
_EXPANSIONS: Final[dict[type, Callable[[Expander, Any], Expression]]] = {
    syntax.Literal: Expander.literal,
    syntax.Ident: Expander.ident,
    syntax.Select: Expander.select,
    syntax.Index: Expander.index,
    syntax.Call: Expander.call,
    syntax.Unary: Expander.unary,
    syntax.Binary: Expander.binary,
    syntax.Logic: Expander.logic,
    syntax.Conditional: Expander.conditional,
    syntax.ListLiteral: Expander.list,
    syntax.MapLiteral: Expander.map,
    syntax.Bind: Expander.bind,
    syntax.OptionalMap: Expander.optional_map,
    syntax.Comprehension: Expander.comprehension,
}
