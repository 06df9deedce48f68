"""Builds the ResourceClaimTemplateSpec (`resource.k8s.io/v1`) of a generated claim from its merged alternatives."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conversion.claims import selectors
from conversion.claims.alternatives import Alternative, Merged
from conversion.claims.instance_fit import DeviceConfig, group_of
from conversion.claims.layout import share_of
from conversion.claims.pieces import Division
from neuron import names


class Body:
    """The requests, constraints and configs of one claim."""

    def __init__(
        self,
        merged: Merged,
        division: Division,
        config: DeviceConfig,
        device_class: str,
        *,
        by_type: bool,
    ) -> None:
        """Args: `division` of `merged`; `by_type`: whether all requests must select instance types."""
        servings = merged.servings
        self._alternatives = merged.alternatives
        self._ties = merged.ties
        self._layouts = [each.layout for each in servings]
        self._sets_lnc = servings[0].sets_lnc
        self._config = config
        self._device_class = device_class
        self._by_type = by_type
        self._group = group_of(servings[0])
        self._counters = any(each.entry.counters for each in servings)
        self._consecutive = {each.entry.name for each in servings if each.entry.consecutive}
        self._parts = division.parts
        self._pairs = division.pairs
        numbers = itertools.count()
        self._names: Mapping[int, tuple[str, ...]] = {
            identity: tuple(f"n{next(numbers)}" for _ in parts) for identity, parts in division.parts.items()
        }

    def use(self, use: Sequence[int]) -> tuple[str, ...]:
        """Request names of a use; empty if it is the whole claim."""
        if len(use) == len(self._names):
            return ()  # the whole claim
        return tuple(
            sorted((name for identity in use for name in self._names[identity]), key=lambda each: int(each[1:]))
        )

    def spec(self) -> dict[str, object]:
        """The ResourceClaimTemplateSpec, with defaults set explicitly."""
        requests = [each for identity in self._names for each in self._requests(identity)]
        # Each interface follows the devices by which it is determined.
        requests[self._pairs or len(requests) :] = [*self._interfaces(), *requests[self._pairs or len(requests) :]]
        devices: dict[str, object] = {"requests": requests}
        if constraints := self._constraints():
            devices["constraints"] = constraints
        if config := self._opaque_configs():
            devices["config"] = config
        return {"spec": {"devices": devices}}

    def summary(self) -> str:
        """The readable part of the template's name: devices or cores of each request, then the settings."""
        apart = self._layouts[0].lncs is not None
        if self._config.ultraserver_mode is not None:
            parts = [f"us{self._config.ultraserver_mode}"]
        else:
            parts = [
                "or".join(dict.fromkeys(self._size(identity))) + (self._own_lnc(identity) if apart else "")
                for identity in self._names
                if not self._layouts[0].has_rest(share_of(identity))
            ]
        if self._config.lnc is not None and not apart:
            parts.append(f"lnc{self._config.lnc}")
        if self._config.efa is not None:
            parts.append(f"efa{self._config.efa.count}")
        return "-".join(parts)

    def _own_lnc(self, identity: int) -> str:
        lnc = self._layouts[0].lnc(identity)
        return f"-lnc{lnc}" if lnc else ""

    def _size(self, identity: int) -> list[str]:
        """Devices or cores of a container, for each alternative or type."""
        if self._layouts[0].has_rest(identity):
            return [str(each.size((identity, share_of(identity)))) for each in self._layouts]
        return [_summary(each) for each in self._alternatives[identity]]

    def _interfaces(self) -> list[dict[str, object]]:
        efa = self._config.efa
        return [] if efa is None else efa.requests(one_by_one=self._pairs > 0)

    def _requests(self, identity: int) -> list[dict[str, object]]:
        return [
            {"name": name, "firstAvailable": [{"name": each.name, **self._devices(each)} for each in part]}
            if len(part) > 1
            else {"name": name, "exactly": self._devices(part[0])}
            for name, part in zip(self._names[identity], self._parts[identity], strict=True)
        ]

    def _devices(self, alternative: Alternative) -> dict[str, object]:
        whole_node = self._config.ultraserver_mode is not None
        devices: dict[str, object] = {
            "deviceClassName": self._device_class,
            "allocationMode": "ExactCount",
            "count": 1 if whole_node else alternative.count,
        }
        if expressions := self._selectors(alternative):
            devices["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
        if alternative.cores:
            devices["capacity"] = {"requests": {names.CAPACITY_CORES: str(alternative.cores)}}
        return devices

    def _selectors(self, alternative: Alternative) -> list[str]:
        types = alternative.types
        if self._config.ultraserver_mode is not None:
            return [selectors.whole_node(), *([selectors.instance_types(types)] if self._by_type else ())]
        by_ids: dict[tuple[int, ...], list[str]] = {}
        for name, option in alternative.options.items():
            by_ids.setdefault(option.ids, []).append(name)
        (ids, *others) = by_ids
        untied = not alternative.constraints and (ids or alternative.others)
        # Where devices consume counters, a device that does not match a constraint makes later alternatives fail.
        if self._by_type or alternative.typed or untied or others or (self._counters and alternative.others):
            return [selectors.single_devices_at([(each, found) for found, each in by_ids.items()])]
        if ids:
            return [selectors.single_devices((), ids)]
        # Devices with one value of a window are consecutive on any type, and a whole node has no window.
        windowed = alternative.constraints and self._consecutive.issuperset(types)
        return [] if windowed else [selectors.single_devices()]

    def _constraints(self) -> list[dict[str, Any]]:
        if self._config.ultraserver_mode is not None:
            return []
        if self._config.efa is not None:
            every = [name for request_names in self._names.values() for name in request_names]
            interfaces = [each["name"] for each in self._interfaces()]
            attribute = names.device_group_attribute(self._group)
            nearest = names.device_group_attribute(1)
            pairs = zip(every, interfaces, strict=False) if self._pairs else ()
            return [
                {"requests": [*every, *interfaces], "matchAttribute": attribute},
                *({"requests": list(pair), "matchAttribute": nearest} for pair in pairs),
            ]
        return [
            {
                "requests": [each for member in tie.members for each in self._references(*member)],
                "matchAttribute": tie.attribute,
            }
            for tie in self._ties
        ]

    def _references(self, identity: int, position: int) -> list[str]:
        """Names of the requests of an alternative, for constraints: `req`, or `req/sub` if there are alternatives."""
        wanted = self._alternatives[identity][position].name
        return [
            f"{name}/{each.name}" if len(part) > 1 else name
            for name, part in zip(self._names[identity], self._parts[identity], strict=True)
            for each in part
            if len(part) == 1 or each.name == wanted
        ]

    def _every_reference(self, identity: int) -> list[str]:
        """Names of all requests and alternatives of one id."""
        return list(
            dict.fromkeys(
                reference
                for position in range(len(self._alternatives[identity]))
                for reference in self._references(identity, position)
            )
        )

    def _opaque_configs(self) -> list[dict[str, object]]:
        entries: list[tuple[str, str, int, Iterable[int]]] = []
        layout = self._layouts[0]
        if layout.lncs:
            by_request = {identity: layout.lnc(identity) for identity in self._names}
            for lnc in sorted({lnc for lnc in by_request.values() if lnc}):
                members = [identity for identity, each in by_request.items() if each == lnc]
                entries.append(("NeuronConfig", "logicalNeuronCore", lnc, members))
        elif self._config.lnc is not None and self._sets_lnc:
            entries.append(("NeuronConfig", "logicalNeuronCore", self._config.lnc, self._names))
        if self._config.ultraserver_mode is not None:
            entries.append(("UltraServerConfig", "ultraserverMode", self._config.ultraserver_mode, self._names))
        return [
            {
                "requests": [reference for identity in members for reference in self._every_reference(identity)],
                "opaque": {
                    "driver": names.DRIVER,
                    "parameters": {"apiVersion": names.CONFIG_API_VERSION, "kind": kind, field: value},
                },
            }
            for kind, field, value, members in entries
        ]


def _summary(alternative: Alternative) -> str:
    return f"c{alternative.cores}" if alternative.cores else str(alternative.count)
