"""Exported MutatingAdmissionPolicies on the API server, compared with our conversion on the golden pods."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import jsonpatch
import pytest
import yaml
from click.testing import CliRunner

from commands.cli.main import main
from conversion.claims.templates import digest
from conversion.patches.decision import Decision, Outcome
from neuron.hardware.instances import Catalogue, Observation
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import claim_of, container, pod, scheduled_devices, template_names, wait_scheduled
from tests.cluster.nodes import INSTANCE_TYPE, Fleet
from tests.cluster.processes import eventually
from tests.support import golden
from tests.support.clusters import FakeCluster, mutator, request

pytestmark = pytest.mark.needs("mutating-policies")

WORLDS = {
    "one-type": ("trn2.48xlarge",),
    "two-types": ("trn1.32xlarge", "trn2.48xlarge"),
    "windows": ("inf2.48xlarge", "trn1.32xlarge"),
}
"""Instance types of a cluster."""
_ALWAYS = {
    "efa-trn1-eight-interfaces",
    "efa-trn1-sixteen-refused",
    "efa-worker-sixteen",
    "efa-worker-sixteen-1-36",
    "mapped-template",
    "mapped-template-differs",
    "mapped-template-missing",
    "mpi-worker",
    "mpi-worker-1-36",
    "nothing-known-one-device",
    "served-in-tree",
    "single-device",
    "whole-trn2-node",
    "whole-trn2-node-1-36",
}
_GROUPS = _ALWAYS | {
    "efa-four-devices",
    "efa-no-class",
    "four-connected",
    "hint-policy-off",
    "hint-policy-priority",
    "hint-policy-priority-own",
    "inf2-and-trn1-four",
    "mapped-template-inline",
    "nodes-of-hyperpod",
    "nothing-known-four-devices",
    "quota-and-limit-range",
    "shadow",
    "unknown-fields-survive",
}
COVERED = {"one-type": _GROUPS, "two-types": _GROUPS, "windows": _ALWAYS | {"nodes-say-inf2", "whole-ring-node"}}
"""The golden pods that policies convert."""
TOLERATES = {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"}
MORE: dict[str, Object] = {
    "alias": pod("alias", container(neurondevice=4)),
    "selected": pod("selected", container(neuron=4), nodeSelector={INSTANCE_TYPE: "trn2.48xlarge"}),
    "second-container": pod("second", container("proxy"), container(neuron=8, cpu="2")),
    "tolerant": pod("tolerant", container(neuron=1), tolerations=[TOLERATES]),
    "tolerates-all": pod("tolerates-all", container(neuron=1), tolerations=[{"operator": "Exists"}]),
    "legacy-scheduler": pod("legacy", container(neuron=1), schedulerName="my-scheduler"),
    "pod-affinity": pod("affine", container(neuron=1), affinity={"podAffinity": {}}),
    "labels": pod("labelled", container(neuron=1), annotations={"a/b": "c"}),
}
"""Pods that policies convert in every cluster with trn2.48xlarge."""
LEFT: dict[str, Object] = {
    "other-type": pod("other", container(neuron=4), nodeSelector={INSTANCE_TYPE: "trn3.48xlarge"}),
    "other-key": pod("zone", container(neuron=4), nodeSelector={"instanceType": "inferentia-inf2"}),
    "count": pod("seven", container(neuron=7)),
    "cores": pod("cores", container(neuroncore=4)),
    "init": pod("init", container(neuron=4), initContainers=[container("warm", neuron=1)]),
    "setting": pod("setting", container(neuron=4), annotations={"neuron.aws.com/logical-neuron-core": "1"}),
    "off": pod("off", container(neuron=4), annotations={"neuron.aws.com/convert": "false"}),
}


def exported(types: tuple[str, ...], namespace: str) -> list[Object]:
    arguments = [argument for name in types for argument in ("--instance-type", name)]
    result = CliRunner().invoke(main, ["policy", "export", "--to", "map", *arguments, "-n", namespace])
    assert result.exit_code in (0, 1), result.output
    return list(yaml.safe_load_all(result.stdout))


@pytest.fixture(scope="module")
def unbound(api: Api, control_plane: ControlPlane) -> str:
    """A namespace that no policy is bound to."""
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "test-map-unbound"}})
    control_plane.wait_namespace_usable("test-map-unbound")
    return "test-map-unbound"


@pytest.fixture
def world(request: pytest.FixtureRequest, api: Api, namespace: str) -> Iterator[str]:
    """What is exported for a cluster, in force for the test's namespace."""
    objects = exported(WORLDS[request.param], namespace)
    try:
        for each in objects:
            api.create(each, each["metadata"].get("namespace", ""))
        for count in {int(name.split("-")[1]) for name in names_of(objects)}:
            wait_in_force(api, namespace, count, WORLDS[request.param])
        yield request.param
    finally:
        for each in objects:
            api.delete(each["kind"], each["metadata"]["name"], each["metadata"].get("namespace", ""))


def wait_in_force(api: Api, namespace: str, count: int, types: tuple[str, ...]) -> None:
    """Return when a policy converts pods of a count: those that select no node, or one of the types."""
    selectors = [{}, *({"nodeSelector": {INSTANCE_TYPE: each}} for each in types)]
    probes = [pod("probe", container(neuron=count), **each) for each in selectors]
    eventually(
        f"the policy for {count} devices to be in force",
        lambda: any(template_names(admitted(api, namespace, each)) for each in probes),
    )


def names_of(objects: list[Object]) -> list[str]:
    return [each["metadata"]["name"] for each in objects if each["kind"] == "MutatingAdmissionPolicy"]


def admitted(api: Api, namespace: str, manifest: Object) -> Object:
    """A pod as the API server would store it, without what differs between two requests."""
    made = json.loads(json.dumps(manifest))
    made["metadata"] = {**made["metadata"], "name": "case", "namespace": namespace}
    # The volume of a service account's token has a random name.
    made["spec"]["automountServiceAccountToken"] = False
    stored = api.create(made, namespace, dry_run=True).body
    kept = {key: stored["metadata"].get(key) for key in ("labels", "annotations")}
    return {"metadata": {key: value for key, value in kept.items() if value}, "spec": stored["spec"]}


def converted_for(types: tuple[str, ...], manifest: Object) -> tuple[Decision, Object]:
    """Our conversion of a pod in a cluster of these types."""
    known = Catalogue()
    entries = [entry for name in types if (entry := known.get(name)) is not None]
    seen = {each.name: Observation(each.devices or 0, each.groups) for each in entries}
    cluster = FakeCluster(seen=seen, kubernetes="v1.36.2")
    decision = asyncio.run(
        mutator(cluster, families=()).review(request({"apiVersion": "v1", "kind": "Pod", **manifest}))
    )
    return decision, jsonpatch.apply_patch(manifest, list(decision.patch))


def golden_pods() -> dict[str, tuple[Path, Object]]:
    found = {}
    for case in golden.cases():
        review = json.loads((case / "review.json").read_text())["request"]
        if (review["operation"], review["kind"]["kind"]) == ("CREATE", "Pod"):
            found[case.name] = case, review["object"]
    return found


@pytest.mark.usefixtures("priority_classes")
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_policies_convert_golden_pods_as_conversion_does_or_leave_them(
    api: Api, namespace: str, unbound: str, world: str
) -> None:
    templates = {each["metadata"]["name"]: each["spec"] for each in api.list("ResourceClaimTemplate", namespace)}
    covered = set()
    for name, (case, manifest) in golden_pods().items():
        before, after = admitted(api, unbound, manifest), admitted(api, namespace, manifest)
        if after == before:
            continue
        covered.add(name)
        decision, expected = converted_for(WORLDS[world], before)
        assert after == expected, name
        (template,) = decision.templates
        assert template_names(after) == [template.name], name
        assert digest(templates[template.name]) == template.digest, name
        if not any((case / file).exists() for file in ("cluster.json", "policies.yaml")):
            # What the golden folder says of conversion with this version of Kubernetes.
            twin = case.with_name(f"{name}-1-36")
            (recorded,) = json.loads(((twin if twin.exists() else case) / "templates.json").read_text())
            assert digest(recorded["spec"]) == template.digest, name
    assert covered == COVERED[world]


@pytest.mark.parametrize("world", ["one-type", "two-types"], indirect=True)
def test_policies_add_what_conversion_adds(api: Api, namespace: str, unbound: str, world: str) -> None:
    for name, manifest in MORE.items():
        decision, expected = converted_for(WORLDS[world], admitted(api, unbound, manifest))
        assert decision.outcome is Outcome.CONVERTED, name
        assert admitted(api, namespace, manifest) == expected, name


@pytest.mark.parametrize("world", ["one-type"], indirect=True)
def test_policies_leave_pods_that_need_the_webhook(api: Api, namespace: str, unbound: str, world: str) -> None:
    assert world
    for name, manifest in LEFT.items():
        assert admitted(api, namespace, manifest) == admitted(api, unbound, manifest), name


@pytest.mark.parametrize("world", ["one-type"], indirect=True)
def test_the_webhook_leaves_a_pod_that_a_policy_converted(api: Api, namespace: str, world: str) -> None:
    decision, _ = converted_for(WORLDS[world], admitted(api, namespace, MORE["alias"]))
    assert (decision.outcome, decision.reason) == (Outcome.UNCHANGED, "already-converted")


@pytest.mark.parametrize("world", ["one-type"], indirect=True)
def test_a_pod_that_a_policy_converted_gets_connected_devices(
    api: Api, namespace: str, fleet: Fleet, world: str
) -> None:
    assert world
    fleet.add("trn2.48xlarge")
    api.create(pod("train", container(neuron=4)), namespace)
    bound = wait_scheduled(api, namespace, "train")
    assert claim_of(api, namespace, bound)["status"]["allocation"]
    assert scheduled_devices(api, namespace, "train") in [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


@pytest.mark.parametrize("world", ["one-type"], indirect=True)
def test_the_manifest_of_a_converted_pod_cannot_be_applied_again(kubectl: Kubectl, world: str) -> None:
    assert world
    manifest = json.dumps(pod("train", container(neuron=4)))
    kubectl.must("apply", "-f", "-", stdin=manifest)
    again = kubectl.run("apply", "-f", "-", stdin=manifest)
    assert (again.ok, "Forbidden" in again.stderr) == (False, True), again.stderr
