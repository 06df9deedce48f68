"""Where one more pod fits: now, after the fewest pods end, after the fewest pods move; as text and JSON. Pure.

Moves are a list for people: a pod that is moved is deleted, and its controller creates it again elsewhere.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import orjson

from commands.present import listed
from commands.rehearse.gather import Gathering, GatheringSettings
from commands.rehearse.model import Form, Maker, PlayedPod, Reason
from commands.rehearse.play import RehearsalScene
from commands.rehearse.played_nodes import PLUGIN, PlayedNode, PlayedNodes
from commands.report.inventory import Found, Root
from conversion.objects import pods as pod_views
from neuron import names
from neuron.api.nodes import REQUIRED
from neuron.findings import Finding
from runtime.answers import identity
from runtime.console import BOLD, GREEN, RED, Style, json_text, printable, wrapped
from runtime.text import counted, number_ranges

MOST_TRIES: Final = 60_000
"""Sets of pods that are looked at before the search for a larger set ends."""
_LARGEST: Final = 6
"""Pods of a set at most."""
_MOST_PODS: Final = 1_000
"""Equal pods that are counted."""
_MOST_NAMED: Final = 6
"""Nodes that text names for each answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spot:
    """A node, and the devices that the pod would get there; none for the device plugin."""

    node: str
    devices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MadePlace:
    """A node that has place after a change.

    Attributes:
        pods: numbers of the pods that end or move.
        to: where each of them goes; empty if they end.
    """

    node: str
    pods: tuple[int, ...]
    to: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Fitting:
    """The answers for one form of the pod.

    Attributes:
        now: nodes with place.
        at_once: how many such pods fit at the same time, at most 1,000.
        ends: nodes with place after the fewest pods end; empty if it fits now, or no set was found.
        moves: the same after the fewest pods move.
        why: why it does not fit now; None if it does.
        complete: whether all sets of up to 6 pods were looked at.
    """

    now: tuple[Spot, ...]
    at_once: int
    ends: tuple[MadePlace, ...] = ()
    moves: tuple[MadePlace, ...] = ()
    why: Reason | None = None
    complete: bool = True


class NothingToFitError(Exception):
    """No object of the files has pods that request Neuron devices."""


@dataclasses.dataclass(frozen=True, slots=True)
class FitAnswer:
    """Where one more pod fits.

    Attributes:
        subject: the object.
        more: number of other objects of the files with pods, which are not fitted.
        devices: whole devices that it requests.
        templates: of its claims.
        denied: why it is denied once it is converted; None if it is not.
        why: why it is not converted; empty if it is.
        claims: with the driver; None if it gets no claims.
        plugin: with the device plugin; None if no node has it.
        pods: of the cluster.
    """

    subject: str
    more: int
    devices: int
    templates: tuple[str, ...]
    denied: Finding | None
    why: str
    claims: Fitting | None
    plugin: Fitting | None
    pods: Sequence[PlayedPod]

    @property
    def fits(self) -> bool:
        """Whether it fits somewhere now."""
        return any(each is not None and each.now for each in (self.claims, self.plugin))


def types_of(settings: GatheringSettings, kind: str) -> tuple[str, ...]:
    """The instance types of a type or family; empty if there is none of that name."""
    return tuple(each.name for each in settings.catalogue if kind in (each.name, each.family))


def pod_of(count: int, types: Iterable[str], namespace: str) -> Found:
    """A pod that requests devices, of some instance types or of any."""
    values = [name for each in types for name in (each, f"{names.SAGEMAKER_PREFIX}{each}")]
    spec: dict[str, object] = {
        "containers": [{"name": "main", "image": "main", "resources": {"limits": {names.RESOURCE_NEURON: str(count)}}}]
    }
    if values:
        term = {"matchExpressions": [{"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": values}]}
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}
    metadata = {"name": f"fit-{count}", "namespace": namespace}
    return Found("", "v1", "Pod", orjson.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))


def fits(gathered: Gathering, candidates: Iterable[Found]) -> FitAnswer:
    """Where the pods of the first candidate that requests devices fit. Objects that exist in a cluster are passed over.

    Raises:
        NothingToFitError: there is none.
    """
    found = [
        (assessment, kinds)
        for each in candidates
        if pod_views.may_concern_us(each.raw)
        if not identity(each.raw).uid
        if (assessment := gathered.assess(Root(each, None, ""))) is not None
        if (kinds := gathered.kinds(assessment))
    ]
    if not found:
        raise NothingToFitError("the files have no pod or workload that requests Neuron devices and is to be created")
    assessment, [kind, *_] = found[0]
    scene = gathered.scene(manifests=False)
    has_plugin = any(each.side == PLUGIN for each in scene.played.nodes.values())
    return FitAnswer(
        str(assessment.workload.ref),
        len(found) - 1,
        kind.plugin.devices,
        assessment.workload.templates,
        kind.refused,
        kind.why,
        None if kind.claims is None else _fit(scene, kind.claims),
        _fit(scene, kind.plugin) if has_plugin and kind.plugin.plugin else None,
        scene.pods,
    )


def _fit(scene: RehearsalScene, form: Form) -> Fitting:
    played = scene.played.copy()
    now = tuple(
        Spot(name, tuple(each.device for each in found))
        for name, node in sorted(played.nodes.items())
        if (found := played.would_fit(node, form)) is not None
    )
    if now:
        places = (played.place(len(scene.pods) + each, form) for each in range(_MOST_PODS))
        return Fitting(now, sum(1 for _ in itertools.takewhile(bool, places)))
    search = _FewestPods(played, scene.pods, form)
    return Fitting((), 0, search.first(moving=False), search.first(moving=True), played.why(form), search.complete)


class _FewestPods:
    def __init__(self, played: PlayedNodes, pods: tuple[PlayedPod, ...], form: Form) -> None:
        self._played = played
        self._pods = pods
        self._form = form
        self._tries = 0
        self.complete = True

    def first(self, *, moving: bool) -> tuple[MadePlace, ...]:
        """The changes with the fewest pods: of each node the one that takes the fewest devices."""
        self._tries = 0
        nodes = [node for _, node in sorted(self._played.nodes.items()) if self._played.may_serve(node, self._form)]
        for size in range(1, _LARGEST + 1):
            found = [change for node in nodes if (change := self._on(node, size, moving=moving)) is not None]
            if found:
                return tuple(found)
            if self._tries > MOST_TRIES:
                self.complete = False
                break
        return ()

    def _on(self, node: PlayedNode, size: int, *, moving: bool) -> MadePlace | None:
        candidates = [each for each in node.forms if 0 <= each < len(self._pods)]
        if moving:
            pods = self._pods
            candidates = [each for each in candidates if pods[each].maker is Maker.CONTROLLER and not pods[each].keeps]
        candidates.sort(key=lambda each: (node.forms[each].devices, each))
        for chosen in itertools.combinations(candidates, size):
            self._tries += 1
            if self._tries > MOST_TRIES:
                return None
            trial = node.copy()
            for each in chosen:
                trial.remove(each)
            if self._played.would_fit(trial, self._form) is None:
                continue
            to = self._elsewhere(node, chosen) if moving else ()
            if to is not None:
                return MadePlace(node.node.name, chosen, to)
        return None

    def _elsewhere(self, node: PlayedNode, pods: tuple[int, ...]) -> tuple[str, ...] | None:
        """Where pods go that leave a node for others; None if one finds no place."""
        was, node.open = node.open, False
        shadows: list[tuple[int, str]] = []
        for each in pods:
            name = self._played.place(-2 - each, node.forms[each])
            if not name:
                break
            shadows.append((-2 - each, name))
        for shadow, name in shadows:
            self._played.release(shadow, name)
        node.open = was
        self._played.opened([node.node.name])
        return tuple(name for _, name in shadows) if len(shadows) == len(pods) else None


# --- text and JSON ----------------------------------------------------------------------------------------------


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
        more = f" and {len(spots) - _MOST_NAMED} more" if len(spots) > _MOST_NAMED else ""
        at_once = counted(found.at_once, "such pod")
        yield f"  {style.painted('now', GREEN)}: on {', '.join(spots[:_MOST_NAMED])}{more}; {at_once} at the same time"
        return
    why = "" if found.why is None else f": {found.why.text}"
    yield f"  {style.painted('not now', RED)}{why}"
    for name, changes in (("after pods end", found.ends), ("after moves", found.moves)):
        if not changes:
            bound = "" if found.complete else " of those that were tried"
            yield f"  {name}: no set of up to 6 pods{bound} makes place"
            continue
        for each in changes[:_MOST_NAMED]:
            yield f"  {name}: on {each.node}, {_change(each, pods)}"
        if len(changes) > _MOST_NAMED:
            yield f"  {name}: and on {len(changes) - _MOST_NAMED} more nodes"


def _devices(devices: Sequence[str]) -> str:
    """`devices 0-3, 8`, or names that have another form."""
    numbers = [each.removeprefix("neuron-device-") for each in devices]
    if not all(each.isdecimal() for each in numbers):
        return ", ".join(devices)
    return f"devices {', '.join(number_ranges(sorted(map(int, numbers))))}"


def _change(change: MadePlace, pods: Sequence[PlayedPod]) -> str:
    told = [str(pods[each]) for each in change.pods]
    if not change.to:
        return f"when {listed(told, _LARGEST)} end{'s' if len(told) == 1 else ''}"
    return f"by moving {', '.join(f'{name} -> {to}' for name, to in zip(told, change.to, strict=True))}"


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
        "now": found.now,
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
