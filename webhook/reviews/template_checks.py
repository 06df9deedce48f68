"""Checks that the templates of operators, which ConversionPolicies name, exist and serve the pods that get them."""

from typing import Final

from checks.claims.judging import ClaimContext, ReadSpec
from cluster.store import Store
from conversion.asks.conversion_context import ConversionOptions, conversion_context
from conversion.claims.mapped_templates import Need
from conversion.findings.named_templates import differs, judged, missing, unchecked
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding
from neuron.hardware.instances import Catalogue
from policies.judging.selectors import claim_context
from runtime.remembered import Remembered
from webhook.reviews import effort
from webhook.reviews.reviewer import FoundTemplate, TemplateStore
from webhook.reviews.slices import working_time
from webhook.reviews.worker_threads import Inline, Lane

_REMEMBERED: Final = 1024 * 1024
"""Bytes of cached answers."""


class TemplateChecks:
    """Checks templates of operators, and keeps the answers until a template or the cluster's facts change."""

    def __init__(
        self,
        options: ConversionOptions,
        catalogue: Catalogue,
        cluster: Store,
        templates: TemplateStore,
        lane: Lane | None = None,
    ) -> None:
        self._options = options
        self._catalogue = catalogue
        self._cluster = cluster
        self._templates = templates
        self._lane = lane or Inline()
        self._context: ClaimContext | None = None
        self._seen = (-1, -1)
        self._answers: Remembered[tuple[str, str, int], tuple[Need, ClaimSpec, Finding | None]] = Remembered(
            _REMEMBERED
        )

    async def find(self, namespace: str, need: Need) -> Finding | None:
        """An error if the template does not exist or does not serve the pod; NEU230 if nothing is known of it.

        Raises:
            TemplateUnavailableError: the API server does not answer.
            webhook.reviews.worker_threads.LaneError: no answer in time.
        """
        found = FoundTemplate(need.mapped.spec)
        if need.mapped.inline is None:
            found = await self._templates.read(namespace, need.mapped.name)
        if not found.known:
            return unchecked(need, namespace, "no cluster is connected")
        spec = found.spec
        if found.missing:
            return missing(need, namespace, elsewhere=found.elsewhere)
        if spec is None:
            return differs(need, namespace, "it cannot be read")
        context = self._current()
        key = (namespace, need.mapped.name, id(need))
        known = self._answers.get(key)
        if known is not None and known[0] is need and known[1] is spec:
            return known[2]
        seconds = effort.of_judging([ReadSpec(spec, ())], 0, context)
        answer = await self._lane.run(namespace, lambda: judged(need, namespace, spec, context, working_time), seconds)
        if context is self._context:
            self._answers.put(key, (need, spec, answer), 0)
        return answer

    def _current(self) -> ClaimContext:
        seen = (self._cluster.version, self._cluster.claim_version)
        if self._context is None or seen != self._seen:
            self._seen = seen
            self._answers.clear()
            known = conversion_context(self._options, self._catalogue, self._cluster)
            self._context = claim_context(self._options, known.catalogue, self._cluster)
        return self._context
