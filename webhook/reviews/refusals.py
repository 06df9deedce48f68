"""Writes refused conversions to Events, beside the answer."""

from webhook.decisions.decision import Decision
from webhook.decisions.ports import Refusals
from webhook.decisions.wire import AdmissionRequest
from webhook.reviews.reviewer import Reviewer


class ReportingReviewer:
    """Lets another reviewer decide, and reports its refusals. A dry run is not reported."""

    def __init__(self, inner: Reviewer, refusals: Refusals) -> None:
        self._inner = inner
        self._refusals = refusals

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review."""
        decision = await self._inner.review(request)
        if decision.errors and not request.dryRun:
            self._refusals.refused(request, decision)
        return decision
