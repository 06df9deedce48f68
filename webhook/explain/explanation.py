"""Everything that `neuron-dra explain` says of one pod."""

import dataclasses
import enum

from neuron.findings import Severity
from webhook.explain.outlook import Outlook
from webhook.explain.verdicts import NodeVerdict


class State(enum.StrEnum):
    """How a pod of the cluster is."""

    WELL = "well"
    WAITS = "waits"
    STUCK = "stuck"


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a pod of the cluster does not run, and what to do.

    Attributes:
        case: a stable word for programs, e.g. `template-missing`.
        state: how the pod is.
        text: one or two sentences.
        fix: what to do; empty if nothing.
        evidence: where this is from: a condition, an Event, a field.
    """

    case: str
    state: State
    text: str
    fix: str = ""
    evidence: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """What is said of one pod.

    Attributes:
        outlook: what admission makes of it.
        nodes: one verdict per Node; None without a cluster.
        notes: what could not be read or judged, one sentence each.
        diagnosis: of a pod of the cluster; None for a file.
    """

    outlook: Outlook
    nodes: tuple[NodeVerdict, ...] | None = None
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def blocked(self) -> bool:
        """Whether the pod or its claim is refused, or the pod does not run."""
        if self.diagnosis is not None:
            return self.diagnosis.state is not State.WELL
        outlook = self.outlook
        wrong = any(each.severity is Severity.ERROR for claim in outlook.claims for each in claim.findings)
        return outlook.refused or wrong or any(effect.exceeded for effect in outlook.quotas)
