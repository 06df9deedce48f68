"""Reviews of workloads: their pod templates read, and judged as their pods would be, in bounded time.

Only warnings come of it, so what is left out is said and stops nothing.
"""

import dataclasses
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from neuron.findings import Finding, Findings, warning
from neuron.validate_claims import ClaimContext
from webhook.decisions import check_workloads, nesting, pods
from webhook.decisions.check_pods import Claiming, KnownClaim
from webhook.decisions.modes import Mode
from webhook.decisions.pod_templates import path_text, pod_templates
from webhook.decisions.ports import NamespaceFacts
from webhook.decisions.steering import Steering
from webhook.decisions.wire import AdmissionRequest
from webhook.decisions.world import ConversionContext

MOST_TEMPLATES: Final = 64
"""Pod templates of one workload that are judged."""
SECONDS: Final = 1.0
"""For judging all pod templates of one workload."""


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """One pod template.

    Attributes:
        path: its field path in the workload.
        data: as it was sent.
        claiming: its view, and the claims that it declares.
    """

    path: str
    data: dict[str, Any]
    claiming: Claiming


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A workload that was read.

    Attributes:
        kind: its kind.
        data: the object.
        templates: the first `MOST_TEMPLATES` pod templates.
        left_out: how many more it has.
    """

    kind: str
    data: Any
    templates: tuple[Template, ...]
    left_out: int


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What is known of one pod template beyond what it says.

    Attributes:
        template: the template.
        known: its claims, by name of the entry.
        steering: what policies say about its pods.
    """

    template: Template
    known: Mapping[str, KnownClaim]
    steering: Steering


def read_workload(request: AdmissionRequest, raw: bytes) -> Workload:
    """Read the object of a review. Pure.

    Raises:
        pods.UnreadableError: it is not JSON, or a field that is read has the wrong type.
    """
    kind = request.kind
    data = nesting.decode(raw)
    found = list(pod_templates(data, kind.group, kind.kind))
    templates = tuple(
        Template(path_text(steps), each, Claiming.of(pods.view(each))) for steps, each in found[:MOST_TEMPLATES]
    )
    return Workload(kind.kind, data, templates, max(0, len(found) - MOST_TEMPLATES))


def check_workload(
    workload: Workload,
    told: Sequence[Told],
    facts: NamespaceFacts,
    conversion: ConversionContext,
    claims: ClaimContext,
    mode: Mode,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Finding, ...]:
    """What the webhook would say of the pods of a workload. Pure.

    Args:
        workload: the workload.
        told: its pod templates.
        facts: what the namespace says.
        conversion: what conversion is decided by.
        claims: what claims are judged by.
        mode: of conversion, where no annotation or policy sets another.
        clock: by which it stops after `SECONDS`.

    Returns:
        Findings with paths in the workload; NEU711 where pod templates were left out.
    """
    deadline = clock() + SECONDS
    findings = Findings()
    modes: set[int] = set()
    context = check_workloads.TemplateContext(facts, conversion, claims)
    # Equal templates get equal answers: those of a JobSet often differ in their names alone.
    answered: dict[Hashable, tuple[Steering, list[Finding]]] = {}
    left_out = workload.left_out
    for number, each in enumerate(told):
        if clock() > deadline:
            left_out += len(told) - number
            break
        pod, key = each.template.claiming.pod, each.template.claiming.pod.key()
        answer = answered.get(key)
        if answer is None or answer[0] != each.steering:
            found = check_workloads.check_template("", pod, each.known, context, each.steering)
            answer = answered[key] = (each.steering, found)
            modes |= check_workloads.ultraserver_modes(pod, each.known, facts, mode)
        findings.add(check_workloads.under(each.template.path, finding) for finding in answer[1])
    findings.add(check_workloads.check_size(workload.kind, workload.data, modes))
    if left_out:
        findings.add([_left_out(workload.kind, left_out)])
    return tuple(check_workloads.as_warnings(workload.kind, findings))


def _left_out(kind: str, count: int) -> Finding:
    message = f"{count} pod templates of this {kind} were not checked: it has too many, or they take too long."
    return warning("NEU711", "spec", message, "Their pods are checked when they are created.", str(count))
