"""The errors of the engine.

CelError
  CelCompileError          the expression can never be evaluated
    CelSyntaxError         it is not CEL
    CelTypeError           an unknown name or field, or operands that never fit
    CelUnsupportedError    CEL that this engine does not evaluate
  CelRuntimeError          it could not be evaluated on these values
  CelBudgetExceededError   it was stopped: too many steps, too much time or too large values
"""

from typing import Final

_EXCERPT_WIDTH: Final = 100
_QUOTED: Final = 100


class CelError(Exception):
    """What is wrong with an expression, and where.

    Attributes:
        message: one sentence without position.
        source: the expression; empty until it is known.
        offset: character offset into `source`, or None where no place is to blame.
    """

    def __init__(self, message: str, offset: int | None = None, source: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.source = source

    @property
    def line(self) -> int:
        """Line, from 1."""
        return self.source.count("\n", 0, self.offset or 0) + 1

    @property
    def column(self) -> int:
        """Column in characters, from 1."""
        offset = self.offset or 0
        return offset - (self.source.rfind("\n", 0, offset) + 1) + 1

    @property
    def excerpt(self) -> str:
        """The offending line with a caret under the offending place; empty where either is unknown."""
        if self.offset is None or not self.source:
            return ""
        text = self.source.split("\n")[self.line - 1]
        start = max(0, self.column - 1 - _EXCERPT_WIDTH // 2)
        shown = text[start : start + _EXCERPT_WIDTH].replace("\t", " ")
        return f" | {shown}\n | {'.' * (self.column - 1 - start)}^"

    def __str__(self) -> str:
        """Message and position on one line."""
        if self.offset is None:
            return self.message
        return f"{self.message} (line {self.line}, column {self.column})"


class CelCompileError(CelError):
    """The expression can never be evaluated."""


class CelSyntaxError(CelCompileError):
    """It is not CEL."""


class CelTypeError(CelCompileError):
    """It uses an unknown name or field, or operands that never fit."""


class CelUnsupportedError(CelCompileError):
    """It uses CEL that this engine does not evaluate."""


class CelRuntimeError(CelError):
    """It could not be evaluated on these values. `&&`, `||`, `all` and `exists` may absorb it, as in CEL."""


class CelBudgetExceededError(CelError):
    """It was stopped. Nothing absorbs this."""


class CelSizeExceededError(CelBudgetExceededError):
    """It would build too large a value."""


class CelTimeExceededError(CelBudgetExceededError):
    """Its time was over. That says nothing of the expression: there may be more time at the next attempt."""


class CelCostExceededError(CelBudgetExceededError):
    """Its estimated cost is above the limit. That is so on every machine, whatever time there is."""


def quoted(text: str) -> str:
    """A text as messages show it: a long one is cut."""
    return f"'{text}'" if len(text) <= _QUOTED else f"'{text[:_QUOTED]}…'"
