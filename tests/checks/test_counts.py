"""Counts of devices: what the node has, what the group has, and what the scheduler extension allows."""

import re
from typing import Any

import pytest

from checks.claims.device_index import DeviceIndex
from checks.claims.judging import ClaimContext
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import InstanceType, Topology
from policies.judging.selectors import DeviceSelectors
from tests.support.validation import (
    CATALOGUE,
    INF2,
    TRN1,
    TRN2,
    WHOLE_NODE,
    attribute,
    claim,
    codes,
    devices,
    first_available,
    group,
    judge,
    match,
    on,
    published,
    request,
    world,
)

CHAIN = "inf2.24xlarge"
COUNT = "spec.devices.requests[0].exactly.count"
MATCH = "spec.devices.constraints[0].matchAttribute"


def asks(count: int | None, *selectors: str, constraint: str = "", **fields: Any) -> dict[str, Any]:
    constraints = [match(constraint, "neurons")] if constraint else []
    return claim(request("neurons", count, *selectors, **fields), constraints=constraints)


REFUSED = {
    "7 on trn1": (
        asks(7, on(TRN1)),
        COUNT,
        "NEU520: Instance type trn1.32xlarge does not support requests for device: 7. Please request a different"
        " number of devices. Nearest valid counts: 4 or 8.",
    ),
    "7 on trn1 or trn1n": (
        asks(7, f"{attribute('instanceType')} in ['trn1n.32xlarge', '{TRN1}']"),
        COUNT,
        "NEU520: Instance type trn1.32xlarge does not support requests for device: 7. Please request a different"
        " number of devices. Nearest valid counts: 4 or 8.",
    ),
    "17 of 16": (
        asks(17, on(TRN2)),
        COUNT,
        "NEU521: 17 devices are requested, and a node of trn2.48xlarge has 16. Request 16 or fewer.",
    ),
    "17 of any": (
        asks(17),
        COUNT,
        "NEU521: 17 devices are requested, and no admitted instance type has more than 16. Request 16 or fewer.",
    ),
    "13 of 12": (
        asks(13, on(INF2)),
        COUNT,
        "NEU521: 13 devices are requested, and a node of inf2.48xlarge has 12. Request 12 or fewer.",
    ),
    "more than the selectors leave": (
        asks(8, on(TRN2), f"{attribute('topology_x')} == 0"),
        COUNT,
        "NEU521: 8 devices are requested, and the selectors match 4 on a node of trn2.48xlarge. Request 4 or fewer.",
    ),
    "8 in a group of 4": (
        asks(8, on(TRN2), constraint=group(4)),
        MATCH,
        "NEU522: 8 devices must agree on resource.aws.com/devicegroup4_id, and at most 4 do. Request 4 or"
        " fewer, or use matchAttribute: resource.aws.com/devicegroup8_id.",
    ),
    "All in a group of 4": (
        asks(None, on(TRN2), constraint=group(4), mode="All"),
        MATCH,
        "NEU522: 16 devices must agree on resource.aws.com/devicegroup4_id, and at most 4 do.",
    ),
    "4 with one device id": (
        asks(4, on(TRN2), constraint="neuron.aws.com/deviceId"),
        MATCH,
        "NEU522: 4 devices must agree on neuron.aws.com/deviceId, and at most 1 do. Request 1 or fewer, or use"
        " matchAttribute: resource.aws.com/devicegroup4_id.",
    ),
    "two requests in one group": (
        claim(request("a", 4, on(TRN2)), request("b", 4, on(TRN2)), constraints=[match(group(4), "a", "b")]),
        MATCH,
        "NEU522: 8 devices must agree on resource.aws.com/devicegroup4_id, and at most 4 do.",
    ),
    "misspelt attribute": (
        asks(4, on(TRN2), constraint="resource.aws.com/devicegroup4id"),
        MATCH,
        "NEU523: no Neuron device has the attribute 'resource.aws.com/devicegroup4id'. Did you mean"
        " 'resource.aws.com/devicegroup4_id'? Write resource.aws.com/devicegroup4_id.",
    ),
    "an attribute of other types": (
        asks(4, on(INF2), constraint=group(16)),
        MATCH,
        "NEU523: no device of inf2.48xlarge has the attribute resource.aws.com/devicegroup16_id, and it is the only"
        " type admitted. Drop the constraint, or select a type such as trn1.32xlarge.",
    ),
    "an attribute of other types, of several": (
        asks(1, f"{attribute('instanceType')}.startsWith('inf')", constraint=group(16)),
        MATCH,
        "NEU523: no device of inf2.48xlarge and the 7 other types admitted has the attribute",
    ),
    "6 in a window of 5": (
        asks(6, on(INF2), constraint="resource.aws.com/devicegroup5_id"),
        MATCH,
        "NEU522: 6 devices must agree on resource.aws.com/devicegroup5_id, and at most 5 do. Request 5 or fewer, or use"
        " matchAttribute: resource.aws.com/devicegroup6_id.",
    ),
    "7 in a window of 5": (
        asks(7, on(INF2), constraint="resource.aws.com/devicegroup5_id"),
        MATCH,
        # No attribute describes 7 consecutive devices, and of a larger window 7 devices need not be consecutive.
        "NEU522: 7 devices must agree on resource.aws.com/devicegroup5_id, and at most 5 do. Request 5 or fewer.",
    ),
    "an attribute without domain": (
        asks(4, on(TRN2), constraint="devicegroup4_id"),
        MATCH,
        "NEU529: attribute 'devicegroup4_id' has no domain. Write resource.aws.com/devicegroup4_id.",
    ),
    "an unknown attribute without domain": (
        asks(1, on(TRN2), constraint="rack"),
        MATCH,
        "NEU529: attribute 'rack' has no domain. Write it with its domain, such as neuron.aws.com/rack.",
    ),
    "more in all than a node has": (
        claim(
            request("a", 16, on(TRN2)),
            request("b", 4, on(TRN2)),
            constraints=[match(group(16), "a"), match(group(4), "b")],
        ),
        "spec.devices.requests",
        "NEU521: 20 devices are requested in all, and a node of trn2.48xlarge has 16. Request 16 or fewer, or make"
        " several claims.",
    ),
    "more than a claim holds": (
        claim(
            request("a", 16, on(TRN2)),
            request("efa", 17, device_class="efa.networking.k8s.aws"),
            constraints=[match(group(16), "a")],
        ),
        "spec.devices.requests",
        "NEU526: 33 devices are requested in all; a claim holds at most 32. Spread them over several claims.",
    ),
    "two nodes": (
        claim(request("a", 1, on(TRN1)), request("b", 1, on(TRN2))),
        "spec.devices.requests",
        "NEU527: requests a, b have no instance type in common. A claim is allocated on one node: select the same"
        " type, or make two claims.",
    ),
    "only dead alternatives": (
        claim(first_available(big=devices(32, on(TRN2)))),
        "spec.devices.requests[0].firstAvailable[0].count",
        "NEU521: 32 devices are requested, and a node of trn2.48xlarge has 16. Request 16 or fewer.",
    ),
    "an attribute of AWS's UltraServer operator": (
        asks(1, on(TRN2), constraint="neuron.aws.com/workloadId"),
        MATCH,
        "NEU523: no device of trn2.48xlarge has the attribute neuron.aws.com/workloadId, and it is the only type"
        " admitted. Drop the constraint, or select a type such as trn2u.48xlarge.",
    ),
}

WARNED = {
    "4 unconnected": (
        asks(4, on(TRN2)),
        COUNT,
        "NEU524: nothing keeps the 4 devices of request neurons connected. Add constraints: [{requests: [neurons],"
        " matchAttribute: resource.aws.com/devicegroup4_id}]",
    ),
    "8 unconnected": (asks(8, on(TRN1)), COUNT, "NEU524: nothing keeps the 8 devices of request neurons connected."),
    "2 on trn2": (
        asks(2, on(TRN2)),
        COUNT,
        "NEU525: 2 devices of trn2.48xlarge are not sure to be connected with each other. Connected counts: 1, 4, 8,"
        " 16; nearest: 1 or 4.",
    ),
    "2 on a ring": (
        asks(2, on(INF2)),
        COUNT,
        "NEU524: nothing keeps the 2 devices of request neurons connected. Add constraints: [{requests: [neurons],"
        " matchAttribute: resource.aws.com/devicegroup2_id}]",
    ),
    "5 on a ring": (
        asks(5, on(INF2)),
        COUNT,
        "NEU524: nothing keeps the 5 devices of request neurons connected. Add constraints: [{requests: [neurons],"
        " matchAttribute: resource.aws.com/devicegroup5_id}]",
    ),
    "7 on a ring, for which there is no attribute": (
        asks(7, on(INF2)),
        COUNT,
        "NEU524: nothing keeps the 7 devices of request neurons connected. Select neighbours, such as:"
        " device.attributes['neuron.aws.com'].deviceId < 7.",
    ),
    "3 of the 4 first devices of a ring": (
        asks(3, on(INF2), f"{attribute('deviceId')} < 4"),
        COUNT,
        "NEU524: nothing keeps the 3 devices of request neurons connected.",
    ),
    "devices of a ring that are no neighbours": (
        asks(2, on(INF2), f"{attribute('deviceId')} in [0, 2]"),
        COUNT,
        "NEU524: nothing keeps the 2 devices of request neurons connected.",
    ),
    "the ends of a chain": (
        asks(2, on(CHAIN), f"{attribute('deviceId')} in [0, 5]"),
        COUNT,
        "NEU524: nothing keeps the 2 devices of request neurons connected.",
    ),
    "2 of a window of 5": (
        asks(2, on(INF2), constraint="resource.aws.com/devicegroup5_id"),
        COUNT,
        "NEU524: nothing keeps the 2 devices of request neurons connected. Add constraints: [{requests: [neurons],"
        " matchAttribute: resource.aws.com/devicegroup2_id}]",
    ),
    "2 of a torus or a ring": (
        asks(2, f"{attribute('instanceType')} in ['{TRN2}', '{INF2}']"),
        COUNT,
        "NEU525: 2 devices of trn2.48xlarge are not sure to be connected with each other. Connected counts: 1, 4, 8,"
        " 16; nearest: 1 or 4. For inf2.48xlarge: Add constraints: [{requests: [neurons], matchAttribute:"
        " resource.aws.com/devicegroup2_id}]",
    ),
    "2 of a type with an unknown number": (
        asks(2, on("trn3en.24xlarge")),
        COUNT,
        "NEU525: 2 devices of trn3en.24xlarge are not sure to be connected with each other. Connected counts: 1 and all"
        " devices of the node; nearest: 1.",
    ),
    "7 of anything": (
        asks(7),
        COUNT,
        "NEU525: 7 devices of trn1.32xlarge are not sure to be connected with each other.",
    ),
    "an unknown attribute": (
        asks(1, on(TRN2), constraint="resource.kubernetes.io/pciBusID"),
        MATCH,
        "NEU523: no known Neuron device has the attribute resource.kubernetes.io/pciBusID. A device without it is"
        " never chosen.",
    ),
    "a standard attribute of other types": (
        asks(1, on("trn2u.48xlarge"), constraint="resource.kubernetes.io/pcieRoot"),
        MATCH,
        "NEU523: no device of trn2u.48xlarge has the attribute resource.kubernetes.io/pcieRoot, and it is the only type"
        " admitted. Drop the constraint, or select a type such as trn1.32xlarge.",
    ),
    "a group of another size": (
        asks(1, on(TRN2), constraint="resource.aws.com/devicegroup32_id"),
        MATCH,
        "NEU523: no known Neuron device has the attribute resource.aws.com/devicegroup32_id.",
    ),
    "a dead alternative": (
        claim(first_available(big=devices(32, on(TRN2)), small=devices(1, on(TRN2)))),
        "spec.devices.requests[0].firstAvailable[0].count",
        "NEU528: alternative neurons/big is never chosen: 32 devices are requested, and a node of trn2.48xlarge has"
        " 16. Request 16 or fewer.",
    ),
}

FINE = {
    "2 on trn1 in a group": asks(2, on(TRN1), constraint=group(4)),
    "9 on trn1 in the node": asks(9, on(TRN1), constraint=group(16)),
    "9 on trn2": asks(9, on(TRN2)),
    "1 anywhere": asks(1),
    "4 connected": asks(4, on(TRN2), constraint=group(4)),
    "4 connected by a constraint over all": claim(request("neurons", 4, on(TRN2)), constraints=[match(group(4))]),
    "8 connected": asks(8, on(TRN1), constraint=group(8)),
    "16 connected": asks(16, on(TRN1), constraint=group(16)),
    "a whole inf2": asks(12, on(INF2)),
    "a whole trn2, without a constraint": asks(16, on(TRN2)),
    "all of a type with an unknown number": asks(16, on("trn3n.48xlarge")),
    "all of a small type with an unknown number": asks(4, on("trn3en.24xlarge")),
    "2 in a window": asks(2, on(INF2), constraint=group(2)),
    "5 in a window": asks(5, on(INF2), constraint="resource.aws.com/devicegroup5_id"),
    "neighbours by id": asks(7, on(INF2), f"{attribute('deviceId')} < 7"),
    "neighbours over the end of a ring": asks(2, on(INF2), f"{attribute('deviceId')} in [0, 11]"),
    "a group by id": asks(4, on(TRN2), f"{attribute('deviceId')} < 4"),
    "a window for two requests": claim(
        request("w", 2, on(INF2)),
        request("c", 1, on(INF2), capacity={"requests": {"neuroncores": "1"}}),
        constraints=[match(group(3), "w", "c"), match(group(2), "w")],
    ),
    "two requests that fill a window": claim(
        request("a", 3, on(INF2)),
        request("b", 2, on(INF2)),
        constraints=[match("neuron.aws.com/window5_1"), match(group(3), "a")],
    ),
    "a torus and a ring, each in its own group": claim(
        first_available(trn=devices(4, on(TRN2)), inf=devices(2, on(INF2))),
        constraints=[match(group(4), "neurons/trn"), match(group(2), "neurons/inf")],
    ),
    "All": asks(None, on(TRN2), mode="All"),
    "2 in a group of 4 on trn2": asks(2, on(TRN2), constraint=group(4)),
    "a node": asks(1, WHOLE_NODE),
    "one rack": asks(4, on(TRN2), constraint=group(4)) | {},
    "two halves that make an allowed count": claim(
        request("a", 2, on(TRN1)), request("b", 2, on(TRN1)), constraints=[match(group(4), "a", "b")]
    ),
    "alternatives": claim(
        first_available(big=devices(8, on(TRN2)), small=devices(1, on(TRN2))),
        constraints=[match(group(8), "neurons/big")],
    ),
    "looking at every device": asks(16, on(TRN2), adminAccess=True),
    "with network interfaces": claim(
        request("neurons", 4, on(TRN2)),
        request("efa", 4, device_class="efa.networking.k8s.aws"),
        constraints=[match(group(4), "neurons", "efa")],
    ),
    "another driver's count": claim(request("gpu", 64, device_class="gpu.nvidia.com")),
}


COST = "NEU542"
"""It is about what a request costs the scheduler, not about its count."""


class TestCounts:
    @pytest.mark.parametrize(("spec", "path", "said"), REFUSED.values(), ids=REFUSED)
    def test_counts_that_can_never_work_are_errors(self, spec: Any, path: str, said: str) -> None:
        [finding] = judge(spec)
        assert (finding.severity, finding.path) == ("error", path)
        assert str(finding).startswith(said)

    @pytest.mark.parametrize(("spec", "path", "said"), WARNED.values(), ids=WARNED)
    def test_counts_that_may_work_are_warnings(self, spec: Any, path: str, said: str) -> None:
        [finding] = [each for each in judge(spec) if each.code != COST]
        assert (finding.severity, finding.path) == ("warning", path)
        assert str(finding).startswith(said)

    @pytest.mark.parametrize("spec", FINE.values(), ids=FINE)
    def test_valid_counts_have_no_findings(self, spec: Any) -> None:
        # NEU544 reports every adminAccess.
        assert [code for code in codes(judge(spec)) if code not in (COST, "NEU544")] == []

    @pytest.mark.parametrize("count", range(1, 20))
    def test_only_the_documented_counts_of_trn1_have_no_error(self, count: int) -> None:
        refused = any(finding.severity == "error" for finding in judge(asks(count, on(TRN1))))
        assert refused is (count not in (1, 4, 8, 16))

    def test_the_yaml_to_add_fits_a_warning_whatever_the_name(self) -> None:
        [finding] = judge(claim(request("n" * 63, 4, on(TRN2))))
        assert finding.fix == "Add constraints: [{matchAttribute: resource.aws.com/devicegroup4_id}]"

    def test_every_invalid_count_is_reported(self) -> None:
        findings = judge(claim(request("a", 17, on(TRN2)), request("b", 7, on(TRN2)), request("c", 33, on(TRN2))))
        assert [each.path for each in findings if each.code == "NEU521"] == [
            "spec.devices.requests[0].exactly.count",
            "spec.devices.requests[2].exactly.count",
        ]

    def test_published_types_are_listed_first_in_messages(self) -> None:
        [finding] = judge(asks(7), world([published("trn2u.48xlarge")]))
        assert (finding.severity, finding.code) == ("warning", "NEU525")
        assert "7 devices of trn2u.48xlarge" in finding.message

    def test_a_published_device_count_above_the_catalogue_is_used(self) -> None:
        spec = asks(32, on("trn3en.24xlarge"))
        assert codes(judge(spec)) == ["NEU521"]
        assert "NEU521" not in codes(judge(spec, world([published("trn3en.24xlarge", 32)])))

    def test_an_instance_type_that_an_administrator_adds_has_its_own_counts(self) -> None:
        entry = InstanceType("trn4.96xlarge", "trn4", 24, 8, (1, 2), 2, 192, Topology.TORUS, (6, 12))
        catalogue = CATALOGUE.extended([entry])
        where = ClaimContext(catalogue, DeviceIndex(catalogue_shapes(catalogue)), DeviceSelectors(lambda: 0.0))
        spec = asks(13, on("trn4.96xlarge"), constraint="resource.aws.com/devicegroup12_id")
        [finding] = judge(spec, where)
        assert finding.code == "NEU522"
        right = judge(asks(12, on("trn4.96xlarge"), constraint="resource.aws.com/devicegroup12_id"), where)
        assert codes(right) == [COST]

    def test_a_wrong_selector_does_not_hide_a_count_error(self) -> None:
        assert codes(judge(asks(17, "device.attributes["))) == ["NEU601", "NEU521"]
        assert codes(judge(asks(17, f"{attribute('topology_x')} == '1'"))) == ["NEU607", "NEU521"]

    def test_a_wrong_selector_gives_no_finding_that_depends_on_its_types(self) -> None:
        assert codes(judge(asks(7, "device.attributes["))) == ["NEU601"]

    @pytest.mark.parametrize("name", [True, 7, None])
    def test_a_request_whose_name_cannot_be_read_is_not_named(self, name: object) -> None:
        spec = asks(4, on(TRN1))
        spec["devices"]["requests"][0]["name"] = name
        [finding] = [each for each in judge(spec) if each.code == "NEU524"]
        assert str(finding) == (
            "NEU524: nothing keeps the 4 devices of a request without a name connected. Add constraints:"
            " [{matchAttribute: resource.aws.com/devicegroup4_id}]"
        )

    @pytest.mark.parametrize("count", range(2, 11))
    def test_the_fix_of_a_ring_warning_gives_no_further_warning(self, count: int) -> None:
        [finding] = [each for each in judge(asks(count, on(INF2))) if each.code != COST]
        assert finding.code == "NEU524"
        attributes = re.findall(r"matchAttribute: (\S+)}", finding.fix)
        selectors = re.findall(r"such as: (.+)\.$", finding.fix)
        assert len(attributes) + len(selectors) == 1
        found = judge(asks(count, on(INF2), *selectors, constraint="".join(attributes)))
        assert codes(found) == [COST] * (count > 8)

    def test_shapes_before_and_after_an_upgrade_of_the_driver_are_the_same_devices(self) -> None:
        old, new = published(INF2, 12, node="old"), published(INF2, 12, node="new", cores=2)
        where = world([old, new])
        assert codes(judge(asks(13, on(INF2)), where)) == ["NEU521"]
        assert codes(judge(asks(12, on(INF2)), where)) == ["NEU542"]
        assert codes(judge(asks(6, on(INF2), constraint="resource.aws.com/devicegroup5_id"), where)) == ["NEU522"]


class TestOtherDrivers:
    """AWS's own driver publishes no windows for Inferentia."""

    @staticmethod
    def where() -> ClaimContext:
        item = published(INF2, 12)
        for device in item["devices"]:
            named = device["attributes"].items()
            device["attributes"] = {key: value for key, value in named if "window" not in key and "group" not in key}
        return world([item])

    def test_the_fix_selects_by_device_id(self) -> None:
        [finding] = judge(asks(2, on(INF2)), self.where())
        assert str(finding) == (
            "NEU524: nothing keeps the 2 devices of request neurons connected. Select neighbours, such as:"
            " device.attributes['neuron.aws.com'].deviceId < 2."
        )

    def test_a_window_attribute_that_the_driver_does_not_publish_is_a_warning(self) -> None:
        [finding] = judge(asks(2, on(INF2), constraint=group(2)), self.where())
        assert (finding.severity, finding.path) == ("warning", MATCH)
        assert str(finding) == (
            "NEU538: no device of inf2.48xlarge that the cluster publishes now has the attribute"
            " resource.aws.com/devicegroup2_id. The driver there may be AWS's: select by device id, such as"
            " device.attributes['neuron.aws.com'].deviceId < 2."
        )

    def test_the_fix_for_a_torus_excludes_the_ring(self) -> None:
        item = published(INF2, 12)
        for device in item["devices"]:
            device["attributes"] = {key: each for key, each in device["attributes"].items() if "group" not in key}
        where = world([item, published(TRN2)])
        [finding] = judge(asks(8, f"{attribute('instanceType')} in ['{TRN2}', '{INF2}']"), where)
        assert finding.code == "NEU524"
        assert finding.fix == (
            "Add constraints: [{requests: [neurons], matchAttribute: resource.aws.com/devicegroup8_id}]"
            " This excludes inf2.48xlarge, which needs an alternative of its own."
        )

    def test_an_attribute_of_types_that_the_cluster_lacks_is_reported_as_pending(self) -> None:
        spec = asks(1, f"{attribute('instanceType')} in ['{TRN1}', '{INF2}']", constraint=group(16))
        [finding] = judge(spec, self.where())
        assert (finding.code, finding.fix) == ("NEU538", "Pods wait until a node's driver publishes it.")

    def test_an_alternative_without_the_attribute_is_no_finding_if_another_one_works(self) -> None:
        spec = self.alternatives(pair=devices(2, on(INF2)), single=devices(1, on(INF2)))
        assert codes(judge(spec, self.where())) == []

    def test_alternatives_of_which_no_one_works_give_one_finding(self) -> None:
        spec = self.alternatives(four=devices(4, on(INF2)), pair=devices(2, on(INF2)))
        spec["devices"]["constraints"].append(match(group(4), "neurons/four"))
        assert codes(judge(spec, self.where())) == ["NEU538"]

    @staticmethod
    def alternatives(**each: Any) -> dict[str, Any]:
        return claim(first_available("neurons", **each), constraints=[match(group(2), "neurons/pair")])
