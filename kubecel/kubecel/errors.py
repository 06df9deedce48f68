"""The errors of the engine.

CelError
  CelCompileError          the expression can never be evaluated
    CelSyntaxError         it is not CEL
    CelTypeError           an unknown name or field, or operands of types that never match
    CelUnsupportedError    CEL that this engine does not support
  CelRuntimeError          it could not be evaluated on these values
  CelBudgetExceededError   it was stopped: too many steps, too much time, or values that are too large
"""

from typing import Final

_EXCERPT_WIDTH: Final = 100
_QUOTED: Final = 100


class CelError(Exception):
    """An error of an expression, with its position.

    Attributes:
        message: one sentence, without the position.
        source: the expression; empty if it is not known yet.
        offset: character offset into `source`, None if the error has no position.
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
        """The line of the error with a caret under the position; empty if one of them is not known."""
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
    """It uses an unknown name or field, or operands of types that never match."""


class CelUnsupportedError(CelCompileError):
    """It uses CEL that this engine does not support."""


class CelRuntimeError(CelError):
    """It could not be evaluated on these values. `&&`, `||`, `all` and `exists` may absorb it, as in CEL."""


class CelBudgetExceededError(CelError):
    """The evaluation was stopped. No operator absorbs this error."""


class CelSizeExceededError(CelBudgetExceededError):
    """It builds a value that is too large."""


class CelTimeExceededError(CelBudgetExceededError):
    """Its time is used up. Retryable: the next attempt may have more time."""


class CelCostExceededError(CelBudgetExceededError):
    """Its estimated cost is above the limit. The result is the same on every machine. Not retryable."""


def quoted(text: str) -> str:
    """A text in quotes, for messages; a long one is cut."""
    return f"'{text}'" if len(text) <= _QUOTED else f"'{text[:_QUOTED]}…'"
