"""What is patched, generated and shipped, with strict field validation: nothing is refused, and no field is dropped.

The schemas for the tests without a control plane are those that this API server and this kubelet have.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import Assets
from tests.conformance import objects, protocols, record
from tests.conformance.schemas import KUBELET, KUBERNETES, is_known, kubernetes_faults

STRICT = {"fieldValidation": "Strict"}
DRY = {**STRICT, "dryRun": "All"}
CLUSTER_WIDE = {
    *("ClusterRole", "ClusterRoleBinding", "DeviceClass", "ResourceSlice"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
}


def plural(kind: str) -> str:
    name = kind.lower()
    if name.endswith("y"):
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith("s") else f"{name}s"


def path_of(obj: Object, namespace: str) -> str:
    version = obj["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    middle = "" if obj["kind"] in CLUSTER_WIDE else f"/namespaces/{namespace}"
    return f"{root}{middle}/{plural(obj['kind'])}"


def within(obj: Object, namespace: str) -> Object:
    """The object in a namespace of the test's, under a name of its own."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in {"namespace", "uid"}}
    if obj["kind"] not in CLUSTER_WIDE:
        metadata["namespace"] = namespace
    return obj | {"metadata": metadata}


def dropped(sent: Any, stored: Any, path: str = "") -> list[str]:
    """Fields of an object that the API server did not keep. An empty field may be left out."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return [
            fault
            for key, value in sent.items()
            if value not in (None, "", [], {}, False, 0) or key in stored
            for fault in dropped(value, stored.get(key), f"{path}.{key}".removeprefix("."))
        ]
    if isinstance(sent, list) and isinstance(stored, list) and len(sent) <= len(stored):
        # Admission appends, e.g. tolerations.
        pairs = enumerate(zip(sent, stored, strict=False))
        return [fault for n, (one, other) in pairs for fault in dropped(one, other, f"{path}[{n}]")]
    return [path] if stored is None or (type(sent) is not type(stored) and not _amount(sent, stored)) else []


def _amount(sent: Any, stored: Any) -> bool:
    """A quantity may be written as a number; it is stored as text."""
    return isinstance(sent, int | float) and isinstance(stored, str)


def taken(api: Api, obj: Object, namespace: str) -> None:
    """What the API server would store is the whole object."""
    body = within(obj, namespace)
    answer = api.request("POST", path_of(obj, namespace), json=body, params=DRY)
    assert dropped(body, answer.body) == [], obj["kind"]


def kept(api: Api, obj: Object, namespace: str) -> None:
    """The same for an object that is stored, and read back."""
    taken(api, obj, namespace)
    body = within(obj, namespace)
    # The owner does not exist, so the object would be collected.
    body["metadata"].pop("ownerReferences", None)
    path = path_of(obj, namespace)
    name = api.request("POST", path, json=body, params=STRICT).body["metadata"]["name"]
    try:
        assert dropped(body, api.request("GET", f"{path}/{name}").body) == []
    finally:
        api.request("DELETE", f"{path}/{name}", params={"gracePeriodSeconds": "0"})


def test_the_recorded_schemas_are_those_of_this_version(api: Api, assets: Assets) -> None:
    """`python -m tests.conformance.record` writes them."""
    written = json.loads(KUBERNETES.read_text())
    if api.request("GET", "/version").body["gitVersion"] != written["about"]["version"]:
        pytest.skip(f"the schemas are of {written['about']['version']}")
    assert record.kubernetes(api) == written
    if assets.has("kubelet"):
        assert record.kubelet(assets.folder / "kubelet") == json.loads(KUBELET.read_text())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.needs("health-messages" if "health" in name else "descriptors"))
        if "dra" in name
        else name
        for name in protocols.SOURCES
    ],
)
def test_messages_have_the_fields_of_this_kubelet(assets: Assets, name: str) -> None:
    if not assets.has("kubelet"):
        pytest.skip(f"no kubelet: {assets.folder} lacks kubelet; set KUBEBUILDER_ASSETS")
    there = protocols.table(protocols.embedded(assets.folder / "kubelet", protocols.SOURCES[name]))
    assert protocols.table(protocols.ours(name)) == there


@pytest.mark.needs("shares")
@pytest.mark.usefixtures("priority_classes")
def test_patched_pods_and_their_templates_are_stored_whole(api: Api, namespace: str) -> None:
    cases = [case for case in objects.MUTATED if case.name != "unknown-fields-survive"]
    bodies = [each for case in cases for each in objects.mutated(case) if is_known(each)]
    seen: set[str] = set()
    stored = 0
    for each in bodies:
        key = json.dumps([each["kind"], each["spec"]], sort_keys=True)
        if key in seen or refused_anyway(each):
            continue
        seen.add(key)
        kept(api, each, namespace)
        stored += 1
    assert stored > 60


def refused_anyway(obj: Object) -> bool:
    """Inputs of cases that no API server would have sent: what is tried there needs less than a whole pod."""
    containers = obj["spec"].get("containers", [])
    return obj["kind"] == "Pod" and not all("image" in each for each in containers)


CONVERTED = [path for path in objects.CONVERTED if path.parent.name != "misspelt-resources"]
"""The API server refuses misspelt resources, which conversion leaves as they are."""
NEEDING = {"monitoring-daemonset": ("taints", "shares")}
"""Examples that need features, by folder."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.needs(*NEEDING.get(path.parent.name, ()))) for path in CONVERTED],
    ids=[f"{path.parent.name}/{path.stem}" for path in CONVERTED],
)
def test_converted_manifests_and_examples_are_taken(api: Api, namespace: str, path: Path) -> None:
    api.merge("Namespace", namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}})
    for each in objects.objects_of(path):
        if is_known(each) and each["kind"] != "Namespace":
            taken(api, each, namespace)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(name, marks=pytest.mark.needs("extended-resources")) if name == "everything" else name
        for name in objects.CHARTS
    ],
)
def test_the_chart_is_taken(api: Api, namespace: str, values: str) -> None:
    known = [within(each, namespace) for each in objects.chart(values) if is_known(each)]
    for each in known:
        if each["kind"] in CLUSTER_WIDE:
            # Those of the control plane's own webhook and driver have these names.
            each["metadata"]["name"] = f"conformance-{each['metadata']['name']}"
        if each["kind"] == "ServiceAccount":
            api.create(each, namespace)
    for each in known:
        if each["kind"] != "ServiceAccount":
            taken(api, each, namespace)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.needs("counters", "taints", "shares")
def test_slices_are_stored_whole_in_every_version(api: Api, namespace: str, version: str) -> None:
    for each in objects.slices(objects.FEATURES["all"], version):
        kept(api, each, namespace)


def test_events_leases_and_policies_are_stored_whole(api: Api, namespace: str) -> None:
    for each in [*objects.small(), *objects.policies()]:
        if each["kind"] == "Event" and each["apiVersion"] == "v1":
            each = each | {"involvedObject": each["involvedObject"] | {"namespace": namespace}}  # noqa: PLW2901
        kept(api, each, namespace)


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({"schedulerNam": "x"}, ["spec.schedulerNam"]),
        ({"tolerations": [{"key": "a", "efect": "b"}]}, ["spec.tolerations[0].efect"]),
    ],
)
def test_a_dropped_field_is_found(api: Api, namespace: str, fields: Object, lost: list[str]) -> None:
    """As strict field validation and the schemas find it."""
    spec = {"containers": [{"name": "a", "image": "x"}], **fields}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    answer = api.request("POST", path_of(body, namespace), json=body, params={"dryRun": "All"})
    assert dropped(body, answer.body) == lost
    with pytest.raises(AssertionError, match="strict decoding error: unknown field"):
        api.request("POST", path_of(body, namespace), json=body, params=DRY)
    assert len(kubernetes_faults(body)) == 1
