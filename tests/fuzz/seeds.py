"""Inputs to begin with, from the files of the repository."""

import json
from pathlib import Path
from typing import Any

import yaml


def seeds(target: str, root: Path) -> list[bytes]:
    """The first inputs of a target."""
    golden = [json.loads(path.read_text()) for path in sorted((root / "tests/golden/mutate").glob("*/review.json"))]
    examples = [path.read_bytes() for path in sorted((root / "deploy/examples").rglob("*.yaml"))]
    objects = [each for text in examples for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    found: dict[str, list[Any]] = {
        "review": golden,
        "pod": [each["request"]["object"] for each in golden if each["request"]["kind"]["kind"] == "Pod"],
        "claim": [each["spec"]["spec"] for each in objects if each.get("kind") == "ResourceClaimTemplate"],
        "config": [{"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1}],
    }
    if target in found:
        return [json.dumps(each).encode() for each in found[target]]
    packs = [path.read_bytes() for path in sorted((root / "policies/packs").glob("*.yaml"))]
    texts: dict[str, list[bytes]] = {
        "cel": (root / "tests/kubecel/expressions.txt").read_bytes().splitlines(),
        "checkpoint": [path.read_bytes() for path in (root / "tests/kubeletplugin/recorded").iterdir()],
        "manifests": examples,
        "yaml-edit": examples,
        "policies": packs,
        "quantity": [b"1", b"4.0", b"1e3", b"100m", b"1Gi", b"0x1", b"-1", b"9223372036854775807"],
        "sysfs": [b"trn2.48xlarge\0" + b"8\0" + b"1, 3, 4, 12\0serial\0Trainium2\0Trn2"],
    }
    return texts.get(target, [b"{}"])
