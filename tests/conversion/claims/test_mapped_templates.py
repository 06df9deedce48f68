"""Which templates of operators serve a pod, and how the others differ."""

from typing import Any

import pytest

from checks.claims.device_index import DeviceIndex
from checks.claims.judging import ClaimContext
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from conversion.claims.mapped_templates import MappedTemplate, Need, difference
from neuron.api.claim_reader import read_claim
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.judging.selectors import DeviceSelectors

CATALOGUE = Catalogue()
CLASS = "neuron.aws.com"
MAPPED = MappedTemplate("team-a", "own", ("aws.amazon.com/neuron",), 4)
TRN = ("trn1.32xlarge", "trn2.48xlarge")
FOURS = {"constraints": [{"matchAttribute": "resource.aws.com/devicegroup4_id"}]}


def context() -> ClaimContext:
    return ClaimContext(CATALOGUE, DeviceIndex(catalogue_shapes(CATALOGUE)), DeviceSelectors(lambda: 0.0))


def ask(amount: int, resource: str = "neuron") -> Ask:
    return Ask("main", Role.APP, "spec.containers[0]", f"aws.amazon.com/{resource}", amount)


def class_request(count: Any, name: str = "r", types: str = "", **more: Any) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": CLASS, **more}
    exactly |= {"allocationMode": "All"} if count == "All" else {"count": count}
    if types:
        expression = f"device.attributes['neuron.aws.com'].instanceType == '{types}'"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": name, "exactly": exactly}


def config(kind: str, field: str, value: int) -> dict[str, Any]:
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": kind, field: value}
    return {"opaque": {"driver": "neuron.aws.com", "parameters": parameters}}


LNC_1 = config("NeuronConfig", "logicalNeuronCore", 1)


def compare(
    wanted: Ask,
    *requests: dict[str, Any],
    types: tuple[str, ...] = TRN,
    device: DeviceConfig = DeviceConfig(),
    unconnected: bool = False,
    **devices: Any,
) -> str:
    entries = tuple(entry for entry in CATALOGUE if entry.name in types)
    need = Need(MAPPED, (wanted,), entries, device, CLASS, unconnected)
    body = {"spec": {"devices": {"requests": list(requests), **devices}}}
    return difference(need, read_claim("ResourceClaimTemplate", "resource.k8s.io/v1", body)[0], context())


@pytest.mark.parametrize("amount", [1, 4, 8, 16])
@pytest.mark.parametrize("resource", ["neuron", "neuroncore"])
@pytest.mark.parametrize("lnc", [None, 1])
@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge"])
def test_a_generated_claim_spec_has_no_difference(amount: int, resource: str, lnc: int | None, name: str) -> None:
    wanted, device = ask(amount, resource), DeviceConfig(lnc)
    entries = [entry for entry in CATALOGUE if entry.name == name]
    made = make_claim([wanted], entries, device, CLASS, pin_types=True)
    if not isinstance(made, Claim):
        assert (name, amount, resource) == ("inf2.48xlarge", 16, "neuron")
        return
    spec = read_claim("ResourceClaimTemplate", "resource.k8s.io/v1", made.template.spec)[0]
    assert difference(Need(MAPPED, (wanted,), tuple(entries), device, CLASS), spec, context()) == ""


SAME = {
    "a whole node": compare(ask(16), class_request(16, types="trn2.48xlarge")),
    "all devices of a node": compare(ask(16), class_request("All", types="trn2.48xlarge")),
    "a connected group": compare(ask(4), class_request(4), **FOURS),
    "two requests, one group": compare(ask(4), class_request(2, "a"), class_request(2, "b"), **FOURS),
    "a policy that needs no connection": compare(ask(7), class_request(7), unconnected=True),
    "the same logical NeuronCore": compare(
        ask(16), class_request(16, types="trn2.48xlarge"), device=DeviceConfig(1), config=[LNC_1]
    ),
}
DIFFERENT = {
    "it gives 8 devices on trn2.48xlarge, where the pod needs 16 devices": compare(
        ask(16), class_request(8, types="trn2.48xlarge")
    ),
    "its devices need not be connected: nothing keeps the 4 devices of request r connected": compare(
        ask(4), class_request(4)
    ),
    "its devices need not be connected: one container uses 4 devices of requests a, b; nothing keeps them "
    "connected": compare(ask(4), class_request(2, "a"), class_request(2, "b")),
    "it sets logical NeuronCore 1, and the pod asks for no logical NeuronCore": compare(
        ask(16), class_request(16, types="trn2.48xlarge"), config=[LNC_1]
    ),
    "it sets no logical NeuronCore, and the pod asks for logical NeuronCore 1": compare(
        ask(16), class_request(16, types="trn2.48xlarge"), device=DeviceConfig(1)
    ),
    "it requests no Neuron devices": compare(
        ask(1), {"name": "r", "exactly": {**class_request(1)["exactly"], "deviceClassName": "gpu.example.com"}}
    ),
    "its request 'r' has adminAccess, which allocates no device": compare(
        ask(1), class_request(1, types="trn2.48xlarge", adminAccess=True)
    ),
    "it selects inf2.48xlarge, and the pod can run on trn1.32xlarge, trn2.48xlarge": compare(
        ask(1), class_request(1, types="inf2.48xlarge")
    ),
    "it has an error: NEU521: 17 devices are requested, and a node of trn2.48xlarge has 16. Request 16 or "
    "fewer": compare(ask(4), class_request(17, types="trn2.48xlarge"), **FOURS),
    "it gives 4 devices on trn1.32xlarge, where the pod needs 8 devices": compare(
        ask(16, "neuroncore"), class_request(4), types=("trn1.32xlarge",), **FOURS
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_serves_the_pod_is_no_difference(name: str) -> None:
    assert SAME[name] == ""


@pytest.mark.parametrize("said", DIFFERENT)
def test_a_difference_is_reported(said: str) -> None:
    assert DIFFERENT[said] == said


def test_a_class_of_ours_with_another_name_is_a_difference() -> None:
    own = {
        "name": "r",
        "exactly": {**class_request(1, types="trn2.48xlarge")["exactly"], "deviceClassName": "team-class"},
    }
    assert compare(ask(1), own) == "it requests DeviceClass 'team-class', and the pod gets devices of neuron.aws.com"


def test_alternatives_with_other_numbers_are_a_difference() -> None:
    choices = [{"name": f"a{count}", "deviceClassName": CLASS, "count": count} for count in (4, 8)]
    said = compare(ask(4), {"name": "r", "firstAvailable": choices}, **FOURS)
    assert said == "it gives 4 devices or 8 devices on trn1.32xlarge, where the pod needs 4 devices"


def test_an_ultraserver_needs_the_same_mode() -> None:
    expression = "device.attributes['neuron.aws.com'].resourceType == 'neuron_node'"
    node = class_request(1, selectors=[{"cel": {"expression": expression}}])
    device, types = DeviceConfig(None, 4), ("trn2u.48xlarge",)
    fours = config("UltraServerConfig", "ultraserverMode", 4)
    twos = config("UltraServerConfig", "ultraserverMode", 2)
    assert compare(ask(16), node, types=types, device=device, config=[fours]) == ""
    assert (
        compare(ask(16), node, types=types, device=device, config=[twos])
        == "it sets UltraServer mode 2, and the pod asks for UltraServer mode 4"
    )


def test_an_instance_type_that_cannot_serve_the_pod_is_a_difference() -> None:
    said = compare(ask(7), class_request(7, types="trn2.48xlarge"), types=("trn2.48xlarge",))
    assert said.startswith(("it has an error: NEU520", "on trn2.48xlarge: Instance type trn2.48xlarge does not"))
