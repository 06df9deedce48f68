"""No two claims ever hold the same core: random mixtures through the allocator's model and the real prepare code.

The slices are those that the driver publishes, the model allocates, `decide` prepares. NEURON_DRA_MIXTURES sets the
number of cases.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest

from kubeletplugin.discover.devices import NODE_DEVICE
from kubeletplugin.prepare.checkpoint import PreparedClaim
from kubeletplugin.prepare.decide import NodeView, Others, decide
from neuron import names
from neuron.allocator.search import AllocatorResult
from neuron.api.allocation import AllocatedClaim, read_allocation
from neuron.hardware.instances import Catalogue
from tests.support import mixtures, structured
from tests.support.mixtures import Case, Hardware, Step

CASES: Final = int(os.environ.get("NEURON_DRA_MIXTURES", "2000"))
CHUNKS: Final = 10

Cores = set[tuple[int, int]]
"""Device and physical core."""


def allocated(number: int, step: Step, results: tuple[AllocatorResult, ...]) -> AllocatedClaim:
    """The claim as the API server has it after allocation."""
    entries: list[dict[str, Any]] = []
    for place, each in enumerate(results):
        entry = {"request": each.request, "driver": names.DRIVER, "pool": "node", "device": each.device}
        if each.admin_access:
            entry["adminAccess"] = True
        if each.consumed:
            entry["shareID"] = f"share-{number}-{place}"
            entry["consumedCapacity"] = {name: str(amount) for name, amount in each.consumed.items()}
        entries.append(entry)
    body = {
        "metadata": {"namespace": "ns", "name": f"claim-{number}", "uid": f"uid-{number}"},
        "spec": step.claim,
        "status": {"allocation": {"devices": {"results": entries}}},
    }
    return read_allocation(body, names.DRIVER, "node", f"uid-{number}")


def view_of(hardware: Hardware) -> NodeView:
    return NodeView(mixtures.discovered(hardware.name), Catalogue().get(hardware.name), lambda: None)


def cores_of(claim: PreparedClaim, hardware: Hardware) -> Cores:
    """What a prepared claim holds."""
    return {
        (index, core)
        for device in claim.devices
        if not device.admin_access
        for index in device.indices
        for core in (range(hardware.cores) if device.cores is None else device.cores)
    }


def play(case: Case) -> Iterator[tuple[Step, tuple[AllocatorResult, ...], PreparedClaim, dict[int, PreparedClaim]]]:
    """Every prepared claim with what was allocated, and all claims that are prepared then, by step."""
    node = structured.node_of(case.slices, hurry=True)
    view = view_of(case.hardware)
    prepared: dict[int, PreparedClaim] = {}
    held: dict[int, tuple[AllocatorResult, ...]] = {}
    for number, step in enumerate(case.steps):
        if step.claim is None:
            if step.leaves in held:
                node.release(held.pop(step.leaves))
                del prepared[step.leaves]
            continue
        results = node.allocate(structured.claim_of(step.claim))
        if results is None:
            continue
        held[number] = results
        prepared[number] = decide(allocated(number, step, results), view, Others(tuple(prepared.values())))
        yield step, results, prepared[number], prepared


def check_case(case: Case, seen: Counter[str]) -> None:
    hardware = case.hardware
    for step, results, claim, prepared in play(case):
        seen[step.kind] += 1
        held: Cores = set()
        for other in prepared.values():
            cores = cores_of(other, hardware)
            assert held.isdisjoint(cores), "two claims have a core"
            held |= cores
        for result, device in zip(results, claim.devices, strict=True):
            assert result.device == device.device
            if result.admin_access:
                continue
            expected = result.consumed.get(mixtures.CORES, hardware.cores)
            assert len(range(hardware.cores) if device.cores is None else device.cores) == expected
        assert len(cores_of(claim, hardware)) == sum(amounts(results, hardware)), "a claim has a core twice"
        if step.kind == "window":
            assert_consecutive(case, results)
        check_variables(step, claim, hardware)


def amounts(results: tuple[AllocatorResult, ...], hardware: Hardware) -> Iterator[int]:
    for result in results:
        if result.device == NODE_DEVICE:
            yield hardware.cores * hardware.line.devices
        elif not result.admin_access:
            yield result.consumed.get(mixtures.CORES, hardware.cores)


def assert_consecutive(case: Case, results: tuple[AllocatorResult, ...]) -> None:
    line = case.hardware.line
    ids = {int(each.device.rpartition("-")[2]) for each in results}
    assert any(ids == set(line.window(len(ids), start)) for start in line.starts(len(ids)))


def check_variables(step: Step, claim: PreparedClaim, hardware: Hardware) -> None:
    """`NEURON_RT_VISIBLE_CORES` is exactly the cores of the requests that belong together; whole devices have none."""
    tied = step.kind == "window and share"
    shared = {each.parent_request for each in claim.devices if each.cores is not None and not each.admin_access}
    for request in {each.parent_request for each in claim.devices if not each.admin_access}:
        together = [each for each in claim.devices if each.parent_request == request or tied]
        text = claim.environment.get(request, {}).get(names.ENV_VISIBLE_CORES)
        if not shared & {each.parent_request for each in together}:
            assert text is None
            continue
        assert text is not None
        expected = {
            (index * hardware.cores + core) // hardware.logical
            for device in together
            for index in device.indices
            for core in (range(hardware.cores) if device.cores is None else device.cores)
        }
        assert parsed(text) == expected


def parsed(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_two_claims_hold_the_same_core(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk, CASES, CHUNKS):
        try:
            check_case(mixtures.case(seed), seen)
        except Exception as error:
            error.add_note(f"seed {seed}: {mixtures.case(seed).hardware}")
            raise
    if CASES >= 200 * CHUNKS:
        assert set(seen) == set(mixtures.KINDS), "every kind of claim was prepared"
