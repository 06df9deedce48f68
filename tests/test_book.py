"""The book builds without a warning: every page is in the contents, and every link in the repository has a target."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def build(docs: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(output / "cache"),
        str(docs),
        str(output / "html"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("book")
    built = build(ROOT / "docs", output)
    assert built.returncode == 0, built.stderr
    return output / "html"


def test_the_book_builds_without_a_warning(book: Path) -> None:
    pages = {each.relative_to(ROOT / "docs").with_suffix(".html") for each in (ROOT / "docs").rglob("*.md")}
    assert {each for each in pages if not (book / each).is_file()} == set()


def test_the_book_is_searchable(book: Path) -> None:
    assert "searchindex.js" in {each.name for each in book.iterdir()}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("[a](nowhere.md)", "nowhere.md", id="page"),
        pytest.param("[a](errors.md#no-such-code)", "no-such-code", id="anchor"),
        pytest.param("[a](../deploy/no-such-file.yaml)", "no-such-file.yaml", id="file"),
    ],
)
def test_a_link_without_target_fails(tmp_path: Path, text: str, problem: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("conf.py", "errors.md"):
        shutil.copy(ROOT / "docs" / name, docs)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (docs / "index.md").write_text(f"# Book\n\n{text}\n\n```{{toctree}}\nerrors\n```\n")
    built = build(docs, tmp_path)
    assert built.returncode != 0
    assert problem in built.stderr


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_every_row_of_a_table_belongs_to_a_table(page: Path) -> None:
    """An empty line inside a table makes plain text of the rows below it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"(?<=\n\n)\|.*\n(?!\|[-:| ]+\|\n)", text) == []
