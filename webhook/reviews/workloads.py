"""Reviews of workloads: checks their pod templates as the pods would be checked, in bounded time.

Findings about pods are warnings only. Errors about the fields of a kind without pods refuse the object. Templates that
are not checked are reported and do not deny the workload.
"""

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from checks.claims.configs import ratcheted
from conversion.decide import DecisionInputs, DecisionSubject, PodFacts, as_warnings, decide, read_pod
from conversion.findings.pod_claims import ClaimNames, readable_names
from conversion.objects import nesting
from conversion.objects.kinds import KINDS, pods_of
from conversion.objects.wire import AdmissionRequest
from neuron.findings import Finding, Findings, Severity, warning

MOST_TEMPLATES: Final = 64
"""Pod templates of one workload that are checked."""
SECONDS: Final = 1.0
"""Time for all pod templates of one workload."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReviewedWorkload:
    """A decoded workload.

    Attributes:
        pods: the first `MOST_TEMPLATES` of its pods, with the names of their claims, as `readable_names`.
        left_out: number of further pods.
        form_before: before an update, the findings about its own fields.
    """

    group: str
    kind: str
    data: Any
    pods: tuple[tuple[PodFacts, ClaimNames], ...]
    left_out: int
    form_before: tuple[Finding, ...] = ()


def read_workload(request: AdmissionRequest, raw: bytes) -> ReviewedWorkload:
    """Decode the object of a review. Pure.

    Raises:
        pods.UnreadableError: it is not JSON, or nested too deeply.
    """
    kind = request.kind
    data = nesting.decode(raw)
    found = list(pods_of(data, kind.group, kind.kind))
    facts = (read_pod(place, kind.kind) for place in found[:MOST_TEMPLATES])
    read = tuple((each, () if each.pod is None else readable_names(each.pod)) for each in facts)
    check = KINDS[kind.group, kind.kind].check
    before: tuple[Finding, ...] = ()
    if check is not None and request.operation == "UPDATE":
        before = tuple(Findings(check(nesting.decode(request.oldObject))))
    return ReviewedWorkload(kind.group, kind.kind, data, read, max(0, len(found) - MOST_TEMPLATES), before)


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
        findings.add([_left_out(workload.kind, decided.left_out)])
    form = ratcheted(decided.form, workload.form_before) if workload.form_before else decided.form
    return (*form, *as_warnings(workload.kind, findings))


def _left_out(kind: str, count: int) -> Finding:
    message = f"{count} pod templates of this {kind} were not checked: it has too many, or they take too long."
    return warning("NEU711", "spec", message, "Their pods are checked when they are created.", str(count))
