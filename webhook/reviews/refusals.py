"""Tells of refused conversions beside the answer to whoever was refused."""

from webhook.decisions.decision import Decision
from webhook.decisions.ports import Refusals
from webhook.decisions.wire import AdmissionRequest
from webhook.reviews.reviewer import Reviewer


class TellingReviewer:
    """Lets another reviewer decide, and tells of its refusals; what was only tried (dry run) is nobody's news."""

    def __init__(self, inner: Reviewer, refusals: Refusals) -> None:
        self._inner = inner
        self._refusals = refusals

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review."""
        decision = await self._inner.review(request)
        if decision.errors and not request.dryRun:
            self._refusals.refused(request, decision)
        return decision
