"""The Kubernetes version under test, read from its binaries, and what each version has: one table.

A test that needs a feature says so: `@pytest.mark.needs("shares")`. On a version without it the test is skipped, and
the reason names version, feature and gate. `tests/cluster/test_versions.py` compares the table with the binaries.
"""

import dataclasses
import functools
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, TypeAlias

Version: TypeAlias = tuple[int, int, int]

_VERSION: Final = re.compile(r"Kubernetes v([0-9]+)\.([0-9]+)\.([0-9]+)")
_GATE: Final = re.compile(r"kube:(?P<name>[A-Za-z]+)=true\|false \([A-Z]+ - default=(?P<on>true|false)\)")


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """What a version of Kubernetes has.

    Attributes:
        text: for people.
        since: first minor version that has it by default.
        gate: the feature gate; empty if there is none.
        gate_since: first minor version whose programs know the gate.
    """

    text: str
    since: tuple[int, int]
    gate: str = ""
    gate_since: tuple[int, int] = (1, 34)


FEATURES: Final[Mapping[str, Feature]] = {
    "counters": Feature("shared counters of devices", (1, 36), "DRAPartitionableDevices"),
    "taints": Feature("device taints", (1, 36), "DRADeviceTaints"),
    "shares": Feature("shares of a device", (1, 36), "DRAConsumableCapacity"),
    "extended-resources": Feature("extended resources through a DeviceClass", (1, 36), "DRAExtendedResource"),
    "health-in-status": Feature("health of devices in the status of pods", (1, 36), "ResourceHealthStatus"),
    "status-rights": Feature(
        "rights of a driver for the status of claims",
        (1, 36),
        "DRAResourceClaimGranularStatusAuthorization",
        (1, 36),
    ),
    "taint-rules": Feature("DeviceTaintRules", (1, 37), "DRADeviceTaintRules", (1, 35)),
    "pod-groups": Feature("PodGroups with claims, if their gates are on", (1, 36)),
    "mutating-policies": Feature("MutatingAdmissionPolicy v1", (1, 36), "MutatingAdmissionPolicy"),
    "health-messages": Feature("messages of the health of devices in the kubelet, with all fields", (1, 36)),
    "descriptors": Feature("descriptors of the kubelet's messages in its program", (1, 35)),
    "subsets": Feature("an allocator that tries each set of devices once, not in every order", (1, 36)),
    "cel-lists": Feature("CEL's lists.range and list.sort in policies", (1, 35)),
    "late-templates": Feature("pods that wait for a template are looked at when it is created", (1, 36)),
}


def of_binary(program: Path) -> Version:
    """The version that a program of Kubernetes prints.

    Raises:
        ValueError: it prints something else.
    """
    printed = _printed(program, "--version")
    match = _VERSION.search(printed)
    if match is None:
        raise ValueError(f"{program} --version prints {printed.strip()[:80]!r}, and no version of Kubernetes")
    return int(match[1]), int(match[2]), int(match[3])


def gates_of_binary(program: Path) -> Mapping[str, bool]:
    """The feature gates that a program lists in its help, with their defaults. Locked gates are not listed."""
    return {match["name"]: match["on"] == "true" for match in _GATE.finditer(_printed(program, "--help"))}


@functools.cache
def _printed(program: Path, option: str) -> str:
    found = subprocess.run([str(program), option], capture_output=True, text=True, check=True, timeout=60)
    return found.stdout


def text(version: Version) -> str:
    """A version for people."""
    return ".".join(map(str, version))


def lacks(version: Version, needed: Collection[str]) -> str:
    """Why a test that needs these features cannot run on a version; empty if it can."""
    for name in needed:
        feature = FEATURES[name]
        if version[:2] < feature.since:
            since = ".".join(map(str, feature.since))
            gate = f"{feature.gate}, on by default from {since}" if feature.gate else f"from {since}"
            return f"Kubernetes {text(version)} lacks {name}: {feature.text} ({gate})"
    return ""


def known_gates(version: Version, gates: Mapping[str, bool]) -> dict[str, bool]:
    """Those of some feature gates that the programs of a version know. They refuse to start with others."""
    since = {feature.gate: feature.gate_since for feature in FEATURES.values()}
    return {name: value for name, value in gates.items() if version[:2] >= since.get(name, (1, 34))}
