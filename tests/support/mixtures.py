"""Random mixtures of claims on one node: what it publishes, and claims that arrive and leave.

A claim is whole devices, consecutive devices, a share of a device, consecutive devices and a share beside them, all
devices, the whole UltraServer node, or admin access. Slices and claims are as the API has them.
"""

import dataclasses
import functools
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kubeletplugin.discover import emulate, sysfs
from kubeletplugin.discover.devices import device_name
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.discover.sysfs import NodeHardware
from kubeletplugin.publish.slices import ClusterFeatures, NodeDevices, desired_slices
from neuron import names
from neuron.api.taints import Taint
from neuron.hardware import windows
from neuron.hardware.instances import Catalogue
from neuron.hardware.windows import Line

Object = dict[str, Any]

CORES: Final = names.CAPACITY_CORES
_CONTENT: Final = ("devices", "sharedCounters")
_GUARD: Final = f'device.attributes["{names.DRIVER}"].?resourceType.orValue("") == "neuron_device"'
_NODE: Final = f'device.attributes["{names.DRIVER}"].?resourceType.orValue("") == "neuron_node"'
MOST_STEPS: Final = 9


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """A type of node.

    Attributes:
        line: the devices; a torus counts as a chain, of which it publishes the windows that are its groups.
        cores: physical cores of a device.
        logical: physical cores of one logical core, by default.
        shared: whether devices are published with shares.
        whole: whether the whole node is one more device.
    """

    name: str
    line: Line
    cores: int
    shared: bool = False
    whole: bool = False
    logical: int = 1


HARDWARE: Final = (
    Hardware("inf2.48xlarge", Line(12, wraps=True), 2, shared=True),
    Hardware("inf2.48xlarge", Line(12, wraps=True), 2),
    Hardware("inf2.24xlarge", Line(6, wraps=False), 2, shared=True),
    Hardware("inf1.6xlarge", Line(4, wraps=False), 4, shared=True),
    Hardware("inf1.24xlarge", Line(16, wraps=False), 4, shared=True),
    Hardware("inf1.24xlarge", Line(16, wraps=False), 4),
    Hardware("inf2.xlarge", Line(1, wraps=False), 2, shared=True),
    Hardware("trn2u.48xlarge", Line(16, wraps=False), 8, whole=True, logical=2),
    Hardware("trn2u.48xlarge", Line(16, wraps=False), 8, shared=True, whole=True, logical=2),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One claim arrives, or an earlier one leaves.

    Attributes:
        kind: what the claim is, for messages.
        claim: its spec; None where a claim leaves.
        leaves: number of the step whose claim leaves.
    """

    kind: str
    claim: Object | None = None
    leaves: int = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One node and what happens on it."""

    hardware: Hardware
    slices: tuple[Object, ...]
    steps: tuple[Step, ...]


def case(seed: int, features: ClusterFeatures = ClusterFeatures()) -> Case:
    """The case of a seed, with the slices of a cluster with these features."""
    chance = random.Random(seed)  # noqa: S311 - a test
    hardware = chance.choice(HARDWARE)
    tainted = frozenset(chance.sample(range(hardware.line.devices), 1)) if chance.random() < 0.15 else frozenset()
    steps: list[Step] = []
    held: list[int] = []
    for number in range(chance.randint(3, MOST_STEPS)):
        if held and chance.random() < 0.3:
            steps.append(Step("leaves", leaves=held.pop(chance.randrange(len(held)))))
            continue
        steps.append(_arrival(chance, hardware))
        held.append(number)
    return Case(hardware, slices(hardware, tainted, features), tuple(steps))


# --- what a node publishes ------------------------------------------------------------------------------------


@functools.cache
def discovered(instance_type: str) -> NodeHardware:
    """What the driver discovers on an emulated node."""
    with tempfile.TemporaryDirectory() as folder:
        emulate.write_tree(Path(folder), emulate.emulated_type(instance_type))
        return sysfs.discover(Path(folder, "sys"), Path(folder, "dev"))


@functools.cache
def slices(
    hardware: Hardware, tainted: frozenset[int] = frozenset(), features: ClusterFeatures = ClusterFeatures()
) -> tuple[Object, ...]:
    """The contents of the slices that the driver publishes, without driver, node and pool."""
    taints = {device_name(index): Taint(f"{names.DRIVER}/unhealthy", "test", "NoSchedule") for index in tainted}
    instance = Catalogue().get(hardware.name)
    found = NodeDevices(discovered(hardware.name), instance, taints=taints, shares_cores=hardware.shared)
    desired = desired_slices(NodeFacts("node", "uid"), found, "1.0.0", features)
    return tuple({key: value for key, value in each.content.items() if key in _CONTENT} for each in desired)


# --- claims ---------------------------------------------------------------------------------------------------


def _arrival(chance: random.Random, hardware: Hardware) -> Step:
    line = hardware.line
    kinds = {"whole": 6, "all": 1, "admin": 1, "admin and whole": 1, "window": 8 if line.devices > 2 else 0}
    if hardware.whole:
        kinds["node"] = 3
    if hardware.shared:
        kinds |= {"share": 8, "two shares": 2, "shares": 2, "nothing": 1}
    if hardware.shared and line.devices > 2:
        kinds["window and share"] = 6
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    least = hardware.logical.bit_length() - 1
    cores = chance.choice([1 << power for power in range(least, hardware.cores.bit_length())])
    return Step(kind, KINDS[kind](chance, line, cores))


def request(name: str, **fields: Any) -> Object:
    """One `exactly` request for devices, not for the whole node; an empty `selector` is none."""
    selector = fields.pop("selector", _GUARD)
    selectors = {"selectors": [{"cel": {"expression": selector}}]} if selector else {}
    return {"name": name, "exactly": {"deviceClassName": names.DEVICE_CLASS, **selectors, **fields}}


def share(cores: int) -> Object:
    """The `capacity` of a request for cores."""
    return {"requests": {CORES: str(cores)}}


def _claim(*requests: Object, constraints: tuple[Object, ...] = ()) -> Object:
    devices: Object = {"requests": list(requests)}
    if constraints:
        devices["constraints"] = list(constraints)
    return {"devices": devices}


def _whole(chance: random.Random, line: Line, _: int) -> Object:
    most = min(line.devices, 5)
    first = request("n0", count=chance.randint(1, most))
    if chance.random() < 0.3:
        return _claim(first, request("n1", count=chance.randint(1, 2)))
    return _claim(first)


def window(line: Line, size: int, guard: str = _GUARD) -> Object:
    """`size` consecutive devices; `guard` is the selector of alternatives by attribute."""
    alternatives, constraints = _alternatives(windows.placements(line, size), size, guard)
    return _claim({"name": "n0", "firstAvailable": alternatives}, constraints=tuple(constraints))


def _alternatives(
    placements: tuple[windows.Placement, ...], size: int, guard: str
) -> tuple[list[Object], list[Object]]:
    alternatives, constraints = [], []
    for number, placement in enumerate(placements):
        selector = guard
        if placement.ids:
            ids = ", ".join(map(str, placement.ids))
            selector = f'{_GUARD} && device.attributes["{names.DRIVER}"].?deviceId.orValue(-1) in [{ids}]'
        alternatives.append({**request(f"s{number}", count=size, selector=selector)["exactly"], "name": f"s{number}"})
        if placement.attribute:
            constraints.append({"requests": [f"n0/s{number}"], "matchAttribute": placement.attribute})
    return alternatives, constraints


def _window(chance: random.Random, line: Line, _: int) -> Object:
    return window(line, chance.randint(2, line.devices - 1))


def _share(chance: random.Random, line: Line, cores: int) -> Object:
    return _claim(request("n0", capacity=share(cores)))


def _two_shares(chance: random.Random, line: Line, cores: int) -> Object:
    return _claim(request("n0", capacity=share(cores)), request("n1", capacity=share(cores)))


def _shares(chance: random.Random, line: Line, cores: int) -> Object:
    return _claim(request("n0", count=min(2, line.devices), capacity=share(cores)))


def _nothing(chance: random.Random, line: Line, _: int) -> Object:
    return _claim(request("n0", allocationMode="All", adminAccess=True, capacity=share(0)))


def window_and_share(line: Line, size: int, cores: int) -> Object:
    """`size` whole devices and a share of a device next to them, at an end of the run.

    Alternatives are pairs of shifts: one of `size + 1` over both requests, and one of `size` over the whole devices.
    """
    outer = windows.published_shifts(line).get(size + 1, ())
    inner = windows.published_shifts(line).get(size, ()) if size > 1 else (0,)
    alternatives, constraints = [], []
    for number, (one, other) in enumerate([(one, other) for one in outer for other in inner][:8]):
        name = f"s{number}"
        alternatives.append({**request(name, count=size)["exactly"], "name": name})
        around = windows.attribute(size + 1, one)
        constraints.append({"requests": [f"n0/{name}", "n1"], "matchAttribute": around})
        if size > 1:
            within = windows.attribute(size, other)
            constraints.append({"requests": [f"n0/{name}"], "matchAttribute": within})
    first = {"name": "n0", "firstAvailable": alternatives}
    return _claim(first, request("n1", capacity=share(cores)), constraints=tuple(constraints))


def _window_and_share(chance: random.Random, line: Line, cores: int) -> Object:
    published = windows.published_shifts(line)
    sizes = [size for size in range(1, line.devices - 1) if size + 1 in published and (size == 1 or size in published)]
    return window_and_share(line, chance.choice(sizes), cores)


def _all(chance: random.Random, line: Line, _: int) -> Object:
    return _claim(request("n0", allocationMode="All"))


def _admin(chance: random.Random, line: Line, _: int) -> Object:
    return _claim(request("n0", count=min(2, line.devices), adminAccess=True))


def _admin_and_whole(chance: random.Random, line: Line, _: int) -> Object:
    return _claim(request("n0", adminAccess=True), request("n1"))


def _node(chance: random.Random, line: Line, _: int) -> Object:
    return _claim(request("n0", selector=_NODE))


KINDS: Final[Mapping[str, Any]] = {
    "whole": _whole,
    "window": _window,
    "share": _share,
    "two shares": _two_shares,
    "shares": _shares,
    "nothing": _nothing,
    "window and share": _window_and_share,
    "all": _all,
    "admin": _admin,
    "admin and whole": _admin_and_whole,
    "node": _node,
}
