"""A rehearsal as one HTML page that needs no other file and no network, in the style of reports.

`page.js` draws the nodes after each step from the data in the page, and a slider moves through the steps. Tables and
texts are there without the script.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import orjson
from msgspec import structs

from commands.map import drawing
from commands.rehearse import render_text as tables
from commands.rehearse.model import NodeShot, Rehearsal, Step
from commands.report.render_html import as_escaped, as_table, asset, whole_page
from commands.report.tables import names
from runtime.text import counted

_PACKAGE: Final = "commands.rehearse"
_MOST_WAITING: Final = 200
"""Pods that a step names."""


def as_html(rehearsal: Rehearsal) -> str:
    """The page."""
    title, made = f"Rehearsal of {rehearsal.origin}", f"{rehearsal.made}, neuron-dra {rehearsal.version}"
    # The report's page has other colours of the same names.
    own = drawing.scoped("#play") + asset("page.css", _PACKAGE)
    data = orjson.dumps(_data(rehearsal)) if rehearsal.shots else b"{}"
    skip = ("steps", "Skip to the steps")
    return whole_page(title, made, skip, _main(rehearsal), asset("page.js", _PACKAGE), own, data)


def _main(rehearsal: Rehearsal) -> Iterator[str]:
    yield from ("<ul>", *(f"<li>{as_escaped(each)}</li>" for each in tables.summary(rehearsal)), "</ul>")
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
        yield from as_table("steps", tables.steps(rehearsal))
    yield from _waits(rehearsal)
    yield from _changes(rehearsal)
    if rehearsal.unknown:
        unknown = (f"<li>{as_escaped(each)}</li>" for each in rehearsal.unknown)
        yield from ('<h2 id="unknown">Cannot know</h2><ul>', *unknown, "</ul>")


def _waits(rehearsal: Rehearsal) -> Iterator[str]:
    found = tables.waits(rehearsal)
    if not found:
        return
    yield '<h2 id="waits">What waits</h2><ul class="topics blocks">'
    for each in found:
        yield from _topic(each.reason.cause, tables.wait_text(each, rehearsal), each.reason.text, each.reason.fix)
    yield "</ul>"


def _changes(rehearsal: Rehearsal) -> Iterator[str]:
    if not rehearsal.changes and not rehearsal.sizes:
        return
    yield '<h2 id="changes">What is different afterwards</h2><ul class="topics">'
    for ref, before, after in rehearsal.sizes:
        yield f"<li><p>{as_escaped(f'{ref}: {before} before, {after} after')}</p></li>"
    for topic in rehearsal.changes:
        yield from _topic(topic.cause, f"{topic.code}, {names(topic)}", topic.message, topic.fix)
    yield "</ul>"


def _topic(tag: str, about: str, text: str, fix: str) -> Iterator[str]:
    yield f'<li><p><span class="tag">{as_escaped(tag)}</span> {as_escaped(about)}</p>'
    yield f"<p>{as_escaped(text)}</p>"
    yield f'<p class="fix">{as_escaped(fix)}</p></li>' if fix else "</li>"


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
            *(_waiting(each, rehearsal) for each in rehearsal.best.steps),
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


def _waiting(step: Step, rehearsal: Rehearsal) -> list[str]:
    found = [f"{rehearsal.pods[number]}: {reason.cause}: {reason.text}" for number, reason in step.waiting]
    more = len(found) - _MOST_WAITING
    return found[:_MOST_WAITING] + ([f"and {more} more"] if more > 0 else [])


def _shots(shots: Iterable[NodeShot]) -> list[object]:
    return [
        [each.name, each.group, each.instance_type, each.side, [each.held.get(at, ()) for at in range(each.devices)]]
        for each in shots
    ]
