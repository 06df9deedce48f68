"""The same MutatingAdmissionPolicies and objects, to the API server's own implementation and to ours."""

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from policies.files.loader import load
from policies.judging.mutations import Mutating
from policies.judging.subjects import of_object
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import eventually
from tests.support.mutating_policies import CASES, generated, json_patch, objects, policy

_GROUP: Final = "/apis/admissionregistration.k8s.io/v1"
_PATHS: Final = {
    "MutatingAdmissionPolicy": f"{_GROUP}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{_GROUP}/mutatingadmissionpolicybindings",
}
_GENERATED: Final = 120
_SEED: Final = 20261127
_SINCE: Final = (1, 36, 0)
_READY: Final = "in-force"
ALL: Final = {
    **CASES,
    **generated(_GENERATED, _SEED),
    # Made last: the others are in force when it is.
    _READY: json_patch("[JSONPatch{op: 'add', path: '/metadata/labels/ready', value: 'yes'}]"),
}
_OTHERS: Final = "none"
"""Label of the objects that no policy selects."""


@pytest.fixture(scope="module")
def installed(api: Api, control_plane: ControlPlane) -> Iterator[None]:
    """The policies, all in force."""
    if control_plane.assets.version < _SINCE:
        pytest.skip("MutatingAdmissionPolicy is v1 since Kubernetes 1.36")
    made: list[str] = []
    refused: list[str] = []
    for case, fields in ALL.items():
        try:
            for document in policy(case, fields):
                api.request("POST", _PATHS[document["kind"]], json=document)
            made.append(case)
        except ApiError as error:
            refused.append(f"{case}: {error}")
    try:
        assert refused == []
        eventually("the policies to be in force", lambda: _is_ready(api))
        yield
    finally:
        for path in _PATHS.values():
            for case in made:
                api.request("DELETE", f"{path}/{case}")


def _is_ready(api: Api) -> bool:
    pod = objects(_READY, "default")["small"]
    return "ready" in api.create(pod, "default", dry_run=True).body["metadata"]["labels"]


def stored(api: Api, data: Object) -> Object | str:
    """What the API server would store of an object; the beginning of the error if it refuses it."""
    try:
        body: Object = copy.deepcopy(api.create(data, data["metadata"]["namespace"], dry_run=True).body)
    except ApiError as error:
        return f"refused: {error}"
    for field in ("uid", "creationTimestamp", "managedFields", "generation"):
        body["metadata"].pop(field, None)
    body["metadata"].get("labels", {}).pop("case", None)
    body.pop("status", None)
    return body


def unselected(data: Object) -> Object:
    """The object with a label that no policy selects, if it has the label."""
    # Not a deep copy, which keeps what is shared: a patch may copy the labels.
    made: Object = json.loads(json.dumps(data))
    labels = made["metadata"].get("labels") or {}
    if "case" in labels:
        labels["case"] = _OTHERS
    return made


def ours(case: str, data: Object) -> Object | str:
    """The object that the webhook's implementation makes; the error if it denies it."""
    text = yaml.safe_dump_all(policy(case, ALL[case]))
    rules = load({"policy.yaml": text.encode()}).mutating
    mutating = Mutating(rules, of_object(data), time.monotonic)
    after = mutating.again(mutating.first(), changed=False)
    denied = [str(failure) for each in mutating.results if each.denies for failure in each.failures]
    return f"denied: {'; '.join(denied)}" if denied else after


def differences(api: Api, case: str, namespace: str) -> list[str]:
    found = []
    for name, data in objects(case, namespace).items():
        theirs = stored(api, data)
        # Policies get objects with defaults, and with what plugins before them have added.
        received: Any = stored(api, unselected(data))
        received["metadata"]["labels"] = {**received["metadata"].get("labels", {}), **data["metadata"]["labels"]}
        mine = ours(case, received)
        if isinstance(mine, dict):
            mine = stored(api, unselected(mine))
        if isinstance(theirs, str) and isinstance(mine, str):
            continue
        if theirs != mine:
            found.append(f"{case} on {name}:\n  theirs {theirs}\n  ours   {mine}")
    return found


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("case", CASES)
def test_the_api_server_and_the_webhook_make_the_same_object(api: Api, namespace: str, case: str) -> None:
    found = differences(api, case, namespace)
    assert not found, "\n".join(found)


@pytest.mark.usefixtures("installed")
def test_generated_policies_make_the_same_objects(api: Api, namespace: str) -> None:
    cases = [case for case in ALL if case.startswith("made-")]
    found = [text for case in cases for text in differences(api, case, namespace)]
    assert not found, "\n".join(found)


def with_class(spec: Object) -> Object | None:
    """The spec of a pod that has a priority class."""
    return spec if "priorityClassName" in spec else None


def test_the_example_of_a_priority_class(api: Api, namespace: str, control_plane: ControlPlane) -> None:
    if control_plane.assets.version < _SINCE:
        pytest.skip("MutatingAdmissionPolicy is v1 since Kubernetes 1.36")
    text = (Path(__file__).parents[2] / "deploy/policy-examples/priority.yaml").read_text()
    made, _ = yaml.safe_load_all(text)
    made["metadata"]["name"] = "priority-class"  # `CASES` has another policy of the example's name.
    bound = policy("priority-class", {})[1]
    spec = {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "pause", "resources": {}}]}
    spec["containers"][0]["resources"] = {"limits": {"aws.amazon.com/neuron": "16"}}  # type: ignore[index]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "whole", "namespace": namespace}, "spec": spec}
    scheduling = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.request("POST", scheduling, json={"metadata": {"name": "whole-nodes"}, "value": 1000})
    try:
        for document in (made, bound):
            api.request("POST", _PATHS[document["kind"]], json=document)
        stored_spec = eventually(
            "the policy to be in force",
            lambda: with_class(api.create(pod, namespace, dry_run=True).body["spec"]),
        )
        assert (stored_spec["priorityClassName"], stored_spec["priority"]) == ("whole-nodes", 1000)
    finally:
        for path in (*_PATHS.values(), scheduling):
            api.request("DELETE", f"{path}/{'whole-nodes' if path is scheduling else 'priority-class'}")
