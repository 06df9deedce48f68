"""The interface of everything that decides about an AdmissionRequest, and what it asks; its first step; its warnings.

Most reviews have nothing to wait for. Their answer needs no task: the endpoint runs the first step of `review`, and a
review that ends there is the answer. What waits, or has an effect outside this process, says so before
(`before_waiting`): the first step then ends without a decision, and the review begins again in a task.
"""

import dataclasses
import re
import textwrap
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

from conversion.asks.steering import Steering
from conversion.claims.templates import Template
from conversion.objects import pods
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding, short

Review: TypeAlias = Coroutine[Any, Any, Decision]
"""A review that has not begun."""


class Reviewer(Protocol):
    """Decides about the objects of one path."""

    def review(self, request: AdmissionRequest) -> Review:
        """The decision. Another exception than `LaneError` is a defect of ours and becomes HTTP 500."""


class Steer(Protocol):
    """Finds the policies' settings for a Pod that is being created."""

    def __call__(self, request: AdmissionRequest) -> Steering:
        """The settings. Does not raise for any content of the object."""

    def of_template(
        self, template: Mapping[str, object], namespace: str, owner: Mapping[str, object] | None = None
    ) -> Steering:
        """The settings for the pods that a workload creates from a pod template."""

    def fixed(self, namespace: str) -> "Steer":
        """The same with the namespace's current facts, for use outside the event loop."""


class SteerTemplate(Protocol):
    """Finds the policies' settings for the pods of a pod template."""

    def __call__(
        self, template: Mapping[str, object], namespace: str, owner: Mapping[str, object] | None = None
    ) -> Steering:
        """The settings. Does not raise for any content of the template. `owner`: the workload with the template."""


class TemplateStore(Protocol):
    """ResourceClaimTemplates of converted pods."""

    def holds(self, namespace: str, template: Template) -> bool:
        """Whether exactly this template is known to exist. Reads the cache."""

    async def ensure(self, namespace: str, template: Template) -> None:
        """Create the template in the namespace unless it exists.

        Raises:
            TemplateUnavailableError: it does not exist and cannot be created.
        """

    async def check(self, namespace: str, template: Template) -> bool:
        """Whether the template exists in the namespace. For a dry run: creates and changes nothing.

        Raises:
            TemplateUnavailableError: `ensure` would fail: another object has its name, or the API server does not
                answer.
        """

    def other(self, namespace: str, template: Template) -> int | None:
        """What stands in the place of the template of a ClaimTemplate policy. Reads the cache.

        Returns:
            Its version, if it is one of this version with another spec, or of a later version; 0 for another template,
            which stays; None if there is neither: `ensure` creates it, also in the place of an earlier version.
        """

    async def read(self, namespace: str, name: str) -> "FoundTemplate":
        """Find the template of an operator. Reads the cache first.

        Raises:
            TemplateUnavailableError: the API server does not answer.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class FoundTemplate:
    """The template of an operator.

    Attributes:
        spec: its requests; None if it does not exist, cannot be read, or is not known.
        missing: whether it does not exist in the namespace.
        elsewhere: whether a missing template exists in another namespace.
        known: whether there is a cluster to ask.
    """

    spec: ClaimSpec | None = None
    missing: bool = False
    elsewhere: bool = False
    known: bool = True


class TemplateUnavailableError(Exception):
    """A template that a pod needs does not exist and cannot be created.

    Attributes:
        finding: cause and fix, for the user.
        status_code: HTTP status of the API server's answer; 503 if it is unreachable.
        status_reason: the matching `metav1.StatusReason`.
    """

    def __init__(self, finding: Finding, status_code: int, status_reason: str) -> None:
        super().__init__(str(finding))
        self.finding = finding
        self.status_code = status_code
        self.status_reason = status_reason


class OtherTemplateError(TemplateUnavailableError):
    """Another template stands in the place of one of a ClaimTemplate policy; pods use that.

    Attributes:
        version: as of `TemplateStore.other`.
    """

    def __init__(self, finding: Finding, version: int) -> None:
        super().__init__(finding, HTTPStatus.CONFLICT, "Conflict")
        self.version = version


class Refusals(Protocol):
    """Receives refused conversions."""

    def refused(self, request: AdmissionRequest, decision: Decision) -> None:
        """Report a refusal. Called before the answer is sent: does not block or raise."""


# --- the first step ---------------------------------------------------------------------------------------------------

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


# --- what a reviewer says ---------------------------------------------------------------------------------------


def unreadable(request: AdmissionRequest, error: Exception) -> Finding:
    """The error for an object that cannot be decoded."""
    message = f"the object is not a readable {request.kind.kind}: {short(str(error))}."
    return Finding("NEU114", pods.place(error)[0], message, "Compare it with the API reference of its kind.")


COMFORTABLE_WARNING: Final = 120
"""Characters. The API's documentation recommends this length (AdmissionResponse.warnings)."""
_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z])")


def fitting(finding: Finding) -> tuple[Finding, ...]:
    """The finding, or one finding per line of its sentences, so that no warning is too long."""
    room = COMFORTABLE_WARNING - len(f"{finding.code}: ")
    if max(len(finding.message), len(finding.fix)) <= room:
        return (finding,)
    text = f"{finding.message} {finding.fix}".rstrip()
    return tuple(dataclasses.replace(finding, message=line, fix="") for line in _lines(text, room))


def _lines(text: str, room: int) -> Iterator[str]:
    """Lines of whole sentences; a sentence that is too long is broken between words."""
    line = ""
    for sentence in _SENTENCE_END.split(text):
        for part in textwrap.wrap(sentence, room, break_on_hyphens=False):
            if line and len(line) + 1 + len(part) > room:
                yield line
                line = ""
            line = f"{line} {part}".lstrip()
    if line:
        yield line
