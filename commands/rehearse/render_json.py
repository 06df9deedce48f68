"""A rehearsal as JSON for programs. Field names are stable."""

from collections.abc import Iterable, Iterator

import msgspec
import orjson

from commands.rehearse import render_text as tables
from commands.rehearse.model import Reason, Rehearsal, Step


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
