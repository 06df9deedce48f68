"""Reviews of workloads: checks their pod templates as the pods would be checked, in bounded time.

The result is warnings only. Templates that are not checked are reported and do not deny the workload.
"""

import dataclasses
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from neuron.findings import Finding, Findings, warning
from webhook.decisions import check_workloads, nesting, pods
from webhook.decisions.check_pods import Claiming, KnownClaim
from webhook.decisions.pod_templates import path_text, pod_templates
from webhook.decisions.steering import Steering
from webhook.decisions.wire import AdmissionRequest

MOST_TEMPLATES: Final = 64
"""Pod templates of one workload that are checked."""
SECONDS: Final = 1.0
"""Time for all pod templates of one workload."""


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """One pod template.

    Attributes:
        path: field path in the workload.
        data: the template as sent.
        claiming: the view of the pod, and its claims.
    """

    path: str
    data: dict[str, Any]
    claiming: Claiming


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A decoded workload.

    Attributes:
        group: API group of its kind.
        kind: its kind.
        data: the object.
        templates: the first `MOST_TEMPLATES` pod templates.
        left_out: number of further templates.
    """

    group: str
    kind: str
    data: Any
    templates: tuple[Template, ...]
    left_out: int


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateFacts:
    """A pod template with the cluster's facts about it.

    Attributes:
        template: the template.
        known: its claims, by name of the entry in `resourceClaims`.
        steering: what policies set for its pods.
    """

    template: Template
    known: Mapping[str, KnownClaim]
    steering: Steering


def read_workload(request: AdmissionRequest, raw: bytes) -> Workload:
    """Decode the object of a review. Pure.

    Raises:
        pods.UnreadableError: it is not JSON, or a field that is read has the wrong type.
    """
    kind = request.kind
    data = nesting.decode(raw)
    found = list(pod_templates(data, kind.group, kind.kind))
    templates = tuple(
        Template(path_text(steps), each, Claiming.of(pods.view(each))) for steps, each in found[:MOST_TEMPLATES]
    )
    return Workload(kind.group, kind.kind, data, templates, max(0, len(found) - MOST_TEMPLATES))


def check_workload(
    workload: Workload,
    templates: Sequence[TemplateFacts],
    context: check_workloads.TemplateContext,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Finding, ...]:
    """The findings that the pods of a workload would get, as warnings. Pure.

    Args:
        workload: the workload.
        templates: its pod templates.
        context: settings and facts.
        clock: returns seconds; the check stops after `SECONDS`.

    Returns:
        Findings with paths in the workload; NEU711 if pod templates were not checked.
    """
    deadline = clock() + SECONDS
    findings = Findings()
    modes: set[int] = set()
    # Equal templates have equal findings: the templates of a JobSet often differ only in their names.
    answered: dict[Hashable, tuple[Steering, check_workloads.TemplateCheck]] = {}
    queues = check_workloads.QueueCheck(workload.group, workload.kind, workload.data)
    left_out = workload.left_out
    for number, each in enumerate(templates):
        if clock() > deadline:
            left_out += len(templates) - number
            break
        pod, key = each.template.claiming.pod, each.template.claiming.pod.key()
        answer = answered.get(key)
        if answer is None or answer[0] != each.steering:
            found = check_workloads.check_template("", pod, each.known, context, each.steering)
            answer = answered[key] = (each.steering, found)
            modes |= check_workloads.ultraserver_modes(pod, each.known, context, each.steering)
        findings.add(check_workloads.under(each.template.path, finding) for finding in answer[1].findings)
        queues.add(each.template.path, each.template.data, answer[1].claimed_class)
    findings.add(queues.findings())
    findings.add(check_workloads.check_size(workload.kind, workload.data, modes))
    if left_out:
        findings.add([_left_out(workload.kind, left_out)])
    return tuple(check_workloads.as_warnings(workload.kind, findings))


def _left_out(kind: str, count: int) -> Finding:
    message = f"{count} pod templates of this {kind} were not checked: it has too many, or they take too long."
    return warning("NEU711", "spec", message, "Their pods are checked when they are created.", str(count))
