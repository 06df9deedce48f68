"""Builds the book: `make docs`. Warnings, such as links without a target, are errors."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.mdit_to_docutils.base import default_slugify

project = "neuron-dra"
author = "the neuron-dra contributors"
copyright = "Apache-2.0"  # noqa: A001 - the name that Sphinx reads
version = release = str(tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"])

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
# Headings are link targets with the names that GitHub gives them; those of error codes have the code alone.
myst_heading_anchors = 4
# By name: Sphinx keeps the settings in a pickle.
sys.path.insert(0, str(Path(__file__).parent))
myst_heading_slug_func = "conf.anchor"
myst_enable_extensions = ["attrs_inline"]
# Two dashes stay two dashes: they begin flags.
smartquotes = False
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"neuron-dra {release}"
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_theme_options = {"navigation_with_keys": True}


def anchor(title: str) -> str:
    return title[:6].lower() if re.match(r"NEU\d{3}: ", title) else default_slugify(title)


def _name_pages_by_title(app: Any, doctree: nodes.document, _docname: str) -> None:
    """In the repository, a link to a page shows the name of its file; in the book, its title."""
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    files = {f"{Path(name).name}.md": title for name, title in titles.items()}
    files |= {f"{name}.md": title for name, title in titles.items()}
    for link in doctree.findall(nodes.reference):
        if link.astext() in files:
            link.children = [nodes.Text(files[link.astext()])]


def _name_columns_in_cells(_app: Any, doctree: nodes.document, _docname: str) -> None:
    """`book.css` shows the names on a phone, where the cells of a row stand below each other."""
    for group in doctree.findall(nodes.tgroup):
        [head] = group.findall(nodes.thead)
        names = [entry.astext() for entry in head.findall(nodes.entry)]
        for row in next(group.findall(nodes.tbody)).findall(nodes.row):
            for name, entry in list(zip(names, row.findall(nodes.entry), strict=True))[1:]:
                if name and entry.children:
                    entry.children[0].insert(0, nodes.inline("", f"{name}: ", classes=["column"]))


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("doctree-resolved", _name_pages_by_title)
    app.connect("doctree-resolved", _name_columns_in_cells)
