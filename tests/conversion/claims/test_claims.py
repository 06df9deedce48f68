import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import astuple

from conversion.claims import making, planning, work
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig, Serving, serve
from conversion.claims.layout import EXTRA, Layout
from conversion.claims.making import Claim, Refusal, make_claim
from conversion.claims.placement_options import Arrangement, AttributeTie, Option
from neuron.findings import Finding
from neuron.hardware.instances import DEFAULT_FAMILIES, Catalogue, InstanceType, Observation, Topology
from neuron.hardware.windows import DeviceChoice
from tests.support.allocations import devices_of

DEVICE, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
CATALOGUE = Catalogue()
DEFAULT = [entry for entry in CATALOGUE if entry.family in DEFAULT_FAMILIES and entry.released]


def types(*names: str) -> list[InstanceType]:
    return [entry for entry in CATALOGUE if entry.name in names]


def ask(amount: int, resource: str = DEVICE, role: Role = Role.APP, index: int = 0) -> Ask:
    return Ask(f"c{index}", role, f"spec.containers[{index}]", resource, amount)


def cores(amount: int) -> Ask:
    return ask(amount, CORE)


def make(
    asks: Sequence[Ask],
    candidates: Sequence[InstanceType] = DEFAULT,
    config: DeviceConfig = DeviceConfig(),
    *,
    only: bool = False,
) -> Claim:
    claim = make_claim(asks, candidates, config, "neuron.aws.com", pin_types=only)
    assert isinstance(claim, Claim), claim
    return claim


def refuse(
    asks: Sequence[Ask], candidates: Sequence[InstanceType] = DEFAULT, config: DeviceConfig = DeviceConfig()
) -> Finding:
    refusal = make_claim(asks, candidates, config, "neuron.aws.com", pin_types=False)
    assert isinstance(refusal, Refusal), refusal
    (finding,) = refusal.findings
    return finding


def counts(claim: Claim) -> list[int]:
    """Devices of each request."""
    return [
        (request.get("exactly") or request["firstAvailable"][0])["count"] for request in devices_of(claim)["requests"]
    ]


def expressions(request: dict[str, Any]) -> list[str]:
    return [selector["cel"]["expression"] for selector in request["selectors"]]


def test_one_device_needs_no_constraint_and_no_type() -> None:
    claim = make([ask(1)])
    (request,) = devices_of(claim)["requests"]
    assert request["exactly"]["count"] == 1
    assert "constraints" not in devices_of(claim)
    assert len(expressions(request["exactly"])) == 1
    assert not claim.connected


@pytest.mark.parametrize("count", [4, 8])
def test_connected_sets_match_on_their_device_group(count: int) -> None:
    claim = make([ask(count)])
    assert counts(claim) == [count]
    assert devices_of(claim)["constraints"] == [
        {"requests": ["n0"], "matchAttribute": f"resource.aws.com/devicegroup{count}_id"}
    ]
    assert claim.connected
    assert claim.uses == ((),)


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("trn1.32xlarge", ["0, 1, 2", "3, 4, 5", "6, 7, 8", "9, 10, 11", "12, 13, 14", "15"]),
        ("inf2.48xlarge", ["0, 1, 2, 3", "4, 5, 6, 7", "8, 9, 10, 11"]),
    ],
)
def test_a_whole_node_is_requested_in_ranges_of_device_ids(name: str, ranges: list[str]) -> None:
    total = sum(len(each.split(",")) for each in ranges)
    claim = make([ask(total)], types(name))
    assert counts(claim) == [len(each.split(",")) for each in ranges]
    for request, ids in zip(devices_of(claim)["requests"], ranges, strict=True):
        (expression,) = expressions(request["exactly"])
        assert expression.startswith(
            '"deviceId" in device.attributes["neuron.aws.com"]'
            f' && device.attributes["neuron.aws.com"].deviceId in [{ids}] && '
        )
    assert claim.uses == ((),)
    assert claim.template.name.startswith(f"neuron-{total}-")


def test_the_ranges_of_a_whole_node_are_one_group() -> None:
    (constraint,) = devices_of(make([ask(16)]))["constraints"]
    requests = [f"n{number}" for number in range(6)]
    assert constraint == {"requests": requests, "matchAttribute": "resource.aws.com/devicegroup16_id"}


def test_a_whole_node_among_alternatives_is_requested_in_ranges_too() -> None:
    claim = make([ask(16)], types("trn1.32xlarge", "inf1.24xlarge"))
    parts = [[each["count"] for each in request["firstAvailable"]] for request in devices_of(claim)["requests"]]
    assert parts == [[3, 3]] * 5 + [[1, 1]]
    (constraint,) = devices_of(claim)["constraints"]
    assert constraint["requests"] == [f"n{number}/trn1" for number in range(6)]


def test_init_containers_of_a_whole_node_use_the_whole_claim() -> None:
    assert make([ask(4, role=Role.INIT), ask(16, index=1)]).uses == ((), ())


def test_every_device_request_excludes_whole_nodes_with_a_guard() -> None:
    claim = make([ask(4), ask(1, index=1)])
    for request in devices_of(claim)["requests"]:
        assert expressions(request["exactly"])[0] == (
            '!("resourceType" in device.attributes["neuron.aws.com"])'
            ' || device.attributes["neuron.aws.com"].resourceType == "neuron_device"'
        )


def test_requests_are_ordered_connected_first_then_largest() -> None:
    claim = make([ask(1), ask(4, index=1), ask(1, index=2), ask(8, index=3)])
    assert [request["exactly"]["count"] for request in devices_of(claim)["requests"]] == [3, 3, 2, 3, 1, 1, 1]
    assert claim.uses == (("n5",), ("n3", "n4"), ("n6",), ("n0", "n1", "n2"))
    assert claim.template.name.startswith("neuron-8-4-1-1-")


def test_a_container_that_uses_all_requests_refers_to_the_claim() -> None:
    claim = make([ask(8, role=Role.INIT), ask(4, index=1)])
    assert claim.uses == ((), ("n0",))
    assert devices_of(claim)["constraints"] == [
        {"requests": ["n0"], "matchAttribute": "resource.aws.com/devicegroup4_id"},
        {"requests": ["n0", "n1"], "matchAttribute": "resource.aws.com/devicegroup8_id"},
    ]


def test_an_init_container_may_need_two_of_three_requests() -> None:
    claim = make([ask(8, role=Role.INIT), ask(4, index=1), ask(4, index=2), ask(1, index=3)])
    assert claim.uses == (("n0", "n1"), ("n0",), ("n1",), ("n2",))


def test_a_whole_ring_node_is_connected_without_a_group_but_names_its_type() -> None:
    claim = make([ask(12)], types("inf2.48xlarge"))
    assert "constraints" not in devices_of(claim)
    for request in devices_of(claim)["requests"]:
        (expression,) = expressions(request["exactly"])
        assert (
            ' && "instanceType" in device.attributes["neuron.aws.com"]'
            ' && device.attributes["neuron.aws.com"].instanceType == "inf2.48xlarge" && '
        ) in expression


def test_families_that_need_different_requests_become_alternatives() -> None:
    claim = make([ask(4)], types("trn1.32xlarge", "inf1.6xlarge"))
    (request,) = devices_of(claim)["requests"]
    assert [alternative["name"] for alternative in request["firstAvailable"]] == ["trn1", "inf1"]
    assert devices_of(claim)["constraints"] == [
        {"requests": ["n0/trn1"], "matchAttribute": "resource.aws.com/devicegroup4_id"}
    ]
    assert claim.types == ("trn1.32xlarge", "inf1.6xlarge")


def test_two_alternatives_of_one_family_have_different_names() -> None:
    family = [
        InstanceType("odd.small", "odd", 4, 2, (1,), 1, None, Topology.RING),
        InstanceType("odd.large", "odd", 8, 2, (1,), 1, None, Topology.TORUS, (4, 8)),
    ]
    claim = make([ask(4)], family)
    assert [each["name"] for each in devices_of(claim)["requests"][0]["firstAvailable"]] == ["odd", "odd-2"]


@pytest.mark.parametrize(
    ("amount", "name", "lnc", "count", "waste"),
    [
        (2, "trn1.32xlarge", None, 1, 0),
        (3, "trn1.32xlarge", None, 2, 1),
        (8, "trn1.32xlarge", None, 4, 0),
        (9, "trn1.32xlarge", None, 5, 1),
        (32, "trn1.32xlarge", None, 16, 0),
        (4, "trn2.48xlarge", None, 1, 0),
        (8, "trn2.48xlarge", None, 2, 0),
        (8, "trn2.48xlarge", 1, 1, 0),
        (64, "trn2.48xlarge", None, 16, 0),
        (128, "trn2.48xlarge", 1, 16, 0),
        (4, "trn2.3xlarge", None, 1, 0),
        (16, "inf1.6xlarge", None, 4, 0),
        (24, "inf2.48xlarge", None, 12, 0),
        (1, "inf2.48xlarge", None, 1, 1),
    ],
)
def test_cores_become_devices_rounded_up_and_unused_cores_are_reported(
    amount: int, name: str, lnc: int | None, count: int, waste: int
) -> None:
    claim = make([cores(amount)], types(name), DeviceConfig(lnc))
    assert sum(counts(claim)) == count
    said = [finding.message for finding in claim.warnings if finding.code == "NEU202"]
    assert said == ([] if not waste else [said[0]])
    assert all(message.endswith(f": {waste} unused.") for message in said)


@pytest.mark.parametrize(
    ("amount", "group"), [(2, None), (3, 4), (7, 4), (9, 8), (15, 8)], ids=["one", "two", "four", "five", "eight"]
)
def test_cores_are_inside_one_group_of_the_next_size(amount: int, group: int | None) -> None:
    claim = make([cores(amount)], types("trn1.32xlarge"))
    found = [each["matchAttribute"] for each in devices_of(claim).get("constraints", ())]
    assert found == ([] if group is None else [f"resource.aws.com/devicegroup{group}_id"])


def test_most_devices_of_a_node_are_a_run_and_the_first_leaves_the_largest_groups() -> None:
    entry = dataclasses.replace(*types("trn1.32xlarge"), tries_orders=True)
    (*core, last) = devices_of(make([cores(24)], [entry]))["requests"]
    assert sum(each["exactly"]["count"] for each in core) + last["firstAvailable"][0]["count"] == 12
    assert "deviceId in [0, 1, 2, 3]" in last["firstAvailable"][0]["selectors"][0]["cel"]["expression"].replace(
        'device.attributes["neuron.aws.com"].', ""
    )
    assert len(last["firstAvailable"]) == 5


def test_cores_of_shared_devices_of_a_group_are_whole_devices_and_a_share() -> None:
    entry = dataclasses.replace(*types("trn1.32xlarge"), shares_cores=True)
    claim = make([cores(5)], [entry])
    whole, share = [request["exactly"] for request in devices_of(claim)["requests"]]
    assert (whole["count"], share["count"], share["capacity"]) == (2, 1, {"requests": {"neuroncores": "1"}})
    assert devices_of(claim)["constraints"] == [
        {"requests": ["n0", "n1"], "matchAttribute": "resource.aws.com/devicegroup4_id"}
    ]
    assert claim.exact == (True,)


@pytest.mark.parametrize("config", [DeviceConfig(rounds_cores=True)], ids=["asked-for"])
def test_cores_become_a_whole_set_only_if_that_is_asked_for(config: DeviceConfig) -> None:
    claim = make([cores(3)], types("trn1.32xlarge"), config)
    assert counts(claim) == [4]


@pytest.mark.parametrize(
    ("amounts", "name", "count", "together"),
    [
        ((2, 2), "inf1.xlarge", [1], True),
        ((1, 1), "trn1.2xlarge", [1], True),
        ((3, 3), "trn1.32xlarge", [3], True),
        ((2, 2), "trn1.32xlarge", [1, 1], False),
        ((3, 2), "trn1.32xlarge", [2, 1], False),
        ((3, 13), "trn1.32xlarge", [8], True),
    ],
)
def test_containers_with_parts_of_devices_use_one_request_together(
    amounts: Sequence[int], name: str, count: list[int], together: bool
) -> None:
    claim = make([ask(amount, CORE, index=index) for index, amount in enumerate(amounts)], types(name))
    assert counts(claim) == count
    assert (len(set(claim.uses)) == 1) is together
    assert not any(claim.exact)
    assert "NEU202" not in [each.code for each in claim.warnings if together]


def test_more_containers_than_requests_use_one_together() -> None:
    claim = make([ask(1, CORE, index=index) for index in range(40)], types("trn2.48xlarge"))
    assert sum(counts(claim)) == 10
    assert len(set(claim.uses)) == 1


@pytest.mark.parametrize("amount", [19, 24, 27, 31])
def test_every_run_of_most_devices_of_a_node_is_tried(amount: int) -> None:
    entry = dataclasses.replace(*types("trn1.32xlarge"), tries_orders=True)
    assert "NEU219" not in [each.code for each in make([cores(amount)], [entry]).warnings]


def test_unused_cores_of_containers_together_are_reported_once() -> None:
    claim = make([ask(1, CORE, index=0), ask(1, CORE, index=1)], types("trn2.3xlarge"))
    assert [each.message for each in claim.warnings] == [
        "c0 and c1 asked for 2 cores together and get 1 device on trn2.3xlarge (4 cores): 2 unused."
    ]


@pytest.mark.parametrize(("init", "count"), [(1, [1]), (2, [1, 1])])
def test_a_sidecar_is_together_with_others_if_init_containers_find_their_cores_free_beside_it(
    init: int, count: list[int]
) -> None:
    asks = [ask(1, CORE, role=Role.SIDECAR), ask(init, CORE, role=Role.INIT, index=1), ask(1, CORE, index=2)]
    claim = make(asks, types("trn1.32xlarge"))
    assert counts(claim) == count
    assert (len(set(claim.uses)) == 1) is (init == 1)
    assert ("NEU202" in [each.code for each in claim.warnings]) is (init > 1)


def test_a_sidecar_is_not_together_with_others_beside_an_init_container_with_devices() -> None:
    asks = [ask(1, CORE, role=Role.SIDECAR), ask(1, role=Role.INIT, index=1), ask(1, CORE, index=2)]
    assert counts(make(asks, types("trn1.32xlarge"))) == [1, 1]


def test_sidecars_without_containers_that_follow_are_alone_beside_an_init_container() -> None:
    asks = [ask(1, CORE, role=Role.SIDECAR), ask(1, CORE, role=Role.SIDECAR, index=1)]
    assert counts(make(asks, types("inf1.6xlarge"))) == [1]
    assert counts(make([*asks, ask(4, CORE, role=Role.INIT, index=2)], types("inf1.6xlarge"))) == [1, 1, 1]


def test_names_for_different_amounts_are_refused_with_the_type() -> None:
    asked = Ask("main", Role.APP, "spec.containers[0]", "aws.amazon.com/neuron", 16, cores=31)
    finding = refuse([asked], types("trn1.32xlarge"))
    assert finding.code == "NEU104"
    assert finding.message.endswith("which name different amounts of the same hardware on trn1.32xlarge.")


@pytest.mark.parametrize(("name", "amount"), [("trn1.32xlarge", 32), ("trn2.48xlarge", 64), ("trn2.48xlarge", 128)])
def test_names_for_the_same_devices_are_one_request(name: str, amount: int) -> None:
    asked = Ask("main", Role.APP, "spec.containers[0]", "aws.amazon.com/neuron", 16, cores=amount)
    assert sum(counts(make([asked], types(name)))) == 16


@pytest.mark.parametrize(
    ("name", "amount", "lnc", "said"),
    [
        ("trn2.48xlarge", 64, None, False),
        ("trn2.48xlarge", 128, 1, False),
        ("trn2.48xlarge", 128, None, True),
        ("trn2.48xlarge", 64, 1, True),
        ("trn1.32xlarge", 32, None, False),
    ],
)
def test_cores_of_another_logical_neuron_core_beside_devices_are_said(
    name: str, amount: int, lnc: int | None, *, said: bool
) -> None:
    asked = Ask("main", Role.APP, "spec.containers[0]", "aws.amazon.com/neuron", 16, cores=amount)
    found = [each.message for each in make([asked], types(name), DeviceConfig(lnc=lnc)).warnings]
    assert any(f"aws.amazon.com/neuroncore: {amount}, and the claim has logical" in each for each in found) is said


@pytest.mark.parametrize("amount", range(1, 33))
def test_numbers_of_cores_that_collectives_do_not_serve_are_reported(amount: int) -> None:
    codes = [each.code for each in make([cores(amount)], types("trn1.32xlarge")).warnings]
    assert ("NEU227" in codes) is (amount not in (1, 2, 8, 16, 32))


def test_cores_on_different_families_become_alternatives_with_their_own_counts() -> None:
    claim = make([cores(4)], types("trn1.32xlarge", "trn2.48xlarge"))
    (request,) = devices_of(claim)["requests"]
    assert [(each["name"], each["count"]) for each in request["firstAvailable"]] == [("trn1", 2), ("trn2", 1)]
    for each, name in zip(request["firstAvailable"], ("trn1.32xlarge", "trn2.48xlarge"), strict=True):
        (expression,) = expressions(each)
        assert f'.instanceType == "{name}" && ' in expression
    assert claim.types == ("trn1.32xlarge", "trn2.48xlarge")
    assert claim.template.name.startswith("neuron-2or1-")


def test_lnc_becomes_a_config_on_hardware_that_has_a_choice() -> None:
    claim = make([ask(4)], DEFAULT, DeviceConfig(lnc=1))
    assert devices_of(claim)["config"] == [
        {
            "requests": ["n0"],
            "opaque": {
                "driver": "neuron.aws.com",
                "parameters": {"apiVersion": "neuron.aws.com/v1", "kind": "NeuronConfig", "logicalNeuronCore": 1},
            },
        }
    ]
    assert all(name.startswith(("trn2", "trn3")) for name in claim.types)
    assert claim.template.name.startswith("neuron-4-lnc1-")


def test_lnc_1_needs_no_config_on_types_without_another_size() -> None:
    claim = make([ask(4)], types("trn1.32xlarge"), DeviceConfig(lnc=1))
    assert "config" not in devices_of(claim)


def test_an_ultraserver_is_one_whole_node() -> None:
    claim = make([ask(16)], DEFAULT, DeviceConfig(lnc=1, ultraserver_mode=4))
    (request,) = devices_of(claim)["requests"]
    assert request["exactly"]["count"] == 1
    assert '.resourceType == "neuron_node"' in expressions(request["exactly"])[0]
    assert "constraints" not in devices_of(claim)
    assert [entry["opaque"]["parameters"]["kind"] for entry in devices_of(claim)["config"]] == [
        "NeuronConfig",
        "UltraServerConfig",
    ]
    assert devices_of(claim)["config"][1]["opaque"]["parameters"]["ultraserverMode"] == 4
    assert claim.types == ("trn2u.48xlarge",)


def test_an_init_container_may_share_the_ultraserver_node() -> None:
    claim = make([ask(4, role=Role.INIT), ask(16, index=1)], DEFAULT, DeviceConfig(ultraserver_mode=2))
    assert claim.uses == ((), ())


def published(seen: Observation) -> tuple[InstanceType, ...]:
    """The type trn2u.48xlarge as its nodes publish it."""
    return tuple(entry for entry in CATALOGUE.observed({"trn2u.48xlarge": seen}) if entry.name == "trn2u.48xlarge")


ONLY_DEVICES = published(Observation(16))
ONLY_NODES = published(Observation(0, single_devices=False, whole_node=True))
NO_WHOLE_NODE = (
    "No node of type trn2u.48xlarge publishes the whole node, which ultraserver-mode 4 needs: they publish their"
    " devices one by one. Set the label neuron.aws.com/ultraserver-publish=node on the nodes, or enable the feature"
    " gate DRAPartitionableDevices."
)


@pytest.mark.parametrize(
    ("asks", "candidates", "config", "code", "text"),
    [
        (
            [ask(16)], ONLY_DEVICES, DeviceConfig(ultraserver_mode=4), "NEU118", NO_WHOLE_NODE
        ),
        (
            [ask(16)], (*types("trn1.32xlarge"), *ONLY_DEVICES), DeviceConfig(ultraserver_mode=4), "NEU118",
            NO_WHOLE_NODE
        ),
        (
            [ask(4)], ONLY_NODES, DeviceConfig(), "NEU118",
            "The nodes of type trn2u.48xlarge publish only the whole node, not their devices one by one. Set the"
            " annotation neuron.aws.com/ultraserver-mode, or set the label neuron.aws.com/ultraserver-publish=devices"
            " on nodes for such pods.",
        ),
        (
            [ask(7)], DEFAULT, DeviceConfig(), "NEU105",
            "Instance type trn1.32xlarge does not support requests for device: 7."
            " Please request a different number of devices. Nearest valid counts: 4 or 8.",
        ),
        (
            [ask(17)], types("trn2.48xlarge"), DeviceConfig(), "NEU105",
            "Instance type trn2.48xlarge does not support requests for device: 17."
            " Please request a different number of devices. Nearest valid counts: 16.",
        ),
        (
            [ask(13)], types("trn1.32xlarge", "inf2.48xlarge"), DeviceConfig(), "NEU105",
            "Instance type trn1.32xlarge does not support requests for device: 13."
            " Please request a different number of devices. Nearest valid counts: 12 or 16.",
        ),
        (
            [ask(1, CORE, Role.INIT), ask(1, CORE, Role.SIDECAR, 1), ask(1, CORE, Role.SIDECAR, 2)],
            types("trn1.2xlarge"), DeviceConfig(), "NEU106",
            "the pod's containers need 2 Neuron devices in all, because the cores of each container are rounded up to"
            " whole devices, and trn1.2xlarge has 1. Spread the containers over several pods, or request fewer"
            " devices.",
        ),
        (
            # Also without rounding, 17 and 16 cores are more than 32.
            [cores(17), cores(16)], types("trn1.32xlarge"), DeviceConfig(), "NEU106",
            "the pod's containers need 17 Neuron devices in all, and trn1.32xlarge has 16. Spread the containers over"
            " several pods, or request fewer devices.",
        ),
        (
            [cores(33)], types("trn1.32xlarge"), DeviceConfig(), "NEU106",
            "Instance type trn1.32xlarge gives one container at most 32 NeuronCores at logical NeuronCore 1,"
            " and 33 are requested. Request 32 or fewer.",
        ),
        (
            [ask(16), ask(16, index=1)], DEFAULT, DeviceConfig(), "NEU106",
            "the pod's containers need 32 Neuron devices in all, and trn1.32xlarge has 16."
            " Spread the containers over several pods, or request fewer devices.",
        ),
        (
            [ask(1, index=index) for index in range(33)], DEFAULT, DeviceConfig(), "NEU108",
            "33 containers ask for Neuron devices, and a ResourceClaim holds at most 32 requests."
            " Spread the containers over several pods.",
        ),
        (
            [ask(4)], types("trn1.32xlarge"), DeviceConfig(lnc=2), "NEU111",
            "Instance type trn1.32xlarge does not support logical NeuronCore 2 (allowed: 1)."
            " Change the annotation, or select a trn2 or trn3 instance type.",
        ),
        (
            [ask(16)], types("trn2.48xlarge"), DeviceConfig(ultraserver_mode=4), "NEU112",
            "Instance type trn2.48xlarge is in no UltraServer of 4 nodes."
            " Select trn2u.48xlarge, or drop the annotation.",
        ),
        (
            [ask(8)], types("trn2u.48xlarge"), DeviceConfig(ultraserver_mode=4), "NEU112",
            "ultraserver-mode 4 needs the whole node: one container with 16 devices, not 8."
            " Request aws.amazon.com/neuron: 16 in one container, or drop the annotation.",
        ),
        (
            [ask(4)], DEFAULT, DeviceConfig(ultraserver_mode=4), "NEU112",
            "ultraserver-mode 4 needs the whole node: one container with 16 devices, not 4."
            " Request aws.amazon.com/neuron: 16 in one container, or drop the annotation.",
        ),
        (
            [ask(7)], DEFAULT, DeviceConfig(lnc=2), "NEU105",
            "Instance type trn2.48xlarge does not support requests for device: 7."
            " Please request a different number of devices. Nearest valid counts: 4 or 8.",
        ),
        (
            [ask(8), ask(8, index=1)], types("trn2u.48xlarge"), DeviceConfig(ultraserver_mode=2), "NEU112",
            "ultraserver-mode 2 needs the whole node: one container with 16 devices, not 8 + 8."
            " Request aws.amazon.com/neuron: 16 in one container, or drop the annotation.",
        ),
    ],
    ids=[
        "devices-only", "devices-only-among-others", "whole-node-only",
        "seven", "seventeen", "ring-among-others", "rounded-cores", "cores-in-all", "cores",
        "pod-total", "requests", "lnc",
        "no-ultraserver", "part-of-a-node", "part-without-a-selector", "count-where-lnc-exists", "two-halves",
    ],
)  # fmt: skip
def test_a_demand_that_no_type_serves_has_one_error(
    asks: Sequence[Ask], candidates: Sequence[InstanceType], config: DeviceConfig, code: str, text: str
) -> None:
    finding = refuse(asks, candidates, config)
    assert (finding.code, f"{finding.message} {finding.fix}") == (code, text)
    assert finding.path


@pytest.mark.parametrize(
    ("amount", "resource", "fix"),
    [
        (2, DEVICE, "Nearest valid counts: 1 or 4. Instance types that serve 2: inf2.48xlarge, inf2.24xlarge,"
            " inf1.24xlarge, …."),
        (7, DEVICE, "Nearest valid counts: 4 or 8. Instance types that serve 7: inf2.48xlarge, inf1.24xlarge."),
        (17, DEVICE, "Nearest valid counts: 16."),
    ],
)  # fmt: skip
def test_a_refusal_names_types_that_serve_the_count(amount: int, resource: str, fix: str) -> None:
    found = make_claim(
        [ask(amount, resource)], DEFAULT, DeviceConfig(), "neuron.aws.com", pin_types=False, others=CATALOGUE
    )
    assert isinstance(found, Refusal)
    assert [finding.fix for finding in found.findings] == [fix]


def test_an_unlisted_type_cannot_turn_cores_into_devices() -> None:
    unknown = InstanceType("trn4.96xlarge", "trn4", 16, None, (), 1, None, Topology.SWITCH, (4,))
    finding = refuse([cores(4)], [unknown])
    assert (finding.code, finding.message) == (
        "NEU218",
        "it is not known how many cores trn4.96xlarge has, and whether it serves 4 cores: the pod is left as it is.",
    )


@pytest.mark.parametrize(
    ("amount", "candidates"),
    [
        pytest.param(4, ("trn3n.48xlarge",), id="the-only-candidate"),
        pytest.param(4, ("trn3sn.48xlarge",), id="groups-that-no-map-has"),
        pytest.param(8, ("trn3sn.48xlarge", "trn3n.48xlarge"), id="groups-and-size"),
    ],
)
def test_a_count_that_a_type_of_unknown_size_may_have_is_not_refused(amount: int, candidates: tuple[str, ...]) -> None:
    claim = make_claim([ask(amount)], types(*candidates), DeviceConfig(), "neuron.aws.com", pin_types=True)
    assert isinstance(claim, Refusal)
    assert (claim.unknown, [each.code for each in claim.findings]) == (True, ["NEU218"])


@pytest.mark.parametrize(
    ("amount", "name", "choice"),
    [(2, "trn3e.24xlarge", "1 or 4"), (16, "trn3e.24xlarge", "4"), (7, "trn3sn.48xlarge", "1 or 16")],
)
def test_a_count_that_no_map_could_connect_is_refused(amount: int, name: str, choice: str) -> None:
    finding = refuse([ask(amount)], types(name))
    assert (finding.code, f"Nearest valid counts: {choice}." in finding.fix) == ("NEU105", True), finding.fix


@pytest.mark.parametrize(
    ("asked", "config", "name", "told"),
    [
        pytest.param(
            ask(4),
            DeviceConfig(),
            "trn3sn.48xlarge",
            "it is not known whether trn3sn.48xlarge publishes device groups that connect 4 devices: the pod is left as"
            " it is.",
            id="groups",
        ),
        pytest.param(
            cores(12),
            DeviceConfig(),
            "trn3sn.48xlarge",
            "it is not known whether trn3sn.48xlarge publishes device groups that connect 12 cores: the pod is left as"
            " it is.",
            id="groups-for-cores",
        ),
        pytest.param(
            ask(16),
            DeviceConfig(ultraserver_mode=4),
            "trn3.48xlarge",
            "it is not known whether trn3.48xlarge is in UltraServers of 4 nodes: the pod is left as it is.",
            id="ultraserver",
        ),
        pytest.param(
            ask(4),
            DeviceConfig(),
            "trn3n.48xlarge",
            "it is not known how many devices trn3n.48xlarge has, and whether it serves 4 devices: the pod is left as"
            " it is.",
            id="devices",
        ),
    ],
)
def test_the_figure_that_is_not_known_is_named(asked: Ask, config: DeviceConfig, name: str, told: str) -> None:
    claim = make_claim([asked], types(name), config, "neuron.aws.com", pin_types=True)
    assert isinstance(claim, Refusal)
    assert (claim.unknown, [each.message for each in claim.findings]) == (True, [told])
    assert "InstanceTypeCatalog (docs/policies.md)" in claim.findings[0].fix


@pytest.mark.parametrize(
    ("asked", "name", "count"),
    [
        pytest.param(ask(4), "trn3e.24xlarge", 4, id="the-whole-node"),
        pytest.param(cores(12), "trn3e.24xlarge", 3, id="cores-where-no-group-is-smaller"),
        pytest.param(cores(4), "trn3sn.48xlarge", 1, id="cores-of-one-device"),
        pytest.param(cores(36), "trn3sn.48xlarge", 9, id="more-cores-than-a-group-of-8-has"),
    ],
)
def test_unknown_groups_do_not_matter_to_counts_without_a_group(asked: Ask, name: str, count: int) -> None:
    claim = make([asked], types(name), only=True)
    assert (claim.types, sum(counts(claim))) == ((name,), count)


def test_a_count_is_refused_where_a_type_of_known_size_refuses_it() -> None:
    candidates = types("trn2.48xlarge", "trn3n.48xlarge")
    claim = make_claim([ask(7)], candidates, DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(claim, Refusal)
    assert (claim.unknown, [each.code for each in claim.findings]) == (False, ["NEU105"])


def test_a_count_is_not_refused_where_the_cluster_has_a_type_that_is_not_in_the_catalogue() -> None:
    seen = InstanceType("trn9.big", "trn9", None, None, (), 1, None, Topology.SWITCH)
    claim = make_claim([ask(7)], [*types("trn2.48xlarge"), seen], DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(claim, Refusal)
    assert claim.unknown


def test_a_type_of_unknown_size_is_bounded_by_its_largest_group() -> None:
    unknown = InstanceType("trn9.big", "trn9", None, 8, (1, 2), 2, None, Topology.SWITCH, (4, 8, 16))
    finding = refuse([ask(16), ask(4, index=1)], [unknown])
    assert (finding.code, finding.message) == (
        "NEU106",
        "the pod's containers need 20 Neuron devices in all, and trn9.big has 16.",
    )


def test_a_pod_above_the_device_limit_of_a_claim_is_refused() -> None:
    huge = InstanceType("huge.large", "huge", 64, 2, (1,), 1, None, Topology.TORUS, (4, 16, 64))
    finding = refuse([ask(16, index=index) for index in range(3)], [huge])
    assert (finding.code, finding.message) == (
        "NEU108",
        "the pod's containers need 48 Neuron devices in all, and a ResourceClaim holds at most 32.",
    )


def test_shares_that_cannot_be_connected_are_refused() -> None:
    entry = InstanceType("odd.large", "odd", 12, 2, (1,), 1, None, Topology.TORUS, (4,))
    asks = [
        ask(12, role=Role.INIT),
        ask(1, role=Role.SIDECAR, index=1),
        ask(4, role=Role.INIT, index=2),
        ask(1, index=3),
    ]
    finding = refuse(asks, [entry])
    assert finding.message == (
        "the containers' shares (1, 1, 10 devices) do not add up to connected sets on odd.large."
    )


def test_types_that_share_devices_differently_are_left_out_and_reported() -> None:
    asks = [ask(4, role=Role.INIT), ask(7, CORE, index=1)]
    claim = make(asks, types("trn1.32xlarge", "trn2.48xlarge"))
    assert claim.types == ("trn1.32xlarge",)
    assert [finding.code for finding in claim.warnings] == ["NEU202", "NEU227", "NEU213"]
    assert claim.warnings[2].message.startswith("trn2.48xlarge would distribute")


def test_a_type_of_unknown_size_does_not_make_an_unserved_demand_valid() -> None:
    finding = refuse([ask(1, index=index) for index in range(17)])
    assert finding.message == "the pod's containers need 17 Neuron devices in all, and trn1.32xlarge has 16."
    only_unknown = make([ask(1, index=index) for index in range(17)], types("trn3en.24xlarge"))
    assert only_unknown.types == ("trn3en.24xlarge",)


def test_unused_cores_are_reported_for_types_that_share_an_alternative() -> None:
    claim = make([cores(2)], types("trn1.32xlarge", "trn2.48xlarge"))
    assert [finding.message for finding in claim.warnings] == [
        "c0 asked for 2 cores and gets 1 device on trn2.48xlarge (4 cores): 2 unused."
    ]


def test_more_alternatives_than_the_api_takes_are_refused() -> None:
    many = [
        InstanceType(f"x{size}.large", f"x{size}", size, -(-16 // size), (1,), 1, None, Topology.TORUS, (size,))
        for size in range(2, 11)
    ]
    finding = refuse([cores(16)], many, DeviceConfig(rounds_cores=True))
    assert finding.code == "NEU108"
    assert finding.message == (
        "the candidate instance types need 9 different requests, and a ResourceClaim holds at most 8 alternatives."
    )


def test_the_name_follows_the_content() -> None:
    first, second = make([ask(4)]), make([ask(4, index=0)])
    assert first.template.name == second.template.name
    assert make([ask(4)], only=True).template.name != first.template.name
    assert len(make([ask(1, index=index) for index in range(16)]).template.name) <= 63


def test_a_pod_with_a_thousand_init_containers_is_laid_out_at_once() -> None:
    inits = [ask(4, role=Role.INIT, index=index) for index in range(1000)]
    claim = make([*inits, ask(4, index=1000)])
    assert len(claim.uses) == 1001


def test_pods_whose_containers_stand_elsewhere_share_their_requests() -> None:
    one = make([ask(4), ask(1, index=1)])
    other = make([ask(0), ask(4, index=1), ask(0, index=2), ask(1, index=3)])
    assert other.template is one.template
    assert one.uses == (("n0",), ("n1",))
    assert other.uses == (None, ("n0",), None, ("n1",))


def test_containers_that_ask_for_nothing_are_no_part_of_what_is_remembered() -> None:
    forget()
    make([ask(4), ask(1, index=1)])
    before = making._remembered.cache_info()
    make([ask(0), ask(4, index=1), ask(0, index=2), ask(1, index=3)])
    after = making._remembered.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


def test_lists_remember_more() -> None:
    kept = work.Results(str, 1, for_lists=2)
    assert [kept.of(each) for each in (1, 2, 1)] == ["1", "2", "1"]
    assert (kept.cache_info().hits, kept.cache_info().maxsize) == (0, 1)
    kept.keep_for_lists()
    assert [kept.of(each) for each in (1, 2, 1)] == ["1", "2", "1"]
    kept.keep_for_lists()
    assert (kept.cache_info().hits, kept.cache_info().maxsize) == (1, 2)


def forget() -> None:
    for cache in (making._remembered, making._requests, making._choices, planning.remembered_plans):
        cache.cache_clear()


def test_what_is_remembered_of_other_pods_changes_no_claim() -> None:
    draw = random.Random(5)  # noqa: S311 - no secret
    roles = (Role.INIT, Role.SIDECAR, Role.APP)
    seen = Observation(16, (1, 4, 8, 16), shares_cores=True)
    sharing = list(CATALOGUE.observed({"inf2.48xlarge": Observation(12, shares_cores=True)}))
    catalogues: list[Iterable[InstanceType]] = [CATALOGUE, sharing, list(CATALOGUE.observed({"trn2.48xlarge": seen}))]

    def demand() -> tuple[list[Ask], list[InstanceType], bool]:
        number = draw.randint(1, 3)
        asks = [
            ask(draw.randint(0, 4), draw.choice((DEVICE, CORE)), role, index)
            for index, role in enumerate(sorted((draw.choice(roles) for _ in range(number)), key=roles.index))
        ]
        wanted = draw.sample(
            ["trn1.32xlarge", "trn1.2xlarge", "trn2.48xlarge", "inf2.48xlarge", "inf1.24xlarge"], draw.randint(1, 2)
        )
        return asks, [each for each in draw.choice(catalogues) if each.name in wanted], draw.random() < 0.3

    def made(asks: list[Ask], candidates: list[InstanceType], unconnected: bool) -> object:
        found = make_claim(
            asks,
            candidates,
            DeviceConfig(),
            "neuron.aws.com",
            pin_types=True,
            unconnected=unconnected,
            others=CATALOGUE,
        )
        return found if isinstance(found, Refusal) else (found.template.name, found.template.spec, *astuple(found)[1:])

    demands = [each for each in (demand() for _ in range(400)) if any(ask.amount for ask in each[0])]
    forget()
    remembered = [made(*each) for each in demands]
    assert planning.remembered_plans.cache_info().hits > 50
    for each, known in zip(demands, remembered, strict=True):
        forget()
        assert made(*each) == known


def test_a_plan_is_looked_up_by_requests_in_order_and_each_use_once() -> None:
    asks = [ask(3, role=Role.INIT), ask(0, index=1), ask(1, index=2), ask(1, index=3)]
    (entry,) = types("inf2.48xlarge")
    given = serve(entry, asks, DeviceConfig())
    assert isinstance(given, Serving)
    assert given.layout == Layout({2: 1, 3: 1, EXTRA: 1}, ((2, 3, EXTRA), (), (2,), (3,)))
    numbered = planning.Numbered([given])
    (known,) = numbered.servings
    assert known.layout == Layout({0: 1, 1: 1, EXTRA: 1}, ((0, 1, EXTRA), (0,), (1,)))
    assert numbered.places == (0, None, 1, 2)
    (back,) = numbered.of_pod(numbered.servings, [given])
    assert (back.entry, back.sets_lnc, back.devices, back.pools) == (entry, False, given.devices, ())
    assert back.layout.uses == ((0, 1, EXTRA), (), (0,), (1,))


def test_an_arrangement_with_other_ids_keeps_everything_else() -> None:
    choice = DeviceChoice(((0, 1), (2, 3)))
    tie = AttributeTie("a", ((2, 0), (5, 1)))
    given = Arrangement({2: (Option(2),), 5: (Option(1),)}, (tie,), fixed=True, choices={2: choice})
    renumbered = AttributeTie("a", ((0, 0), (1, 1)))
    wanted = Arrangement({0: (Option(2),), 1: (Option(1),)}, (renumbered,), fixed=True, choices={0: choice})
    assert given.renumbered({2: 0, 5: 1}) == wanted


def test_what_is_not_tried_is_told_of_the_container_that_asks_for_it() -> None:
    (entry,) = types("inf1.24xlarge")
    config = DeviceConfig(divides=False)
    found = make([ask(0), ask(0, index=1), ask(8, index=2)], [entry], config)
    assert [each.path for each in found.warnings if each.code == "NEU219"] == [ask(8, index=2).resource_path]
