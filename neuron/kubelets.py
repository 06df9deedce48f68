"""Kubelet versions with known faults in Dynamic Resource Allocation.

Source: the Neuron DRA driver's documentation (supported node versions), which names the issue.
"""

import dataclasses
import re
from typing import Final

_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A known fault.

    Attributes:
        first: the first version with it.
        fixed: the first later version without it.
        issue: where it is described.
        effect: what happens, as a part of a sentence about the kubelet.
    """

    first: tuple[int, int, int]
    fixed: tuple[int, int, int]
    issue: str
    effect: str

    @property
    def fixed_in(self) -> str:
        """The first version without the fault, as text."""
        return ".".join(map(str, self.fixed))


FAULTS: Final = (
    Fault((1, 34, 0), (1, 34, 2), "kubernetes/kubernetes#133920", "can lose pods that use ResourceClaims"),
)


def fault(version: str) -> Fault | None:
    """The fault of a kubelet; None if none is known, or if the version cannot be parsed.

    Args:
        version: `status.nodeInfo.kubeletVersion` of a Node, e.g. `v1.34.1-eks-113cf36`.
    """
    match = _VERSION.match(version)
    if match is None:
        return None
    number = (int(match[1]), int(match[2]), int(match[3]))
    return next((each for each in FAULTS if each.first <= number < each.fixed), None)
