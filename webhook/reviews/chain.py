"""The reviewers of the two paths, in the order in which a review passes them.

    /mutate    RefusalReporter -> SteeredMutator -> Mutator   -> conversion/decide.py   (PolicyChanges before and after)
    /validate                     PolicedValidator -> Validator -> conversion/decide.py   (EarlyTemplates around it)

`SteeredMutator` and `PolicedValidator` are there with policies only. `RefusalReporter` is there in a cluster only.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cluster.store import Store
from conversion.asks.conversion_context import ConversionOptions
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision
from neuron.hardware.instances import Catalogue
from webhook.reviews.mutate import Mutator
from webhook.reviews.reviewer import Refusals, Reviewer, TemplateStore, before_waiting
from webhook.reviews.validate import Validator
from webhook.reviews.worker_threads import Lane

if TYPE_CHECKING:
    from policies.applying.requests import FindClaims, ReviewAccess
    from policies.files.store import PolicyStore, WallClock
    from webhook.reviews.policy_metrics import PolicyMetrics


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


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyParts:
    """What reviewers with policies need.

    Attributes:
        store: the policies in force.
        metrics: counts verdicts.
        find: reads claims and templates that no cache has.
        now: the time of day, which decides whether exceptions have expired.
        review: looks up permissions.
    """

    store: "PolicyStore"
    metrics: "PolicyMetrics"
    find: "FindClaims"
    now: "WallClock"
    review: "ReviewAccess"


def reviewers(
    options: ConversionOptions,
    view: Store,
    templates: TemplateStore,
    lane: Lane,
    refusals: Refusals | None = None,
    policies: PolicyParts | None = None,
) -> Mapping[str, Reviewer]:
    """The first reviewer of each path.

    Args:
        options: settings of conversion.
        view: cached facts of the cluster.
        templates: creates ResourceClaimTemplates.
        lane: decides about large objects.
        refusals: receives denied conversions, to write Events; None: no Events.
        policies: None: no policies.
    """
    mutator: Reviewer
    validator: Reviewer
    if policies is None:
        mutator = Mutator(options, Catalogue(), view, templates, lane=lane)
        validator = Validator(options, Catalogue(), view, lane=lane)
    else:
        mutator, validator = _with_policies(options, view, templates, lane, policies)
    if refusals is not None:
        mutator = RefusalReporter(mutator, refusals)
    return {"/mutate": mutator, "/validate": validator}


def _with_policies(
    options: ConversionOptions, view: Store, templates: TemplateStore, lane: Lane, parts: PolicyParts
) -> tuple[Reviewer, Reviewer]:
    # Imported only with policies: the schema and the engine take 20 MiB.
    from policies.applying.requests import ClusterLookups
    from policies.applying.steering import finder
    from policies.judging.rules import PolicySet
    from webhook.reviews.policed import PolicedValidator
    from webhook.reviews.policy_requests import Allowance, Execution
    from webhook.reviews.policy_steering import ClaimBounds, PolicySteer
    from webhook.reviews.steered import SteeredMutator
    from webhook.reviews.workloads import EarlyTemplates

    allowance = Allowance()

    def validator(policies: PolicySet) -> Reviewer:
        steer = PolicySteer(policies, view, allowance=allowance)
        binds = any(rule.spec.binds_claims for rule in policies.conversions)
        sources = policies.sources(options.device_class)
        finds = finder(policies)
        found = Validator(
            options,
            policies.catalogue,
            view,
            steer.of_template,
            policies=policies,
            lane=lane,
            bounds=ClaimBounds(steer, parts.find, lane, sources) if binds else None,
            finds=finds,
        )
        return found if finds is None else EarlyTemplates(found, steer.of_template, templates, finds)

    policed = PolicedValidator(
        validator,
        parts.store,
        ClusterLookups(view, parts.find, options.device_class, parts.review),
        options.excluded_namespaces,
        parts.metrics,
        parts.now,
        Execution(lane=lane, allowance=allowance),
    )
    mutator = SteeredMutator(
        options, parts.store, view, templates, lane, allowance, metrics=parts.metrics, review=parts.review
    )
    return mutator, policed
