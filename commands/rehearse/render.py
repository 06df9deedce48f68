"""A rehearsal in every format: text for a terminal, JSON, and one HTML page."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import orjson
from msgspec import structs

from commands.map import drawing
from commands.present import NOTHING, ListEntry, Table, listed
from commands.present import html as pages
from commands.present import text as plain
from commands.rehearse.model import (
    Cost,
    FreePlace,
    Maker,
    Move,
    NodeShot,
    PlayedPod,
    Reason,
    Rehearsal,
    Spares,
    Step,
    WaitCause,
)
from commands.report.tables import names
from runtime.console import BOLD, GREEN, RED, YELLOW, Style, wrapped
from runtime.text import counted, named

# --- sentences and tables, which are those of all formats -------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """Pods of one workload that do not run for one cause.

    Attributes:
        steps: numbers of the steps after which they do not run.
        pods: the largest number of them.
    """

    workload: str
    reason: Reason
    steps: tuple[int, ...]
    pods: int


def waits(rehearsal: Rehearsal) -> tuple[Wait, ...]:
    """What does not run after a step, those at the end first. The reason is that of the last step."""
    found: dict[tuple[str, WaitCause], dict[int, int]] = {}
    reasons: dict[tuple[str, WaitCause], Reason] = {}
    last = len(rehearsal.best.steps)
    for at, step in enumerate(rehearsal.best.steps, start=1):
        for number, reason in (*step.waiting, *(rehearsal.denied_today if at == last else ())):
            key = str(rehearsal.pods[number].kind.workload), reason.cause
            pods = found.setdefault(key, {})
            pods[at] = pods.get(at, 0) + 1
            reasons[key] = reason
    made = [Wait(key[0], reasons[key], tuple(steps), max(steps.values())) for key, steps in found.items()]
    return tuple(sorted(made, key=lambda each: (last not in each.steps, -each.pods, each.workload)))


def wait_text(wait: Wait, rehearsal: Rehearsal) -> str:
    """`2 pods of Deployment team-a/web, at the end`."""
    last = len(rehearsal.best.steps)
    when = "at the end" if last in wait.steps else f"after step {', '.join(map(str, wait.steps))}"
    return f"{counted(wait.pods, 'pod')} of {wait.workload}, {when}"


def summary(rehearsal: Rehearsal) -> list[str]:
    """The first sentences: what could not be read, what there is, what happens, spare nodes, the order."""
    lines = [f"Not complete, could not be read: {each}" for each in rehearsal.problems]
    lines += map(str, rehearsal.assumed)
    start, cost = rehearsal.start, rehearsal.best.cost
    if not rehearsal.groups:
        return [*lines, "No node has the device plugin: there is nothing to migrate."]
    nodes = sum(len(each.nodes) for each in rehearsal.groups)
    labels = {each.name.partition("=")[0] for each in rehearsal.groups}
    moving = sum(bool(pod.node) and not pod.converted for pod in rehearsal.pods)
    lines.append(
        f"{counted(len(rehearsal.groups), 'node group')} ({listed(labels, 3)}) with {counted(nodes, 'node')} and"
        f" {counted(start.plugin, 'device')} of the device plugin; {counted(moving, 'pod')}"
        f" {'uses' if moving == 1 else 'use'} {start.plugin_used} of them."
    )
    lines.append(outcome(rehearsal, cost))
    lines += filter(None, (spare_line(rehearsal.spares), order_line(rehearsal)))
    if rehearsal.today:
        number, why, _ = rehearsal.today[0]
        more = len(rehearsal.today) - 1
        names = named(str(rehearsal.pods[number])) + (f" and {more} more" if more else "")
        lines.append(f"Already waiting before the first step: {names}: {why.text}.")
        left = [
            f"{named(str(rehearsal.pods[number]))}: {end.text.rstrip('.')}" for number, _, end in rehearsal.today if end
        ]
        run = len(rehearsal.today) - len(left)
        text = f"{run} of them run" if left and run else "None of them runs" if left else "They run"
        lines.append(f"{text} at the end{'; ' if left else ''}{''.join(left[:1])}.")
    return lines


def short_names(rehearsal: Rehearsal) -> Mapping[str, str]:
    """Node groups by the values of their labels; by their full names if two have one value."""
    values = {group.name: group.name.partition("=")[2] for group in rehearsal.groups}
    return values if len(set(values.values())) == len(values) else {name: name for name in values}


def outcome(rehearsal: Rehearsal, cost: Cost) -> str:
    """What happens to pods."""
    if rehearsal.well:
        if rehearsal.today:
            return "No pod that runs today waits at any time, and none is denied."
        return "Nothing waits at any time, and nothing is denied."
    denied = rehearsal.best.steps[-1].denied
    waiting = cost.waiting - denied
    paused = sum(each.paused for each in rehearsal.best.steps)
    today = len(rehearsal.denied_today)
    parts = [
        (paused, f"{counted(paused, 'pod')} {'waits' if paused == 1 else 'wait'} until a group has the driver"),
        (waiting, f"{counted(waiting, 'pod')} {'does' if waiting == 1 else 'do'} not run at the end"),
        (denied, f"{counted(denied, 'pod')} {'is' if denied == 1 else 'are'} denied"),
        (today, f"{counted(today, 'pod')} that {'waits today is' if today == 1 else 'wait today are'} denied"),
        (cost.stalled, f"{counted(cost.stalled, 'group')} cannot be drained"),
    ]
    told = ", ".join(text for number, text in parts if number)
    return f"{told[:1].upper()}{told[1:]}." if told else "Pods wait between steps, and all run at the end."


def spare_line(spares: Spares) -> str:
    """The answer about spare nodes."""
    given = f" beside the {types(spares.given)} of --spare" if spares.given else ""
    if spares.needed is None:
        return f"Spare nodes{given}: {spares.why}."
    if not spares.needed:
        return f"Spare nodes: none needed{given}."
    note = f" ({spares.why})" if spares.why else ""
    return f"Spare nodes: with {types(spares.needed)}{given}, with the driver from the start, nothing waits{note}."


def types(counts: Mapping[str, int]) -> str:
    """`1 of trn2.48xlarge, 2 of inf2.48xlarge`."""
    return ", ".join(f"{count} of {kind}" for kind, count in sorted(counts.items()))


def order_line(rehearsal: Rehearsal) -> str:
    """The order, and what others cost."""
    if len(rehearsal.groups) < 2 or not rehearsal.others:
        return ""
    short = short_names(rehearsal)

    def told(order: Iterable[str]) -> str:
        return " -> ".join(named(short[each]) for each in order)

    worst_order, worst = max(rehearsal.others, key=lambda each: each[1])
    best = rehearsal.best.cost
    tried = "all orders" if rehearsal.all_orders else f"{len(rehearsal.others) + 1} orders"
    if worst == best:
        return f"Order: {tried} were tried, and cost the same."
    least = min((cost for _, cost in rehearsal.others), default=best)
    if least < best:
        better = next(order for order, cost in rehearsal.others if cost == least)
        return f"Order: {told(better)} costs less: {cost_text(least)} instead of {cost_text(best)}."
    return (
        f"Order: the best of {tried}. {told(worst_order)} costs more: {cost_text(worst)} instead of {cost_text(best)}."
    )


def cost_text(cost: Cost) -> str:
    """A cost for people."""
    parts = [
        f"{counted(cost.stalled, 'group')} not drained" if cost.stalled else "",
        f"{counted(cost.waiting, 'pod')} not running at the end" if cost.waiting else "",
        f"{cost.paused} waiting for a while" if cost.paused else "",
        f"{counted(cost.moved, 'move')} of pods",
    ]
    return ", ".join(filter(None, parts))


def steps(rehearsal: Rehearsal) -> Table:
    """One row for each step."""
    head = ("step", "group", "nodes", "converts", "waves", "moved", "waited", "waiting", "denied", "free afterwards")
    short = short_names(rehearsal)
    sizes = {group.name: len(group.nodes) for group in rehearsal.groups}
    rows = []
    for at, step in enumerate(rehearsal.best.steps, start=1):
        rows.append(
            (
                str(at),
                short[step.group],
                str(sizes[step.group]),
                listed(step.converts, 3) or NOTHING,
                str(step.waves),
                str(sum(bool(each.to) for each in step.moves)),
                str(step.paused),
                str(len(step.waiting) - step.denied),
                str(step.denied),
                free_text(step.free) or NOTHING,
                devices_text(step),
                step_note(step, rehearsal.pods),
            )
        )
    return Table("Steps", (*head, "devices in use", "note"), tuple(rows), frozenset({0, 2, 4, 5, 6, 7, 8}))


def free_text(free: Mapping[str, FreePlace]) -> str:
    """`12 of trn1.32xlarge, 8 connected`."""
    return "; ".join(f"{each.devices} of {kind}, {each.connected} connected" for kind, each in free.items())


def devices_text(step: Step) -> str:
    """`plugin 16 of 32, driver 16 of 16, 8 waiting`."""
    found = step.figures
    text = f"plugin {found.plugin_used} of {found.plugin}, driver {found.driver_used} of {found.driver}"
    return f"{text}, {found.waiting} waiting" if found.waiting else text


def step_note(step: Step, pods: Sequence[PlayedPod]) -> str:
    """What an operator has to know about a step."""
    if step.stalled:
        return f"the drain does not end: {step.stalled}"
    parts = []
    if step.ended:
        parts.append(f"wait for the end of {listed([str(pods[each]) for each in step.ended], 2)}")
    alone = [str(pods[each]) for each in step.by_hand if pods[each].maker is Maker.NOBODY]
    daemons = [str(pods[each]) for each in step.by_hand if pods[each].maker is Maker.DAEMON_SET]
    if alone:
        parts.append(f"delete and create again by hand: {listed(alone, 2)}")
    if daemons:
        parts.append(f"delete once the driver runs: {listed(daemons, 2)}")
    parts.append("can go back" if not step.back else f"back: {step.back}")
    return "; ".join(parts)


def moves(step: Step, pods: Sequence[PlayedPod]) -> Iterable[str]:
    """One line for each pod that is created again, and for each that waits."""
    for each in step.moves:
        yield move_text(each, pods)
    reasons = dict(step.waiting)
    for number in sorted(reasons.keys() - {each.pod for each in step.moves}):
        yield f"{pods[number]}: still waits: {reasons[number].text}"


def move_text(move: Move, pods: Sequence[PlayedPod]) -> str:
    """`team-a/x: node-1 -> node-2, converted, waited`."""
    pod = pods[move.pod]
    words = ["converted"] if move.converted else []
    if move.to and move.paused:
        words.append("waited for the driver")
    if pod.maker is Maker.NOBODY:
        words.append("by hand")
    target = move.to or "waits"
    return ", ".join([f"{pod}: {move.origin or 'waited'} -> {target}", *words])


# --- text -------------------------------------------------------------------------------------------------------------


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
    lines += (wrapped(each, 0, width) for each in summary(rehearsal))
    if rehearsal.best.steps:
        lines += ["", *plain.table(steps(rehearsal), width)]
    lines += plain.titled("What waits", _waits(rehearsal), width, most, _REST)
    lines += plain.titled("What is different afterwards", _changes(rehearsal), width, most, _REST)
    lines += plain.titled("Cannot know", [ListEntry("", each) for each in rehearsal.unknown], width, most, _REST)
    for at, step in enumerate(rehearsal.best.steps, start=1) if details else ():
        lines += ["", f"Step {at}: {step.group}"]
        lines += (plain.INDENT + each for each in moves(step, rehearsal.pods))
    result = outcome(rehearsal, rehearsal.best.cost)
    return plain.page(lines, style, {**_TITLES, result: (GREEN if rehearsal.well else RED,)})


def _waits(rehearsal: Rehearsal) -> list[ListEntry]:
    return [
        ListEntry(each.reason.cause, wait_text(each, rehearsal), each.reason.text, each.reason.fix)
        for each in waits(rehearsal)
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
        "summary": summary(rehearsal),
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
            for each in waits(rehearsal)
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
    yield from pages.bullets(summary(rehearsal))
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
        yield from pages.table("steps", steps(rehearsal))
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
        "groups": short_names(rehearsal),
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
    group = short_names(rehearsal)[step.group]
    moved = sum(bool(each.to) for each in step.moves)
    return (
        f"Step {at + 1}: {group}{converts}; {counted(moved, 'pod')} moved, {step.paused} of them waited;"
        f" {step_note(step, rehearsal.pods)}"
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
