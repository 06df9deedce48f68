"""A rehearsal in every format: text for a terminal, JSON, and one HTML page."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import orjson
from msgspec import structs

from commands.map import drawing
from commands.present import ListEntry
from commands.present import html as pages
from commands.present import text as plain
from commands.rehearse import tables
from commands.rehearse.model import NodeShot, Reason, Rehearsal, Step
from commands.report.tables import names
from runtime.console import BOLD, GREEN, RED, YELLOW, Style, wrapped
from runtime.text import counted

_MOST: Final = 12
"""Entries of a part of the text. Details, JSON and the page have all."""
_REST: Final = "--details, -o json and -o html have all"
_TITLES: Final = {
    "What waits": (BOLD, YELLOW),
    **dict.fromkeys(("Steps", "What is different afterwards", "Cannot know"), (BOLD,)),
}


def as_text(rehearsal: Rehearsal, style: Style, *, details: bool = False) -> str:
    """Text for people: one screen; with details, every pod of every step."""
    width, most = style.width, None if details else _MOST
    lines = [f"Rehearsal of the migration of {rehearsal.origin}, {rehearsal.made}", ""]
    lines += (wrapped(each, 0, width) for each in tables.summary(rehearsal))
    if rehearsal.best.steps:
        lines += ["", *plain.table(tables.steps(rehearsal), width)]
    lines += plain.titled("What waits", _waits(rehearsal), width, most, _REST)
    lines += plain.titled("What is different afterwards", _changes(rehearsal), width, most, _REST)
    lines += plain.titled("Cannot know", [ListEntry("", each) for each in rehearsal.unknown], width, most, _REST)
    for at, step in enumerate(rehearsal.best.steps, start=1) if details else ():
        lines += ["", f"Step {at}: {step.group}"]
        lines += (plain.INDENT + each for each in tables.moves(step, rehearsal.pods))
    outcome = tables.outcome(rehearsal, rehearsal.best.cost)
    return plain.page(lines, style, {**_TITLES, outcome: (GREEN if rehearsal.well else RED,)})


def _waits(rehearsal: Rehearsal) -> list[ListEntry]:
    return [
        ListEntry(each.reason.cause, tables.wait_text(each, rehearsal), each.reason.text, each.reason.fix)
        for each in tables.waits(rehearsal)
    ]


def _changes(rehearsal: Rehearsal) -> list[ListEntry]:
    sizes = [ListEntry("", f"{ref}: {before} before, {after} after") for ref, before, after in rehearsal.sizes]
    return sizes + [
        ListEntry(each.cause, f"{each.code}, {names(each)}", each.message, each.fix) for each in rehearsal.changes
    ]


# --- JSON: field names are stable -------------------------------------------------------------------------------------


def as_json(rehearsal: Rehearsal) -> Iterator[str]:
    """The document in pieces: in a large cluster it is hundreds of MiB. A pod is a number in `pods`."""
    document = {
        "problems": rehearsal.problems,
        "origin": rehearsal.origin,
        "made": rehearsal.made,
        "version": rehearsal.version,
        "well": rehearsal.well,
        "summary": tables.summary(rehearsal),
        "groups": rehearsal.groups,
        "pods": (
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "workload": str(pod.kind.workload),
                "node": pod.node,
                "devices": pod.kind.plugin.devices,
                "createdBy": str(pod.maker),
                "mustNotBeEvicted": pod.keeps,
            }
            for pod in rehearsal.pods
        ),
        "start": rehearsal.start,
        "order": rehearsal.best.order,
        "cost": rehearsal.best.cost,
        "otherOrders": [{"order": order, "cost": cost} for order, cost in rehearsal.others],
        "allOrdersTried": rehearsal.all_orders,
        "spares": rehearsal.spares,
        "pools": rehearsal.assumed,
        "steps": map(_step, rehearsal.best.steps),
        "waits": [
            {"workload": each.workload, "pods": each.pods, "afterSteps": each.steps, **_reason(each.reason)}
            for each in tables.waits(rehearsal)
        ],
        "waitingToday": [
            {"pod": number, "reason": why.text, "reasonAtTheEnd": end.text if end else ""}
            for number, why, end in rehearsal.today
        ],
        "devicesDiffer": [
            {"workload": str(ref), "before": before, "after": after} for ref, before, after in rehearsal.sizes
        ],
        "changes": [
            {
                "cause": str(each.cause),
                "code": each.code,
                "message": each.message,
                "fix": each.fix,
                "workloads": [str(ref) for ref in each.workloads],
            }
            for each in rehearsal.changes
        ],
        "cannotKnow": rehearsal.unknown,
    }
    before = "{\n"
    for key, value in document.items():
        yield before
        if isinstance(value, Iterator):
            yield from _items(key, value)
        else:
            yield _indented({key: value}).removeprefix("{\n").removesuffix("\n}")
        before = ",\n"
    yield "\n}\n"


def _items(key: str, found: Iterable[object]) -> Iterator[str]:
    yield f'  "{key}": ['
    before = after = ""
    for each in found:
        yield f"{before}\n"
        # An item is indented as in the document.
        yield _indented([[each]]).removeprefix("[\n  [\n").removesuffix("\n  ]\n]")
        before, after = ",", "\n  "
    yield f"{after}]"


def _indented(value: object) -> str:
    return orjson.dumps(value, msgspec.to_builtins, orjson.OPT_INDENT_2).decode()


def _step(step: Step) -> dict[str, object]:
    return {
        "group": step.group,
        "converts": step.converts,
        "waves": step.waves,
        "moves": step.moves,
        "waiting": [{"pod": number, **_reason(reason)} for number, reason in step.waiting],
        "endFirst": step.ended,
        "byHand": step.by_hand,
        "stalled": step.stalled,
        "canGoBack": not step.back and not step.stalled,
        "whyNotBack": step.back,
        "devices": step.figures,
        "free": step.free,
    }


def _reason(reason: Reason) -> dict[str, str]:
    return {"cause": str(reason.cause), "reason": reason.text, "fix": reason.fix}


# --- HTML -------------------------------------------------------------------------------------------------------------

# `page.js` draws the nodes after each step from the data in the page, and a slider moves through the steps. Tables and
# texts are there without the script.
_PACKAGE: Final = "commands.rehearse"
_MOST_WAITING: Final = 200
"""Pods that a step names."""


def as_html(rehearsal: Rehearsal) -> str:
    """The page."""
    title, made = f"Rehearsal of {rehearsal.origin}", f"{rehearsal.made}, neuron-dra {rehearsal.version}"
    # The report's page has other colours of the same names.
    own = drawing.scoped("#play") + pages.asset("page.css", _PACKAGE)
    data = orjson.dumps(_data(rehearsal)) if rehearsal.shots else b""
    skip = ("steps", "Skip to the steps")
    return pages.page(title, made, skip, _main(rehearsal), pages.asset("page.js", _PACKAGE), own, data)


def _main(rehearsal: Rehearsal) -> Iterator[str]:
    yield from pages.bullets(tables.summary(rehearsal))
    if rehearsal.shots:
        last = len(rehearsal.best.steps)
        yield (
            '<section id="play" hidden aria-label="The nodes, step by step"><div class="control">'
            '<button type="button" id="back">Back</button>'
            f'<label for="slider">Step <input type="range" id="slider" min="0" max="{last}" value="0"></label>'
            '<button type="button" id="forward">Forward</button></div>'
            '<p id="told" aria-live="polite"></p><div id="bars"></div><div id="nodes"></div>'
            '<ul id="workloads" class="legend"></ul><ul id="waiting"></ul></section>'
        )
    if rehearsal.best.steps:
        yield from pages.table("steps", tables.steps(rehearsal))
    if found := _waits(rehearsal):
        yield '<h2 id="waits">What waits</h2><ul class="topics blocks">'
        for each in found:
            yield from pages.topic(each.tag, pages.escaped(each.about), each.text, each.fix)
        yield "</ul>"
    if found := _changes(rehearsal):
        yield '<h2 id="changes">What is different afterwards</h2><ul class="topics">'
        for each in found:
            if each.tag:
                yield from pages.topic(each.tag, pages.escaped(each.about), each.text, each.fix)
            else:
                yield f"<li><p>{pages.escaped(each.about)}</p></li>"
        yield "</ul>"
    if rehearsal.unknown:
        yield from ('<h2 id="unknown">Cannot know</h2>', *pages.bullets(rehearsal.unknown))


def _data(rehearsal: Rehearsal) -> dict[str, object]:
    workloads = list(dict.fromkeys(str(pod.kind.workload) for pod in rehearsal.pods))
    numbers = {name: number for number, name in enumerate(workloads)}
    return {
        "groups": tables.short_names(rehearsal),
        "workloads": workloads,
        "pods": [[str(pod), numbers[str(pod.kind.workload)]] for pod in rehearsal.pods],
        "shots": [_shots(rehearsal.shots), *(_shots(each.shots) for each in rehearsal.best.steps)],
        "told": ["Before the first step", *(_told(at, rehearsal) for at in range(len(rehearsal.best.steps)))],
        "waiting": [
            [f"{rehearsal.pods[number]}: {why.text}" for number, why, _ in rehearsal.today[:_MOST_WAITING]],
            *(_still_waiting(each, rehearsal) for each in rehearsal.best.steps),
        ],
        "figures": [
            structs.astuple(each) for each in (rehearsal.start, *(step.figures for step in rehearsal.best.steps))
        ],
    }


def _told(at: int, rehearsal: Rehearsal) -> str:
    step = rehearsal.best.steps[at]
    converts = f"; converts {', '.join(step.converts)}" if step.converts else ""
    group = tables.short_names(rehearsal)[step.group]
    moved = sum(bool(each.to) for each in step.moves)
    return (
        f"Step {at + 1}: {group}{converts}; {counted(moved, 'pod')} moved, {step.paused} of them waited;"
        f" {tables.step_note(step, rehearsal.pods)}"
    )


def _still_waiting(step: Step, rehearsal: Rehearsal) -> list[str]:
    found = [f"{rehearsal.pods[number]}: {reason.cause}: {reason.text}" for number, reason in step.waiting]
    more = len(found) - _MOST_WAITING
    return found[:_MOST_WAITING] + ([f"and {more} more"] if more > 0 else [])


def _shots(shots: Iterable[NodeShot]) -> list[object]:
    return [
        [each.name, each.group, each.instance_type, each.side, [each.held.get(at, ()) for at in range(each.devices)]]
        for each in shots
    ]
