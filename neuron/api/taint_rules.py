"""DeviceTaintRules (`resource.k8s.io`, KEP-5055): taints that an administrator gives devices.

A rule without a selector taints nothing; an empty selector taints every device of every driver. Source: the types of
`k8s.io/api/resource/v1beta2` and v1alpha3. The latter has a class and CEL selectors up to Kubernetes 1.34; rules with
them are not judged here.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

KIND: Final = "DeviceTaintRule"
NARROWING: Final = ("deviceClassName", "selectors")
"""Fields of a selector that versions up to 1.34 have beside the three names."""

Object = Mapping[str, Any]


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
    taint: Object

    def selects(self, driver: str, pool: str, device: str) -> bool:
        """Whether it taints a device."""
        wanted = ((self.driver, driver), (self.pool, pool), (self.device, device))
        return all(asked is None or asked == found for asked, found in wanted)


def read_rule(item: Object) -> TaintRule | None:
    """Read a rule; None for one that taints nothing, or whose devices are not known here.

    Raises:
        KeyError, TypeError, AttributeError: it has another structure than the API's.
    """
    spec = item["spec"]
    selector = spec.get("deviceSelector")
    if selector is None or any(selector.get(field) for field in NARROWING):
        return None
    driver, pool, device = (selector.get(field) for field in ("driver", "pool", "device"))
    return TaintRule(item["metadata"]["name"], driver, pool, device, dict(spec["taint"]))


def tainted(spec: Object, rules: Sequence[TaintRule]) -> Object:
    """A slice's spec with the taints of the rules, as the scheduler sees it."""
    driver, pool = spec.get("driver", ""), spec["pool"]["name"]
    devices = [
        _with_taints(device, _taints(rules, driver, pool, device["name"])) for device in spec.get("devices") or ()
    ]
    return {**spec, "devices": devices} if devices else spec


def _taints(rules: Iterable[TaintRule], driver: str, pool: str, device: str) -> list[Object]:
    return [rule.taint for rule in rules if rule.selects(driver, pool, device)]


def _with_taints(device: Object, taints: list[Object]) -> Object:
    return {**device, "taints": [*(device.get("taints") or ()), *taints]} if taints else device
