"""The interface of everything that decides about an AdmissionRequest."""

from typing import Protocol

from webhook.decisions.decision import Decision
from webhook.decisions.wire import AdmissionRequest


class Reviewer(Protocol):
    """Decides about the objects of one path."""

    async def review(self, request: AdmissionRequest) -> Decision:
        """The decision. Another exception than `LaneError` is a defect of ours and becomes HTTP 500."""
