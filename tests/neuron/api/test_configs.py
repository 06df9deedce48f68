"""Opaque configs are decoded strictly, every problem is named, and the platform's precedence holds."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.api.configs import (
    MAX_PARAMETERS_LENGTH,
    ConfigEntry,
    ConfigsInForce,
    ConfigSource,
    NeuronConfig,
    UltraServerConfig,
    configs_in_force,
    covers,
    decode_object,
    decode_text,
)
from neuron.codes import CODES
from neuron.findings import Severity

CURRENT = "neuron.aws.com/v1"
ONE_OF = "Write an object of kind NeuronConfig or UltraServerConfig."
FIELDS = "Its fields are apiVersion, kind and logicalNeuronCore; a newer field needs a newer version of this program."


def config(kind: str = "NeuronConfig", version: str = CURRENT, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, **fields}


@pytest.mark.parametrize("lnc", [1, 2])
def test_neuron_config_takes_every_size(lnc: int) -> None:
    assert decode_object(config(logicalNeuronCore=lnc)).config == NeuronConfig(lnc)


@pytest.mark.parametrize("mode", [1, 2, 4])
def test_ultraserver_config_takes_every_number_of_nodes(mode: int) -> None:
    assert decode_object(config("UltraServerConfig", ultraserverMode=mode)).config == UltraServerConfig(mode)


@pytest.mark.parametrize("version", ["resource.neuron.aws.com/v1alphav1", "neuron.aws.com/v1alphav1"])
def test_older_api_versions_work_with_a_warning_that_names_the_current_one(version: str) -> None:
    decoded = decode_object(config(version=version, logicalNeuronCore=1))
    assert decoded.config == NeuronConfig(1)
    [finding] = decoded.findings
    assert (finding.code, finding.severity, finding.path) == ("NEU411", Severity.WARNING, "apiVersion")
    assert str(finding) == (
        f'NEU411: The apiVersion "{version}" of the opaque config is an older spelling. Write apiVersion: {CURRENT}.'
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    f"NEU405: The opaque config has no apiVersion. Add apiVersion: {CURRENT}.": (
        {"kind": "NeuronConfig", "logicalNeuronCore": 1},
        "apiVersion",
    ),
    'NEU405: The apiVersion "neuron.aws.com/v2" of the opaque config is not known. '
    f"Did you mean '{CURRENT}'? Write apiVersion: {CURRENT}.": (
        config(version="neuron.aws.com/v2", logicalNeuronCore=1),
        "apiVersion",
    ),
    f"NEU409: The apiVersion of the opaque config is null, not a string. Write apiVersion: {CURRENT}.": (
        config(logicalNeuronCore=1) | {"apiVersion": None},
        "apiVersion",
    ),
    f"NEU406: The opaque config has no kind. Did you mean 'UltraServerConfig'? {ONE_OF}": (
        {"apiVersion": CURRENT, "ultraserverMode": 2},
        "kind",
    ),
    f"NEU406: The opaque config has no kind. {ONE_OF}": ({"apiVersion": CURRENT}, "kind"),
    f"NEU406: The opaque config kind \"NeuronCfg\" is not known. Did you mean 'NeuronConfig'? {ONE_OF}": (
        config("NeuronCfg", logicalNeuronCore=1),
        "kind",
    ),
    f"NEU406: The opaque config kind \"NEURONCONFIG\" is not known. Did you mean 'NeuronConfig'? {ONE_OF}": (
        config("NEURONCONFIG", logicalNeuronCore=1),
        "kind",
    ),
    f'NEU406: The opaque config kind "Partition" is not known. {ONE_OF}': (config("Partition"), "kind"),
    f'NEU409: The kind of the opaque config is ["NeuronConfig"], a list, not a string. {ONE_OF}': (
        config(logicalNeuronCore=1) | {"kind": ["NeuronConfig"]},
        "kind",
    ),
    f"NEU407: NeuronConfig has no field \"logicalNeuronCoreCount\". Did you mean 'logicalNeuronCore'? {FIELDS}": (
        config(logicalNeuronCoreCount=1),
        "logicalNeuronCoreCount",
    ),
    f'NEU407: NeuronConfig has no field "profile". {FIELDS}': (config(logicalNeuronCore=1, profile="x"), "profile"),
    'NEU407: NeuronConfig has no field "ultraserverMode": it belongs to UltraServerConfig. '
    "Give the claim a second config entry of kind UltraServerConfig.": (
        config(logicalNeuronCore=1, ultraserverMode=2),
        "ultraserverMode",
    ),
    "NEU408: The NeuronConfig has no logicalNeuronCore. Set logicalNeuronCore to 1 or 2.": (
        config(),
        "logicalNeuronCore",
    ),
    "NEU409: logicalNeuronCore is null, not an integer. Set it to 1 or 2.": (
        config(logicalNeuronCore=None),
        "logicalNeuronCore",
    ),
    "NEU409: logicalNeuronCore is true, a boolean, not an integer. Set it to 1 or 2.": (
        config(logicalNeuronCore=True),
        "logicalNeuronCore",
    ),
    'NEU409: logicalNeuronCore is "1", a string, not an integer. Set it to 1 or 2, without quotes.': (
        config(logicalNeuronCore="1"),
        "logicalNeuronCore",
    ),
    "NEU409: ultraserverMode is 2.0, a number, not an integer. Set it to 1, 2 or 4.": (
        config("UltraServerConfig", ultraserverMode=2.0),
        "ultraserverMode",
    ),
    "NEU409: logicalNeuronCore is {}, an object, not an integer. Set it to 1 or 2.": (
        config(logicalNeuronCore={}),
        "logicalNeuronCore",
    ),
    "NEU410: ultraserverMode is 3, which does not exist. Set it to 1, 2 or 4.": (
        config("UltraServerConfig", ultraserverMode=3),
        "ultraserverMode",
    ),
}
"""The message: the config, and the path of the fault in it."""


@pytest.mark.parametrize("message", REFUSED)
@pytest.mark.parametrize("form", ["object", "text", "bytes"])
def test_each_fault_is_refused_with_its_own_message(message: str, form: str) -> None:
    value, path = REFUSED[message]
    text = json.dumps(value)
    decoded = {"object": lambda: decode_object(value), "text": lambda: decode_text(text)}.get(
        form, lambda: decode_text(text.encode())
    )()
    assert decoded.config is None
    found = [(each.code, each.path, str(each)) for each in decoded.errors]
    assert found == [(message[: len("NEU000")], path, message)]


def test_all_problems_of_one_config_are_named_together() -> None:
    text = '{"kind": "neuronConfig", "kind": "neuronconfig", "logicalNeuronCore": 7, "extra": 1}'
    decoded = decode_text(text)
    assert [(each.code, each.path) for each in decoded.findings] == [
        ("NEU404", "kind"),
        ("NEU405", "apiVersion"),
        ("NEU406", "kind"),
        ("NEU407", "extra"),
        ("NEU410", "logicalNeuronCore"),
    ]
    assert str(decoded.findings[0]) == 'NEU404: The opaque config has the field "kind" twice. Keep one of them.'


NOT_OBJECTS = {
    "null": ("null", "null", ""),
    "list": ("[1]", "a list", "[1]"),
    "string": ('"x"', "a string", '"x"'),
    "integer": ("1", "an integer", "1"),
    "boolean": ("true", "a boolean", "true"),
}


@pytest.mark.parametrize("name", NOT_OBJECTS)
def test_parameters_that_are_no_object_are_refused(name: str) -> None:
    text, what, shown = NOT_OBJECTS[name]
    for decoded in (decode_text(text), decode_object(json.loads(text))):
        [finding] = decoded.findings
        assert (finding.code, finding.path, finding.value) == ("NEU402", "", shown)
        assert finding.message == f"The opaque config is {what}, not a JSON object."


UNREADABLE = {
    "empty": (b"", "Expecting value"),
    "cut-off": (b'{"kind": "Neuron', "Unterminated string"),
    "not-utf-8": (b'{"kind": "\xff"}', "can't decode byte 0xff"),
    "nan": (b'{"logicalNeuronCore": NaN}', "NaN is not JSON"),
    "nested": (b"[" * 5000, "nested too deeply"),
    "huge-number": (b'{"logicalNeuronCore": %s}' % (b"9" * 5000), "limit"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_text_is_a_finding(name: str) -> None:
    text, said = UNREADABLE[name]
    [finding] = decode_text(text).findings
    assert (finding.code, finding.path) == ("NEU401", "")
    assert said in finding.message


def test_a_parsed_object_that_refers_to_itself_is_a_finding() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    [finding] = decode_object(loop).findings
    assert (finding.code, finding.message) == (
        "NEU401",
        "The opaque config is not readable JSON: Circular reference detected.",
    )


def test_too_long_parameters_are_refused_at_the_limit_of_kubernetes() -> None:
    empty = json.dumps(config(logicalNeuronCore=1, pad=""), separators=(",", ":"))
    for extra, refused in ((0, False), (1, True)):
        text = empty.replace('"pad":""', f'"pad":"{"x" * (MAX_PARAMETERS_LENGTH - len(empty) + extra)}"')
        for decoded in (decode_text(text), decode_object(json.loads(text))):
            assert (decoded.findings[0].code == "NEU403") is refused
    assert decode_text(text).findings[0].message == "The opaque config has 10241 bytes; Kubernetes allows 10240."


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


@given(JSON | st.fixed_dictionaries({"apiVersion": JSON, "kind": JSON, "logicalNeuronCore": JSON}))
def test_any_json_is_decoded_or_reported(value: Any) -> None:
    decoded = decode_object(value)
    assert (decoded.config is None) == bool(decoded.errors)
    assert decoded == decode_text(json.dumps(value))
    for finding in decoded.findings:
        assert finding.code in CODES
        assert (str(finding) + finding.path + finding.value).replace("…", "").isascii()


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_reported(data: bytes) -> None:
    assert decode_text(data).errors or decode_text(data).config


# --- precedence ---------------------------------------------------------------------------------------------


def entry(source: str, lnc: int, *requests: str) -> ConfigEntry:
    return ConfigEntry(ConfigSource(source), requests, NeuronConfig(lnc))


@pytest.mark.parametrize(
    ("requests", "request_name", "covered"),
    [
        ((), "a", True),
        (("a",), "a", True),
        (("b", "a"), "a", True),
        (("b",), "a", False),
        (("a",), "a/x", True),
        (("a/x",), "a/x", True),
        (("a/y",), "a/x", False),
        (("a/x",), "a", False),
    ],
    ids=["all", "same", "one-of", "other", "parent-of-alternative", "alternative", "sibling", "alternative-of"],
)
def test_a_config_covers_its_requests_and_their_alternatives(
    requests: tuple[str, ...], request_name: str, *, covered: bool
) -> None:
    assert covers(requests, request_name) is covered


@pytest.mark.parametrize(
    ("configs", "lnc"),
    [
        ([], None),
        ([entry("FromClaim", 1)], 1),
        ([entry("FromClaim", 1), entry("FromClaim", 2)], 2),
        ([entry("FromClass", 1), entry("FromClass", 2)], 2),
        ([entry("FromClass", 2), entry("FromClaim", 1)], 1),
        ([entry("FromClaim", 1), entry("FromClass", 2)], 1),
        ([entry("FromClaim", 1, "a"), entry("FromClaim", 2, "b")], 1),
        ([entry("FromClaim", 2), entry("FromClaim", 1, "a/x")], None),
    ],
    ids=["none", "one", "later-wins", "later-class-wins", "claim-wins", "claim-wins-in-any-order", "by-request", "sub"],
)
def test_the_config_with_the_highest_precedence_is_in_force(configs: list[ConfigEntry], lnc: int | None) -> None:
    if lnc is None and configs:
        assert configs_in_force(configs, "a").logical_neuron_core == 2
        assert configs_in_force(configs, "a/x").logical_neuron_core == 1
    else:
        assert configs_in_force(configs, "a").logical_neuron_core == lnc


def test_configs_of_different_kinds_do_not_override_each_other() -> None:
    configs = [
        ConfigEntry(ConfigSource.FROM_CLAIM, (), UltraServerConfig(2)),
        entry("FromClaim", 1),
        ConfigEntry(ConfigSource.FROM_CLASS, (), UltraServerConfig(4)),
    ]
    assert configs_in_force(configs, "a") == ConfigsInForce(logical_neuron_core=1, ultraserver_mode=2)
