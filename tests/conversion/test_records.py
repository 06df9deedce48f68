"""Which records are verified: the required fields of the pod and the required content of its template."""

import copy
import json
from typing import Any, ClassVar

import jsonpatch
import pytest
from msgspec import structs

from conversion.asks import claimed, records
from conversion.claims import selectors
from conversion.claims.templates import Template
from conversion.findings.verification import Sources, Verified, verify
from conversion.objects import pods
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec
from tests.conversion.test_convert_pods import decide
from tests.support.manifests import CORE, NEURON, container, pod

CONVERTED = "neuron.aws.com/converted"
RECORD = "neuron.aws.com/converted-from"
SIXTEEN = "neuron-16-0123456789ab"


def pod_and_template(manifest: Any) -> tuple[Any, Template]:
    decision = decide(manifest)
    return jsonpatch.apply_patch(manifest, list(decision.patch)), decision.templates[0]


def asks_for(template: Template) -> ClaimSpec:
    return read_claim("ResourceClaimTemplate", "resource.k8s.io/v1", template.spec)[0]


def forged(record: Any, *containers: Any, claims: Any = None, **fields: Any) -> Any:
    """A pod whose author wrote the label and record of a conversion."""
    text = record if isinstance(record, str) else json.dumps(record)
    manifest = pod(*containers, labels={CONVERTED: "true"}, annotations={RECORD: text}, **fields)
    manifest["spec"]["resourceClaims"] = claims or [{"name": "neuron", "resourceClaimTemplateName": SIXTEEN}]
    return manifest


def using(name: str = "main", claim: str = "neuron", **asks: Any) -> Any:
    made = container(name, **asks)
    made.setdefault("resources", {})["claims"] = [{"name": claim}]
    return made


def claimed_of(manifest: Any) -> claimed.Claimed | None:
    return claimed.claimed(pods.view(manifest))


def verified(manifest: Any, template: Any, computed: str | None = None) -> Verified | None:
    return verify(manifest, template, Sources(frozenset({"neuron.aws.com"})), lambda: {computed} - {None})


ONE = {"containers": {"main": {NEURON: "1"}}}


def test_the_record_of_a_conversion_is_found_and_verified() -> None:
    stored, template = pod_and_template(pod(container(neuron="4"), init=[container("warm", neuron="8")]))
    conversion = claimed_of(stored)
    assert conversion is not None
    assert (conversion.claim, conversion.index, conversion.template) == ("neuron", 0, template.name)
    assert [(ask.container, ask.amount) for ask in conversion.asks] == [("warm", 8), ("main", 4)]
    checked = verified(stored, {template.name: asks_for(template)}.get)
    assert checked is not None
    assert (checked.claim, checked.template) == (conversion.claim, conversion.template)
    assert (checked.of("warm"), checked.of("main")) == ({NEURON: "8"}, {NEURON: "4"})


FORGED = {
    "no-label": pod(using(), annotations={RECORD: json.dumps(ONE)}),
    "zero-devices": forged({"containers": {"main": {NEURON: "0"}}}, using()),
    "zero-devices-and-limits": forged({"containers": {"main": {NEURON: "0"}}}, container(neuron="16")),
    "other-json": forged({"x": 1}, using()),
    "no-containers": forged({"containers": {}}, using()),
    "a-container-that-is-not-there": forged({"containers": {"main": {NEURON: "1"}, "ghost": {NEURON: "1"}}}, using()),
    "the-wrong-section": forged({"initContainers": {"main": {NEURON: "1"}}}, using()),
    "no-count": forged({"containers": {"main": {NEURON: "half"}}}, using()),
    "two-resources": forged({"containers": {"main": {NEURON: "1", "aws.amazon.com/neurondevice": "2"}}}, using()),
    "another-resource": forged({"containers": {"main": {"cpu": "1"}}}, using()),
    "limits-and-no-reference": forged(ONE, container(neuron="16")),
    "no-count-beside": forged({"containers": {"main": {NEURON: "1"}, "b": {NEURON: "half"}}}, using(), using("b")),
    "another-resource-beside": forged({"containers": {"main": {NEURON: "1", "cpu": "1"}}}, using()),
    "a-list-of-init-containers": forged(ONE | {"initContainers": []}, using()),
    "a-template-that-is-no-text": forged(ONE | {"template": 1}, using()),
    "a-template-with-a-long-name": forged(
        ONE | {"template": "t" * 254}, using(), claims=[{"name": "neuron", "resourceClaimTemplateName": "t" * 254}]
    ),
    **{
        f"efa-{name}": forged(ONE | {"efa": efa}, using())
        for name, efa in {
            "list": [],
            "empty": {},
            "another-member": {"container": "main", "count": 1, "x": 1},
            "no-name": {"container": ["main"], "count": 1},
            "text": {"container": "main", "count": "1"},
            "true": {"container": "main", "count": True},
            "none": {"container": "main", "count": 0},
            "many": {"container": "main", "count": 129},
        }.items()
    },
    "no-claim": forged(ONE, using(), claims=[{"name": "x", "resourceClaimTemplateName": SIXTEEN}]),
    "an-own-claim": forged(ONE, using(), claims=[{"name": "neuron", "resourceClaimTemplateName": "neuron-own"}]),
    "a-claim-that-exists": forged(ONE, using(), claims=[{"name": "neuron", "resourceClaimName": SIXTEEN}]),
    "two-claims-of-one-name": forged(
        ONE, using(), claims=[{"name": "neuron", "resourceClaimTemplateName": SIXTEEN}] * 2
    ),
    "two-containers-of-one-name": forged(ONE, using(), using()),
    "one-name-in-both-sections": forged(ONE, using(), init=[using()]),
    "a-claim-of-another-name": forged(ONE | {"claim": "neuron-dra"}, using()),
    "a-claim-name-that-is-not-ours": forged(ONE | {"claim": "x"}, using(claim="x")),
    "too-many-containers": forged(
        {"containers": {"main": {NEURON: "1"}} | {f"c{index}": {} for index in range(600)}}, using()
    ),
    "too-long": forged(json.dumps(ONE) + " " * records.MOST_BYTES, using()),
    "too-deep": forged('{"containers": {}, "hints": ' + "[" * 60_000 + "]" * 60_000 + "}", using()),
    "too-large": forged(ONE, using(), tolerations=[{}] * 2000),
}


@pytest.mark.parametrize("manifest", FORGED.values(), ids=FORGED)
def test_a_record_that_contradicts_its_pod_is_ignored(manifest: Any) -> None:
    assert claimed_of(manifest) is None
    assert verified(manifest, lambda _: ClaimSpec("")) is None


def test_a_claim_reference_that_another_webhook_removed_is_reported() -> None:
    stored, template = pod_and_template(pod(container("a", neuron="4"), container("b", neuron="1")))
    del stored["spec"]["containers"][1]["resources"]["claims"]
    conversion = claimed_of(stored)
    assert conversion is not None
    assert conversion.lost == ("b",)
    checked = verified(stored, {template.name: asks_for(template)}.get)
    assert checked is not None
    assert checked.lost == ("b",)


def test_a_lost_reference_is_found_after_a_container_without_devices() -> None:
    record = {"containers": {"a": {NEURON: "0"}, "b": {NEURON: "1"}}}
    conversion = claimed_of(forged(record, container("a"), container("b")))
    assert conversion is not None
    assert conversion.lost == ("b",)


@pytest.mark.parametrize("section", ["containers", "initContainers"])
def test_resources_of_the_wrong_type_are_reported_with_their_path(section: str) -> None:
    manifest = forged({section: {"main": {NEURON: "1"}}})
    manifest["spec"][section] = [{"name": "main", "resources": {"limits": "4"}}]
    with pytest.raises(pods.UnreadableError, match=rf"spec\.{section}\[0\]"):
        claimed_of(manifest)


def test_a_limit_range_default_does_not_invalidate_a_record() -> None:
    stored, template = pod_and_template(pod(container(neuron="4")))
    stored["spec"]["containers"][0]["resources"]["limits"] = {NEURON: "16"}
    assert verified(stored, {template.name: asks_for(template)}.get) is not None


class TestOwnClaimNamedNeuron:
    """A claim of the user's own under our name, for a template that is called like ours."""

    own: ClassVar = {"name": "neuron", "resourceClaimTemplateName": SIXTEEN}

    def test_the_generated_claim_gets_another_name_and_is_found(self) -> None:
        stored, template = pod_and_template(pod(container(neuron="4"), resourceClaims=[self.own]))
        conversion = claimed_of(stored)
        assert conversion is not None
        assert (conversion.claim, conversion.index, conversion.template) == ("neuron-dra", 1, template.name)
        restated = claimed.restated(pods.view(stored))
        assert restated is not None
        assert (restated.claim, restated.index) == ("neuron-dra", 1)

    def test_the_generated_claim_is_found_if_the_container_uses_both_claims(self) -> None:
        stored, _ = pod_and_template(pod(using(neuron="4"), resourceClaims=[self.own]))
        conversion = claimed_of(stored)
        assert conversion is not None
        assert conversion.claim == "neuron-dra"

    def test_a_users_own_claim_with_the_alternative_name_is_not_the_generated_claim(self) -> None:
        own = {"name": "neuron-dra", "resourceClaimTemplateName": SIXTEEN}
        stored, template = pod_and_template(pod(using(claim="neuron-dra", neuron="4"), resourceClaims=[own]))
        conversion = claimed_of(stored)
        assert conversion is not None
        assert (conversion.claim, conversion.index, conversion.template) == ("neuron", 1, template.name)


def requests(*counts: int, selector: str = selectors.single_device(), mode: str = "ExactCount") -> Any:
    exactly = {
        "deviceClassName": "neuron.aws.com",
        "allocationMode": mode,
        "selectors": [{"cel": {"expression": selector}}],
    }
    entries = [
        {"name": f"n{index}", "exactly": exactly | ({"count": count} if mode == "ExactCount" else {})}
        for index, count in enumerate(counts)
    ]
    return {"spec": {"devices": {"requests": entries}}}


@pytest.mark.parametrize(
    ("asked", "spec", "believed"),
    [
        ("1", requests(1), True),
        ("4", requests(4), True),
        ("1", requests(16), False),
        ("4", requests(4, 4), False),
        ("1", requests(1, selector="true"), False),
        ("1", requests(1, mode="All"), False),
        ("1", requests(1, selector=selectors.whole_node()), False),
        ("16", requests(1, selector=selectors.whole_node()), True),
    ],
    ids=["one", "four", "more", "twice", "any-device", "all-devices", "a-node", "a-node-for-16"],
)
def test_a_template_that_requests_more_than_the_record_does_not_verify_it(
    asked: str, spec: Any, believed: bool
) -> None:
    manifest = forged({"containers": {"main": {NEURON: asked}}}, using())
    template = Template("neuron-x", spec, "")
    conversion = verified(manifest, {SIXTEEN: asks_for(template)}.get)
    assert (conversion is not None) is believed


def test_the_largest_alternative_counts() -> None:
    spec = requests(1)
    (request,) = spec["spec"]["devices"]["requests"]
    one = request.pop("exactly")
    request["firstAvailable"] = [one | {"name": "a"}, one | {"name": "b", "count": 16}]
    manifest = forged(ONE, using())
    assert verified(manifest, lambda _: asks_for(Template("x", spec, ""))) is None


def exactly(count: int = 1, *expressions: str, of: str = "neuron.aws.com", **fields: Any) -> dict[str, Any]:
    return {
        "deviceClassName": of,
        "count": count,
        "selectors": [{"cel": {"expression": each}} for each in expressions],
        **fields,
    }


ALL: Any = {"allocationMode": "All", "count": None}
EFA_CLASS = "efa.networking.k8s.aws"
DEVICE = exactly(1, selectors.single_device())
INTERFACE = exactly(1, selectors.other_driver(), of=EFA_CLASS)
ADMIN = {"adminAccess": True}
WITH_EFA = ONE | {"efa": {"container": "main", "count": 1}}
GROUPS = "resource.aws.com/devicegroup4_id"
CORES = {"containers": {"main": {CORE: "1"}}}
BESIDE = {"containers": {"main": {NEURON: "4"}}, "initContainers": {"side": {NEURON: "2"}}}
LATER = {"containers": {"main": {NEURON: "4"}}, "initContainers": {"warm": {NEURON: "8"}}}
TEMPLATES: dict[str, tuple[Any, list[Any], list[Any], bool]] = {
    "an-interface": (WITH_EFA, [DEVICE, INTERFACE], [], True),
    "an-interface-that-is-not-recorded": (ONE, [DEVICE, INTERFACE], [], False),
    "more-interfaces": (WITH_EFA, [DEVICE, INTERFACE, INTERFACE], [], False),
    "more-devices-after-an-interface": (WITH_EFA, [INTERFACE, DEVICE, DEVICE], [], False),
    "an-interface-or-a-device": (WITH_EFA, [[INTERFACE, DEVICE]], [], False),
    "all-interfaces": (WITH_EFA, [DEVICE, INTERFACE | ALL], [], False),
    "interfaces-with-admin-access": (WITH_EFA, [DEVICE, INTERFACE | ADMIN], [], False),
    "anything-of-the-class-of-interfaces": (WITH_EFA, [DEVICE, exactly(of=EFA_CLASS)], [], False),
    "devices-with-admin-access": (ONE, [DEVICE | ADMIN], [], False),
    "no-alternatives": (ONE, [DEVICE, []], [], True),
    "a-group": (ONE, [exactly()], [{"requests": ["n0"], "matchAttribute": GROUPS}], True),
    "another-attribute": (ONE, [exactly()], [{"requests": ["n0"], "matchAttribute": "neuron.aws.com/x"}], False),
    "a-group-of-another-request": (
        ONE | {"containers": {"main": {NEURON: "2"}}},
        [exactly(), DEVICE],
        [{"requests": ["n1"], "matchAttribute": GROUPS}],
        False,
    ),
    "any-device-of-a-group": (ONE, [exactly(1, "true")], [{"matchAttribute": GROUPS}], False),
    "no-selector": (ONE, [exactly()], [], False),
    "a-device-for-a-core": (CORES, [DEVICE], [], True),
    "four-devices-for-a-core": (CORES, [exactly(4, selectors.single_device())], [], False),
    "devices-that-an-init-container-had": (LATER, [exactly(8, selectors.single_device())], [], True),
    "one-more": (LATER, [exactly(9, selectors.single_device())], [], False),
    "two": (ONE, [exactly(2, selectors.single_device())], [], False),
    "devices-of-a-sidecar": (BESIDE, [exactly(6, selectors.single_device())], [], True),
    "an-interface-of-the-only-container-with-devices": (
        WITH_EFA | {"initContainers": {"warm": {NEURON: "0"}}},
        [DEVICE, INTERFACE],
        [],
        True,
    ),
}


@pytest.mark.parametrize(("record", "asked", "constraints", "believed"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_record_is_verified_by_what_its_template_requests(
    record: Any, asked: list[Any], constraints: list[Any], believed: bool
) -> None:
    entries = [
        {"name": f"n{index}", "firstAvailable": [{"name": f"a{at}", **one} for at, one in enumerate(each)]}
        if isinstance(each, list)
        else {"name": f"n{index}", "exactly": each}
        for index, each in enumerate(asked)
    ]
    spec = asks_for(Template("x", {"spec": {"devices": {"requests": entries, "constraints": constraints}}}, ""))
    manifest = forged(record, using(), init=[using("warm"), using("side", sidecar=True)])
    found = verify(manifest, lambda _: spec, Sources(frozenset({"neuron.aws.com"}), frozenset({EFA_CLASS})))
    assert (found is not None) is believed
    assert found is None or found.gets_interfaces("main") is ("efa" in record)


def test_devices_of_containers_that_run_together_add_up() -> None:
    manifest = forged({"containers": {"a": {NEURON: "4"}, "b": {NEURON: "4"}}}, using("a"), using("b"))
    for counts, believed in (((4, 4), True), ((4, 5), False)):
        spec = asks_for(Template("x", requests(*counts), ""))
        assert (verified(manifest, lambda _, spec=spec: spec) is not None) is believed


@pytest.mark.parametrize(("mapped", "believed"), [({"of-ours"}, True), ({"another"}, False)])
def test_a_template_that_is_not_generated_must_be_one_that_a_policy_names(mapped: set[str], believed: bool) -> None:
    claims = [{"name": "neuron", "resourceClaimTemplateName": "of-ours"}]
    manifest = forged(ONE | {"template": "of-ours"}, using(), claims=claims)
    sources = Sources(frozenset({"neuron.aws.com"}), mapped_templates=frozenset(mapped))
    spec = asks_for(Template("x", requests(1), ""))
    assert (verify(manifest, lambda _: spec, sources) is not None) is believed


def test_an_unknown_template_does_not_verify_a_record() -> None:
    stored, _ = pod_and_template(pod(container(neuron="4")))
    assert verified(stored, lambda _: None) is None


@pytest.mark.parametrize(
    "manifest",
    [
        pod(container(neuroncore="3")),
        pod(container(neuroncore="33")),
        pod(container("a", neuron="4"), container("b", neuroncore="2"), init=[container("i", neuron="8")]),
        pod(container("a", neuron="4"), init=[container("s", neuron="1", sidecar=True), container("i", neuron="8")]),
        pod(container(neuron="16"), annotations={"neuron.aws.com/ultraserver-mode": "4"}),
        pod(container(neuron="4"), annotations={"neuron.aws.com/logical-neuron-core": "1"}),
        pod(container(neuroncore="24"), nodeSelector={"node.kubernetes.io/instance-type": "inf2.48xlarge"}),
    ],
    ids=["cores", "many-cores", "mixed", "sidecar", "ultraserver", "lnc", "ring"],
)
def test_every_record_of_a_conversion_is_verified(manifest: Any) -> None:
    stored, template = pod_and_template(manifest)
    assert verified(stored, {template.name: asks_for(template)}.get) is not None


def test_a_record_is_read_in_canonical_numbers() -> None:
    record = records.decode(
        json.dumps({"containers": {"main": {NEURON: "4e0"}}, "initContainers": {"i": {CORE: "4.0"}}})
    )
    assert record is not None
    assert (record.containers["main"], record.init_containers["i"]) == ({NEURON: "4"}, {CORE: "4"})


def test_a_record_is_read_as_it_was_written() -> None:
    hints = records.AddedHints(
        tolerations=({"key": "a"},),
        node_affinity=records.AddedAffinity(({"key": "b"},), ({"weight": 1},)),
        scheduler_name="own",
        labels={"c": "1"},
        replaced_labels={"d": "2"},
    )
    containers, efa = {"main": {NEURON: "4"}, "a": {}}, records.EfaRequest("main", 2)
    written = records.Record(containers, {"i": {CORE: "4"}}, hints, "neuron-dra", "of-ours", efa)
    text = structs.replace(written, efa_class=EFA_CLASS).encode()
    assert json.loads(text)["efa"] == {"container": "main", "count": 2, "deviceClass": EFA_CLASS}
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert records.decode(text) == written


def test_hints_of_a_record_above_the_limits_are_ignored() -> None:
    stored, _ = pod_and_template(pod(container(neuron="4")))
    claimed = copy.deepcopy(json.loads(stored["metadata"]["annotations"][RECORD]))
    claimed["hints"] = {"tolerations": [{"key": f"k{index}"} for index in range(129)]}
    record = records.decode(json.dumps(claimed))
    assert record is not None
    assert not record.hints
