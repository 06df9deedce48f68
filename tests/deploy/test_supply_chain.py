"""What is taken from elsewhere is named by its content: base image, actions, and the images of a released chart."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from deploy import release
from tests.deploy.charts import CHART, ROOT

DIGESTS = {"webhook": f"sha256:{'a' * 64}", "kubeletPlugin": f"sha256:{'b' * 64}"}


def test_the_base_image_has_a_tag_and_a_digest() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    [base] = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    others = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - set(re.findall(r" AS (\S+)", text))
    assert others == {"${PYTHON_IMAGE}", "scratch"}
    assert "# syntax=" not in text.partition("FROM")[0].splitlines()[0], "a frontend is an image, too"


def test_actions_have_a_commit_and_their_version() -> None:
    used = [
        line.strip().removeprefix("- ")
        for file in (ROOT / ".github" / "workflows").iterdir()
        for line in file.read_text().splitlines()
        if re.match(r"\s*(- )?uses:", line)
    ]
    assert used
    assert [line for line in used if not re.fullmatch(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_a_released_chart_names_its_images_by_digest(tmp_path: Path) -> None:
    with tarfile.open(release.package_chart(tmp_path, DIGESTS)) as archive:
        packed = archive.extractfile("neuron-dra/values.yaml")
        assert packed is not None
        text = packed.read().decode()
    values = yaml.safe_load(text)
    assert {value: values[value]["image"]["digest"] for value in DIGESTS} == DIGESTS
    before = (CHART / "values.yaml").read_text()
    changed = [one for one, other in zip(text.splitlines(), before.splitlines(), strict=True) if one != other]
    assert [line.strip().partition(":")[0] for line in changed] == ["digest", "digest"]


def test_values_without_the_field_are_refused() -> None:
    with pytest.raises(release.ReleaseError, match=r"has no webhook\.image\.digest"):
        release.with_digests('webhook:\n  image:\n    repository: a\n  b: 1\nother:\n    digest: ""\n', DIGESTS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "WEBHOOK_DIGEST is not set: put buildah on the PATH"),
        (["--webhook=", f"--kubeletPlugin={DIGESTS['kubeletPlugin']}"], "WEBHOOK_DIGEST is not set"),
        ([f"--webhook={DIGESTS['webhook']}"], "KUBELET_PLUGIN_DIGEST is not set"),
        (["--webhook=0.1.0", f"--kubeletPlugin={DIGESTS['kubeletPlugin']}"], "WEBHOOK_DIGEST is '0.1.0', which is no"),
        (["--webhook=sha256:abc"], "WEBHOOK_DIGEST is 'sha256:abc', which is no digest"),
    ],
)
def test_a_release_without_image_digests_fails(tmp_path: Path, arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "deploy.release", tmp_path, *arguments]
    # Without buildah, which would build the images.
    done = subprocess.run(command, cwd=ROOT, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_trial_release_finds_its_images_by_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert release.main([str(tmp_path), "--unpinned"]) == 0
    [chart] = tmp_path.glob("*.tgz")
    with tarfile.open(chart) as archive:
        packed = archive.extractfile("neuron-dra/values.yaml")
        assert packed is not None
        assert packed.read() == (CHART / "values.yaml").read_bytes()
