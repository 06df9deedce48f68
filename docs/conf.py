"""Builds the book: `make docs`. Warnings, such as links without a target, are errors."""

import tomllib
from pathlib import Path

project = "neuron-dra"
author = "the neuron-dra contributors"
copyright = "Apache-2.0"  # noqa: A001 - the name that Sphinx reads
version = release = str(tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"])

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
# Headings are link targets with the names that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"neuron-dra {release}"
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
