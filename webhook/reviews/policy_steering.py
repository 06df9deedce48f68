"""Policies on pods and a review, to what conversion takes of them."""

import asyncio
import contextlib
import copy
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubecel.budget import Clock
from neuron.findings import Finding
from neuron.scheduling import missing_labels
from policies.judging import matching
from policies.judging.evaluate import REVIEW_SECONDS, TakesLongError, UndecidedError, first_match
from policies.judging.failures import place
from policies.judging.policy_set import PolicySet
from policies.judging.rules import HintRule, PodRule
from policies.judging.subjects import Subject, of_object
from webhook.decisions.modes import Mode
from webhook.decisions.ports import NamespaceFacts, NamespaceView
from webhook.decisions.steering import NO_STEERING, Steering
from webhook.decisions.wire import AdmissionRequest
from webhook.reviews.policy_allowance import ON_LOOP, Allowance
from webhook.reviews.policy_knowledge import DeviceKnower, PolicyView, knowledge_for, named_by, shown, with_record
from webhook.reviews.policy_subjects import namespace_object, subject_of

log = logging.getLogger(__name__)

_ERRORS_LOGGED: Final = 100


class SteeringRefusedError(Exception):
    """A policy that fails closed could not be evaluated on a pod.

    Attributes:
        finding: what to tell.
    """

    def __init__(self, error: UndecidedError) -> None:
        super().__init__(str(error))
        locked = isinstance(error.rule, PodRule) and error.rule.spec.locked
        why = "is locked" if locked else "has failurePolicy Fail"
        self.finding = Finding(
            "NEU803",
            "",
            f"policy '{error.rule.name}' {why}, and it is not known whether it matches this pod: {error}.",
            "Change the pod so that the condition can be evaluated, or ask the cluster's admins: the condition has to"
            " hold for every pod, or the policy says failurePolicy: Ignore.",
        )


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
    """Steers by one set of policies (`webhook.decisions.steering.Steer`).

    May be called on the event loop, and in the lane's thread: it only reads values that others replace as a whole. On
    the event loop its patience is short, and what takes longer has to start again in the lane (`TakesLongError`).
    """

    def __init__(
        self,
        policies: PolicySet,
        view: PolicyView,
        clock: Clock = time.perf_counter,
        allowance: Allowance | None = None,
    ) -> None:
        """Steer; `clock` bounds evaluation, in seconds, and `allowance` the time on the event loop."""
        self._allowance = allowance or Allowance()
        self._policies = policies
        self._idle = not (policies.conversions or policies.hints)
        self._counts = any(map(_counts_devices, policies.conversions)) or any(map(_counts_devices, policies.hints))
        self.namespaces: NamespaceView = view
        self._knower = DeviceKnower(view, policies.catalogue)
        self._clock = clock
        self._logged: set[str] = set()
        self._found: dict[int, Steering] = {}

    def __call__(self, request: AdmissionRequest) -> Steering:
        """What the first policies that match say.

        Raises:
            msgspec.DecodeError: policies cannot read the pod; without them it must not pass.
            SteeringRefusedError: a policy that fails closed cannot be evaluated.
            TakesLongError: on the event loop: it takes longer than others can wait.
        """
        if self._idle:
            return NO_STEERING
        found = self._found.get(id(request))
        return self.find(request, impatient=_on_loop()) if found is None else found

    def find(self, request: AdmissionRequest, *, impatient: bool = False) -> Steering:
        """The same, with or without patience."""
        return self._find(self._known(subject_of(request, self.namespaces)), impatient=impatient)

    def look(self) -> None:
        """Take in what the view knows by now. On the event loop, before the lane is used."""
        if self._counts:
            _ = self._knower.base

    def fixed(self, namespace: str) -> "PolicySteer":
        """The same with what is known of a namespace now, to be used beside the event loop."""
        self.look()
        steer = copy.copy(self)
        steer.namespaces = _Namespace.of(namespace, self.namespaces)
        return steer

    @contextlib.contextmanager
    def knowing(self, request: AdmissionRequest, steering: Steering) -> Iterator[None]:
        """Inside the context, what policies say about this very request is known."""
        self._found[id(request)] = steering
        try:
            yield
        finally:
            del self._found[id(request)]

    def of_template(self, template: Mapping[str, Any], namespace: str) -> Steering:
        """What they say about the pods of a pod template; nothing where that cannot be said, or takes long."""
        if self._idle:
            return NO_STEERING
        known = namespace_object(namespace, self.namespaces)
        subject = of_object({**template, "apiVersion": "v1", "kind": "Pod"}, namespace_object=known)
        try:
            return self._find(self._known(dataclasses.replace(subject, namespace=namespace)), impatient=_on_loop())
        except (SteeringRefusedError, TakesLongError):
            return NO_STEERING

    def _known(self, subject: Subject) -> Subject:
        """The subject with what is known beside it, where a policy asks."""
        if not self._counts:
            return subject
        base = self._knower.base if _on_loop() else self._knower.last
        knowledge = knowledge_for(base, self._knower, subject.namespace, named_by(subject.object))
        return dataclasses.replace(subject, knowledge=with_record(knowledge, shown(subject.object), strips=True))

    def _find(self, subject: Subject, *, impatient: bool) -> Steering:
        if not impatient:
            steering, errors = find_steering(self._policies, subject, self._clock)
        elif not self._allowance.lasts(subject.namespace):
            raise TakesLongError
        else:
            with self._allowance.spending(subject.namespace):
                steering, errors = find_steering(self._policies, subject, self._clock, seconds=ON_LOOP, impatient=True)
        for error in map(place, errors):
            if error not in self._logged and len(self._logged) < _ERRORS_LOGGED:
                self._logged.add(error)
                log.warning("policy failed", extra={"error": error})
        return steering


def _on_loop() -> bool:
    """Whether other reviews wait for the caller."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _counts_devices(rule: PodRule | HintRule) -> bool:
    """Whether the conditions of a policy read what a pod holds."""
    return any(path[0] == "neuron" for condition in rule.conditions for path in condition.program.references)


def find_steering(
    policies: PolicySet,
    subject: Subject,
    clock: Clock,
    *,
    seconds: float = REVIEW_SECONDS,
    impatient: bool = False,
) -> tuple[Steering, tuple[str, ...]]:
    """What policies say about one pod.

    Args:
        policies: all of them.
        subject: the pod's creation.
        clock: monotonic, in seconds; bounds evaluation.
        seconds: for all policies together.
        impatient: whether to give up once they are over, rather than to let conditions fail.

    Returns:
        What the first ConversionPolicy and the first SchedulingHintPolicy that match say, and what went wrong on the
        way.

    Raises:
        SteeringRefusedError: a policy that fails closed cannot be evaluated.
        TakesLongError: an impatient evaluation used up its time.
    """
    deadline = clock() + seconds
    try:
        rule, errors = first_match(policies.conversions, subject, clock, seconds=seconds, impatient=impatient)
        left = max(0.0, deadline - clock())
        hinting, more = first_match(policies.hints, subject, clock, seconds=left, impatient=impatient)
    except UndecidedError as error:
        raise SteeringRefusedError(error) from error
    steering = NO_STEERING if rule is None else steering_of(rule)
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
