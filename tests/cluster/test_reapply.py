"""`kubectl apply` of the same manifest over a converted pod works, whichever way users apply."""

import copy
import json
from collections.abc import Callable

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import (
    LNC,
    NEURON,
    claim_template,
    container,
    devices_request,
    is_converted,
    legacy_names,
    pod,
    template_names,
)
from tests.cluster.nodes import INSTANCE_TYPE

pytestmark = pytest.mark.usefixtures("webhook")

VERBS = {"client-side": "apply", "server-side": "apply --server-side", "replace": "replace"}
OWN_TEMPLATE = claim_template("own", {"devices": {"requests": [devices_request("r", device_class="other")]}})


def own_claims() -> Object:
    using = container(neuron=4)
    using["resources"]["claims"] = [{"name": "nic"}]
    return pod("p", using, resourceClaims=[{"name": "nic", "resourceClaimTemplateName": "own"}])


def own_hints() -> Object:
    expression = {"key": INSTANCE_TYPE, "operator": "In", "values": ["trn1.32xlarge", "trn2.48xlarge"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return pod(
        "p",
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        tolerations=[{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
    )


MANIFESTS: dict[str, Callable[[], Object]] = {
    "plain": lambda: pod("p"),
    "own-claims": own_claims,
    "init-containers": lambda: pod("p", container(neuron=4), initContainers=[container("warm", neuron=8)]),
    "legacy-scheduler": lambda: pod("p", schedulerName="my-scheduler"),
    "own-hints": own_hints,
    "requests-too": lambda: pod(
        "p",
        container(resources={part: {"aws.amazon.com/neuron": "4", "cpu": "1"} for part in ("limits", "requests")}),
    ),
    "cores": lambda: pod("p", container(neuroncore=8), nodeSelector={INSTANCE_TYPE: "trn2.48xlarge"}),
}


def own_claim_named_neuron() -> Object:
    using = container(neuron=4)
    using["resources"]["claims"] = [{"name": "neuron"}]
    return pod("p", using, resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": "own"}])


def own_claim_like_ours() -> Object:
    manifest = own_claim_named_neuron()
    manifest["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "neuron-16-0123456789ab"
    return manifest


def two_of_three_requests() -> Object:
    # The init container refers to one claim twice. Server-side apply refuses that in a manifest, not in what it meets.
    apps = [container(name, neuron=4) for name in ("a", "b", "c")]
    return pod("p", *apps, initContainers=[container("warm", neuron=8)])


RARE: dict[str, Callable[[], Object]] = {
    "own-claim-named-neuron": own_claim_named_neuron,
    "own-claim-like-ours": own_claim_like_ours,
    "two-of-three-requests": two_of_three_requests,
    "own-neuron-toleration": lambda: pod("p", tolerations=[{"key": NEURON, "operator": "Exists"}]),
    "cores-and-environment": lambda: pod(
        "p",
        container(neuroncore=8, env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]),
        nodeSelector={INSTANCE_TYPE: "trn2.48xlarge"},
    ),
    "sidecar": lambda: pod("p", initContainers=[container("sidecar", neuron=4, restartPolicy="Always")]),
    "lnc": lambda: pod("p", annotations={LNC: "1"}, nodeSelector={INSTANCE_TYPE: "trn2.48xlarge"}),
    "preferred-affinity": lambda: pod(
        "p",
        affinity={
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
                ]
            }
        },
    ),
}


@pytest.fixture(params=list(VERBS.values()), ids=list(VERBS))
def verb(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(MANIFESTS.values()), ids=list(MANIFESTS))
def manifest(request: pytest.FixtureRequest) -> Object:
    make: Callable[[], Object] = request.param
    return replaceable(make())


def replaceable(manifest: Object) -> Object:
    """What `kubectl replace` needs of any pod, Neuron or not: else it would take away what the API server added."""
    manifest["spec"] |= {"automountServiceAccountToken": False, "serviceAccountName": "default"}
    return manifest


def place(kubectl: Kubectl, api: Api, verb: str, manifest: Object) -> Object:
    """Create the pod the way it will be applied again; returns it as stored."""
    api.create(OWN_TEMPLATE, kubectl.namespace)
    first = kubectl.feed("create" if verb == "replace" else verb, manifest)
    assert first.ok, first.stderr
    stored = api.get("Pod", "p", kubectl.namespace)
    assert is_converted(stored)
    return stored


def essence(stored: Object) -> Object:
    """What applying again must not touch."""
    metadata = stored["metadata"]
    annotations = dict(metadata["annotations"])
    annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return {
        "uid": metadata["uid"],
        "labels": metadata["labels"],
        "annotations": annotations,
        "spec": stored["spec"],
    }


@pytest.mark.parametrize("make", [*MANIFESTS.values(), *RARE.values()], ids=[*MANIFESTS, *RARE])
def test_applying_the_same_manifest_again_changes_nothing(
    api: Api, kubectl: Kubectl, verb: str, make: Callable[[], Object]
) -> None:
    manifest = replaceable(make())
    before = place(kubectl, api, verb, manifest)
    for _ in range(2):
        again = kubectl.feed(verb, manifest)
        assert again.ok, again.stderr
        assert essence(api.get("Pod", "p", kubectl.namespace)) == essence(before)


def test_a_changed_count_is_denied_with_the_fix(api: Api, kubectl: Kubectl, verb: str, manifest: Object) -> None:
    before = place(kubectl, api, verb, manifest)
    changed = json.loads(
        json.dumps(manifest)
        .replace('"4"', '"16"')
        .replace('"aws.amazon.com/neuroncore": "8"', '"aws.amazon.com/neuroncore": "16"')
    )
    assert changed != manifest
    refused = kubectl.feed(verb, changed)
    assert not refused.ok, refused.stdout
    assert "NEU115" in refused.stderr
    assert "delete" in refused.stderr.lower()
    assert essence(api.get("Pod", "p", kubectl.namespace)) == essence(before)


def test_a_changed_image_and_label_are_admitted(api: Api, kubectl: Kubectl, verb: str, manifest: Object) -> None:
    before = place(kubectl, api, verb, manifest)
    changed = copy.deepcopy(manifest)
    changed["spec"]["containers"][0]["image"] = "app:2"
    changed["metadata"]["labels"] = {"team": "ml"}
    applied = kubectl.feed(verb, changed)
    assert applied.ok, applied.stderr
    after = api.get("Pod", "p", kubectl.namespace)
    assert after["spec"]["containers"][0]["image"] == "app:2"
    assert after["metadata"]["labels"]["team"] == "ml"
    assert is_converted(after)
    assert legacy_names(after) == []
    assert template_names(after) == template_names(before)


def test_a_count_added_to_another_container_is_denied(api: Api, kubectl: Kubectl, verb: str) -> None:
    manifest = replaceable(pod("p", container("a", neuron=4), container("b")))
    place(kubectl, api, verb, manifest)
    changed = copy.deepcopy(manifest)
    changed["spec"]["containers"][1] = container("b", neuron=4)
    refused = kubectl.feed(verb, changed)
    assert not refused.ok, refused.stdout
    assert "NEU115" in refused.stderr


@pytest.mark.parametrize("others", [0, 1], ids=["the-only-container", "one-of-two"])
def test_a_removed_count_is_denied(api: Api, kubectl: Kubectl, verb: str, others: int) -> None:
    rest = [container(f"c{index}", neuron=4) for index in range(others)]
    place(kubectl, api, verb, replaceable(pod("p", container(neuron=4), *rest)))
    refused = kubectl.feed(verb, replaceable(pod("p", container(), *rest)))
    assert not refused.ok, refused.stdout
    assert "NEU115" in refused.stderr


def test_kubectl_diff_finds_no_difference(api: Api, kubectl: Kubectl) -> None:
    manifest = pod("p", container(neuron=4), initContainers=[container("warm", neuron=8)], schedulerName="my-scheduler")
    place(kubectl, api, "apply", manifest)
    same = kubectl.feed("diff", manifest)
    assert (same.code, same.stdout) == (0, "")
    manifest["spec"]["containers"][0]["image"] = "app:2"
    other = kubectl.feed("diff", manifest)
    assert other.code == 1
    assert "image: app:2" in other.stdout


def test_moving_on_to_server_side_apply_works_once_the_fields_are_taken_over(api: Api, kubectl: Kubectl) -> None:
    before = place(kubectl, api, "apply", pod("p"))
    for verb in ("apply --server-side --force-conflicts", "apply --server-side"):
        applied = kubectl.feed(verb, pod("p"))
        assert applied.ok, applied.stderr
        assert essence(api.get("Pod", "p", kubectl.namespace)) == essence(before)


def test_a_stored_pod_can_be_edited_and_replaced(api: Api, kubectl: Kubectl) -> None:
    place(kubectl, api, "apply", pod("p"))
    stored = kubectl.get("pod", "p")
    stored["spec"]["containers"][0]["image"] = "app:2"
    replaced = kubectl.feed("replace", stored)
    assert replaced.ok, replaced.stderr
    after = api.get("Pod", "p", kubectl.namespace)
    assert after["spec"] == stored["spec"]


def test_labelling_and_annotating_a_converted_pod_passes(api: Api, kubectl: Kubectl) -> None:
    before = place(kubectl, api, "apply", pod("p"))
    kubectl.must("label", "pod", "p", "team=ml")
    kubectl.must("annotate", "pod", "p", "note=x")
    after = api.get("Pod", "p", kubectl.namespace)
    assert after["spec"] == before["spec"]


def test_an_unconverted_pod_can_still_be_updated(api: Api, kubectl: Kubectl) -> None:
    manifest = pod("p", annotations={"neuron.aws.com/convert": "off"})
    assert kubectl.feed("apply", manifest).ok
    manifest["spec"]["containers"][0]["image"] = "app:2"
    applied = kubectl.feed("apply", manifest)
    assert applied.ok, applied.stderr
    assert legacy_names(api.get("Pod", "p", kubectl.namespace))
