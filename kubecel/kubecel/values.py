"""Values at run time: types, equality, order and membership.

Decoded JSON is not converted: None, bool, int, float, str, list and dict. `kubecel.library.kubernetes` defines two
types that Python does not have. Python's `==` differs from CEL's, so functions here compare: `True == 1` is false in
CEL, and the comparison of a quantity with a string is an error.

Source: cel-spec doc/langdef.md (equality and ordering), cel-go common/types.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from kubecel import types
from kubecel.budget import Budget
from kubecel.errors import CelBudgetExceededError, CelRuntimeError
from kubecel.types import Type

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
MAX_UINT: Final = 2**64 - 1
MAX_DEPTH: Final = 100
WORK_OF_A_PAIR: Final = 5
"""Work of reading one value, or one pair of values, in Python: half a microsecond."""

NANOSECONDS: Final = 10**9
MIN_TIMESTAMP: Final = -62135596800 * NANOSECONDS
"""0001-01-01T00:00:00Z in nanoseconds since 1970."""
MAX_TIMESTAMP: Final = 253402300800 * NANOSECONDS - 1
"""9999-12-31T23:59:59.999999999Z."""


class UInt(int):
    """A CEL `uint`."""

    __slots__ = ()


class BoolKey(int):
    """A bool as the key of a map: in Python, `True` and `1` are the same key."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoolKey) and int(self) == int(other)

    def __hash__(self) -> int:
        return hash((BoolKey, int(self)))


class OpaqueValue:
    """A value that is compared only with values of its type, like object types of cel-go."""

    __slots__ = ()
    cel_type: ClassVar[Type]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ObjectValue:
    """An object that an expression made, such as `Object.spec{replicas: 3}`.

    Attributes:
        type: its type; the name is that in the expression.
        fields: values of CEL by name.
    """

    type: Type
    fields: Mapping[str, object]


@functools.total_ordering
@dataclasses.dataclass(frozen=True, slots=True)
class Duration:
    """A CEL `duration`, in nanoseconds."""

    nanoseconds: int

    def __lt__(self, other: object) -> bool:
        return isinstance(other, Duration) and self.nanoseconds < other.nanoseconds


@functools.total_ordering
@dataclasses.dataclass(frozen=True, slots=True)
class Timestamp:
    """A CEL `timestamp`: nanoseconds since 1970 in UTC.

    Attributes:
        offset: minutes east of UTC in its text; only `string()` uses them.
    """

    nanoseconds: int
    offset: int = dataclasses.field(default=0, compare=False)

    def __lt__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and self.nanoseconds < other.nanoseconds


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """A CEL optional. It has a value if `present`."""

    present: bool
    value: object = None


NONE: Final = Optional(False)


def some(value: object) -> Optional:
    return Optional(True, value)


_PLAIN: Final[dict[type, Type]] = {
    type(None): types.NULL,
    bool: types.BOOL,
    UInt: types.UINT,
    int: types.INT,
    float: types.DOUBLE,
    str: types.STRING,
    bytes: types.BYTES,
    Duration: types.DURATION,
    Timestamp: types.TIMESTAMP,
    Optional: types.optional_of(types.DYN),
    Type: types.type_of(types.DYN),
}


def kind_of(value: object) -> Type:
    """The CEL type of a value, as `type()` gives it: without element types.

    Raises:
        CelRuntimeError: the value comes from the caller and has a Python type without a CEL type.
    """
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain
    if isinstance(value, OpaqueValue):
        return value.cel_type
    if isinstance(value, ObjectValue):
        return value.type
    if isinstance(value, Mapping):
        return types.MAP
    if isinstance(value, list | tuple):
        return types.LIST
    for kind, described in _PLAIN.items():
        if isinstance(value, kind):
            return described
    raise CelRuntimeError(f"a value of Python type {type(value).__name__} has no CEL type")


def name_of(value: object) -> str:
    """The name of a value's type for messages, e.g. `string`."""
    return kind_of(value).name


def is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def is_int(value: object) -> bool:
    """Is it a CEL `int`?"""
    return isinstance(value, int) and not isinstance(value, bool | UInt)


def no_overload(function: str, *arguments: object) -> CelRuntimeError:
    """The error for arguments of types that the function does not take."""
    shown = ", ".join(name_of(argument) for argument in arguments)
    return CelRuntimeError(f"'{function}' does not take ({shown})")


# --- keys of maps ---------------------------------------------------------------------------------------


def key_of(value: object) -> object:
    """The dict key of a CEL value: equal numbers of any type have one key, and a bool is not a number.

    Raises:
        CelRuntimeError: the type is not allowed for keys.
    """
    if type(value) is str or type(value) is int:
        return value
    if isinstance(value, bool):
        return BoolKey(value)
    if isinstance(value, str | UInt | BoolKey):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, int):
        return value
    raise CelRuntimeError(f"a {name_of(value)} cannot be the key of a map: keys are bool, int, uint or string")


def value_of_key(key: object) -> object:
    """The CEL value of a dict key."""
    return bool(key) if type(key) is BoolKey else key


def keys_of(mapping: Mapping[object, object]) -> list[object]:
    """The keys of a map as CEL values."""
    return [bool(key) if type(key) is BoolKey else key for key in mapping]


# --- equality -------------------------------------------------------------------------------------------

_SAME_AS_PYTHON: Final = frozenset({str, int, bool, type(None), bytes, UInt, Duration, Timestamp, float, Type})
_CHARACTERS_AT_ONCE: Final = 1 << 20
"""Characters that one call compares: 0.1 ms."""


def equal(budget: Budget, a: Any, b: Any, depth: int = 0) -> bool:
    """CEL's `a == b`. Every value is charged before it is read, at each place where it is used.

    Raises:
        CelRuntimeError: `a` is of a Kubernetes type (quantity, semver, ip, …) and `b` of another.
        CelBudgetExceededError: the values are nested too deeply or too large.
    """
    if type(a) is type(b) and type(a) in _SAME_AS_PYTHON:
        if type(a) is str or type(a) is bytes:
            budget.read(min(len(a), len(b)))
        return bool(a == b)
    if isinstance(a, int | float) and isinstance(b, int | float):
        return _equal_numbers(a, b)
    if depth > MAX_DEPTH:
        raise CelBudgetExceededError(f"values nested deeper than {MAX_DEPTH} levels are not compared")
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and _equal_maps(budget, a, b, depth)
    if is_list(a):
        return is_list(b) and len(a) == len(b) and _equal_items(budget, a, b, depth)
    if isinstance(a, OpaqueValue):
        if b is None:
            return False
        if type(a) is not type(b):
            raise no_overload("==", a, b)
        return a == b
    if isinstance(a, ObjectValue):
        same = isinstance(b, ObjectValue) and a.type == b.type
        return same and _equal_maps(budget, a.fields, b.fields, depth)
    if isinstance(a, Optional) and isinstance(b, Optional):
        return a.present == b.present and (not a.present or equal(budget, a.value, b.value, depth + 1))
    return isinstance(a, str) and isinstance(b, str) and a == b


def _equal_numbers(a: float, b: float) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, float) is isinstance(b, float):
        return a == b
    # One is a double: cel-go compares as doubles, so that 2^53 + 1 == 9007199254740992.0.
    try:
        return float(a) == float(b)
    except OverflowError:
        return False


def _equal_items(budget: Budget, a: Any, b: Any, depth: int) -> bool:
    budget.work(WORK_OF_A_PAIR + len(a))
    for left, right in zip(a, b, strict=True):
        budget.work(WORK_OF_A_PAIR)
        if not equal(budget, left, right, depth + 1):
            return False
    return True


def _equal_maps(budget: Budget, a: Mapping[Any, object], b: Mapping[Any, object], depth: int) -> bool:
    if len(a) != len(b):
        return False
    budget.work(WORK_OF_A_PAIR + len(a))
    for key, value in a.items():
        budget.work(WORK_OF_A_PAIR)
        if key not in b or not equal(budget, value, b[key], depth + 1):
            return False
    return True


def contains(budget: Budget, items: Sequence[object], value: object) -> bool:
    """CEL's `value in items`: values that cannot be compared are not equal."""
    if type(value) is str:
        return _contains_text(budget, items, value)
    for item in items:
        budget.work(WORK_OF_A_PAIR)
        try:
            if equal(budget, value, item):
                return True
        except CelRuntimeError:
            continue
    return False


def _contains_text(budget: Budget, items: Sequence[object], text: str) -> bool:
    """`in` for a text. Python compares texts as CEL does, and reads only texts of the same length."""
    count = len(items)
    at_once = max(1, _CHARACTERS_AT_ONCE // (len(text) + 16))
    if count <= at_once:
        budget.work(count // 8 + count * len(text) // 1024)
        return text in items
    for start in range(0, count, at_once):
        budget.work(at_once // 8 + at_once * len(text) // 1024 + 1)
        if text in items[start : start + at_once]:
            return True
    return False


# --- order ----------------------------------------------------------------------------------------------

_ORDERED: Final = frozenset({int, str, UInt, bytes, bool, Duration, Timestamp})


def less(a: Any, b: Any, operator: str = "<") -> bool:
    """CEL's `a < b`.

    Raises:
        CelRuntimeError: they have no order: NaN, lists, null, or different types (except numbers).
    """
    if type(a) is type(b) and type(a) in _ORDERED:
        return bool(a < b)
    if not orderable(a, b):
        raise no_overload(operator, a, b)
    if a != a or b != b:
        raise CelRuntimeError("NaN has no order")
    if isinstance(a, float) is not isinstance(b, float):
        try:
            return float(a) < float(b)
        except OverflowError:
            return bool(a < b)
    return bool(a < b)


def orderable(a: object, b: object) -> bool:
    """Does `<` accept the types of the two values?"""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return isinstance(a, bool) is isinstance(b, bool)
    return any(isinstance(a, kind) and isinstance(b, kind) for kind in (str, bytes, Duration, Timestamp))


# --- texts ------------------------------------------------------------------------------------------------


def utf8(text: str) -> bytes:
    """The text as UTF-8.

    Raises:
        CelRuntimeError: it contains half a surrogate pair, which JSON allows and UTF-8 does not.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CelRuntimeError("a string with half a surrogate pair has no UTF-8 bytes") from None


# --- integers -------------------------------------------------------------------------------------------


def checked_int(value: int, operation: str) -> int:
    """The value, if it fits into an int64.

    Raises:
        CelRuntimeError: it overflows.
    """
    if MIN_INT <= value <= MAX_INT:
        return value
    raise CelRuntimeError(f"integer overflow in {operation}: {value} does not fit 64 bits")


def checked_uint(value: int, operation: str) -> UInt:
    """The value, if it fits into a uint64.

    Raises:
        CelRuntimeError: it overflows.
    """
    if 0 <= value <= MAX_UINT:
        return UInt(value)
    raise CelRuntimeError(f"unsigned integer overflow in {operation}: {value} does not fit 64 bits")


def checked_duration(nanoseconds: int, operation: str) -> Duration:
    """The duration, if its nanoseconds fit into an int64.

    Raises:
        CelRuntimeError: it overflows.
    """
    return Duration(checked_int(nanoseconds, operation))


def checked_timestamp(nanoseconds: int, offset: int, operation: str) -> Timestamp:
    """The timestamp, if its year is 1 to 9999.

    Raises:
        CelRuntimeError: it is not.
    """
    if MIN_TIMESTAMP <= nanoseconds <= MAX_TIMESTAMP:
        return Timestamp(nanoseconds, offset)
    raise CelRuntimeError(f"{operation} gives a timestamp outside the years 1 to 9999")
