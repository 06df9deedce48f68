"""`neuron-dra validate --kubeconfig` says what the version of the control plane does to claims."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.cli.test_status import Api, plain
from tests.support.invoking import invoke


@pytest.fixture
def api() -> Iterator[Api]:
    with Api().serve_in_thread() as served:
        yield served


@pytest.mark.parametrize(
    ("version", "issues"),
    [
        ("v1.36.0-eks-1a2b3c4", ["kubernetes/kubernetes#138882", "kubernetes/kubernetes#139034"]),
        ("v1.36.2", []),
        ("none", []),
    ],
)
def test_the_cluster_version_decides_which_fields_are_withheld(
    api: Api, tmp_path: Path, version: str, issues: list[str]
) -> None:
    api.fixed["/version"] = plain({"gitVersion": version})
    file = tmp_path / "pod.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}}))
    result = invoke("validate", "-f", file, f"--kubeconfig={api.kubeconfig(tmp_path)}")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("kube-")]
    assert len(lines) == len(issues)
    for line, issue in zip(lines, issues, strict=True):
        assert f"{version} " in line
        assert issue in line
        assert "The driver " in line
    # Only DeviceTaintRules need to know which kinds the cluster serves.
    assert api.calls("get", "apis") == []


@pytest.mark.parametrize(
    ("served", "version", "code", "said"),
    [
        ("v1", "v1", 0, ""),
        ("v1beta2", "v1", 1, "the cluster serves DeviceTaintRules as resource.k8s.io/v1beta2, not as v1."),
        ("", "v1", 1, "the cluster serves no DeviceTaintRules."),
    ],
    ids=["1.37", "1.36 with the feature gate", "1.36"],
)
def test_a_taint_rule_is_compared_with_the_version_that_the_cluster_serves(
    api: Api, tmp_path: Path, served: str, version: str, code: int, said: str
) -> None:
    api.kinds = [("resource.k8s.io", served, "DeviceTaintRule", "devicetaintrules", False)] if served else []
    selector = {"driver": "neuron.aws.com", "pool": "a"}
    taint = {"key": "example.com/x", "effect": "NoSchedule"}
    body = {"metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": taint}}
    file = tmp_path / "rule.json"
    file.write_text(json.dumps({"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule", **body}))
    result = invoke("validate", "-f", file, f"--kubeconfig={api.kubeconfig(tmp_path)}")
    assert result.exit_code == code, result.output
    assert said in result.output
