"""Counts the work of planning claims before it is done, so that a caller can bound it.

A unit is one request on one kind of instance type, with all that is tried for it: up to 0.2 ms. A request for cores has
two, because it is for different devices on each kind. The bound is a number of units and no time, so equal pods are
decided in the same way everywhere.
"""

import math
from collections.abc import Callable
from contextvars import ContextVar, Token

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


_UNLIMITED = WorkAllowance()
_current: ContextVar[WorkAllowance] = ContextVar("allowance", default=_UNLIMITED)


def current() -> WorkAllowance:
    """The allowance of the decision that is being made; without limit outside of one."""
    return _current.get()
