"""The packages of this repository."""

import os
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "neuron",
    "checks",
    "conversion",
    "cluster",
    "kubecel/kubecel",
    "policies",
    "webhook",
    "commands",
    "kubeletplugin",
    "certs",
    "runtime",
)
"""Folders, from the root of the repository."""


def python_path(tree: Path) -> str:
    """`PYTHONPATH` for the code of a commit in a folder. In early ones, kubecel/ is the package itself."""
    own = tree / "kubecel"
    return os.pathsep.join(map(str, (tree, own) if (own / "pyproject.toml").exists() else (tree,)))
