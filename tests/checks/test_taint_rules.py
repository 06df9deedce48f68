"""Findings about DeviceTaintRules."""

from typing import Any

import pytest

from checks.workloads import check_taint_rule
from neuron.findings import Finding, Severity

GOOD = {"driver": "neuron.aws.com", "pool": "trn2-0", "device": "neuron-device-3"}


def of_rule(selector: Any, effect: Any = "NoSchedule") -> list[Finding]:
    item = {"spec": {"deviceSelector": selector, "taint": {"key": "example.com/x", "effect": effect}}}
    return list(check_taint_rule(item))


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
    assert of_rule(selector, effect) == []


SELECTOR = "spec.deviceSelector"


@pytest.mark.parametrize(
    ("selector", "path", "value", "text"),
    [
        (
            None,
            SELECTOR,
            "",
            "NEU545: the DeviceTaintRule has no deviceSelector: by its documentation it taints nothing, and schedulers "
            "of Kubernetes 1.37 taint every device of every driver by it (kubernetes/kubernetes#141620). Name driver, "
            "pool and device.",
        ),
        (
            {},
            SELECTOR,
            "",
            "NEU545: the DeviceTaintRule selects every device of every driver in the cluster. Set driver: "
            "neuron.aws.com, and a pool or device.",
        ),
        (
            {"driver": "neuron.aws.con"},
            f"{SELECTOR}.driver",
            "neuron.aws.con",
            "NEU546: the driver 'neuron.aws.con' publishes no devices. Did you mean 'neuron.aws.com'? Write driver: "
            "neuron.aws.com.",
        ),
        (
            {**GOOD, "device": "neuron3"},
            f"{SELECTOR}.device",
            "neuron3",
            "NEU545: the device 'neuron3' is no name that the Neuron driver publishes. Its devices are "
            "neuron-device-0, neuron-device-1 and so on, and neuron-node.",
        ),
        (
            {**GOOD, "devise": "x"},
            f"{SELECTOR}.devise",
            "devise",
            "NEU546: a deviceSelector has no field 'devise'. Did you mean 'device'? Its fields are driver, pool, "
            "device.",
        ),
        (
            {**GOOD, "namespace": "x"},
            f"{SELECTOR}.namespace",
            "namespace",
            "NEU546: a deviceSelector has no field 'namespace'. Its fields are driver, pool, device.",
        ),
        (
            {**GOOD, "deviceClassName": "x"},
            f"{SELECTOR}.deviceClassName",
            "deviceClassName",
            "NEU545: the field deviceClassName of a deviceSelector exists up to Kubernetes 1.34 only, and later "
            "versions drop it. Select by driver, pool and device.",
        ),
        ([], SELECTOR, "", "NEU546: the deviceSelector is [], not an object. Name driver and pool."),
    ],
)
def test_each_error_of_a_rule_selector_is_reported(selector: Any, path: str, value: str, text: str) -> None:
    [finding] = of_rule(selector)
    assert (finding.path, finding.value, str(finding)) == (path, value, text)


@pytest.mark.parametrize(
    ("taint", "value", "said"),
    [
        ({"effect": "NoExcute"}, "NoExcute", "'NoExcute' of a device taint does not exist. Did you mean 'NoExecute'?"),
        ({"effect": "Evict"}, "Evict", "'Evict' of a device taint does not exist."),
        ({"effect": None}, "None", "null of a device taint does not exist."),
        ({"effect": 3}, "3", "3 of a device taint does not exist."),
        ("NoSchedule", "None", "null of a device taint does not exist."),
    ],
    ids=["misspelt", "unknown", "none", "number", "no-object"],
)
def test_an_unknown_taint_effect_is_reported(taint: Any, value: str, said: str) -> None:
    [finding] = check_taint_rule({"spec": {"deviceSelector": GOOD, "taint": taint}})
    assert (finding.path, finding.value) == ("spec.taint.effect", value)
    assert str(finding) == f"NEU546: the effect {said} Use one of None, NoSchedule, NoExecute."


def test_a_rule_without_a_spec_is_reported() -> None:
    [finding] = check_taint_rule({"metadata": {"name": "r"}})
    assert (finding.path, finding.severity) == ("spec", Severity.ERROR)
    assert str(finding) == "NEU546: the DeviceTaintRule has no spec. Give it a selector and a taint."
