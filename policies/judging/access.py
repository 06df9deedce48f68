"""Answers to the questions that expressions ask of `authorizer`. Pure: a server looks them up between evaluations."""

from collections.abc import Iterable
from typing import Final

from kubecel.engine import Program
from kubecel.errors import CelRuntimeError
from kubecel.library.authorization import AccessDecision, Question

NAME: Final = "authorizer"


class UnansweredError(Exception):
    """The evaluation needs an answer. It is pure, so it is repeated when the answer is there."""

    def __init__(self, question: Question) -> None:
        super().__init__(str(question))
        self.question = question


def ask_nobody(question: Question) -> AccessDecision:
    """The answer where no cluster is.

    Raises:
        CelRuntimeError: always.
    """
    raise CelRuntimeError(
        f"only a cluster knows the permissions of its users, and this is evaluated without one; asked was {question}:"
        " let a webhook in the cluster decide, or give the answer in `access` of a test"
    )


def asks(programs: Iterable[Program]) -> bool:
    """Whether an expression reads `authorizer`."""
    return any(path[0] == NAME for program in programs for path in program.references)
