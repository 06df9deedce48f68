"""What answers a review."""

from typing import Protocol

from webhook.decisions.decision import Decision
from webhook.decisions.wire import AdmissionRequest


class Reviewer(Protocol):
    """Decides about objects; one per path."""

    async def review(self, request: AdmissionRequest) -> Decision:
        """The decision; an exception is a fault of ours and becomes HTTP 500."""
