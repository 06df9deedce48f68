"""The device map as one HTML page without external resources. `page.js` draws it from the data in the page."""

import hashlib
from collections.abc import Iterator
from html import escape
from importlib import resources
from typing import Final

import orjson

from commands.devices.devices import Device, DeviceMap, NodeMap
from commands.devices.snapshot import ClusterSnapshot
from commands.map import drawing, svg
from commands.map.document import summarise, type_summary
from commands.map.drawing import WORDS, LegendEntry, Wrap, by_device, entries, geometry, held, users
from commands.map.text import in_order, note, ultraserver
from commands.present.html import embedded, source_of

Json = dict[str, object]

_FILES: Final = resources.files("commands.map")
SCRIPT: Final = (_FILES / "page.js").read_text(encoding="utf-8")
STYLE: Final = drawing.VARIABLES + drawing.DRAWING + (_FILES / "page.css").read_text(encoding="utf-8")


POLICY: Final = (
    f"default-src 'none'; script-src {source_of(SCRIPT)}; style-src {source_of(STYLE)}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""Content-Security-Policy: only the page's own script and style run, whatever names the cluster has. The image is the
empty icon, without which browsers request one."""

_BODY: Final = (_FILES / "page.html").read_text(encoding="utf-8")


def as_page(found: DeviceMap, seen: ClusterSnapshot, interval: float | None = None) -> str:
    """The page.

    Args:
        interval: seconds between requests for new data; None: a page that does not change.
    """
    live = f' data-interval="{interval:g}"' if interval else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        f'<title>Neuron devices</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n'
        f"<body{live}>\n{_BODY}{embedded(orjson.dumps(data(found, seen)))}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def data(found: DeviceMap, seen: ClusterSnapshot, stale: str = "") -> Json:
    """What the page draws; `stale` says why it is not current."""
    layouts: dict[str, Json] = {}
    return {
        "cluster": seen.address,
        "time": seen.taken.isoformat(timespec="seconds"),
        "stale": stale,
        "problems": list(found.problems),
        "types": [type_summary(each) for each in summarise(found.nodes)],
        "nodes": [_node(node, layouts) for node in in_order(found.nodes)],
        "layouts": layouts,
        "strays": [f"{stray.holding.name}: {stray.pool}/{stray.device}" for stray in found.strays],
    }


def _node(node: NodeMap, layouts: dict[str, Json]) -> Json:
    found = entries(node)
    numbers = {entry.holding.uid or entry.holding.name: number for number, entry in enumerate(found)}
    holders = by_device(found)
    topology = f", {node.topology.value}" if node.topology is not None else ""
    fits = f", {len(node.largest_free)} connected" if node.largest_free else ""
    free = f"{len(node.free)} of {len(node.devices)} free{fits}"
    if node.on_plugin:
        free = f"{len(node.devices)} with the device plugin"
    devices = [_device(node, device, holders.get(device.index, []), numbers) for device in node.devices]
    searched = [
        node.name,
        node.instance_type,
        *((node.ultraserver.server, node.ultraserver.workload) if node.ultraserver else ()),
    ]
    searched += [text for entry in found for text in (entry.holding.name, *entry.holding.pods, *entry.holding.groups)]
    searched += node.plugin.pods if node.plugin else ()
    return {
        "name": node.name,
        "type": node.instance_type,
        "headline": f"{node.instance_type or 'unknown type'}{topology}: {free}",
        "note": note(node),
        "place": ultraserver(node),
        "closed": node.closed,
        "onPlugin": node.on_plugin,
        "fits": node.largest_free,
        "whole": node.open and len(node.free) == len(node.devices),
        "server": node.ultraserver.server if node.ultraserver else "",
        "size": node.ultraserver.size if node.ultraserver else 0,
        "layout": _layout(node, layouts),
        "claims": [_claim(entry) for entry in found],
        "devices": devices,
        "states": list(_states(node)),
        "text": " ".join(searched).lower(),
    }


def _claim(entry: LegendEntry) -> Json:
    holding = entry.holding
    return {
        # A claim's uid has no blanks; its name has none, either.
        "id": holding.uid or holding.name,
        "name": holding.name,
        "pods": holding.pods,
        "letter": entry.letter,
        "colour": entry.colour,
        "text": f"{holding.name}: {held(entry)}, {users(holding)}",
    }


def _device(node: NodeMap, device: Device, holders: list[LegendEntry], numbers: dict[str, int]) -> Json:
    return {
        "index": device.index,
        "state": WORDS[device.state] + (f", unhealthy: {device.fault}" if device.fault else ""),
        "fault": device.fault,
        "mark": svg.mark_of(device, holders),
        "classes": svg.classes_of(device, holders, fits=device.index in node.largest_free),
        "title": svg.title_of(device, holders),
        "claims": [numbers[entry.holding.uid or entry.holding.name] for entry in holders],
        "taints": [str(taint) for taint in device.taints],
    }


def _states(node: NodeMap) -> Iterator[Json]:
    for mark, kind, text in svg.states_of(node):
        yield {"mark": mark, "class": kind, "text": text}


def _layout(node: NodeMap, layouts: dict[str, Json]) -> str:
    """The drawing's key: nodes of one type share it."""
    drawn = geometry(node)
    key = hashlib.sha256(repr((list(drawn.cells.values()), drawn.lines)).encode()).hexdigest()[:12]
    if key not in layouts:
        width, height = svg.WIDTH + svg.GAP_X, svg.HEIGHT + svg.GAP_Y
        layouts[key] = {
            "width": drawn.columns * width - svg.GAP_X + 2 * svg.STUB,
            "height": drawn.rows * height - svg.GAP_Y + 2 * svg.STUB,
            "cell": [svg.WIDTH, svg.HEIGHT],
            "cells": [[svg.STUB + column * width, svg.STUB + row * height] for column, row in drawn.cells.values()],
            "lines": [
                [*(each + svg.STUB for each in segment), int(line.wrap is not Wrap.NONE)]
                for line in drawn.lines
                for segment in svg.segments(drawn.cells[line.first], drawn.cells[line.second], line.wrap)
            ],
        }
    return key
