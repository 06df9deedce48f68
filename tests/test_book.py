"""The book builds without a warning, every link in the repository has a target, and every HTML page fits its window.

Pages are shown in a real browser, as wide as on a laptop and on a phone: nothing is wider than the window, and code
wraps.
"""

import re
import shutil
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from commands.devices.device_map import build as build_map
from commands.map.page import as_page
from commands.report.render import as_html
from tests.commands.map.clusters import mixed
from tests.commands.report.test_render import hostile, whole
from tests.support.book import ROOT, build
from tests.support.browser import Browser, Page

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


# --- layout --------------------------------------------------------------------------------------------------------

WINDOWS = {"laptop": (1280, 800), "phone": (390, 844)}
MADE: dict[str, Callable[[], str]] = {
    "report": lambda: as_html(whole()),
    "report with long names": lambda: as_html(hostile("a-name-of-63-characters-" + "x" * 39)),
    "map": lambda: as_page(build_map(seen := mixed().snapshot()), seen),
}
TOO_WIDE = """
(() => {
  const wider = each => each.scrollWidth > each.clientWidth + 1;
  const scrolled = [...document.querySelectorAll('pre, .table-wrapper, .scroll')].filter(wider);
  const page = document.scrollingElement;
  const found = scrolled.map(each => each.textContent.trim().slice(0, 80));
  return page.scrollWidth > innerWidth ? [...found, 'page'] : found;
})()
"""
"""The text of blocks and tables that do not fit into their frame, and `page` if the page scrolls sideways."""


@pytest.fixture(scope="module")
async def tab(browser: Browser) -> AsyncIterator[Page]:
    """One for all pages."""
    async with browser.tab() as page:
        yield page


def different_rows(png: bytes) -> int:
    """Different encoded rows of pixels in a screenshot: a blank page has one or two."""
    width, _, depth, kind = struct.unpack(">IIBB", png[16:26])
    size = width * depth * {2: 3, 6: 4}[kind] // 8 + 1
    parts, at = [], 8
    while at < len(png):
        [length] = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            parts.append(png[at + 8 : at + 8 + length])
        at += length + 12
    rows = zlib.decompress(b"".join(parts))
    return len({rows[start : start + size] for start in range(0, len(rows), size)})


async def show(tab: Page, file: Path, window: str) -> None:
    await tab.size(*WINDOWS[window])
    await tab.open(file.as_uri())


async def fits(tab: Page) -> None:
    assert await tab.evaluate(TOO_WIDE) == []
    assert different_rows(await tab.screenshot()) > 20


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
async def test_a_page_of_the_book_fits_the_window(tab: Page, book: Path, page: Path, window: str) -> None:
    await show(tab, book / page.relative_to(ROOT / "docs").with_suffix(".html"), window)
    await fits(tab)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", MADE)
async def test_a_page_of_a_command_fits_the_window(tab: Page, tmp_path: Path, name: str, window: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(MADE[name](), encoding="utf-8")
    await show(tab, file, window)
    await tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    await fits(tab)


async def test_a_page_that_is_too_wide_is_found(tab: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><pre>{'x' * 500}</pre>")
    await show(tab, file, "laptop")
    assert await tab.evaluate(TOO_WIDE) == ["x" * 80, "page"]


async def test_a_blank_page_is_found(tab: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<!doctype html>")
    await show(tab, file, "laptop")
    assert different_rows(await tab.screenshot()) <= 2


async def test_a_phone_names_the_columns_of_a_table(tab: Page, book: Path) -> None:
    shown = "getComputedStyle(document.querySelector('td .column')).display"
    for window, display in (("laptop", "none"), ("phone", "inline")):
        await show(tab, book / "reference/settings.html", window)
        assert await tab.evaluate(shown) == display
