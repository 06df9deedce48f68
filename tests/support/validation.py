"""Claims as users write them, and a validator in a cluster whose content a test sets."""

import asyncio
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from checks.claims.device_index import CompiledSelector, DeviceIndex
from checks.claims.judging import ClaimContext, validate
from cluster.kinds.resource_slices import Census, SliceShapes, slice_shapes
from conversion.objects.wire import ABSENT, AdmissionRequest, GroupVersionKind
from conversion.patches.decision import Decision
from neuron import names
from neuron.api.claim_reader import read_claim, read_class
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.api.slices import read_slice
from neuron.findings import Finding
from neuron.hardware import windows
from neuron.hardware.device_shapes import DeviceShape, catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.judging.selectors import DeviceSelectors
from tests.support.clusters import FakeCluster
from tests.support.trainium import trainium
from webhook.reviews.validate import Validator

V1 = "resource.k8s.io/v1"
TRN1, TRN2, TRN2U, INF2 = "trn1.32xlarge", "trn2.48xlarge", "trn2u.48xlarge", "inf2.48xlarge"


def on(instance_type: str) -> str:
    """The selector of the source documents."""
    return f"device.attributes['{names.DRIVER}'].instanceType == '{instance_type}'"


def attribute(name: str) -> str:
    return f"device.attributes['{names.DRIVER}'].{name}"


WHOLE_NODE = f"{attribute('resourceType')} == 'neuron_node'"


def group(size: int) -> str:
    return names.device_group_attribute(size)


def lnc(value: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": value, **fields}


def ultraserver(mode: int) -> dict[str, Any]:
    return {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": mode}


def opaque(parameters: Any, driver: str = names.DRIVER, requests: Sequence[str] = ("neurons",)) -> dict[str, Any]:
    entry: dict[str, Any] = {"opaque": {"driver": driver, "parameters": parameters}}
    return {"requests": list(requests), **entry} if requests else entry


def devices(
    count: int | None = 1, *selectors: str, device_class: str = names.DEVICE_CLASS, mode: str = "", **fields: Any
) -> dict[str, Any]:
    """The fields of one request."""
    made: dict[str, Any] = {"deviceClassName": device_class, **fields}
    if mode:
        made["allocationMode"] = mode
    if count is not None:
        made["count"] = count
    if selectors:
        made["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    return made


def request(name: str = "neurons", *args: Any, **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": devices(*args, **fields)}


def first_available(name: str = "neurons", **alternatives: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "firstAvailable": [{"name": key, **each} for key, each in alternatives.items()]}


def match(attribute_name: str, *requests: str) -> dict[str, Any]:
    made: dict[str, Any] = {"matchAttribute": attribute_name}
    return {"requests": list(requests), **made} if requests else made


def claim(
    *requests: dict[str, Any], constraints: Sequence[Any] = (), config: Sequence[Any] = (), **fields: Any
) -> dict[str, Any]:
    """The spec of a ResourceClaim."""
    section: dict[str, Any] = {"requests": list(requests), **fields}
    if constraints:
        section["constraints"] = list(constraints)
    if config:
        section["config"] = list(config)
    return {"devices": section}


def template(spec: Mapping[str, Any], name: str = "big", api_version: str = V1) -> dict[str, Any]:
    """A ResourceClaimTemplate."""
    return {
        "apiVersion": api_version,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": dict(spec)},
    }


def flattened(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same claim as v1beta1 has it."""
    section = dict(spec["devices"])
    section["requests"] = [
        {key: value for key, value in each.items() if key != "exactly"} | each.get("exactly", {})
        for each in section["requests"]
    ]
    return {"devices": section}


# --- the domain alone -------------------------------------------------------------------------------------------

CATALOGUE = Catalogue()
INDEX = DeviceIndex(catalogue_shapes(CATALOGUE))


def shapes_of(spec: Mapping[str, Any]) -> SliceShapes | None:
    """The devices of a ResourceSlice's spec, which may lack what does not matter: the pool, names of devices."""
    devices = [{"name": f"d{index}", **each} for index, each in enumerate(spec.get("devices") or ())]
    return slice_shapes(read_slice({"spec": {"pool": {"name": "p"}, **spec, "devices": devices}}))


class Patient:
    """An engine with a second for each selector: the worlds of tests live longer than one object is judged."""

    def compile(self, expression: str) -> CompiledSelector:
        return DeviceSelectors().compile(expression)


def world(slices: Sequence[Mapping[str, Any]] = (), *, present: Sequence[str] = (), **fields: Any) -> ClaimContext:
    """What claims are judged against; with slices or types of Nodes, those of a cluster."""
    index = INDEX
    if slices or present:
        census = Census()
        for each in slices:
            census.replace(None, shapes_of(each))
        index = DeviceIndex([*catalogue_shapes(CATALOGUE), *census.shapes()], present)
    return ClaimContext(CATALOGUE, index, Patient(), **fields)


def judge(spec: Mapping[str, Any], where: ClaimContext | None = None, api_version: str = V1) -> tuple[Finding, ...]:
    """Everything that is found about a ResourceClaim's spec."""
    return validate("ResourceClaim", api_version, spec, where or world(), accepted=False)


def codes(findings: Sequence[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def published(
    instance_type: str,
    count: int = 16,
    *,
    driver_version: str = "2.25.4.0",
    node: str = "nn-1",
    without: Sequence[str] = (),
    cores: int = 0,
    capacity: Mapping[str, str] | None = None,
    counters: bool = False,
    **extra: Any,
) -> dict[str, Any]:
    """The spec of a ResourceSlice of one node.

    With `cores`, several claims can share that many cores of a device; with `counters`, it consumes a shared counter.
    """
    entry = CATALOGUE.get(instance_type)
    made = []
    for index in range(count):
        attributes: dict[str, Any] = {
            "deviceId": {"int": index},
            "instanceType": {"string": instance_type},
            "resourceType": {"string": "neuron_device"},
            "neuronDriverVersion": {"string": driver_version},
            "draDriverVersion": {"version": "1.0.0"},
            "networkNodeLayer1": {"string": node},
        }
        for size in entry.groups if entry else ():
            attributes[group(size)] = {"string": f"{instance_type}-{size}-{index // size}"}
        if entry and entry.line:
            attributes |= {name: {"string": value} for name, value in windows.attributes(entry.line, index).items()}
        attributes |= extra
        sizes: dict[str, Any] = {name: {"value": value} for name, value in (capacity or {}).items()}
        device: dict[str, Any] = {"name": f"neuron-device-{index}", "attributes": attributes}
        if counters:
            device["consumesCounters"] = [{"counterSet": "devices", "counters": {device["name"]: {"value": "1"}}}]
        if cores:
            policy = {"default": str(cores), "validValues": [str(each) for each in (0, 1, 2, 4, 8) if each <= cores]}
            device["allowMultipleAllocations"] = True
            sizes["neuroncores"] = {"value": str(cores), "requestPolicy": policy}
        made.append(device | ({"capacity": sizes} if sizes else {}))
        for name in without:
            attributes.pop(name)
    return {"driver": names.DRIVER, "nodeName": node, "pool": {"name": node, "generation": 1}, "devices": made}


# --- the reviewer -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class FakeClaims(FakeCluster):
    """A cluster with slices, classes and templates; `objects` exist though no cache has them."""

    claim_version: int = 1
    slices: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    class_specs: dict[str, ClassSpec] | None = None
    templates: dict[tuple[str, str], ClaimSpec] = dataclasses.field(default_factory=dict)
    objects: set[tuple[str, str, str]] | None = None
    asked: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)

    def device_shapes(self) -> Sequence[DeviceShape]:
        census = Census()
        for each in self.slices:
            census.replace(None, shapes_of(each))
        return census.shapes()

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        return self.class_specs

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        return self.templates.get((namespace, name))

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:
        wanted = list(names)
        self.asked += [(kind, namespace, name) for name in wanted]
        objects = self.objects
        return {name: None if objects is None else (kind, namespace, name) in objects for name in wanted}

    def add_template(self, name: str, spec: Mapping[str, Any], namespace: str = "team-a") -> None:
        self.templates[namespace, name] = read_claim("ResourceClaimTemplate", V1, {"spec": spec})[0]

    def add_class(self, name: str, *selectors: str, config: Sequence[Any] = ()) -> None:
        spec = {"selectors": [{"cel": {"expression": text}} for text in selectors], "config": list(config)}
        self.class_specs = {**(self.class_specs or {}), name: read_class(V1, spec)[0]}


def validator(cluster: FakeClaims | None = None, **options: Any) -> Validator:
    return Validator(trainium(**options), Catalogue(), cluster or FakeClaims())


def review(
    manifest: Any, operation: str = "CREATE", old: Any = None, *, namespace: str = "team-a", **fields: Any
) -> AdmissionRequest:
    """A review of a manifest, whose apiVersion and kind say what it is; text is sent as it is."""

    def raw(value: Any) -> Raw:
        if value is None:
            return ABSENT
        return Raw(value.encode() if isinstance(value, str) else json.dumps(value).encode())

    read = json.loads(manifest) if isinstance(manifest, str) else manifest
    apiversion_group, _, version = read["apiVersion"].rpartition("/")
    kind = GroupVersionKind(read["kind"], apiversion_group, version)
    name = read["metadata"].get("name", "")
    return AdmissionRequest(
        "uid-1", kind, operation, namespace, name, object=raw(manifest), oldObject=raw(old), **fields
    )


def decide(manifest: Any, cluster: FakeClaims | None = None, operation: str = "CREATE", **fields: Any) -> Decision:
    """The answer of the validator for an object."""
    options = fields.pop("options", {})
    return asyncio.run(validator(cluster, **options).review(review(manifest, operation, **fields)))
