"""Estimates of the functions of the libraries, for `kubecel.estimating.estimate`.

Source: k8s.io/apiserver/pkg/cel/library/cost.go (EstimateCallCost); cel-go ext/lists.go (version 3), ext/sets.go.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from kubecel.checking import (
    NEW_LIST,
    PATTERN,
    TRAVERSAL,
    UNKNOWN,
    UNLIMITED,
    Size,
    SizeOf,
    capped,
    fixed,
    scaled,
    wrapped,
)
from kubecel.estimating.estimate import Estimate, Operand
from kubecel.estimating.expansion import Constant, Signature
from kubecel.types import BYTES, CIDR, IP, QUANTITY, SEMVER, STRING, URL


class EstimatedCall:
    """A call with one signature."""

    def __init__(
        self, size_of: SizeOf, signature: Signature, target: Operand | None, arguments: Sequence[Operand]
    ) -> None:
        self._size_of = size_of
        self.signature = signature
        self.target = target
        self.arguments = arguments

    def size(self, position: int) -> Size:
        """The size of an argument, or of the receiver for position -1."""
        operand = self.target if position < 0 else self.arguments[position]
        return UNKNOWN if operand is None else operand.size

    def elements(self) -> tuple[Size, bool] | None:
        """The size of the receiver's elements, and whether they are texts; None if it is no list."""
        if self.target is None or not self.target.type.parameters:
            return None
        kind = self.target.type.parameters[0]
        path = (*self.target.path, "@items") if self.target.path else ()
        return self._size_of(path) or UNKNOWN, kind in (STRING, BYTES)

    def literal(self, position: int) -> object:
        """The value of a constant argument, else None."""
        expression = self.arguments[position].expression
        return expression.value if isinstance(expression, Constant) else None

    def integer(self, position: int, otherwise: int) -> int:
        """The value of a constant argument, at least 0; `otherwise` if it is not constant."""
        value = self.literal(position)
        return max(0, int(value)) if type(value) is int else otherwise


Rule = Callable[[EstimatedCall], Estimate]


def library_estimate(
    size_of: SizeOf, function: str, signature: Signature, target: Operand | None, arguments: Sequence[Operand]
) -> Estimate | None:
    """The estimate of a call without its arguments; None if no library has a rule for it."""
    if function == "_==_":
        return _equality(arguments)
    rule = (_FUNCTIONS if target is None else _METHODS).get(function)
    return None if rule is None else rule(EstimatedCall(size_of, signature, target, arguments))


def _equality(arguments: Sequence[Operand]) -> Estimate | None:
    first, second = arguments
    if first.type != second.type:
        return None
    if first.type in (IP, CIDR, QUANTITY, SEMVER):
        return Estimate(1)
    if first.type == URL:
        # The API server uses the size of the second argument only.
        return Estimate(Size(0, 1 if second.computed is None else second.computed.most).cost(TRAVERSAL))
    return None


def _reading(position: int, factor: float = TRAVERSAL) -> Rule:
    return lambda call: Estimate(call.size(position).cost(factor))


def _same_size(position: int) -> Rule:
    """Reads all of an argument; the result has the same size."""
    return lambda call: Estimate(call.size(position).cost(TRAVERSAL), call.size(position))


def _each(call: EstimatedCall) -> Estimate:
    """Compares every element of a list, or reads all of a string."""
    elements = call.elements()
    if elements is None:
        return Estimate(call.size(-1).cost(TRAVERSAL))
    size, is_text = elements
    each = capped(1 + size.cost(TRAVERSAL)) if is_text else 1
    return Estimate(capped(call.size(-1).most * each))


def _replace(call: EstimatedCall) -> Estimate:
    text, old, new = call.size(-1), call.size(0), call.size(1)
    if old.least == 0:
        most = capped(capped(text.most + 1) * new.most + text.most)
    elif new.most <= old.least:
        most = text.most
    else:
        most = capped(_quotient(text.most, old.least) * new.most)
    if old.most == 0:
        least = capped(capped(text.least + 1) * new.least + text.least)
    elif old.most <= new.least:
        least = text.least
    else:
        least = capped(_quotient(text.least, old.most) * new.least)
    return Estimate(text.cost(2 * TRAVERSAL), Size(least, most))


def _quotient(number: int, by: int) -> int:
    return capped(math.ceil(float(number) / float(by)))


def _split(call: EstimatedCall) -> Estimate:
    most = call.size(-1).most
    if len(call.arguments) > 1:
        limit = call.literal(1)
        most = wrapped(limit) if type(limit) is int else most
    return Estimate(call.size(-1).cost(2 * TRAVERSAL), Size(0, most))


def _join(call: EstimatedCall) -> Estimate:
    count, elements = call.size(-1), call.elements()
    size = fixed(0) if elements is None else count.times(elements[0])
    if call.arguments:
        size = size.plus(call.size(0).times(Size(max(0, count.least - 1), max(0, count.most - 1))))
    return Estimate(size.cost(TRAVERSAL), size)


def _find(call: EstimatedCall) -> Estimate:
    cost = capped(call.size(-1).plus(fixed(1)).cost(TRAVERSAL) * call.size(0).cost(PATTERN))
    return Estimate(cost, Size(0, call.size(-1).most))


_ADDRESS: Final = 16
"""Bytes of an IPv6 address."""


def _contains_ip(call: EstimatedCall) -> Estimate:
    own = scaled(2 * _ADDRESS, TRAVERSAL)
    return Estimate(capped(own + _reparsed(call)))


def _contains_cidr(call: EstimatedCall) -> Estimate:
    own = scaled(2 * _ADDRESS, TRAVERSAL) + scaled(_ADDRESS, TRAVERSAL) + 1
    return Estimate(capped(own + _reparsed(call)))


def _reparsed(call: EstimatedCall) -> int:
    return call.size(0).cost(TRAVERSAL) if call.signature[1] == STRING else 0


def _new_list(size: Size, factor: float = 1) -> Estimate:
    return Estimate(capped(size.cost(factor) + 1 + NEW_LIST), size)


def _slice(call: EstimatedCall) -> Estimate:
    start, end = call.integer(0, 0), call.integer(1, call.size(-1).most)
    return _new_list(fixed(wrapped(end - start)))


def _flatten(call: EstimatedCall) -> Estimate:
    depth = call.integer(0, UNLIMITED) if call.arguments else 1
    return _new_list(call.size(-1), float(depth))


def _pairs(position: int) -> Rule:
    """Compares every element of a list with every other."""

    def rule(call: EstimatedCall) -> Estimate:
        size = call.size(position)
        parameters = call.signature[position + 1].parameters
        factor = 2 + TRAVERSAL if parameters and parameters[0] in (STRING, BYTES) else 2.0
        return _new_list(size.times(size), factor)

    return rule


def _sets(factor: float) -> Rule:
    return lambda call: Estimate(capped(call.size(0).times(call.size(1)).cost(factor) + 1))


_FORMAT_PATTERN: Final = 128
"""Characters of a pattern that the API server assumes for every named format (k8s.io/apiserver/pkg/cel/limits.go)."""


_ACCESS_CHECK: Final = 350_000
"""Two of them are allowed in one expression."""

_METHODS: Final[dict[str, Rule]] = {
    "check": lambda _: Estimate(_ACCESS_CHECK),
    **dict.fromkeys(("fieldSelector", "labelSelector"), _reading(0)),
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _each),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _same_size(-1)),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _find),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "slice": _slice,
    "reverse": lambda call: _new_list(call.size(-1)),
    "flatten": _flatten,
    "distinct": lambda call: _new_list(call.size(-1).times(call.size(-1)), 2),
    "sort": _pairs(-1),
    "validate": lambda call: Estimate(scaled(call.size(0).cost(TRAVERSAL), _FORMAT_PATTERN * PATTERN)),
    "@sortByAssociatedKeys": _pairs(0),
}
_FUNCTIONS: Final[dict[str, Rule]] = {
    **dict.fromkeys(("url", "jsonpatch.escapeKey"), _same_size(0)),
    **dict.fromkeys(("ip", "cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"), _reading(0)),
    "ip.isCanonical": _reading(0, 2 * TRAVERSAL),
    "lists.range": lambda call: _new_list(fixed(call.integer(0, UNLIMITED))),
    "sets.contains": _sets(1),
    "sets.intersects": _sets(1),
    "sets.equivalent": _sets(2),
}
