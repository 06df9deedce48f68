"""Specs of ResourceClaims, ResourceClaimTemplates and DeviceClasses, equal for all API versions.

`neuron.api.claim_reader` reads them from any API version; `neuron.api.resource_versions` converts objects.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from neuron import names
from neuron.api import configs
from neuron.api.taints import TolerationSpec

GROUP: Final = "resource.k8s.io"
KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")

EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"


class Selector(Struct, frozen=True, gc=False):
    """One CEL expression and its field path."""

    path: str
    expression: str


class DeviceRequest(Struct, frozen=True, gc=False):
    """An `ExactDeviceRequest` or a `DeviceSubRequest`.

    Attributes:
        path: field path of its fields.
        reference: its name in constraints and configs: `req`, or `req/sub`.
        selectors: all must match.
        everything: whether it requests all matching devices of a node (`allocationMode: All`).
        count: number of devices; 0 with `everything`, or if the count is not valid.
        admin_access: `adminAccess`: it does not allocate devices exclusively.
        capacity: `capacity.requests`: amounts to consume of every device, by name as written.
        tolerations: of taints of devices.
    """

    path: str
    reference: str
    device_class: str
    selectors: tuple[Selector, ...] = ()
    everything: bool = False
    count: int = 1
    admin_access: bool = False
    capacity: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[TolerationSpec, ...] = ()


class Leaf(Struct, frozen=True, gc=False):
    """One request for Neuron devices, or one of its alternatives.

    Attributes:
        mask: shapes that it can match, of a `checks.claims.device_index.DeviceIndex`.
    """

    devices: DeviceRequest
    request: str
    mask: int

    @property
    def path(self) -> str:
        """Field path of its count."""
        return f"{self.devices.path}.{'allocationMode' if self.devices.everything else 'count'}"


class Request(Struct, frozen=True, gc=False):
    """A `DeviceRequest`.

    Attributes:
        name: its name in containers, constraints and configs.
        alternatives: one, or those of `firstAvailable` in order of preference.
    """

    path: str
    name: str
    alternatives: tuple[DeviceRequest, ...]

    @property
    def prioritised(self) -> bool:
        """Whether it has `firstAvailable`."""
        return any(["/" in alternative.reference for alternative in self.alternatives])


class Constraint(Struct, frozen=True, gc=False):
    """A `DeviceConstraint`; empty `requests` means all requests."""

    path: str
    requests: tuple[str, ...]
    match_attribute: str = ""
    distinct_attribute: str = ""


class Config(Struct, frozen=True, gc=False):
    """A `DeviceClaimConfiguration` or `DeviceClassConfiguration`.

    Attributes:
        requests: names of requests or alternatives; empty: all.
        driver: `opaque.driver`.
        parameters: `opaque.parameters`: raw JSON as bytes if available, else parsed.
    """

    path: str
    requests: tuple[str, ...]
    driver: str
    parameters: object

    @property
    def setting(self) -> configs.OpaqueConfig | None:
        """What it sets for our driver; None if it is for another one, or cannot be read."""
        return configs.decode(self.parameters).config if self.driver == names.DRIVER else None


def entries_of(listed: Iterable[Config], source: configs.ConfigSource) -> list[configs.ConfigEntry]:
    """The readable ones for our driver."""
    settings = [(each.requests, each.setting) for each in listed]
    return [configs.ConfigEntry(source, requests, found) for requests, found in settings if found is not None]


class ClaimSpec(Struct, frozen=True, gc=False):
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
    def device_classes(self) -> frozenset[str]:
        """DeviceClasses that it requests, including alternatives."""
        parts = (part for request in self.requests for part in request.alternatives)
        return frozenset([part.device_class for part in parts if part.device_class])

    @property
    def ultraserver_modes(self) -> tuple[int, ...]:
        """The modes of its UltraServerConfigs, in order."""
        settings = [each.setting for each in self.configs]
        return tuple([each.ultraserver_mode for each in settings if isinstance(each, configs.UltraServerConfig)])

    @property
    def references(self) -> tuple[str, ...]:
        """All names that a constraint or config may use."""
        return tuple(
            [
                reference
                for request in self.requests
                for reference in dict.fromkeys([request.name, *[each.reference for each in request.alternatives]])
            ]
        )


class ClassSpec(Struct, frozen=True, gc=False):
    """The spec of a DeviceClass."""

    selectors: tuple[Selector, ...] = ()
    configs: tuple[Config, ...] = ()
