"""A resource at a place where Kubernetes reads none: every command says no, as the cluster does."""

from pathlib import Path

import pytest

from tests.support.invoking import invoke

ASKS = "{aws.amazon.com/neuron: 4}"
PODS = {
    "pod-level": f"  resources: {{limits: {ASKS}}}\n  containers: [{{name: t}}]\n",
    "limits-outside": f"  containers: [{{name: t, limits: {ASKS}}}]\n",
    "singular": f"  containers: [{{name: t, resource: {{limits: {ASKS}}}}}]\n",
}


@pytest.mark.parametrize("spec", PODS.values(), ids=PODS)
@pytest.mark.parametrize("command", ["validate", "explain", "convert", "report"])
def test_it_is_an_error_in_every_command(tmp_path: Path, command: str, spec: str) -> None:
    (tmp_path / "pod.yaml").write_text(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n{spec}")
    result = invoke(command, "-f", tmp_path / "pod.yaml", "--families", "trn1")
    assert result.exit_code == 1, result.output
    assert "NEU129" in result.output


AROUND = {
    "CronJob": "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: p}\nspec: {jobTemplate: {spec: {limits: ASKS,"
    " template: {spec: {containers: [{name: t, image: x}]}}}}}\n",
    "Deployment": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\nspec: {resources: {limits: ASKS},"
    " template: {spec: {containers: [{name: t, image: x}]}}}\n",
}


@pytest.mark.parametrize("manifest", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("command", ["validate", "explain", "convert", "report"])
def test_so_it_is_around_a_pod_template(tmp_path: Path, command: str, manifest: str) -> None:
    (tmp_path / "pod.yaml").write_text(manifest.replace("ASKS", ASKS))
    result = invoke(command, "-f", tmp_path / "pod.yaml", "--families", "trn1")
    assert result.exit_code == 1, result.output
    assert "NEU129" in result.output


MERGED = {
    "templateDefaults": f"templateDefaults: {{container: {{resources: {{limits: {ASKS}}}}}}}",
    "podSpecPatch": "podSpecPatch: 'containers: [{name: main, resources: {limits: {aws.amazon.com/neuron: 4}}}]'",
}


@pytest.mark.parametrize("place", MERGED)
@pytest.mark.parametrize("command", ["validate", "explain", "convert"])
def test_what_argo_merges_into_pods_is_left_and_said(tmp_path: Path, command: str, place: str) -> None:
    (tmp_path / "wf.yaml").write_text(
        "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: w}\n"
        f"spec:\n  {MERGED[place]}\n  templates: [{{name: main, container: {{image: x}}}}]\n"
    )
    words = ["--notes"] if command == "validate" else []
    result = invoke(command, "-f", tmp_path / "wf.yaml", "--families", "trn1", *words)
    assert result.exit_code == 0, result.output
    assert "the Workflow is left as it is here" in " ".join(result.output.split())
