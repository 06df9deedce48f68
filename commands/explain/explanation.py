"""Everything that `neuron-dra explain` says of one pod."""

import dataclasses
import enum

from commands.explain.admission_preview import AdmissionPreview
from commands.explain.verdicts import NodeVerdict
from neuron.findings import Severity
from runtime.text import cited


class PodState(enum.StrEnum):
    """How a pod of the cluster is."""

    WELL = "well"
    WAITS = "waits"
    STUCK = "stuck"


@dataclasses.dataclass(frozen=True, slots=True)
class Quote:
    """A text of the cluster. Only `str` of it is shown: it names the source, and puts the text between quotes.

    Users who may write the object can write any text, also one that looks like advice of this program: no part of it is
    repeated in `Diagnosis.text` or `Diagnosis.fix`.

    Attributes:
        source: where it is from: kind and name of the object, and who reports it.
    """

    source: str
    text: str

    def __str__(self) -> str:
        return f"{self.source}: {cited(self.text)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a pod of the cluster does not run, and what to do. `text` and `fix` are words of this program.

    Attributes:
        case: a stable word for programs, e.g. `template-missing`.
        text: one or two sentences.
        fix: what to do; empty if nothing.
        evidence: the condition, Event or field that this is from, as a quote; None if it is from none.
    """

    case: str
    state: PodState
    text: str
    fix: str = ""
    evidence: Quote | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one pod.

    Attributes:
        preview: what admission makes of it.
        nodes: one verdict per Node; None without a cluster.
        notes: what could not be read or judged, one sentence each.
        diagnosis: of a pod of the cluster; None for a file.
    """

    preview: AdmissionPreview
    nodes: tuple[NodeVerdict, ...] | None = None
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def blocked(self) -> bool:
        """Whether the pod or its claim is refused, or the pod does not run."""
        if self.diagnosis is not None:
            return self.diagnosis.state is not PodState.WELL
        preview = self.preview
        wrong = any(each.severity is Severity.ERROR for claim in preview.claims for each in claim.findings)
        return preview.refused or wrong or any(effect.exceeded for effect in preview.quotas)
