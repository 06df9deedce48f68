"""Builds the ResourceClaimTemplateSpec (`resource.k8s.io/v1`) of a generated claim from its merged alternatives."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuron import names, selectors
from neuron.alternatives import Alternative, Merged
from neuron.arrangement import Option
from neuron.efa_groups import group_of
from neuron.interfaces import REQUEST
from neuron.layout import EXTRA, share_of
from neuron.serving import DeviceConfig, Serving

LARGEST_SEARCH: Final = 8
"""Devices of one request for a whole node. If fewer are free, the allocator tries every subset of them: for 15 free of
16 that took 50 ms on each node."""
RANGE: Final = 4
"""Devices of each request, if a whole node is requested in ranges of device ids."""


def ordered(serving: Serving) -> tuple[int, ...]:
    """Request ids in the order of the claim.

    Connected requests first, the largest first: the allocator searches depth first. With single devices first,
    backtracking on a fragmented node took seconds. A share follows the devices beside which it is.
    """
    layout = serving.layout
    spanned = {identity for each_set in serving.connected_sets for identity in each_set.requests}
    spanned |= {identity for identity, count in layout.counts.items() if serving.entry.line and count > 1}
    leader = {identity: identity for identity in (*layout.counts, *layout.shares)}
    leader |= {share_of(identity): identity for identity in layout.counts}

    def rank(identity: int) -> tuple[bool, int, bool, int, int]:
        count = layout.counts.get(identity, 0)
        return (identity not in spanned, -count, identity == EXTRA, -layout.shares.get(identity, 0), abs(identity))

    return tuple(
        sorted(
            (*layout.counts, *layout.shares),
            key=lambda identity: (rank(leader[identity]), identity not in layout.counts),
        )
    )


class Body:
    """The requests, constraints and configs of one claim."""

    def __init__(
        self,
        servings: Sequence[Serving],
        merged: Merged,
        order: Sequence[int],
        config: DeviceConfig,
        device_class: str,
        *,
        by_type: bool,
    ) -> None:
        """Args: `order` as of `ordered`; `by_type`: whether all requests must select instance types."""
        self._alternatives = merged.alternatives
        self._ties = merged.ties
        self._sets_lnc = servings[0].sets_lnc
        self._config = config
        self._device_class = device_class
        self._by_type = by_type
        self._group = group_of(servings[0])
        self._counters = any(each.entry.counters for each in servings)
        self._consecutive = {each.entry.name for each in servings if each.entry.consecutive}
        self._names: Mapping[int, tuple[str, ...]] = _named(order, self._ranges(servings))

    def _ranges(self, servings: Sequence[Serving]) -> int:
        """Requests into which the request for a whole node is divided; 0 if there is none."""
        if self._config.ultraserver_mode is not None or len(self._alternatives) > 1:
            return 0
        (alternatives,) = self._alternatives.values()
        option = alternatives[0].option
        whole = all(option.count == (each.entry.devices or max(each.entry.counts)) for each in servings)
        divided = len(alternatives) == 1 and whole and option.count > LARGEST_SEARCH
        return -(-option.count // RANGE) if divided else 0

    def use(self, use: Sequence[int]) -> tuple[str, ...]:
        """Request names of a use; empty if it is the whole claim."""
        if len(use) == len(self._names):
            return ()
        return tuple(
            sorted((name for identity in use for name in self._names[identity]), key=lambda each: int(each[1:]))
        )

    def spec(self) -> dict[str, Any]:
        """The ResourceClaimTemplateSpec, with defaults set explicitly."""
        devices: dict[str, Any] = {"requests": [each for identity in self._names for each in self._requests(identity)]}
        if self._config.efa is not None:
            devices["requests"].append(self._config.efa.request())
        if constraints := self._constraints():
            devices["constraints"] = constraints
        if config := self._opaque_configs():
            devices["config"] = config
        return {"spec": {"devices": devices}}

    def summary(self) -> str:
        """The readable part of the template's name: devices or cores of each request, then the settings."""
        if self._config.ultraserver_mode is not None:
            parts = [f"us{self._config.ultraserver_mode}"]
        else:
            parts = [
                "or".join(dict.fromkeys(_summary(each.option) for each in self._alternatives[identity]))
                for identity in self._names
            ]
        if self._config.lnc is not None:
            parts.append(f"lnc{self._config.lnc}")
        if self._config.efa is not None:
            parts.append(f"efa{self._config.efa.count}")
        return "-".join(parts)

    def _requests(self, identity: int) -> list[dict[str, Any]]:
        request_names, alternatives = self._names[identity], self._alternatives[identity]
        if len(alternatives) > 1:
            listed = [{"name": each.name, **self._devices(each, each.option)} for each in alternatives]
            return [{"name": request_names[0], "firstAvailable": listed}]
        option = alternatives[0].option
        if len(request_names) == 1:
            return [{"name": request_names[0], "exactly": self._devices(alternatives[0], option)}]
        ranges = [
            tuple(range(RANGE * place, min(RANGE * (place + 1), option.count))) for place in range(len(request_names))
        ]
        return [
            {"name": name, "exactly": self._devices(alternatives[0], Option(len(ids), ids=ids))}
            for name, ids in zip(request_names, ranges, strict=True)
        ]

    def _devices(self, alternative: Alternative, option: Option) -> dict[str, Any]:
        whole_node = self._config.ultraserver_mode is not None
        devices: dict[str, Any] = {
            "deviceClassName": self._device_class,
            "allocationMode": "ExactCount",
            "count": 1 if whole_node else option.count,
        }
        if expressions := self._selectors(alternative, option):
            devices["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
        if option.cores:
            devices["capacity"] = {"requests": {names.CAPACITY_CORES: str(option.cores)}}
        return devices

    def _selectors(self, alternative: Alternative, option: Option) -> list[str]:
        if self._config.ultraserver_mode is not None:
            return [selectors.whole_node(), *([selectors.instance_types(alternative.types)] if self._by_type else ())]
        untied = not alternative.constraints and (option.ids or alternative.others)
        # Where devices consume counters, a device that does not match a constraint makes later alternatives fail.
        if self._by_type or untied or (self._counters and alternative.others):
            return [selectors.single_devices(alternative.types, option.ids)]
        if option.ids:
            return [selectors.single_devices((), option.ids)]
        # Devices with one value of a window are consecutive on any type, and a whole node has no window.
        windowed = alternative.constraints and self._consecutive.issuperset(alternative.types)
        return [] if windowed else [selectors.single_devices()]

    def _constraints(self) -> list[dict[str, Any]]:
        if self._config.ultraserver_mode is not None:
            return []
        if self._config.efa is not None:
            every = [name for request_names in self._names.values() for name in request_names]
            attribute = names.device_group_attribute(self._group)
            return [{"requests": [*every, REQUEST], "matchAttribute": attribute}]
        return [
            {
                "requests": [
                    reference
                    for identity, position in tie.members
                    for reference in self._references(identity, position)
                ],
                "matchAttribute": tie.attribute,
            }
            for tie in self._ties
        ]

    def _references(self, identity: int, position: int) -> list[str]:
        """Request names for constraints: `req`, or `req/sub` if there are alternatives."""
        alternatives = self._alternatives[identity]
        suffix = f"/{alternatives[position].name}" if len(alternatives) > 1 else ""
        return [f"{name}{suffix}" for name in self._names[identity]]

    def _opaque_configs(self) -> list[dict[str, Any]]:
        entries = []
        if self._config.lnc is not None and self._sets_lnc:
            entries.append(("NeuronConfig", "logicalNeuronCore", self._config.lnc))
        if self._config.ultraserver_mode is not None:
            entries.append(("UltraServerConfig", "ultraserverMode", self._config.ultraserver_mode))
        return [
            {
                "requests": [
                    reference
                    for identity in self._names
                    for position in range(len(self._alternatives[identity]))
                    for reference in self._references(identity, position)
                ],
                "opaque": {
                    "driver": names.DRIVER,
                    "parameters": {"apiVersion": names.CONFIG_API_VERSION, "kind": kind, field: value},
                },
            }
            for kind, field, value in entries
        ]


def _named(order: Sequence[int], ranges: int) -> dict[int, tuple[str, ...]]:
    if ranges:
        return {order[0]: tuple(f"n{place}" for place in range(ranges))}
    return {identity: (f"n{place}",) for place, identity in enumerate(order)}


def _summary(option: Option) -> str:
    return f"c{option.cores}" if option.cores else str(option.count)
