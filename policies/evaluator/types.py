"""Static types of CEL, and when one fits another.

Source: cel-spec doc/langdef.md (gradual type checking) and cel-go's checker. `dyn` fits everything: what is known of
a Kubernetes object is known only at run time, so a mistake is found here where both sides are known.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Type:
    """A CEL type; as a value, what `type(x)` returns.

    Attributes:
        name: CEL's name.
        parameters: e.g. the element type of a list.
        fields: the known fields of a record, None for any other type.
    """

    name: str
    parameters: tuple["Type", ...] = ()
    fields: Mapping[str, "Type"] | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        """As cel-go writes it in messages, e.g. `map(string, int)`."""
        inner = ", ".join(map(str, self.parameters))
        return f"{self.name}({inner})" if inner else self.name


DYN: Final = Type("dyn")
NULL: Final = Type("null_type")
BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
TIMESTAMP: Final = Type("google.protobuf.Timestamp")
DURATION: Final = Type("google.protobuf.Duration")
QUANTITY: Final = Type("kubernetes.Quantity")
SEMVER: Final = Type("kubernetes.Semver")
URL: Final = Type("kubernetes.URL")
IP: Final = Type("net.IP")
CIDR: Final = Type("net.CIDR")

A: Final = Type("<A>")
"""A type parameter of a function's signature: the same type wherever it stands."""
B: Final = Type("<B>")

_PARAMETERS: Final = frozenset({A.name, B.name})
_NULLABLE: Final = frozenset(
    {"optional_type", *(t.name for t in (TIMESTAMP, DURATION, QUANTITY, SEMVER, URL, IP, CIDR))}
)


def list_of(element: Type) -> Type:
    """`list(element)`."""
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """`map(key, value)`."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """`optional_type(value)`."""
    return Type("optional_type", (value,))


def type_of(described: Type) -> Type:
    """The type of a type."""
    return Type("type", (described,))


def record(name: str, fields: Mapping[str, Type]) -> Type:
    """A map with string keys of which all are known: any other is an error when an expression is compiled."""
    return Type(name, (), fields)


LIST: Final = list_of(DYN)
MAP: Final = map_of(DYN, DYN)

NAMED: Final = {
    t.name: t
    for t in (
        *(NULL, BOOL, INT, UINT, DOUBLE, STRING, BYTES, TIMESTAMP, DURATION, LIST, MAP),
        *(IP, CIDR, optional_of(DYN), type_of(DYN)),
    )
}
"""Types that an expression can name, e.g. in `type(x) == int`."""

Bindings = dict[str, Type]


def fits(formal: Type, actual: Type, bindings: Bindings) -> bool:
    """Whether a value of type `actual` may stand where `formal` is wanted; binds the type parameters of `formal`."""
    if formal.name in _PARAMETERS:
        bound = bindings.get(formal.name)
        if bound is None:
            bindings[formal.name] = actual
            return True
        merged = join(bound, actual)
        if merged is None:
            return False
        bindings[formal.name] = merged
        return True
    if formal.name == "dyn" or actual.name == "dyn":
        return True
    if actual == NULL and formal.name in _NULLABLE:
        return True
    if formal.name == "map" and actual.fields is not None:
        return fits(formal.parameters[0], STRING, bindings) and fits(formal.parameters[1], DYN, bindings)
    if formal.name == actual.name == "type":
        return True
    if formal.name != actual.name or len(formal.parameters) != len(actual.parameters):
        return False
    return all(fits(inner, given, bindings) for inner, given in zip(formal.parameters, actual.parameters, strict=True))


def join(first: Type, second: Type) -> Type | None:
    """The type that covers both, or None where they exclude each other: `int` and `dyn` give `dyn`."""
    if first == second:
        return first
    if fits(first, second, {}):
        return first if first.name == "dyn" or second == NULL else _generalise(first, second)
    if fits(second, first, {}):
        return second
    return None


def _generalise(first: Type, second: Type) -> Type:
    if second.name == "dyn" or len(first.parameters) != len(second.parameters):
        return second if second.name == "dyn" else first
    merged = (join(a, b) or DYN for a, b in zip(first.parameters, second.parameters, strict=True))
    return Type(first.name, tuple(merged), first.fields)


def substitute(formal: Type, bindings: Bindings) -> Type:
    """`formal` with its type parameters replaced; unbound ones are `dyn`."""
    if formal.name in _PARAMETERS:
        return bindings.get(formal.name, DYN)
    if not formal.parameters:
        return formal
    return Type(formal.name, tuple(substitute(inner, bindings) for inner in formal.parameters), formal.fields)
