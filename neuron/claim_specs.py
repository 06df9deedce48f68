"""What a ResourceClaim, a ResourceClaimTemplate or a DeviceClass says, in one shape for all versions of the API.

`neuron.claim_reader` makes it, and is the only place that knows of versions.
"""

import dataclasses
from typing import Final

GROUP: Final = "resource.k8s.io"
KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")

EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"


@dataclasses.dataclass(frozen=True, slots=True)
class Selector:
    """One CEL expression and its field path."""

    path: str
    expression: str


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRequest:
    """An `ExactDeviceRequest` or a `DeviceSubRequest`.

    Attributes:
        path: field path under which its fields stand.
        reference: how constraints and configs refer to it: `req`, or `req/sub`.
        device_class: its DeviceClass.
        selectors: what a device has to satisfy, all of them.
        everything: whether it asks for every matching device of a node (`allocationMode: All`).
        count: devices; 0 where it asks for everything, or where what was written is no count.
        admin_access: whether it only looks at devices.
    """

    path: str
    reference: str
    device_class: str
    selectors: tuple[Selector, ...] = ()
    everything: bool = False
    count: int = 1
    admin_access: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A `DeviceRequest`.

    Attributes:
        path: its field path.
        name: what containers, constraints and configs call it.
        alternatives: one, or in order of preference those of `firstAvailable`.
    """

    path: str
    name: str
    alternatives: tuple[DeviceRequest, ...]

    @property
    def prioritised(self) -> bool:
        """Whether it lists alternatives."""
        return any("/" in alternative.reference for alternative in self.alternatives)


@dataclasses.dataclass(frozen=True, slots=True)
class Constraint:
    """A `DeviceConstraint`; `requests` is empty where it spans all of them."""

    path: str
    requests: tuple[str, ...]
    match_attribute: str = ""
    distinct_attribute: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """A `DeviceClaimConfiguration` or `DeviceClassConfiguration`.

    Attributes:
        path: its field path.
        requests: what it applies to; empty: everything.
        driver: `opaque.driver`.
        parameters: `opaque.parameters`: raw JSON as bytes where it is known, else parsed.
    """

    path: str
    requests: tuple[str, ...]
    driver: str
    parameters: object


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The spec of a claim, or of the claims that a template makes.

    Attributes:
        path: field path of `devices`.
        requests: in order.
        constraints: in order.
        configs: in order.
    """

    path: str
    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    configs: tuple[Config, ...] = ()

    @property
    def references(self) -> tuple[str, ...]:
        """Everything that a constraint or config may name."""
        return tuple(
            reference
            for request in self.requests
            for reference in dict.fromkeys((request.name, *(each.reference for each in request.alternatives)))
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ClassSpec:
    """The spec of a DeviceClass."""

    selectors: tuple[Selector, ...] = ()
    configs: tuple[Config, ...] = ()
