"""Inputs to begin with, from the files of the repository."""

import json
import random
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from kubeletplugin.prepare import cdi
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from tests.fuzz.targets import UID

DRIVER: Final = "neuron.aws.com"
_CONFIG: Final = {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}
_SPEC: Final = {
    "devices": {
        "requests": [
            {"name": "n0", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 2}}
        ],
        "constraints": [{"requests": ["n0"], "matchAttribute": "resource.aws.com/devicegroup4_id"}],
        "config": [{"requests": ["n0"], "opaque": {"driver": DRIVER, "parameters": _CONFIG}}],
    }
}
_RESULT: Final = {"request": "n0", "driver": DRIVER, "pool": "node-1", "device": "neuron-device-0"}
_SHARED: Final = {"shareID": UID, "consumedCapacity": {"neuroncores": "2"}, "adminAccess": False}
_ALLOCATED: Final = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "claim", "namespace": "team-a", "uid": UID},
    "spec": _SPEC,
    "status": {
        "allocation": {
            "devices": {
                "results": [_RESULT, {**_RESULT, **_SHARED, "device": "neuron-device-1"}],
                "config": [{"source": "FromClaim", **_SPEC["devices"]["config"][0]}],
            }
        }
    },
}
_PREPARED: Final = PreparedClaim(
    UID,
    "team-a",
    "claim",
    "digest",
    (PreparedDevice("n0", "node-1", "neuron-device-0", (0,)),),
    {"n0": {"NEURON_LOGICAL_NC_CONFIG": "1"}},
)


class _Sealed(msgspec.Struct):
    data: msgspec.Raw


def seeds(target: str, root: Path) -> list[bytes]:
    """The first inputs of a target."""
    golden = [json.loads(path.read_text()) for path in sorted((root / "tests/golden/mutate").glob("*/review.json"))]
    examples = [path.read_bytes() for path in sorted((root / "deploy/examples").rglob("*.yaml"))]
    objects = [each for text in examples for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    found: dict[str, list[Any]] = {
        "review": golden,
        "pod": [each["request"]["object"] for each in golden if each["request"]["kind"]["kind"] == "Pod"],
        "claim": [each["spec"]["spec"] for each in objects if each.get("kind") == "ResourceClaimTemplate"],
        "config": [_CONFIG],
        "allocated": [_ALLOCATED],
    }
    if target in found:
        return [json.dumps(each).encode() for each in found[target]]
    packs = [path.read_bytes() for path in sorted((root / "policies/packs").glob("*.yaml"))]
    recorded = [path.read_bytes() for path in sorted((root / "tests/kubeletplugin/recorded").iterdir())]
    texts: dict[str, list[bytes]] = {
        "cdi": [msgspec.json.encode(cdi.spec(_PREPARED, "boot"))],
        "cel": (root / "kubecel/kubecel_tests/expressions.txt").read_bytes().splitlines(),
        "cel-random": [random.Random(seed).randbytes(400) for seed in range(200)],  # noqa: S311 - not for secrets
        "checkpoint": [*recorded, *(bytes(msgspec.json.decode(each, type=_Sealed).data) for each in recorded)],
        "manifests": examples,
        "yaml-edit": examples,
        "policies": packs,
        "quantity": [b"1", b"4.0", b"1e3", b"100m", b"1Gi", b"0x1", b"-1", b"9223372036854775807"],
        "work": [random.Random(seed).randbytes(6 + 2 * seed) for seed in range(30)],  # noqa: S311
        "sysfs": [b"trn2.48xlarge\0" + b"8\0" + b"1, 3, 4, 12\0serial\0Trainium2\0Trn2"],
    }
    return texts[target]
