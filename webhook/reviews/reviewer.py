"""The interface of everything that decides about an AdmissionRequest."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision


class Reviewer(Protocol):
    """Decides about the objects of one path."""

    async def review(self, request: AdmissionRequest) -> Decision:
        """The decision. Another exception than `LaneError` is a defect of ours and becomes HTTP 500."""


@runtime_checkable
class DecidesAtOnce(Protocol):
    """A reviewer that makes most decisions without a wait: they need no task."""

    def decide_at_once(self, request: AdmissionRequest) -> Decision | None:
        """The decision that `review` would make; None, without effects, if that may wait or has more to do.

        It may raise what `review` raises; then `review` is called.
        """


def deciding_at_once(reviewer: Reviewer) -> Callable[[AdmissionRequest], Decision | None]:
    """`decide_at_once` of a reviewer, or a function that returns None if it has none."""
    return reviewer.decide_at_once if isinstance(reviewer, DecidesAtOnce) else _never


def _never(_: AdmissionRequest) -> None:
    return None
