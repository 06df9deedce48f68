"""Reads the device requests and constraints of a claim's raw spec, of any version of `resource.k8s.io`."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from neuron import names, quantities
from neuron.api.claim_specs import ALL, EXACT_COUNT, Constraint, DeviceRequest, Selector
from neuron.api.fields import mapping, mappings

UNREADABLE_COUNT: Final = -1

_LONGEST_MODE: Final = 60
_MOST_CAPACITIES: Final = 32
"""The API server's limit on `capacity.requests`."""
_GROUPS: Final = ("resource.aws.com/devicegroup", f"{names.DRIVER}/window")


def alternatives(request: Mapping[str, object]) -> Iterator[DeviceRequest]:
    """Everything that the scheduler may allocate for a request.

    v1 and v1beta2 have `exactly` or `firstAvailable`; v1beta1 has the fields in the request itself. All of them are
    read, because the API server uses those that its version has.
    """
    name = str(request.get("name", ""))
    for each in mappings(request.get("firstAvailable")):
        yield _alternative(each, f"{name}/{each.get('name', '')!s}")
    exact = request.get("exactly")
    if isinstance(exact, dict):
        yield _alternative(exact, name)
    if "deviceClassName" in request:
        yield _alternative(request, name)


def _alternative(fields: Mapping[str, object], reference: str) -> DeviceRequest:
    """One alternative; its count is `UNREADABLE_COUNT` if it cannot be read."""
    mode, count = fields.get("allocationMode"), fields.get("count")
    everything = isinstance(mode, str) and len(mode) <= _LONGEST_MODE and mode.casefold() == ALL.casefold()
    if not everything and mode not in (None, "", EXACT_COUNT):
        amount = UNREADABLE_COUNT
    elif count is None:
        amount = 1
    else:
        amount = max(1, count) if isinstance(count, int) and not isinstance(count, bool) else UNREADABLE_COUNT
    selectors = tuple(
        Selector("", text)
        for each in mappings(fields.get("selectors"))
        if isinstance(text := mapping(each.get("cel")).get("expression"), str)
    )
    device_class = fields.get("deviceClassName")
    name = device_class if isinstance(device_class, str) else ""
    amounts = mapping(mapping(fields.get("capacity")).get("requests"))
    capacity = tuple(
        (key, str(value))
        for key, value in itertools.islice(amounts.items(), _MOST_CAPACITIES)
        if isinstance(value, str | int)
    )
    return DeviceRequest(
        "", reference, name, selectors, everything, amount, fields.get("adminAccess") is True, capacity=capacity
    )


def cores_of(request: DeviceRequest) -> int | None:
    """Physical cores that a request consumes of every device; 0 if it does not ask for cores, None if unreadable."""
    for name, text in request.capacity:
        if name in names.CORES_SPELLINGS:
            try:
                return math.ceil(quantities.parse_amount(text))
            except quantities.NotAQuantityError:
                return None
    return 0


def constraints(devices: Mapping[str, object]) -> Iterator[Constraint]:
    """The `matchAttribute` constraints of `spec.devices`."""
    for each in mappings(devices.get("constraints")):
        listed = each.get("requests")
        requests = tuple(one for one in listed if isinstance(one, str)) if isinstance(listed, list) else ()
        attribute = each.get("matchAttribute")
        if isinstance(attribute, str):
            yield Constraint("", requests, attribute)


class GroupedRequests:
    """The requests whose devices must be in one device group.

    A whole-node device is in no group, so these requests never get one.
    """

    def __init__(self, constraints: Iterable[Constraint]) -> None:
        self._names: set[str] = set()
        self._all = False
        for each in constraints:
            if each.match_attribute.startswith(_GROUPS):
                self._all = self._all or not each.requests
                self._names.update(each.requests)

    def __contains__(self, request: DeviceRequest) -> bool:
        reference = request.reference
        return self._all or reference in self._names or reference.partition("/")[0] in self._names
