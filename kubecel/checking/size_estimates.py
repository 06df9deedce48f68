"""Sizes and costs of an estimate: unsigned integers of 64 bits that stay at the largest instead of overflowing.

Source: cel-go checker/cost.go (SizeEstimate, CostEstimate, multiplyByCostFactor).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Final, TypeAlias

UNLIMITED: Final = 2**64 - 1
TRAVERSAL: Final = 0.1
"""Cost of looking at one character (StringTraversalCostFactor)."""
PATTERN: Final = 0.25
"""Cost of a character of a regular expression, for every character it looks at (RegexStringLengthCostFactor)."""
NEW_LIST: Final = 10
NEW_MAP: Final = 30


def capped(number: int) -> int:
    """The number, or the largest one."""
    return min(number, UNLIMITED)


def wrapped(number: int) -> int:
    """The lowest 64 bits: a few sizes overflow in cel-go, and the API server's limit is held against what comes out."""
    return number % 2**64


def scaled(number: int, factor: float) -> int:
    """The product, rounded up, in double precision as Go computes it."""
    product = float(number) * factor
    return UNLIMITED if product >= 2.0**64 else math.ceil(product)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """The least and the most characters, bytes, elements or entries that a value may have."""

    least: int
    most: int

    def plus(self, other: "Size") -> "Size":
        """The size of both together."""
        return Size(capped(self.least + other.least), capped(self.most + other.most))

    def times(self, other: "Size") -> "Size":
        """The product."""
        return Size(capped(self.least * other.least), capped(self.most * other.most))

    def union(self, other: "Size") -> "Size":
        """The size of the one or the other."""
        return Size(min(self.least, other.least), max(self.most, other.most))

    def cost(self, factor: float) -> int:
        """The most that it costs to look at all of it, at that cost each."""
        return scaled(self.most, factor)


UNKNOWN: Final = Size(0, UNLIMITED)


def fixed(size: int) -> Size:
    """The size of what always has the same."""
    return Size(size, size)


Path: TypeAlias = tuple[str, ...]
"""From a root variable on: names of fields, `@items` of a list, `@keys` and `@values` of a map; empty: unknown."""
SizeOf: TypeAlias = Callable[[Path], Size | None]
"""How large what lies at a path may get; None where nothing is declared."""


@dataclasses.dataclass(frozen=True, slots=True)
class CostLimit:
    """What an expression may cost by its estimate.

    Attributes:
        most: the highest cost that is allowed, in the API server's units.
        size_of: sizes of the variables.
    """

    most: int
    size_of: SizeOf
