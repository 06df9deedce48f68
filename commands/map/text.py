"""The device map as JSON, and for a terminal: a summary, then drawings, a line a node, or counts of very many."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from commands.cluster.snapshot import ClusterSnapshot
from commands.devices.devices import Device, DeviceMap, DeviceState, HeldDevice, NodeMap, TypeSummary, summarise
from commands.map.drawing import (
    ASCII_MARKS,
    MANY,
    MARKS,
    WORDS,
    DrawnLink,
    Geometry,
    LegendEntry,
    Wrap,
    by_device,
    entries,
    geometry,
    held,
    ranges,
    users,
)
from neuron.findings import few
from runtime.console import BOLD, GREEN, RED, YELLOW, Style, encodable, json_text, printable
from runtime.text import counted

MOST_DRAWN: Final = 4
MOST_LISTED: Final = 60

_COLOURS: Final = (36, 35, 34, 33, 96, 95, 94, 93)
_STATE_COLOURS: Final = {
    DeviceState.FREE: GREEN,
    DeviceState.UNHEALTHY: RED,
    DeviceState.TAINTED: YELLOW,
    DeviceState.PLUGIN: 90,
}
_INVERSE: Final = 7
_CELL: Final = 7
_GAP: Final = 2
_MARGIN: Final = 3
_STRIP: Final = 4
_BAR: Final = 40
_BLOCK: Final = "█"


def _is_rich(style: Style) -> bool:
    """Whether all marks and lines can be shown; else they are ASCII."""
    return encodable("".join(MARKS.values()) + "─│┈┊" + _BLOCK, style.encoding)


def _clean(text: str, style: Style) -> str:
    """Text from the cluster: on one line, without control characters."""
    return printable(text, style.encoding)


def as_text(found: DeviceMap, style: Style, *, wide: bool = False, draw: bool = False) -> str:
    """The map as text.

    Args:
        wide: a line for each node, however many there are.
        draw: a drawing of each node, however many there are.
    """
    bad = _STATE_COLOURS[DeviceState.UNHEALTHY]
    lines = [style.painted(f"! {_clean(problem, style)}", bad) for problem in found.problems]
    lines += _summary(found, style)
    if draw or not found.nodes or (len(found.nodes) <= MOST_DRAWN and not wide):
        for node in in_order(found.nodes):
            lines += ["", *_drawing(node, style)]
    elif wide or len(found.nodes) <= MOST_LISTED:
        lines += ["", *_table(found.nodes, style)]
    else:
        lines += ["", *_spread(found.nodes, style)]
    if found.strays:
        shown = [f"{stray.holding.name} ({stray.pool}/{stray.device})" for stray in found.strays]
        lines += ["", f"! Claims for devices that no node publishes now: {_clean(few(shown, 3), style)}."]
    return "".join(f"{line.rstrip()}\n" for line in lines)


# --- the summary --------------------------------------------------------------------------------------------


def _summary(found: DeviceMap, style: Style) -> Iterator[str]:
    if not found.nodes:
        yield found.nothing
        return
    for each in summarise(found.nodes):
        name = style.painted(_clean(each.instance_type or "unknown type", style), BOLD)
        yield f"{name}: {counted(each.nodes, 'node')}, {counted(each.devices, 'device')}: {_states(each)}"
        yield f"  {_largest(each, style)}"


def _states(summary: TypeSummary) -> str:
    parts = [f"{summary.states[state]} {WORDS[state]}" for state in DeviceState if summary.states.get(state)]
    if summary.faults > summary.states.get(DeviceState.UNHEALTHY, 0):
        parts.append(f"{counted(summary.faults, 'fault')} in all")
    if summary.closed:
        parts.append(f"{counted(summary.closed, 'node')} closed to new pods")
    if summary.on_plugin:
        parts.append(f"{counted(summary.on_plugin, 'node')} not moved to the driver yet")
    return ", ".join(parts)


def _largest(summary: TypeSummary, style: Style) -> str:
    if summary.nodes == summary.on_plugin:
        return "Pods get these devices by the limits of the device plugin (docs/migrate.md)."
    if not summary.largest:
        return "No device is free on a node that takes new pods."
    places = ", ".join(f"{count} x {size}" for size, count in summary.places.items())
    return (
        f"Largest connected set that still fits: {summary.largest} on {_clean(summary.where, style)}. "
        f"Places (count x connected devices): {places}."
    )


def _spread(nodes: Iterable[NodeMap], style: Style) -> Iterator[str]:
    for each in summarise(nodes):
        yield f"{_clean(each.instance_type or 'unknown type', style)}: nodes by their largest free connected set"
        most = max(each.spread.values(), default=1)
        for size, count in each.spread.items():
            bar = (_BLOCK if _is_rich(style) else "#") * max(1, round(count * _BAR / most))
            yield f"  {size:>3} {style.painted(bar, _STATE_COLOURS[DeviceState.FREE] if size else 0)} {count}"
    yield ""
    yield "-o wide lists every node. NODE, --type, --free, --claim, -n, -l and --attention choose some; few are drawn."


# --- many nodes: a line each --------------------------------------------------------------------------------


def _table(nodes: Sequence[NodeMap], style: Style) -> list[str]:
    head = ("NODE", "TYPE", "FREE", "CONNECTED", "DEVICES", "NOTE")
    rows = [
        (
            _clean(node.name, style),
            _clean(node.instance_type or "unknown", style),
            f"{len(node.free)}/{len(node.devices)}",
            str(len(node.largest_free)),
            _strip(node, style),
            _clean("; ".join(filter(None, (note(node), ultraserver(node)))), style),
        )
        for node in in_order(nodes)
    ]
    widths = [max(len(cell) for cell in column) for column in zip(head[:4], *(row[:4] for row in rows), strict=True)]
    strip = max(len(head[4]), *map(_strip_length, nodes))
    lines = [f"{_row(head[:4], widths)}  {head[4]:<{strip}}  {head[5]}"]
    for node, row in zip(in_order(nodes), rows, strict=True):
        # Colours have no width.
        lines.append(f"{_row(row[:4], widths)}  {row[4]}{' ' * (strip - _strip_length(node))}  {row[5]}")
    return [*lines, "", _marks(nodes, style)]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))


def _strip(node: NodeMap, style: Style) -> str:
    holders = by_device(entries(node))
    found = (_mark(device, holders.get(device.index, []), style) for device in node.devices)
    marks = [style.painted(mark, *codes) for mark, codes in found]
    return " ".join("".join(marks[start : start + _STRIP]) for start in range(0, len(marks), _STRIP))


def _strip_length(node: NodeMap) -> int:
    count = len(node.devices)
    return count + max(0, (count - 1) // _STRIP)


def note(node: NodeMap) -> str:
    """What an operator should know about a node; empty if nothing."""
    faults = [f"{device.index} {device.fault}" for device in node.devices if device.fault]
    parts = [node.closed] if node.closed else []
    parts += [f"unhealthy: {', '.join(faults)}"] if faults else []
    if node.plugin is not None:
        parts.append(f"plugin: {node.plugin.used} of {node.plugin.devices} devices requested by pods")
    return "; ".join(parts)


def ultraserver(node: NodeMap) -> str:
    """The place of a node in its UltraServer; empty if it is in none."""
    place = node.ultraserver
    if place is None:
        return ""
    position = f"node {place.position}" if place.position is not None else "a node"
    server = f"{position} of UltraServer {place.server}" if place.server else ""
    server += f" (set of {place.size})" if place.size else ""
    workload = f"allocated to NeuronUltraServerWorkload {place.workload}" if place.workload else ""
    return ", ".join(filter(None, (server, workload)))


# --- few nodes: a drawing each ------------------------------------------------------------------------------


def _drawing(node: NodeMap, style: Style) -> Iterator[str]:
    found = entries(node)
    yield style.painted(_clean(node.name, style), BOLD) + "  " + _clean(_headline(node), style)
    if place := ultraserver(node):
        yield f"  {_clean(place, style)}"
    if remark := note(node):
        yield f"  {style.painted(_clean(remark, style), _STATE_COLOURS[DeviceState.TAINTED])}"
    yield from _picture(node, geometry(node), by_device(found), style)
    for entry in found:
        letter = style.painted(entry.letter, _COLOURS[entry.colour], BOLD)
        name, used_by = entry.holding.name, users(entry.holding)
        yield f"  {letter} {_clean(name, style)}: {held(entry)}, {_clean(used_by, style)}"
    lookers = sorted({each.name for device in node.devices for each in device.lookers})
    if lookers:
        yield f"  adminAccess, holds nothing: {_clean(few(lookers, 3), style)}"
    if node.plugin is not None and node.plugin.pods:
        yield f"  pods of the device plugin: {_clean(few(node.plugin.pods, 3), style)}"
    yield f"  {_marks([node], style)}"


def _headline(node: NodeMap) -> str:
    topology = f", {node.topology.value}" if node.topology is not None else ""
    kind = f"{node.instance_type or 'unknown type'}{topology}"
    if node.on_plugin:
        return f"{kind}: {counted(len(node.devices), 'device')} with the device plugin"
    connected = (
        f"largest connected set free: {len(node.largest_free)} ({ranges(node.largest_free)})"
        if node.largest_free
        else "no device is free"
    )
    whole = ", the whole node is free" if node.whole_free else ""
    return f"{kind}: {len(node.free)} of {len(node.devices)} devices free, {connected}{whole}"


def _picture(node: NodeMap, drawn: Geometry, holders: dict[int, list[LegendEntry]], style: Style) -> Iterator[str]:
    devices = {device.index: device for device in node.devices}
    places = {place: index for index, place in drawn.cells.items()}
    across, down = ("─", "│") if _is_rich(style) else ("-", "|")
    out, along = ("┈", "┊") if _is_rich(style) else (".", ":")
    lines = {frozenset((line.first, line.second)): line for line in drawn.lines}
    ends = _ends(drawn.lines, Wrap.ROW)
    tops = _ends(drawn.lines, Wrap.COLUMN)
    for row in range(drawn.rows):
        here = [places.get((column, row)) for column in range(drawn.columns)]
        if row == 0 and any(index in tops for index in here):
            yield _uprights([index in tops for index in here], along)
        cells = []
        for column, index in enumerate(here):
            if index is None:
                cells.append(" " * _CELL)
            else:
                fits = index in node.largest_free
                cells.append(_cell(devices[index], holders.get(index, []), style, fits=fits))
            if column + 1 < drawn.columns:
                linked = frozenset((index, here[column + 1])) in lines
                cells.append((across if linked else " ") * _GAP)
        left = out if here[0] in ends else " "
        right = out if here[-1] in ends else ""
        yield " " * (_MARGIN - 1) + left + "".join(cells) + right
        below = [places.get((column, row + 1)) for column in range(drawn.columns)]
        if row + 1 < drawn.rows:
            yield _uprights([frozenset(pair) in lines for pair in zip(here, below, strict=True)], down)
        elif any(index in tops for index in here):
            yield _uprights([index in tops for index in here], along)


def _ends(lines: Iterable[DrawnLink], wrap: Wrap) -> set[int | None]:
    return {index for line in lines if line.wrap is wrap for index in (line.first, line.second)}


def _uprights(present: Iterable[bool], mark: str) -> str:
    half = _CELL // 2
    each = (" " * half + (mark if here else " ") + " " * (_CELL - half - 1) for here in present)
    return " " * _MARGIN + (" " * _GAP).join(each)


def _cell(device: Device, holders: Sequence[LegendEntry], style: Style, *, fits: bool) -> str:
    """`[ 3 A ]`: index, claim or state, and a flag for a fault or for cores that are left.

    The largest free connected set (`fits`) is inverted on a terminal with colour.
    """
    mark, codes = _mark(device, holders, style)
    codes = (*codes, _INVERSE) if fits else codes
    cross = MARKS[DeviceState.UNHEALTHY] if _is_rich(style) else ASCII_MARKS[DeviceState.UNHEALTHY]
    flag = cross if device.fault and holders else "+" if device.state is DeviceState.PARTLY else " "
    return style.painted(f"[{device.index:>2} {mark}{flag}]"[:_CELL], *codes)


def _mark(device: Device, holders: Sequence[LegendEntry], style: Style) -> tuple[str, tuple[int, ...]]:
    if not holders:
        marks = MARKS if _is_rich(style) else ASCII_MARKS
        return marks[device.state], (_STATE_COLOURS[device.state],)
    codes = (_COLOURS[holders[0].colour], *((BOLD,) if device.fault else ()))
    return (MANY if len(holders) > 1 else holders[0].letter), codes


def _marks(nodes: Sequence[NodeMap], style: Style) -> str:
    present = {device.state for node in nodes for device in node.devices}
    marks = MARKS if _is_rich(style) else ASCII_MARKS
    shown = [f"{style.painted(marks[each], _STATE_COLOURS[each])} {WORDS[each]}" for each in marks if each in present]
    shown += ["a letter: held by a claim"] if {DeviceState.HELD, DeviceState.PARTLY} & present else []
    if style.colour and any(node.largest_free for node in nodes):
        inverted = style.painted("inverted", _STATE_COLOURS[DeviceState.FREE], _INVERSE)
        shown.append(f"{inverted}: largest connected set that is free")
    return "   ".join(shown)


# --- both ---------------------------------------------------------------------------------------------------


def in_order(nodes: Iterable[NodeMap]) -> list[NodeMap]:
    """The nodes by name; nodes of one UltraServer stay together, in their positions."""

    def place(node: NodeMap) -> tuple[str, int, str]:
        if node.ultraserver is None:
            return ("", 0, node.name)
        return (node.ultraserver.server, node.ultraserver.position or 0, node.name)

    return sorted(nodes, key=place)


# --- JSON for programs: fields are only added, not changed ------------------------------------------------------------


Json = dict[str, object]


def as_json(found: DeviceMap, seen: ClusterSnapshot) -> str:
    """One document with all nodes."""
    document = {
        "cluster": seen.address,
        "time": seen.taken.isoformat(timespec="seconds"),
        "types": [type_summary(each) for each in summarise(found.nodes)],
        "nodes": [_node(node) for node in found.nodes],
        "strayClaims": [
            {**_holding(stray.holding), "pool": stray.pool, "device": stray.device} for stray in found.strays
        ],
        "problems": list(found.problems),
    }
    return json_text(document)


def type_summary(each: TypeSummary) -> Json:
    return {
        "instanceType": each.instance_type,
        "nodes": each.nodes,
        "closedNodes": each.closed,
        "devicePluginNodes": each.on_plugin,
        "devices": each.devices,
        "devicesByState": {state.value: count for state, count in each.states.items()},
        "faults": each.faults,
        "largestFree": each.largest,
        "largestFreeNode": each.where,
        "places": {str(size): count for size, count in each.places.items()},
        "nodesByLargestFree": {str(size): count for size, count in each.spread.items()},
    }


def _node(node: NodeMap) -> Json:
    return {
        "name": node.name,
        "instanceType": node.instance_type,
        "topology": node.topology.value if node.topology else None,
        "closed": node.closed,
        "free": len(node.free),
        "wholeNodeFree": node.whole_free,
        "largestFree": list(node.largest_free),
        "places": {str(size): count for size, count in node.places.items()},
        "ultraServer": node.ultraserver,
        "devicePlugin": node.plugin,
        "devices": [_device(device) for device in node.devices],
        "links": [list(pair) for pair in node.links],
        "groups": [{"attribute": group.attribute, "devices": list(group.members)} for group in node.groups],
    }


def _device(device: Device) -> Json:
    return {
        "index": device.index,
        "name": device.name,
        "state": device.state.value,
        "fault": device.fault,
        "taints": [str(taint) for taint in device.taints],
        "cores": device.cores,
        "freeCores": device.free_cores if device.shared else None,
        "holders": [_holding(each) for each in device.holders],
        "lookers": [_holding(each) for each in device.lookers],
    }


def _holding(holding: HeldDevice) -> Json:
    return {
        "namespace": holding.namespace,
        "claim": holding.claim,
        "request": holding.request,
        "pods": list(holding.pods),
        "podGroups": list(holding.groups),
        "cores": holding.cores,
        "wholeNode": holding.whole_node,
    }
