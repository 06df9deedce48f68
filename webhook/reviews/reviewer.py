"""The interface of everything that decides about an AdmissionRequest, and its first step.

Most reviews have nothing to wait for. Their answer needs no task: the endpoint runs the first step of `review`, and a
review that ends there is the answer. What waits, or has an effect outside this process, says so before
(`before_waiting`): the first step then ends without a decision, and the review begins again in a task.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision


class Reviewer(Protocol):
    """Decides about the objects of one path."""

    def review(self, request: AdmissionRequest) -> Coroutine[Any, Any, Decision]:
        """The decision. Another exception than `LaneError` is a defect of ours and becomes HTTP 500."""


async def before_waiting() -> None:
    """Await it before a wait for another thread, process or server, and before an effect outside this process."""
    await asyncio.sleep(0)


def first_step(review: Coroutine[Any, Any, Decision]) -> Decision | None:
    """The decision of a review that ends without a wait; None, without effects, if it would wait.

    It raises what the review raises in its first step.
    """
    try:
        review.send(None)
    except StopIteration as ended:
        decision: Decision = ended.value
        return decision
    review.close()
    return None
