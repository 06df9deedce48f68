"""Policies on pods and a review, to what conversion takes of them."""

import dataclasses
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from neuron.scheduling import missing_labels
from policies import matching
from policies.engine import Clock
from policies.evaluate import first_match
from policies.loader import PolicySet
from policies.programs import PodRule
from policies.subjects import Subject, of_object
from webhook.decisions.modes import Mode
from webhook.decisions.steering import NO_STEERING, Steering
from webhook.edge.wire import AdmissionRequest
from webhook.policing.failures import place
from webhook.policing.subjects import namespace_object, subject_of
from webhook.ports import NamespaceFacts, NamespaceView

log = logging.getLogger(__name__)

_ERRORS_LOGGED: Final = 100


@dataclasses.dataclass(frozen=True, slots=True)
class _Namespace:
    """A `NamespaceView` of one namespace, as it was."""

    facts: NamespaceFacts
    labels: Mapping[str, str] | None
    hard: Mapping[str, int] | None

    @classmethod
    def of(cls, name: str, namespaces: NamespaceView) -> "_Namespace":
        return cls(namespaces.namespace(name), namespaces.namespace_labels(name), namespaces.quotas(name))

    def namespace(self, name: str) -> NamespaceFacts:  # noqa: ARG002 - the port's signature
        return self.facts

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:  # noqa: ARG002
        return self.labels

    def quotas(self, name: str) -> Mapping[str, int] | None:  # noqa: ARG002
        return self.hard


class PolicySteer:
    """Steers by one set of policies (`webhook.decisions.steering.Steer`)."""

    def __init__(self, policies: PolicySet, namespaces: NamespaceView, clock: Clock = time.perf_counter) -> None:
        self._policies = policies
        self._idle = not (policies.conversions or policies.hints)
        self._namespaces = namespaces
        self._clock = clock
        self._logged: set[str] = set()

    def __call__(self, request: AdmissionRequest) -> Steering:
        """What the first policies that match say.

        Raises:
            msgspec.DecodeError: policies cannot read the pod; without them it must not pass.
        """
        return NO_STEERING if self._idle else self._find(subject_of(request, self._namespaces))

    def of_template(self, template: Mapping[str, Any], namespace: str) -> Steering:
        """What they say about the pods of a pod template."""
        if self._idle:
            return NO_STEERING
        known = namespace_object(namespace, self._namespaces)
        subject = of_object({**template, "apiVersion": "v1", "kind": "Pod"}, namespace_object=known)
        return self._find(dataclasses.replace(subject, namespace=namespace))

    def fixed(self, namespace: str) -> "PolicySteer":
        """The same with what is known of a namespace now, to be used beside the event loop."""
        steer = PolicySteer(self._policies, _Namespace.of(namespace, self._namespaces), self._clock)
        steer._logged = self._logged
        return steer

    def _find(self, subject: Subject) -> Steering:
        steering, errors = find_steering(self._policies, subject, self._clock)
        for error in map(place, errors):
            if error not in self._logged and len(self._logged) < _ERRORS_LOGGED:
                self._logged.add(error)
                log.warning("policy failed", extra={"error": error})
        return steering


def find_steering(policies: PolicySet, subject: Subject, clock: Clock) -> tuple[Steering, tuple[str, ...]]:
    """What policies say about one pod.

    Args:
        policies: all of them.
        subject: the pod's creation.
        clock: monotonic, in seconds; bounds evaluation.

    Returns:
        What the first ConversionPolicy and the first SchedulingHintPolicy that match say, and what went wrong on the
        way.
    """
    rule, errors = first_match(policies.conversions, subject, clock)
    steering = NO_STEERING if rule is None else steering_of(rule)
    hinting, more = first_match(policies.hints, subject, clock)
    if hinting is not None:
        labels = missing_labels(matching.labels_of(subject.object), hinting.hints)
        steering = dataclasses.replace(steering, hints=hinting.hints, labels=labels)
    return steering, (*errors, *more)


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
        unconnected=spec.unconnected == "Allow",
    )
