"""Counts that no connected group has, where a policy allows them."""

from collections.abc import Sequence
from typing import Any

import pytest

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, Refusal, make_claim
from neuron.findings import Finding
from neuron.hardware.instances import InstanceType, Topology
from tests.conversion.claims.test_claims import DEFAULT, ask, cores, devices_of, types


def make(
    asks: Sequence[Ask], candidates: Sequence[InstanceType] = DEFAULT, config: DeviceConfig = DeviceConfig()
) -> Claim:
    claim = make_claim(asks, candidates, config, "neuron.aws.com", pin_types=False, unconnected=True)
    assert isinstance(claim, Claim), claim
    return claim


def refuse(
    asks: Sequence[Ask], candidates: Sequence[InstanceType] = DEFAULT, config: DeviceConfig = DeviceConfig()
) -> Finding:
    refusal = make_claim(asks, candidates, config, "neuron.aws.com", pin_types=False, unconnected=True)
    assert isinstance(refusal, Refusal), refusal
    (finding,) = refusal.findings
    return finding


@pytest.mark.parametrize("count", [2, 3, 5, 7, 12, 15])
def test_any_count_up_to_the_nodes_is_one_request_without_a_constraint(count: int) -> None:
    claim = make([ask(count)])
    (request,) = devices_of(claim)["requests"]
    assert request["exactly"]["count"] == count
    assert "constraints" not in devices_of(claim)
    assert "trn1.2xlarge" not in claim.types
    (selector,) = request["exactly"]["selectors"]
    assert all(f'"{name}"' in selector["cel"]["expression"] for name in claim.types)
    (finding,) = claim.warnings
    assert (finding.path, str(finding)) == (
        "spec.containers[0].resources.limits[aws.amazon.com/neuron]",
        f"NEU215: c0 gets {count} devices that need not be connected with each other on trn1.32xlarge:"
        " policy allows it. Connected counts: 1, 4, 8, 16.",
    )


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_counts_that_can_be_connected_stay_connected(count: int) -> None:
    allowed, strict = (
        make([ask(count)]),
        make_claim([ask(count)], DEFAULT, DeviceConfig(), "neuron.aws.com", pin_types=False),
    )
    assert isinstance(strict, Claim)
    assert allowed.template.name == strict.template.name
    assert allowed.warnings == ()


@pytest.mark.parametrize(
    ("asks", "candidates", "code", "text"),
    [
        pytest.param(
            [ask(17)], DEFAULT, "NEU105",
            "Instance type trn1.32xlarge does not support requests for device: 17. Please request a different number of"
            " devices. Nearest valid counts: 16.", id="more-than-the-node",
        ),
        pytest.param(
            [ask(12), ask(7, index=1)], types("trn2.48xlarge"), "NEU106",
            "the pod's containers need 19 Neuron devices in all, and trn2.48xlarge has 16."
            " Spread the containers over several pods, or request fewer devices.", id="more-than-the-node-together",
        ),
        pytest.param(
            [ask(2)], types("trn1.2xlarge"), "NEU105",
            "Instance type trn1.2xlarge does not support requests for device: 2. Please request a different number of"
            " devices. Nearest valid counts: 1.", id="one-device",
        ),
        pytest.param(
            [cores(33)], types("trn1.32xlarge"), "NEU106",
            "Instance type trn1.32xlarge gives one container at most 32 NeuronCores at logical NeuronCore 1, and 33 are"
            " requested. Request 32 or fewer.", id="cores",
        ),
    ],
)  # fmt: skip
def test_counts_above_every_node_are_refused(
    asks: Sequence[Ask], candidates: Sequence[InstanceType], code: str, text: str
) -> None:
    finding = refuse(asks, candidates)
    assert (finding.code, f"{finding.message} {finding.fix}") == (code, text)


def test_an_ultraserver_stays_the_whole_node() -> None:
    assert refuse([ask(7)], DEFAULT, DeviceConfig(ultraserver_mode=4)).code == "NEU112"


@pytest.mark.parametrize(("amount", "count", "unused"), [(2, 1, 0), (3, 2, 1), (8, 4, 0), (9, 5, 1), (24, 12, 0)])
def test_cores_are_rounded_up_to_whole_devices_only(amount: int, count: int, unused: int) -> None:
    claim = make([cores(amount)], types("trn1.32xlarge"))
    assert devices_of(claim)["requests"][0]["exactly"]["count"] == count
    collectives = ["NEU227"] if amount not in (1, 2, 8, 16, 32) else []
    expected = (["NEU202"] if unused else []) + collectives + ([] if count in (1, 4) else ["NEU215"])
    assert [finding.code for finding in claim.warnings] == expected


def test_families_with_other_cores_get_alternatives_with_counts_of_their_own() -> None:
    claim = make([cores(9)], types("trn1.32xlarge", "trn2.48xlarge"))
    (request,) = devices_of(claim)["requests"]
    assert [(each["name"], each["count"]) for each in request["firstAvailable"]] == [("trn1", 5), ("trn2", 3)]
    assert "constraints" not in devices_of(claim)


def test_a_ring_among_the_candidates_gives_consecutive_devices() -> None:
    claim = make([ask(5)], types("trn1.32xlarge", "inf2.48xlarge"))
    assert claim.types == ("trn1.32xlarge", "inf2.48xlarge")
    assert {each["matchAttribute"]: each["requests"] for each in devices_of(claim)["constraints"]} == {
        "resource.aws.com/devicegroup5_id": ["n0/inf2"],
        "neuron.aws.com/window5_1": ["n0/inf2-2"],
        "neuron.aws.com/window5_2": ["n0/inf2-3"],
        "neuron.aws.com/window5_3": ["n0/inf2-4"],
        "neuron.aws.com/window5_4": ["n0/inf2-5"],
    }


def test_every_container_is_judged_by_its_own_count() -> None:
    claim = make([ask(7), ask(4, index=1), ask(1, index=2)])
    assert [(each["name"], each["exactly"]["count"]) for each in devices_of(claim)["requests"]] == [
        ("n0", 1), ("n1", 1), ("n2", 1), ("n3", 1), ("n4", 7), ("n5", 1),
    ]  # fmt: skip
    assert devices_of(claim)["constraints"] == [
        {"requests": ["n0", "n1", "n2", "n3"], "matchAttribute": "resource.aws.com/devicegroup4_id"}
    ]
    assert [finding.path for finding in claim.warnings] == [
        "spec.containers[0].resources.limits[aws.amazon.com/neuron]"
    ]


def test_an_init_container_with_a_connected_count_keeps_its_group() -> None:
    claim = make([ask(8, role=Role.INIT), ask(3, index=1), ask(5, index=2)])
    assert claim.uses == ((), ("n1",), ("n0",))
    assert devices_of(claim)["constraints"] == [
        {"requests": ["n0", "n1"], "matchAttribute": "resource.aws.com/devicegroup8_id"}
    ]


def test_an_added_instance_type_has_the_counts_of_its_groups_connected() -> None:
    added = InstanceType("trn9.48xlarge", "trn9", 6, 4, (1,), 1, None, Topology.SWITCH, (3,))
    counts: dict[int, Any] = {count: devices_of(make([ask(count)], [added])) for count in (2, 3, 5, 6)}
    assert ["constraints" in counts[count] for count in (2, 3, 5, 6)] == [False, True, False, False]
    assert refuse([ask(7)], [added]).fix == "Nearest valid counts: 6."


def test_counts_stay_connected_without_the_policy() -> None:
    found = make_claim([ask(7)], DEFAULT, DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(found, Refusal)
