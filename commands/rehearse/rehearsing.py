"""A gathered cluster to a whole rehearsal. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import orjson

from commands.rehearse.fitting import Fitting, fit
from commands.rehearse.gather import Gathering, GatheringSettings
from commands.rehearse.model import Group, PlayedPod, Rehearsal
from commands.rehearse.play import Player
from commands.rehearse.played_nodes import PLUGIN
from commands.rehearse.search import Plays, Told, best_order, needed_spares, with_spares
from commands.report.build import Heading
from commands.report.inventory import Found, Root
from commands.report.model import NO_DEVICES, Devices, Fate, Reference, Workload, topics
from conversion.objects import pods
from neuron import names
from neuron.api.node_selection import REQUIRED
from neuron.findings import Finding
from neuron.hardware.instances import Catalogue
from runtime.raw_objects import identity

MOST_SHOTS = 20_000
"""Nodes in the pictures of all steps together; with more, there are none."""


@dataclasses.dataclass(frozen=True, slots=True)
class RehearsalChoice:
    """What the user chose to play.

    Attributes:
        spares: spare nodes by instance type.
        order: names of groups; empty: the best order is searched.
        pictures: whether steps have pictures of the nodes.
    """

    spares: Mapping[str, int] = dataclasses.field(default_factory=dict)
    order: tuple[str, ...] = ()
    pictures: bool = False


class UnknownGroupError(Exception):
    """A group of `--order` does not exist; the message has the name, and those that do."""


def rehearse(
    gathered: Gathering,
    choice: RehearsalChoice,
    heading: Heading,
    problems: Iterable[str] = (),
    step: Told = lambda: None,
) -> Rehearsal:
    """Play the migration.

    Args:
        step: is called after each group that is played.

    Raises:
        UnknownGroupError: `choice.order` names a group that does not exist.
        NoSuchTypeError: a spare node has a type that is not in the catalogue.
    """
    bare = gathered.scene()
    scene = with_spares(bare, choice.spares, gathered.spare)
    plays = Plays(step)
    best, others, every = best_order(scene, _order(choice.order, scene.groups), plays)
    spares = needed_spares(scene, best, choice.spares, gathered.spare, plays)
    pictures = choice.pictures and len(scene.played.nodes) * (len(best.steps) + 1) <= MOST_SHOTS
    player, start = Player(scene, shots=pictures), Player(scene)
    best = player.play(best.order)
    return Rehearsal(
        heading.origin,
        heading.made,
        heading.version,
        scene.groups,
        scene.pods,
        start.figures(),
        best,
        others,
        every,
        spares,
        tuple(each for each in topics(_one_each(gathered.told())) if not each.blocks),
        tuple(_sizes(scene.pods, player)),
        gathered.unknown(scene),
        tuple(problems),
        scene.shots() if pictures else (),
        tuple(
            (number, reason, player.reasons[number][1] if number in player.reasons else None)
            for number, reason in start.reasons.values()
        ),
        gathered.assumed,
    )


def _order(chosen: tuple[str, ...], groups: Iterable[Group]) -> tuple[str, ...]:
    """The order by full names; groups that the user left out come last, by name."""
    known = {group.name: group.name for group in groups}
    short = {name.partition("=")[2]: name for name in known}
    found = []
    for each in chosen:
        name = known.get(each) or short.get(each)
        if name is None:
            raise UnknownGroupError(f"there is no node group {each!r}: the groups are {', '.join(known) or 'none'}")
        found.append(name)
    return tuple(dict.fromkeys([*found, *known])) if chosen else ()


def _one_each(workloads: Iterable[Workload]) -> list[Workload]:
    return [each for each in workloads if each.fate in (Fate.CONVERTS, Fate.REFUSED)]


def _sizes(played: Iterable[PlayedPod], player: Player) -> Iterable[tuple[Reference, str, str]]:
    """Workloads whose devices differ after conversion: cores become devices, for example."""
    found: dict[Reference, tuple[Devices, Devices]] = {}
    for number, pod in enumerate(played):
        kind = pod.kind
        if kind.after is not None and not pod.converted:
            before, after = found.get(kind.workload, (NO_DEVICES, NO_DEVICES))
            found[kind.workload] = before + kind.before, after + (player.devices_of(number) or kind.after)
    return ((ref, str(before), str(after)) for ref, (before, after) in found.items() if before != after)


# --- fit --------------------------------------------------------------------------------------------------------


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
    catalogue = settings.policies.catalogue if settings.policies else Catalogue()
    return tuple(each.name for each in catalogue if kind in (each.name, each.family))


def pod_of(count: int, types: Iterable[str], namespace: str) -> Found:
    """A pod that requests devices, of some instance types or of any."""
    values = [name for each in types for name in (each, f"{names.SAGEMAKER_PREFIX}{each}")]
    spec: dict[str, object] = {
        "containers": [{"name": "main", "image": "main", "resources": {"limits": {names.RESOURCE_NEURON: str(count)}}}]
    }
    if values:
        term = {"matchExpressions": [{"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": values}]}
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"fit-{count}", "namespace": namespace},
        "spec": spec,
    }
    return Found("", "v1", "Pod", orjson.dumps(body))


def fits(gathered: Gathering, candidates: Iterable[Found]) -> FitAnswer:
    """Where the pods of the first candidate that requests devices fit. Objects that exist in a cluster are passed over.

    Raises:
        NothingToFitError: there is none.
    """
    found = [
        (assessment, kinds)
        for each in candidates
        if pods.may_concern_us(each.raw)
        if not identity(each.raw).uid
        if (assessment := gathered.assess(Root(each, None, ""))) is not None
        if (kinds := gathered.kinds(assessment))
    ]
    if not found:
        raise NothingToFitError("the files have no pod or workload that requests Neuron devices and is to be created")
    assessment, kinds = found[0]
    kind = kinds[0]
    scene = gathered.scene(manifests=False)
    has_plugin = any(each.side == PLUGIN for each in scene.played.nodes.values())
    return FitAnswer(
        str(assessment.workload.ref),
        len(found) - 1,
        kind.plugin.devices,
        assessment.workload.templates,
        kind.refused,
        kind.why,
        None if kind.claims is None else fit(scene, kind.claims),
        fit(scene, kind.plugin) if has_plugin and kind.plugin.plugin else None,
        scene.pods,
    )
