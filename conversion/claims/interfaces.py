"""EFA interfaces that a pod gets in the claim of its Neuron devices, from a DRA network driver."""

import dataclasses
from typing import Final

from conversion.claims import selectors
from neuron import names
from neuron.findings import Finding

REQUEST: Final = "efa"
"""Name of the request in a generated claim; with a number after it, if there is one for each interface."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interfaces:
    """EFA interfaces that one container gets in the claim of the pod.

    Attributes:
        container: its name. No other container of the pod requests Neuron devices.
        count: number of interfaces, at least 1.
    """

    container: str
    count: int
    device_class: str

    def requests(self, *, one_by_one: bool) -> list[dict[str, object]]:
        """The requests of the claim: one for all, or one for each. They select no Neuron device."""
        if one_by_one:
            return [self._request(f"{REQUEST}{number}", 1) for number in range(self.count)]
        return [self._request(REQUEST, self.count)]

    def _request(self, name: str, count: int) -> dict[str, object]:
        return {
            "name": name,
            "exactly": {
                "deviceClassName": self.device_class,
                "allocationMode": "ExactCount",
                "count": count,
                "selectors": [{"cel": {"expression": selectors.other_driver()}}],
            },
        }


def refused(path: str, message: str, fix: str, value: object = "") -> Finding:
    """NEU125. `path`: of the container."""
    return Finding("NEU125", f"{path}.resources.limits[{names.RESOURCE_EFA}]", message, fix, str(value))
