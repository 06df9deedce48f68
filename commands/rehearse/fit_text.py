"""Where one more pod fits, as text and JSON."""

from collections.abc import Iterator, Sequence
from typing import Final

from commands.rehearse.fitting import Fitting, MadePlace
from commands.rehearse.model import PlayedPod
from commands.rehearse.rehearsing import FitAnswer
from commands.status.lines import counted, listed
from runtime.console import BOLD, GREEN, RED, Style, json_text, printable, wrapped
from runtime.text import number_ranges

_MOST: Final = 6
"""Nodes that text names for each answer."""


def as_text(answer: FitAnswer, origin: str, problems: Sequence[str], style: Style) -> str:
    """Text for people."""
    head = f"{answer.subject} requests {counted(answer.devices, 'device')}: where it fits in {origin}"
    lines = [style.painted(printable(head, style.encoding), BOLD)]
    lines += (f"Not complete, could not be read: {each}" for each in problems)
    if answer.more:
        lines.append(f"Only the first of {answer.more + 1} objects with pods is judged.")
    if answer.denied is not None:
        lines.append(style.painted(f"Converted, it is denied: {answer.denied.code}: {answer.denied.message}", RED))
        lines += [f"-> {answer.denied.fix}"] if answer.denied.fix else []
    if answer.claims is not None:
        lines += ["", f"With the driver (templates {', '.join(answer.templates)})"]
        lines += _answers(answer.claims, answer.pods, style)
    elif answer.why:
        lines.append(f"It is not converted: {answer.why}.")
    if answer.plugin is not None:
        lines += ["", "With the device plugin, unconverted", *_answers(answer.plugin, answer.pods, style)]
    if answer.claims is None and answer.plugin is None and answer.denied is None:
        lines.append("No node has the device plugin.")
    return "".join(f"{wrapped(line, 4, style.width)}\n" for line in lines)


def _answers(found: Fitting, pods: Sequence[PlayedPod], style: Style) -> Iterator[str]:
    if found.now:
        spots = [f"{each.node} ({_devices(each.devices)})" if each.devices else each.node for each in found.now]
        more = f" and {len(spots) - _MOST} more" if len(spots) > _MOST else ""
        now = style.painted("now", GREEN)
        yield f"  {now}: on {', '.join(spots[:_MOST])}{more}; {counted(found.at_once, 'such pod')} at the same time"
        return
    why = "" if found.why is None else f": {found.why.text}"
    yield f"  {style.painted('not now', RED)}{why}"
    for name, changes, verb in (("after pods end", found.ends, "end"), ("after moves", found.moves, "move")):
        if not changes:
            bound = "" if found.complete else " of those that were tried"
            yield f"  {name}: no set of up to 6 pods{bound} makes place"
            continue
        for each in changes[:_MOST]:
            yield f"  {name}: on {each.node}, {_change(each, pods, verb)}"
        if len(changes) > _MOST:
            yield f"  {name}: and on {len(changes) - _MOST} more nodes"


def _devices(names: Sequence[str]) -> str:
    """`devices 0-3, 8`, or names that have another form."""
    numbers = [each.removeprefix("neuron-device-") for each in names]
    if not all(each.isdecimal() for each in numbers):
        return ", ".join(names)
    return f"devices {', '.join(number_ranges(sorted(map(int, numbers))))}"


def _change(change: MadePlace, pods: Sequence[PlayedPod], verb: str) -> str:
    names = [str(pods[each]) for each in change.pods]
    if not change.to:
        return f"when {listed(names, 6)} {verb}{'s' if len(names) == 1 else ''}"
    moves = [f"{name} -> {to}" for name, to in zip(names, change.to, strict=True)]
    return f"by moving {', '.join(moves)}"


def as_json(answer: FitAnswer, origin: str, problems: Sequence[str]) -> str:
    """JSON for programs. Field names are stable."""
    denied = answer.denied
    document = {
        "problems": problems,
        "origin": origin,
        "subject": answer.subject,
        "devices": answer.devices,
        "fits": answer.fits,
        "templates": answer.templates,
        "denied": None if denied is None else {"code": denied.code, "message": denied.message, "fix": denied.fix},
        "notConverted": answer.why,
        "driver": _fitting(answer.claims, answer.pods),
        "plugin": _fitting(answer.plugin, answer.pods),
    }
    return json_text(document)


def _fitting(found: Fitting | None, pods: Sequence[PlayedPod]) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "now": [{"node": each.node, "devices": each.devices} for each in found.now],
        "atTheSameTime": found.at_once,
        "why": None if found.why is None else {"cause": str(found.why.cause), "reason": found.why.text},
        "afterEnd": [{"node": each.node, "pods": [str(pods[at]) for at in each.pods]} for each in found.ends],
        "afterMoves": [
            {
                "node": each.node,
                "moves": [{"pod": str(pods[at]), "to": to} for at, to in zip(each.pods, each.to, strict=True)],
            }
            for each in found.moves
        ],
        "complete": found.complete,
    }
