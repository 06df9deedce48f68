"""The page of a rehearsal in a real browser: slider, buttons, keyboard, a phone, dark and light."""

from pathlib import Path

import pytest

from commands.rehearse.rehearsing import RehearsalChoice
from commands.rehearse.render import as_html
from tests.support.browser import Page
from tests.support.rehearsing import node, pods, rehearsal


async def show(tab: Page, folder: Path) -> None:
    odd = pods("odd", "n2", count=6, namespace="team-b")
    chosen = RehearsalChoice(order=("a", "b"), pictures=True)
    found = rehearsal(node("n1", "a"), node("n2", "b"), *pods("serve", "n1"), *odd, choice=chosen)
    file = folder / "page.html"
    file.write_text(as_html(found), encoding="utf-8")
    await tab.open(file.as_uri())


NODES = "[...document.querySelectorAll('.node')].map(each => [each.dataset.node, each.className])"


async def test_the_slider_and_the_buttons_move_through_the_steps(tab: Page, tmp_path: Path) -> None:
    await show(tab, tmp_path)
    assert await tab.evaluate(NODES) == [["n1", "node plugin"], ["n2", "node plugin"]]
    assert await tab.evaluate("document.getElementById('back').disabled") is True
    await tab.evaluate("document.getElementById('forward').click()")
    assert await tab.evaluate(NODES) == [["n1", "node driver"], ["n2", "node plugin"]]
    await tab.evaluate("document.getElementById('slider').focus()")
    await tab.press("ArrowRight", 39)
    assert await tab.evaluate(NODES) == [["n1", "node driver"], ["n2", "node driver"]]
    assert await tab.evaluate("document.getElementById('forward').disabled") is True
    assert "NEU105" in await tab.evaluate("document.getElementById('waiting').textContent")
    assert tab.problems == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_a_screen_and_a_phone(tab: Page, tmp_path: Path, width: int, scheme: str) -> None:
    await tab.size(width, 900)
    await tab.scheme(scheme)
    await show(tab, tmp_path)
    assert await tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.problems == []


CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const linear = (each) => (each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((each) => linear(each / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const found = parts(getComputedStyle(each).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const each of document.querySelectorAll("body *")) {
    if (![...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    if (!each.getClientRects().length || each.closest("svg") || each.disabled) continue;
    const [one, other] = [light(parts(getComputedStyle(each).color)), light(behind(each))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) found.push(each.textContent.trim() + ": " + contrast.toFixed(1));
  }
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_all_text_stands_out_from_what_is_behind_it(tab: Page, tmp_path: Path, scheme: str) -> None:
    await tab.scheme(scheme)
    await show(tab, tmp_path)
    assert await tab.evaluate("document.querySelectorAll('caption, .made, .fix').length") >= 3
    assert await tab.evaluate(CONTRAST) == []
