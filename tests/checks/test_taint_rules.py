"""Findings about DeviceTaintRules."""

from typing import Any

import pytest

from checks.workloads import check_taint_rule
from neuron.findings import Severity

GOOD = {"driver": "neuron.aws.com", "pool": "trn2-0", "device": "neuron-device-3"}


def found(selector: Any, effect: Any = "NoSchedule") -> list[str]:
    item = {"spec": {"deviceSelector": selector, "taint": {"key": "example.com/x", "effect": effect}}}
    return [str(each) for each in check_taint_rule(item)]


@pytest.mark.parametrize(
    "selector",
    [
        GOOD,
        {"driver": "neuron.aws.com"},
        {**GOOD, "device": "neuron-node"},
        {"driver": "gpu.example.com", "device": "x"},
    ],
)
@pytest.mark.parametrize("effect", ["None", "NoSchedule", "NoExecute"])
def test_a_rule_that_selects_its_devices_has_no_findings(selector: dict[str, str], effect: str) -> None:
    assert found(selector, effect) == []


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (None, "NEU545: the DeviceTaintRule has no deviceSelector: by its documentation it taints nothing, and"),
        ({}, "NEU545: the DeviceTaintRule selects every device of every driver in the cluster. Set driver: neuron.aws"),
        (
            {"driver": "neuron.aws.con"},
            "NEU546: the driver 'neuron.aws.con' publishes no devices. Did you mean 'neuron.aws",
        ),
        ({**GOOD, "device": "neuron3"}, "NEU545: the device 'neuron3' is no name that the Neuron driver publishes."),
        ({**GOOD, "devise": "x"}, "NEU546: a deviceSelector has no field 'devise'. Did you mean 'device'?"),
        (
            {**GOOD, "deviceClassName": "x"},
            "NEU545: the field deviceClassName of a deviceSelector exists up to Kubernetes 1.34",
        ),
        ([], "NEU546: the deviceSelector is [], not an object."),
    ],
)
def test_each_error_of_a_rule_selector_is_reported(selector: Any, text: str) -> None:
    [message] = found(selector)
    assert message.startswith(text)


def test_an_unknown_taint_effect_is_reported() -> None:
    assert found(GOOD, "NoExcute") == [
        "NEU546: the effect 'NoExcute' of a device taint does not exist. Did you mean 'NoExecute'? Use one of None, "
        "NoSchedule, NoExecute."
    ]
    assert found(GOOD, None)[0].startswith("NEU546: the effect null of a device taint does not exist.")


def test_a_rule_without_a_spec_is_reported() -> None:
    [finding] = check_taint_rule({"metadata": {"name": "r"}})
    assert (finding.code, finding.severity) == ("NEU546", Severity.ERROR)
