"""The server's settings in force: from flags, environment variables and a config file, in this order.

What is wrong with them is said all at once. `settings_model` declares them.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from neuron.findings import did_you_mean
from runtime.startup import StartupError
from webhook.server.settings_model import Declaration, Settings, declarations, reference

__all__ = ["Declaration", "Settings", "SettingsError", "StartupError", "declarations", "load", "reference"]

_SERVICE_LINK: Final = re.compile(r"(tcp|udp|sctp)://")
"""What the kubelet puts into `<SERVICE>_PORT` for every Service of the namespace: a Service named `neuron-dra` would
set our port to it. No setting has such a value."""

_LONGEST_VALUE_SHOWN: Final = 100


class SettingsError(StartupError):
    """A setting has a value it cannot have, or does not exist."""


def load(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """The settings in force.

    Args:
        flags: values by name; None and () stand for a flag that was not given.
        environment: the process's environment. Empty variables count as not set.

    Raises:
        SettingsError: the config file cannot be read or has unknown fields, or a value is not allowed. All faults are
            in the message.
    """
    declared = declarations()
    given = _given(declared, flags, environment)
    if "config" in given:
        given = _from_file(declared, Path(given["config"].value), given["config"].where) | given
    values, faults = {}, []
    for setting in declared:
        if setting.name not in given:
            continue
        entry = given[setting.name]
        try:
            values[setting.name] = msgspec.convert(entry.value, setting.type, strict=False, dec_hook=_decode_path)
        except msgspec.ValidationError:
            faults.append(_fault(setting, entry))
    if faults:
        raise SettingsError(" ".join(faults))
    if values.get("standalone"):
        values = {entry.name: entry.standalone for entry in declared if entry.standalone is not None} | values
        if values.get("kubeconfig"):
            raise SettingsError(
                f"{given['standalone'].where} and {given['kubeconfig'].where} exclude each other: standalone means "
                "without a cluster. Drop one of them."
            )
        if values.get("tls_secret"):
            raise SettingsError(
                f"{given['standalone'].where} and {given['tls_secret'].where} exclude each other: the Secret is in a "
                "cluster. Drop one of them."
            )
    return Settings(**values)


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    """A value, and where it was given, as the user knows the place."""

    value: Any
    where: str


def _given(
    declared: tuple[Declaration, ...], flags: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, _Given]:
    """What flags and variables say, flags first."""
    given = {}
    for setting in declared:
        flag = flags.get(setting.name)
        text = environment.get(setting.variable, "")
        if flag not in (None, ()):
            given[setting.name] = _Given(flag, setting.flag)
        elif text and not _SERVICE_LINK.match(text):
            value = [part.strip() for part in text.split(",") if part.strip()] if setting.repeated else text
            given[setting.name] = _Given(value, setting.variable)
    return given


def _from_file(declared: tuple[Declaration, ...], path: Path, where: str) -> dict[str, _Given]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"Cannot read the config file {path}: {error.strerror}. Check {where}.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"The config file {path} is not UTF-8: {error.reason}.") from error
    except MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        raise SettingsError(f"The config file {path} is not YAML:{line} {error.problem}.") from error
    except YAMLError as error:
        raise SettingsError(f"The config file {path} is not YAML: {error}.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"The config file {path} holds a {type(content).__name__}, not fields with values.")
    by_field = {setting.field: setting.name for setting in declared if setting.field}
    unknown = [str(field) for field in content if field not in by_field]
    if unknown:
        faults = "; ".join(f"unknown field '{field}'.{did_you_mean(field, by_field)}" for field in unknown)
        raise SettingsError(f"The config file {path} has faults: {faults}")
    return {by_field[field]: _Given(_plain(value), f"'{field}' in {path}") for field, value in content.items()}


def _plain(value: Any) -> Any:
    """A YAML scalar as a flag would give it: `tlsMinVersion: 1.3` is a number to YAML."""
    return str(value) if isinstance(value, int | float) else value


def _decode_path(kind: type, value: Any) -> Any:
    if value == "":  # To pathlib, the current directory: never what an unset variable in a script means.
        raise ValueError("empty")
    return kind(value)


def _fault(setting: Declaration, entry: _Given) -> str:
    """Where, what, and what would be allowed."""
    shown = repr(entry.value)
    if len(shown) > _LONGEST_VALUE_SHOWN:
        shown = shown[:_LONGEST_VALUE_SHOWN] + "…"
    hint = did_you_mean(str(entry.value), setting.choices)
    return f"{entry.where} is {shown}, and must be {setting.expected}.{hint}"
