"""The sizes by which values are charged, and charged reads of values.

Source: cel-go interpreter/runtimecost.go and k8s.io/apiserver pkg/cel/library/cost.go.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.errors import CelBudgetExceededError
from kubecel.values import MAX_DEPTH, WORK_OF_A_PAIR, Optional, is_list

_AT_ONCE: Final = 256


def size_of(value: object) -> int:
    """The size by which Kubernetes charges a value (cel-go interpreter/runtimecost.go, actualSize)."""
    if isinstance(value, str | bytes | Mapping | list | tuple):
        return len(value)
    if isinstance(value, Optional) and value.present:
        return size_of(value.value)
    return 1


def bytes_of(text: str) -> int:
    """The number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def charge_pair(budget: Budget, a: object, b: object) -> None:
    """Charge the comparison of two values, without the 1 of the call."""
    budget.scan(min(size_of(a), size_of(b)))


def charge_traversal(budget: Budget, value: object) -> None:
    """Charge reading a value with all its leaves, without the 1 of the call.

    A tenth of the characters of each text, 1 for any other leaf (k8s.io/apiserver cel/library/cost.go, traversalCost).
    Finding the leaves is charged as work; a value that is used at several places is charged at each.
    """
    budget.spend(_traversal(budget, value, 0) - 1)


def _traversal(budget: Budget, value: Any, depth: int) -> int:
    if isinstance(value, str):
        return bytes_of(value) // 10
    if isinstance(value, bytes):
        return len(value) // 10
    if isinstance(value, Mapping):
        parts: Iterable[object] = itertools.chain.from_iterable(value.items())
    elif is_list(value):
        parts = value
    else:
        return 1
    if depth > MAX_DEPTH:
        raise CelBudgetExceededError(f"values nested deeper than {MAX_DEPTH} levels are not compared")
    budget.work(WORK_OF_A_PAIR)
    return sum(_traversal(budget, part, depth + 1) for part in paced(budget, parts))


def paced(budget: Budget, values: Iterable[object]) -> Iterator[object]:
    """The values one by one; each is charged as work before it is read."""
    remaining = iter(values)
    while part := list(itertools.islice(remaining, _AT_ONCE)):
        budget.work(WORK_OF_A_PAIR * len(part))
        yield from part
