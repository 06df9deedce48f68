"""The plugin's settings, each declared once: its flag, variable, config-file field and help follow from it.

A field `cdi_dir` is the flag `--cdi-dir`, the variable `NEURON_DRA_CDI_DIR` and the field `cdiDir` of the config file.
The first that is given counts, in this order.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import pydantic
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from neuron import names
from neuron.findings import did_you_mean

ENVIRONMENT_PREFIX: Final = "NEURON_DRA_"

_SERVICE_LINK: Final = re.compile(r"(tcp|udp|sctp)://")
"""What the kubelet puts into `<SERVICE>_PORT` for every Service of the namespace; a Service `neuron-dra-metrics` would
set our metrics port to it."""
_SHOWN: Final = 100


class StartupError(Exception):
    """The plugin cannot start; the message says what is wrong, where, and what to do."""


class SettingsError(StartupError):
    """A setting has a value it cannot have, or does not exist."""


Port = Annotated[int, pydantic.Field(ge=0, le=65535)]
Seconds = Annotated[float, pydantic.Field(ge=0.1, le=86400, allow_inf_nan=False)]
Subdomain = Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
PodUid = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9-]*$", max_length=63)]
Version = Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9]+(\.[0-9]+){1,3}$", max_length=64)]


def _setting(default: Any, description: str, metavar: str, expected: str, *, in_file: bool = True) -> Any:
    extra: JsonDict = {"metavar": metavar, "expected": expected, "in_file": in_file}
    return pydantic.Field(default, description=description, json_schema_extra=extra)


def _port(default: int, description: str) -> Any:
    return _setting(default, description, "PORT", "a port number, 0 for none")


def _directory(default: Path | None, description: str) -> Any:
    return _setting(default, description, "DIR", "a directory")


class Settings(pydantic.BaseModel):
    """Everything that `neuron-dra-kubelet-plugin` can be told."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=True)

    node_name: Subdomain = _setting(..., "Name of the node on which this runs.", "NAME", "the name of a Node")
    pod_uid: PodUid = _setting(
        "",
        "UID of the driver's pod: socket names carry it, so that two instances can overlap during an upgrade (kubelet "
        "1.33 and later). Empty: fixed names.",
        "UID",
        "a UID or empty",
    )
    config: Path | None = _setting(None, "YAML file with further settings.", "FILE", "a file", in_file=False)
    kubeconfig: Path | None = _setting(
        None, "File that names the cluster and the user; without it, the cluster that this runs in.", "FILE", "a file"
    )

    sysfs_root: Path = _directory(Path("/sys"), "Where the host's sysfs is mounted.")
    dev_root: Path = _directory(
        Path("/dev"), "Where the host has the device nodes; mounted under the same path, as CDI specs name it."
    )
    cdi_dir: Path = _directory(Path("/var/run/cdi"), "Where the container runtime looks for CDI specs.")
    kubelet_plugins_dir: Path = _directory(Path("/var/lib/kubelet/plugins"), "The kubelet's directory of plugins.")
    kubelet_registry_dir: Path = _directory(
        Path("/var/lib/kubelet/plugins_registry"), "The kubelet's directory of registration sockets."
    )
    state_dir: Path | None = _directory(
        None, "Where prepared claims are kept; by default the driver's own directory among the kubelet's plugins."
    )

    bind_address: str = _setting("0.0.0.0", "Address for metrics and health.", "ADDRESS", "an address")  # noqa: S104
    metrics_port: Port = _port(9090, "Plain HTTP port of /metrics; 0: none.")
    health_port: Port = _port(51515, "Port of the gRPC health service for probes; 0: none.")

    health_interval: Seconds = _setting(
        10.0, "Seconds between two looks at the hardware.", "SECONDS", "a number of seconds from 0.1"
    )
    unhealthy_taint: Literal["NoSchedule", "NoExecute", "Off"] = _setting(
        "NoSchedule",
        "What the taint of an unhealthy device does: keep new pods off, stop running ones as well, or nothing.",
        "EFFECT",
        "one of NoSchedule, NoExecute, Off",
    )
    sweep_interval: Seconds = _setting(
        300.0,
        "Seconds between two searches for prepared claims that no longer exist; one is released after two.",
        "SECONDS",
        "a number of seconds from 0.1",
    )

    emulate: str | None = _setting(
        None, "Instance type to emulate: fake files, and everything else real.", "TYPE", "an instance type"
    )
    emulate_driver_version: Version = _setting(
        "2.25.4.0", "Kernel driver version to emulate.", "VERSION", "numbers with dots"
    )
    emulate_node_id: Annotated[int, pydantic.Field(ge=0, le=3)] = _setting(
        0, "The emulated node's number in its UltraServer.", "N", "a number from 0 to 3"
    )

    log_format: Literal["json", "text"] = _setting("json", "Format of the log.", "FORMAT", "one of json, text")
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Least level to log.", "LEVEL", "one of debug, info, warning, error"
    )

    @property
    def plugin_dir(self) -> Path:
        """The driver's own directory among the kubelet's plugins."""
        return self.kubelet_plugins_dir / names.DRIVER

    @property
    def state(self) -> Path:
        """Where prepared claims are kept."""
        return self.state_dir or self.plugin_dir

    @property
    def taint_effect(self) -> str | None:
        """The effect of the taint of unhealthy devices; None for no taint."""
        return None if self.unhealthy_taint == "Off" else self.unhealthy_taint

    def as_written(self) -> dict[str, Any]:
        """Every setting under its config-file name, JSON-like."""
        return {to_camel(name): value for name, value in self.model_dump(mode="json").items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """A setting seen from outside.

    Attributes:
        name: as in Python, `cdi_dir`.
        flag: `--cdi-dir`.
        variable: `NEURON_DRA_CDI_DIR`.
        field: `cdiDir`; empty where the config file may not hold it.
        description: what it does.
        expected: allowed values in words.
        default: as a user would write it; empty if there is none.
        metavar: what stands for the value in `--help`.
    """

    name: str
    flag: str
    variable: str
    field: str
    description: str
    expected: str
    default: str
    metavar: str


def declarations() -> tuple[Declaration, ...]:
    """Every setting, in the order in which it is explained."""
    return tuple(_declaration(name, field) for name, field in Settings.model_fields.items())


def _declaration(name: str, field: FieldInfo) -> Declaration:
    extra = field.json_schema_extra
    said: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
    return Declaration(
        name=name,
        flag="--" + name.replace("_", "-"),
        variable=ENVIRONMENT_PREFIX + name.upper(),
        field=to_camel(name) if said["in_file"] else "",
        description=field.description or "",
        expected=said["expected"],
        default="" if field.is_required() else _shown(field.default),
        metavar=said["metavar"],
    )


def _shown(default: Any) -> str:
    if default is None:
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def reference() -> str:
    """The settings as a Markdown table."""
    lines = ["| flag | variable | config file | allowed | default | meaning |", "|---|---|---|---|---|---|"]
    for setting in declarations():
        field = f"`{setting.field}`" if setting.field else "-"
        cells = (
            f"`{setting.flag}`",
            f"`{setting.variable}`",
            field,
            setting.expected,
            setting.default or "-",
            setting.description,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    """A value, and where it was given, as the user knows the place."""

    value: Any
    where: str


def load(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """The settings in force.

    Args:
        flags: values by name; None stands for a flag that was not given.
        environment: the process's environment. Empty variables count as not set.

    Raises:
        SettingsError: the config file cannot be read or has unknown fields, or a value is missing or not allowed. All
            faults are in the message.
    """
    given: dict[str, _Given] = {}
    for setting in declarations():
        text = environment.get(setting.variable, "")
        if flags.get(setting.name) is not None:
            given[setting.name] = _Given(flags[setting.name], setting.flag)
        elif text and not _SERVICE_LINK.match(text):
            given[setting.name] = _Given(text, setting.variable)
    if "config" in given:
        given = _from_file(Path(given["config"].value)) | given
    try:
        return Settings.model_validate({name: entry.value for name, entry in given.items()})
    except pydantic.ValidationError as error:
        raise SettingsError(_explain(error, given)) from error


def _from_file(path: Path) -> dict[str, _Given]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The config file {path} cannot be read: {error}.") from error
    except YAMLError as error:
        raise SettingsError(f"The config file {path} is not YAML: {error}") from error
    if not isinstance(content, dict | None):
        raise SettingsError(f"The config file {path} holds a {type(content).__name__}, not fields with values.")
    by_field = {setting.field: setting.name for setting in declarations() if setting.field}
    unknown = [str(field) for field in content or () if field not in by_field]
    if unknown:
        faults = " ".join(f"There is no field '{field}'.{did_you_mean(field, by_field)}" for field in unknown)
        raise SettingsError(f"The config file {path} has faults. {faults}")
    fields = (content or {}).items()
    # A scalar as a flag would give it: a version such as 2.30 is a number to YAML.
    return {
        by_field[field]: _Given(str(value) if isinstance(value, int | float) else value, f"'{field}' in {path}")
        for field, value in fields
    }


def _explain(error: pydantic.ValidationError, given: Mapping[str, _Given]) -> str:
    """One sentence per fault: where, what, and what would be allowed."""
    declared = {setting.name: setting for setting in declarations()}
    faults = {}
    for fault in error.errors(include_url=False):
        setting = declared[str(fault["loc"][0])]
        if setting.name not in given:
            faults[setting.name] = f"{setting.flag} ({setting.variable}) is missing: give it {setting.expected}."
            continue
        value = given[setting.name].value
        shown = repr(value)[:_SHOWN]
        choices = _choices(Settings.model_fields[setting.name])
        hint = did_you_mean(str(value), choices)
        faults[setting.name] = f"{given[setting.name].where} is {shown}, and must be {setting.expected}.{hint}"
    return " ".join(faults.values())


def _choices(field: FieldInfo) -> tuple[str, ...]:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
