"""Settings come from four places; invalid ones are reported."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conversion.asks.conversion_context import ConversionOptions
from conversion.asks.steering import Mode
from neuron.hardware.instances import DEFAULT_FAMILIES
from policies.schema.followable import CORE, GROUPS
from runtime.settings import SettingsError, as_written, reference
from webhook.server import settings
from webhook.server.settings import WebhookSettings, load

FOLLOWED = tuple(group or CORE for group in GROUPS)
# name, as flag, as variable, as YAML, value, default
TABLE: list[tuple[str, Any, str, str, Any, Any]] = [
    ("standalone", True, "true", "true", True, False),
    ("kubeconfig", "/a", "/a", "/a", Path("/a"), None),
    ("sync_timeout", "1.5", "1.5", "1.5", 1.5, 30.0),
    ("host", "::1", "::1", '"::1"', "::1", ""),
    ("port", "8443", "8443", "8443", 8443, 9443),
    ("tls_dir", "/tls", "/tls", "/tls", Path("/tls"), Path("/etc/neuron-dra/tls")),
    ("tls_secret", "s", "s", "s", "s", ""),
    ("inject_ca", False, "false", "false", False, None),
    ("namespace", "ns", "ns", "ns", "ns", ""),
    ("service", "svc", "svc", "svc", "svc", "neuron-dra"),
    ("webhook_configuration", "c.example", "c.example", "c.example", "c.example", "neuron-dra"),
    ("ca_lifetime", "365d", "365d", "365d", "365d", "3650d"),
    ("certificate_lifetime", "12h", "12h", "12h", "12h", "90d"),
    ("ca_settle", "5m", "5m", "5m", "5m", "60s"),
    ("tls_min_version", "1.2", "1.2", "1.2", "1.2", "1.3"),
    ("metrics_host", "localhost", "localhost", "localhost", "localhost", ""),
    ("metrics_port", "0", "0", "0", 0, 9090),
    ("client_ca", "/ca", "/ca", "/ca", Path("/ca"), None),
    ("client_name", ("a", "b"), "a, b", "[a, b]", ("a", "b"), ()),
    ("max_connections", "0", "0", "0", 0, 1000),
    ("max_inflight", "5", "5", "5", 5, 300),
    ("max_body_bytes", "2048", "2048", "2048", 2048, 8 * 1024 * 1024),
    ("body_timeout", "0.5", "0.5", "0.5", 0.5, 5.0),
    ("drain_delay", "0", "0", "0", 0.0, 5.0),
    ("drain_timeout", "7", "7", "7", 7, 25),
    ("log_format", "text", "text", "text", "text", "auto"),
    ("log_level", "debug", "debug", "debug", "debug", "info"),
    ("mode", "off", "off", "off", Mode.OFF, Mode.CONVERT),
    ("device_class", "neuron.example", "neuron.example", "neuron.example", "neuron.example", "neuron.aws.com"),
    ("exclude_namespace", ("a", "b"), "a, b", "[a, b]", ("a", "b"), ("kube-system",)),
    ("hint_toleration", False, "false", "false", False, True),
    ("hint_affinity", False, "0", "0", False, True),
    ("hint_scheduler", False, "False", "false", False, True),
    ("families", ("trn1", "inf2"), "trn1, inf2", "[trn1, inf2]", ("trn1", "inf2"), ()),
    ("kubernetes_version", "v1.36.2", "v1.36.2", "v1.36.2", "v1.36.2", ""),
    ("karpenter_serves_claims", True, "true", "true", True, False),
    ("watch_nodes", False, "false", "false", False, True),
    ("policies", "/p", "/p", "/p", Path("/p"), None),
    ("policies_state", "/s", "/s", "/s", Path("/s"), None),
    ("policies_state_config_map", "kept", "kept", "kept", "kept", ""),
    ("rendered_config_map", "rendered", "rendered", "rendered", "rendered", ""),
    ("policy_reload", "together", "together", "together", "together", "files"),
    ("follow_policies", True, "true", "true", True, False),
    ("follow_group", ("core", "ray.io"), "core, ray.io", "[core, ray.io]", ("core", "ray.io"), FOLLOWED),
    ("events", False, "false", "false", False, True),
    ("on_template_failure", "admit", "admit", "admit", "admit", "deny"),
]
BY_NAME = {setting.name: setting for setting in settings.declarations()}


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


def test_every_setting_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} | {"config"} == set(BY_NAME)


@pytest.mark.parametrize("place", ["default", "flag", "environment", "file"])
def test_every_setting_can_be_a_flag_a_variable_or_in_the_file(tmp_path: Path, place: str) -> None:
    wrong = {}
    for name, flag, variable, yaml, value, default in TABLE:
        flags: dict[str, Any] = {name: flag} if place == "flag" else {}
        environment = {BY_NAME[name].variable: variable} if place == "environment" else {}
        if place == "file":
            flags["config"] = written(tmp_path, f"{BY_NAME[name].field}: {yaml}\n")
        got = getattr(load(flags, environment), name)
        right = got == default if place == "default" else got == value and type(got) is type(value)
        if not right:
            wrong[name] = got
    assert wrong == {}


@pytest.mark.parametrize(
    ("flags", "environment", "in_file", "port"),
    [
        pytest.param({"port": "1"}, {"NEURON_DRA_PORT": "2"}, "port: 3", 1, id="flag-first"),
        pytest.param({"port": None}, {"NEURON_DRA_PORT": "2"}, "port: 3", 2, id="then-environment"),
        pytest.param({}, {"NEURON_DRA_PORT": ""}, "port: 3", 3, id="then-file"),
        pytest.param({}, {}, "", 9443, id="then-default"),
    ],
)
def test_a_flag_overrides_a_variable_and_a_variable_the_file(
    tmp_path: Path, flags: Mapping[str, Any], environment: Mapping[str, str], in_file: str, port: int
) -> None:
    assert load({**flags, "config": written(tmp_path, in_file)}, environment).port == port


def test_words_that_yaml_1_1_takes_for_booleans_are_texts_in_the_config_file(tmp_path: Path) -> None:
    chosen = load({"config": written(tmp_path, "excludeNamespace: [on, &no n, *no]\n")}, {})
    assert chosen.exclude_namespace == ("on", "n", "n")


def test_the_config_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    assert load({}, {"NEURON_DRA_CONFIG": written(tmp_path, "drainTimeout: 9")}).drain_timeout == 9


@pytest.mark.parametrize("place", ["flag", "environment", "file"])
def test_standalone_has_defaults_of_its_own(tmp_path: Path, place: str) -> None:
    flags: dict[str, Any] = {"standalone": True} if place == "flag" else {}
    environment = {"NEURON_DRA_STANDALONE": "1"} if place == "environment" else {}
    if place == "file":
        flags["config"] = written(tmp_path, "standalone: true")
    chosen = load(flags, environment)
    assert (chosen.host, chosen.metrics_host) == ("127.0.0.1", "127.0.0.1")
    assert (chosen.tls_dir, chosen.drain_delay) == (Path(".neuron-dra/tls"), 0.0)
    assert chosen.drain_timeout == 25


def test_given_settings_override_the_standalone_defaults(tmp_path: Path) -> None:
    chosen = load({"standalone": True, "config": written(tmp_path, "drainDelay: 3")}, {"NEURON_DRA_HOST": "::1"})
    assert (chosen.host, chosen.drain_delay) == ("::1", 3.0)


@pytest.mark.parametrize("value", ["tcp://10.0.0.1:443", "udp://10.0.0.1:53"])
def test_variables_that_kubernetes_sets_for_services_are_no_settings(value: str) -> None:
    """A Service named `neuron-dra` makes the kubelet set NEURON_DRA_PORT in every pod of its namespace."""
    assert load({}, {"NEURON_DRA_PORT": value, "NEURON_DRA_SERVICE_PORT": "443"}).port == 9443


REFUSED: dict[str, Any] = {
    "--port is 'http', and must be a whole number from 0 to 65535.": ({"port": "http"}, {}),
    "NEURON_DRA_PORT is '65536', and must be a whole number": ({}, {"NEURON_DRA_PORT": "65536"}),
    "--mode is 'shaddow', and must be one of convert, convert-if-enriched, shadow, off. Did you mean 'shadow'?": (
        {"mode": "shaddow"},
        {},
    ),
    "--tls-min-version is '1.1', and must be one of 1.2, 1.3.": ({"tls_min_version": "1.1"}, {}),
    "NEURON_DRA_STANDALONE is 'maybe', and must be true or false.": ({}, {"NEURON_DRA_STANDALONE": "maybe"}),
    "--body-timeout is '0', and must be a number above 0 to 3600.": ({"body_timeout": "0"}, {}),
    "--drain-delay is 'nan', and must be a number from 0 to 3600.": ({"drain_delay": "nan"}, {}),
    "--device-class is 'Neuron', and must be a DNS subdomain.": ({"device_class": "Neuron"}, {}),
    "--exclude-namespace is 'ok', 'kube_system', and must be names of namespaces.": (
        {"exclude_namespace": ("ok", "kube_system")},
        {},
    ),
    "--policies is '', and must be a path.": ({"policies": ""}, {}),
    f"--log-level is '{'x' * 99}…, and must be one of": ({"log_level": "x" * 200}, {}),
    "--standalone and NEURON_DRA_KUBECONFIG exclude each other: standalone means without a cluster.": (
        {"standalone": True},
        {"NEURON_DRA_KUBECONFIG": "/a"},
    ),
    "--standalone and --tls-secret exclude each other: the Secret is in a cluster.": (
        {"standalone": True, "tls_secret": "s"},
        {},
    ),
    "--standalone and --follow-policies exclude each other: the ValidatingWebhookConfiguration is in a": (
        {"standalone": True, "follow_policies": True},
        {},
    ),
    "--ca-settle is '1.5s', and must be a whole number with its unit, such as 90d, 12h, 5m or 30s.": (
        {"ca_settle": "1.5s"},
        {},
    ),
    "--namespace is 'A', and must be the name of a namespace.": ({"namespace": "A"}, {}),
}


@pytest.mark.parametrize(
    ("message", "flags", "environment"), [(message, *row) for message, row in REFUSED.items()], ids=REFUSED
)
def test_values_that_are_not_allowed_are_refused(
    flags: Mapping[str, Any], environment: Mapping[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as error:
        load(flags, environment)
    assert message in str(error.value)


def test_all_invalid_settings_are_reported_together() -> None:
    with pytest.raises(SettingsError) as error:
        load({"port": "x", "mode": "y"}, {"NEURON_DRA_DRAIN_TIMEOUT": "z"})
    assert all(place in str(error.value) for place in ("--port", "--mode", "NEURON_DRA_DRAIN_TIMEOUT"))


FAULTS: dict[str, str] = {
    "tlsdir: /x\nmetricPort: 1\n": (
        "has faults: unknown field 'tlsdir'. Did you mean 'tlsDir'?; unknown field 'metricPort'. Did you mean"
    ),
    "config: other.yaml\n": "unknown field 'config'.",
    "port: [1]\n": "'port' in {path} is [1], and must be a whole number from 0 to 65535.",
    "port: true\n": "'port' in {path} is 'true', and must be a whole number",
    "host:\n": "'host' in {path} is null, and must be text.",
    "- port\n": "The config file {path} holds a list, not fields with values.",
    "port\n": "The config file {path} holds one value, not fields with values.",
    "a: b: c\n": "The config file {path} is not YAML: line 1: mapping values are not",
    "port: 1\nport: 2\n": "The config file {path} is not YAML: line 2: found duplicate key",
    "port: 1\n---\nport: 2\n": "{path} has 2 YAML documents, and must have one.",
    "port: off\n": "'port' in {path} is 'off', and must be a whole number",
    "host: \x07\n": "The config file {path} is not YAML:",
}


@pytest.mark.parametrize(("text", "message"), FAULTS.items(), ids=FAULTS)
def test_config_files_with_faults_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        load({"config": path}, {})
    assert message.format(path=path) in str(error.value)


def test_a_missing_config_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        load({}, {"NEURON_DRA_CONFIG": str(tmp_path / "none.yaml")})
    assert str(error.value) == (
        f"Cannot read the config file {tmp_path}/none.yaml: No such file or directory. Check NEURON_DRA_CONFIG."
    )


def test_a_config_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"host: \xff\n")
    with pytest.raises(SettingsError, match=r"c\.yaml is not UTF-8: invalid start byte\."):
        load({"config": str(tmp_path / "c.yaml")}, {})


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n"], ids=["empty", "comment", "no-fields"])
def test_an_empty_config_file_changes_nothing(tmp_path: Path, text: str) -> None:
    config = written(tmp_path, text)
    assert load({"config": config}, {}) == msgspec.structs.replace(load({}, {}), config=Path(config))


def test_conversion_gets_its_settings() -> None:
    chosen = WebhookSettings(
        mode=Mode.SHADOW,
        device_class="neuron.example",
        exclude_namespace=("a", "b"),
        hint_toleration=False,
        hint_affinity=False,
        hint_scheduler=False,
        on_template_failure="admit",
    )
    assert chosen.conversion() == ConversionOptions(
        mode="shadow",
        device_class="neuron.example",
        excluded_namespaces=frozenset({"a", "b"}),
        hint_toleration=False,
        hint_affinity=False,
        hint_scheduler=False,
        on_template_failure="admit",
    )
    assert load({}, {}).conversion() == ConversionOptions()


@pytest.mark.parametrize(("given", "version"), [("1.36", "1.36.0"), ("v1.35.6-eks-1a2b", "v1.35.6-eks-1a2b"), ("", "")])
def test_the_version_of_the_scheduler_has_a_patch(given: str, version: str) -> None:
    assert load({"kubernetes_version": given}, {}).conversion().kubernetes_version == version


@pytest.mark.parametrize("given", ["36", "latest", "1.36.x", "1.36.2 "])
def test_a_version_of_another_form_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match=r"--kubernetes-version.*a version such as 1\.36\.2"):
        load({"kubernetes_version": given}, {})


def test_names_follow_from_the_field() -> None:
    setting = BY_NAME["tls_min_version"]
    assert (setting.flag, setting.variable, setting.field) == (
        "--tls-min-version",
        "NEURON_DRA_TLS_MIN_VERSION",
        "tlsMinVersion",
    )
    assert (setting.expected, setting.default, setting.metavar) == ("one of 1.2, 1.3", "1.3", "[1.2|1.3]")


def test_the_reference_has_every_setting() -> None:
    rows = reference(settings.declarations()).splitlines()[2:]
    assert len(rows) == len(msgspec.structs.fields(WebhookSettings))
    for setting, row in zip(settings.declarations(), rows, strict=True):
        cells = row.strip("| ").split(" | ")
        assert cells[0].startswith(f"`{setting.flag}`")
        assert f"<br>`{setting.variable}`" in cells[0]
        assert cells[3] == setting.description
        assert len(cells) == 4


def test_settings_are_written_as_the_config_file_spells_them(tmp_path: Path) -> None:
    chosen = load({"standalone": True, "exclude_namespace": ("a",)}, {})
    shown = as_written(chosen)
    assert (shown["tlsMinVersion"], shown["excludeNamespace"], shown["tlsDir"]) == ("1.3", ["a"], ".neuron-dra/tls")
    text = "".join(f"{field}: {value!r}\n" for field, value in shown.items() if value is not None)
    assert as_written(load({"config": written(tmp_path, text)}, {})) == shown | {
        "config": str(tmp_path / "config.yaml")
    }


def test_families_may_be_separated_by_commas() -> None:
    assert load({"families": ("trn1,inf2", " inf1 ,")}, {}).families == ("trn1", "inf2", "inf1")


def test_a_standalone_server_has_trainium() -> None:
    assert load({"standalone": True}, {}).families == DEFAULT_FAMILIES
    assert load({"standalone": True, "families": ("inf2",)}, {}).families == ("inf2",)


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (
            {"families": ("inf5",)},
            {},
            "--families names 'inf5', which is no family of instance types with Neuron devices. Did you mean",
        ),
        (
            {},
            {"NEURON_DRA_FAMILIES": "zz"},
            "NEURON_DRA_FAMILIES names 'zz', which is no family of instance types with Neuron devices. ",
        ),
        (
            {"families": ("Inf2",)},
            {},
            "--families names 'Inf2', which is not a family: names have small letters, inf2.",
        ),
        ({"families": ("a b", "c")}, {}, "--families is 'a b', 'c', and must be families of instance types"),
        (
            {"families": ("trn1,trn2.48xlarge",)},
            {},
            "names 'trn2.48xlarge', which is an instance type: name its family, trn2.",
        ),
        (
            {"families": ("trn2.49xlarge",)},
            {},
            "names 'trn2.49xlarge', which is an instance type: name its family, trn2.",
        ),
        (
            {"families": ("p5.48xlarge",)},
            {},
            "--families names 'p5', which is no family of instance types with Neuron devices. Known: trn1",
        ),
        (
            {},
            {"NEURON_DRA_FAMILIES": "TRN2.48XLARGE"},
            "NEURON_DRA_FAMILIES names 'TRN2.48XLARGE', which is an instance type",
        ),
    ],
)
def test_families_that_do_not_exist_are_refused(
    flags: dict[str, Any], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(flags, environment)


def test_policy_files_may_define_families() -> None:
    assert load({"families": ("trn9",), "policies": "/p"}, {}).families == ("trn9",)
