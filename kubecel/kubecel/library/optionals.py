"""Functions of optionals. `or`, `orValue`, `optMap` and `optFlatMap` are in `kubecel.closures`.

Source: cel-go cel/library.go (OptionalTypes).
"""

from collections.abc import Sequence
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.checking.overloads import function, method
from kubecel.errors import CelRuntimeError
from kubecel.types import BOOL, A, Type, list_of, optional_of
from kubecel.values import MIN_TIMESTAMP, NONE, Duration, OpaqueValue, Optional, Timestamp, name_of, some


def _none() -> Optional:
    return NONE


def _of_non_zero(value: object) -> Optional:
    if isinstance(value, OpaqueValue | Optional | Type):
        return some(value)
    if isinstance(value, Timestamp):
        return NONE if value.nanoseconds == MIN_TIMESTAMP else some(value)
    if isinstance(value, Duration):
        return some(value) if value.nanoseconds else NONE
    return some(value) if value else NONE


def _has_value(value: Optional) -> bool:
    return value.present


def _value(value: Optional) -> object:
    if not value.present:
        raise CelRuntimeError("the optional has no value: give a default with .orValue(…)")
    return value.value


def _unwrap(budget: Budget, items: Sequence[Any]) -> list[object]:
    budget.items(len(items))
    for item in items:
        if not isinstance(item, Optional):
            raise CelRuntimeError(f"only optionals can be unwrapped, not a {name_of(item)}")
    return [item.value for item in items if item.present]


_VALUES: Final = list_of(optional_of(A))

OVERLOADS: Final = (
    function("optional.none", result=optional_of(A), call=_none),
    function("optional.of", A, result=optional_of(A), call=some),
    function("optional.ofNonZeroValue", A, result=optional_of(A), call=_of_non_zero),
    function("optional.unwrap", _VALUES, result=list_of(A), call=_unwrap, budgeted=True),
    method("unwrapOpt", _VALUES, result=list_of(A), call=_unwrap, budgeted=True),
    method("hasValue", optional_of(A), result=BOOL, call=_has_value),
    method("value", optional_of(A), result=A, call=_value),
)
