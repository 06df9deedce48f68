"""Reports denied conversions, which become Events."""

from webhook.decisions.decision import Decision
from webhook.decisions.ports import Refusals
from webhook.decisions.wire import AdmissionRequest
from webhook.reviews.reviewer import Reviewer


class ReportingReviewer:
    """Calls another reviewer and reports its denials, except those of dry runs."""

    def __init__(self, inner: Reviewer, refusals: Refusals) -> None:
        self._inner = inner
        self._refusals = refusals

    async def review(self, request: AdmissionRequest) -> Decision:
        decision = await self._inner.review(request)
        if decision.errors and not request.dryRun:
            self._refusals.refused(request, decision)
        return decision
