"""The state of a rehearsal: nodes, and what pods hold of them. Places pods as the scheduler would.

Judged are node selection, taints, CPU, memory, storage and the number of pods, resources of the device plugin, and
devices by the allocator's model. Of the nodes that can take a pod, the one with the best score takes it: fewest pods of
the same workload, the earliest alternatives of its claims, least CPU and memory requested. Of equal ones the first by
name takes it, where the scheduler chooses at random.

Source of the scores: pkg/scheduler/framework/plugins of Kubernetes 1.34 to 1.36: podtopologyspread (system defaults,
weight 2), dynamicresources (weight 2; 1 in 1.35, none before), noderesources (LeastAllocated, weight 1). A score of 100
is 1 here. How much one more pod of a workload weighs depends on the number of nodes; 1 is the middle.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from msgspec import structs

from commands.devices.node_devices import (
    DeviceModel,
    Held,
    Results,
    requirement_text,
    taint_text,
    unmet_selection,
    untolerated,
)
from commands.rehearse.model import Form, FreePlace, NodeShot, Reason, WaitCause
from commands.report.model import NO_DEVICES, Devices, Reference
from conversion.claims.containers import BASIC_RESOURCES
from neuron import names
from neuron.allocator.search import AllocatorClaim
from neuron.api.nodes import UNSCHEDULABLE, Node, required_terms
from neuron.quantities import amount_of
from runtime.text import named

PLUGIN: Final = "plugin"
DRIVER: Final = "driver"
SCORED: Final = {"cpu": 100, "memory": 200 * 2**20}
"""Resources that the scheduler compares nodes by, and what it counts for a pod that requests none of one."""
DRIVER_LABEL: Final = {"neuron.aws.com/driver": "dra"}
"""Of nodes with the driver (docs/migrate.md)."""
_PODS: Final = "pods"
_POD: Final = 1e-6
"""What one more pod adds to a node's score: of nodes with equal requests, the one with fewer pods comes first."""
_MOST_COMPARED: Final = 16
"""Nodes that are compared for one pod: the scheduler, too, compares a part of them in large clusters."""


def got(model: DeviceModel, results: Results) -> Devices:
    """Whole devices of a pod, and cores of those that it shares."""
    found = NO_DEVICES
    whole = {each.name: each.capacity for each in model.hardware.devices}
    for each in results:
        cores, all_cores = each.consumed.get(names.CAPACITY_CORES), whole[each.device].get(names.CAPACITY_CORES)
        if cores and all_cores is not None and cores < all_cores.value:
            found += Devices(cores=cores)
        else:
            found += Devices(model.count if each.device in model.whole else 1)
    return found


class PlayedNode:
    """A node, and what pods hold of it.

    Attributes:
        node: with labels and taints as they are now.
        side: `plugin`, `driver`, or empty for neither.
        open: whether it takes new pods.
        offers: amounts of the device plugin by legacy resource, while it has the node.
        model: its devices, once it has the driver; None if they are not known.
        held: what claims hold of its devices: those of pods of the rehearsal, and others.
        load: of CPU and memory, as the scheduler compares nodes.
        near: pods by the workload that the scheduler spreads.
    """

    def __init__(
        self,
        node: Node,
        instance_type: str,
        *,
        group: str = "",
        side: str = "",
        after: DeviceModel | None = None,
        fixed: Results = (),
        used: Mapping[str, int] | None = None,
    ) -> None:
        """Set up a node.

        Args:
            after: its devices once it has the driver.
            used: what pods request that are no part of the rehearsal, as `Form.amounts`.
        """
        self.node = node
        self.instance_type = instance_type
        self.group = group
        self.side = side
        self.open = node.ready and not node.cordoned
        self.offers = dict(node.legacy)
        self.model = after if side == DRIVER else None
        self.after = after
        stated = (*BASIC_RESOURCES, _PODS)
        self.limits = amounts_of({key: node.allocatable[key] for key in stated if key in node.allocatable})
        self.used: Counter[str] = Counter(used or {})
        self.plugin_used: Counter[str] = Counter()
        self.held = Held(fixed)
        self.forms: dict[int, Form] = {}
        self.spread: dict[int, Reference] = {}
        self.near: Counter[Reference] = Counter()
        self.load = 0.0
        self._scores = [(f"scored-{name}", self.limits[name]) for name in SCORED if self.limits.get(name)]
        self._weigh()

    def copy(self) -> "PlayedNode":
        """An independent copy."""
        new = object.__new__(PlayedNode)
        new.__dict__.update(self.__dict__)
        new.used, new.plugin_used = Counter(self.used), Counter(self.plugin_used)
        new.held, new.forms = self.held.copy(), dict(self.forms)
        new.spread, new.near = dict(self.spread), Counter(self.near)
        return new

    def add(self, pod: int, form: Form, results: Results, spread: Reference | None = None) -> None:
        """Count a pod. `results`: its devices; empty for a pod of the plugin."""
        self.forms[pod] = form
        if spread is not None:
            self.spread[pod] = spread
            self.near[spread] += 1
        if form.claim is None:
            self.plugin_used.update(form.plugin)
        else:
            self.held.add(pod, results)
        for resource, amount in form.amounts.items():
            self.used[resource] += amount
        self._weigh()

    def remove(self, pod: int) -> None:
        """Forget a pod."""
        form = self.forms.pop(pod)
        self.held.remove(pod)
        if pod in self.spread:
            self.near[self.spread.pop(pod)] -= 1
        if form.claim is None:
            self.plugin_used.subtract(form.plugin)
        for resource, amount in form.amounts.items():
            self.used[resource] -= amount
        self._weigh()

    def lacks(self, form: Form) -> list[str]:
        """Resources of which too little is free. A resource that the Node does not state is not judged."""
        limits = self.limits
        return [
            resource
            for resource, amount in form.amounts.items()
            if resource in limits and amount and self.used[resource] + amount > limits[resource]
        ]

    def to_driver(self) -> None:
        """From now on the driver has the node, and it takes pods."""
        self.side, self.model = DRIVER, self.after
        self.plugin_used.clear()
        self._open(DRIVER_LABEL)

    def reopen(self) -> None:
        """Uncordon it: it keeps the plugin."""
        self._open({})

    def _open(self, labels: Mapping[str, str]) -> None:
        taints = tuple(each for each in self.node.taints if each.key != UNSCHEDULABLE)
        self.node = structs.replace(
            self.node,
            taints=taints,
            cordoned=False,
            labels={**self.node.labels, **labels} if labels else self.node.labels,
        )
        self.open = self.node.ready

    def _weigh(self) -> None:
        total = 0.0
        for name, limit in self._scores:
            total += self.used[name] / limit
        self.load = round(total / max(1, len(self._scores)), 9) + self.used[_PODS] * _POD


def amounts_of(requests: Mapping[str, object]) -> dict[str, int]:
    """Amounts of a pod or node as whole numbers: CPU in thousandths, the rest in units."""
    found = {}
    for resource, amount in requests.items():
        number = amount if isinstance(amount, Decimal) else amount_of(amount)
        found[resource] = int(number * 1000) if resource == "cpu" else int(number)
    return found


def with_scores(amounts: Mapping[str, int]) -> dict[str, int]:
    """The amounts of a pod with what the scheduler compares nodes by."""
    scores = {f"scored-{name}": amounts.get(name) or default for name, default in SCORED.items()}
    return {**amounts, **scores, _PODS: 1}


class PlacementRules:
    """Whether a pod may run on a node by selection and taints. Answers are remembered by the labels that count."""

    def __init__(self) -> None:
        self._keys: dict[Form, tuple[tuple[str, ...], bool]] = {}
        self._answers: dict[object, WaitCause | None] = {}

    def forbids(self, form: Form, node: Node) -> WaitCause | None:
        """The cause for which the pod may not run there."""
        keys, by_name = self._keys.get(form) or self._read(form)
        labels = node.labels
        seen = tuple([labels.get(key) for key in keys])
        answer = (form, seen, node.taints, node.name if by_name else "")
        if answer not in self._answers:
            found: WaitCause | None = None
            if unmet_selection(form.pod, node):
                found = WaitCause.SELECTION
            elif untolerated(form.pod, node):
                found = WaitCause.TAINT
            self._answers[answer] = found
        return self._answers[answer]

    def _read(self, form: Form) -> tuple[tuple[str, ...], bool]:
        spec = form.pod.get("spec") or {}
        terms = required_terms(spec.get("affinity")) or ()
        keys = {*(spec.get("nodeSelector") or {})}
        keys |= {str(each.get("key")) for term in terms for each in term.get("matchExpressions") or ()}
        by_name = any(term.get("matchFields") for term in terms)
        self._keys[form] = found = tuple(sorted(keys)), by_name
        return found


class PlayedNodes:
    """All Neuron nodes of a rehearsal.

    Attributes:
        nodes: by name.
        tries: nodes on which a place was looked for: the work that was done.
    """

    def __init__(self, nodes: Iterable[PlayedNode], rules: PlacementRules | None = None) -> None:
        self.nodes: Final = {each.node.name: each for each in nodes}
        self.tries = 0
        self._rules = rules or PlacementRules()
        self._queues: dict[Form, tuple[list[tuple[float, str]], int]] = {}
        """By form: its nodes by load; how much of `_changed` it has seen."""
        self._changed: list[str] = []
        """Nodes that got free place, or were opened."""

    def copy(self) -> "PlayedNodes":
        """An independent copy."""
        return PlayedNodes([each.copy() for each in self.nodes.values()], self._rules)

    def part(self, nodes: Iterable[PlayedNode]) -> "PlayedNodes":
        """Some of the nodes, or copies of them, under the same rules."""
        return PlayedNodes(nodes, self._rules)

    # --- changes ------------------------------------------------------------------------------------------------

    def place(self, pod: int, form: Form, spread: Reference | None = None) -> str:
        """Place a pod; the name of the node, or empty if none can take it. `spread`: `PodKind.spread`."""
        queue = self._queue(form)
        compared: list[tuple[float, str]] = []
        best: tuple[float, PlayedNode, Results] | None = None
        while queue and len(compared) < _MOST_COMPARED:
            load, name = queue[0]
            node = self.nodes[name]
            if best is not None and load >= best[0]:
                break
            if _serves(node, form) and load != node.load:
                heapq.heapreplace(queue, (node.load, name))
                continue
            heapq.heappop(queue)
            if not _serves(node, form):
                continue
            cost = load + node.near[spread] if spread is not None else load
            if best is None or cost < best[0]:
                self.tries += 1
                results = self._fits(node, form)
                if results is None:
                    continue  # It comes back when something there is released.
                if form.claim is not None and node.model is not None:
                    cost += node.model.later(form.claim, results)
                if best is None or cost < best[0]:
                    best = cost, node, results
            compared.append((load, name))
        for each in compared:
            heapq.heappush(queue, each)
        if best is None:
            return ""
        best[1].add(pod, form, best[2], spread)
        return best[1].node.name

    def release(self, pod: int, name: str) -> None:
        """Take a pod off its node."""
        self.nodes[name].remove(pod)
        self._changed.append(name)

    def close(self, names_: Iterable[str]) -> None:
        for name in names_:
            self.nodes[name].open = False

    def opened(self, names_: Iterable[str]) -> None:
        """Nodes that were opened, or changed sides."""
        self._changed += names_

    def _queue(self, form: Form) -> list[tuple[float, str]]:
        queue, seen = self._queues.get(form, ([], -1))
        for name in self.nodes if seen < 0 else dict.fromkeys(self._changed[seen:]):
            node = self.nodes[name]
            if self.may_serve(node, form):
                heapq.heappush(queue, (node.load, name))
        self._queues[form] = queue, len(self._changed)
        return queue

    def _fits(self, node: PlayedNode, form: Form) -> Results | None:
        if node.lacks(form):
            return None
        if form.claim is not None:
            return None if node.model is None else node.model.allocate(node.held, form.claim)
        used = node.plugin_used
        short = any(used[each] + amount > node.offers.get(each, 0) for each, amount in form.plugin.items())
        return None if short else ()

    def may_serve(self, node: PlayedNode, form: Form) -> bool:
        """Whether a node would take a pod, if nothing else ran there."""
        return _serves(node, form) and self._rules.forbids(form, node.node) is None

    def would_fit(self, node: PlayedNode, form: Form) -> Results | None:
        """The devices that a pod would get on a node, which may be a copy; None if it does not fit."""
        return self._fits(node, form) if self.may_serve(node, form) else None

    # --- questions ----------------------------------------------------------------------------------------------

    def why(self, form: Form) -> Reason:
        """Why no node takes a pod now."""
        blocked: dict[WaitCause, str] = {}
        best: tuple[int, PlayedNode] | None = None
        lacking: list[str] = []
        elsewhere = False
        for node in self.nodes.values():
            forbidden = self._rules.forbids(form, node.node)
            if forbidden is not None:
                blocked.setdefault(forbidden, node.node.name)
                continue
            if not _serves(node, form):
                elsewhere = True
                continue
            if short := node.lacks(form):
                lacking = lacking or short
                continue
            free = self._free(node, form)
            # A node whose devices are not known is the answer only if there is no other.
            if best is None or free > best[0] or best[1].model is None:
                best = free, node
        if best is not None:
            return self._short(form, *best)
        if lacking:
            return Reason(WaitCause.RESOURCES, f"not enough {' and '.join(map(named, lacking))} free on its nodes")
        if elsewhere:
            return _NO_DRIVER if form.claim is not None else _NO_PLUGIN
        return self._forbidden(form, blocked)

    def _forbidden(self, form: Form, blocked: Mapping[WaitCause, str]) -> Reason:
        if WaitCause.TAINT in blocked:
            node = self.nodes[blocked[WaitCause.TAINT]].node
            taints = ", ".join(map(taint_text, untolerated(form.pod, node)))
            text = f"it does not tolerate the taint {taints} of {named(node.name)}"
            return Reason(WaitCause.TAINT, text, "Add a toleration, or remove the taint.")
        name = blocked.get(WaitCause.SELECTION)
        if name is None:
            return Reason(WaitCause.SELECTION, "the cluster has no Neuron node")
        unmet = unmet_selection(form.pod, self.nodes[name].node)
        text = f"no Neuron node meets its node selection: {', '.join(map(requirement_text, unmet))}"
        return Reason(WaitCause.SELECTION, text, "Label a node, or change the node selection.")

    def _free(self, node: PlayedNode, form: Form) -> int:
        if form.claim is not None:
            return 0 if node.model is None else len(node.model.free(node.held))
        return min((node.offers.get(each, 0) - node.plugin_used[each] for each in form.plugin), default=0)

    def _short(self, form: Form, free: int, node: PlayedNode) -> Reason:
        name = named(node.node.name)
        if form.claim is not None and node.model is None:
            text = f"what {name} publishes is not known: its type {named(node.instance_type)} is not in the catalogue"
            return Reason(WaitCause.UNKNOWN, text, "Describe the type in an InstanceTypeCatalog (docs/policies.md).")
        if form.claim is not None and node.model is not None:
            loose = AllocatorClaim(form.claim.requests)
            if node.model.allocate(node.held, loose) is not None:
                size = node.model.largest(node.held)
                text = f"{free} devices of {name} are free, at most {size} of them connected; it needs {form.devices}"
                return Reason(WaitCause.RUN, text, "Free connected devices: `neuron-dra fit` names the pods to move.")
        if form.claim is None:
            wanted = ", ".join(f"{amount} of {resource}" for resource, amount in form.plugin.items())
            return Reason(WaitCause.COUNT, f"at most {max(free, 0)} are free on one node ({name}); it needs {wanted}")
        need = f"it needs {form.devices}" if form.devices else "it needs a share of one"
        if free <= 0:
            return Reason(WaitCause.COUNT, f"no device is free on nodes with the driver that it may run on; {need}")
        return Reason(WaitCause.COUNT, f"at most {free} devices are free on one node ({name}); {need}")

    def free(self) -> dict[str, FreePlace]:
        """What is free on open nodes with the driver, by instance type."""
        found: dict[str, FreePlace] = {}
        for name, node in self.nodes.items():
            if node.side != DRIVER or not node.open or node.model is None:
                continue
            devices, size = node.model.free(node.held), node.model.largest(node.held)
            known = found.get(node.instance_type, FreePlace(0, 0, ""))
            best = (size, name) if size > known.connected else (known.connected, known.node)
            found[node.instance_type] = FreePlace(known.devices + len(devices), *best)
        return dict(sorted(found.items()))

    def count(self, side: str) -> tuple[int, int]:
        """Devices of all nodes of a side, and how many of them are held."""
        total = used = 0
        for node in self.nodes.values():
            if node.side != side:
                continue
            if side == PLUGIN:
                total += node.node.legacy_devices
                used += sum(form.devices for form in node.forms.values())
            elif node.model is not None:
                total += node.model.count
                used += node.model.count - len(node.model.free(node.held))
        return total, used

    def shots(self, places: Mapping[int, Sequence[int] | None]) -> tuple[NodeShot, ...]:
        """The nodes for a picture. `places`: devices of the plugin's pods that are known, by number of the pod."""
        return tuple(_shot(node, places) for _, node in sorted(self.nodes.items()))


_NO_DRIVER: Final = Reason(WaitCause.NO_DRIVER, "no node with the driver that it may run on takes pods yet")
_NO_PLUGIN: Final = Reason(
    WaitCause.NO_PLUGIN,
    "no node with the device plugin that it may run on is left",
    "Convert it, or keep a node group on the plugin.",
)


def _serves(node: PlayedNode, form: Form) -> bool:
    return node.open and node.side == (PLUGIN if form.claim is None else DRIVER)


def _shot(node: PlayedNode, places: Mapping[int, Sequence[int] | None]) -> NodeShot:
    held: dict[int, list[int]] = {}
    if node.side == DRIVER and node.model is not None:
        count = node.model.count
        for pod, results in ((-1, node.held.fixed), *node.held.pods.items()):
            for each in results:
                at = node.model.index.get(each.device)
                for index in range(count) if at is None else [at]:
                    held.setdefault(index, []).append(pod)
    else:
        count = node.node.legacy_devices
        assumed: list[tuple[int, int]] = []
        for pod, form in node.forms.items():
            known = places.get(pod)
            if known is None or len(known) != form.devices:
                assumed.append((pod, form.devices))
            else:
                for index in known:
                    held.setdefault(index, []).append(pod)
        left = iter([index for index in range(count) if index not in held])
        for pod, devices in assumed:
            for index in itertools.islice(left, devices):
                held.setdefault(index, []).append(pod)
    fixed = {index: tuple(pods) for index, pods in sorted(held.items())}
    return NodeShot(node.node.name, node.group, node.instance_type, node.side, count, fixed)
