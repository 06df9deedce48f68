"""Reports denied conversions, which become Events."""

from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision
from conversion.ports import Refusals
from webhook.reviews.reviewer import Reviewer, deciding_at_once


class RefusalReporter:
    """Calls another reviewer and reports its denials, except those of dry runs."""

    def __init__(self, inner: Reviewer, refusals: Refusals) -> None:
        self._inner = inner
        self._at_once = deciding_at_once(inner)
        self._refusals = refusals

    def decide_at_once(self, request: AdmissionRequest) -> Decision | None:
        """The other reviewer's decision, unless it has to be reported."""
        decision = self._at_once(request)
        return None if decision is None or decision.errors else decision

    async def review(self, request: AdmissionRequest) -> Decision:
        decision = await self._inner.review(request)
        if decision.errors and not request.dryRun:
            self._refusals.refused(request, decision)
        return decision
