"""Inputs that once broke a target, and the seeds: none breaks one now."""

from pathlib import Path

import pytest

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
FOUND = Path(__file__).parent / "found"


@pytest.mark.parametrize("target", TARGETS)
def test_no_seed_makes_a_target_fail(target: str) -> None:
    inputs = seeds(target, ROOT)
    assert inputs
    for each in inputs:
        TARGETS[target](each)


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name[:20]}")
def test_no_recorded_input_makes_a_target_fail(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())
