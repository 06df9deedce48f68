"""Plays the migration of one node group after the other, as docs/migrate.md does it. No I/O, no clock.

For each group: the namespaces of its pods are set to convert, if that does not make more of them wait; the nodes are
cordoned and drained, in waves that PodDisruptionBudgets allow; the plugin stops and the driver starts; pods that waited
are placed again. What a drain evicts is created again by its controller, through the decision of the webhook.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import structs
from pydantic import ValidationError

from commands.present import listed
from commands.rehearse.model import (
    DeviceFigures,
    Form,
    Group,
    Maker,
    Move,
    NodeShot,
    Play,
    PlayedPod,
    Reason,
    Step,
    WaitCause,
)
from commands.rehearse.played_nodes import DRIVER, PLUGIN, PlayedNode, PlayedNodes, got
from commands.report.model import Devices
from neuron.api.fields import mapping
from policies.judging.matching import selects
from policies.schema.base import LabelSelector
from runtime.text import counted

POD_DISRUPTION_BUDGET: Final = ("policy", "PodDisruptionBudget")
_FAILS: Final = Reason(
    WaitCause.UNKNOWN, "it has claims already and waits today", "neuron-dra explain pod/NAME says why."
)
NO_FIGURES: Final = DeviceFigures(0, 0, 0, 0, 0)
_STATIC: Final = Reason(WaitCause.UNKNOWN, "a static pod: its kubelet runs it on, and nothing converts it")


@dataclasses.dataclass(slots=True)
class DrainBudget:
    """A PodDisruptionBudget.

    Attributes:
        name: namespace and name.
        expected: pods that it counts, as its status says.
        members: pods of the rehearsal that it counts.
    """

    name: str
    spec: Mapping[str, object]
    selector: LabelSelector
    expected: int
    members: int = 0

    @property
    def most(self) -> int:
        """Pods that may be unavailable at one time."""
        expected = max(self.expected, self.members)
        unavailable, available = self.spec.get("maxUnavailable"), self.spec.get("minAvailable")
        if unavailable is not None:
            return _scaled(unavailable, expected)
        return max(0, expected - _scaled(available, expected)) if available is not None else expected


class DrainBudgets:
    """The PodDisruptionBudgets of all namespaces, as a drain meets them. Take them before pods.

    Source: pkg/controller/disruption of Kubernetes: percentages are rounded up, `expectedPods` counts the pods that the
    controllers want.
    """

    def __init__(self) -> None:
        self.found: Final[list[DrainBudget]] = []
        self._by_namespace: dict[str, list[int]] = {}

    def take(self, item: Mapping[str, object]) -> None:
        """A PodDisruptionBudget. One without a selector, or with one that cannot be read, is left out."""
        metadata, spec, status = (mapping(item.get(key)) for key in ("metadata", "spec", "status"))
        namespace, expected = str(metadata.get("namespace") or "default"), status.get("expectedPods")
        try:
            selector = LabelSelector.model_validate(spec.get("selector"))
        except ValidationError:
            return
        self._by_namespace.setdefault(namespace, []).append(len(self.found))
        wanted = expected if isinstance(expected, int) else 0
        self.found.append(DrainBudget(f"{namespace}/{metadata.get('name')}", spec, selector, wanted))

    def of(self, namespace: str, labels: Mapping[str, str]) -> tuple[int, ...]:
        """Indices of the budgets that count a pod."""
        found = tuple(
            number for number in self._by_namespace.get(namespace, ()) if selects(self.found[number].selector, labels)
        )
        for number in found:
            self.found[number].members += 1
        return found


def _scaled(value: object, of: int) -> int:
    """A number, or a percentage of the expected pods, rounded up; 0 for anything else."""
    text = str(value)
    if text.endswith("%") and text[:-1].isdecimal():
        return -(-int(text[:-1]) * of // 100)
    return int(text) if text.isdecimal() else 0


@dataclasses.dataclass(frozen=True, slots=True)
class RehearsalScene:
    """What a rehearsal starts from. Plays do not change it.

    Attributes:
        played: nodes; pods that run are counted on them.
        budgets: that `PlayedPod.budgets` point at.
        namespaces: in the order in which they are converted.
        converting: namespaces that may be converted; None: all.
        quotas: devices that a namespace may still claim, where a quota bounds them.
    """

    played: PlayedNodes
    pods: tuple[PlayedPod, ...]
    groups: tuple[Group, ...]
    budgets: Sequence[DrainBudget] = ()
    namespaces: tuple[str, ...] = ()
    converting: frozenset[str] | None = None
    quotas: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def shots(self) -> tuple[NodeShot, ...]:
        """The nodes before the first step."""
        return self.played.shots({number: pod.devices for number, pod in enumerate(self.pods)})


class Player:
    """One play. Its state is that after the last step."""

    def __init__(self, scene: RehearsalScene, *, shots: bool = False, brief: bool = False) -> None:
        """Prepare.

        Args:
            shots: whether steps have pictures of the nodes.
            brief: whether steps say only what moves and waits, without figures and the way back.
        """
        self._scene = scene
        self._pods = scene.pods
        self._shots = shots
        self._brief = brief
        self.played: Final = scene.played.copy()
        self.where: Final[dict[int, str]] = {number: pod.node for number, pod in enumerate(scene.pods) if pod.node}
        self.reasons: Final[dict[int, tuple[int, Reason]]] = {}
        """Pods that do not run, in the order in which they began to wait: number and reason, which steps share."""
        self.ended: Final[set[int]] = set()
        self.converted: Final = {number for number, pod in enumerate(scene.pods) if pod.converted}
        self._charged: Counter[str] = Counter()
        self._claimed: dict[int, int] = {}
        """Pods whose claims exist: what they are charged."""
        self._switched: set[str] = set()
        self._reserved: dict[int, str] = {}
        self._known: dict[Form, Reason] = {}
        """Why no node takes a form, since the last group began or ended to move."""
        self._groups = {group.name: group for group in scene.groups}
        self._together: defaultdict[str, list[int]] = defaultdict(list)
        self._on: defaultdict[str, set[int]] = defaultdict(set)
        for number, pod in enumerate(scene.pods):
            if pod.together:
                self._together[pod.together].append(number)
            if pod.node:
                self._on[pod.node].add(number)
        self._down: Counter[int] = Counter()
        """Pods of each budget that do not run."""
        for number, pod in enumerate(scene.pods):
            if not pod.node:
                self._wait(number, self._reason_of(number))

    def play(self, order: Sequence[str]) -> Play:
        """Move the groups in this order. Those whose drain does not end are tried again after the others."""
        steps: list[Step] = []
        left = list(order)
        while left:
            again: list[str] = []
            helped = False
            for name in left:
                step = self.move(self._groups[name])
                steps.append(step)
                helped = helped or bool(again and not step.stalled)
                again += [name] if step.stalled else []
            # A drain that did not end is tried again only if another group has moved since.
            left = again if helped else []
        return Play(tuple(order), tuple(steps))

    def figures(self) -> DeviceFigures:
        plugin, used = self.played.count(PLUGIN)
        driver, held = self.played.count(DRIVER)
        waiting = sum(self._pods[each].kind.plugin.devices for each in self.reasons)
        return DeviceFigures(plugin, used, driver, held, waiting)

    def devices_of(self, number: int) -> Devices | None:
        """The devices that a pod with claims has on its node; None if it has none, or they are not known."""
        node = self.played.nodes.get(self.where.get(number, ""))
        results = None if node is None else node.held.pods.get(number)
        return got(node.model, results) if node is not None and node.model is not None and results else None

    # --- one group ----------------------------------------------------------------------------------------------

    def move(self, group: Group) -> Step:
        """Move one group to the driver."""
        self._known.clear()
        self.played.close(group.nodes)
        here = sorted((number for name in group.nodes for number in self._on[name]), key=self._order)
        evicted = [each for each in here if self._pods[each].maker in (Maker.CONTROLLER, Maker.NOBODY)]
        ended = [each for each in evicted if self._pods[each].keeps]
        moves: dict[int, Move] = {}
        converts = self._convert([each for each in here if each not in set(ended)], moves)
        waves, stalled = self._drain([each for each in evicted if not self._pods[each].keeps], moves)
        if stalled:
            for name in group.nodes:
                self.played.nodes[name].reopen()
            self.played.opened(group.nodes)
            self._again(moves)
            return self._step(group, converts, waves, moves, (), here, stalled)
        for number in ended:
            self._leave(number)
            self.ended.add(number)
        daemons = [each for each in here if self._pods[each].maker is Maker.DAEMON_SET]
        for number in here:
            if self._pods[number].maker is Maker.KUBELET:
                self._leave(number)
                self._wait(number, _STATIC)
        for number in daemons:
            self._leave(number)
        for name in group.nodes:
            self.played.nodes[name].to_driver()
        self.played.opened(group.nodes)
        for number in daemons:
            origin = self._pods[number].node
            moves[number] = Move(number, origin, self._create(number), False, number in self.converted, 0)
        self._again(moves)
        converts += self._convert(self._idle(), moves)
        return self._step(group, converts, waves, moves, ended, here, "")

    def _step(
        self,
        group: Group,
        converts: tuple[str, ...],
        waves: int,
        moves: Mapping[int, Move],
        ended: Collection[int],
        here: Iterable[int],
        stalled: str,
    ) -> Step:
        by_hand = tuple(each for each in here if self._pods[each].maker in (Maker.NOBODY, Maker.DAEMON_SET))
        shots: tuple[NodeShot, ...] = ()
        if self._shots:
            known = {number: pod.devices for number, pod in enumerate(self._pods) if self.where.get(number) == pod.node}
            shots = self.played.shots(known)
        return Step(
            group.name,
            converts,
            waves,
            tuple(moves.values()),
            tuple(each for number, each in self.reasons.items() if self._pods[number].node),
            tuple(ended),
            by_hand,
            stalled,
            "" if stalled or self._brief else self._no_way_back(group),
            NO_FIGURES if self._brief else self.figures(),
            {} if self._brief else self.played.free(),
            shots,
        )

    def _order(self, number: int) -> tuple[str, str, str]:
        pod = self._pods[number]
        return self.where.get(number, ""), pod.namespace, pod.name

    # --- which namespaces convert -------------------------------------------------------------------------------

    def _convert(self, here: Iterable[int], moves: dict[int, Move]) -> tuple[str, ...]:
        """Set namespaces of the pods to convert: those that find place with the driver, or none with the plugin.

        In the report's order of namespaces, and each beside the ones before it.
        """
        members: defaultdict[str, list[int]] = defaultdict(list)
        for number in here:
            members[self._pods[number].kind.namespace].append(number)
        chosen: list[str] = []
        reserved: list[int] = []
        for namespace in self._scene.namespaces:
            pods = members.get(namespace, [])
            kinds = {self._pods[each].kind for each in pods}
            if not self._may_convert(namespace) or not any(each.claims or each.refused for each in kinds):
                continue
            refused = any(each.refused for each in kinds)
            fits = not refused and self._try(pods, reserved, converts=True)
            if not fits and self._try(pods, reserved, converts=False):
                continue
            chosen.append(namespace)
        for number in reserved:
            self.played.release(_shadow(number), self._reserved.pop(number))
        for namespace in chosen:
            self._switched.add(namespace)
            # Pods of it that wait are created again.
            for number in [each for each in self.reasons if self._pods[each].kind.namespace == namespace]:
                self._came(number, moves)
        return tuple(chosen)

    def _idle(self) -> list[int]:
        """Pods that wait in namespaces of which no pod runs: no drain of a group would convert these."""
        waiting = [each for each in self.reasons if self._may_convert(self._pods[each].kind.namespace)]
        running = {self._pods[each].kind.namespace for each in self.where} if waiting else set()
        return [each for each in waiting if self._pods[each].kind.namespace not in running]

    def _may_convert(self, namespace: str) -> bool:
        allowed = self._scene.converting
        return namespace not in self._switched and (allowed is None or namespace in allowed)

    def _try(self, pods: Iterable[int], reserved: list[int], *, converts: bool) -> bool:
        """Place pods beside where they run now. If all find place, it is reserved; else nothing is."""
        made: list[int] = []
        charge = 0
        for number in pods:
            kind = self._pods[number].kind
            form = (kind.claims or kind.plugin) if converts or kind.decided else kind.plugin
            charge += form.charge
            over = self._over_quota(kind.namespace, charge)
            name = "" if over else self.played.place(_shadow(number), form, kind.spread)
            if not name:
                for each in made:
                    self.played.release(_shadow(each), self._reserved.pop(each))
                return False
            self._reserved[number] = name
            made.append(number)
        reserved += made
        return True

    def _came(self, number: int, moves: dict[int, Move]) -> None:
        """Try a pod that waits again; it has a move if it finds place."""
        to = self._come(number)
        if to:
            moves[number] = Move(number, "", to, bool(self._pods[number].node), number in self.converted, 0)

    # --- a drain ------------------------------------------------------------------------------------------------

    def _drain(self, pods: Sequence[int], moves: dict[int, Move]) -> tuple[int, str]:
        """Evict pods in waves. Returns the number of waves, and why the drain does not end: empty if it does."""
        left, waves = list(pods), 0
        while left:
            waves += 1
            gone: Counter[int] = Counter()
            kept: list[int] = []
            for number in left:
                if number in moves:
                    continue  # It went with its group.
                budgets = self._pods[number].budgets
                if any(self._down[each] + gone[each] >= self._scene.budgets[each].most for each in budgets):
                    kept.append(number)
                    continue
                for each in self._with_it(number):
                    gone.update(self._pods[each].budgets)
                    origin = self.where[each]
                    self._leave(each)
                    to = self._create(each)
                    moves[each] = Move(each, origin, to, not to, each in self.converted, waves)
                # Those that wait count as down from now on; the others are ready before the next wave.
            if len(kept) == len(left):
                return waves, self._blocking(kept)
            left = kept
        return waves, ""

    def _with_it(self, number: int) -> list[int]:
        """A pod, and the running pods that its controller creates again with it."""
        together = self._pods[number].together
        if not together:
            return [number]
        others = (each for each in self._together[together] if each != number and each in self.where)
        return [number, *(each for each in others if not self._pods[each].converted)]

    def _blocking(self, kept: Sequence[int]) -> str:
        budgets = self._scene.budgets
        concerned = {each for number in kept for each in self._pods[number].budgets}
        exhausted = [budgets[each] for each in concerned if self._down[each] >= budgets[each].most]
        names = [each.name for each in exhausted]
        zero = any(each.most <= 0 for each in exhausted)
        why = "allows no eviction" if zero else "allows no more: pods that were evicted find no place"
        return f"PodDisruptionBudget {listed(names, 3)} {why}; {counted(len(kept), 'pod')} cannot be evicted"

    # --- one pod ------------------------------------------------------------------------------------------------

    def _leave(self, number: int) -> None:
        """A pod is deleted, and its claims with it."""
        name = self.where.pop(number)
        self.played.release(number, name)
        self._on[name].discard(number)
        self._uncharge(number)

    def _create(self, number: int) -> str:
        """A pod is created again: the name of its node, or empty if it waits, or is denied."""
        kind = self._pods[number].kind
        self._uncharge(number)
        converts = kind.decided or kind.namespace in self._switched
        if converts and kind.refused is not None:
            text = f"{kind.refused.code}: {kind.refused.message}"
            self._wait(number, Reason(WaitCause.DENIED, text, kind.refused.fix))
            return ""
        form = kind.claims if converts and kind.claims is not None else kind.plugin
        self.converted.discard(number)
        if form is kind.claims:
            self.converted.add(number)
            if self._over_quota(kind.namespace, form.charge):
                text = f"the ResourceQuota of {kind.namespace} allows no {counted(form.charge, 'more device')}"
                self._wait(number, Reason(WaitCause.QUOTA, text, "Raise it (docs/migrate.md, step 2)."))
                return ""
            self._claimed[number] = form.charge
            self._charged[kind.namespace] += form.charge
            if kind.waits is not None:
                self._wait(number, kind.waits)
                return ""
        name = self.played.place(number, form, kind.spread)
        if not name:
            self._wait(number, self._reason(form))
            return ""
        self.where[number] = name
        self._on[name].add(number)
        if self.reasons.pop(number, None) is not None:
            self._count(number, -1)
        return name

    def _come(self, number: int) -> str:
        """A pod that waits is tried, or created, again."""
        pod = self._pods[number]
        if (pod.converted and pod.kind.claims is None) or self.reasons[number][1] is _STATIC:
            return ""
        return self._create(number)

    def _again(self, moves: dict[int, Move]) -> None:
        """Try all that wait, in the order in which they began to."""
        self._known.clear()
        for number in list(self.reasons):
            known = moves.get(number)
            if known is None:
                self._came(number, moves)
            else:
                to = self._come(number)
                moves[number] = structs.replace(known, to=to, converted=number in self.converted)

    def _wait(self, number: int, reason: Reason) -> None:
        if number not in self.reasons:
            self._count(number, 1)
        elif self.reasons[number][1] == reason:
            return  # The steps before have the same pair.
        self.reasons[number] = number, reason

    def _count(self, number: int, change: int) -> None:
        for budget in self._pods[number].budgets:
            self._down[budget] += change

    def _reason_of(self, number: int) -> Reason:
        pod = self._pods[number]
        if not pod.converted:
            return self._reason(pod.kind.plugin)
        return _FAILS if pod.kind.claims is None else self._reason(pod.kind.claims)

    def _reason(self, form: Form) -> Reason:
        """Why no node takes a pod. Pods of one kind that are tried after each other get one answer."""
        if form not in self._known:
            self._known[form] = self.played.why(form)
        return self._known[form]

    def _over_quota(self, namespace: str, charge: int) -> bool:
        allowed = self._scene.quotas.get(namespace)
        return bool(charge) and allowed is not None and self._charged[namespace] + charge > allowed

    def _uncharge(self, number: int) -> None:
        charge = self._claimed.pop(number, 0)
        if charge:
            self._charged[self._pods[number].kind.namespace] -= charge

    # --- back ---------------------------------------------------------------------------------------------------

    def _no_way_back(self, group: Group) -> str:
        """Why the group cannot go back to the plugin with its pods; empty if it can."""
        pods = [number for name in group.nodes for number in self._on[name]]
        kept = [str(self._pods[each]) for each in pods if self._pods[each].keeps]
        if kept:
            return f"only after the end of {listed(kept, 3)}"
        start = self._scene.played
        played = start.part(_emptied(start.nodes[name]) for name in group.nodes)
        forms = sorted(((self._pods[each].kind.plugin, each) for each in pods), key=lambda each: -each[0].devices)
        short = sum(not played.place(each, form) for form, each in forms)
        return f"{counted(short, 'pod')} of it would find no place with the plugin" if short else ""


def _shadow(number: int) -> int:
    """The number under which a place is reserved for a pod that still runs elsewhere."""
    return -2 - number


def _emptied(node: PlayedNode) -> PlayedNode:
    """A node of the plugin without the pods of the rehearsal."""
    new = node.copy()
    for number in list(new.forms):
        new.remove(number)
    new.reopen()
    return new
