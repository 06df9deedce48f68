"""The reviewers of a server that has policies, and what keeps the policies current."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from prometheus_client.registry import CollectorRegistry

from policies.files.loader import PolicyError
from policies.files.store import PolicyStore
from policies.judging.evaluate import TakesLongError
from policies.judging.policy_set import PolicySet
from runtime.startup import StartupError
from webhook.decisions.decision import Decision, denied
from webhook.decisions.ports import TemplateStore, WorldView
from webhook.decisions.wire import AdmissionRequest
from webhook.decisions.world import ConversionOptions
from webhook.reviews.lane import Inline, Lane
from webhook.reviews.mutate import Mutator
from webhook.reviews.policed import PolicedReviewer
from webhook.reviews.policy_allowance import Allowance, Execution, run_with_retry
from webhook.reviews.policy_knowledge import ClusterLookups, FindClaims, find_nothing
from webhook.reviews.policy_metrics import PolicyMetrics
from webhook.reviews.policy_steering import PolicySteer, SteeringRefusedError
from webhook.reviews.reviewer import Reviewer
from webhook.reviews.validate import Validator


class PolicedMutator:
    """`/mutate` by the policies in force: a new set gets a new mutator, which remembers nothing of the old one."""

    def __init__(
        self,
        options: ConversionOptions,
        store: PolicyStore,
        view: WorldView,
        templates: TemplateStore,
        lane: Lane | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """Review; arguments as of `Mutator`, and the allowance of time for policies on the event loop."""
        self._allowance = allowance or Allowance()
        self._lane = lane or Inline()
        self._options = options
        self._store = store
        self._view = view
        self._templates = templates
        self._take(store.current)

    def _take(self, policies: PolicySet) -> None:
        self._policies = policies
        self._steer = steer = PolicySteer(policies, self._view, allowance=self._allowance)
        self._mutator = Mutator(self._options, policies.catalogue, self._view, self._templates, steer, lane=self._lane)

    async def review(self, request: AdmissionRequest) -> Decision:
        """Answer one review, by one set of policies from start to end.

        Raises:
            LaneError: it was not decided in the time that the caller waits.
        """
        if self._policies is not self._store.current:
            self._take(self._store.current)
        steer, mutator = self._steer, self._mutator
        steer.look()
        try:
            try:
                return await mutator.review(request)
            except TakesLongError:
                steering = await run_with_retry(self._lane, request.namespace, functools.partial(steer.find, request))
                with steer.knowing(request, steering):
                    return await mutator.review(request)
        except SteeringRefusedError as error:
            return denied("policy", error.finding)


@dataclasses.dataclass(frozen=True, slots=True)
class Policing:
    """What a server with policies is made of.

    Attributes:
        store: the policies.
        reviewers: who decides, by path.
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
) -> AsyncIterator[Policing]:
    """Load the policies of a folder, and follow it for as long as the context lasts; `find` asks for claims by name.

    Raises:
        StartupError: on entering: something is wrong with them.
    """
    try:
        store = PolicyStore.open(folder, _now)
    except PolicyError as error:
        raise StartupError(f"The policies (--policies) cannot be used:\n{error}") from error
    metrics = PolicyMetrics(store)
    registry.register(metrics)
    allowance = Allowance()

    def validator(policies: PolicySet) -> Reviewer:
        steer = PolicySteer(policies, view, allowance=allowance).of_template
        return Validator(options, policies.catalogue, view, steer, unconnected=policies.unconnected, lane=lane)

    reviewers: dict[str, Reviewer] = {
        "/mutate": PolicedMutator(options, store, view, templates, lane, allowance),
        "/validate": PolicedReviewer(
            validator,
            store,
            ClusterLookups(view, find),
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


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
