"""The book builds without a warning: every page is in the contents, and every link in the repository has a target."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.book import ROOT, build

PAGES = sorted(each for each in (ROOT / "docs").rglob("*.md") if "_build" not in each.parts)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("book")
    built = build(ROOT / "docs", output)
    assert built.returncode == 0, built.stderr
    return output / "html"


def test_the_book_builds_without_a_warning(book: Path) -> None:
    pages = {each.relative_to(ROOT / "docs").with_suffix(".html") for each in PAGES}
    assert {each for each in pages if not (book / each).is_file()} == set()


def test_the_book_is_searchable(book: Path) -> None:
    assert "searchindex.js" in {each.name for each in book.iterdir()}


BROKEN = {
    "page": ("[a](nowhere.md)", "nowhere.md"),
    "anchor": ("[a](errors.md#no-such-code)", "no-such-code"),
    "file": ("[a](../deploy/no-such-file.yaml)", "no-such-file.yaml"),
}


@pytest.fixture(scope="module")
def warnings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The warnings for a book with one page for each broken link."""
    folder = tmp_path_factory.mktemp("broken")
    docs = folder / "docs"
    docs.mkdir()
    for name in ("conf.py", "errors.md"):
        shutil.copy(ROOT / "docs" / name, docs)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (docs / "index.md").write_text("\n".join(["# Book", "", "```{toctree}", "errors", *BROKEN, "```", ""]))
    for page, (text, _) in BROKEN.items():
        (docs / f"{page}.md").write_text(f"# {page}\n\n{text}\n")
    built = build(docs, folder)
    assert built.returncode != 0
    return built.stderr


@pytest.mark.parametrize("page", BROKEN)
def test_a_link_without_target_fails(warnings: str, page: str) -> None:
    [line] = [line for line in warnings.splitlines() if f"docs/{page}.md" in line]
    assert "WARNING" in line
    assert BROKEN[page][1] in line


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_row_of_a_table_belongs_to_a_table(page: Path) -> None:
    """An empty line inside a table makes plain text of the rows below it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"(?<=\n\n)\|.*\n(?!\|[-:| ]+\|\n)", text) == []
