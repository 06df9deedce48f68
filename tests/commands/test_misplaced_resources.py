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
