"""ConversionPolicies and a review, to what conversion takes of them."""

import logging
import time
from collections.abc import Sequence
from typing import Final

from policies.engine import Clock
from policies.evaluate import first_match
from policies.programs import PodRule
from webhook.decisions.modes import Mode
from webhook.decisions.steering import NO_STEERING, Steering
from webhook.edge.wire import AdmissionRequest
from webhook.policing.failures import place
from webhook.policing.subjects import subject_of
from webhook.ports import NamespaceView

log = logging.getLogger(__name__)

_ERRORS_LOGGED: Final = 100


class PolicySteer:
    """Steers by one set of policies (`webhook.decisions.steering.Steer`)."""

    def __init__(self, rules: Sequence[PodRule], namespaces: NamespaceView, clock: Clock = time.perf_counter) -> None:
        self._rules = rules
        self._namespaces = namespaces
        self._clock = clock
        self._logged: set[str] = set()

    def __call__(self, request: AdmissionRequest) -> Steering:
        """What the first policy that matches says.

        Raises:
            msgspec.DecodeError: policies cannot read the pod; without them it must not pass.
        """
        if not self._rules:
            return NO_STEERING
        subject = subject_of(request, self._namespaces)
        rule, errors = first_match(self._rules, subject, self._clock)
        for error in map(place, errors):
            if error not in self._logged and len(self._logged) < _ERRORS_LOGGED:
                self._logged.add(error)
                log.warning("policy failed", extra={"error": error})
        return NO_STEERING if rule is None else steering_of(rule)


def steering_of(rule: PodRule) -> Steering:
    """A ConversionPolicy as conversion takes it."""
    spec = rule.spec
    return Steering(
        policy=rule.name,
        mode=Mode(spec.mode) if spec.mode else None,
        locked=spec.locked,
        families=spec.families,
        device_class=spec.device_class,
        lnc=spec.logical_neuron_core,
    )
