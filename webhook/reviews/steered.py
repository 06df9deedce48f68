"""`/mutate` with policies: each set of policies gets a new `Mutator`."""

import functools

from cluster.answers import ServerView
from conversion.asks.conversion_context import ConversionOptions
from conversion.findings.verification import Sources
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision, denied
from conversion.ports import TemplateStore
from policies.applying.knowledge import ReviewAccess, review_nothing
from policies.applying.steering import SteeringRefusedError, finder
from policies.files.store import PolicyStore
from policies.judging.evaluate import TakesLongError
from policies.judging.rules import PolicySet
from webhook.reviews.mutate import Mutator
from webhook.reviews.policy_allowance import ON_LOOP, Allowance, Execution, run_with_retry
from webhook.reviews.policy_changes import PolicyChanges
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_steering import PolicySteer
from webhook.reviews.queue_notices import QueueNotices
from webhook.reviews.template_checks import TemplateChecks
from webhook.reviews.worker_threads import Inline, Lane


class SteeredMutator:
    """`/mutate` with policies: each new set of policies gets a new `Mutator` with an empty cache."""

    def __init__(
        self,
        options: ConversionOptions,
        store: PolicyStore,
        view: ServerView,
        templates: TemplateStore,
        lane: Lane | None = None,
        allowance: Allowance | None = None,
        metrics: PolicyMetrics | None = None,
        review: ReviewAccess = review_nothing,
    ) -> None:
        """Arguments as of `Mutator`; `allowance` limits the time of policies on the event loop.

        `review` looks up permissions.
        """
        self._review = review
        self._metrics = metrics
        self._allowance = allowance or Allowance()
        self._lane = lane or Inline()
        self._options = options
        self._store = store
        self._view = view
        self._templates = templates
        self._queues = QueueNotices()
        self._take(store.current)

    def _take(self, policies: PolicySet) -> None:
        self._policies = policies
        steer = PolicySteer(policies, self._view, allowance=self._allowance)
        options, catalogue = self._options, policies.catalogue
        checks = TemplateChecks(options, catalogue, self._view, self._templates, self._lane)
        mutator = Mutator(
            options,
            catalogue,
            self._view,
            self._templates,
            steer,
            lane=self._lane,
            checks=checks,
            queues=self._queues,
            sources=Sources.of(options.device_class, policies),
            named=finder(policies),
        )
        self._parts = (steer, mutator)
        self._changes: PolicyChanges | None = None
        if policies.mutating:
            execution = Execution(lane=self._lane, allowance=self._allowance)
            excluded = options.excluded_namespaces
            self._changes = PolicyChanges(
                policies.mutating, self._view, excluded, execution, self._metrics, self._review
            )

    async def review(self, request: AdmissionRequest, within: tuple[PolicySteer, Mutator] | None = None) -> Decision:
        """Answer one review with one set of policies from start to end.

        `within` are the parts of the set for conversion alone, between the changes of mutating policies.

        Raises:
            LaneError: no decision within the caller's time-out.
        """
        if within is None:
            if self._policies is not self._store.current:
                self._take(self._store.current)
            within = self._parts
            if self._changes is not None:
                return await self._changes.review(request, functools.partial(self.review, within=within))
        steer, mutator = within
        steer.look()
        try:
            try:
                return await mutator.review(request)
            except TakesLongError:
                find = functools.partial(steer.find, request)
                steering = await run_with_retry(self._lane, request.namespace, find, 2 * ON_LOOP.seconds)
                with steer.knowing(request, steering):
                    return await mutator.review(request)
        except SteeringRefusedError as error:
            return denied("policy", error.finding)
