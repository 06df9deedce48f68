"""docs/migrate.md, step by step: its own commands in its own order, and what comes of them, back-outs included.

Each test begins where the one before ended, so they run together or not at all.
"""

import json
from collections.abc import Iterator

import pytest

from tests.cluster import guide, versions
from tests.cluster.api import ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import (
    CONVERT,
    NEURON,
    container,
    events,
    is_converted,
    legacy_names,
    pod,
    unschedulable_message,
    wait_scheduled,
    workload,
)
from tests.cluster.migration import GUIDE, NAMESPACE, PLUGIN, Journey
from tests.cluster.processes import eventually

pytestmark = pytest.mark.in_order

OLD = f"requests.{NEURON}"
NEW = "neuron.aws.com.deviceclass.resource.k8s.io/devices"
FIRST, SECOND = "trn2-a", "trn2-b"
TEAMS = {"team-a": ("serve", 2, 4), "team-b": ("train", 1, 8)}
"""Namespace -> its Deployment, replicas, devices of each."""
OTHER_DRIVER = "From AWS's driver"
"""Has no commands to run as they stand: two drivers need a kubelet. Its test is `test_driver_other`."""
ONE_NAME = "On Kubernetes 1.36 and later: one name for both"


@pytest.fixture(scope="module")
def cluster(own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journey]:
    journey = Journey(own_control_plane, tmp_path_factory.mktemp("migration"))
    try:
        journey.start()
        populate(journey)
        yield journey
    finally:
        journey.stop()


@pytest.fixture
def journey(cluster: Journey) -> Iterator[Journey]:
    """The cluster where the step before left it; at no moment of a step has a node the device plugin and the driver."""
    yield cluster
    assert cluster.agents.problems == []


def populate(journey: Journey) -> None:
    """Two teams at work on the device plugin; one has a quota and a LimitRange."""
    api = journey.api
    eventually("the device plugin", lambda: [offers(journey, group) for group in (FIRST, SECOND)] == [16, 16])
    for namespace in (*TEAMS, "team-c"):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        journey.plane.wait_namespace_usable(namespace)
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "neuron"}}
    api.create({**quota, "spec": {"hard": {OLD: "8"}}}, "team-b")
    limits: Object = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "neuron"}}
    api.create({**limits, "spec": {"limits": [{"type": "Container", "max": {NEURON: "8"}}]}}, "team-b")
    for namespace, (name, replicas, devices) in TEAMS.items():
        strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
        manifest = workload("Deployment", name, pod("p", container(neuron=devices)))
        manifest["spec"] |= {"replicas": replicas, "strategy": strategy}
        api.create(manifest, namespace)
        settled(journey, namespace, converted=False)
    six = workload("Deployment", "six", pod("p", container(neuron=6)))
    api.create({**six, "spec": {**six["spec"], "replicas": 0}}, "team-c")


def has_one_name(journey: Journey) -> bool:
    """Whether the scheduler allocates devices for extended resources."""
    return not versions.lacks(journey.plane.assets.version, ("extended-resources",))


def installed_again(journey: Journey) -> None:
    """Install after the removal of everything: the first nodes have the driver."""
    journey.run("Step 1", "Do")
    journey.run("Step 3", "Do", 1, 2, group=FIRST)
    for namespace in TEAMS:
        assert set(settled(journey, namespace, converted=False)) == {SECOND}


def follows(journey: Journey, title: str) -> None:
    """Insist that the steps before were taken, in order."""
    titles = [each for each in journey.steps if each != OTHER_DRIVER and (each != ONE_NAME or has_one_name(journey))]
    assert journey.done == titles[: titles.index(title)], "run the whole file: each step begins where one ended"
    journey.done.append(title)


def offers(journey: Journey, group: str) -> int:
    """Devices that the device plugin offers on a group's node."""
    node = journey.api.get("Node", journey.nodes[group])
    return int(node["status"]["allocatable"].get(NEURON, 0))


def publishes(journey: Journey, group: str) -> int:
    """Devices that the driver publishes there."""
    slices = journey.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={journey.nodes[group]}")
    return sum(len(each["spec"]["devices"]) for each in slices)


def hands(journey: Journey) -> dict[str, tuple[int, int]]:
    """Group -> devices of plugin and driver."""
    return {group: (offers(journey, group), publishes(journey, group)) for group in (FIRST, SECOND)}


def settled(journey: Journey, namespace: str, *, converted: bool) -> list[str]:
    """Return the groups of the pods of a team's Deployment, once all run in that form and no others are left."""
    _, replicas, _ = TEAMS[namespace]
    groups = {node: group for group, node in journey.nodes.items()}

    def attempt() -> list[str] | None:
        pods = journey.api.list("Pod", namespace)
        forms = {is_converted(each) for each in pods}
        assert (len(pods), forms) == (replicas, {converted}), [each["metadata"]["name"] for each in pods]
        assert all(each["spec"].get("nodeName") for each in pods), [each["status"] for each in pods]
        return [groups[each["spec"]["nodeName"]] for each in pods]

    return eventually(f"the pods of {namespace}", attempt, timeout=60)


def used(journey: Journey, quota: str) -> str:
    status = journey.api.get("ResourceQuota", quota, "team-b").get("status", {})
    return str(status.get("used", {}).get(OLD if quota == "neuron" else NEW))


def counted(journey: Journey, old: str, new: str) -> None:
    """Wait until team-b's two quotas have counted so much."""

    def attempt() -> bool:
        assert (used(journey, "neuron"), used(journey, "neuron-dra")) == (old, new)
        return True

    eventually(f"quotas to have counted {old} and {new}", attempt)


def claim_refusals(journey: Journey, name: str) -> list[str]:
    """Why the claim of a pod in team-b cannot be made."""
    return events(journey.api, "team-b", name, "FailedResourceClaimCreation")


def untouched(journey: Journey) -> None:
    """The Deployments still ask for what they asked for."""
    for namespace, (name, _, devices) in TEAMS.items():
        spec = journey.api.get("Deployment", name, namespace)["spec"]["template"]["spec"]
        assert spec["containers"][0]["resources"] == {"limits": {NEURON: str(devices)}}
        assert "resourceClaims" not in spec


def create_error(journey: Journey, manifest: Object, namespace: str) -> str:
    """What a pod is refused with."""
    with pytest.raises(ApiError) as caught:
        journey.api.create(manifest, namespace, dry_run=True)
    return str(caught.value)


def shadowed(journey: Journey, name: str) -> list[Object]:
    """The webhook's log lines about a pod in shadow mode."""
    lines = journey.run("Step 1", "See", 1).stdout.splitlines()
    return [line for line in map(json.loads, lines) if line.get("name") == name]


ASKING = {CONVERT: "convert"}


# --- the steps ------------------------------------------------------------------------------------------------


def test_every_step_of_the_guide_has_its_test() -> None:
    steps = [f"test_{step.slug}" for step in guide.read(GUIDE) if step.title != OTHER_DRIVER]
    tests = [
        name for name in globals() if name.startswith("test_") and name != "test_every_step_of_the_guide_has_its_test"
    ]
    assert tests == steps
    assert all(set(step.parts) == {"Do", "See", "Back out"} for step in guide.read(GUIDE))


def test_before_you_begin(journey: Journey) -> None:
    follows(journey, "Before you begin")
    done = journey.run("Before you begin", "Do")
    assert "trn2.48xlarge" in done.stdout
    seen = journey.run("Before you begin", "See").stdout
    assert "device counts: NEU105, 1 workload: Deployment team-c/six" in seen
    assert "does not support requests for device: 6" in seen
    assert "quota: NEU204, 1 workload: Deployment team-b/train" in seen
    assert "LimitRange: NEU205, 1 workload: Deployment team-b/train" in seen
    assert "Order of migration" in seen


def test_step_1_install_in_shadow_mode(journey: Journey) -> None:
    follows(journey, "Step 1")
    journey.run("Step 1", "Do")
    journey.run("Step 1", "Back out")
    assert journey.api.find("MutatingWebhookConfiguration", "neuron-dra") is None
    journey.run("Step 1", "Do")
    seen = journey.run("Step 1", "See", 0).stdout
    assert seen.startswith("0 driver pods\nconverted: the pod would use ResourceClaimTemplate neuron-1-")
    watched = journey.api.create(pod("watched", container(neuron=6)), "team-c")
    assert legacy_names(watched.body)
    assert any("NEU208: shadow mode: this pod would be refused" in warning for warning in watched.warnings)
    [line] = eventually("the log to say so", lambda: shadowed(journey, "watched"))
    assert (line["decision"], line["reason"]) == ("shadowed", "would-be-denied")
    series = 'neuron_dra_conversions_total{outcome="shadowed",reason="would-be-denied"'
    assert series in journey.replica.metrics()
    journey.api.delete("Pod", "watched", "team-c", force=True)
    for namespace in TEAMS:
        assert settled(journey, namespace, converted=False)


def test_step_2_translate_quotas_and_limits(journey: Journey) -> None:
    follows(journey, "Step 2")
    journey.run("Step 2", "Do")
    counted(journey, "8", "0")
    journey.run("Step 2", "Back out")
    assert journey.api.find("ResourceQuota", "neuron-dra", "team-b") is None
    journey.run("Step 2", "Do")
    counted(journey, "8", "0")
    assert journey.run("Step 2", "See").stdout.count("devices:0") == 1
    # The LimitRange still bounds unconverted pods, and would refuse every converted one.
    assert "maximum aws.amazon.com/neuron usage per Container is 8, but limit is 16" in create_error(
        journey, pod("large", container(neuron=16)), "team-b"
    )
    small = pod("small", container(neuron=1), annotations=ASKING)
    assert "NEU205: LimitRange neuron has a min, max or ratio for a Neuron resource" in create_error(
        journey, small, "team-b"
    )
    # A quota with scopes takes the line, and will never count by it.
    scoped: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "scoped"}}
    journey.api.create({**scoped, "spec": {"hard": {NEW: "1"}, "scopes": ["NotTerminating"]}}, "team-b")


def test_step_3_move_the_first_node_group(journey: Journey) -> None:
    follows(journey, "Step 3")
    journey.run("Step 3", "Do", group=FIRST)
    eventually("the group to have changed hands", lambda: hands(journey) == {FIRST: (0, 16), SECOND: (16, 0)})
    assert settled(journey, "team-a", converted=False) == [SECOND] * 2
    journey.run("Step 3", "Back out", group=FIRST)
    eventually("the plugin to be back", lambda: hands(journey) == {FIRST: (16, 0), SECOND: (16, 0)})
    journey.run("Step 3", "Do", 1, 2, group=FIRST)
    eventually("the group to have changed hands", lambda: hands(journey) == {FIRST: (0, 16), SECOND: (16, 0)})
    seen = journey.run("Step 3", "See", 0).stdout
    status = journey.run("Step 3", "See", 1).stdout
    assert f"nodes with the device plugin only, where converted pods cannot run: {journey.nodes[SECOND]}" in status
    assert "offered by device plugin and DRA driver" not in status
    assert seen.count("neuron-device-15") == 1
    assert [line.split()[1:] for line in seen.splitlines() if line.startswith(journey.nodes[FIRST])][-1] == ["dra", "0"]
    for namespace in TEAMS:
        assert set(settled(journey, namespace, converted=False)) == {SECOND}


def test_step_4_convert_the_first_namespace(journey: Journey) -> None:
    follows(journey, "Step 4")
    journey.run("Step 4", "Do")
    for namespace in TEAMS:
        assert set(settled(journey, namespace, converted=True)) == {FIRST}
    counted(journey, "0", "8")
    assert used(journey, "scoped") == "0"
    journey.run("Step 4", "Back out", 0)
    for namespace in TEAMS:
        assert set(settled(journey, namespace, converted=False)) == {SECOND}
    counted(journey, "8", "0")
    assert "NEU205" in create_error(journey, pod("p", container(neuron=1), annotations=ASKING), "team-b")
    journey.run("Step 4", "Do")
    counted(journey, "0", "8")
    seen = journey.run("Step 4", "See").stdout
    assert seen.count(journey.nodes[FIRST]) == 2
    assert seen.count("allocated,reserved") == 2
    journey.run("Step 4", "Back out", 1)
    assert settled(journey, "team-a", converted=False) == [SECOND] * 2
    assert settled(journey, "team-b", converted=True) == [FIRST]
    # Beyond the new quota a pod is created and waits; beyond the policy it is refused.
    journey.api.create(pod("more", container(neuron=1)), "team-b")
    eventually("the quota to say so", lambda: "exceeded quota: neuron-dra" in " ".join(claim_refusals(journey, "more")))
    journey.api.delete("Pod", "more", "team-b", force=True)
    assert "the pod requests 16 Neuron devices; one pod in team-b may have 8" in create_error(
        journey, pod("large", container(neuron=16)), "team-b"
    )


def test_step_5_move_the_rest(journey: Journey) -> None:
    follows(journey, "Step 5")
    journey.run("Step 5", "Do")
    assert journey.run("Step 5", "See").stdout.count("team-a") == 2
    without = {"spec": {"template": {"metadata": {"annotations": {CONVERT: None}}}}}
    journey.api.merge("Deployment", "serve", without, "team-a")
    assert settled(journey, "team-a", converted=True) == [FIRST] * 2
    journey.run("Step 5", "Do")
    assert journey.run("Step 5", "See").stdout == "no pod needs the device plugin\n"
    journey.run("Step 3", "Do", 1, 2, group=SECOND)
    eventually("the last group to have changed hands", lambda: hands(journey) == {FIRST: (0, 16), SECOND: (0, 16)})
    assert journey.plane.kubectl().within("kube-system").get("pods", f"--selector=name={PLUGIN}")["items"] == []
    untouched(journey)


def test_step_6_make_conversion_the_default(journey: Journey) -> None:
    follows(journey, "Step 6")
    journey.run("Step 6", "Do")
    journey.run("Step 6", "Back out")
    late = journey.api.create(pod("late", container(neuron=1)), "team-c").body
    assert not is_converted(late)
    assert unschedulable_message(journey.api, "team-c", "late", f"Insufficient {NEURON}")
    assert settled(journey, "team-b", converted=True)
    journey.api.delete("Pod", "late", "team-c", force=True)
    journey.run("Step 6", "Do")
    seen = journey.run("Step 6", "See").stdout
    assert "pod/try condition met" in seen
    [row] = [line.split() for line in seen.splitlines() if line.startswith("try ")]
    assert row[-1] == "true"
    entry = journey.api.get("MutatingWebhookConfiguration", "neuron-dra")["webhooks"][0]
    assert entry["failurePolicy"] == "Fail"


def test_step_7_clean_up(journey: Journey) -> None:
    follows(journey, "Step 7")
    journey.run("Step 7", "Do")
    seen = journey.run("Step 7", "See").stdout
    assert seen.count(" dra ") == 2
    assert f"{NEW}:8" in seen
    assert settled(journey, "team-b", converted=True)
    # All the way back, in the guide's order.
    journey.run("Step 7", "Back out")
    assert hands(journey) == {FIRST: (0, 16), SECOND: (0, 16)}
    journey.run("Step 6", "Back out")
    journey.run("Step 3", "Back out", group=SECOND)
    eventually("the plugin to be back", lambda: hands(journey) == {FIRST: (0, 16), SECOND: (16, 0)})
    journey.run("Step 4", "Back out", 0)
    for namespace in TEAMS:
        assert set(settled(journey, namespace, converted=False)) == {SECOND}
    counted(journey, "8", "0")
    journey.run("Step 3", "Back out", group=FIRST)
    eventually("the plugin to be back", lambda: hands(journey) == {FIRST: (16, 0), SECOND: (16, 0)})
    journey.run("Step 2", "Back out")
    journey.run("Step 1", "Back out")
    untouched(journey)
    left = journey.plane.kubectl().within(NAMESPACE).get("all", "--selector=app.kubernetes.io/name=neuron-dra")
    assert left["items"] == []


@pytest.mark.needs("extended-resources")
def test_on_kubernetes_1_36_and_later_one_name_for_both(journey: Journey) -> None:
    follows(journey, ONE_NAME)
    installed_again(journey)
    journey.run(ONE_NAME, "Do")
    assert journey.run(ONE_NAME, "See").stdout == f"{NEURON}\n"
    # The plugin's nodes are full: only the scheduler's own claim places this one.
    unconverted = journey.api.create(pod("unconverted", container(neuron=4)), "team-c").body
    assert legacy_names(unconverted)
    bound = wait_scheduled(journey.api, "team-c", "unconverted")
    assert bound["spec"]["nodeName"] == journey.nodes[FIRST]
    assert "extendedResourceClaimStatus" in bound["status"]
    # team-b's old quota is used up by the pod that is there, and now counts claims of converted pods, too.
    journey.api.delete("LimitRange", "neuron", "team-b")
    converted = journey.api.create(pod("converted", container(neuron=1), annotations=ASKING), "team-b")
    assert is_converted(converted.body)
    assert not any("NEU204" in warning for warning in converted.warnings)
    over = f"exceeded quota: neuron, requested: {OLD}=1, used: {OLD}=8"
    eventually("the old quota to count it", lambda: over in " ".join(claim_refusals(journey, "converted")))
    journey.api.delete("Pod", "converted", "team-b", force=True)
    journey.run(ONE_NAME, "Back out")
    late = journey.api.create(pod("late", container(neuron=4)), "team-c").body
    assert unschedulable_message(journey.api, "team-c", late["metadata"]["name"], f"Insufficient {NEURON}")
    for name in ("unconverted", "late"):
        journey.api.delete("Pod", name, "team-c", force=True)
