"""ResourceClaims as the API server has them: owners, reservations, the allocation, and what drivers report of devices.

Their specs are read by `neuron.api.claim_reader`. The status is equal in all API versions.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from neuron import names
from neuron.api.configs import ConfigSource
from neuron.api.fields import Fields, ObjectMeta, mapping, read
from neuron.api.nodes import NodeSelector

PODS: Final = "pods"
POD_GROUPS: Final = "podgroups"
"""Values of `resource` in `status.reservedFor`."""


class Result(Fields, frozen=True):
    """An entry of `status.allocation.devices.results`: one device."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int] | None = None
    tolerations: list[dict[str, object]] | None = None

    @property
    def cores(self) -> str | int | None:
        """The NeuronCores that it consumes of a shared device, as a quantity; None if it says none."""
        consumed = self.consumed_capacity or {}
        return next((consumed[name] for name in names.CORES_SPELLINGS if name in consumed), None)


class Opaque(Fields, frozen=True):
    """An opaque configuration."""

    driver: str
    parameters: object = None


class AllocatedConfig(Fields, frozen=True):
    """An entry of `status.allocation.devices.config`."""

    source: ConfigSource = ConfigSource.FROM_CLAIM
    requests: tuple[str, ...] | None = None
    opaque: Opaque | None = None


class _AllocatedDevices(Fields, frozen=True):
    results: list[Result] | None = None
    config: list[AllocatedConfig] | None = None


class Allocation(Fields, frozen=True):
    """`status.allocation`.

    Attributes:
        node_selector: of the nodes that have the devices; None: all nodes.
    """

    devices: _AllocatedDevices | None = None
    node_selector: NodeSelector | None = None

    @property
    def results(self) -> Sequence[Result]:
        """The devices."""
        return (self.devices and self.devices.results) or ()

    @property
    def configs(self) -> Sequence[AllocatedConfig]:
        """The configs of the claim and of its DeviceClasses."""
        return (self.devices and self.devices.config) or ()

    @property
    def ours(self) -> tuple[Result, ...]:
        """The results of our driver."""
        return tuple([each for each in self.results if each.driver == names.DRIVER])


class User(Fields, frozen=True):
    """An entry of `status.reservedFor`."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceCondition(Fields, frozen=True):
    """A condition that a driver reports of a device."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class DeviceStatus(Fields, frozen=True):
    """An entry of `status.devices`."""

    device: str = ""
    conditions: list[DeviceCondition] | None = None


class Tie(Fields, frozen=True):
    """A constraint of the claim's spec; without requests it covers all of them."""

    match_attribute: str | None = None
    requests: list[str] | None = None


class StoredClaim(Struct, frozen=True):
    """A ResourceClaim.

    Attributes:
        metadata: of the claim.
        spec: as it is stored.
        ties: the constraints of the spec.
        allocation: None if it is not allocated.
        users: what it is reserved for.
        devices: what drivers report.
    """

    metadata: ObjectMeta
    spec: Mapping[str, object]
    ties: tuple[Tie, ...] = ()
    allocation: Allocation | None = None
    users: tuple[User, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()

    @property
    def ours(self) -> Sequence[Result]:
        """The allocated devices of our driver; none if it is not allocated."""
        return () if self.allocation is None else self.allocation.ours

    @property
    def pods(self) -> tuple[User, ...]:
        """The pods that it is reserved for."""
        return tuple([each for each in self.users if each.resource == PODS])

    @property
    def groups(self) -> tuple[User, ...]:
        """The PodGroups that it is reserved for. It does not say which pods they have."""
        return tuple([each for each in self.users if each.resource == POD_GROUPS])


def read_stored_claim(item: object) -> StoredClaim:
    """A ResourceClaim as the API server or a file has it.

    Raises:
        neuron.api.fields.WrongFormError: it has another form.
    """
    claim = read(item, _StoredClaim)
    status = claim.status or _StoredStatus()
    devices = claim.spec.devices if claim.spec is not None else None
    return StoredClaim(
        claim.metadata,
        mapping(mapping(item).get("spec")),
        tuple((devices and devices.constraints) or ()),
        status.allocation,
        tuple(status.reserved_for or ()),
        tuple(status.devices or ()),
    )


# --- as the API writes it -----------------------------------------------------------------------------------


class _StoredStatus(Fields, frozen=True):
    allocation: Allocation | None = None
    reserved_for: list[User] | None = None
    devices: list[DeviceStatus] | None = None


class _Requested(Fields, frozen=True):
    constraints: list[Tie] | None = None


class _StoredSpec(Fields, frozen=True):
    devices: _Requested | None = None


class _StoredClaim(Fields, frozen=True):
    metadata: ObjectMeta
    spec: _StoredSpec | None = None
    status: _StoredStatus | None = None
