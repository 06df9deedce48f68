"""The examples of AWS's own documents: the valid ones pass, the two with an error get a warning."""

from pathlib import Path
from typing import Any

import pytest

from commands.objects.manifests import manifests
from tests.support.converting import convert_texts, documents
from tests.support.validation import decide

ROOT = Path(__file__).parents[1] / "support" / "source_examples"


def examples() -> list[Any]:
    return [
        pytest.param(manifest.data, id=f"{path.stem} {manifest}")
        for path in sorted(ROOT.glob("*.yaml"))
        for document in documents(path.read_bytes())
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


def test_the_example_whose_container_does_not_use_its_claim_gets_a_warning() -> None:
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


def test_files_of_the_private_beta_are_converted_to_v1_with_their_comments() -> None:
    text = (ROOT / "beta.yaml").read_text()
    done = convert_texts(text)
    assert done.yaml.startswith(text.partition("\n")[0])
    assert len(done.objects) == text.count("apiVersion: resource.k8s.io/v1beta1")
    for found in done.objects:
        assert found["apiVersion"] == "resource.k8s.io/v1"
        expected = EXPECTED_WARNINGS.get(found["metadata"]["name"], set()) - {"NEU411"}
        assert {finding.code for finding in decide(found).warnings} == expected
    assert convert_texts(done.yaml).diff == ""


def test_current_files_are_unchanged() -> None:
    for name in ("current.yaml", "leaderworkerset.yaml"):
        assert convert_texts((ROOT / name).read_text()).diff == ""
