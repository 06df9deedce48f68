"""Sorting values by keys."""

import functools
from collections.abc import Sequence
from typing import Final

from kubecel.budget import Budget
from kubecel.closures.aggregates import LIST_COST
from kubecel.errors import CelRuntimeError
from kubecel.sizes import size_of
from kubecel.values import kind_of, less, name_of

_WORK_OF_A_COMPARISON: Final = 10


def charge_self_comparison(budget: Budget, items: Sequence[object]) -> None:
    """Charge the comparison of every item with every other item, without the 1 of the call.

    Source: cel-go ext/lists.go, trackListSelfCompare.
    """
    is_text = bool(items) and isinstance(items[0], str | bytes)
    budget.spend(LIST_COST + len(items) ** 2 * (21 if is_text else 20) // 10)


def sort(budget: Budget, items: list[object], keys: list[object]) -> list[object]:
    """The items in the order of their keys; equal keys keep their order.

    Raises:
        CelRuntimeError: the keys have different types, or a type without order.
    """
    budget.items(len(items))
    charge_self_comparison(budget, keys)
    for key in keys:
        if type(key) is not type(keys[0]) and kind_of(key) != kind_of(keys[0]):
            raise CelRuntimeError(f"cannot sort: {name_of(keys[0])} and {name_of(key)} have no common order")
        less(key, key, "sort")

    def compare(a: tuple[object, object], b: tuple[object, object]) -> int:
        budget.work(_WORK_OF_A_COMPARISON + min(size_of(a[0]), size_of(b[0])) // 1024)
        return -1 if less(a[0], b[0]) else int(less(b[0], a[0]))

    pairs = sorted(zip(keys, items, strict=True), key=functools.cmp_to_key(compare))
    return [item for _, item in pairs]
