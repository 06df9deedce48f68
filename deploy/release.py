"""Packages the chart and writes checksums: the last steps of `make release`.

Input: the folder with the wheel and the SBOMs. Output there: `neuron-dra-<version>.tgz` and `SHA256SUMS`,
in the format of `sha256sum --check`.
"""

import hashlib
import sys
import tomllib
from pathlib import Path
from typing import Final

import helm_python as helm
import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy" / "chart"
SUMS: Final = "SHA256SUMS"


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


def package_chart(destination: Path) -> Path:
    """The chart as an archive in a folder."""
    return Path(helm.package(str(CHART), destination=str(destination)))


def write_checksums(folder: Path) -> str:
    """Write `SHA256SUMS` for all files of a folder, sorted by name."""
    files = sorted(each for each in folder.iterdir() if each.is_file() and each.name != SUMS)
    text = "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)
    (folder / SUMS).write_text(text)
    return text


def main(folder: Path) -> int:
    try:
        version = check_versions(ROOT)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    package_chart(folder)
    print(f"neuron-dra {version}, {folder}:\n{write_checksums(folder)}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
