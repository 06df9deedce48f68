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
    return ClaimContext(CATALOGUE, DeviceIndex(catalogue_shapes(CATALOGUE)), DeviceSelectors())


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


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(compare(ask(16), class_request(16, types="trn2.48xlarge")), "", id="a whole node"),
        pytest.param(compare(ask(16), class_request("All", types="trn2.48xlarge")), "", id="all devices of a node"),
        pytest.param(compare(ask(4), class_request(4), **FOURS), "", id="a connected group"),
        pytest.param(
            compare(ask(4), class_request(2, "a"), class_request(2, "b"), **FOURS), "", id="two requests, one group"
        ),
        pytest.param(compare(ask(7), class_request(7), unconnected=True), "", id="a policy that needs no connection"),
        pytest.param(
            compare(ask(16), class_request(8, types="trn2.48xlarge")),
            "it gives 8 devices on trn2.48xlarge, where the pod needs 16 devices",
            id="a count",
        ),
        pytest.param(
            compare(ask(4), class_request(4)),
            "its devices need not be connected: nothing keeps the 4 devices of request r connected",
            id="no connection",
        ),
        pytest.param(
            compare(ask(4), class_request(2, "a"), class_request(2, "b")),
            "its devices need not be connected: one container uses 4 devices of requests a, b; nothing keeps them "
            "connected",
            id="two requests without connection",
        ),
        pytest.param(
            compare(ask(16), class_request(16, types="trn2.48xlarge"), config=[LNC_1]),
            "it sets logical NeuronCore 1, and the pod asks for no logical NeuronCore",
            id="a logical NeuronCore",
        ),
        pytest.param(
            compare(ask(16), class_request(16, types="trn2.48xlarge"), device=DeviceConfig(1)),
            "it sets no logical NeuronCore, and the pod asks for logical NeuronCore 1",
            id="no logical NeuronCore",
        ),
        pytest.param(
            compare(ask(16), class_request(16, types="trn2.48xlarge"), device=DeviceConfig(1), config=[LNC_1]),
            "",
            id="the same logical NeuronCore",
        ),
        pytest.param(
            compare(
                ask(1), {"name": "r", "exactly": {**class_request(1)["exactly"], "deviceClassName": "gpu.example.com"}}
            ),
            "it requests no Neuron devices",
            id="a class of another driver",
        ),
        pytest.param(
            compare(ask(1), class_request(1, types="trn2.48xlarge", adminAccess=True)),
            "its request 'r' has adminAccess, which allocates no device",
            id="administrative access",
        ),
        pytest.param(
            compare(ask(1), class_request(1, types="inf2.48xlarge")),
            "it selects inf2.48xlarge, and the pod can run on trn1.32xlarge, trn2.48xlarge",
            id="another instance type",
        ),
        pytest.param(
            compare(ask(4), class_request(17, types="trn2.48xlarge"), **FOURS),
            "it has an error: NEU521: 17 devices are requested, and a node of trn2.48xlarge has 16. Request 16 or "
            "fewer",
            id="an error of its own",
        ),
        pytest.param(
            compare(ask(16, "neuroncore"), class_request(4), types=("trn1.32xlarge",), **FOURS),
            "it gives 4 devices on trn1.32xlarge, where the pod needs 8 devices",
            id="too few cores",
        ),
    ],
)
def test_a_difference_is_reported(found: str, said: str) -> None:
    assert found == said


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
