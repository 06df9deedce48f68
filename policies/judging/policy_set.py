"""Every policy in force."""

import dataclasses
from typing import Final

from neuron.instances import Catalogue
from policies.judging.rules import HintRule, PodRule, ValidatingRule


@dataclasses.dataclass(frozen=True, slots=True)
class PolicySet:
    """Every policy in force.

    Attributes:
        validating: on validation, in the order of files.
        conversions: on conversion, in their own order.
        hints: on scheduling hints, in their own order.
        catalogue: instance types with what policies add or change.
        digest: of all files; empty for no policies.
        files: number of files.
    """

    validating: tuple[ValidatingRule, ...] = ()
    conversions: tuple[PodRule, ...] = ()
    catalogue: Catalogue = dataclasses.field(default_factory=Catalogue)
    digest: str = ""
    files: int = 0
    hints: tuple[HintRule, ...] = ()

    @property
    def rules(self) -> tuple[ValidatingRule | PodRule | HintRule, ...]:
        """All policies."""
        return (*self.validating, *self.conversions, *self.hints)

    @property
    def unconnected(self) -> bool:
        """Whether some pods may have devices that are not connected."""
        return any(rule.spec.unconnected == "Allow" for rule in self.conversions)


NO_POLICIES: Final = PolicySet()
