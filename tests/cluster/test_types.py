"""The slices that `neuron-dra types` generates serve the same claims on the real scheduler as in our model of it."""

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from commands import types as published
from commands.cli.main import main
from neuron.hardware.instances import Catalogue
from tests.cluster.allocating import Allocating

pytestmark = pytest.mark.needs("counters", "shares")

TYPES = ("trn2.48xlarge", "trn2u.48xlarge", "trn3e.24xlarge", "inf2.24xlarge")
OTHERS = ("trn1.32xlarge", "trn3e.24xlarge", "inf2.24xlarge")


def generated(instance_type: str) -> list[dict[str, Any]]:
    """The ResourceSlices as the command prints them."""
    result = CliRunner().invoke(main, ["types", instance_type, "-o", "resourceslices"])
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def test_a_claim_fits_generated_slices_if_and_only_if_the_model_says_so(allocating: Allocating) -> None:
    wanted, expected = {}, {}
    for each in TYPES:
        slices = generated(each)
        contents = [
            {key: slice_["spec"][key] for key in ("devices", "sharedCounters") if key in slice_["spec"]}
            for slice_ in slices
        ]
        specs = {}
        for other in (each, *OTHERS):
            entry = Catalogue().get(other)
            assert entry is not None
            specs |= {json.dumps(spec, sort_keys=True): spec for _, spec in published.claims_of(entry)}
        for number, spec in enumerate(specs.values()):
            name = f"{each.replace('.', '-')}-{number}"
            wanted[name] = (allocating.node(each, contents), spec)
            expected[name] = published.fits(spec, slices)
    outcomes = allocating.allocate(wanted)
    assert {name: outcome.claim is not None for name, outcome in outcomes.items()} == expected
    assert set(expected.values()) == {True, False}
