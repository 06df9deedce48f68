"""Counts the work of planning claims before it is done, so that a caller can bound it.

A unit is one request on one kind of instance type, with all that is tried for it: up to 0.2 ms. A request for cores has
two, because it is for different devices on each kind. The bound is a number of units and no time, so equal pods are
decided in the same way everywhere.

What is remembered takes no work: the server remembers little, and a command that reads a list of pods more.
"""

import functools
import math
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Final, Generic, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

Pause = Callable[[], object]
"""Called between two parts of the work. May wait, or raise an exception that ends it."""


class TooMuchWorkError(Exception):
    """A claim takes more work than is left. It was not planned.

    Attributes:
        units: of the claim.
    """

    def __init__(self, units: int) -> None:
        super().__init__(f"the claim takes {units} units of work")
        self.units = units


class WorkAllowance:
    """Units that are left for all claims of one decision.

    As a context: claims are planned inside it within this allowance; those that are remembered cost nothing.
    """

    def __init__(self, units: float = math.inf, pause: Pause | None = None) -> None:
        self._left = units
        self._pause = pause
        self._token: Token[WorkAllowance] | None = None

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)

    def spend(self, units: int) -> None:
        """Count a claim.

        Raises:
            TooMuchWorkError: more than is left.
        """
        if units > self._left:
            raise TooMuchWorkError(units)
        self._left -= units

    def pause(self) -> None:
        """Give way to others."""
        if self._pause is not None:
            self._pause()


class Results(Generic[_Arguments, _Result]):
    """The last results of a function, as `functools.lru_cache` keeps them, and more of them for lists.

    Attributes:
        of: the function, or what it has returned for the same arguments.
    """

    def __init__(self, function: Callable[_Arguments, _Result], most: int, for_lists: int) -> None:
        """Remember so many results."""
        self._function = function
        self._for_lists = for_lists
        self._keep(most)
        _keeping.append(self.keep_for_lists)

    def keep_for_lists(self) -> None:
        """Remember as many as lists need."""
        if self.cache_info().maxsize != self._for_lists:
            self._keep(self._for_lists)

    def _keep(self, most: int) -> None:
        cached = functools.lru_cache(maxsize=most)(self._function)
        self.of: Callable[_Arguments, _Result] = cached
        self.cache_clear = cached.cache_clear
        self.cache_info = cached.cache_info


_keeping: Final[list[Callable[[], None]]] = []


def remember_lists() -> None:
    """Remember as much as lists of pods need: of 20,000 that all differ, half have the claim of another one.

    That takes up to 60 MiB. For commands: the memory of the server is that of a few hundred plans.
    """
    for keep in _keeping:
        keep()


_UNLIMITED = WorkAllowance()
_current: ContextVar[WorkAllowance] = ContextVar("allowance", default=_UNLIMITED)


def current() -> WorkAllowance:
    """The allowance of the decision that is being made; without limit outside of one."""
    return _current.get()
