"""Nodes and ResourceSlices in files say which instance types there are, for every command that reads files."""

from pathlib import Path

import pytest

from tests.support.invoking import invoke_offline

POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: a, image: x, resources: {limits: {aws.amazon.com/neuron: COUNT}}}]}
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {node.kubernetes.io/instance-type: inf2.24xlarge}}
---"""
"""Of a family with counts that no Trainium type serves."""
DYNAMIC_POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: accel}
spec:
  template:
    spec: {requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [inf2.48xlarge]}]}
---"""
COMMANDS = ("convert", "validate", "explain", "report")


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_says_which_types_there_are(manifests: Path, command: str) -> None:
    manifests.write_text(NODE + POD.replace("COUNT", "5"))
    result = invoke_offline(command, "-f", manifests)
    assert result.exit_code == 0, result.output
    assert "NEU216" not in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_what_no_node_serves_is_refused(manifests: Path, command: str) -> None:
    manifests.write_text(NODE + POD.replace("COUNT", "13"))
    result = invoke_offline(command, "-f", manifests)
    assert result.exit_code == 1, result.output
    assert "Instance type inf2" in " ".join(result.output.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_without_a_pool_serves_what_a_dynamic_pool_would(manifests: Path, command: str) -> None:
    manifests.write_text(DYNAMIC_POOL + POD.replace("COUNT", "3"))
    assert "NEU903" in invoke_offline(command, "-f", manifests).output
    manifests.write_text(DYNAMIC_POOL + NODE + POD.replace("COUNT", "3"))
    result = invoke_offline(command, "-f", manifests)
    assert result.exit_code == 0, result.output
    assert "NEU903" not in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_slices_say_which_types_there_are(manifests: Path, command: str) -> None:
    printed = invoke_offline("types", "inf2.24xlarge", "-o", "resourceslices").stdout
    manifests.write_text(printed + "\n---" + POD.replace("COUNT", "5"))
    result = invoke_offline(command, "-f", manifests)
    assert result.exit_code == 0, result.output
    assert "NEU216" not in result.output


@pytest.mark.parametrize("command", [*COMMANDS, "rehearse"])
@pytest.mark.parametrize(
    "malformed",
    [
        "{apiVersion: v1, kind: Node, metadata: {name: 5, labels: [a]}, status: x}",
        "{apiVersion: v1, kind: Node, metadata: {name: n, labels: {node.kubernetes.io/instance-type: 7}}}",
        "{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: n}, spec: {devices: 5}}",
    ],
)
def test_malformed_ones_are_left_out(manifests: Path, command: str, malformed: str) -> None:
    manifests.write_text(f"{malformed}\n---{NODE}{POD.replace('COUNT', '5')}")
    result = invoke_offline(command, "-f", manifests)
    assert result.exit_code == (2 if command in ("rehearse", "report") else 0), result.output
    assert "cannot be read" in result.output, result.output
