"""No core ever belongs to two claims, and the containers see the cores that their claim holds."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, decode, encode
from kubeletplugin.prepare.decide import NodeView
from tests.kubeletplugin.fakes import Node
from tests.kubeletplugin.mixtures import TYPES, Life, Pod, physical_cores

LIVES = 50
STEPS = 12
PARTS = 6
"""50 lives of 12 steps, six times: 3,600 cases."""


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, NodeView]:
    return {name: Node(tmp_path_factory.mktemp(name), name).view() for name in TYPES}


@pytest.mark.parametrize("part", range(PARTS))
def test_random_sequences_never_assign_a_core_to_two_claims(
    views: Mapping[str, NodeView], tmp_path: Path, part: int
) -> None:
    prepared = shares = refused = 0
    for seed in range(part * LIVES, (part + 1) * LIVES):
        life = Life(seed, views, tmp_path)
        for number in range(STEPS):
            life.step()
            try:
                check_life(life)
            except AssertionError as error:
                error.add_note(f"seed {seed}, step {number}, {life.name}")
                raise
        prepared += sum(pod.answers is not None for pod in life.pods.values())
        shares += sum(device.cores is not None for claim in claims(life).values() for device in claim.devices)
        refused += sum(bool(pod.refused) for pod in life.pods.values())
    assert prepared > LIVES
    assert shares > LIVES / 2
    assert refused > 0


def claims(life: Life) -> Mapping[str, PreparedClaim]:
    return life.preparer.checkpoint().claims


def check_life(life: Life) -> None:
    checkpoint = life.preparer.checkpoint()
    running = {key for key, pod in life.pods.items() if pod.answers is not None}
    assert set(checkpoint.claims) == running
    held: dict[tuple[int, int], str] = {}
    sizes: dict[str, int] = {}
    for claim in checkpoint.claims.values():
        for core in {core for device in claim.devices for core in cores_of(life, device)}:
            assert core not in held, f"{core} is held by {held[core]} and {claim}"
            held[core] = str(claim)
        for device in claim.devices:
            if device.share is not None and device.cores is not None:
                size = device.share.logical_neuron_core
                assert sizes.setdefault(device.device, size) == size, "claims on one device agree"
        check_claim(life, life.pods[claim.uid], claim)
    content = encode(checkpoint)
    assert decode(content) == checkpoint


def cores_of(life: Life, device: PreparedDevice) -> set[tuple[int, int]]:
    if device.admin_access:
        return set()
    return {
        (index, core)
        for index in device.indices
        for core in (range(physical_cores(life, index)) if device.cores is None else device.cores)
    }


def check_claim(life: Life, pod: Pod, claim: PreparedClaim) -> None:
    """What is prepared is what was allocated, and the variables are what is prepared."""
    assert pod.answers is not None
    mine: list[tuple[int, int]] = []
    for device, result, answer in zip(claim.devices, pod.claim.devices, pod.answers, strict=True):
        assert (device.request, device.device) == (result.request, result.device)
        assert (answer.device, answer.share_id) == (device.device, result.share_id)
        assert (device.share.id if device.share else None) == result.share_id
        if result.cores is not None and not device.admin_access:
            assert len(cores_of(life, device)) == result.cores
        mine += cores_of(life, device)
    assert len(mine) == len(set(mine)), "two shares of one claim have different cores"
    spec = json.loads(life.files.read(life.cdi_dir / f"neuron.aws.com-claim_{claim.uid}.json"))
    environment = {
        entry["name"].removeprefix(f"{claim.uid}_"): dict(
            variable.split("=", 1) for variable in entry["containerEdits"]["env"]
        )
        for entry in spec["devices"]
        if "env" in entry["containerEdits"]
    }
    for request in {device.parent_request for device in claim.devices if not device.admin_access}:
        expected = expected_cores(life, pod, claim, request)
        assert numbers(environment.get(request, {}).get("NEURON_RT_VISIBLE_CORES")) == expected


def expected_cores(life: Life, pod: Pod, claim: PreparedClaim, request: str) -> set[int] | None:
    """Logical cores of the request and of those that a constraint ties to it; None for whole devices alone."""
    together = pod.claim.together(request)
    members = [device for device in claim.devices if device.parent_request in together and not device.admin_access]
    if all(device.cores is None for device in members):
        return None
    [size] = {
        pod.claim.in_force(device.request).logical_neuron_core or life.instance.default_logical_neuron_core
        for device in members
    }
    physical = {
        index * physical_cores(life, index) + core for device in members for index, core in cores_of(life, device)
    }
    logical = {core // size for core in physical}
    assert len(physical) == len(logical) * size, "no half of a logical core"
    return logical


def numbers(text: str | None) -> set[int] | None:
    if text is None:
        return None
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        return set(range(int(match[1]), int(match[2]) + 1))
    return {int(number) for number in text.split(",")}
