import json
from pathlib import Path

import pytest

from commands.objects.manifests import missing_kind
from conversion.objects.kinds import KINDS
from tests.support.invoking import invoke_offline


@pytest.mark.parametrize(
    ("version", "kind", "meant"),
    [
        ("apps/v1", "Deploymnet", "kind: Deployment?"),
        ("apps/v1beta1", "Deployement", "kind: Deployment?"),
        ("apps/v1", "StatefullSet", "kind: StatefulSet?"),
        ("v1", "pod", "kind: Pod?"),
        ("v1", "Pods", "kind: Pod?"),
        ("batch/v1", "Cronjob", "kind: CronJob?"),
        ("v1", "Deployment", "apiVersion: apps/v1?"),
        ("apps/v1", "Job", "apiVersion: batch/v1?"),
        ("autoscaling/v1", "VerticalPodAutoscaler", "apiVersion: autoscaling.k8s.io/v1?"),
        ("apps/v1", "cronjob", "kind: CronJob of apiVersion: batch/v1?"),
        ("app/v1", "Deployment", "apiVersion: apps/v1?"),
        ("core/v1", "Pod", "apiVersion: v1?"),
        ("extensions/v1beta1", "DaemonSet", "apiVersion: apps/v1?"),
        ("apps/v1beta2", "StatefulSet", "apiVersion: apps/v1?"),
        ("apps/v2", "Deployment", "apiVersion: apps/v1?"),
        ("batch/v1beta1", "CronJob", "apiVersion: batch/v1?"),
        ("v2", "Pod", "apiVersion: v1?"),
        ("resource.k8s.io/v1", "ResourceClaimTemplat", "kind: ResourceClaimTemplate?"),
    ],
)
def test_a_kind_that_does_not_exist_is_an_error_with_a_suggestion(version: str, kind: str, meant: str) -> None:
    (finding,) = missing_kind(version, kind)
    assert finding.code == "NEU718"
    assert finding.message.endswith(f"Did you mean {meant}")


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        *((f"{group}/v1" if group else "v1", kind) for group, kind in KINDS),
        *(
            ("v1", kind)
            for kind in ("List", "PodList", "Config", "Template", "ServiceMonitor", "Quux", "", "x" * 10_000)
        ),
        ("example.com/v1", "Deploymnet"),
        ("skaffold/v4beta6", "Config"),
        ("resource.k8s.io/v1beta1", "ResourceClaimTemplate"),
        ("policy/v1beta1", "PodDisruptionBudget"),
        ("v2", "pod"),
        ("", "pod"),
        ("apps/v2", "Rolloutish"),
    ],
)
def test_what_may_exist_is_not_judged(version: str, kind: str) -> None:
    assert [*missing_kind(version, kind)] == []


POD = {
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "a", "image": "x", "resources": {"limits": {"aws.amazon.com/neuron": 1}}}]},
}
COMMANDS = ("convert", "validate", "explain", "report")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"apiVersion": "v1", "kind": "Pods"}, "no API server has a kind 'Pods' in v1."),
        ({"kind": "Pod"}, "an object with kind 'Pod' has no apiVersion."),
        ({"apiVersion": "v1"}, "an object with apiVersion 'v1' has no kind."),
    ],
)
def test_every_command_refuses_it(tmp_path: Path, command: str, suffix: str, head: dict[str, str], said: str) -> None:
    file = tmp_path / f"pod.{suffix}"
    file.write_text(json.dumps({**head, **POD}))
    result = invoke_offline(command, "-f", file, "--families", "trn1")
    output = " ".join(result.output.split())
    assert result.exit_code == 1, result.output
    assert "NEU718" in output
    assert said in output
    assert "is left as it is" not in output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "other",
    [
        {"apiVersion": "v2", "name": "chart", "version": "1.0.0"},
        {"resources": {"limits": {"aws.amazon.com/neuron": 1}}},
        {"kind": "pipeline", "name": "drone"},
        {"kind": "Config", "resources": {"limits": {"aws.amazon.com/neuron": 1}}},
    ],
    ids=["Chart.yaml", "values.yaml", "drone", "config"],
)
def test_files_of_other_programs_are_not_judged(tmp_path: Path, command: str, other: dict[str, object]) -> None:
    (tmp_path / "other.yaml").write_text(json.dumps(other))
    result = invoke_offline(command, "-f", tmp_path)
    assert result.exit_code == 0, result.output
    assert "NEU718" not in result.output
