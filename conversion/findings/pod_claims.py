"""The claims that a pod declares, and what is known of them. Pure."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from checks.claims.judging import ClaimJudgement
from conversion.facts import ClusterView
from conversion.objects import pods
from conversion.objects.wire import ABSENT

ClaimNames: TypeAlias = tuple[tuple[str, str, str], ...]
"""Name, kind and object name of the claims that a pod declares."""
_NO_LIST: Final = (b"", b"null", b"[]")
"""JSON of `resourceClaims` without entries."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownClaim:
    """What is known of one entry of `spec.resourceClaims`.

    Attributes:
        judgement: the checked claim; None if it is not known.
        missing: whether it refers to an object that does not exist.
    """

    judgement: ClaimJudgement | None = None
    missing: bool = False


UNKNOWN: Final = KnownClaim()


class Claiming(Struct, frozen=True):
    """A pod and the claims that it declares. Read once: a tenant can make the list long.

    Attributes:
        names: of the declared claims.
    """

    pod: pods.Pod
    names: ClaimNames

    @classmethod
    def of(cls, pod: pods.Pod) -> "Claiming":
        """Read the claims of a pod."""
        # Most pods declare none.
        return cls(pod, () if pod.spec.resourceClaims is ABSENT else tuple(claim_names(pod)))

    @property
    def is_empty(self) -> bool:
        """Whether the pod declares no claim, and was not converted."""
        raw = self.pod.spec.resourceClaims
        return (raw is ABSENT or bytes(raw) in _NO_LIST) and not self.pod.labelled


def claim_names(pod: pods.Pod) -> Iterator[tuple[str, str, str]]:
    """Name, kind and object name of every claim that a pod declares."""
    for entry in pod.decode_claims() or ():
        name = str(entry.get("name") or "")
        for field, kind in (
            ("resourceClaimTemplateName", "ResourceClaimTemplate"),
            ("resourceClaimName", "ResourceClaim"),
        ):
            if entry.get(field):
                yield name, kind, str(entry[field])


def readable_names(pod: pods.Pod) -> ClaimNames:
    """As `claim_names`; empty if conversion refuses the pod because its claims cannot be read or are too long."""
    try:
        return () if pod.excess() is not None else tuple(claim_names(pod))
    except pods.UnreadableError:
        return ()


def claims_from_templates(pod: pods.Pod) -> tuple[tuple[str, str], ...]:
    """Claims in `spec.resourceClaims` that use a template: names of claim and template."""
    if pod.spec.resourceClaims is ABSENT or pod.excess() is not None:
        return ()
    return tuple(
        (str(entry.get("name")), template)
        for entry in pod.decode_claims() or ()
        if (template := entry.get("resourceClaimTemplateName"))
    )


def requesting(
    named: Sequence[tuple[str, str]], namespace: str, cluster: ClusterView, device_class: str
) -> tuple[str, ...]:
    """Names of the claims whose template requests a DeviceClass. Unknown templates are ignored.

    Args:
        named: result of `claims_from_templates`.
    """
    if not named:
        return ()
    return tuple(
        claim for claim, template in named if device_class in cluster.template_device_classes(namespace, template)
    )
