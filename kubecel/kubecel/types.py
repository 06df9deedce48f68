"""Static types of CEL, type variables and their bindings, and which types are assignable to which.

Source: cel-spec doc/langdef.md (gradual type checking); cel-go's checker/types.go (internalIsAssignable,
isValidTypeSubstitution, mostGeneral, substitute) and checker/mapping.go. `dyn` is assignable to every type: fields of a
Kubernetes object often have a type only at run time, so errors are found where both types are known. Every call of a
function and every empty literal gets new type variables; the first use that needs a type binds the variable for all
uses: `[] + [1]` is a list of int, `(true ? [] : ["a"]) + [1]` is an error.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kubecel.errors import CelSyntaxError


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
    """Is it a type parameter, or a type variable of a `Unifier`?"""
    return described.name[0] == "<"


def is_open(described: Type) -> bool:
    """Is it dyn, or not known yet?"""
    return described.name == "dyn" or is_variable(described)


def nullable(described: Type) -> bool:
    """Is null assignable to it? True for objects, optionals and times."""
    return described.fields is not None or described.name in _NULLABLE


# --- unification ----------------------------------------------------------------------------------------------

_MAX_STEPS: Final = 150_000
"""Limit of compared types per expression: with `cel.bind`, types nest deeper than the expression."""


class Unifier:
    """The bindings of the type variables of one expression. Use once."""

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._undo: list[tuple[str, Type | None]] = []
        self._made = 0
        self._steps = 0

    def fresh(self) -> Type:
        """A new type variable."""
        self._made += 1
        return Type(f"<{self._made}>")

    def instantiate(self, *signature: Type) -> list[Type]:
        """The types of a signature, each type parameter replaced by a new variable."""
        fresh: dict[str, Type] = {}
        return [self._with_fresh(part, fresh) for part in signature]

    def _with_fresh(self, described: Type, fresh: dict[str, Type]) -> Type:
        if is_variable(described):
            if described.name not in fresh:
                fresh[described.name] = self.fresh()
            return fresh[described.name]
        if not described.parameters:
            return described
        return described.with_parameters(self._with_fresh(inner, fresh) for inner in described.parameters)

    def resolve(self, described: Type) -> Type:
        """The type with its bound variables replaced; unbound variables remain."""
        return self._replaced(described, None)

    def final(self, described: Type) -> Type:
        """The type with its bound variables replaced; unbound variables become dyn."""
        return self._replaced(described, DYN)

    def _replaced(self, described: Type, unbound: Type | None) -> Type:
        self._spend()
        found = self._root(described)
        if is_variable(found):
            return found if unbound is None else unbound
        if not found.parameters:
            return found
        inner = [self._replaced(part, unbound) for part in found.parameters]
        same = all(new is old for new, old in zip(inner, found.parameters, strict=True))
        return found if same else found.with_parameters(inner)

    def _root(self, described: Type) -> Type:
        """Follows bindings to a type that is no variable, or to an unbound variable."""
        while is_variable(described):
            found = self._bound.get(described.name)
            if found is None:
                break
            self._spend()
            described = found
        return described

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise CelSyntaxError("the types of the expression are nested too deeply: split the expression")

    # --- assignability ------------------------------------------------------------------------------------

    def assignable(self, given: Type, wanted: Type) -> bool:
        """Is `given` assignable to `wanted`? If so, binds variables."""
        return self.all_assignable((given,), (wanted,))

    def all_assignable(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        """The same for several types. If one is not assignable, no variable is bound."""
        mark = len(self._undo)
        if self._each_assigns(given, wanted):
            return True
        for name, old in reversed(self._undo[mark:]):
            if old is None:
                del self._bound[name]
            else:
                self._bound[name] = old
        del self._undo[mark:]
        return False

    def _each_assigns(self, given: Sequence[Type], wanted: Sequence[Type]) -> bool:
        return len(given) == len(wanted) and all(map(self._assigns, given, wanted))

    def _assigns(self, given: Type, wanted: Type) -> bool:
        self._spend()
        if given is wanted:
            return True
        if is_variable(wanted):
            valid, bound = self._substitutes(given, wanted)
            if valid or bound:
                return valid
        if is_variable(given):
            return self._substitutes(wanted, given)[0]
        return self._fits(given, wanted)

    def _fits(self, given: Type, wanted: Type) -> bool:
        if "dyn" in (given.name, wanted.name):
            return True
        if NULL.name in (given.name, wanted.name):
            return given.name == wanted.name or nullable(wanted if given.name == NULL.name else given)
        if given.name == "type":
            return wanted.name == "type"
        if given.fields is not None and wanted.name == "map":
            return self._each_assigns((STRING, DYN), wanted.parameters)
        return given.name == wanted.name and self._each_assigns(given.parameters, wanted.parameters)

    def _substitutes(self, given: Type, variable: Type) -> tuple[bool, bool]:
        """Can the variable stand for `given`? And was it bound before?"""
        if given.name == variable.name:
            return True, True
        known = self._bound.get(variable.name)
        if known is None:
            if self._occurs(variable, given):
                return False, False
            self._bind(variable, given)
            return True, False
        if known is given:
            return True, True
        if not self._assigns(given, known):
            return False, True
        general = most_general(given, known)
        if not self._occurs(variable, general):
            self._bind(variable, general)
        return True, True

    def _bind(self, variable: Type, described: Type) -> None:
        self._undo.append((variable.name, self._bound.get(variable.name)))
        self._bound[variable.name] = described

    def _occurs(self, variable: Type, within: Type) -> bool:
        """Is the variable part of the type? A type cannot contain itself."""
        self._spend()
        if is_variable(within):
            if within.name == variable.name:
                return True
            known = self._bound.get(within.name)
            return known is not None and self._occurs(variable, known)
        return any(self._occurs(variable, inner) for inner in within.parameters)

    # --- several types ------------------------------------------------------------------------------------

    def join(self, first: Type, second: Type) -> Type | None:
        """The more general type, e.g. `dyn` of `int` and `dyn`; None if none is assignable to the other."""
        return most_general(first, second) if self.assignable(first, second) else None

    def result(self, signatures: Iterable[Sequence[Type]], arguments: Sequence[Type]) -> tuple[list[int], Type]:
        """Positions of the signatures that accept arguments of these types, and the type of the result.

        Args:
            signatures: types of the parameters, then of the result.
        """
        found: list[int] = []
        returned = DYN
        for position, signature in enumerate(signatures):
            if len(signature) - 1 != len(arguments):
                continue
            *parameters, result = self.instantiate(*signature)
            if not self.all_assignable(arguments, parameters):
                continue
            result = self.resolve(result)
            if not found:
                returned = result
            elif returned != result:
                returned = DYN
            found.append(position)
        return found, returned


def most_general(first: Type, second: Type) -> Type:
    """The more general of two types of which one is assignable to the other."""
    return first if _is_more_general(first, second) else second


def _is_more_general(first: Type, second: Type) -> bool:
    if is_open(first):
        return True
    if is_open(second) or first.name != second.name:
        return False
    if first.name == "type":
        return True
    return len(first.parameters) == len(second.parameters) and all(
        map(_is_more_general, first.parameters, second.parameters)
    )
