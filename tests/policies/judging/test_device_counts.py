"""The maximum number of devices that an object can hold, and the reason if it could hold more."""

import json
from typing import Any

import pytest

from conversion.claims import selectors
from neuron import names
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.judging.device_counts import of_claim, of_pod, read_record
from policies.judging.knowledge import DeviceKnowledge, WholeNodes
from policies.judging.selectors import DeviceSelectors
from policies.judging.tally import MOST, lncs_of
from tests.support.timing import assert_below

V1 = "resource.k8s.io/v1"
NEURON, CORES = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
BETA = "resource.k8s.io/v1beta1"
PUBLISHED = [each for each in catalogue_shapes(Catalogue()) if each.resource_type == names.RESOURCE_TYPE_NODE]
WHOLE_NODES = DeviceKnowledge(whole_nodes=WholeNodes(Catalogue(), PUBLISHED))


def limited(name: str = "a", *, always: bool = False, **limits: Any) -> dict[str, Any]:
    known = {"neuron": NEURON, "cores": CORES, "old": "aws.amazon.com/neurondevice"}
    made: dict[str, Any] = {"name": name, "resources": {"limits": {known[key]: value for key, value in limits.items()}}}
    return {**made, "restartPolicy": "Always"} if always else made


def pod_of(*containers: Any, init: tuple[Any, ...] = (), claims: tuple[Any, ...] = (), **spec: Any) -> dict[str, Any]:
    return {
        "spec": {"containers": list(containers), "initContainers": list(init), "resourceClaims": list(claims), **spec}
    }


def claim_of(*requests: Any, **more: Any) -> dict[str, Any]:
    return {"devices": {"requests": list(requests), **more}}


def exactly(count: Any = 1, name: str = "r", device_class: str = "neuron.aws.com", **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count, **more}}


def share(cores: Any, count: Any = 1, name: str = "r", key: str = "neuroncores") -> dict[str, Any]:
    return exactly(count, name, capacity={"requests": {key: cores}})


def spec_of(*requests: Any, **more: Any) -> ClaimSpec:
    return read_claim("ResourceClaim", V1, claim_of(*requests, **more))[0]


def selecting(*expressions: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": text}} for text in expressions]}


def template_reference(name: str, entry: str = "mine") -> dict[str, str]:
    return {"name": entry, "resourceClaimTemplateName": name}


TYPE = "device.attributes['neuron.aws.com'].instanceType"
KIND = "device.attributes['neuron.aws.com'].resourceType"


@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        pytest.param(claim_of(exactly(4), exactly(4, "s")), 8, id="sum"),
        pytest.param(claim_of(exactly(None, allocationMode="All")), 16, id="all"),
        pytest.param(claim_of(exactly(None, allocationMode="all")), 16, id="all-misspelt"),
        pytest.param(claim_of(exactly(None, allocationMode="All", adminAccess=True)), 0, id="admin-access"),
        pytest.param(claim_of(exactly(4, adminAccess=False)), 4, id="no-admin-access"),
        pytest.param(
            claim_of({"name": "r", "firstAvailable": [exactly(8, adminAccess=True)["exactly"] | {"name": "s"}]}),
            8,
            id="alternatives-have-no-admin-access",
        ),
        pytest.param(claim_of(exactly(None, allocationMode="All", adminAccess="true")), 16, id="admin-access-as-text"),
        pytest.param(
            claim_of({"name": "r", "firstAvailable": [exactly(1)["exactly"], exactly(8)["exactly"]]}), 8, id="or"
        ),
        pytest.param(claim_of({**exactly(1), "deviceClassName": "neuron.aws.com", "count": 9}), 1, id="both-forms"),
        pytest.param(claim_of(exactly(2**62), exactly(2**62)), MOST, id="saturates"),
        pytest.param(claim_of(exactly(2**63 - 1)), MOST, id="huge"),
        pytest.param(claim_of(*[exactly(2**n, f"r{n}") for n in range(32)]), MOST, id="powers"),
        pytest.param(claim_of(exactly(0)), 1, id="zero-is-defaulted"),
        pytest.param(claim_of(exactly(1, **selecting(f"{KIND} == 'neuron_node'"))), 16, id="whole-node"),
        pytest.param(claim_of(exactly(1, **selecting(selectors.whole_node()))), 16, id="generated-whole-node"),
        pytest.param(claim_of(exactly(4, **selecting(selectors.single_device()))), 4, id="generated-device"),
        pytest.param({"devices": 7}, 0, id="malformed"),
        pytest.param(claim_of(7, None, "x", {"exactly": []}), 0, id="malformed-requests"),
    ],
)
def test_claims(spec: dict[str, Any], devices: int) -> None:
    assert of_claim(spec, DeviceKnowledge()).devices == devices


@pytest.mark.parametrize(
    ("fields", "devices"),
    [
        pytest.param({"count": 8}, 8, id="count"),
        pytest.param({"allocationMode": "All"}, 16, id="all"),
        pytest.param({"count": 8, "adminAccess": True}, 0, id="admin-access"),
        pytest.param({"exactly": {"deviceClassName": "neuron.aws.com", "count": 9}}, 1, id="both-forms"),
    ],
)
def test_claims_of_the_first_beta_version(fields: dict[str, Any], devices: int) -> None:
    spec = claim_of({"name": "r", "deviceClassName": "neuron.aws.com", **fields})
    assert of_claim(spec, DeviceKnowledge(), version=BETA).devices == devices


@pytest.mark.parametrize(
    ("expressions", "constraint", "devices"),
    [
        pytest.param([], "", 16, id="anything"),
        pytest.param([f"{TYPE} == 'trn1.32xlarge'"], "", 1, id="another-type"),
        pytest.param([f"{TYPE} in ['trn1.32xlarge', 'trn2.48xlarge']"], "", 1, id="other-types"),
        pytest.param([f"{TYPE} in ['trn1.32xlarge', 'trn2u.48xlarge']"], "", 16, id="one-of-the-types"),
        pytest.param([f"{TYPE} != 'trn1.32xlarge'"], "", 16, id="any-but"),
        pytest.param([f"true && {KIND} == 'neuron_device'"], "", 1, id="device"),
        pytest.param([f"{KIND} != 'neuron_node'"], "", 1, id="no-node"),
        pytest.param([f"{KIND} == 'neuron_device' || true"], "", 16, id="or-anything"),
        pytest.param([f"!({KIND} == 'neuron_device')"], "", 16, id="not"),
        pytest.param([f"{KIND} == 'neuron_' + 'node'"], "", 16, id="computed"),
        pytest.param([f"[{KIND} == 'neuron_device'].size() == 1"], "", 16, id="inside-something-else"),
        pytest.param(["has(device.attributes['neuron.aws.com'].ultraserverId)"], "", 16, id="by-another-attribute"),
        pytest.param([selectors.single_device()], "", 1, id="generated"),
        pytest.param(["("], "", 16, id="no-cel"),
        pytest.param(["(" * 5000], "", 16, id="deep"),
        pytest.param([], "resource.aws.com/devicegroup4_id", 1, id="connected"),
        pytest.param([], "neuron.aws.com/instanceType", 16, id="another-constraint"),
    ],
)
def test_one_device_may_be_a_whole_node(expressions: list[str], constraint: str, devices: int) -> None:
    more: dict[str, Any] = {"constraints": [{"requests": ["r"], "matchAttribute": constraint}]} if constraint else {}
    spec = claim_of(exactly(1, **selecting(*expressions)), **more)
    assert of_claim(spec, WHOLE_NODES).devices == devices


def test_selectors_are_parsed_within_a_time() -> None:
    spec = claim_of(exactly(1, **selecting(f"{KIND} != 'neuron_node' && 'bounded' != ''")))
    over = DeviceSelectors(lambda: 1.0, 0.5)
    found = of_claim(spec, WHOLE_NODES, over)
    assert (found.devices, over.exceeded) == (16, True)
    assert found.unknown == "the selectors of request 'r' take too long to read"
    enough = DeviceSelectors(lambda: 0.0, 0.5)
    found = of_claim(spec, WHOLE_NODES, enough)
    assert (found.devices, found.unknown, enough.exceeded) == (1, "", False), "a time-out is not remembered"


def test_only_so_many_selectors_are_parsed_for_the_first_time() -> None:
    texts = [f"{KIND} != 'neuron_node' && '{at}th of several' != ''" for at in range(3)]
    spec = claim_of(*(exactly(1, **selecting(text)) | {"name": f"r{at}"} for at, text in enumerate(texts)))
    few = DeviceSelectors(lambda: 0.0, 0.5, 2)
    assert (of_claim(spec, WHOLE_NODES, few).unknown != "", few.exceeded) == (True, True)
    # The first two are known now.
    again = DeviceSelectors(lambda: 0.0, 0.5, 2)
    assert (of_claim(spec, WHOLE_NODES, again).unknown, again.exceeded) == ("", False)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (claim_of(exactly(1, device_class="gpu")), "it is not known whether DeviceClass 'gpu' has Neuron devices"),
        (claim_of(exactly(1, device_class="neuron.aws.comx")), "it is not known whether DeviceClass 'neuron.aws.comx'"),
        (claim_of(exactly("4")), "the number of devices of request 'r' is not known"),
        (claim_of(exactly(True)), "the number of devices of request 'r' is not known"),
        (claim_of(exactly(4.5)), "the number of devices of request 'r' is not known"),
        (claim_of(exactly(-1)), "the number of devices of request 'r' is not known"),
        (claim_of(exactly(10**400)), "the number of devices of request 'r' is not known"),
        (claim_of(exactly(1, allocationMode="Some")), "allocationMode 'Some' is not known"),
        (claim_of(*[exactly(1, f"r{n}") for n in range(200)]), "requests has 200 entries"),
        (claim_of(share("x")), "capacity 'neuroncores' is 'x', a string, not a quantity of 0 or more"),
        (claim_of({"name": "r", "newForm": {}}), "request 'r' is of a form that is not known"),
    ],
)
def test_unknown_counts_have_a_reason(spec: dict[str, Any], why: str) -> None:
    holding = of_claim(spec, DeviceKnowledge())
    assert holding.unknown.startswith(why)
    assert holding.values()["devicesKnown"] is False


def test_classes_are_judged_by_what_they_select() -> None:
    knowledge = DeviceKnowledge(classes={"fast": True, "gpu": False, "odd": None, "neuron.aws.com": True})
    asks = [exactly(2, "a", "fast"), exactly(2, "b", "gpu"), exactly(2, "c")]
    holding = of_claim(claim_of(*asks), knowledge)
    assert (holding.devices, holding.classes, holding.unknown) == (4, ("fast", "neuron.aws.com"), "")
    assert of_claim(claim_of(exactly(1, "a", "odd")), knowledge).unknown
    assert of_claim(claim_of(exactly(1, "a", "new")), knowledge).unknown


@pytest.mark.parametrize(
    ("data", "devices", "cores"),
    [
        pytest.param(pod_of(limited(neuron=4), limited("b", neuron="4")), 8, 0, id="sum"),
        pytest.param(pod_of(limited(cores=32)), 16, 32, id="cores"),
        pytest.param(pod_of(limited(cores=1)), 1, 1, id="one-core"),
        pytest.param(pod_of(limited(cores=6)), 4, 6, id="cores-rounded-to-a-group"),
        pytest.param(pod_of(limited(cores=10**9)), 500_000, MOST, id="many-cores"),
        pytest.param(pod_of(limited(neuron=16, cores=1)), 17, 1, id="both"),
        pytest.param(pod_of(limited(neuron=4, old=4)), 4, 0, id="two-names"),
        pytest.param(pod_of(limited(neuron=4, old=8)), 12, 0, id="two-names-that-contradict"),
        pytest.param(pod_of(limited(neuron=16, old=16, cores=32)), 16, 32, id="three-names"),
        pytest.param(pod_of(limited(neuron=16, cores=64)), 16, 64, id="cores-at-an-lnc"),
        pytest.param(pod_of(limited(neuron=16, old=8, cores=32)), 40, 32, id="three-names-that-contradict"),
        pytest.param(pod_of(limited(neuron=16, cores=33)), 33, 33, id="cores-of-other-devices"),
        pytest.param(pod_of(init=(limited("s", always=True, neuron=4), limited("i", neuron=4))), 8, 0, id="sidecar"),
        pytest.param(pod_of(init=(limited("i", neuron=4), limited("s", always=True, neuron=4))), 4, 0, id="before"),
        pytest.param(
            pod_of(limited(neuron=2), init=(limited("s", always=True, neuron=4), limited("i", neuron=1))),
            6,
            0,
            id="mix",
        ),
        pytest.param(pod_of({"name": "a", "resources": {"requests": {NEURON: 16}}}), 16, 0, id="requests-alone"),
        pytest.param(
            pod_of({"name": "a", "resources": {"limits": {NEURON: 1}, "requests": {NEURON: 9}}}), 9, 0, id="more"
        ),
        pytest.param(
            pod_of({"name": "a", "resources": {"limits": {"deviceclass.resource.kubernetes.io/neuron.aws.com": 16}}}),
            16,
            0,
            id="implicit-extended-resource",
        ),
        pytest.param(pod_of(*[limited(f"c{n}", neuron=10**9) for n in range(50)]), MOST, 0, id="saturates"),
        pytest.param({"spec": {"containers": 3, "initContainers": {}, "resourceClaims": "x"}}, 0, 0, id="malformed"),
    ],
)
def test_pods(data: dict[str, Any], devices: int, cores: int) -> None:
    holding = of_pod(data, DeviceKnowledge())
    assert (holding.devices, holding.cores, holding.unknown) == (devices, cores, "")


@pytest.mark.parametrize("amount", ["4.5", "x", {}, [], True, -1, "1e100", "9" * 5000])
def test_an_unreadable_amount_has_a_reason(amount: object) -> None:
    holding = of_pod(pod_of(limited(neuron=amount)), DeviceKnowledge())
    assert holding.unknown.startswith("container 'a' requests an amount of 'aws.amazon.com/neuron' that is ")
    assert len(holding.unknown) < 200


def test_an_extended_resource_counts_by_its_class() -> None:
    data = pod_of({"name": "a", "resources": {"limits": {"example.com/npu": 8, "cpu": 4}}})
    assert of_pod(data, DeviceKnowledge(extended={"example.com/npu": "neuron.aws.com"})).devices == 8
    assert of_pod(data, DeviceKnowledge()).devices == 0


def test_limits_and_claims_add_up() -> None:
    knowledge = DeviceKnowledge(templates={"four": spec_of(exactly(4))}, claims={"shared": spec_of(exactly(2))})
    shared = {"name": "c", "resourceClaimName": "shared"}
    data = pod_of(
        limited(neuron=4),
        claims=(template_reference("four"), template_reference("four", "again"), shared, {**shared, "name": "d"}),
    )
    assert of_pod(data, knowledge).devices == 4 + 4 + 4 + 2


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (template_reference("gone"), "ResourceClaimTemplate 'gone' is not known"),
        ({"name": "c", "resourceClaimName": "gone"}, "ResourceClaim 'gone' is not known"),
        ({"name": "c"}, "the claim 'c' names no ResourceClaim and no template"),
        ({"name": "c", "resourceClaimTemplateName": 7}, "the claim 'c' names no ResourceClaim and no template"),
    ],
)
def test_unknown_claims_have_a_reason(entry: dict[str, Any], why: str) -> None:
    assert of_pod(pod_of(claims=(entry,)), DeviceKnowledge()).unknown == why


def test_reasons_are_few_and_short() -> None:
    holding = of_pod(
        pod_of(claims=tuple(template_reference(f"{n}{'x' * 200}") for n in range(5000))), DeviceKnowledge()
    )
    assert holding.unknown.count(";") == 2
    assert len(holding.unknown) < 400


RECORD = {"containers": {"a": {NEURON: "16"}}, "initContainers": {"i": {NEURON: "2"}}}


@pytest.mark.parametrize("record", [json.dumps(RECORD), '{"x": 1}', "[", "[]", 7, "9" * 5000])
def test_an_unverified_record_is_not_counted(record: object) -> None:
    data = pod_of(limited(neuron=4)) | {"metadata": {"annotations": {"neuron.aws.com/converted-from": record}}}
    holding = of_pod(data, DeviceKnowledge())
    assert (holding.devices, holding.converted) == (4, False)
    assert isinstance(read_record(data), dict)


def test_a_verified_record_counts_for_its_claim() -> None:
    data = pod_of({"name": "a"}, init=({"name": "i"},), claims=(template_reference("neuron-16-x", "neuron"),))
    known = DeviceKnowledge(record=RECORD, recorded_claim="neuron")
    holding = of_pod(data, known)
    assert (holding.devices, holding.converted, holding.unknown) == (16, True, "")
    assert [each["amount"] for each in holding.requests] == [2, 16]
    # What the template asks for counts once it is known: cores may have become fewer devices.
    known = DeviceKnowledge(record=RECORD, recorded_claim="neuron", templates={"neuron-16-x": spec_of(exactly(8))})
    assert of_pod(data, known).devices == 8


def test_limits_and_other_claims_count_beside_a_verified_record() -> None:
    known = DeviceKnowledge(record=RECORD, recorded_claim="neuron", templates={"own": spec_of(exactly(4))})
    data = pod_of(
        limited(neuron=1), claims=(template_reference("neuron-16-x", "neuron"), template_reference("own", "own"))
    )
    assert of_pod(data, known).devices == 1 + 16 + 4


def test_every_logical_neuron_core_counts() -> None:
    def config(lnc: object, driver: str = "neuron.aws.com", **more: Any) -> dict[str, Any]:
        return {"opaque": {"driver": driver, "parameters": {"logicalNeuronCore": lnc, **more}}}

    spec = claim_of(
        exactly(1), config=[config(1, "gpu"), config(2), config(1, apiVersion="old/v1"), config("x"), {}, 7]
    )
    assert of_claim(spec, DeviceKnowledge()).lncs == (2, 1)
    data = pod_of(claims=(template_reference("t"),)) | {
        "metadata": {"annotations": {"neuron.aws.com/logical-neuron-core": "1"}}
    }
    read = read_claim("ResourceClaim", V1, claim_of(exactly(1), config=[config(2, kind="NeuronConfig")]))[0]
    holding = of_pod(data, DeviceKnowledge(templates={"t": read}, class_lncs={"neuron.aws.com": (1,)}))
    assert holding.lncs == (1, 2)
    assert holding.values()["lnc"] == 1


@pytest.mark.parametrize(
    "parameters",
    [
        {"logicalNeuronCore": 1},
        {"kind": "NeuronConfig", "LogicalNeuronCore": 1},
        {"kind": "NeuronConfig", "logicalNeuronCore": 1.0},
        {"kind": "NeuronConfig", "logicalNeuronCore": True},
        {"kind": "NeuronConfig", "logicalNeuronCore": 1, "LogicalNeuronCore": [1]},
        {"apiVersion": "old/v1", "kind": "Other", "logicalNeuronCore": 1, "more": [None]},
    ],
)
def test_broken_parameters_count_the_same_in_a_claim_and_in_a_template_that_a_pod_names(parameters: object) -> None:
    spec = claim_of(exactly(1), config=[{"opaque": {"driver": "neuron.aws.com", "parameters": parameters}}])
    read = read_claim("ResourceClaim", V1, spec)[0]
    assert of_claim(spec, DeviceKnowledge()).lncs == (1,)
    assert of_pod(pod_of(claims=(template_reference("t"),)), DeviceKnowledge(templates={"t": read})).lncs == (1,)
    assert lncs_of(read.configs) == (1,)


@pytest.mark.parametrize("section", ["containers", "initContainers", "ephemeralContainers"])
def test_a_container_s_own_choice_of_the_logical_neuron_core_counts(section: str) -> None:
    def chosen(**entry: object) -> tuple[int, ...]:
        container = {
            "name": "a",
            "env": [7, {"name": "X", "value": "1"}, {"name": "NEURON_LOGICAL_NC_CONFIG", **entry}],
        }
        return of_pod({"spec": {section: [container]}}, DeviceKnowledge()).lncs

    assert chosen(value="1") == (1,)
    assert chosen(value=" 2\n") == (2,)
    for entry in ({"value": "3"}, {"value": ""}, {"value": 1}, {"value": "12"}, {"value": "none"}, {}):
        assert chosen(**entry) == ()
    assert chosen(valueFrom={"configMapKeyRef": {}}) == (1, 2), "any value"


@pytest.mark.parametrize("name", ["NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"])
@pytest.mark.parametrize(
    ("value", "lncs"),
    [
        ("01", (1,)),
        ("+2", (2,)),
        ("2.0", (2,)),
        ("0x1", (1,)),
        ("$(A)", (2,)),
        ("$(EMPTY)$(A)", (2,)),
        ("$(B)", (2,)),
        ("$$(A)", ()),
        ("$(LATER)", ()),
        ("$(REFERRED)", (1, 2)),
        ("$(THROUGH)", (1, 2)),
        ("$(A", ()),
        ("$A", ()),
    ],
)
def test_variables_are_expanded_as_the_kubelet_does(name: str, value: str, lncs: tuple[int, ...]) -> None:
    before = [
        {"name": "A", "value": "2"},
        {"name": "EMPTY"},
        {"name": "B", "value": "$(A)"},
        {"name": "REFERRED", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "THROUGH", "value": "$(REFERRED)"},
    ]
    env = [*before, {"name": name, "value": value}, {"name": "LATER", "value": "1"}]
    assert of_pod({"spec": {"containers": [{"env": env}]}}, DeviceKnowledge()).lncs == lncs
    from_elsewhere = {"env": [{"name": name, "value": "$(X)"}], "envFrom": [{"configMapRef": {"name": "a"}}]}
    assert of_pod({"spec": {"containers": [from_elsewhere]}}, DeviceKnowledge()).lncs == (1, 2)


def test_sources_of_variables_do_not_count() -> None:
    """Most have no such variable, and a policy would refuse every pod that has one."""
    sources = {"env": [{"name": "A", "value": "2"}], "envFrom": [{"configMapRef": {"name": "a"}, "prefix": "NEURON_"}]}
    assert of_pod({"spec": {"containers": [sources]}}, DeviceKnowledge()).lncs == ()


def test_claims_that_a_pod_names_are_counted_apart() -> None:
    """Each once, of any driver, and also those that are not known."""
    knowledge = DeviceKnowledge(
        templates={"four": spec_of(exactly(4))},
        claims={"two": spec_of(exactly(2)), "gpu": spec_of({**exactly(8), "exactly": {"deviceClassName": "gpu"}})},
        classes={"neuron.aws.com": True, "gpu": False},
    )

    def named(*claims: str) -> tuple[int, int, int]:
        entries = [{"name": f"c{n}", "resourceClaimName": name} for n, name in enumerate(claims)]
        holding = of_pod(pod_of(limited(neuron=1), claims=(template_reference("four"), *entries)), knowledge)
        return holding.devices, holding.named_claims, holding.named_devices

    assert named() == (5, 0, 0)
    assert named("two", "two") == (7, 1, 2)
    assert named("two", "gpu") == (7, 2, 2)
    assert named("unknown") == (5, 1, 0)


def test_expansion_does_not_grow_without_bound() -> None:
    env = [{"name": "V0", "value": "x" * 100}]
    env += [{"name": f"V{n}", "value": f"$(V{n - 1})" * 10} for n in range(1, 200)]
    env.append({"name": "NEURON_LOGICAL_NC_CONFIG", "value": "$(V199)"})
    assert of_pod({"spec": {"containers": [{"env": env}]}}, DeviceKnowledge()).lncs == (1, 2)


def test_counting_takes_linear_time() -> None:
    import time

    spec = {"requests": [exactly(1, f"r{n}") for n in range(20_000)]}
    spec["constraints"] = [
        {"requests": [f"r{n}"], "matchAttribute": "resource.aws.com/devicegroup4_id"} for n in range(9000)
    ]
    data = pod_of(
        *[limited(f"c{n}", neuron=1) for n in range(10_000)],
        claims=tuple(template_reference(f"t{n}") for n in range(10_000)),
    )
    started = time.monotonic()
    of_claim({"devices": spec}, DeviceKnowledge())
    of_pod(data, DeviceKnowledge())
    assert_below(time.monotonic() - started, 5)


@pytest.mark.parametrize(
    ("spec", "devices", "cores"),
    [
        pytest.param(claim_of(exactly(2)), 2, 0, id="whole devices"),
        pytest.param(claim_of(share("1")), 1, 1, id="a share"),
        pytest.param(claim_of(share(2)), 1, 2, id="a number"),
        pytest.param(claim_of(share("1", 4)), 4, 4, id="shares of several devices"),
        pytest.param(claim_of(share("1", key="neuron.aws.com/neuroncores")), 1, 1, id="with the driver's domain"),
        pytest.param(claim_of(exactly(2, "w"), share("1", name="c")), 3, 1, id="whole devices and a share"),
        pytest.param(claim_of(share("500m")), 1, 1, id="rounded up"),
        pytest.param(
            claim_of(exactly(None, allocationMode="All", capacity={"requests": {"neuroncores": "1"}})), 16, 16, id="all"
        ),
        pytest.param(
            claim_of({"name": "r", "firstAvailable": [share("4")["exactly"], exactly(2)["exactly"]]}), 2, 4, id="or"
        ),
        pytest.param(claim_of(share("1e12", 10**9)), MOST, MOST, id="saturates"),
        pytest.param(claim_of(exactly(1, capacity={"requests": {"memory": "16Gi"}})), 1, 0, id="memory"),
        pytest.param(claim_of(exactly(1, **selecting(selectors.single_device()), capacity=None)), 1, 0, id="none"),
    ],
)
def test_shares_count_as_devices_and_as_cores(spec: dict[str, Any], devices: int, cores: int) -> None:
    found = of_claim(spec, DeviceKnowledge())
    assert (found.devices, found.cores, found.unknown) == (devices, cores, "")
    known = read_claim("ResourceClaim", V1, spec)[0]
    of_its_pod = of_pod(pod_of(claims=(template_reference("t"),)), DeviceKnowledge(templates={"t": known}))
    assert (of_its_pod.devices, of_its_pod.cores) == (devices, cores)


def test_the_shares_of_a_converted_pod_are_the_cores_of_its_record() -> None:
    record = {"containers": {"a": {CORES: "9"}}}
    made = spec_of(exactly(2, "w"), share("1", name="c"))
    knowledge = DeviceKnowledge(record=record, recorded_claim="neuron", templates={"t": made})
    found = of_pod(pod_of(limited("a"), claims=(template_reference("t", "neuron"),)), knowledge)
    assert (found.devices, found.cores) == (3, 9)
    more = pod_of(limited("a"), claims=(template_reference("t", "neuron"), template_reference("t", "own")))
    assert (of_pod(more, knowledge).devices, of_pod(more, knowledge).cores) == (6, 10)
