"""Static types of CEL, and which type is assignable to which.

Source: cel-spec doc/langdef.md (gradual type checking) and cel-go's checker. `dyn` is assignable to every
type: fields of a Kubernetes object often have a type only at run time, so errors are found where both types are known.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Type:
    """A CEL type; also the value that `type(x)` returns.

    Attributes:
        name: CEL's name.
        parameters: e.g. the element type of a list.
        fields: the known fields of a record, None for any other type.
    """

    name: str
    parameters: tuple["Type", ...] = ()
    fields: Mapping[str, "Type"] | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        """As in messages of cel-go, e.g. `map(string, int)`; a type that is not known yet is dyn."""
        if self.name[0] == "<":
            return "dyn"
        inner = ", ".join(map(str, self.parameters))
        return f"{self.name}({inner})" if inner else self.name

    def with_parameters(self, parameters: Iterable["Type"]) -> "Type":
        """The same type with other parameters."""
        return Type(self.name, tuple(parameters), self.fields)


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
FORMAT: Final = Type("kubernetes.NamedFormat")
IP: Final = Type("net.IP")
CIDR: Final = Type("net.CIDR")

COMPARABLE: Final = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
"""Types whose values have an order, in the order of cel-go's signatures (ext/lists.go, comparableTypes)."""

A: Final = Type("<A>")
"""A type parameter of a signature: it stands for one type in the whole signature."""
B: Final = Type("<B>")

_NULLABLE: Final = frozenset(
    {"optional_type", *(t.name for t in (TIMESTAMP, DURATION, QUANTITY, SEMVER, URL, FORMAT, IP, CIDR))}
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
    """`type(described)`."""
    return Type("type", (described,))


def record(name: str, fields: Mapping[str, Type]) -> Type:
    """A map with known string keys. Any other key is an error when the expression is compiled."""
    return Type(name, (), fields)


class _AnyField(Mapping[str, Type]):
    """Every name is a field of unknown type."""

    def __getitem__(self, name: str) -> Type:
        return DYN

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_ANY_FIELD: Final = _AnyField()
OBJECT: Final = record("Object", _ANY_FIELD)
JSON_PATCH: Final = record("JSONPatch", {"op": STRING, "path": STRING, "from": STRING, "value": DYN})


def no_objects(name: str) -> Type | None:  # noqa: ARG001 - the signature of `mutation_type`
    """No type of which an expression can make objects."""
    return None


def mutation_type(name: str) -> Type | None:
    """The types of which mutations make objects: `JSONPatch`, `Object`, and `Object.spec.containers` for a field.

    Source: k8s.io/apiserver/pkg/cel/mutation (DynamicTypeResolver).
    """
    if name == JSON_PATCH.name:
        return JSON_PATCH
    if name == OBJECT.name:
        return OBJECT
    return record(name, _ANY_FIELD) if name.startswith(f"{OBJECT.name}.") else None


PATH_CHECK: Final = Type("kubernetes.authorization.PathCheck")
GROUP_CHECK: Final = Type("kubernetes.authorization.GroupCheck")
RESOURCE_CHECK: Final = Type("kubernetes.authorization.ResourceCheck")
DECISION: Final = Type("kubernetes.authorization.Decision")
AUTHORIZER: Final = record("kubernetes.authorization.Authorizer", {"requestResource": RESOURCE_CHECK})

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


def is_variable(described: Type) -> bool:
    """Is it a type parameter, or a type variable of `unify`?"""
    return described.name[0] == "<"


def is_open(described: Type) -> bool:
    """Is it dyn, or not known yet?"""
    return described.name == "dyn" or is_variable(described)


def nullable(described: Type) -> bool:
    """Is null assignable to it? True for objects, optionals and times."""
    return described.fields is not None or described.name in _NULLABLE
