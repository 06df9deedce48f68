"""Opaque configs as parts of a claim: held against each other, and against what the requests can match."""

from typing import Any

import pytest

from neuron.api.claim_reader import read_class
from tests.support.validation import (
    INF2,
    TRN1,
    TRN2,
    TRN2U,
    V1,
    WHOLE_NODE,
    claim,
    codes,
    devices,
    first_available,
    judge,
    lnc,
    on,
    opaque,
    published,
    request,
    ultraserver,
    world,
)

CONFIG = "spec.devices.config[0].opaque"
NODE = request("neurons", 1, WHOLE_NODE)

ERRORS = {
    "NEU407: NeuronConfig has no field \"logicalNeuronCoreCount\". Did you mean 'logicalNeuronCore'?": (
        claim(request("neurons", 1, on(TRN2)), config=[opaque({**lnc(), "logicalNeuronCoreCount": 1})]),
        f"{CONFIG}.parameters.logicalNeuronCoreCount",
    ),
    "NEU512: no driver is called 'neurn.aws.com'. Did you mean 'neuron.aws.com'? Write driver: neuron.aws.com;"
    " configs of other drivers are ignored without a message.": (
        claim(request("neurons", 1, on(TRN2)), config=[opaque(lnc(), driver="neurn.aws.com")]),
        f"{CONFIG}.driver",
    ),
    "NEU510: two NeuronConfig entries disagree: logicalNeuronCore 1 here and 2 in config[1], which wins. Keep one"
    " of them, or give each its own requests.": (
        claim(request("neurons", 1, on(TRN2)), config=[opaque(lnc(1)), opaque(lnc(2))]),
        f"{CONFIG}.parameters.logicalNeuronCore",
    ),
    "NEU510: two UltraServerConfig entries disagree: ultraserverMode 2 here and 4 in config[1], which wins.": (
        claim(NODE, config=[opaque(ultraserver(2)), opaque(ultraserver(4), requests=[])]),
        f"{CONFIG}.parameters.ultraserverMode",
    ),
    "NEU412: logicalNeuronCore cannot be set on trn1.32xlarge, whose size is always 1. Remove the NeuronConfig.": (
        claim(request("neurons", 1, on(TRN1)), config=[opaque(lnc(2))]),
        f"{CONFIG}.parameters.logicalNeuronCore",
    ),
    "NEU414: ultraserverMode 4 needs a neuron_node device, not a neuron_device. Add the selector"
    " device.attributes['neuron.aws.com'].resourceType == 'neuron_node' to request neurons.": (
        claim(request("neurons", 1, on(TRN2U)), config=[opaque(ultraserver(4))]),
        f"{CONFIG}.parameters.ultraserverMode",
    ),
    "NEU414: ultraserverMode 2 needs a neuron_node device, not a neuron_device.": (
        claim(request("neurons", 1, on(TRN2)), config=[opaque(ultraserver(2))]),
        f"{CONFIG}.parameters.ultraserverMode",
    ),
    "NEU521: 2 devices are requested, and the selectors match 1 on a node of trn2u.48xlarge. Request 1 or fewer.": (
        claim(request("neurons", 2, WHOLE_NODE), config=[opaque(ultraserver(2))]),
        "spec.devices.requests[0].exactly.count",
    ),
}

WARNINGS = {
    "NEU511: the config is for 'gpu.nvidia.com', and the claim asks for Neuron devices only. Drop it, or request"
    " devices of that driver.": (
        claim(request("neurons", 1, on(TRN2)), config=[opaque({"kind": "GpuConfig"}, driver="gpu.nvidia.com")]),
        f"{CONFIG}.driver",
    ),
    "NEU511: the config is for neuron.aws.com, and efa asks for other devices. List a request for Neuron devices"
    " under requests.": (
        claim(
            request("neurons", 1, on(TRN2)),
            request("efa", 1, device_class="efa.networking.k8s.aws"),
            config=[opaque(lnc(1), requests=["efa"])],
        ),
        f"{CONFIG}.driver",
    ),
    "NEU514: request neurons also admits trn1.32xlarge (by the catalogue), which does not take logicalNeuronCore 1."
    " Select an instance type that does, such as trn2.48xlarge.": (
        claim(request("neurons", 1), config=[opaque(lnc(1))]),
        f"{CONFIG}.parameters.logicalNeuronCore",
    ),
    'NEU411: The apiVersion "neuron.aws.com/v1alphav1" of the opaque config is an older spelling. Write'
    " apiVersion: neuron.aws.com/v1.": (
        claim(request("neurons", 1, on(TRN2)), config=[opaque(lnc(1, apiVersion="neuron.aws.com/v1alphav1"))]),
        f"{CONFIG}.parameters.apiVersion",
    ),
    'NEU411: The apiVersion "resource.neuron.aws.com/v1alphav1" of the opaque config is an older spelling.': (
        claim(request("neurons", 1, on(TRN2)), config=[opaque(lnc(1, apiVersion="resource.neuron.aws.com/v1alphav1"))]),
        f"{CONFIG}.parameters.apiVersion",
    ),
}

FINE = {
    "both kinds on a node": claim(NODE, config=[opaque(ultraserver(2)), opaque(lnc(1))]),
    "a rule and its exception": claim(
        request("a", 1, on(TRN2)),
        request("b", 1, on(TRN2)),
        config=[opaque(lnc(2), requests=[]), opaque(lnc(1), requests=["b"])],
    ),
    "different requests": claim(
        request("a", 1, on(TRN2)),
        request("b", 1, on(TRN2)),
        config=[opaque(lnc(2), requests=["a"]), opaque(lnc(1), requests=["b"])],
    ),
    "twice the same": claim(request("neurons", 1, on(TRN2)), config=[opaque(lnc(1)), opaque(lnc(1))]),
    "one alternative": claim(
        first_available(big=devices(1, on(TRN2)), small=devices(1, on(INF2))),
        config=[opaque(lnc(1), requests=["neurons/big"])],
    ),
    "a driver that is requested too": claim(
        request("neurons", 1, on(TRN2)),
        request("gpu", 1, device_class="gpu.nvidia.com"),
        config=[opaque({"kind": "GpuConfig"}, driver="gpu.nvidia.com", requests=["gpu"])],
    ),
}


class TestConfigs:
    @pytest.mark.parametrize(("said", "spec", "path"), [(said, *row) for said, row in ERRORS.items()], ids=ERRORS)
    def test_configs_that_can_never_work_are_errors(self, spec: Any, path: str, said: str) -> None:
        [finding] = [each for each in judge(spec) if each.severity == "error"]
        assert finding.path == path
        assert str(finding).startswith(said)

    @pytest.mark.parametrize(("said", "spec", "path"), [(said, *row) for said, row in WARNINGS.items()], ids=WARNINGS)
    def test_configs_that_may_work_are_warnings(self, spec: Any, path: str, said: str) -> None:
        [finding] = judge(spec)
        assert (finding.severity, finding.path) == ("warning", path)
        assert str(finding).startswith(said)

    @pytest.mark.parametrize("spec", FINE.values(), ids=FINE)
    def test_valid_configs_have_no_findings(self, spec: Any) -> None:
        assert judge(spec) == ()

    @pytest.mark.parametrize(
        ("present", "said"),
        [
            pytest.param(["trn2.48xlarge"], [], id="the cluster has no such type"),
            pytest.param(
                ["trn2.48xlarge", "inf2.48xlarge"],
                [
                    "NEU514: request neurons also admits inf2.48xlarge, which does not take logicalNeuronCore 2. "
                    "Select an"
                    " instance type that does, such as trn2.48xlarge."
                ],
                id="the cluster has both",
            ),
            pytest.param(
                ["inf2.48xlarge"],
                [
                    "NEU514: request neurons also admits inf2.48xlarge, which does not take logicalNeuronCore 2. The "
                    "cluster"
                    " has no instance type that does; of the catalogue, trn2.48xlarge does."
                ],
                id="the cluster has only types without the setting",
            ),
        ],
    )
    def test_only_types_of_the_cluster_are_named(self, present: list[str], said: list[str]) -> None:
        found = judge(claim(request("neurons", 1), config=[opaque(lnc(2))]), world(present=present))
        assert [str(each) for each in found] == said

    def test_a_config_that_no_published_type_supports_is_an_error(self) -> None:
        unheard_of = published("trn9.48xlarge")
        findings = judge(
            claim(request("neurons", 1, on("trn9.48xlarge")), config=[opaque(ultraserver(2))]), world([unheard_of])
        )
        assert codes(findings) == ["NEU414"]

    def test_configs_of_the_class_count(self) -> None:
        device_class, _ = read_class(
            V1,
            {
                "selectors": [{"cel": {"expression": "device.driver == 'neuron.aws.com'"}}],
                "config": [{"opaque": {"driver": "neuron.aws.com", "parameters": lnc(1)}}],
            },
        )
        where = world(classes={"lnc-1": device_class}, classes_known=True)
        [finding] = judge(claim(request("neurons", 1, on(TRN1), device_class="lnc-1")), where)
        assert (finding.code, finding.path) == ("NEU412", "spec.devices.requests[0].exactly")
        # The claim's own setting comes after the class's.
        assert judge(claim(request("neurons", 1, on(TRN2), device_class="lnc-1"), config=[opaque(lnc(2))]), where) == ()

    def test_repeated_keys_are_seen_in_raw_json(self) -> None:
        raw = b'{"apiVersion":"neuron.aws.com/v1","kind":"NeuronConfig","logicalNeuronCore":1,"logicalNeuronCore":2}'
        [finding] = judge(claim(request("neurons", 1, on(TRN2)), config=[opaque(raw)]))
        assert (finding.code, finding.path) == ("NEU404", f"{CONFIG}.parameters.logicalNeuronCore")
