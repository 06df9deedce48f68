"""Kustomize and Helm before `convert`."""

import os
import shutil
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml
from click.testing import Result

from tests.support.invoking import invoke
from tests.support.trainium import ENVIRONMENT

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: train
spec:
  containers:
  - name: main
    image: app:1
    resources:
      limits:
        aws.amazon.com/neuron: {count}
"""


def convert(*arguments: str, stdin: str = "", **environment: str) -> Result:
    return invoke("convert", *arguments, stdin=stdin, environment={**ENVIRONMENT, **environment})


def documents_of(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """An overlay with a name prefix and a patch that names the container."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "pod.yaml").write_text(POD.format(count=1))
    (base / "kustomization.yaml").write_text("resources: [pod.yaml]\n")
    top = tmp_path / "production"
    top.mkdir()
    (top / "more.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec:\n  containers:\n"
        "  - {name: main, resources: {limits: {aws.amazon.com/neuron: 4}}}\n"
    )
    (top / "kustomization.yaml").write_text("resources: [../base]\nnamePrefix: prod-\npatches: [{path: more.yaml}]\n")
    return top


@pytest.mark.skipif(not (shutil.which("kustomize") or shutil.which("kubectl")), reason="needs kustomize or kubectl")
def test_the_flag_k_builds_with_kustomize_and_converts(overlay: Path) -> None:
    done = convert("-k", str(overlay), "--families", "trn2")
    template, pod = documents_of(done.stdout)
    assert template["metadata"]["name"].startswith("neuron-4-")
    assert pod["metadata"]["name"] == "prod-train"
    claims = pod["spec"]["resourceClaims"]
    assert claims == [{"name": "neuron", "resourceClaimTemplateName": template["metadata"]["name"]}]
    assert done.exit_code == 0


@pytest.mark.skipif(not (shutil.which("kustomize") or shutil.which("kubectl")), reason="needs kustomize or kubectl")
def test_an_error_of_kustomize_is_quoted(tmp_path: Path) -> None:
    done = convert("-k", str(tmp_path / "nowhere"))
    assert done.exit_code == 2
    assert f"{tmp_path / 'nowhere'} failed: " in done.stderr


def test_a_missing_kustomize_is_an_error_with_the_fix(overlay: Path, tmp_path: Path) -> None:
    done = convert("-k", str(overlay), PATH=str(tmp_path))
    assert done.exit_code == 2
    assert done.stderr == f"Error: -k {overlay} needs kustomize or kubectl on the PATH: install one of them.\n"


def test_a_program_of_that_name_that_fails_is_quoted(overlay: Path, tmp_path: Path) -> None:
    program = tmp_path / "kustomize"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    done = convert("-k", str(overlay), PATH=f"{tmp_path}{os.pathsep}/bin")
    assert (done.exit_code, done.stderr) == (2, f"Error: kustomize build {overlay} failed: exit code 3\n")


@pytest.mark.parametrize("command", ["convert", "validate", "report", "explain"])
def test_a_folder_that_another_program_builds_is_to_be_rendered_first(
    command: str, overlay: Path, tmp_path: Path
) -> None:
    chart = tmp_path / "a chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: a\nversion: 0.1.0\n")
    (chart / "templates/pod.yaml").write_text("{{ .Values.pod }}\n")
    (tmp_path / "plain.yaml").write_text(POD.format(count=4))
    done = invoke(command, "-f", tmp_path, "--families", "trn2", environment=ENVIRONMENT)
    assert [line for line in sorted(done.stderr.splitlines()) if "render" in line] == [
        f"{chart}/Chart.yaml: it is a Helm chart: render it first. Use helm template '{chart}' | neuron-dra {command}"
        " -f -.",
        *(
            f"{folder}/kustomization.yaml: it is built by kustomize: render it first. Use neuron-dra {command} -k"
            f" {folder}."
            for folder in (tmp_path / "base", overlay)
        ),
    ]
    assert "train" in done.stdout or command == "validate"
    assert done.exit_code == 2


@pytest.mark.skipif(not (shutil.which("kustomize") or shutil.which("kubectl")), reason="needs kustomize or kubectl")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("validate", ": error NEU105 Pod prod-train"),
        ("report", "device counts: NEU105, 1 workload: Pod default/prod-train"),
        ("explain", "Pod prod-train (<kustomize {folder}>:1)"),
    ],
)
def test_the_flag_k_builds_with_kustomize_for_all_commands_on_manifests(command: str, said: str, overlay: Path) -> None:
    (overlay / "more.yaml").write_text((overlay / "more.yaml").read_text().replace("neuron: 4", "neuron: 7"))
    done = invoke(command, "-k", overlay, "--families", "trn2", environment=ENVIRONMENT)
    assert said.format(folder=overlay) in done.stdout
    assert done.exit_code == 1


# --- Helm -----------------------------------------------------------------------------------------------------------

CHART = {
    "Chart.yaml": "apiVersion: v2\nname: train\nversion: 0.1.0\n",
    "values.yaml": "devices: 4\n",
    "templates/pod.yaml": POD.format(count="{{ .Values.devices }}").replace(
        "  name: train\n", "  name: {{ .Release.Name }}\n"
    ),
    "templates/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: 'b'}\n",
}


def rendered(folder: Path, **values: Any) -> str:
    """What Helm gives to a post-renderer."""
    for name, text in CHART.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with helm.Chart.load(folder) as chart:
        found = chart.render(values, name="demo", namespace="team-a")
    return "".join(f"---\n# Source: {path}\n{text}\n" for path, text in found.items())


def test_a_post_renderer_converts_what_helm_rendered(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    done = convert("--post-renderer", "--families", "trn2", "-n", "team-a", stdin=text)
    assert done.exit_code == 0
    found = {each["kind"]: each for each in documents_of(done.stdout)}
    assert set(found) == {"ConfigMap", "ResourceClaimTemplate", "Pod"}
    name = found["ResourceClaimTemplate"]["metadata"]["name"]
    assert found["Pod"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == name
    assert found["Pod"]["metadata"]["name"] == "demo"
    assert "# Source: train/templates/config.yaml" in done.stdout


@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_a_post_renderer_prints_nothing_after_a_refusal(tmp_path: Path, strict: tuple[str, ...]) -> None:
    done = convert("--post-renderer", "--families", "trn1", *strict, stdin=rendered(tmp_path, devices=7))
    assert (done.stdout, done.exit_code) == ("", 1)
    assert "NEU105" in done.stderr


def test_a_strict_post_renderer_prints_nothing_if_an_object_was_not_converted() -> None:
    text = (
        POD.format(count=4).replace("kind: Pod", "kind: Sweep").replace("apiVersion: v1", "apiVersion: example.com/v1")
    )
    assert convert("--post-renderer", stdin=text).exit_code == 0
    done = convert("--post-renderer", "--strict", stdin=text)
    assert (done.stdout, done.exit_code) == ("", 1)


@pytest.mark.parametrize("other", [("-f", "x.yaml"), ("x.yaml",), ("-k", "x"), ("-o", "json")])
def test_a_post_renderer_takes_no_other_input(other: tuple[str, ...]) -> None:
    done = convert("--post-renderer", *other)
    assert done.exit_code == 2
    assert "--post-renderer reads standard input and prints YAML: drop -f, -k and -o." in done.stderr
