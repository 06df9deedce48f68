"""Explanations as one text: the command writes them page by page."""

from collections.abc import Iterable, Sequence

from commands.explain import render
from commands.explain.explanation import Explanation
from runtime.console import Style


def as_text(explanations: Iterable[Explanation], style: Style) -> str:
    """Text for people."""
    return "".join(render.as_text(explanations, style))


def as_json(explanations: Sequence[Explanation]) -> str:
    """JSON for programs."""
    return "".join(render.as_json(explanations))
