"""The set of all policies in force."""

import dataclasses

from neuron import names
from neuron.hardware.instances import Catalogue
from policies.judging.rules import AnyPodRule, HintRule, MutatingRule, PodRule, TemplateRule, ValidatingRule


@dataclasses.dataclass(frozen=True, slots=True)
class PolicySet:
    """All policies in force.

    Attributes:
        validating: for validation, in the order of files.
        conversions: for conversion, by `spec.order`.
        hints: for scheduling hints, by `spec.order`.
        catalogue: instance types, with those that policies add or change.
        digest: of all files; empty if there are none.
        notes: about files that are read in another way than they are written.
        mutating: for changes of objects, in the order of files.
        templates: named templates, in the order of files; their names differ.
    """

    validating: tuple[ValidatingRule, ...] = ()
    conversions: tuple[PodRule, ...] = ()
    catalogue: Catalogue = dataclasses.field(default_factory=Catalogue)
    digest: str = ""
    files: int = 0
    hints: tuple[HintRule, ...] = ()
    notes: tuple[str, ...] = ()
    mutating: tuple[MutatingRule, ...] = ()
    templates: tuple[TemplateRule, ...] = ()

    @property
    def rules(self) -> tuple[ValidatingRule | MutatingRule | AnyPodRule, ...]:
        return (*self.validating, *self.mutating, *self.conversions, *self.hints, *self.templates)

    @property
    def asks(self) -> bool:
        """Whether a policy reads `authorizer`."""
        return any(rule.asks for rule in (*self.validating, *self.mutating))

    @property
    def unconnected(self) -> bool:
        """Whether a policy allows devices that are not connected."""
        return any(rule.spec.unconnected == "Allow" for rule in self.conversions)

    @property
    def network_classes(self) -> frozenset[str]:
        """DeviceClasses of EFA interfaces: that of AWS's network driver, and those that policies name."""
        return self.efa_classes | {names.EFA_DEVICE_CLASS}

    @property
    def conversion_classes(self) -> frozenset[str]:
        """DeviceClasses of Neuron devices that ConversionPolicies name."""
        return frozenset(rule.spec.device_class for rule in self.conversions if rule.spec.device_class)

    @property
    def efa_classes(self) -> frozenset[str]:
        """DeviceClasses from which ConversionPolicies request EFA interfaces."""
        return frozenset(rule.spec.efa.device_class for rule in self.conversions if rule.spec.efa is not None)

    @property
    def mapped_templates(self) -> frozenset[str]:
        """Names of the ResourceClaimTemplates that ConversionPolicies name."""
        return frozenset(template.name for rule in self.conversions for template in rule.templates)
