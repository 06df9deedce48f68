"""Shared by the tests of the engine: compile and evaluate in one call."""

import difflib
import functools
from collections.abc import Iterable, Mapping

from kubecel.budget import Budget, Limits
from kubecel.compile import Cel, Program
from kubecel.types import DYN, Type

_LONGEST_WORD = 128


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A `kubecel.closures.compiler.Hint`. Comparison takes quadratic time, and a longer text is no misspelt name."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.7) if len(word) <= _LONGEST_WORD else []
    return f" Did you mean '{close[0]}'?" if close else ""


ENGINE = Cel(hint=did_you_mean)


def compiled(source: str, names: Mapping[str, object] | None = None) -> Program:
    """A program; the type of all variables is dyn. The same program is compiled once."""
    return _compiled(source, tuple(names or ()))


@functools.lru_cache(maxsize=256)
def _compiled(source: str, names: tuple[str, ...]) -> Program:
    variables: dict[str, Type] = dict.fromkeys(names, DYN)
    return ENGINE.compile(source, variables)


def value(source: str, **variables: object) -> object:
    """The value of an expression with these variables."""
    return compiled(source, variables).evaluate(variables, Budget(frozen_clock))


def frozen_clock() -> float:
    """A clock that does not advance."""
    return 0.0


def limited(source: str, limits: Limits, **variables: object) -> object:
    """The value of an expression within these limits; the clock does not advance."""
    program = Cel(limits, hint=did_you_mean).compile(source, dict.fromkeys(variables, DYN))
    return program.evaluate(variables, Budget(frozen_clock, limits))
