"""Counts of devices: what the node has, what the group has, and what the scheduler extension allows."""

from typing import Any

import pytest

from neuron.device_shapes import catalogue_shapes
from neuron.instances import InstanceType, Topology
from neuron.selection import DeviceIndex
from neuron.validate_claims import ClaimContext
from policies.selectors.engine import DeviceSelectors
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
    "2 on trn1 in a group": (
        asks(2, on(TRN1), constraint=group(4)),
        COUNT,
        "NEU520: Instance type trn1.32xlarge does not support requests for device: 2. Please request a different"
        " number of devices. Nearest valid counts: 1 or 4.",
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
        asks(4, on(INF2), constraint=group(4)),
        MATCH,
        "NEU523: no device of inf2.48xlarge has the attribute resource.aws.com/devicegroup4_id, and it is the only"
        " type admitted. Drop the constraint, or select a type such as trn1.32xlarge.",
    ),
    "an attribute of other types, of several": (
        asks(1, f"{attribute('instanceType')}.startsWith('inf')", constraint=group(4)),
        MATCH,
        "NEU523: no device of inf2.48xlarge and the 7 other types admitted has the attribute",
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
}

WARNED = {
    "4 unconnected": (
        asks(4, on(TRN2)),
        COUNT,
        "NEU524: nothing keeps the 4 devices of request neurons connected. Add constraints: [{requests: [neurons],"
        " matchAttribute: resource.aws.com/devicegroup4_id}]",
    ),
    "8 unconnected": (asks(8, on(TRN1)), COUNT, "NEU524: nothing keeps the 8 devices of request neurons connected."),
    "16 unconnected": (asks(16, on(TRN2)), COUNT, "NEU524: nothing keeps the 16 devices of request neurons connected."),
    "2 on trn2": (
        asks(2, on(TRN2)),
        COUNT,
        "NEU525: 2 devices of trn2.48xlarge are not sure to be connected with each other. Connected counts: 1, 4, 8,"
        " 16; nearest: 1 or 4.",
    ),
    "3 on a ring": (
        asks(3, on(INF2)),
        COUNT,
        "NEU525: 3 devices of inf2.48xlarge are not sure to be connected with each other. Connected counts: 1, 12;"
        " nearest: 1 or 12.",
    ),
    "7 of anything": (
        asks(7),
        COUNT,
        "NEU525: 7 devices of trn1.32xlarge are not sure to be connected with each other.",
    ),
    "an attribute nobody knows": (
        asks(1, on(TRN2), constraint="resource.kubernetes.io/pciBusID"),
        MATCH,
        "NEU523: no known Neuron device has the attribute resource.kubernetes.io/pciBusID. A device without it is"
        " never chosen.",
    ),
    "a documented attribute that no known device has": (
        asks(1, on(TRN2), constraint="neuron.aws.com/workloadId"),
        MATCH,
        "NEU523: no known Neuron device has the attribute workloadId. A device without it is never chosen.",
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
    "1 anywhere": asks(1),
    "4 connected": asks(4, on(TRN2), constraint=group(4)),
    "4 connected by a constraint over all": claim(request("neurons", 4, on(TRN2)), constraints=[match(group(4))]),
    "8 connected": asks(8, on(TRN1), constraint=group(8)),
    "16 connected": asks(16, on(TRN1), constraint=group(16)),
    "a whole inf2": asks(12, on(INF2)),
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


class TestCounts:
    @pytest.mark.parametrize(("spec", "path", "said"), REFUSED.values(), ids=REFUSED)
    def test_what_can_never_work_is_refused(self, spec: Any, path: str, said: str) -> None:
        [finding] = judge(spec)
        assert (finding.severity, finding.path) == ("error", path)
        assert str(finding).startswith(said)

    @pytest.mark.parametrize(("spec", "path", "said"), WARNED.values(), ids=WARNED)
    def test_what_may_work_warns(self, spec: Any, path: str, said: str) -> None:
        [finding] = judge(spec)
        assert (finding.severity, finding.path) == ("warning", path)
        assert str(finding).startswith(said)

    @pytest.mark.parametrize("spec", FINE.values(), ids=FINE)
    def test_what_works_is_not_spoken_of(self, spec: Any) -> None:
        assert judge(spec) == ()

    @pytest.mark.parametrize("count", range(1, 20))
    def test_on_trn1_only_the_documented_counts_pass(self, count: int) -> None:
        refused = any(finding.severity == "error" for finding in judge(asks(count, on(TRN1))))
        assert refused is (count not in (1, 4, 8, 16))

    def test_the_yaml_to_add_fits_a_warning_whatever_the_name(self) -> None:
        [finding] = judge(claim(request("n" * 63, 4, on(TRN2))))
        assert finding.fix == "Add constraints: [{matchAttribute: resource.aws.com/devicegroup4_id}]"

    def test_every_bad_count_is_told(self) -> None:
        findings = judge(claim(request("a", 17, on(TRN2)), request("b", 7, on(TRN2)), request("c", 33, on(TRN2))))
        assert [each.path for each in findings if each.code == "NEU521"] == [
            "spec.devices.requests[0].exactly.count",
            "spec.devices.requests[2].exactly.count",
        ]

    def test_what_the_cluster_publishes_is_named_first(self) -> None:
        [finding] = judge(asks(7), world([published("trn2u.48xlarge")]))
        assert (finding.severity, finding.code) == ("warning", "NEU525")
        assert "7 devices of trn2u.48xlarge" in finding.message

    def test_a_node_that_publishes_more_than_the_catalogue_knows_is_believed(self) -> None:
        spec = asks(32, on("trn3e.24xlarge"))
        assert codes(judge(spec)) == ["NEU521"]
        assert "NEU521" not in codes(judge(spec, world([published("trn3e.24xlarge", 32)])))

    def test_a_type_of_the_administrators_own_has_its_own_counts(self) -> None:
        entry = InstanceType("trn4.96xlarge", "trn4", 24, 8, (1, 2), 2, 192, Topology.TORUS, (6, 12))
        catalogue = CATALOGUE.extended([entry])
        where = ClaimContext(catalogue, DeviceIndex(catalogue_shapes(catalogue)), DeviceSelectors())
        spec = asks(13, on("trn4.96xlarge"), constraint="resource.aws.com/devicegroup12_id")
        [finding] = judge(spec, where)
        assert finding.code == "NEU522"
        assert judge(asks(12, on("trn4.96xlarge"), constraint="resource.aws.com/devicegroup12_id"), where) == ()

    def test_a_selector_that_is_wrong_hides_no_other_mistake(self) -> None:
        assert codes(judge(asks(17, "device.attributes["))) == ["NEU601", "NEU521"]
        assert codes(judge(asks(17, f"{attribute('topology_x')} == '1'"))) == ["NEU607", "NEU521"]

    def test_where_a_selector_is_wrong_nothing_is_guessed(self) -> None:
        assert codes(judge(asks(7, "device.attributes["))) == ["NEU601"]
