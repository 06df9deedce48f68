"""Random clusters whose migration is rehearsed, and then done on the real control plane, step by step.

Scheduler, controllers, evictions and PodDisruptionBudgets are real, and so is the webhook. Nodes, the device plugin and
the driver are objects: the plugin's node offers allocatable devices, the driver's node the slices of the driver.
"""

import dataclasses
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kubeletplugin.publish.slices import ClusterFeatures
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import CONVERT, CONVERTED, NEURON, container, is_converted, pod, workload
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook
from tests.support.emulated import EmulatedCluster

GROUP: Final = "eks.amazonaws.com/nodegroup"
_TYPES: Final = {"trn1.32xlarge": 16, "trn2.48xlarge": 16, "inf2.48xlarge": 12}
_BINARY: Final = Path(sys.executable).parent / "neuron-dra"
_STILL: Final = 14.0
"""Seconds without a change after which a state counts as settled: the scheduler tries a pod again within 10."""
_CALM: Final = 1.5
"""Seconds for which an expected state has to last."""
_TOO_MANY: Final = 429


@dataclasses.dataclass(slots=True)
class Score:
    """What was compared: after each step, how many pods of each workload run, and how many of them are converted."""

    clusters: int = 0
    steps: int = 0
    pods: int = 0
    right: int = 0
    waiting: int = 0
    misses: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.clusters} clusters, {self.steps} steps: {self.right} of {self.pods} pods as rehearsed"
            f" ({self.waiting} of them did not run), {len(self.misses)} misses"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Workload:
    namespace: str
    name: str
    replicas: int

    def __str__(self) -> str:
        return f"Deployment {self.namespace}/{self.name}"


class Rehearsed:
    """Makes one random cluster after the other in two namespaces."""

    def __init__(self, plane: ControlPlane, webhook: Webhook, fleet: Fleet, namespaces: Sequence[str]) -> None:
        self._plane = plane
        self._api: Api = plane.admin
        self._webhook = webhook
        self._fleet = fleet
        self._namespaces = namespaces
        version = str(self._api.request("GET", "/version").body["gitVersion"])
        new = int(version.split(".")[1]) >= 36
        self._features = ClusterFeatures() if new else ClusterFeatures(False, False, False)

    def play(self, seeds: Sequence[int]) -> Score:
        """Rehearse and migrate a cluster for each seed."""
        score = Score()
        for seed in seeds:
            try:
                self._one(seed, score)
            finally:
                self._clear()
        return score

    def _one(self, seed: int, score: Score) -> None:
        chance = random.Random(seed)  # noqa: S311 - a test
        for namespace in self._namespaces:
            self._mode(namespace, "shadow")
        nodes = self._nodes(chance)
        workloads = self._workloads(chance, nodes)
        self._settle(None, workloads)
        found = self._rehearse()
        expected = _states(found)
        score.clusters += 1
        for number, step in enumerate(found["steps"]):
            group = step["group"].partition("=")[2]
            self._move(step, nodes[group])
            actual = self._settle(expected[number], workloads)
            score.steps += 1
            for each in workloads:
                told, seen = expected[number].get(str(each), (0, 0)), actual[str(each)]
                missed = max(abs(told[0] - seen[0]), abs(told[1] - seen[1]))
                score.pods += each.replicas
                score.right += each.replicas - missed
                score.waiting += each.replicas - seen[0]
                if missed:
                    score.misses.append(
                        f"seed {seed}, step {number + 1} ({group}), {each}: rehearsed {told[0]} running and {told[1]}"
                        f" converted, there are {seen[0]} and {seen[1]} of {each.replicas}"
                    )

    # --- the cluster --------------------------------------------------------------------------------------------

    def _nodes(self, chance: random.Random) -> dict[str, list[tuple[str, str]]]:
        """Three to eight nodes of the plugin in two or three groups: name and type, by group."""
        made: dict[str, list[tuple[str, str]]] = {}
        count = chance.randint(3, 8)
        groups = [f"group-{letter}" for letter in "abc"[: chance.randint(2, 3)]]
        types = {group: chance.choice(list(_TYPES)) for group in groups}
        for number in range(count):
            group = groups[number % len(groups)]
            name = self._fleet.add(types[group], labels={GROUP: group}, publish=False)
            self._offer(name, _TYPES[types[group]])
            made.setdefault(group, []).append((name, types[group]))
        return made

    def _offer(self, node: str, devices: int) -> None:
        amounts = {NEURON: str(devices)}
        status = {"capacity": {NEURON: str(devices)} if devices else {}, "allocatable": amounts}
        self._api.merge("Node", node, {"status": status}, subresource="status")

    def _workloads(self, chance: random.Random, nodes: Mapping[str, Sequence[tuple[str, str]]]) -> list[_Workload]:
        """Deployments for one half to all of the devices; of some counts that conversion denies."""
        types = sorted({kind for members in nodes.values() for _, kind in members})
        free = Counter(dict.fromkeys(types, 0))
        for members in nodes.values():
            for _, kind in members:
                free[kind] += _TYPES[kind]
        made = []
        for number in range(chance.randint(2, 6)):
            kind = chance.choice(types)
            counts = [1, 2, 4, 6, 12] if kind.startswith("inf2") else [1, 4, 4, 8, 8, 16, 6]
            count, replicas = chance.choice(counts), chance.randint(1, 4)
            if free[kind] < count * replicas:
                continue
            free[kind] -= count * replicas
            each = _Workload(chance.choice(self._namespaces), f"w{number}", replicas)
            labels = {"app": each.name}
            annotations = {CONVERT: "off"} if chance.random() < 0.1 else {}
            template = pod(
                each.name,
                container(neuron=count),
                labels=labels,
                annotations=annotations,
                nodeSelector={"node.kubernetes.io/instance-type": kind},
                terminationGracePeriodSeconds=0,
            )
            body = workload("Deployment", each.name, template, replicas=replicas)
            self._api.create(body, each.namespace)
            made.append(each)
            if chance.random() < 0.4:
                budget = {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": each.name},
                    "spec": {"maxUnavailable": chance.choice([1, "50%"]), "selector": {"matchLabels": labels}},
                }
                self._api.create(budget, each.namespace)
        return made

    def _rehearse(self) -> Any:
        argv = [str(_BINARY), "rehearse", f"--kubeconfig={self._plane.admin_kubeconfig}", "-o", "json"]
        argv += [part for each in self._namespaces for part in ("-n", each)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, 1), done.stderr + done.stdout
        return json.loads(done.stdout)

    # --- the migration ------------------------------------------------------------------------------------------

    def _move(self, step: Mapping[str, Any], nodes: Sequence[tuple[str, str]]) -> None:
        for namespace in step["converts"]:
            self._mode(namespace, "convert")
            for each in self._api.list("Pod", namespace):
                if not each["spec"].get("nodeName"):
                    self._api.delete("Pod", each["metadata"]["name"], namespace, force=True)
        names = [name for name, _ in nodes]
        for name in names:
            self._api.merge("Node", name, {"spec": {"unschedulable": True}})
        if self._drain(names):
            for name, kind in nodes:
                self._offer(name, 0)
                self._publish(name, kind)
        for name in names:
            self._api.merge("Node", name, {"spec": {"unschedulable": None}})

    def _drain(self, nodes: Sequence[str]) -> bool:
        """Evict all pods; whether that ended."""
        began = time.monotonic()
        while True:
            left = [each for each in self._pods() if each["spec"].get("nodeName") in nodes]
            left.sort(
                key=lambda each: (each["spec"]["nodeName"], each["metadata"]["namespace"], each["metadata"]["name"])
            )
            if not left:
                return True
            for each in left:
                name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
                body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
                try:
                    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
                    self._api.request("POST", path, json=body)
                    began = time.monotonic()
                except ApiError as error:
                    if error.code not in (_TOO_MANY, 404):
                        raise
            self._tend()
            if time.monotonic() - began > _STILL:
                return False
            time.sleep(0.3)

    def _publish(self, name: str, kind: str) -> None:
        made = EmulatedCluster()
        made.node(name, kind, features=self._features)
        for each in made.slices:
            self._fleet.put({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **each})

    def _mode(self, namespace: str, mode: str) -> None:
        self._api.merge("Namespace", namespace, {"metadata": {"annotations": {CONVERT: mode}}})

        def known() -> bool:
            seen = self._webhook.preview(pod("canary", container(neuron=1)), namespace).body
            return is_converted(seen) == (mode == "convert")

        eventually(f"the webhook to know that {namespace} is in mode {mode}", known)

    # --- what there is ------------------------------------------------------------------------------------------

    def _pods(self) -> list[Object]:
        return [each for namespace in self._namespaces for each in self._api.list("Pod", namespace)]

    def _tend(self) -> list[Object]:
        """As kubelets: bound pods become ready. Returns the pods."""
        found = self._pods()
        for each in found:
            ready = each.get("status", {}).get("phase") == "Running"
            if each["spec"].get("nodeName") and not ready and "deletionTimestamp" not in each["metadata"]:
                kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
                status = {"phase": "Running", "conditions": [{"type": kind, "status": "True"} for kind in kinds]}
                metadata = each["metadata"]
                try:
                    self._api.merge("Pod", metadata["name"], {"status": status}, metadata["namespace"], "status")
                except ApiError as error:
                    if error.code != 404:
                        raise
        return found

    def _settle(
        self, expected: Mapping[str, tuple[int, int]] | None, workloads: Sequence[_Workload]
    ) -> dict[str, tuple[int, int]]:
        """The state that lasts: the expected one, or another one in which nothing has changed for long."""
        last: object = None
        since = time.monotonic()
        while True:
            seen = self._state(workloads)
            now = time.monotonic()
            if seen != last:
                last, since = seen, now
            as_told = expected is not None and all(seen[each] == expected.get(each, (0, 0)) for each in seen)
            all_run = expected is None and all(seen[str(each)][0] == each.replicas for each in workloads)
            if now - since > (_CALM if as_told or all_run else _STILL):
                return seen
            time.sleep(0.3)

    def _state(self, workloads: Sequence[_Workload]) -> dict[str, tuple[int, int]]:
        running: Counter[tuple[str, str]] = Counter()
        converted: Counter[tuple[str, str]] = Counter()
        for each in self._tend():
            metadata = each["metadata"]
            if each["spec"].get("nodeName") and "deletionTimestamp" not in metadata:
                key = metadata["namespace"], metadata["labels"]["app"]
                running[key] += 1
                converted[key] += metadata["labels"].get(CONVERTED) == "true"
        keys = {str(each): (each.namespace, each.name) for each in workloads}
        return {name: (running[key], converted[key]) for name, key in keys.items()}

    def _clear(self) -> None:
        for namespace in self._namespaces:
            for kind in ("PodDisruptionBudget", "Deployment", "ReplicaSet"):
                self._api.delete_all(kind, namespace)
            self._api.delete_all("Pod", namespace, force=True)
            for kind in ("ResourceClaim", "ResourceClaimTemplate"):
                self._api.delete_all(kind, namespace)
        eventually("the pods to go", self._gone)
        self._fleet.clear()

    def _gone(self) -> bool:
        for each in self._pods():
            self._api.delete("Pod", each["metadata"]["name"], each["metadata"]["namespace"], force=True)
        return not self._pods()


def _states(found: Mapping[str, Any]) -> list[dict[str, tuple[int, int]]]:
    """Running and converted pods of each workload after each step of a rehearsal."""
    pods = found["pods"]
    running = {number for number, each in enumerate(pods) if each["node"]}
    converted: set[int] = set()
    made = []
    for step in found["steps"]:
        for move in step["moves"]:
            running = running | {move["pod"]} if move["to"] else running - {move["pod"]}
            converted = converted | {move["pod"]} if move["to"] and move["converted"] else converted - {move["pod"]}
        gone = {each["pod"] for each in step["waiting"]} | set(step["endFirst"])
        running, converted = running - gone, converted - gone
        told: dict[str, tuple[int, int]] = {}
        for number, each in enumerate(pods):
            one = told.get(each["workload"], (0, 0))
            told[each["workload"]] = one[0] + (number in running), one[1] + (number in converted)
        made.append(told)
    return made
