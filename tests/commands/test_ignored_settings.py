"""A setting where pods do not get it, and values of another type than text: said by every command."""

from pathlib import Path

import pytest

from tests.support.invoking import invoke_offline

COMMANDS = ("convert", "validate", "explain", "report")
SPEC = "spec: {containers: [{name: a, image: x, resources: {limits: {aws.amazon.com/neuron: 1}}}]}"
OFF = 'neuron.aws.com/convert: "off"'


def run(tmp_path: Path, command: str, manifest: str) -> tuple[int, str]:
    (tmp_path / "a.yaml").write_text(manifest)
    result = invoke_offline(command, "-f", tmp_path / "a.yaml", "--families", "trn2")
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("manifest", "path"),
    [
        (
            f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, annotations: {{{OFF}}}}}\n"
            f"spec: {{template: {{{SPEC}}}}}",
            "metadata.annotations",
        ),
        (
            f"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: d, labels: {{{OFF}}}}}\n"
            f"spec: {{template: {{{SPEC}}}}}",
            "metadata.labels",
        ),
        (
            "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\n"
            f"spec: {{jobTemplate: {{metadata: {{annotations: {{{OFF}}}}}, spec: {{template: {{{SPEC}}}}}}}}}",
            "spec.jobTemplate.metadata.annotations",
        ),
        (
            "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: c}\nspec: {replicatedJobs: ["
            f"{{name: w, template: {{metadata: {{annotations: {{{OFF}}}}}, spec: {{template: {{{SPEC}}}}}}}}}]}}",
            "spec.replicatedJobs[0].template.metadata.annotations",
        ),
    ],
    ids=["Deployment", "label", "CronJob", "JobSet"],
)
def test_a_setting_around_the_pod_template_is_said(tmp_path: Path, command: str, manifest: str, path: str) -> None:
    code, output = run(tmp_path, command, manifest)
    assert code == 0, output
    assert "'neuron.aws.com/convert' is not read here: the pods of the" in output
    if command in ("convert", "validate"):
        assert f"{path}[neuron.aws.com/convert]" in output


@pytest.mark.parametrize("command", COMMANDS)
def test_a_setting_that_the_pod_template_has_too_is_read(tmp_path: Path, command: str) -> None:
    code, output = run(
        tmp_path,
        command,
        f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, annotations: {{{OFF}}}}}\n"
        f"spec: {{template: {{metadata: {{annotations: {{{OFF}}}}}, {SPEC}}}}}",
    )
    assert code == 0, output
    assert "is not read" not in output


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("metadata", "env", "path"),
    [
        (
            "annotations: {neuron.aws.com/logical-neuron-core: 1}",
            "[]",
            "annotations[neuron.aws.com/logical-neuron-core]",
        ),
        ("labels: {}", "[{name: NEURON_LOGICAL_NC_CONFIG, value: 1}]", "env[0].value"),
        ("labels: {}", "[{name: NEURON_RT_NUM_CORES, value: 0.5}]", "env[0].value"),
        ("labels: {}", "[{name: NEURON_RT_LOG_LEVEL, value: on}, {name: 5}]", "env[0].value"),
        ("labels: {}", "[{name: NEURON_RT_NUM_CORES, value: x}, {name: 5}]", "env[1].name"),
    ],
)
def test_values_that_have_to_be_text_are_refused_with_the_fix(
    tmp_path: Path, command: str, metadata: str, env: str, path: str
) -> None:
    """kubectl refuses them: `cannot unmarshal number into Go struct field EnvVar…value of type string`."""
    code, output = run(
        tmp_path,
        command,
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, {metadata}}}\nspec: {{containers: [{{name: a, image: x,"
        f" env: {env}, resources: {{limits: {{aws.amazon.com/neuroncore: 4}}}}}}]}}",
    )
    assert code == 1, output
    assert "NEU114" in output
    assert "write the value in quotes" in output
    if command in ("convert", "validate"):
        assert path in output
