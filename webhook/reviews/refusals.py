"""Reports denied conversions, which become Events."""

from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision
from conversion.ports import Refusals
from webhook.reviews.reviewer import Reviewer, before_waiting


class RefusalReporter:
    """Calls another reviewer and reports its denials, except those of dry runs."""

    def __init__(self, inner: Reviewer, refusals: Refusals) -> None:
        self._inner = inner
        self._refusals = refusals

    async def review(self, request: AdmissionRequest) -> Decision:
        decision = await self._inner.review(request)
        if decision.errors and not request.dryRun:
            await before_waiting()
            self._refusals.refused(request, decision)
        return decision
