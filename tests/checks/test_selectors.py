"""Device selectors: mistakes in them, and what they do to the devices that exist."""

from typing import Any

import pytest

from checks.claims.judging import judge_claim
from neuron.api.claim_reader import read_claim, read_class
from neuron.findings import Finding
from tests.support.validation import (
    INF2,
    TRN1,
    TRN2,
    V1,
    WHOLE_NODE,
    attribute,
    claim,
    codes,
    devices,
    first_available,
    judge,
    on,
    published,
    request,
    world,
)

SELECTOR = "spec.devices.requests[0].exactly.selectors[0].cel.expression"
SELECTORS = "spec.devices.requests[0].exactly.selectors"


def say(*selectors: str, where: Any = None, device_class: str = "neuron.aws.com") -> tuple[Finding, ...]:
    return judge(claim(request("neurons", 1, *selectors, device_class=device_class)), where)


REFUSED = {
    "NEU601: the selector is not CEL (line 1, column 18): the expression ends too early. Correct the expression.": (
        "device.driver == "
    ),
    "NEU601: the selector is not CEL (line 1, column 15)": "device.driver = 'neuron.aws.com'",
    "NEU601: the selector is not CEL (line 2, column 7): the expression ends too early.": (
        "device.driver == 'neuron.aws.com'\n  && ("
    ),
    "NEU602: the selector can never be evaluated (line 1, column 8): 'device' has no field 'attribute'. Did you"
    " mean 'attributes'? Correct the expression.": "device.attribute['neuron.aws.com'].deviceId == 1",
    "NEU602: the selector can never be evaluated (line 1, column 1)": "node.name == 'a'",
    "NEU602: the selector can never be evaluated": "device.driver",
    "NEU604: the selector has 10259 bytes; Kubernetes allows 10240. Split it into several selectors.": (
        f"device.driver == '{'x' * 10240}'"
    ),
    "NEU606: no Neuron device has the attribute 'instanceTyp'. Did you mean 'instanceType'? Write"
    " device.attributes['neuron.aws.com'].instanceType.": f"{attribute('instanceTyp')} == 'trn2.48xlarge'",
    "NEU606: no Neuron device has the attribute 'resourcetype'. Did you mean 'resourceType'?": (
        f"{attribute('resourcetype')} == 'neuron_node'"
    ),
    "NEU606: no Neuron device has the attribute 'neuron.aws.co/instanceType'. Did you mean 'instanceType'?": (
        "device.attributes['neuron.aws.co'].instanceType == 'trn2.48xlarge'"
    ),
    "NEU606: no Neuron device has the attribute 'resource.aws.com/devicegroup_4_id'. Did you mean"
    " 'resource.aws.com/devicegroup4_id'? Write device.attributes['resource.aws.com'].devicegroup4_id.": (
        "device.attributes['resource.aws.com'].devicegroup_4_id == 'x'"
    ),
    "NEU607: topology_x is an integer, and is compared with '1', a string: that is never true. Write topology_x"
    " == 1.": f"{attribute('topology_x')} == '1'",
    "NEU607: deviceId is an integer, and is compared with '0', a string: that is never true. Write deviceId in 0.": (
        f"{attribute('deviceId')} in ['0', '1']"
    ),
    "NEU607: instanceType is a string, and is compared with 2, an integer: that is never true. Write instanceType"
    " == '2'.": f"{attribute('instanceType')} == 2",
    "NEU607: deviceId is an integer, and is compared with '8', a string: that fails. Write deviceId < 8.": (
        f"{attribute('deviceId')} < '8'"
    ),
    "NEU607: draDriverVersion is a version, and is compared with '1.0.0', a string: that fails. Write"
    " draDriverVersion == semver('1.0.0').": f"{attribute('draDriverVersion')} == '1.0.0'",
    "NEU607: neuronDriverVersion is a string, and is compared with semver('2.25.4'), a version: that is never"
    " true. Write neuronDriverVersion == '2.25.4'.": f"{attribute('neuronDriverVersion')} == semver('2.25.4')",
    "NEU607: instanceType is a string, and is used as a condition: that fails. Compare it, as in"
    " instanceType == '1'.": attribute("instanceType"),
    "NEU608: neuronDriverVersion has four parts, such as 2.25.4.0: semver() fails on it. Compare it as a string:"
    " neuronDriverVersion == '2.25.4.0'.": (
        f"semver({attribute('neuronDriverVersion')}).isGreaterThan(semver('2.24.0'))"
    ),
    "NEU608: neuronDriverVersion has four parts, such as 2.25.4.0: isGreaterThan() fails on it.": (
        f"{attribute('neuronDriverVersion')}.isGreaterThan(semver('2.24.0'))"
    ),
    "NEU606: no Neuron device has the capacity 'memmory'. Did you mean 'memory'? Write"
    " device.capacity['neuron.aws.com'].memory.": (
        "device.capacity['neuron.aws.com'].memmory.compareTo(quantity('80Gi')) >= 0"
    ),
    "NEU602: the selector can never be evaluated (line 1, column 42): '>=' does not take (kubernetes.Quantity, int).": (
        "device.capacity['neuron.aws.com'].memory >= 80"
    ),
    "NEU611: the selector fails on every device on which it is evaluated:": f"{attribute('deviceId')} / 0 == 1",
}

WARNED = {
    "NEU606: no known Neuron device has the attribute 'rackColour'. Without a guard it fails on every device that"
    " lacks it.": (
        f"'rackColour' in device.attributes['neuron.aws.com'] && {attribute('rackColour')} == 'red'",
        SELECTOR,
    ),
    "NEU606: no known Neuron device has the attribute 'resource.aws.com/devicegroup32_id'.": (
        "device.attributes['resource.aws.com'].devicegroup32_id == 'x'",
        SELECTOR,
    ),
    "NEU606: no known Neuron device has the capacity 'sbuf'. Without a guard it fails on every device that lacks it.": (
        "'sbuf' in device.capacity['neuron.aws.com'] &&"
        " device.capacity['neuron.aws.com'].sbuf.compareTo(quantity('1Mi')) >= 0",
        SELECTOR,
    ),
    "NEU606: no known Neuron device has the capacity 'other.example.com/memory'.": (
        "device.capacity['other.example.com'].?memory.hasValue() ||"
        " device.capacity['other.example.com'].memory == quantity('1')",
        SELECTOR,
    ),
    "NEU607: instanceType is a string, and is compared with 2, an integer: that is always true. Write instanceType"
    " != '2'.": (f"{attribute('instanceType')} != 2", SELECTOR),
    "NEU609: topology_x is missing on trn1.2xlarge and 28 more types (by the catalogue): one such device ends the"
    ' scheduling of the pod. Guard it: "topology_x" in device.attributes["neuron.aws.com"] && ...': (
        f"{attribute('topology_x')} == 1",
        SELECTOR,
    ),
    "NEU609: resource.aws.com/devicegroup4_id is missing on": (
        "device.attributes['resource.aws.com'].devicegroup4_id == '13713e551cd37c19'",
        SELECTOR,
    ),
    "NEU610: no device has instanceType 'trn2.48xlarg'. Did you mean 'trn2.48xlarge'? Nothing can be allocated"
    " until one does.": (on("trn2.48xlarg"), SELECTORS),
    "NEU610: no device has instanceType 'trn2.48xlarg'. Did you mean 'trn2.48xlarge'?": (
        f"{attribute('instanceType')} in ['trn2.48xlarg', 'trn2-48xlarge']",
        SELECTORS,
    ),
    "NEU610: no device has resourceType 'neuron-node'. Did you mean 'neuron_node'?": (
        f"{attribute('resourceType')} == 'neuron-node'",
        SELECTORS,
    ),
    "NEU610: no device has device.driver 'neuron.aws.co'. Did you mean 'neuron.aws.com'?": (
        "device.driver == 'neuron.aws.co'",
        SELECTORS,
    ),
    "NEU610: no device that is known matches all selectors of the request. Compare them with the attributes in"
    " kubectl get resourceslices.": (f"{attribute('deviceId')} > 99", SELECTORS),
    "NEU611: the selector fails on devices of trn2u.48xlarge and 12 more types (by the catalogue):": (
        f"16 / (16 - {attribute('deviceId')}) > 0",
        SELECTOR,
    ),
}

FINE = {
    "of the documents": on(TRN2),
    "driver version": f"{on(TRN2)} && {attribute('neuronDriverVersion')} == '2.25.4.0'",
    "driver versions": f"{attribute('neuronDriverVersion')} in ['2.25.4.0', '2.26.5.0']",
    "driver version by its beginning": f"{attribute('neuronDriverVersion')}.startsWith('2.25.')",
    "version of the DRA driver": f"{attribute('draDriverVersion')}.compareTo(semver('1.0.0')) >= 0",
    "whole node": WHOLE_NODE,
    "guarded by in": f"'topology_x' in device.attributes['neuron.aws.com'] && {attribute('topology_x')} == 1",
    "guarded by has": f"has({attribute('topology_x')}) && {attribute('topology_x')} == 1",
    "guarded by the type": f"{on(TRN2)} && {attribute('topology_x')} == 1",
    "guarded from behind": f"{attribute('topology_x')} == 1 && {on(TRN2)}",
    "optional": "device.attributes['neuron.aws.com'].?topology_x.orValue(-1) == 1",
    "bound": f"cel.bind(d, device.attributes['neuron.aws.com'], d.instanceType == '{TRN2}')",
    "network": f"{attribute('networkNodeLayer1')} == 'nn-0123456789'",
    "driver": "device.driver == 'neuron.aws.com'",
    "memory of the documents": "device.capacity['neuron.aws.com'].memory.compareTo(quantity('80Gi')) >= 0",
    "guarded memory": "device.capacity['neuron.aws.com'].?memory.orValue(quantity('0')) == quantity('96Gi')",
    "cores": "device.capacity['neuron.aws.com'].neuroncores.isGreaterThan(quantity('2'))",
    "numa node": f"device.attributes['resource.kubernetes.io'].?numaNode.orValue(-1) == 0 && {on(TRN2)}",
    "root complex": f"{on(TRN2)} && device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:c8'",
    "several lines": f"{on(TRN2)} &&\n  {attribute('deviceId')} < 8",
}


MEMORY = "device.capacity['neuron.aws.com'].memory.compareTo(quantity('80Gi')) >= 0"


class TestCapacities:
    def test_too_much_memory_matches_nothing(self) -> None:
        [finding] = say(MEMORY.replace("80Gi", "8000Gi"))
        assert finding.code == "NEU610"

    def test_a_capacity_selector_needs_a_guard_if_a_driver_publishes_no_capacity(self) -> None:
        [finding] = say(MEMORY, where=world([published(TRN2)]))
        assert (finding.severity, finding.path) == ("warning", SELECTOR)
        assert str(finding).startswith(f"NEU609: memory is missing on {TRN2}: one such device ends the scheduling")
        guard = "'memory' in device.capacity['neuron.aws.com'] && "
        assert finding.fix == """Guard it: "memory" in device.capacity["neuron.aws.com"] && ..."""
        assert codes(say(guard + MEMORY, where=world([published(TRN2)]))) == ["NEU612"]

    def test_published_capacity_counts(self) -> None:
        where = world([published(TRN1, capacity={"memory": "32Gi"}), published(TRN2, capacity={"memory": "96Gi"})])
        assert say(MEMORY, where=where) == ()


class TestSelectors:
    @pytest.mark.parametrize(("said", "expression"), REFUSED.items(), ids=REFUSED)
    def test_selectors_that_can_never_match_are_errors(self, expression: str, said: str) -> None:
        [finding] = say(expression)
        assert (finding.severity, finding.path) == ("error", SELECTOR)
        assert str(finding).startswith(said)

    @pytest.mark.parametrize(("said", "expression", "path"), [(said, *row) for said, row in WARNED.items()], ids=WARNED)
    def test_selectors_that_may_match_are_warnings(self, expression: str, path: str, said: str) -> None:
        [finding] = say(expression)
        assert (finding.severity, finding.path) == ("warning", path)
        assert str(finding).startswith(said)

    @pytest.mark.parametrize("expression", FINE.values(), ids=FINE)
    def test_valid_selectors_have_no_findings(self, expression: str) -> None:
        assert say(expression) == ()

    def test_a_selector_that_loops_too_much_is_refused(self) -> None:
        numbers = "[" + ", ".join(map(str, range(120))) + "]"
        loops = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, a + b + c >= 0)))"
        [finding] = say(loops)
        assert (finding.severity, finding.code) == ("error", "NEU605")
        assert finding.message.startswith("the selector costs too much")

    def test_a_selector_that_is_too_slow_to_evaluate_on_every_device_is_admitted(self) -> None:
        numbers = "[" + ", ".join(map(str, range(250))) + "]"
        [finding] = say(f"{numbers}.all(a, {numbers}.all(b, a + b + {attribute('deviceId')} >= 0))")
        assert (finding.severity, finding.path) == ("warning", SELECTOR)
        assert str(finding) == (
            "NEU603: the selector was not checked: evaluating it on all known devices takes too long. Only Kubernetes"
            " evaluates it."
        )

    def test_every_selector_of_a_request_is_judged(self) -> None:
        assert codes(say("device.driver ==", f"{attribute('topology_x')} == '1'")) == ["NEU601", "NEU607"]

    def test_later_selectors_are_evaluated_on_devices_that_earlier_ones_match(self) -> None:
        assert say(on(TRN2), f"{attribute('topology_x')} == 1") == ()
        assert codes(say(f"{attribute('topology_x')} == 1", on(TRN2))) == ["NEU609"]

    def test_selectors_for_other_drivers_are_ignored(self) -> None:
        foreign = "device.attributes['gpu.nvidia.com'].productName == 1"
        assert judge(claim(request("gpu", 1, foreign, device_class="gpu.nvidia.com"))) == ()

    def test_selectors_on_neuron_attributes_are_judged_in_any_class(self) -> None:
        assert codes(say(f"{attribute('topology_x')} == '1'", device_class="own")) == ["NEU607"]


class TestCluster:
    def test_published_attributes_are_known(self) -> None:
        where = world([published(TRN2, rackColour={"string": "red"})])
        assert say(f"{on(TRN2)} && {attribute('rackColour')} == 'red'", where=where) == ()

    def test_a_published_attribute_has_the_type_that_is_published(self) -> None:
        where = world([published(TRN2, rackHeight={"int": 42})])
        assert "NEU607" in codes(say(f"{on(TRN2)} && {attribute('rackHeight')} == '42'", where=where))

    def test_operators_on_list_type_attributes_are_not_judged_by_type(self) -> None:
        where = world([published(TRN2, racks={"ints": [1, 2]})])
        for expression in (f"{attribute('racks')}.includes(1)", f"{attribute('racks')}.exists(each, each == 2)"):
            assert say(f"{on(TRN2)} && {expression}", where=where) == ()
        assert codes(say(f"{on(TRN2)} && {attribute('racks')} == 1", where=where)) == ["NEU610"]

    def test_published_attributes_override_documented_ones(self) -> None:
        newer = published(TRN2, without=["neuronDriverVersion"])
        for device in newer["devices"]:
            device["attributes"]["neuronDriverVersion"] = {"version": "3.0.0"}
        expression = f"{on(TRN2)} && {attribute('neuronDriverVersion')}.isGreaterThan(semver('2.9.0'))"
        assert codes(say(expression)) == ["NEU608"]
        assert say(expression, where=world([newer])) == ()

    def test_a_selector_for_unpublished_devices_is_a_warning(self) -> None:
        [finding] = say(on(TRN1), where=world([published(TRN2)]))
        assert (finding.severity, finding.path) == ("warning", SELECTORS)
        assert str(finding) == (
            "NEU612: no device that the cluster publishes now matches. It has devices of: trn2.48xlarge."
        )

    def test_an_unpublished_alternative_beside_a_published_one_has_no_findings(self) -> None:
        spec = claim(first_available("neurons", a=devices(1, on(TRN1)), b=devices(1, on(TRN2)), c=devices(1, on(INF2))))
        assert judge(spec, world([published(TRN2)])) == ()

    def test_alternatives_that_are_all_unpublished_give_one_warning(self) -> None:
        spec = claim(first_available("neurons", a=devices(1, on(TRN1)), b=devices(1, on(INF2))))
        [finding] = judge(spec, world([published(TRN2)]))
        assert (finding.severity, finding.path) == ("warning", "spec.devices.requests[0].firstAvailable")
        assert str(finding) == (
            "NEU612: no device that the cluster publishes now matches an alternative of the request. It has devices of:"
            " trn2.48xlarge."
        )

    def test_a_selector_for_published_devices_has_no_findings(self) -> None:
        assert say(on(TRN2), where=world([published(TRN2)])) == ()

    def test_a_selector_for_an_unpublished_driver_version_is_a_warning(self) -> None:
        expression = f"{on(TRN2)} && {attribute('neuronDriverVersion')} == '2.25.4.1'"
        assert codes(say(expression, where=world([published(TRN2)]))) == ["NEU612"]
        assert say(expression, where=world([published(TRN2, driver_version="2.25.4.1")])) == ()

    def test_a_device_without_an_attribute_that_all_others_have_is_a_warning(self) -> None:
        where = world([published(TRN2), published(TRN2, node="old", without=["resourceType"])])
        [finding] = say(f"{attribute('resourceType')} == 'neuron_device'", where=where)
        assert str(finding).startswith("NEU609: resourceType is missing on trn2.48xlarge:")

    def test_only_types_of_the_cluster_are_named(self) -> None:
        expression = f"{attribute('topology_x')} == 1"
        assert say(expression, where=world(present=[TRN2])) == ()
        [finding] = say(expression, where=world(present=[TRN2, "inf2.48xlarge", "m5.large"]))
        assert str(finding).startswith("NEU609: topology_x is missing on inf2.48xlarge: one such device ends")

    def test_a_failure_on_types_that_the_cluster_does_not_have_is_no_finding(self) -> None:
        expression = f"{on(TRN2)} ? 1 / ({attribute('deviceId')} - 1) >= 0 : true"
        assert "NEU611" in codes(say(expression))
        assert codes(say(expression, where=world(present=["inf2.48xlarge"]))) == []

    def test_class_selectors_are_evaluated_first(self) -> None:
        device_class, _ = read_class(V1, {"selectors": [{"cel": {"expression": on(TRN2)}}]})
        where = world(classes={"trn2": device_class}, classes_known=True)
        assert say(f"{attribute('topology_x')} == 1", where=where, device_class="trn2") == ()
        [finding] = judge(claim(request("neurons", 17, device_class="trn2")), where)
        assert "a node of trn2.48xlarge has 16" in finding.message

    def test_requests_for_a_class_of_another_driver_are_ignored(self) -> None:
        device_class, _ = read_class(V1, {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]})
        where = world(classes={"gpu": device_class}, classes_known=True)
        assert judge(claim(request("gpu", 64, "device.attributes['x'].y == 1", device_class="gpu")), where) == ()

    def test_a_missing_class_warns(self) -> None:
        [finding] = say(device_class="neuron.aws.co", where=world(classes_known=True))
        assert (finding.severity, finding.path) == ("warning", "spec.devices.requests[0].exactly.deviceClassName")
        assert str(finding) == (
            "NEU513: DeviceClass 'neuron.aws.co' does not exist. Did you mean 'neuron.aws.com'? Pods wait until it"
            " exists."
        )

    def test_only_a_likely_misspelling_is_a_warning_without_a_cluster(self) -> None:
        [finding] = say(device_class="neuron.aws.co")
        assert finding.message == "DeviceClass 'neuron.aws.co' is not known here. Did you mean 'neuron.aws.com'?"
        assert say(device_class="team-devices") == ()


class TestSharing:
    @pytest.mark.parametrize("expression", ["device.allowMultipleAllocations", "!device.allowMultipleAllocations"])
    def test_a_selector_on_shared_devices_sees_which_are_shared(self, expression: str) -> None:
        where = world([published(INF2, 12, cores=2), published(TRN2)])
        spec = claim(request("neurons", 1, expression))
        [leaf] = judge_claim(read_claim("ResourceClaim", V1, spec)[0], where).leaves
        types = where.index.types(leaf.mask & where.index.published)
        assert types == ((TRN2,) if expression.startswith("!") else (INF2,))
