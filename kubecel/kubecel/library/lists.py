"""Lists and sets.

Source: k8s.io/apiserver/pkg/cel/library/lists.go (isSorted, sum, min, max, indexOf, lastIndexOf, includes), cel-go
ext/lists.go version 3 (slice, flatten, range, distinct, reverse, sort, first, last) and ext/sets.go.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.checking import Overload, function, method
from kubecel.closures import arithmetic
from kubecel.closures.aggregates import LIST_COST, charge_self_comparison, sort
from kubecel.errors import CelRuntimeError
from kubecel.sizes import charge_traversal, paced
from kubecel.types import (
    BOOL,
    COMPARABLE,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    LIST,
    UINT,
    A,
    list_of,
    optional_of,
)
from kubecel.values import (
    NONE,
    Duration,
    UInt,
    contains,
    equal,
    is_list,
    less,
    no_overload,
    some,
)

_SUMMABLE: Final = (INT, UINT, DOUBLE, DURATION)

Items = Sequence[Any]


def _is_sorted(budget: Budget, items: Items) -> bool:
    _charge_walk(budget, items)
    if items:
        less(items[0], items[0], "isSorted")
    return all(not less(after, before, "isSorted") for before, after in itertools.pairwise(paced(budget, items)))


_ZEROS: Final[dict[type, object]] = {int: 0, UInt: UInt(0), float: 0.0, Duration: Duration(0)}


def _sum_from(zero: object) -> Callable[[Budget, Items], object]:
    """The sum. `zero` is the sum of an empty list; its type is known from the signature."""

    def total(budget: Budget, items: Items) -> object:
        _charge_walk(budget, items)
        result = _ZEROS.get(type(items[0]), 0) if items else zero
        for item in paced(budget, items):
            if isinstance(item, str | list):
                raise no_overload("sum", items)
            result = arithmetic.add(budget, result, item)
        return result

    return total


def _extreme(name: str, sign: int) -> Callable[[Budget, Items], object]:
    def pick(budget: Budget, items: Items) -> Any:
        if not items:
            raise CelRuntimeError(f"'{name}' of an empty list")
        _charge_walk(budget, items)
        best = items[0]
        less(best, best, name)
        for item in paced(budget, items):
            better = less(item, best, name) if sign < 0 else less(best, item, name)
            best = item if better else best
        return best

    return pick


def _index_of(budget: Budget, items: Items, value: object) -> int:
    _charge_walk(budget, items)
    return next((position for position, item in enumerate(paced(budget, items)) if equal(budget, item, value)), -1)


def _last_index_of(budget: Budget, items: Items, value: object) -> int:
    _charge_walk(budget, items)
    last = len(items) - 1
    backwards = enumerate(paced(budget, reversed(items)))
    return next((last - position for position, item in backwards if equal(budget, item, value)), -1)


def _includes(budget: Budget, target: Any, value: object) -> bool:
    charge_traversal(budget, target)
    if not is_list(target):
        return equal(budget, target, value)
    return contains(budget, target, value)


def _slice(budget: Budget, items: Items, start: int, end: int) -> list[object]:
    if start < 0 or end < 0:
        raise CelRuntimeError(f"cannot slice({start}, {end}): indices are not negative")
    if start > end:
        raise CelRuntimeError(f"cannot slice({start}, {end}): the start comes after the end")
    if end > len(items):
        raise CelRuntimeError(f"cannot slice({start}, {end}): the list has {len(items)} elements")
    _charge_list(budget, end - start)
    return list(items[start:end])


def _flatten(budget: Budget, items: Items, depth: int = 1) -> list[object]:
    if depth < 0:
        raise CelRuntimeError(f"cannot flatten to a depth of {depth}: it is not negative")
    budget.items(len(items))
    budget.spend(LIST_COST + depth * len(items))
    flat = list(items)
    while depth > 0 and any(is_list(item) for item in flat):
        budget.items(sum(len(item) if is_list(item) else 1 for item in flat))
        opened: list[object] = []
        for item in flat:
            opened.extend(item if is_list(item) else (item,))
        flat, depth = opened, depth - 1
    return flat


def _range(budget: Budget, count: int) -> list[int]:
    _charge_list(budget, max(0, count))
    return list(range(count))


def _distinct(budget: Budget, items: Items) -> list[object]:
    charge_self_comparison(budget, items)
    budget.items(len(items))
    kept: list[object] = []
    for item in items:
        if not contains(budget, kept, item):
            kept.append(item)
    return kept


def _reverse(budget: Budget, items: Items) -> list[object]:
    _charge_list(budget, len(items))
    return list(items[::-1])


def _sort(budget: Budget, items: Items) -> list[object]:
    return sort(budget, list(items), list(items))


def _contains_all(budget: Budget, items: Items, wanted: Items) -> bool:
    budget.spend(len(items) * len(wanted))
    return _has_all(budget, items, wanted)


def _has_all(budget: Budget, items: Items, wanted: Items) -> bool:
    if _only_texts(budget, items) and _only_texts(budget, wanted):
        return set(items).issuperset(wanted)
    return all(contains(budget, items, item) for item in wanted)


def _equivalent(budget: Budget, items: Items, others: Items) -> bool:
    budget.spend(2 * len(items) * len(others))
    return _has_all(budget, items, others) and _has_all(budget, others, items)


def _intersects(budget: Budget, items: Items, others: Items) -> bool:
    budget.spend(len(items) * len(others))
    if _only_texts(budget, items) and _only_texts(budget, others):
        return not set(items).isdisjoint(others)
    return any(contains(budget, others, item) for item in items)


def _only_texts(budget: Budget, items: Items) -> bool:
    """Are all elements texts? Python's sets compare texts as CEL does."""
    budget.work(len(items))
    if not all(type(item) is str for item in items):
        return False
    budget.read(sum(map(len, items)))
    return True


def _charge_walk(budget: Budget, items: Items) -> None:
    """Charge reading a list once."""
    charge_traversal(budget, items)


def _charge_list(budget: Budget, count: int) -> None:
    """Charge a new list: cel-go ext/lists.go, trackListOutputSize."""
    budget.items(count)
    budget.spend(LIST_COST + count)


def _of_elements() -> list[Overload]:
    found = []
    for kind in COMPARABLE:
        of_kind = list_of(kind)
        found += [
            method("isSorted", of_kind, result=BOOL, call=_is_sorted, budgeted=True),
            method("min", of_kind, result=kind, call=_extreme("min", -1), budgeted=True),
            method("max", of_kind, result=kind, call=_extreme("max", 1), budgeted=True),
            method("sort", of_kind, result=of_kind, call=_sort, budgeted=True),
        ]
    for kind, zero in zip(_SUMMABLE, _ZEROS.values(), strict=True):
        found.append(method("sum", list_of(kind), result=kind, call=_sum_from(zero), budgeted=True))
    return found


_NESTED: Final = list_of(list_of(A))
_PAIR: Final = (list_of(A), list_of(A))

OVERLOADS: Final = (
    *_of_elements(),
    method("indexOf", list_of(A), A, result=INT, call=_index_of, budgeted=True),
    method("lastIndexOf", list_of(A), A, result=INT, call=_last_index_of, budgeted=True),
    method("includes", DYN, DYN, result=BOOL, call=_includes, budgeted=True),
    method("slice", list_of(A), INT, INT, result=list_of(A), call=_slice, budgeted=True),
    method("flatten", _NESTED, result=list_of(A), call=_flatten, budgeted=True),
    method("flatten", LIST, INT, result=LIST, call=_flatten, budgeted=True),
    method("distinct", list_of(A), result=list_of(A), call=_distinct, budgeted=True),
    method("reverse", list_of(A), result=list_of(A), call=_reverse, budgeted=True),
    method("first", list_of(A), result=optional_of(A), call=lambda items: some(items[0]) if items else NONE),
    method("last", list_of(A), result=optional_of(A), call=lambda items: some(items[-1]) if items else NONE),
    function("lists.range", INT, result=list_of(INT), call=_range, budgeted=True),
    function("sets.contains", *_PAIR, result=BOOL, call=_contains_all, budgeted=True),
    function("sets.equivalent", *_PAIR, result=BOOL, call=_equivalent, budgeted=True),
    function("sets.intersects", *_PAIR, result=BOOL, call=_intersects, budgeted=True),
)
