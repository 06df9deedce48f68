"""Why a pod of the cluster does not run, and what to do, in one or two sentences. Pure.

Pods pass the same steps: admission, creation of claims, scheduling, preparation on the node. The first step that failed
is the answer.
"""

from collections.abc import Callable
from typing import Final

from commands.explain import claim_steps, node_steps, schedule_steps
from commands.explain.diagnosis_inputs import DiagnosisInputs
from commands.explain.explanation import Diagnosis

_STEPS: Final[tuple[Callable[[DiagnosisInputs], Diagnosis | None], ...]] = (
    claim_steps.ended,
    claim_steps.not_converted,
    claim_steps.no_group,
    claim_steps.no_ultraserver,
    claim_steps.no_claim,
    schedule_steps.unscheduled,
    node_steps.lost,
    node_steps.not_prepared,
    node_steps.sick,
    node_steps.elsewhere,
)


def diagnose(facts: DiagnosisInputs) -> Diagnosis:
    """The diagnosis of a pod."""
    found = next((answer for step in _STEPS if (answer := step(facts)) is not None), None)
    return found or node_steps.runs(facts)
