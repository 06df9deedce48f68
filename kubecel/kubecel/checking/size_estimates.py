"""Sizes and costs of an estimate: unsigned 64-bit integers that saturate instead of overflowing.

Source: cel-go checker/cost.go (SizeEstimate, CostEstimate, multiplyByCostFactor).
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Final, TypeAlias

UNLIMITED: Final = 2**64 - 1
TRAVERSAL: Final = 0.1
"""Cost of reading one character (StringTraversalCostFactor)."""
PATTERN: Final = 0.25
"""Cost of one character of a regular expression for each character of the text (RegexStringLengthCostFactor)."""
NEW_LIST: Final = 10
NEW_MAP: Final = 30


def capped(number: int) -> int:
    """The number, at most 2^64 - 1."""
    return min(number, UNLIMITED)


def wrapped(number: int) -> int:
    """The lowest 64 bits: a few sizes overflow in cel-go, and the API server compares the result with its limit."""
    return number % 2**64


def scaled(number: int, factor: float) -> int:
    """The product, rounded up, in double precision like Go."""
    product = float(number) * factor
    return UNLIMITED if product >= 2.0**64 else math.ceil(product)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """The lowest and the highest number of characters, bytes, elements or entries of a value."""

    least: int
    most: int

    def plus(self, other: "Size") -> "Size":
        """The size of both together."""
        return Size(capped(self.least + other.least), capped(self.most + other.most))

    def times(self, other: "Size") -> "Size":
        return Size(capped(self.least * other.least), capped(self.most * other.most))

    def union(self, other: "Size") -> "Size":
        return Size(min(self.least, other.least), max(self.most, other.most))

    def cost(self, factor: float) -> int:
        """The highest cost of reading all of it; `factor` is the cost of one part."""
        return scaled(self.most, factor)


UNKNOWN: Final = Size(0, UNLIMITED)


def fixed(size: int) -> Size:
    """The size of a value that always has this size."""
    return Size(size, size)


Path: TypeAlias = tuple[str, ...]
"""A variable, then names of fields, `@items` of a list, `@keys` and `@values` of a map; empty if unknown."""
SizeOf: TypeAlias = Callable[[Path], Size | None]
"""The declared size of the value at a path; None if there is none."""


@dataclasses.dataclass(frozen=True, slots=True)
class CostLimit:
    """The limit of an estimate.

    Attributes:
        most: the highest allowed cost, in the API server's units.
        size_of: sizes of the variables.
    """

    most: int
    size_of: SizeOf
