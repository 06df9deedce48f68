"""`make release`: versions agree, the chart's archive is complete, checksums can be checked."""

import hashlib
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from deploy import release

ROOT = Path(__file__).resolve().parents[2]


def test_the_versions_of_package_and_chart_agree() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", release.check_versions(ROOT))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that have versions."""
    for name in ("pyproject.toml", "kubecel/pyproject.toml", "deploy/chart/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("field", ["version", "appVersion"])
def test_a_chart_of_another_version_is_refused(copy: Path, field: str) -> None:
    version = release.check_versions(ROOT)
    text = (ROOT / "deploy/chart/Chart.yaml").read_text()
    text = text.replace(f"\n{field}: {version}", f"\n{field}: 9.9.9")
    (copy / "deploy/chart/Chart.yaml").write_text(text)
    with pytest.raises(release.ReleaseError) as caught:
        release.check_versions(copy)
    assert str(caught.value) == (
        f"deploy/chart/Chart.yaml has {field} 9.9.9, pyproject.toml has version {version}: "
        "set the same version in both."
    )


def test_another_version_of_kubecel_than_the_one_here_is_refused(copy: Path) -> None:
    file = copy / "kubecel/pyproject.toml"
    text, version = file.read_text(), re.findall('^version = "(.*)"$', file.read_text(), re.MULTILINE)[0]
    file.write_text(text.replace(f'version = "{version}"', 'version = "9.9.9"'))
    with pytest.raises(release.ReleaseError) as caught:
        release.check_versions(copy)
    assert str(caught.value) == (
        f"pyproject.toml requires kubecel=={version}, kubecel/pyproject.toml has version 9.9.9: "
        "set the same version in both."
    )


def test_the_archive_holds_the_whole_chart(tmp_path: Path) -> None:
    with tarfile.open(release.package_chart(tmp_path, {})) as archive:
        packed = {name.removeprefix("neuron-dra/") for name in archive.getnames()}
    chart = ROOT / "deploy/chart"
    assert {str(each.relative_to(chart)) for each in chart.rglob("*") if each.is_file()} <= packed


def test_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"wheel")
    (tmp_path / "a.tgz").write_bytes(b"chart")
    release.write_checksums(tmp_path)
    release.write_checksums(tmp_path)  # A second run does not count its own file.
    assert (tmp_path / "SHA256SUMS").read_text() == (
        f"{hashlib.sha256(b'chart').hexdigest()}  a.tgz\n{hashlib.sha256(b'wheel').hexdigest()}  b.whl\n"
    )
