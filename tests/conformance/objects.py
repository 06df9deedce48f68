"""Objects as both programs and the chart write them, by what they come from."""

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from cluster.kinds.replicas import ReplicaStatus, lease_body
from conversion.objects.kinds import pod_templates
from kubeletplugin.api_store import from_v1
from kubeletplugin.discover.health import DeviceHealth, HealthSnapshot, HealthStatus, NodeFacts
from kubeletplugin.discover.own_node import NodeState
from kubeletplugin.node_events import device_plugin, node_event
from kubeletplugin.prepare import claim_status
from kubeletplugin.publish.slices import ClusterFeatures
from kubeletplugin.settings import Guard
from policies.files.loader import load
from policies.judging.export import NotExportableError, to_vap
from tests.conformance.schemas import Object
from tests.deploy.charts import AUDIT, EVERYTHING, ROOT, render
from tests.kubeletplugin.fakes import NODE
from tests.support.emulated import SICK, EmulatedCluster, hardware
from webhook.cluster.events import RefusalSeries, event_body

TIME: Final = dt.datetime(2026, 11, 22, 9, 0, tzinfo=dt.UTC)
MUTATED: Final = sorted(path.parent for path in (ROOT / "tests/golden/mutate").glob("*/object.json"))
"""Folders of the golden cases of `/mutate`."""
CONVERTED: Final = sorted(
    [*(ROOT / "tests/golden/convert").glob("*/expected.yaml"), *(ROOT / "deploy/examples").glob("*/*.yaml")]
)
"""Files that `neuron-dra convert` wrote, and the examples as their readers apply them."""
CHARTS: Final[dict[str, Object]] = {
    "default": {},
    "everything": EVERYTHING,
    "secret": {"certificates": {"mode": "secret"}},
    "audit": AUDIT,
}
FEATURES: Final = {
    "all": ClusterFeatures(),
    "one-slice": ClusterFeatures(separate_counters=False),
    "none": ClusterFeatures(counters=False, separate_counters=False, shares=False),
}
"""What clusters of 1.36, of 1.34 with the gates, and of 1.34 support."""


def sent(case: Path) -> Object:
    """The object of a golden case as it arrives."""
    read: Object = json.loads((case / "review.json").read_text())["request"]["object"]
    return read


def mutated(case: Path) -> list[Object]:
    """The object of a golden case as the patch leaves it, and the templates that are created for it."""
    return [json.loads((case / "object.json").read_text()), *json.loads((case / "templates.json").read_text())]


def objects_of(path: Path) -> list[Object]:
    """The objects of a file, without policies, which no API server sees."""
    found = [each for each in yaml.load_all(path.read_text(), yaml.CSafeLoader) if each]
    flat = [item for each in found for item in each.get("items", [each])]
    objects = [each for each in flat if {"apiVersion", "kind"} <= each.keys()]
    return [each for each in objects if not each["apiVersion"].startswith("policy.neuron.aws.com/")]


def templates_of(obj: Object) -> Iterator[Object]:
    """The pod templates of a workload of any kind that conversion knows."""
    group = obj["apiVersion"].rpartition("/")[0]
    return (template for _, template in pod_templates(obj, group, obj["kind"]))


def chart(name: str) -> list[Object]:
    """All objects of the chart for some values."""
    return render(CHARTS[name])


def slices(features: ClusterFeatures, version: str) -> list[Object]:
    """The slices of an UltraServer node with a sick device and of a ring with shared cores."""
    cluster = EmulatedCluster()
    cluster.node("node-0", "trn2u.48xlarge", taints={0: SICK}, features=features)
    cluster.node("node-1", "inf1.6xlarge", features=features)
    return [from_v1({"kind": "ResourceSlice", **each}, version) for each in cluster.slices]


EXPORTABLE: Final = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: device-mounts}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
  variables:
  - name: mounted
    expression: object.spec.?volumes.orValue([]).filter(v, has(v.hostPath) && v.hostPath.path.startsWith('/dev/neuron'))
  validations:
  - expression: size(variables.mounted) == 0
    messageExpression: "'volume ' + variables.mounted[0].name + ' mounts a device'"
    reason: Forbidden
  validationActions: [Deny, Audit]
  severity: high
"""
"""A policy without parameters of its own, which only the webhook gives to a policy."""


def policies() -> list[Object]:
    """The shipped policies as `neuron-dra policy export` writes them, where the API server can evaluate them."""
    files = {path.name: path.read_bytes() for path in (ROOT / "policies/packs").glob("*.yaml")}
    files["plain.yaml"] = EXPORTABLE.encode()
    found: list[Object] = []
    for rule in load(files, run_tests=False).validating:
        try:
            found += to_vap(rule)
        except NotExportableError:
            continue
    return found


def small() -> list[Object]:
    """Events, and the Lease of a replica."""
    regarding = ("ReplicaSet", "train-5d8f", "apps/v1", "00000000-0000-4000-8000-000000000001")
    refusal = RefusalSeries("team-a", regarding, "NEU201: 7 devices")
    state = NodeState(NodeFacts(NODE, "node-uid"), {"aws.amazon.com/neuron": 16})
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "webhook-1", "uid": "u"}
    return [
        event_body(refusal, "a", "webhook-1", TIME, 1),
        event_body(refusal, "b", "webhook-1", TIME, 7),
        *(node_event(state.facts, device_plugin(state, guard), TIME.timestamp()) for guard in Guard),
        lease_body("webhook-1", ReplicaStatus(), TIME, reference),
        lease_body("webhook-1", ReplicaStatus(), TIME, None),
    ]


def claim_status_entry() -> Object:
    """An entry of `status.devices` of a ResourceClaim, about a sick device."""
    found = hardware("trn2.48xlarge")
    health = DeviceHealth("neuron-device-0", HealthStatus.UNHEALTHY, "hbm-ecc", "An uncorrected error.")
    conditions = claim_status.conditions(health.device, NODE, HealthSnapshot(found, None, (health,)))
    return {
        "driver": "neuron.aws.com",
        "pool": NODE,
        "device": health.device,
        "conditions": claim_status.with_times(conditions, (), "2026-11-22T09:00:00Z"),
    }
