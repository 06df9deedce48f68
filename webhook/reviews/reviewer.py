"""The interface of everything that decides about an AdmissionRequest, and its first step.

Most reviews have nothing to wait for. Their answer needs no task: the endpoint runs the first step of `review`, and a
review that ends there is the answer. What waits, or has an effect outside this process, says so before
(`before_waiting`): the first step then ends without a decision, and the review begins again in a task.
"""

import threading
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeAlias

from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision

Review: TypeAlias = Coroutine[Any, Any, Decision]
"""A review that has not begun."""


class Reviewer(Protocol):
    """Decides about the objects of one path."""

    def review(self, request: AdmissionRequest) -> Review:
        """The decision. Another exception than `LaneError` is a defect of ours and becomes HTTP 500."""


_thread: Final = threading.local()


@types.coroutine
def before_waiting() -> Generator[None, None, None]:
    """Await it before a wait for another thread, process or server, and before an effect outside this process.

    It ends a first step. In a task it costs nothing: an iteration of the event loop takes as long as a short review.
    """
    if getattr(_thread, "first_step", False):
        yield


class FirstSteps:
    """Runs first steps, all by one generator that awaits one review after the other. For one thread: the event loop's.

    A review that ends inside another generator raises no StopIteration, which would cost more than a decision about a
    pod without Neuron devices.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._steps = _awaiting()
        self._send: Callable[[Review], Decision | None] = self._steps.send
        next(self._steps)

    def __call__(self, review: Review) -> Decision | None:
        """The decision of a review that ends without a wait; None, without effects, if it would wait.

        It raises what the review raises in its first step.
        """
        _thread.first_step = True
        try:
            decision = self._send(review)
        except BaseException:
            self._begin()
            raise
        finally:
            _thread.first_step = False
        if decision is None:
            self._steps.close()  # It closes the review, too.
            self._begin()
        return decision


@types.coroutine
def _awaiting() -> Generator[Decision | None, Review, None]:
    decision = None
    while True:
        review = yield decision
        decision = yield from review
