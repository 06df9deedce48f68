"""Packages the chart and writes checksums: the last steps of `make release`.

Input: the folder with the wheel and the SBOMs, and the digests of the pushed images. Output there:
`neuron-dra-<version>.tgz`, whose values name the images by digest, and `SHA256SUMS`, in the format of
`sha256sum --check`.
"""

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import helm_python as helm
import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "chart"
SUMS: Final = "SHA256SUMS"
IMAGES: Final = {"webhook": "WEBHOOK_DIGEST", "kubeletPlugin": "KUBELET_PLUGIN_DIGEST"}
"""Value of the chart that has `image.digest` -> variable of `make release`."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class ReleaseError(Exception):
    """The repository's state cannot be released; the message says why and what to do."""


def check_versions(root: Path) -> str:
    """The version that the package, the chart and the changelog agree on.

    Raises:
        ReleaseError: they differ.
    """
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    chart = yaml.safe_load((root / "deploy" / "chart" / "Chart.yaml").read_text())
    for field in ("version", "appVersion"):
        if str(chart[field]) != version:
            raise ReleaseError(
                f"deploy/chart/Chart.yaml has {field} {chart[field]}, pyproject.toml has version {version}: "
                "set the same version in both."
            )
    return version


def check_digests(digests: Mapping[str, str]) -> None:
    """Check that every image of the chart has a digest.

    Args:
        digests: value of the chart -> digest.

    Raises:
        ReleaseError: one is missing, or is no digest.
    """
    for value, variable in IMAGES.items():
        digest = digests.get(value, "")
        if not _DIGEST.fullmatch(digest):
            wrong = f"{variable} is '{digest}', which is no digest" if digest else f"{variable} is not set"
            raise ReleaseError(
                f"{wrong}: push the images, and set it to the digest of the pushed image (sha256:…), as `docker buildx "
                "imagetools inspect <image>` prints it. UNPINNED=1 packages a chart that finds its images by tag."
            )


def package_chart(destination: Path, digests: Mapping[str, str]) -> Path:
    """The chart as an archive in a folder.

    Args:
        destination: the folder.
        digests: value of the chart (`IMAGES`) -> digest; images without one keep their tag.
    """
    with tempfile.TemporaryDirectory() as temporary:
        chart = Path(temporary) / CHART.name
        shutil.copytree(CHART, chart)
        values = chart / "values.yaml"
        values.write_text(with_digests(values.read_text(), digests))
        return Path(helm.package(str(chart), destination=str(destination)))


def with_digests(values: str, digests: Mapping[str, str]) -> str:
    """The text of values.yaml with digests; its comments stay.

    Raises:
        ReleaseError: it has no empty `image.digest` there.
    """
    for value, digest in digests.items():
        field = re.compile(rf'(?m)(^{value}:\n(?:(?:  .*)?\n)*?  image:\n(?:    .*\n)*?    digest: )""$')
        values, count = field.subn(rf'\g<1>"{digest}"', values, count=1)
        if count != 1:
            raise ReleaseError(f'deploy/chart/values.yaml has no {value}.image.digest: "": keep this line.')
    return values


def write_checksums(folder: Path) -> str:
    """Write `SHA256SUMS` for all files of a folder, sorted by name."""
    files = sorted(each for each in folder.iterdir() if each.is_file() and each.name != SUMS)
    text = "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)
    (folder / SUMS).write_text(text)
    return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for value in IMAGES:
        parser.add_argument(f"--{value}", default="")
    parser.add_argument("--unpinned", action="store_true")
    given = vars(parser.parse_args(arguments))
    folder: Path = given["folder"]
    digests = {value: given[value] for value in IMAGES if given[value]}
    try:
        version = check_versions(ROOT)
        if not given["unpinned"]:
            check_digests(digests)
        package_chart(folder, digests)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"neuron-dra {version}, {folder}:\n{write_checksums(folder)}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
