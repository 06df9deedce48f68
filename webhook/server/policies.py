"""The reviewers of a server with policies; follows the folder of policy files."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from prometheus_client.registry import CollectorRegistry

from policies.files.kept import Keeper, KeepError, KeptSet, unpack
from policies.files.loader import PolicyError
from policies.files.store import PolicyStore
from policies.judging.evaluate import TakesLongError
from policies.judging.policy_set import PolicySet
from runtime.startup import StartupError
from webhook.decisions.conversion_context import ConversionOptions
from webhook.decisions.decision import Decision, denied
from webhook.decisions.ports import TemplateStore, WorldView
from webhook.decisions.verification import Sources
from webhook.decisions.wire import AdmissionRequest
from webhook.reviews.claim_bounds import ClaimBounds
from webhook.reviews.mutate import Mutator
from webhook.reviews.policed import PolicedReviewer
from webhook.reviews.policy_allowance import ON_LOOP, Allowance, Execution, run_with_retry
from webhook.reviews.policy_knowledge import ClusterLookups, FindClaims, find_nothing
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_steering import PolicySteer, SteeringRefusedError
from webhook.reviews.queue_notices import QueueNotices
from webhook.reviews.reviewer import Reviewer
from webhook.reviews.template_checks import TemplateChecks
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import Inline, Lane

log = logging.getLogger(__name__)


class PolicedMutator:
    """`/mutate` with policies: each new set of policies gets a new `Mutator` with an empty cache."""

    def __init__(
        self,
        options: ConversionOptions,
        store: PolicyStore,
        view: WorldView,
        templates: TemplateStore,
        lane: Lane | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """Arguments as of `Mutator`; `allowance` limits the time of policies on the event loop."""
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
        self._steer = steer = PolicySteer(policies, self._view, allowance=self._allowance)
        options, catalogue = self._options, policies.catalogue
        checks = TemplateChecks(options, catalogue, self._view, self._templates, self._lane)
        self._mutator = Mutator(
            options,
            catalogue,
            self._view,
            self._templates,
            steer,
            lane=self._lane,
            checks=checks,
            queues=self._queues,
            sources=Sources.of(options.device_class, policies),
        )

    def decide_at_once(self, request: AdmissionRequest) -> Decision | None:
        """See `DecidesAtOnce`; with the set of policies that was in force at the last `review`."""
        if self._policies is not self._store.current:
            return None
        self._steer.look()
        try:
            return self._mutator.decide_at_once(request)
        except SteeringRefusedError as error:
            return denied("policy", error.finding)

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review with one set of policies from start to end.

        Raises:
            LaneError: no decision within the caller's time-out.
        """
        if self._policies is not self._store.current:
            self._take(self._store.current)
        steer, mutator = self._steer, self._mutator
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


@dataclasses.dataclass(frozen=True, slots=True)
class Policing:
    """The parts of a server with policies.

    Attributes:
        reviewers: by path.
    """

    store: PolicyStore
    reviewers: Mapping[str, Reviewer]


@contextlib.asynccontextmanager
async def policing(
    folder: Path,
    options: ConversionOptions,
    view: WorldView,
    templates: TemplateStore,
    registry: CollectorRegistry,
    lane: Lane,
    find: FindClaims = find_nothing,
    *,
    together: bool = False,
    keeper: Keeper | None = None,
) -> AsyncIterator[Policing]:
    """Load the policies of a folder, and follow it until the context ends; `find` looks up claims by name.

    With `together`, a changed folder is loaded completely or not at all. `keeper` has the last good set of an earlier
    run.

    Raises:
        StartupError: on entering: the policies cannot be used.
    """
    try:
        kept = None if keeper is None else await _kept(keeper)
        store = PolicyStore.open(folder, _now, together=together, kept=kept, keeper=keeper)
    except PolicyError as error:
        raise StartupError(f"The policies (--policies) cannot be used:\n{error}") from error
    metrics = PolicyMetrics(store)
    registry.register(metrics)
    allowance = Allowance()

    def validator(policies: PolicySet) -> Reviewer:
        steer = PolicySteer(policies, view, allowance=allowance)
        binds = any(rule.spec.binds_claims for rule in policies.conversions)
        return Validator(
            options,
            policies.catalogue,
            view,
            steer.of_template,
            policies=policies,
            lane=lane,
            bounds=ClaimBounds(steer, find, lane, Sources.of(options.device_class, policies)) if binds else None,
        )

    reviewers: dict[str, Reviewer] = {
        "/mutate": PolicedMutator(options, store, view, templates, lane, allowance),
        "/validate": PolicedReviewer(
            validator,
            store,
            ClusterLookups(view, find, options.device_class),
            options.excluded_namespaces,
            metrics,
            _now,
            Execution(lane=lane, allowance=allowance),
        ),
    }
    watching = asyncio.create_task(store.watch(), name="policies")
    try:
        yield Policing(store, reviewers)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _kept(keeper: Keeper) -> KeptSet | None:
    """The set that an earlier run has kept; None if there is none that can be read."""
    try:
        content = await keeper.read()
        return None if content is None else unpack(content)
    except KeepError as error:
        log.warning("the policies of an earlier run cannot be read: %s", error)
        return None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
