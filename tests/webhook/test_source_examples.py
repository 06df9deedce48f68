"""The examples of AWS's own documents: the valid ones pass, the two with a slip are told of it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.validation import decide
from webhook.offline.manifests import manifests, read

ROOT = Path(__file__).parents[1] / "support" / "source_examples"


def examples() -> list[Any]:
    return [
        pytest.param(manifest.data, id=f"{path.stem} {manifest}")
        for path in sorted(ROOT.glob("*.yaml"))
        for document in read(path.read_bytes())[1]
        for manifest in manifests(document)
    ]


EXPECTED_WARNINGS = {
    # Without a selector the request may land on trn1, whose driver refuses the config.
    "neurons-lnc-1": {"NEU514"},
    "lnc-neurons": {"NEU411"},
    # One request for 16 devices: the scheduler may need seconds.
    "xl-trn2": {"NEU542"},
}


@pytest.mark.parametrize("manifest", examples())
def test_valid_examples_are_admitted(manifest: Any) -> None:
    decision = decide(manifest)
    assert decision.errors == ()
    beta = manifest["apiVersion"].endswith("v1beta1") and "config" in str(manifest)
    expected = EXPECTED_WARNINGS.get(manifest["metadata"]["name"], {"NEU411"} if beta else set())
    assert {finding.code for finding in decision.warnings} == expected


def test_the_example_whose_container_forgets_its_claim_is_told() -> None:
    """specific-driver-version.yaml: a Deployment with a claim that its container does not list."""
    spec = {
        "containers": [{"name": "ctr0", "image": "public.ecr.aws/ubuntu/ubuntu:22.04"}],
        "resourceClaims": [{"name": "neurons", "resourceClaimTemplateName": "driver-version-neuron"}],
    }
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": spec}},
    }
    assert {finding.code for finding in decide(manifest).warnings} == {"NEU702"}
