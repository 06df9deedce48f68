"""DeviceTaintRules (`resource.k8s.io`, KEP-5055): taints that an administrator gives devices.

A rule without a selector taints nothing; an empty selector taints every device of every driver. Source: the types of
`k8s.io/api/resource/v1` (Kubernetes 1.37), v1beta2 and v1alpha3, which have the same fields. Up to Kubernetes 1.34,
v1alpha3 also has a class and CEL selectors; rules with them are not judged here.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from msgspec import structs

from neuron.api.fields import Fields, read
from neuron.api.metadata import ObjectMeta
from neuron.api.slices import Slice
from neuron.api.taints import Taint

KIND: Final = "DeviceTaintRule"
VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")
"""Newest first: 1.37 and later; 1.36; 1.33."""
NARROWING: Final = ("deviceClassName", "selectors")
"""Fields of a selector that versions up to 1.34 have beside the three names."""


@dataclasses.dataclass(frozen=True, slots=True)
class TaintRule:
    """A rule.

    Attributes:
        driver: only devices of this driver; None: of all.
        pool: only devices of this pool; None: of all.
        device: only devices of this name; None: all.
    """

    name: str
    driver: str | None
    pool: str | None
    device: str | None
    taint: Taint

    def selects(self, driver: str, pool: str, device: str) -> bool:
        """Whether it taints a device."""
        wanted = ((self.driver, driver), (self.pool, pool), (self.device, device))
        return all(asked is None or asked == found for asked, found in wanted)


def read_rule(item: object) -> TaintRule | None:
    """Read a rule; None for one that taints nothing, or whose devices are not known here.

    Raises:
        neuron.api.fields.WrongFormError: it has another form.
    """
    rule = read(item, _Rule)
    selector = rule.spec.device_selector
    if selector is None or selector.device_class_name or selector.selectors:
        return None
    taint = Taint.read(rule.spec.taint)
    return TaintRule(rule.metadata.name, selector.driver, selector.pool, selector.device, taint)


def tainted(slice_: Slice, rules: Sequence[TaintRule]) -> Slice:
    """A slice with the taints of the rules, as the scheduler sees it."""
    devices = []
    for device in slice_.devices:
        taints = [rule.taint for rule in rules if rule.selects(slice_.driver, slice_.pool, device.name)]
        devices.append(structs.replace(device, taints=(*device.taints, *taints)) if taints else device)
    return structs.replace(slice_, devices=tuple(devices))


class _Selector(Fields, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    device_class_name: str | None = None
    selectors: list[object] | None = None


class _RuleSpec(Fields, frozen=True):
    taint: dict[str, object]
    device_selector: _Selector | None = None


class _Rule(Fields, frozen=True):
    metadata: ObjectMeta
    spec: _RuleSpec
