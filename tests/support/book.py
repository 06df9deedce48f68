"""Builds the book, as `make docs` does."""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def build(docs: Path, output: Path) -> subprocess.CompletedProcess[str]:
    """Build into `output/html`; a warning is an error."""
    options = ("-q", "-W", "--keep-going", "-d", str(output / "cache"))
    command = [sys.executable, "-m", "sphinx", *options, str(docs), str(output / "html")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
