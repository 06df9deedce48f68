"""Every setting has a flag, a variable and a config-file field, and an invalid value is reported."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kubeletplugin import cli
from kubeletplugin.settings import DriverSettings, declarations, load
from runtime.settings import SettingsError, as_written

SAMPLES: dict[str, tuple[Any, Any]] = {
    "node_name": ("ip-10-0-0-1.ec2.internal", "ip-10-0-0-1.ec2.internal"),
    "pod_uid": ("0a1b-2c", "0a1b-2c"),
    "kubeconfig": ("/k", Path("/k")),
    "sysfs_root": ("/s", Path("/s")),
    "dev_root": ("/d", Path("/d")),
    "cdi_dir": ("/c", Path("/c")),
    "kubelet_plugins_dir": ("/p", Path("/p")),
    "kubelet_registry_dir": ("/r", Path("/r")),
    "pod_resources_socket": ("/ps", Path("/ps")),
    "proc_root": ("/host/proc", Path("/host/proc")),
    "state_dir": ("/t", Path("/t")),
    "bind_address": ("127.0.0.1", "127.0.0.1"),
    "metrics_port": ("1234", 1234),
    "health_port": ("0", 0),
    "health_interval": ("2.5", 2.5),
    "unhealthy_taint": ("NoExecute", "NoExecute"),
    "device_plugin_guard": ("Withhold", "Withhold"),
    "ultraserver_publish": ("node", "node"),
    "ultraserver_labels": ("false", False),
    "present_label": ("false", False),
    "registration_wait": ("0", 0.0),
    "share_cores": ("off", "off"),
    "feature_gate": ("counters=false,shares=true", ("counters=false", "shares=true")),
    "logical_nc_file": ("/lnc", Path("/lnc")),
    "policies": ("/p", Path("/p")),
    "faulty_kubelet": ("Withhold", "Withhold"),
    "admin_access_namespace": ("a,*", ("a", "*")),
    "claim_status": ("false", False),
    "sweep_interval": ("60", 60.0),
    "emulate": ("trn2.48xlarge", "trn2.48xlarge"),
    "emulate_driver_version": ("2.30.2.0", "2.30.2.0"),
    "emulate_node_id": ("3", 3),
    "emulate_ultraserver": ("us-7", "us-7"),
    "log_format": ("text", "text"),
    "log_level": ("debug", "debug"),
}


def test_every_setting_has_a_sample() -> None:
    assert {setting.name for setting in declarations()} == {*SAMPLES, "config"}


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_every_setting_can_be_a_flag_a_variable_or_in_the_file(tmp_path: Path, source: str) -> None:
    settings = {each.name: each for each in declarations()}
    found = {}
    for name, (text, _) in SAMPLES.items():
        setting = settings[name]
        flags: dict[str, Any] = {"node_name": "n"} if name != "node_name" else {}
        environment = {}
        if source == "flag":
            flags[name] = tuple(text.split(",")) if setting.repeated else text
        elif source == "variable":
            environment[setting.variable] = text
        else:
            path = tmp_path / "config.yaml"
            written = json.dumps(text.split(",")) if setting.repeated else text
            path.write_text(f"{setting.field}: {written}\n")
            flags["config"] = str(path)
        found[name] = getattr(load(flags, environment), name)
    assert found == {name: value for name, (_, value) in SAMPLES.items()}


def test_a_flag_overrides_a_variable_and_a_variable_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("logLevel: error\nlogFormat: text\ncdiDir: /file\n")
    environment = {
        "NEURON_DRA_CONFIG": str(path),
        "NEURON_DRA_LOG_LEVEL": "warning",
        "NEURON_DRA_LOG_FORMAT": "",
        "NEURON_DRA_CDI_DIR": "/variable",
    }
    settings = load({"node_name": "n", "log_level": "debug"}, environment)
    assert (settings.log_level, settings.cdi_dir, settings.log_format) == ("debug", Path("/variable"), "text")


def test_service_variables_of_kubernetes_are_no_settings() -> None:
    environment = {"NEURON_DRA_METRICS_PORT": "tcp://10.0.0.1:80"}
    assert load({"node_name": "n"}, environment).metrics_port == 9090


def test_defaults_are_those_of_a_node() -> None:
    settings = load({"node_name": "n"}, {})
    assert settings.plugin_dir == settings.state == Path("/var/lib/kubelet/plugins/neuron.aws.com")
    assert settings.kubelet_registry_dir == Path("/var/lib/kubelet/plugins_registry")
    assert settings.cdi_dir == Path("/var/run/cdi")
    assert (settings.health_port, settings.taint_effect, settings.emulate) == (51515, "NoSchedule", None)
    assert load({"node_name": "n", "unhealthy_taint": "Off"}, {}).taint_effect is None
    assert as_written(settings)["nodeName"] == "n"
    assert settings.admin_namespaces == frozenset(), "no namespace may have adminAccess"
    assert load({"node_name": "n", "admin_access_namespace": ("a", "*")}, {}).admin_namespaces is None


def test_the_flag_of_a_list_may_be_repeated() -> None:
    options = {each.name: each for each in cli.main.params}
    context = cli.main.make_context("plugin", ["--admin-access-namespace=a", "--admin-access-namespace=b"])
    assert options["admin_access_namespace"].multiple
    assert context.params["admin_access_namespace"] == ("a", "b")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "--node-name (NEURON_DRA_NODE_NAME) is missing: give it the name of a Node.": {},
    "--metrics-port is '70000', and must be a port number, 0 for none.": {"node_name": "n", "metrics_port": "70000"},
    "--unhealthy-taint is 'NoExcute', and must be one of NoSchedule, NoExecute, Off. Did you mean 'NoExecute'?": (
        {"node_name": "n", "unhealthy_taint": "NoExcute"}
    ),
    "--node-name is 'N!', and must be the name of a Node. --emulate-node-id is '4', and must be a number from 0 to "
    "3.": {"node_name": "N!", "emulate_node_id": "4"},
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_wrong_value_is_refused_with_its_place(said: str) -> None:
    flags = REFUSED[said]
    with pytest.raises(SettingsError) as caught:
        load(flags, {})
    assert str(caught.value) == said


FILES: dict[str, tuple[str | None, str]] = {
    "missing": (None, "Cannot read the config file {path}: No such file or directory. Check --config."),
    "not-yaml": ("a: [", "The config file {path} is not YAML: "),
    "list": ("- a", "The config file {path} holds a list, not fields with values."),
    "unknown-field": (
        "cdiDirs: /x",
        "The config file {path} has faults: unknown field 'cdiDirs'. Did you mean 'cdiDir'?",
    ),
    "wrong-value": (
        "metricsPort: many",
        "'metricsPort' in {path} is 'many', and must be a port number, 0 for none.",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_config_file_that_cannot_be_used_is_named(tmp_path: Path, name: str) -> None:
    content, said = FILES[name]
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError) as caught:
        load({"node_name": "n", "config": str(path)}, {})
    assert str(caught.value).startswith(said.format(path=path))


def test_an_empty_config_file_sets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.touch()
    assert load({"node_name": "n", "config": str(path)}, {}) == DriverSettings(node_name="n", config=path)


# --- the command line ---------------------------------------------------------------------------------------------


def invoke(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(cli.main, arguments, env=environment)


def test_help_explains_every_flag() -> None:
    text = invoke("--help").output
    assert all(setting.flag in text for setting in declarations())
    assert "[default: /var/run/cdi]" in text


def test_a_plugin_that_cannot_start_exits_with_3_and_the_cause() -> None:
    done = invoke("--metrics-port", "x", NEURON_DRA_NODE_NAME="n")
    assert (done.exit_code, done.stderr) == (
        3,
        "neuron-dra-kubelet-plugin: --metrics-port is 'x', and must be a port number, 0 for none.\n",
    )


def test_an_unknown_flag_is_a_usage_error() -> None:
    assert invoke("--nonsense").exit_code == click.UsageError.exit_code
