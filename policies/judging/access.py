"""Answers to the questions that expressions ask of `authorizer`. Pure: a server looks them up between evaluations."""

from collections.abc import Iterable
from typing import Final

from kubecel.engine import Program
from kubecel.errors import CelRuntimeError
from kubecel.library.authorization import AccessDecision, Question

NAME: Final = "authorizer"


class UnansweredError(Exception):
    """An evaluation ended at a permission that was not looked up yet. Its caller looks it up, and evaluates again."""

    def __init__(self, question: Question) -> None:
        super().__init__(str(question))
        self.question = question


def ask_nobody(question: Question) -> AccessDecision:
    """For evaluations without an API server.

    Raises:
        CelRuntimeError: always.
    """
    raise CelRuntimeError(
        f"the permission {question} is not known, because there is no API server to ask here: in a test, give the"
        " answer in `access`"
    )


def asks(programs: Iterable[Program]) -> bool:
    """Whether an expression reads `authorizer`."""
    return any(path[0] == NAME for program in programs for path in program.references)
