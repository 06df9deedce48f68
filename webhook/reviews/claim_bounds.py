"""Finds the ConversionPolicy that binds the claims of a pod, and the claims that no cache has."""

from collections.abc import Mapping
from typing import Final

from checks.claims.judging import ClaimContext, ReadSpec, for_one_object, judge_claim
from conversion.asks.conversion_context import ConversionContext
from conversion.asks.pod_demand import Claiming, KnownClaim
from conversion.findings.bound_claims import check_bound
from conversion.findings.verification import Sources
from conversion.objects.wire import AdmissionRequest
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding
from policies.applying.requests import FindClaims
from policies.applying.steering import SteeringRefusedError
from webhook.reviews import effort
from webhook.reviews.policy_steering import PolicySteer
from webhook.reviews.slices import working_time
from webhook.reviews.worker_threads import Lane

_NOTHING: Final[list[Finding]] = []


class ClaimBounds:
    """Checks the claims of pods against locked policies with `bindsClaims`."""

    def __init__(self, steer: PolicySteer, find: FindClaims, lane: Lane, sources: Sources) -> None:
        """`find` reads claims and templates by name; conversion requests from `sources`."""
        self._sources = sources
        self._steer = steer
        self._find = find
        self._lane = lane

    async def check(
        self,
        request: AdmissionRequest,
        claiming: Claiming,
        known: Mapping[str, KnownClaim],
        context: ClaimContext,
        conversion: ConversionContext,
    ) -> list[Finding]:
        """NEU123 and NEU124 about the claims of a pod; NEU803 if the policies cannot be evaluated on it.

        Raises:
            webhook.reviews.worker_threads.LaneError: no answer in time.
        """
        if not claiming.names:
            return _NOTHING
        steer = self._steer.fixed(request.namespace, judging=self._sources)
        try:
            seconds = effort.of_deciding(memoryview(request.object).nbytes)
            steering = await self._lane.run(request.namespace, lambda: steer(request), seconds)
        except SteeringRefusedError as error:
            return [error.finding]
        if not steering.binds_claims:
            return _NOTHING
        unknown: dict[str, dict[str, str]] = {}
        for name, kind, object_name in claiming.names:
            if name not in known or known[name].judgement is None:
                unknown.setdefault(kind, {})[name] = object_name
        specs: dict[str, ClaimSpec] = {}
        for kind, wanted in unknown.items():
            found = await self._find(kind, request.namespace, set(wanted.values()))
            specs |= {name: found[object_name] for name, object_name in wanted.items() if object_name in found}

        def work() -> list[Finding]:
            bounded = for_one_object(context, working_time)
            judged = {name: KnownClaim(judge_claim(spec, bounded)) for name, spec in specs.items()}
            return check_bound(claiming, {**known, **judged}, steering, context, conversion)

        seconds = effort.of_judging([ReadSpec(spec, ()) for spec in specs.values()], 0, context)
        return await self._lane.run(request.namespace, work, seconds)
