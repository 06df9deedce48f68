"""Reviews of workloads: checks their pod templates as the pods would be checked, in bounded time.

Findings about pods are warnings only. Errors about the fields of a kind without pods refuse the object. Templates that
are not checked are reported and do not deny the workload.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from checks.claims.configs import ratcheted
from conversion.asks.pod_demand import ClaimNames, readable_names
from conversion.claims.templates import Template
from conversion.decide import DecisionInputs, DecisionSubject, PodFacts, as_warnings, decide, read_pod
from conversion.findings.named_templates import other
from conversion.objects import nesting
from conversion.objects.kinds import KINDS, pods_of, shared_claims
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision
from neuron.findings import Finding, Findings, Severity, warning
from webhook.reviews.reviewer import (
    OtherTemplateError,
    Reviewer,
    SteerTemplate,
    TemplateStore,
    TemplateUnavailableError,
    before_waiting,
)
from webhook.reviews.worker_threads import LARGE_OBJECT

MOST_TEMPLATES: Final = 64
"""Pod templates of one workload that are checked."""
MOST_CLAIMS: Final = 1024
"""Claims of one object that are looked up, about a microsecond each on the event loop; the others are not known."""
SECONDS: Final = 1.0
"""Time for all pod templates of one workload."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReviewedWorkload:
    """A decoded workload.

    Attributes:
        pods: the first `MOST_TEMPLATES` of its pods, with the names of their claims, as `readable_names`.
        left_out: number of further pods.
        shared: kind and name of the first `MOST_CLAIMS` claims that it shares among pods.
        form_before: before an update, the findings about its own fields.
    """

    group: str
    kind: str
    data: Any
    pods: tuple[tuple[PodFacts, ClaimNames], ...]
    left_out: int
    shared: tuple[tuple[str, str], ...] = ()
    form_before: tuple[Finding, ...] = ()


def read_workload(request: AdmissionRequest, raw: bytes) -> ReviewedWorkload:
    """Decode the object of a review. Pure.

    Raises:
        pods.UnreadableError: it is not JSON, or nested too deeply.
    """
    kind = request.kind
    data = nesting.decode(raw)
    found = pods_of(data, kind.group, kind.kind)
    # Some kinds make their pods: those that are left out are made one by one, to be counted.
    facts = [read_pod(place, kind.kind) for place in itertools.islice(found, MOST_TEMPLATES)]
    read = tuple((each, () if each.pod is None else readable_names(each.pod)) for each in facts)
    left_out = sum(1 for _ in found)
    shared = tuple(itertools.islice(shared_claims(data, kind.group, kind.kind), MOST_CLAIMS))
    check = KINDS[kind.group, kind.kind].check
    before: tuple[Finding, ...] = ()
    if check is not None and request.operation == "UPDATE":
        before = tuple(Findings(check(nesting.decode(request.oldObject))))
    return ReviewedWorkload(kind.group, kind.kind, data, read, left_out, shared, before)


def check_workload(
    workload: ReviewedWorkload,
    namespace: str,
    found: Sequence[PodFacts],
    inputs: DecisionInputs,
    missing: Collection[tuple[str, str]] = (),
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Finding, ...]:
    """The findings that the pods of a workload would get, as warnings, and those about its own fields. Pure.

    Args:
        missing: as for `DecisionSubject`.
        clock: returns seconds; the check stops after `SECONDS`.

    Returns:
        Findings with paths in the workload; NEU711 if pod templates were not checked.
    """
    deadline = clock() + SECONDS
    subject = DecisionSubject(
        workload.group, workload.kind, namespace, workload.data, found, workload.left_out, missing
    )
    decided = decide(subject, dataclasses.replace(inputs, goes_on=lambda: clock() <= deadline))
    # `/mutate` has said what it found about the placement of a LeaderWorkerSet.
    said = () if decided.placement is None else (*decided.placement.errors, *decided.placement.warnings)
    said = (*said, *decided.form)
    findings = Findings(each for each in decided.findings if each.severity is not Severity.NOTE and each not in said)
    if decided.left_out:
        count = decided.left_out
        why = f"{count} pod templates of this {workload.kind} were not checked: it has too many, or they take too long."
        findings.add([warning("NEU711", "spec", why, "Their pods are checked when they are created.", str(count))])
    form = ratcheted(decided.form, workload.form_before) if workload.form_before else decided.form
    return (*form, *as_warnings(workload.kind, findings))


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
                        try:
                            await self._templates.ensure(request.namespace, template)
                        except OtherTemplateError as error:
                            found.append(error.finding)
                        except TemplateUnavailableError:
                            pass  # The reviews of pods say it.
        return dataclasses.replace(decision, warnings=(*decision.warnings, *found)) if found else decision

    def _named(self, request: AdmissionRequest, raw: bytes) -> Iterator[Template]:
        data = nesting.decode(raw)
        for number, place in enumerate(pods_of(data, request.kind.group, request.kind.kind)):
            if number >= MOST_TEMPLATES:
                return
            yield from self._steer(place.template, request.namespace, data).named
