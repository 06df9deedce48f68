"""EFA limits that a ConversionPolicy moves into the claim."""

import asyncio
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.asks.claimed import claimed, restated
from conversion.findings.verification import verify
from conversion.objects import pods
from conversion.patches.decision import Decision
from neuron.api.claim_reader import read_claim
from policies.files.loader import load
from tests.support.clusters import FakeCluster, mutator, patched, request
from tests.support.manifests import NEURON, container, pod

EFA = "vpc.amazonaws.com/efa"
CLASS = "efa.networking.k8s.aws"
RECORD = "neuron.aws.com/converted-from"
TEMPLATES = "[{demand: {devices: 4}, name: four}]"


def efa_policies(efa: str = "efa: {}", **spec: str) -> Any:
    lines = [f"  {key}: {value}\n" for key, value in spec.items()]
    text = (
        "apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ConversionPolicy\nmetadata: {name: fabric}\n"
        f"spec:\n  order: 10\n  {efa}\n{''.join(lines)}"
    )
    return load({"p.yaml": text.encode()})


ON = efa_policies(families="[trn2]")
OFF = efa_policies("mode: convert", families="[trn2]")


def with_efa(made: dict[str, Any], limit: Any = "4", request: Any = None) -> dict[str, Any]:
    made.setdefault("resources", {}).setdefault("limits", {})[EFA] = limit
    if request is not None:
        made["resources"].setdefault("requests", {})[EFA] = request
    return made


def decide_with_rules(manifest: Any, rules: Any = ON, old: Any = None, **cluster: Any) -> Decision:
    subject = mutator(FakeCluster(**cluster), policies=rules)
    return asyncio.run(subject.review(request(manifest, "CREATE" if old is None else "UPDATE", old)))


def efa_of(decision: Decision) -> Any:
    requests = decision.templates[0].spec["spec"]["devices"]["requests"]
    return next((each["exactly"] for each in requests if each["name"] == "efa"), None)


def test_the_limit_becomes_a_request_of_the_same_claim() -> None:
    manifest = pod(with_efa(container(neuron="4"), "4", "4"))
    decision = decide_with_rules(manifest, named_classes=frozenset({CLASS}))
    assert efa_of(decision)["count"] == 4
    stored = patched(manifest, decision)
    assert stored["spec"]["containers"][0]["resources"] == {"claims": [{"name": "neuron"}]}
    assert json.loads(stored["metadata"]["annotations"][RECORD])["efa"] == {
        "container": "main", "count": 4, "deviceClass": CLASS,
    }  # fmt: skip
    assert decide_with_rules(stored).outcome == "unchanged"


def test_the_policy_may_name_the_class() -> None:
    decision = decide_with_rules(pod(with_efa(container(neuron="4"))), efa_policies("efa: {deviceClass: net.example}"))
    assert efa_of(decision)["deviceClassName"] == "net.example"


@given(
    st.sampled_from(["1", "4", "8", "16", "7"]),
    st.one_of(st.none(), st.sampled_from(["0", "1", "16", "99", "x", 1.5])),
)
def test_efa_limits_stay_without_the_policy_field(neuron: str, efa: Any) -> None:
    plain = pod(container(neuron=neuron))
    limited = copy.deepcopy(plain)
    if efa is not None:
        with_efa(limited["spec"]["containers"][0], efa)
    one, other = decide_with_rules(plain, OFF), decide_with_rules(limited, OFF)
    assert [each.name for each in one.templates] == [each.name for each in other.templates]
    assert [str(each) for each in one.errors] == [str(each) for each in other.errors]
    assert RECORD not in str(other.patch) or "efa" not in str([each for each in other.patch if RECORD in str(each)])
    if other.patch and efa is not None:
        assert patched(limited, other)["spec"]["containers"][0]["resources"]["limits"] == {EFA: efa}


def test_efa_limits_stay_without_the_device_class() -> None:
    manifest = pod(with_efa(container(neuron="4")))
    decision = decide_with_rules(manifest, named_classes=frozenset({"neuron.aws.com"}))
    (finding,) = decision.warnings
    assert (finding.code, finding.path) == ("NEU231", f"spec.containers[0].resources.limits[{EFA}]")
    assert str(finding).startswith(
        f"NEU231: policy 'fabric' requests {EFA} from DeviceClass {CLASS}, which does not exist in this cluster:"
    )
    assert patched(manifest, decision)["spec"]["containers"][0]["resources"]["limits"] == {EFA: "4"}


@pytest.mark.parametrize(
    "containers",
    [
        [with_efa(container("a", neuron="4")), container("b", neuron="4")],
        [with_efa(container("a", neuron="4")), with_efa(container("b"))],
        [container("a", neuron="4"), with_efa(container("b"))],
    ],
)
def test_exactly_one_container_must_set_both_limits(containers: list[Any]) -> None:
    (error,) = decide_with_rules(pod(*containers)).errors
    assert error.code == "NEU125"
    assert "needs one container that has both limits, and no other container with either" in error.message


@pytest.mark.parametrize(("limit", "wanted"), [("1.5", None), ("x", None), ("-1", None), ("4", "2"), (None, "4")])
def test_an_invalid_number_is_refused(limit: Any, wanted: Any) -> None:
    made = with_efa(container(neuron="4"), limit, wanted)
    if limit is None:
        del made["resources"]["limits"][EFA]
    (error,) = decide_with_rules(pod(made)).errors
    assert error.code == "NEU125"
    assert "it needs a limit that is a whole number, and an equal request or none" in error.message


def test_an_efa_limit_of_zero_stays_in_the_container() -> None:
    manifest = pod(with_efa(container(neuron="4"), "0"))
    decision = decide_with_rules(manifest)
    assert efa_of(decision) is None
    assert patched(manifest, decision)["spec"]["containers"][0]["resources"]["limits"] == {EFA: "0"}


def test_pods_without_neuron_are_not_touched() -> None:
    assert decide_with_rules(pod(with_efa(container()))).outcome == "unchanged"


def test_templates_of_the_policy_serve_pods_without_efa_only() -> None:
    rules = efa_policies(families="[trn2]", templates=TEMPLATES)
    assert decide_with_rules(pod(container(neuron="4")), rules).reason == "mapped-template"  # it does not exist
    assert efa_of(decide_with_rules(pod(with_efa(container(neuron="4"))), rules))["count"] == 4


def converted_with_efa() -> Any:
    manifest = pod(with_efa(container(neuron="4")))
    return patched(manifest, decide_with_rules(manifest))


def recorded_class(stored: Any, device_class: str) -> Any:
    record = json.loads(stored["metadata"]["annotations"][RECORD])
    record["efa"]["deviceClass"] = device_class
    stored["metadata"]["annotations"][RECORD] = json.dumps(record)
    return stored


def test_the_class_is_that_of_the_policy_and_never_that_of_the_record() -> None:
    forged = recorded_class(converted_with_efa(), "secret-gpu")
    decision = decide_with_rules(forged)
    assert efa_of(decision)["deviceClassName"] == CLASS
    assert "secret-gpu" not in str(decision.patch)


def test_a_later_policy_with_another_class_is_followed() -> None:
    decision = decide_with_rules(
        converted_with_efa(), efa_policies("efa: {deviceClass: net.example}", families="[trn2]")
    )
    assert efa_of(decision)["deviceClassName"] == "net.example"


@pytest.mark.parametrize(
    ("rules", "cluster", "why"),
    [
        (OFF, {}, "no ConversionPolicy that matches the pod requests them from a DeviceClass"),
        (ON, {"named_classes": frozenset()}, f"DeviceClass {CLASS} of policy 'fabric' does not exist in this cluster"),
    ],
    ids=["no-policy", "no-class"],
)
def test_a_record_with_interfaces_that_no_policy_serves_is_refused(rules: Any, cluster: Any, why: str) -> None:
    (error,) = decide_with_rules(converted_with_efa(), rules, **cluster).errors
    assert str(error) == (
        f"NEU125: container main had {EFA}: 4 in its claim when the pod was converted, and {why}."
        " Restore the limit, and remove label neuron.aws.com/converted and annotation neuron.aws.com/converted-from."
    )


def test_a_record_gets_no_more_interfaces_than_the_catalogue_has() -> None:
    stored = converted_with_efa()
    record = json.loads(stored["metadata"]["annotations"][RECORD])
    record["efa"]["count"] = 32
    stored["metadata"]["annotations"][RECORD] = json.dumps(record)
    assert [each.code for each in decide_with_rules(stored).errors] == ["NEU125"]


def test_re_applying_changes_nothing_and_a_changed_number_is_refused() -> None:
    manifest = pod(with_efa(container(neuron="4")))
    stored = patched(manifest, decide_with_rules(manifest))
    assert patched(manifest, decide_with_rules(manifest, ON, stored)) == stored
    for limit, asks in (("2", "2"), ("x", "an invalid number"), (None, "none")):
        changed = pod(container(neuron="4") if limit is None else with_efa(container(neuron="4"), limit))
        (error,) = decide_with_rules(changed, ON, stored).errors
        assert str(error).startswith(
            f"NEU115: container main now asks for {EFA}: {asks}, but the pod was converted with 4, which cannot change."
        )


@pytest.mark.parametrize(
    "efa",
    [
        {"container": "other", "count": 4, "deviceClass": CLASS},
        {"container": "main", "count": 0, "deviceClass": CLASS},
        {"container": "main", "count": True, "deviceClass": CLASS},
        {"container": "main", "count": 33, "deviceClass": CLASS},
        {"container": 1, "count": 4, "deviceClass": CLASS},
        {"container": "main", "count": 4, "class": CLASS},
        None,
        [],
    ],
)
def test_a_forged_record_is_not_a_conversion(efa: Any) -> None:
    manifest = pod(with_efa(container(neuron="4")))
    stored = patched(manifest, decide_with_rules(manifest))
    assert claimed(pods.view(stored)) is not None
    record = json.loads(stored["metadata"]["annotations"][RECORD]) | {"efa": efa}
    stored["metadata"]["annotations"][RECORD] = json.dumps(record)
    assert claimed(pods.view(stored)) is None


def test_interfaces_do_not_count_as_devices_and_neuron_devices_do() -> None:
    manifest = pod(with_efa(container(neuron="4")))
    decision = decide_with_rules(manifest)
    stored, spec = patched(manifest, decision), copy.deepcopy(decision.templates[0].spec)

    def verified(rules: Any = ON) -> bool:
        claim = read_claim("ResourceClaimTemplate", "resource.k8s.io/v1", spec)[0]
        return verify(stored, lambda _: claim, rules.sources("neuron.aws.com")) is not None

    assert verified()
    assert not verified(OFF)  # no policy requests from this DeviceClass
    del spec["spec"]["devices"]["requests"][1]["exactly"]["selectors"]
    assert not verified()  # its DeviceClass may select Neuron devices


def test_the_record_names_the_neuron_amount_only() -> None:
    manifest = pod(with_efa(container(neuron="4")))
    asked = restated(pods.view(patched(manifest, decide_with_rules(manifest))))
    assert asked is not None
    assert asked.of("main") == {NEURON: "4"}
    assert asked.gets_interfaces("main")
    assert not asked.gets_interfaces("other")
