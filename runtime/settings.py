"""Settings of a program: flags, environment variables and fields of a YAML file.

A program declares each setting once, as an annotated field of a `msgspec.Struct`. A field `drain_delay` is the flag
`--drain-delay`, the variable `NEURON_DRA_DRAIN_DELAY` and the field `drainDelay` of the config file. The first one that
is given counts, in this order.

msgspec checks the values, because both programs load it anyway. pydantic would add 5 to 8 MiB and 0.2 s to a webhook
without a cluster.
"""

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from runtime.startup import StartupError

if TYPE_CHECKING:  # PyYAML is imported only if there is a config file.
    from runtime.yaml_nodes import YamlNode

ENVIRONMENT_PREFIX: Final = "NEURON_DRA_"
CONFIG: Final = "config"
"""The setting that names the config file."""

DidYouMean = Callable[[str, Iterable[str]], str]
"""For a wrong word and the known ones: a sentence with a leading space, or an empty text."""

_SERVICE_LINK: Final = re.compile(r"(tcp|udp|sctp)://")
"""The kubelet sets `<SERVICE>_PORT` to such a URL for every Service of the namespace: for a Service `neuron-dra`, the
variable of `--port`. No setting has such a value."""
_LONGEST_VALUE_SHOWN: Final = 100


class SettingsError(StartupError):
    """A setting has a value that is not allowed, is missing, or does not exist."""


def about(
    description: str, *, expected: str = "", metavar: str = "", standalone: object = None, in_file: bool = True
) -> msgspec.Meta:
    """The annotation that makes a field a setting.

    Args:
        description: one or two sentences.
        expected: allowed values in words, if they do not follow from the type.
        metavar: placeholder of the value in `--help`; for choices it follows from the type.
        standalone: default with `--standalone`, if it differs.
        in_file: whether the config file may have it.
    """
    extra = {"expected": expected, "metavar": metavar, "standalone": standalone, "in_file": in_file}
    return msgspec.Meta(description=description, extra=extra)


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """A setting as users see it.

    Attributes:
        name: in Python, `drain_delay`.
        flag: `--drain-delay`.
        variable: `NEURON_DRA_DRAIN_DELAY`.
        field: `drainDelay`; empty if the config file may not have it.
        description: one or two sentences.
        expected: allowed values in words.
        choices: allowed values, if they are a list.
        default: as a user would write it, with the standalone default if that differs; empty if there is none.
        standalone: the standalone default; None if it is the same.
        metavar: placeholder of the value in `--help`.
        switch: whether the flag takes no value (`--x`, `--no-x`).
        repeated: whether the flag may be given several times.
        required: whether there is no default.
        type: with its constraints, for `msgspec.convert`.
    """

    name: str
    flag: str
    variable: str
    field: str
    description: str
    expected: str
    choices: tuple[str, ...]
    default: str
    standalone: object
    metavar: str
    switch: bool
    repeated: bool
    required: bool
    type: object


@dataclasses.dataclass(frozen=True, slots=True)
class GivenValue:
    """A value, and the flag, variable or field of a file that set it."""

    value: Any
    where: str


def declarations(model: type[msgspec.Struct]) -> tuple[Declaration, ...]:
    """The settings of a model, in the order of its fields."""
    types = get_type_hints(model, include_extras=True)
    return tuple(_declaration(field.name, types[field.name], field.default) for field in msgspec.structs.fields(model))


def reference(declared: Iterable[Declaration]) -> str:
    """The settings as a Markdown table; the first column has flag, variable and field of the config file."""
    rows = ["| flag, variable, field | allowed | default | meaning |", "|---|---|---|---|"]
    for setting in declared:
        flag = setting.flag + (f"`, `--no-{setting.flag[2:]}" if setting.switch else "")
        names = "<br>".join(f"`{name}`" for name in (flag, setting.variable, setting.field) if name)
        rows.append(f"| {' | '.join((names, setting.expected, setting.default or '-', setting.description))} |")
    return "\n".join(rows) + "\n"


def as_written(settings: msgspec.Struct) -> dict[str, object]:
    """Every setting under its name in the config file, JSON-like."""
    values: dict[str, object] = msgspec.to_builtins(settings, enc_hook=str)
    return {_camel(name): list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def read(
    declared: Iterable[Declaration],
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    did_you_mean: DidYouMean,
) -> dict[str, GivenValue]:
    """The settings that are given, by name, converted to their types.

    Args:
        flags: values by name; None and () stand for a flag that was not given.
        environment: of the process. An empty variable counts as not set.
        did_you_mean: makes the hint for a wrong choice or field.

    Raises:
        SettingsError: the config file cannot be read or has unknown fields, or a value is missing or not allowed. The
            message has all faults.
    """
    declared = tuple(declared)
    given = _from_process(declared, flags, environment)
    if CONFIG in given:
        given = _from_file(declared, given[CONFIG], did_you_mean) | given
    converted, faults = {}, []
    for setting in declared:
        if setting.name not in given:
            if setting.required:
                faults.append(f"{setting.flag} ({setting.variable}) is missing: give it {setting.expected}.")
            continue
        entry = given[setting.name]
        try:
            value = msgspec.convert(entry.value, setting.type, strict=False, dec_hook=_decode_path)
        except msgspec.ValidationError:
            faults.append(_fault(setting, entry, did_you_mean))
        else:
            converted[setting.name] = GivenValue(value, entry.where)
    if faults:
        raise SettingsError(" ".join(faults))
    return converted


def _declaration(name: str, hint: object, default: object) -> Declaration:
    kind, *constraints = get_args(hint)
    meta = next(each for each in constraints if each.extra is not None)
    choices = _choices(kind)
    shown = _as_text(default)
    if meta.extra["standalone"] is not None:
        shown = f"{shown or 'empty'}; standalone: {_as_text(meta.extra['standalone'])}"
    return Declaration(
        name=name,
        flag="--" + name.replace("_", "-"),
        variable=ENVIRONMENT_PREFIX + name.upper(),
        field=_camel(name) if meta.extra["in_file"] else "",
        description=meta.description,
        expected=meta.extra["expected"] or _expected(kind, choices, constraints),
        choices=choices,
        default=shown,
        standalone=meta.extra["standalone"],
        metavar=f"[{'|'.join(choices)}]" if choices else meta.extra["metavar"],
        switch=_is_switch(kind),
        repeated=get_origin(kind) is tuple,
        required=default is msgspec.NODEFAULT,
        type=hint,
    )


def _expected(kind: object, choices: tuple[str, ...], constraints: list[msgspec.Meta]) -> str:
    if _is_switch(kind):
        return "true or false"
    if choices:
        return "one of " + ", ".join(choices)
    if kind not in (int, float):
        return "a path" if Path in (kind, *get_args(kind)) else "text"
    bounds = next(meta for meta in constraints if meta.le is not None)
    least = f"above {bounds.gt}" if bounds.gt is not None else f"from {bounds.ge}"
    return f"a {'whole ' if kind is int else ''}number {least} to {bounds.le}"


def _is_switch(kind: object) -> bool:
    return kind is bool or bool in get_args(kind)


def _choices(kind: object) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(str(member.value) for member in kind)
    return ()


def _as_text(value: object) -> str:
    """A default as a user would write it."""
    match value:
        case None | msgspec.NODEFAULT:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _from_process(
    declared: tuple[Declaration, ...], flags: Mapping[str, object], environment: Mapping[str, str]
) -> dict[str, GivenValue]:
    given = {}
    for setting in declared:
        flag = flags.get(setting.name)
        text = environment.get(setting.variable, "")
        if flag not in (None, ()):
            given[setting.name] = GivenValue(flag, setting.flag)
        elif text and not _SERVICE_LINK.match(text):
            value = tuple(part.strip() for part in text.split(",") if part.strip()) if setting.repeated else text
            given[setting.name] = GivenValue(value, setting.variable)
    return given


def _from_file(
    declared: tuple[Declaration, ...], config: GivenValue, did_you_mean: DidYouMean
) -> dict[str, GivenValue]:
    from runtime.yaml_nodes import Mapping_, YamlError, YamlKeyTwiceError, compose_all

    path = Path(config.value)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"Cannot read the config file {path}: {error.strerror}. Check {config.where}.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"The config file {path} is not UTF-8: {error.reason}.") from error
    try:
        documents = list(compose_all(text))
    except YamlError as error:
        line = text.count("\n", 0, error.index) + 1
        problem = f"found duplicate key '{error.key}'" if isinstance(error, YamlKeyTwiceError) else error.problem
        raise SettingsError(f"The config file {path} is not YAML: line {line}: {problem}.") from error
    if len(documents) > 1:
        raise SettingsError(f"The config file {path} has {len(documents)} YAML documents, and must have one.")
    content = documents[0].value if documents else None
    if content is None:
        return {}
    if not isinstance(documents[0], Mapping_):
        what = "a list" if isinstance(content, list) else "one value"
        raise SettingsError(f"The config file {path} holds {what}, not fields with values.")
    by_field = {setting.field: setting.name for setting in declared if setting.field}
    unknown = [str(field) for field in content if field not in by_field]
    if unknown:
        faults = "; ".join(f"unknown field '{field}'.{did_you_mean(field, by_field)}" for field in unknown)
        raise SettingsError(f"The config file {path} has faults: {faults}")
    # A merge key `<<` gives fields that have no entry of their own.
    values = content | {entry.name: _written(entry.node) for entry in documents[0].entries if not entry.merge}
    # As a flag would give it: `tlsMinVersion: 1.3` is a number in YAML.
    plain = {field: str(value).lower() if isinstance(value, int | float) else value for field, value in values.items()}
    return {by_field[field]: GivenValue(value, f"'{field}' in {path}") for field, value in plain.items()}


def _written(node: "YamlNode") -> object:
    """The value of a node; `off` and other words that only YAML 1.1 takes for booleans are texts, as in a flag."""
    from runtime.yaml_nodes import Alias, Scalar, Sequence_

    target = node.target if isinstance(node, Alias) else node
    if isinstance(target, Sequence_):
        return [_written(item) for item in target.items]
    if isinstance(target, Scalar) and isinstance(target.value, bool) and target.text.lower() not in ("true", "false"):
        return target.text
    return target.value


def _decode_path(kind: type, value: object) -> object:
    if value == "":  # pathlib takes it for the current directory; an unset variable in a script does not mean that.
        raise ValueError("empty")
    return kind(value)


def _as_given(value: object) -> str:
    """A value as the user wrote it: a text between quotes, values of flags with commas, all else as JSON."""
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, tuple):
        return ", ".join(map(_as_given, value))
    try:
        return json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "a value that is too large to show"


def _fault(setting: Declaration, entry: GivenValue, did_you_mean: DidYouMean) -> str:
    shown = _as_given(entry.value)
    if len(shown) > _LONGEST_VALUE_SHOWN:
        shown = shown[:_LONGEST_VALUE_SHOWN] + "…"
    hint = did_you_mean(str(entry.value), setting.choices)
    return f"{entry.where} is {shown}, and must be {setting.expected}.{hint}"
