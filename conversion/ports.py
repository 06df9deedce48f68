"""Interfaces to the cluster for decisions and reviews. `webhook/cluster/` and `webhook/server/` implement them."""

import dataclasses
from http import HTTPStatus
from typing import Protocol

from conversion.claims.templates import Template
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision
from neuron.api.claim_specs import ClaimSpec
from neuron.findings import Finding


class TemplateStore(Protocol):
    """ResourceClaimTemplates of converted pods."""

    def holds(self, namespace: str, template: Template) -> bool:
        """Whether exactly this template is known to exist. Reads the cache."""

    async def ensure(self, namespace: str, template: Template) -> None:
        """Create the template in the namespace unless it exists.

        Raises:
            TemplateUnavailableError: it does not exist and cannot be created.
        """

    async def check(self, namespace: str, template: Template) -> bool:
        """Whether the template exists in the namespace. For a dry run: creates and changes nothing.

        Raises:
            TemplateUnavailableError: `ensure` would fail: another object has its name, or the API server does not
                answer.
        """

    def other(self, namespace: str, template: Template) -> int | None:
        """What stands in the place of the template of a ClaimTemplate policy. Reads the cache.

        Returns:
            Its version, if it is one of this version with another spec, or of a later version; 0 for another template,
            which stays; None if there is neither: `ensure` creates it, also in the place of an earlier version.
        """

    async def read(self, namespace: str, name: str) -> "FoundTemplate":
        """Find the template of an operator. Reads the cache first.

        Raises:
            TemplateUnavailableError: the API server does not answer.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class FoundTemplate:
    """The template of an operator.

    Attributes:
        spec: its requests; None if it does not exist, cannot be read, or is not known.
        missing: whether it does not exist in the namespace.
        elsewhere: whether a missing template exists in another namespace.
        known: whether there is a cluster to ask.
    """

    spec: ClaimSpec | None = None
    missing: bool = False
    elsewhere: bool = False
    known: bool = True


class TemplateUnavailableError(Exception):
    """A template that a pod needs does not exist and cannot be created.

    Attributes:
        finding: cause and fix, for the user.
        status_code: HTTP status of the API server's answer; 503 if it is unreachable.
        status_reason: the matching `metav1.StatusReason`.
    """

    def __init__(self, finding: Finding, status_code: int, status_reason: str) -> None:
        super().__init__(str(finding))
        self.finding = finding
        self.status_code = status_code
        self.status_reason = status_reason


class OtherTemplateError(TemplateUnavailableError):
    """Another template stands in the place of one of a ClaimTemplate policy; pods use that.

    Attributes:
        version: as of `TemplateStore.other`.
    """

    def __init__(self, finding: Finding, version: int) -> None:
        super().__init__(finding, HTTPStatus.CONFLICT, "Conflict")
        self.version = version


class Refusals(Protocol):
    """Receives refused conversions."""

    def refused(self, request: AdmissionRequest, decision: Decision) -> None:
        """Report a refusal. Called before the answer is sent: does not block or raise."""
