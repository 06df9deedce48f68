"""Checks requests for shares of devices (KEP-5075): the capacity that they consume, and requests that shares affect.

The rules are those of the allocator, `k8s.io/dynamic-resource-allocation/structured`, and of the driver at prepare.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

from checks.claims.device_index import DeviceIndex
from neuron import names, quantities
from neuron.allocator.search import AllocatorCapacity
from neuron.api.claim_specs import Leaf
from neuron.api.configs import ConfigEntry, configs_in_force
from neuron.findings import Finding, Severity, Suggestions, as_warning, short, warning
from neuron.hardware.device_shapes import qualified
from neuron.hardware.instances import Catalogue

CORES: Final = qualified(names.CAPACITY_CORES)
_OWN_DOMAIN: Final = f"{names.DRIVER}/"
_SHOWN: Final = 48


class CapacityRules:
    """Checks the capacity of the requests of one claim."""

    def __init__(self, index: DeviceIndex, catalogue: Catalogue, configs: Sequence[ConfigEntry]) -> None:
        """Args: `configs` are those of the claim; those of its classes are given with each request."""
        self._index = index
        self._catalogue = catalogue
        self._configs = configs
        self._largest: dict[tuple[int, str], dict[str, int]] = {}
        self._meant: dict[str, str] = {}
        self._suggestions = Suggestions()

    def check(self, leaf: Leaf, class_entries: Sequence[ConfigEntry]) -> list[Finding]:
        """NEU531 to NEU537 and NEU539 about one request."""
        if not leaf.mask:
            return []
        found: list[Finding] = []
        for name, text in leaf.devices.capacity:
            found += self._check_amount(leaf, name, quantities.parse_amount(text), class_entries)
        return found + self._check_use(leaf)

    # --- the amount ---------------------------------------------------------------------------------------------

    def _check_amount(
        self, leaf: Leaf, name: str, amount: Decimal, class_entries: Sequence[ConfigEntry]
    ) -> list[Finding]:
        path = f"{leaf.devices.path}.capacity.requests[{short(name)}]"
        mine = leaf.mask & self._index.with_capacity(qualified(name))
        found = self._check_name(leaf, name, path)
        if found or not mine:
            return found
        label = short(name, _SHOWN)
        most = self._most(mine, qualified(name))
        instance_type = max(most, key=lambda each: most[each])
        if amount > most[instance_type]:
            has = _plain(most[instance_type])
            message = f"{_plain(amount)} {label} of one device are requested, and {instance_type} has {has}."
            return [Finding("NEU532", path, message, f"Request {has} or fewer.", _plain(amount))]
        if name != names.CAPACITY_CORES:
            return []
        shared = mine & self._index.shared
        published = mine & self._index.published
        if not (shared & published if published else shared):
            return self._check_unshared(leaf, path, mine, amount)
        if not amount and not leaf.devices.admin_access:
            message = f"request {leaf.request[:30]} asks for 0 {label}: the driver refuses a share without cores."
            fix = f"Request 1 or more; 0 is for adminAccess. Without {label}, a request gets whole devices."
            return [Finding("NEU534", path, message, fix, "0")]
        rounded = self._check_rounding(shared, path, amount)
        return [*rounded, *self._check_lnc(leaf, shared, path, amount, class_entries)]

    def _check_name(self, leaf: Leaf, name: str, path: str) -> list[Finding]:
        """NEU531: no device that the request can get has the capacity."""
        index, label = self._index, short(name, _SHOWN)
        having = index.with_capacity(qualified(name))
        meant = "" if having else self._closest(name.rpartition("/")[2])
        if having and name.startswith(_OWN_DOMAIN):
            meant = name.removeprefix(_OWN_DOMAIN)  # The allocator compares names as they are published.
        if meant:
            message = f"no Neuron device has the capacity '{label}'. Did you mean '{meant}'?"
            return [Finding("NEU531", path, message, f"Write {meant}.", name, misspelt=True)]
        if not having:
            message = f"no known Neuron device has the capacity '{label}'."
            return [warning("NEU531", path, message, "A device without it is never chosen.", name)]
        published = leaf.mask & index.published
        if (published or leaf.mask) & having:
            return []
        which = index.types(published or leaf.mask)[0] + (" that the cluster publishes now" if published else "")
        message = f"no device of {which} has the capacity {label}."
        return [warning("NEU531", path, message, "The driver of this project publishes it; AWS's does not.", name)]

    def _closest(self, identifier: str) -> str:
        """The most similar capacity, or an empty text."""
        if identifier not in self._meant:
            known = [each.rpartition("/")[2] for each in sorted(self._index.capacities())]
            self._meant[identifier] = self._suggestions.closest_word(identifier, known)
        return self._meant[identifier]

    def _check_unshared(self, leaf: Leaf, path: str, mine: int, amount: Decimal) -> list[Finding]:
        """NEU539: the request gets whole devices."""
        index = self._index
        instance_type, cores = next(iter(self._most((mine & index.published) or mine, CORES).items()))
        if leaf.devices.admin_access or amount >= cores:
            return []
        message = f"devices of {instance_type} are not shared: {_plain(amount)} cores take a whole device of {cores}."
        fix = "Kubernetes 1.36 shares devices of which the driver's setting share_cores allows it."
        return [warning("NEU539", path, message, fix, _plain(amount))]

    def _most(self, mask: int, name: str) -> dict[str, int]:
        """The largest value of a capacity by instance type."""
        known = self._largest.get((mask, name))
        if known is None:
            known = self._largest[mask, name] = {}
            for shape in self._index.members(mask):
                value = int(quantities.parse_amount(shape.capacity[name]))
                known[shape.instance_type] = max(value, known.get(shape.instance_type, 0))
        return known

    def _consumed(self, mask: int, instance_type: str, amount: Decimal) -> tuple[int | None, tuple[int, ...]]:
        """Cores that a request consumes of a device of a type (None: the device has fewer), and the possible shares."""
        shape = next(self._index.members(mask & self._index.of_type(instance_type)))
        valid = shape.shares or ()
        capacity = AllocatorCapacity(int(quantities.parse_amount(shape.capacity[CORES])), valid)
        return capacity.consumed(math.ceil(amount)), valid

    def _check_rounding(self, shared: int, path: str, amount: Decimal) -> list[Finding]:
        """NEU533: every device that can serve the request gives more."""
        rounded: list[tuple[int, tuple[int, ...], str]] = []
        for instance_type in self._index.types(shared):
            consumed, valid = self._consumed(shared, instance_type, amount)
            if consumed == amount:
                return []
            if consumed is not None:
                rounded.append((consumed, valid, instance_type))
        if not rounded:
            return []
        consumed, valid, instance_type = rounded[0]
        sizes = ", ".join(str(each) for each in valid if each)
        message = f"{_plain(amount)} cores are requested, and {consumed} are allocated on {instance_type}."
        return [warning("NEU533", path, message, f"Valid numbers: {sizes}.", _plain(amount))]

    def _check_lnc(
        self, leaf: Leaf, shared: int, path: str, amount: Decimal, class_entries: Sequence[ConfigEntry]
    ) -> list[Finding]:
        """NEU535: the share is not a whole number of logical cores, so the driver refuses it."""
        in_force = configs_in_force([*class_entries, *self._configs], leaf.devices.reference)
        refused: list[tuple[str, int, int]] = []
        works = False
        for instance_type in self._index.types(shared):
            entry = self._catalogue.get(instance_type)
            consumed, _ = self._consumed(shared, instance_type, amount)
            if consumed is None:
                continue
            lnc = in_force.logical_neuron_core or (entry.default_logical_neuron_core if entry else 1)
            if consumed % lnc:
                refused.append((instance_type, consumed, lnc))
            else:
                works = True
        if not refused:
            return []
        instance_type, consumed, lnc = refused[0]
        message = (
            f"a share of {consumed} physical cores is not a whole number of logical cores on {instance_type}: each is"
            f" {lnc} physical ones."
        )
        found = Finding(
            "NEU535", path, message, f"Request a multiple of {lnc}, or set logicalNeuronCore: 1.", str(consumed)
        )
        return [as_warning(found) if works else found]

    # --- requests that shares affect ------------------------------------------------------------------------------

    def _check_use(self, leaf: Leaf) -> list[Finding]:
        """NEU536 and NEU537, about devices that the cluster publishes as shared."""
        index = self._index
        shared = leaf.mask & index.published & index.shared
        if not shared:
            return []
        if leaf.devices.admin_access:
            return self._check_admin(leaf, shared)
        counts = {name: index.devices(shared, name) for name in index.types(shared)}
        instance_type = max(counts, key=lambda name: counts[name])
        if not leaf.devices.everything or counts[instance_type] == 1:
            return []
        message = f"allocationMode All leaves out devices of {instance_type} that are in use, because they are shared."
        fix = (
            f"Write allocationMode: ExactCount with count: {counts[instance_type]} to get all of them or none, or have "
            f"sharing switched off for these nodes (their label {names.LABEL_SHARE_CORES}: off)."
        )
        return [warning("NEU536", leaf.path, message, fix, "All")]

    def _check_admin(self, leaf: Leaf, shared: int) -> list[Finding]:
        requested = dict(leaf.devices.capacity).get(names.CAPACITY_CORES)
        if requested is not None and not quantities.parse_amount(requested):
            return []
        instance_type = self._index.types(shared)[0]
        message = (
            f"adminAccess fails on a shared device of {instance_type} that is used up, unless it consumes nothing."
        )
        fix = f'Add capacity: {{requests: {{{names.CAPACITY_CORES}: "0"}}}}'
        if leaf.mask & self._index.published & ~self._index.shared:
            fix += "; request devices that are not shared in another claim"
        return [warning("NEU537", f"{leaf.devices.path}.adminAccess", message, f"{fix}.", "true")]


def spare_alternatives(found: Iterable[tuple[Leaf, list[Finding]]]) -> list[Finding]:
    """The findings of all requests. An error in one alternative is a warning if another alternative has none."""
    by_request: dict[str, list[list[Finding]]] = {}
    for leaf, findings in found:
        by_request.setdefault(leaf.request, []).append(findings)
    kept: list[Finding] = []
    for alternatives in by_request.values():
        works = any(all(each.severity is not Severity.ERROR for each in findings) for findings in alternatives)
        for findings in alternatives:
            kept += map(as_warning, findings) if works else findings
    return kept


def _plain(amount: Decimal | int) -> str:
    """The number without an exponent: `0.5` for `500m`."""
    return short(f"{Decimal(amount).normalize():f}", _SHOWN)
