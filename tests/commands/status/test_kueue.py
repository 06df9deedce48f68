"""What `status` says of Kueue: its version, its feature gates and its mapping of DeviceClasses."""

import json
from typing import Any

import pytest
import yaml

from commands.cluster.reader import Unseen
from commands.status import kueue
from commands.status.kueue import KueueSetup, check, classes_of, counted_classes, read_setup
from commands.status.lines import CheckResult
from conversion.objects.queues import device_class_mappings

OURS = "neuron.aws.com"
MAPPING = {"name": "aws.amazon.com/neuron", "deviceClassNames": [OURS]}


def config(**settings: Any) -> dict[str, Any]:
    return {"data": {kueue.FILE: yaml.safe_dump({"kind": "Configuration", **settings})}}


def mapped(*entries: Any, **settings: Any) -> dict[str, Any]:
    return config(resources={"deviceClassMappings": list(entries)}, **settings)


def manager(image: str = "registry.k8s.io/kueue/kueue:v0.19.2", *arguments: str) -> dict[str, Any]:
    containers = [{"image": image, "args": list(arguments)}]
    return {"spec": {"template": {"spec": {"containers": containers}}}}


def kueue_lines(setup: KueueSetup, *classes: str) -> list[tuple[str, str]]:
    return [(line.verdict.value, f"{line.text} {line.fix}".rstrip()) for line in check((setup,), classes or (OURS,))]


def test_a_kueue_with_the_mapping_counts_claims() -> None:
    setup = read_setup(mapped(MAPPING), manager())
    assert kueue_lines(setup) == [("well", "Kueue 0.19.2 counts claims of neuron.aws.com as aws.amazon.com/neuron.")]
    assert counted_classes((setup,)) == {OURS}


@pytest.mark.parametrize(
    ("image", "text"),
    [
        ("kueue:v0.13.4", "Kueue 0.13.4 counts no claims."),
        ("kueue:v0.15.0", "Kueue 0.15.0 refuses claims with selectors, which every generated claim has."),
        ("kueue:v0.17.8", "Kueue 0.17.8 refuses claims with selectors, which every generated claim has."),
        (
            "kueue:v0.18.1@sha256:00",
            "Kueue 0.18.1 refuses claims with constraints or device settings, so those for connected devices.",
        ),
    ],
)
def test_versions_that_refuse_generated_claims_are_named(image: str, text: str) -> None:
    setup = read_setup(mapped(MAPPING, featureGates={"DynamicResourceAllocation": True}), manager(image))
    assert kueue_lines(setup) == [("note", f"{text} Upgrade Kueue to 0.18.2 or later.")]
    assert counted_classes((setup,)) == frozenset()


@pytest.mark.parametrize("image", ["kueue:v0.18.2", "kueue:v0.19.0-rc.0", "kueue:main", "registry:5000/kueue"])
def test_other_versions_are_not_named(image: str) -> None:
    (line,) = check((read_setup(mapped(MAPPING), manager(image)),), [OURS])
    assert line.verdict is CheckResult.WELL


@pytest.mark.parametrize(
    ("image", "gates", "arguments", "text"),
    [
        pytest.param(
            "kueue:v0.19.2",
            {"KueueDRAIntegration": False},
            (),
            "the feature gate KueueDRAIntegration is off: Kueue 0.19.2 admits no workload with claims.",
            id="off-by-configuration",
        ),
        pytest.param(
            "kueue:v0.18.6",
            {},
            ("--config=/f", "--feature-gates=Other=true,KueueDRAIntegration=false"),
            "the feature gate KueueDRAIntegration is off: Kueue 0.18.6 admits no workload with claims.",
            id="off-by-argument",
        ),
        pytest.param(
            "kueue:v0.14.8",
            {},
            (),
            "the feature gate DynamicResourceAllocation is off: Kueue 0.14.8 admits workloads with claims, and does not"
            " count these.",
            id="off-by-default",
        ),
    ],
)
def test_a_gate_that_is_off_is_named(image: str, gates: Any, arguments: tuple[str, ...], text: str) -> None:
    setup = read_setup(mapped(MAPPING, featureGates=gates), manager(image, *arguments))
    assert kueue_lines(setup) == [("note", f"{text} Enable it in featureGates of kueue-system/kueue-manager-config.")]
    assert counted_classes((setup,)) == frozenset()


def test_a_gate_with_which_claims_would_be_refused_is_not_recommended() -> None:
    assert kueue_lines(read_setup(config(), manager("kueue:v0.17.8"))) == [
        (
            "note",
            "the feature gate DynamicResourceAllocation is off: Kueue 0.17.8 admits workloads with claims, and does not"
            " count these. Upgrade Kueue to 0.18.2 or later.",
        )
    ]


def test_classes_without_a_mapping_are_named_with_the_entries() -> None:
    setup = read_setup(mapped({"name": "aws.amazon.com/neuron", "deviceClassNames": ["trn2"]}), manager())
    classes = (OURS, "efa.networking.k8s.aws", "trn2")
    assert kueue_lines(setup, *classes)[0] == (
        "note",
        "Kueue 0.19.2 has no mapping for efa.networking.k8s.aws, neuron.aws.com: it admits no workload with such"
        " claims. Put {name: vpc.amazonaws.com/efa, deviceClassNames: [efa.networking.k8s.aws]},"
        " {name: aws.amazon.com/neuron, deviceClassNames: [trn2, neuron.aws.com]} into resources.deviceClassMappings of"
        " kueue-system/kueue-manager-config, and restart Kueue.",
    )


def test_the_entries_make_a_configuration_that_counts_all_classes() -> None:
    classes = (OURS, "efa.networking.k8s.aws", "trn2")
    entries = [yaml.safe_load(each) for each in device_class_mappings(classes, {"trn2": "team/neuron"})]
    setup = read_setup(mapped(*entries), manager())
    assert [verdict for verdict, _ in kueue_lines(setup, *classes)] == ["well"]
    assert setup.mapped["trn2"] == "team/neuron"


@pytest.mark.parametrize("name", ["neuron.aws.com/neuroncores", "cores"])
def test_a_capacity_that_the_driver_does_not_publish_is_named(name: str) -> None:
    capacity = {"name": name, "driver": OURS, "deviceSelector": {"cel": {"expression": "true"}}}
    setup = read_setup(mapped({**MAPPING, "sources": [{"capacity": capacity}]}), manager())
    assert kueue_lines(setup)[0] == (
        "note",
        f"the mapping of neuron.aws.com counts capacity {name!r}, which our driver does not publish."
        " Write neuroncores, without a domain.",
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "there is no kueue-system/kueue-manager-config: it is not known what Kueue counts."),
        (
            {"data": {"other": ""}},
            "ConfigMap kueue-system/kueue-manager-config has no controller_manager_config.yaml: it is not known what"
            " Kueue counts.",
        ),
        (
            {"data": {kueue.FILE: "a: [b"}},
            "controller_manager_config.yaml of kueue-system/kueue-manager-config is not YAML: did not find expected"
            " ',' or ']': it is not known what Kueue counts.",
        ),
    ],
    ids=["missing", "no-key", "no-yaml"],
)
def test_a_configuration_that_cannot_be_read_is_unknown(found: Any, text: str) -> None:
    assert kueue_lines(read_setup(found, manager())) == [("unknown", text)]


@pytest.mark.parametrize(
    "broken",
    [
        {"resources": []},
        {"resources": {"deviceClassMappings": "x"}},
        {"resources": {"deviceClassMappings": [None, 1, {"deviceClassNames": {"a": 1}, "sources": [7]}]}},
        {"featureGates": ["KueueDRAIntegration"]},
        {"featureGates": {"KueueDRAIntegration": "no"}},
    ],
    ids=json.dumps,
)
def test_settings_of_wrong_types_count_nothing(broken: dict[str, Any]) -> None:
    verdicts = [verdict for verdict, _ in kueue_lines(read_setup(config(**broken), {"spec": {"template": None}}))]
    assert verdicts == ["note"]


def test_a_missing_right_is_unknown_and_no_kueue_is_nothing() -> None:
    (line,) = check(Unseen("you are not allowed to get it.", "- {}"), [OURS])
    assert (line.verdict, line.text) == (CheckResult.UNKNOWN, "you are not allowed to get it.")
    assert list(check((), [OURS])) == []


def test_classes_are_those_of_the_templates_and_the_default_one() -> None:
    exactly = {"name": "n0", "exactly": {"deviceClassName": "efa.networking.k8s.aws"}}
    other = {"name": "n1", "firstAvailable": [{"deviceClassName": "trn2"}, {"deviceClassName": OURS}]}
    template = {"spec": {"spec": {"devices": {"requests": [exactly, other]}}}}
    assert classes_of((template, {"spec": None})) == {OURS, "efa.networking.k8s.aws", "trn2"}
    assert classes_of(Unseen("")) == {OURS}
