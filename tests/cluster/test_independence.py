"""Objects that have nothing to do with Neuron do not reach the webhook, and do not wait for it."""

import base64
import contextlib
import copy
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import CONVERT, container, is_converted, pod, wait_scheduled, workload
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually
from tests.cluster.test_workloads import leader_worker_set, leader_worker_sets  # noqa: F401 - a fixture
from tests.cluster.webhooks import MANIFESTS, Webhook, load

pytestmark = pytest.mark.usefixtures("installed", "leader_worker_sets")

QUICK = 1.0
"""Seconds: far below every timeoutSeconds of ours."""
VERSIONS = ("v1", "v1beta2", "v1beta1")
BIG = "'" + "x" * 10_000 + "' != ''"


@pytest.fixture(scope="module")
def configuration(control_plane: ControlPlane, installed_webhook: Webhook) -> Object:
    """The shipped ValidatingWebhookConfiguration, pointed at the process under test."""
    [made] = load(MANIFESTS / "validating.yaml")
    bundle = base64.b64encode(control_plane.authority.files.certificate.read_bytes()).decode()
    for entry in made["webhooks"]:
        entry["clientConfig"] = {"url": f"https://127.0.0.1:{installed_webhook.port}/validate", "caBundle": bundle}
    return made


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane, installed_webhook: Webhook, configuration: Object) -> Iterator[None]:
    control_plane.admin.create(configuration)
    before = installed_webhook.reviews()
    ours = named_claim("ours", request("neuron.aws.com"))

    def called() -> bool:
        control_plane.admin.create(ours, "default", dry_run=True)
        return installed_webhook.reviews() > before

    eventually("the API server to call the webhook", called)
    yield
    control_plane.admin.delete("ValidatingWebhookConfiguration", configuration["metadata"]["name"])


def request(device_class: str, *selectors: str, version: str = "v1", alternatives: bool = False) -> Object:
    fields: Object = {"deviceClassName": device_class}
    if selectors:
        fields["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    if alternatives:
        return {
            "name": "r",
            "firstAvailable": [{"name": "a", "deviceClassName": "gpu.example.com"}, {"name": "b", **fields}],
        }
    return {"name": "r", **fields} if version == "v1beta1" else {"name": "r", "exactly": fields}


def named_claim(name: str, *requests: Object, version: str = "v1", **devices: Any) -> Object:
    spec = {"devices": {"requests": list(requests), **devices}}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


def named_template(name: str, *requests: Object, version: str = "v1", **devices: Any) -> Object:
    made = named_claim(name, *requests, version=version, **devices)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def device_class(name: str, *selectors: str, version: str = "v1", **spec: Any) -> Object:
    if selectors:
        spec["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    metadata = {"name": name}
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceClass", "metadata": metadata, "spec": spec}


def opaque(driver: str) -> Object:
    return {"opaque": {"driver": driver, "parameters": {"apiVersion": "example.com/v1", "kind": "Config"}}}


def claiming(name: str, template_name: str = "single-gpu", **spec: Any) -> Object:
    using = container(resources={"claims": [{"name": "gpu"}]})
    return pod(name, using, resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": template_name}], **spec)


def amounts(resource: str) -> Object:
    return {"limits": {"cpu": "1", resource: "16"}, "requests": {"cpu": "1", resource: "16"}}


GPU, EFA = "gpu.nvidia.com", "efa.networking.k8s.aws"
MANY = [{**request(GPU, *[BIG] * 4), "name": f"r{number}"} for number in range(32)]
FOREIGN: dict[str, Object] = {
    **{
        f"claim-{version}": named_claim(f"gpu-{version}", request(GPU, version=version), version=version)
        for version in VERSIONS
    },
    **{
        f"template-{version}": named_template(f"gpu-{version}", request(EFA, version=version), version=version)
        for version in VERSIONS
    },
    "selector": named_claim("selector", request(GPU, "device.attributes['gpu.nvidia.com'].type == 'gpu'")),
    "alternatives": named_claim("alternatives", request(GPU, alternatives=True)),
    "config": named_claim("config", request(GPU), config=[opaque(GPU)]),
    "constraint": named_claim(
        "constraint", request(GPU), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
    ),
    "large": named_claim("large", *MANY),
    "class": device_class(GPU, "device.driver == 'gpu.nvidia.com'", config=[opaque(GPU)]),
    "class-v1beta1": device_class(EFA, "device.driver == 'efa.networking.k8s.aws'", version="v1beta1"),
    "extended": device_class("mig", extendedResourceName="nvidia.com/mig"),
    "pod": claiming("gpu"),
    "plain-pod": pod("plain", container()),
    "pod-by-resource": pod("gpus", container(resources=amounts("nvidia.com/gpu"))),
    "deployment": workload("Deployment", "gpu", claiming("x")),
    "cron-job": {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "gpu"},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": workload("Job", "x", claiming("x"))["spec"]}},
    },
    "leader-worker-set": leader_worker_set("gpu", pod("x", container(resources={"limits": {"nvidia.com/gpu": "8"}}))),
}
OURS: dict[str, Object] = {
    **{
        f"claim-{version}": named_claim(f"ours-{version}", request("neuron.aws.com", version=version), version=version)
        for version in VERSIONS
    },
    **{
        f"template-{version}": named_template(
            f"ours-{version}", request("neuron.aws.com", version=version), version=version
        )
        for version in VERSIONS
    },
    "alternatives": named_template("alternatives", request("neuron.aws.com", alternatives=True)),
    "near-miss": named_claim("near-miss", request("neurons.aws.com")),
    "selector": named_claim("selector", request("any.example.com", "device.driver == 'neuron.aws.com'")),
    "selector-of-an-alternative": named_claim(
        "alternative", request("any.example.com", "device.driver == 'neuron.aws.com'", alternatives=True)
    ),
    "config": named_claim("config", request(GPU), config=[opaque("neuron.aws.com")]),
    "constraint": named_claim(
        "constraint", request(GPU), constraints=[{"matchAttribute": "neuron.aws.com/topology4_id"}]
    ),
    "class": device_class("trainium", "device.driver == 'neuron.aws.com'"),
    "class-by-name": device_class("my-neuron"),
    "class-by-config": device_class("other", config=[opaque("neuron.aws.com")]),
    "class-v1beta1": device_class("trainium", "device.driver == 'neuron.aws.com'", version="v1beta1"),
    "pod": pod("legacy"),
    "class-as-resource": pod("by-class", container(resources=amounts("deviceclass.resource.kubernetes.io/any"))),
    "class-as-resource-init": pod(
        "by-class-init",
        container(),
        initContainers=[container("init", resources=amounts("deviceclass.resource.kubernetes.io/neuron.aws.com"))],
    ),
    "extended-resource": pod("extended", container(resources=amounts("example.com/neuron-large"))),
    "deployment-by-class": workload(
        "Deployment", "by-class", pod("x", container(resources=amounts("deviceclass.resource.kubernetes.io/any")))
    ),
    "init": pod("init", container(), initContainers=[container("init", neuroncore=1)]),
    "leader-worker-set": leader_worker_set("legacy", pod("x", container(neuron=16))),
    "annotated-set": leader_worker_set("annotated", pod("x", annotations={"neuron.aws.com/ultraserver-mode": "4"})),
}


def namespace_of(manifest: Object, namespace: str) -> str:
    return "" if manifest["kind"] == "DeviceClass" else namespace


def create(api: Api, manifest: Object, namespace: str) -> float:
    """Create it in a dry run, in the version of the manifest; returns the duration in seconds."""
    version = manifest["apiVersion"]
    plural = {"DeviceClass": "deviceclasses"}.get(manifest["kind"], manifest["kind"].lower() + "s")
    middle = f"namespaces/{namespace}/" if manifest["kind"] != "DeviceClass" else ""
    root = "api" if "/" not in version else "apis"
    begun = time.monotonic()
    api.request("POST", f"/{root}/{version}/{middle}{plural}", json=manifest, params={"dryRun": "All"})
    return time.monotonic() - begun


class TestRunningWebhook:
    @pytest.mark.parametrize("manifest", FOREIGN.values(), ids=FOREIGN.keys())
    def test_objects_of_others_are_not_sent_to_the_webhook(
        self, api: Api, webhook: Webhook, namespace: str, manifest: Object
    ) -> None:
        before = webhook.reviews()
        create(api, copy.deepcopy(manifest), namespace)
        assert webhook.reviews() == before

    @pytest.mark.parametrize("manifest", OURS.values(), ids=OURS.keys())
    def test_neuron_objects_are_sent_to_the_webhook(
        self, api: Api, webhook: Webhook, namespace: str, manifest: Object
    ) -> None:
        before = webhook.reviews()
        # Some are refused, by us; what matters here is that we were asked.
        with contextlib.suppress(ApiError):
            create(api, copy.deepcopy(manifest), namespace)
        assert webhook.reviews() > before

    def test_updates_of_a_class_are_sent_if_the_old_class_was_for_neuron(self, api: Api, webhook: Webhook) -> None:
        api.create(device_class("turning", "device.driver == 'neuron.aws.com'"))
        before = webhook.reviews()
        api.merge("DeviceClass", "turning", {"spec": {"selectors": None}})
        assert webhook.reviews() > before
        after = webhook.reviews()
        api.merge("DeviceClass", "turning", {"metadata": {"labels": {"a": "b"}}})
        assert webhook.reviews() == after
        api.delete("DeviceClass", "turning")


@pytest.fixture(scope="module")
def usual(api: Api, installed: None, leader_worker_sets: None) -> dict[str, float]:  # noqa: F811
    """Seconds that each takes while we run."""
    for _ in range(2):  # the first one of a new kind waits for the API server itself
        took = {name: create(api, copy.deepcopy(manifest), "default") for name, manifest in FOREIGN.items()}
    return took


@contextlib.contextmanager
def away(webhook: Webhook, how: str) -> Iterator[None]:
    """The process is gone ("refused"), or takes connections and never answers ("hanging")."""
    end, begin = (webhook.stop, webhook.start) if how == "refused" else (webhook.freeze, webhook.thaw)

    def converts() -> bool:
        # One that was frozen is late for a moment, and refuses reviews.
        with contextlib.suppress(ApiError):
            return is_converted(webhook.preview(pod("back")).body)
        return False

    end()
    try:
        yield
    finally:
        begin()
        eventually("the webhook to convert again", converts)


class TestUnavailableWebhook:
    @pytest.fixture(autouse=True, params=["refused", "hanging"])
    def down(self, request: pytest.FixtureRequest, webhook: Webhook, usual: dict[str, float]) -> Iterator[None]:  # noqa: ARG002
        with away(webhook, request.param):
            yield

    def test_objects_of_others_are_admitted_without_delay(
        self, api: Api, namespace: str, usual: dict[str, float]
    ) -> None:
        took = {name: create(api, copy.deepcopy(manifest), namespace) for name, manifest in FOREIGN.items()}
        more = {name: seconds - usual[name] for name, seconds in took.items()}
        print(f"\n{len(took)} objects of others without the webhook: {max(more.values()) * 1000:.0f} ms more at most")  # noqa: T201
        assert {name: seconds for name, seconds in more.items() if seconds > QUICK} == {}

    def test_neuron_objects_are_denied(self, api: Api, namespace: str) -> None:
        for name in ("claim-v1", "claim-v1beta1", "alternatives", "class", "pod", "leader-worker-set"):
            with pytest.raises(ApiError, match="failed calling webhook"):
                create(api, copy.deepcopy(OURS[name]), namespace)


@pytest.mark.parametrize("how", ["refused", "hanging"])
def test_updates_of_admitted_objects_do_not_need_the_webhook(
    api: Api, webhook: Webhook, namespace: str, fleet: Fleet, how: str
) -> None:
    """Scheduler and controllers write finalizers of claims and pods; such updates do not wait for the webhook."""
    converted = pod("train", container(neuron=4))
    converted["metadata"]["finalizers"] = ["example.com/done"]
    api.create(converted, namespace)
    api.create(pod("legacy", container(neuron=4), annotations={CONVERT: "off"}), namespace)
    eventually("the pod's claim", lambda: api.list("ResourceClaim", namespace))
    with away(webhook, how):
        api.merge("Pod", "legacy", {"metadata": {"annotations": {"team": "a"}}}, namespace)
        fleet.add("trn2.48xlarge")
        wait_scheduled(api, namespace, "train")
        begun = time.monotonic()
        api.merge("Pod", "train", {"metadata": {"finalizers": None}}, namespace)
        assert time.monotonic() - begun < QUICK
        with pytest.raises(ApiError, match="failed calling webhook"):
            api.merge("Pod", "train", {"metadata": {"labels": {"team": "a"}}}, namespace)
        api.delete("Pod", "train", namespace, force=True)
        eventually("the claim to be gone", lambda: not api.list("ResourceClaim", namespace))


# --- a tenant who wants the condition to fail ----------------------------------------------------------------------


def containers(count: int) -> list[Object]:
    return [{"name": f"c{number}", "image": "a"} for number in range(count)]


BUDGET = re.compile("cost|budget|failed calling webhook")


@pytest.mark.parametrize("count", [1_000, 8_000])
def test_a_neuron_container_behind_many_others_is_sent_to_the_webhook(
    api: Api, webhook: Webhook, namespace: str, count: int
) -> None:
    hidden = pod("hidden", *containers(count), container("last", neuron=16))
    before = webhook.reviews()
    refusal = create_refused(api, hidden, namespace)
    assert webhook.reviews() > before or BUDGET.search(refusal), refusal


def test_a_neuron_class_behind_many_other_resources_is_sent_to_the_webhook(
    api: Api, webhook: Webhook, namespace: str
) -> None:
    before_it = {f"example.com/r{number}": "1" for number in range(10_000)}
    last = {**before_it, "zz.example.com/neuron": "1"}
    hidden = pod("hidden", container(resources={"limits": last, "requests": last}))
    before = webhook.reviews()
    create(api, hidden, namespace)
    assert webhook.reviews() > before


@pytest.mark.parametrize("version", VERSIONS)
def test_the_last_of_the_maximum_number_of_requests_is_sent_to_the_webhook(
    api: Api, webhook: Webhook, namespace: str, version: str
) -> None:
    filler = [{**request(GPU, BIG, version=version), "name": f"r{number}"} for number in range(31)]
    hidden = named_claim("hidden", *filler, request("neuron.aws.com", version=version), version=version)
    before = webhook.reviews()
    create(api, hidden, namespace)
    assert webhook.reviews() > before


def test_the_largest_claim_of_others_is_within_the_budget(api: Api, webhook: Webhook, namespace: str) -> None:
    selectors = [{"cel": {"expression": f"'{'x' * 1000}' != ''"}}] * 4
    made = named_claim(
        "largest",
        *(
            {
                "name": f"r{number}",
                "firstAvailable": [
                    {"name": f"a{each}", "deviceClassName": GPU, "selectors": selectors} for each in range(8)
                ],
            }
            for number in range(32)
        ),
    )
    before = webhook.reviews()
    create(api, made, namespace)
    assert webhook.reviews() == before


def create_refused(api: Api, manifest: Object, namespace: str) -> str:
    with pytest.raises(ApiError) as caught:
        create(api, manifest, namespace)
    return str(caught.value)
