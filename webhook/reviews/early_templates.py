"""`/validate` of workloads: makes the templates of ClaimTemplate policies before there are pods.

So programs that read the templates of a workload find them, such as Kueue, which counts devices by them. Nothing
depends on it: the review of each pod makes what is missing.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

from conversion.asks.steering import SteerTemplate
from conversion.claims.templates import Template
from conversion.findings.named_templates import other
from conversion.objects import nesting
from conversion.objects.kinds import KINDS, pods_of
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision
from conversion.ports import OtherTemplateError, TemplateStore, TemplateUnavailableError
from neuron.findings import Finding
from webhook.reviews.reviewer import Reviewer, before_waiting
from webhook.reviews.worker_threads import LARGE_OBJECT
from webhook.reviews.workloads import MOST_TEMPLATES

_SECONDS: Final = 0.5
"""Time for all templates of a workload, of the two seconds that the API server gives its review."""


class EarlyTemplates:
    """Calls another reviewer, and makes the templates that an admitted workload names."""

    def __init__(
        self, inner: Reviewer, steer: SteerTemplate, templates: TemplateStore, finds: Callable[[bytes], object]
    ) -> None:
        """Prepare. `finds`: as `finder` returns."""
        self._inner = inner
        self._steer = steer
        self._templates = templates
        self._finds = finds

    async def review(self, request: AdmissionRequest) -> Decision:
        """The other reviewer's decision; NEU721 for each template in whose place the namespace has another."""
        decision = await self._inner.review(request)
        if decision.errors or decision.reason != "valid" or request.dryRun or not request.namespace:
            return decision
        kind, raw = request.kind, bytes(request.object)
        if kind.kind == "Pod" or (kind.group, kind.kind) not in KINDS:
            return decision
        if len(raw) > LARGE_OBJECT or not self._finds(raw):
            return decision
        named = {each.name: each for each in self._named(request, raw)}
        found: list[Finding] = []
        missing: list[Template] = []
        for each in named.values():
            if self._templates.holds(request.namespace, each):
                continue
            version = self._templates.other(request.namespace, each)
            if version is None:
                missing.append(each)
            else:
                found.append(other(request.namespace, each, version))
        if missing:
            await before_waiting()
            with contextlib.suppress(TimeoutError):  # The attempt goes on, and pods look again.
                async with asyncio.timeout(_SECONDS):
                    for template in missing:
                        found += await self._made(request.namespace, template)
        return dataclasses.replace(decision, warnings=(*decision.warnings, *found)) if found else decision

    def _named(self, request: AdmissionRequest, raw: bytes) -> Iterator[Template]:
        data = nesting.decode(raw)
        for number, place in enumerate(pods_of(data, request.kind.group, request.kind.kind)):
            if number >= MOST_TEMPLATES:
                return
            yield from self._steer(place.template, request.namespace, data).named

    async def _made(self, namespace: str, template: Template) -> list[Finding]:
        try:
            await self._templates.ensure(namespace, template)
        except OtherTemplateError as error:
            return [error.finding]
        except TemplateUnavailableError:
            pass  # The reviews of pods say it.
        return []
