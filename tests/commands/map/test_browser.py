"""The page in a real browser: what it draws, keyboard, assistive technology, light and dark, many nodes, live data."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from commands.cluster.snapshot import ClusterSnapshot
from commands.devices.device_map import build
from commands.map.page import as_page
from commands.map.serve import LiveMap, application
from tests.commands.map.clusters import HOSTILE, many, mixed
from tests.support.browser import Page
from tests.support.emulated import EmulatedCluster
from tests.support.timing import assert_below


async def show(tab: Page, cluster: EmulatedCluster, path: Path) -> None:
    seen = cluster.snapshot()
    file = path / "map.html"
    file.write_text(as_page(build(seen), seen), encoding="utf-8")
    await tab.open(file.as_uri())


def device(node: str, index: int) -> str:
    return f"document.querySelector(`[data-key='{node}/{index}']`)"


async def test_the_page_draws_nodes_devices_links_and_claims(tab: Page, tmp_path: Path) -> None:
    await show(tab, mixed(), tmp_path)
    assert await tab.evaluate("[...document.querySelectorAll('.card')].map(card => card.dataset.node)") == [
        "chain",
        "plugin",
        "ring",
        "torus",
        "us-0",
        "us-1",
    ]
    torus = "document.querySelector('[data-node=torus]')"
    assert await tab.evaluate(f"{torus}.querySelectorAll('.device').length") == 16
    assert await tab.evaluate(f"{torus}.querySelectorAll('.link').length") == 40  # 24, and 8 that wrap, as two ends
    assert await tab.evaluate(f"[...{torus}.querySelectorAll('.claims li')].map(each => each.textContent)") == [
        "Ateam-a/train: devices 0-3, pod train",
        "Bteam-b/infer: device 9, pod infer",
        "·largest connected set that is free: 4-7",
        "·free: 8, 10-15",
    ]
    assert await tab.evaluate(f"{device('torus', 9)}.getAttribute('class')") == "device held c1"
    assert await tab.evaluate(f"{device('torus', 5)}.getAttribute('class')") == "device free fits"
    assert await tab.evaluate("document.querySelector('.server h3').textContent") == (
        "UltraServer bog7: 1 of 4 nodes wholly free"
    )
    assert "team-a/lost: gone/neuron-device-3" in await tab.evaluate("document.getElementById('strays').textContent")
    rows = await tab.evaluate("[...document.querySelectorAll('#types tr')].map(row => row.textContent)")
    assert rows[1] == "inf2.48xlarge10126616 on ring6 x 1, 3 x 2, 1 x 4, 0 x 8, 0 x 12"
    assert tab.problems == []


async def test_filters_choose_nodes(tab: Page, tmp_path: Path) -> None:
    await show(tab, mixed(), tmp_path)

    async def after(field: str, value: str) -> tuple[list[str], str]:
        await tab.evaluate(
            f"(() => {{ const field = document.getElementById('{field}'); field.value = '{value}';"
            " field.dispatchEvent(new Event('input')); })()"
        )
        names = await tab.evaluate("[...document.querySelectorAll('.card')].map(card => card.dataset.node)")
        return names, await tab.evaluate("document.getElementById('count').textContent")

    assert await after("search", "team-b INFER") == (["torus"], "1 of 6 nodes")
    await after("search", "")
    assert (await after("type", "inf2.48xlarge"))[0] == ["ring"]
    await after("type", "*")
    assert (await after("free", "6"))[0] == ["ring", "us-0"]
    await after("free", "")
    assert (await after("show", "attention"))[0] == ["chain", "ring"]
    await tab.evaluate("document.querySelector('#filters button[type=reset]').click()")
    await asyncio.sleep(0.2)
    assert await tab.evaluate("document.getElementById('count').textContent") == "6 nodes"
    await tab.evaluate("document.querySelector('#spread button[aria-label*=trn2u]').click()")
    assert await tab.evaluate("document.querySelectorAll('.card').length") == 1


async def test_the_keyboard_reaches_every_device(tab: Page, tmp_path: Path) -> None:
    cluster = EmulatedCluster()
    cluster.node("torus")
    cluster.claim("train", "torus", [1, 5])
    await show(tab, cluster, tmp_path)
    await tab.evaluate(f"{device('torus', 0)}.focus()")
    focused = "document.activeElement.dataset.key"
    for key, code, expected in (
        ("ArrowRight", 39, "torus/1"),
        ("ArrowDown", 40, "torus/5"),
        ("ArrowLeft", 37, "torus/4"),
        ("ArrowUp", 38, "torus/0"),
        ("ArrowUp", 38, "torus/0"),
        ("ArrowRight", 39, "torus/1"),
    ):
        await tab.press(key, code)
        assert await tab.evaluate(focused) == expected
    assert await tab.evaluate("document.querySelectorAll('.device[tabindex=\"0\"]').length") == 1
    assert await tab.evaluate("document.querySelector('.detail').textContent") == "device 1: held by team-a/train"
    await tab.press("Enter", 13)
    same = "[...document.querySelectorAll('.same')].map(each => each.dataset.key)"
    assert await tab.evaluate(same) == ["torus/1", "torus/5"]
    assert await tab.evaluate("document.querySelector('[data-claim]').getAttribute('aria-pressed')") == "true"
    await tab.press("Escape", 27)
    assert await tab.evaluate(same) == []


async def test_the_tab_key_moves_to_links_fields_and_nodes(tab: Page, tmp_path: Path) -> None:
    cluster = EmulatedCluster()
    cluster.node("torus")
    cluster.claim("train", "torus", [1])
    await show(tab, cluster, tmp_path)
    reached = []
    for _ in range(16):
        await tab.press("Tab", 9)
        reached.append(
            await tab.evaluate("(e => e.id || e.dataset.key || e.className || e.tagName)(document.activeElement)")
        )
    assert reached[0] == "skip"
    expected = ["search", "type", "free", "show", "torus/0", "torus/claim/team-a-train-uid"]
    assert [each for each in reached if each in expected] == expected


async def test_assistive_technology_reads_names_and_tables(tab: Page, tmp_path: Path) -> None:
    await show(tab, mixed(), tmp_path)
    tree = await tab.tree()
    for expected in (
        ("heading", "Neuron devices"),
        ("article", "torus: trn2.48xlarge, torus: 11 of 16 free, 4 connected"),
        ("searchbox", "Node, claim, pod or namespace"),
        ("button", "Show the devices of claim team-a/train"),
        ("image", "device 3: partly held by team-a/share, 1 of 2 cores left"),
        ("image", "device 5: held by team-a/on-sick, unhealthy: hbm-ecc"),
        ("columnheader", "Largest connected set that still fits"),
    ):
        assert expected in tree
    await tab.evaluate("document.querySelector('[data-node=ring] details').open = true")
    await asyncio.sleep(0.3)
    row = await tab.evaluate("[...document.querySelectorAll('[data-node=ring] tbody tr')][5].textContent")
    assert row == "5held, unhealthy: hbm-eccteam-a/on-sickneuron.aws.com/unhealthy=hbm-ecc:NoSchedule"


CONTRAST = """
(() => {
  const channel = value => { value /= 255; return value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4; };
  const light = colour => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number);
    return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
  };
  const ratio = (one, two) => {
    const [high, low] = [light(one), light(two)].sort((a, b) => b - a);
    return (high + .05) / (low + .05);
  };
  const found = [...document.querySelectorAll('.device')].map(each => ratio(
    getComputedStyle(each.querySelector('rect')).fill, getComputedStyle(each.querySelector('text')).fill));
  const paper = getComputedStyle(document.body).backgroundColor;
  for (const each of document.querySelectorAll('p, h1, h2, h3, th, td')) {
    found.push(ratio(getComputedStyle(each).color, paper));
  }
  return Math.min(...found);
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_can_be_read_in_both_schemes(tab: Page, tmp_path: Path, scheme: str) -> None:
    cluster = mixed()
    cluster.node("full")
    for index in range(16):
        cluster.claim(f"one-{index}", "full", [index])
    await tab.scheme(scheme)
    await show(tab, cluster, tmp_path)
    assert await tab.evaluate("document.querySelectorAll('.device.c7').length") > 0
    assert await tab.evaluate(CONTRAST) >= 4.5
    background = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]


@pytest.mark.parametrize("width", [320, 1280])
async def test_nothing_is_wider_than_the_window(tab: Page, tmp_path: Path, width: int) -> None:
    await tab.size(width, 900)
    await show(tab, mixed(), tmp_path)
    assert await tab.evaluate("document.documentElement.scrollWidth") <= width


async def test_a_thousand_nodes_can_be_used(tab: Page, tmp_path: Path) -> None:
    begun = time.monotonic()
    await show(tab, many(1000), tmp_path)
    assert_below(time.monotonic() - begun, 60)
    assert await tab.evaluate("document.querySelectorAll('.card').length") == 24
    assert await tab.evaluate("document.getElementById('count').textContent") == "1000 nodes"
    slow = await tab.evaluate(
        "(() => { const begun = performance.now(); const search = document.getElementById('search');"
        " search.value = 'n0999'; search.dispatchEvent(new Event('input')); return performance.now() - begun; })()"
    )
    assert_below(slow / 1000, 1)
    assert await tab.evaluate("document.querySelector('.card').dataset.node") == "n0999"
    await tab.evaluate("document.getElementById('filters').reset()")
    await asyncio.sleep(0.3)
    await tab.evaluate("document.getElementById('more').click()")
    assert await tab.evaluate("document.querySelectorAll('.card').length") == 48
    assert await tab.evaluate("document.activeElement.dataset.key") == "n0024/0"


async def test_hostile_names_are_text(tab: Page, tmp_path: Path) -> None:
    cluster = EmulatedCluster()
    cluster.node(HOSTILE, "inf2.xlarge")
    cluster.claim(HOSTILE, HOSTILE, [0], namespace=HOSTILE)
    await show(tab, cluster, tmp_path)
    assert await tab.evaluate("document.querySelector('.card h3').textContent") == HOSTILE
    assert await tab.evaluate("document.querySelectorAll('img').length") == 0
    assert tab.problems == []


@contextlib.asynccontextmanager
async def serving(cluster: EmulatedCluster) -> AsyncIterator[str]:
    async def look() -> ClusterSnapshot:
        return cluster.snapshot()

    app = application(LiveMap(look, 1), loopback=True)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        await task
        listener.close()


async def until(tab: Page, expression: str, expected: object) -> None:
    deadline = time.monotonic() + 20
    while (found := await tab.evaluate(expression)) != expected:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


async def test_a_served_page_follows_the_cluster_and_keeps_the_focus(tab: Page) -> None:
    cluster = EmulatedCluster()
    cluster.node("torus")
    async with serving(cluster) as url:
        await tab.open(url)
        assert await tab.evaluate("document.querySelectorAll('.held').length") == 0
        await tab.evaluate(f"{device('torus', 0)}.focus()")
        await tab.press("ArrowRight", 39)
        cluster.claim("train", "torus", range(4))
        await until(tab, "document.querySelectorAll('.held').length", 4)
        assert await tab.evaluate("document.activeElement.dataset.key") == "torus/1"
        assert tab.problems == []
    await until(
        tab,
        "document.getElementById('live').textContent",
        "The map is not current: the server does not answer.",
    )
