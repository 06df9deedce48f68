"""Decodes opaque configs, `devices.config[].opaque.parameters`, strictly, and finds the config in force for a request.

There are two kinds, each with one field. A claim that needs both has two entries. Decoding reports all problems of a
config at once. An unknown field is an error: if it were ignored, the user would get a default without a message.
"""

import collections
import dataclasses
import enum
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Final

from neuron import names
from neuron.findings import Finding, Severity, closest_word, short, warning

OLDER_API_VERSIONS: Final = ("resource.neuron.aws.com/v1alphav1", "neuron.aws.com/v1alphav1")
"""Spellings of the private beta's documents and samples, equal to `neuron.aws.com/v1`."""

MAX_PARAMETERS_LENGTH: Final = 10 * 1024
"""Bytes of raw JSON that the API server accepts (OpaqueParametersMaxLength, resource.k8s.io/v1)."""

_DEEP: Final = 1000
_FAR_TOO_LONG: Final = 10 * MAX_PARAMETERS_LENGTH
"""A config of more characters is refused without encoding it to count its bytes."""

_ORDINARY: Final = 256
"""Bytes of a config that is remembered: an ordinary one has 90."""
_SHOWN: Final = 64
_MOST_FIELDS: Final = 16
"""Wrong fields of one config that are reported one by one."""


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronConfig:
    """How many physical NeuronCores form a logical one (LNC): 1 or 2."""

    logical_neuron_core: int


@dataclasses.dataclass(frozen=True, slots=True)
class UltraServerConfig:
    """How many nodes the workload's UltraServer set has: 1, 2 or 4.

    A count of nodes, not the kernel driver's mode enum, in which 4 means one node.
    """

    ultraserver_mode: int


OpaqueConfig = NeuronConfig | UltraServerConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Decoded:
    """Result of decoding one config.

    Attributes:
        config: the config; None if `findings` has an error.
        findings: problems in document order, their paths relative to `parameters` (empty: all of it).
    """

    config: OpaqueConfig | None
    findings: tuple[Finding, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are errors."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    field: str
    allowed: tuple[int, ...]
    make: type[NeuronConfig] | type[UltraServerConfig]

    @property
    def choices(self) -> str:
        return _listed([str(value) for value in self.allowed], "or")


_KINDS: Final = {
    kind.name: kind
    for kind in (
        _Kind("NeuronConfig", "logicalNeuronCore", (1, 2), NeuronConfig),
        _Kind("UltraServerConfig", "ultraserverMode", (1, 2, 4), UltraServerConfig),
    )
}
_META: Final = ("apiVersion", "kind")
_ONE_OF: Final = "Write an object of kind NeuronConfig or UltraServerConfig."
_JSON_TYPES: Final = ((bool, "a boolean"), (int, "an integer"), (float, "a number"), (str, "a string"))


class _DuplicateKeys(dict[str, object]):
    """A JSON object with duplicate keys; the last value is kept, as in Go's encoding/json."""

    repeated: tuple[str, ...] = ()


def decode_text(text: str | bytes) -> Decoded:
    """Decode parameters from JSON. Text that is not JSON is a finding, not an exception.

    Args:
        text: JSON, UTF-8 if bytes.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > MAX_PARAMETERS_LENGTH:
        return Decoded(None, (_too_long(len(raw)),))
    return _known_text(raw) if len(raw) <= _ORDINARY else _decode_text(raw)


def _decode_text(raw: bytes) -> Decoded:
    try:
        value = _PARSER.decode(raw.decode("utf-8"))
    except RecursionError:
        return Decoded(None, (_unreadable("it is nested too deeply"),))
    except ValueError as error:
        return Decoded(None, (_unreadable(str(error)),))
    return _decode(value)


# There are few different configs, and most claims have one.
_known_text = functools.lru_cache(maxsize=64)(_decode_text)


def decode(parameters: object) -> Decoded:
    """Decode `opaque.parameters`, raw JSON as bytes or parsed."""
    return decode_text(parameters) if isinstance(parameters, bytes) else decode_object(parameters)


def decode_object(value: object) -> Decoded:
    """Decode parameters that were parsed already, such as YAML.

    Args:
        value: the parsed value. Duplicate keys are lost by parsing, so they are not reported.
    """
    if _is_far_too_long(value):
        return Decoded(None, (_too_long(f"more than {_FAR_TOO_LONG}"),))
    try:
        encoded = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    except (ValueError, RecursionError, TypeError) as error:
        return Decoded(None, (_unreadable(str(error)),))
    length = len(encoded.encode("utf-8", "surrogatepass"))
    if length > MAX_PARAMETERS_LENGTH:
        return Decoded(None, (_too_long(length),))
    return _decode(value)


def _is_far_too_long(value: object) -> bool:
    """Whether a value has more than `_FAR_TOO_LONG` characters, without digits. Stops there."""
    left, waiting = _FAR_TOO_LONG, [(value, 0)]
    while waiting and left > 0:
        each, depth = waiting.pop()
        left -= 1
        if isinstance(each, str):
            left -= len(each)
        elif isinstance(each, Mapping | list | tuple):
            if depth > _DEEP:
                return False  # `json` raises for it at once: too deep, or it contains itself.
            left -= len(each)
            inner = (*each.keys(), *each.values()) if isinstance(each, Mapping) and left > 0 else each
            waiting += [(item, depth + 1) for item in inner] if left > 0 else ()
    return left <= 0


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    marked = _DuplicateKeys(plain)
    counts = collections.Counter(key for key, _ in pairs)
    marked.repeated = tuple(key for key, count in counts.items() if count > 1)
    return marked


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_PARSER: Final = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_no_constant)


def _decode(value: object) -> Decoded:
    if not isinstance(value, Mapping):
        return Decoded(None, (_not_an_object(value),))
    repeated = getattr(value, "repeated", ())
    findings = []
    for key in repeated[:_MOST_FIELDS]:
        message = f"The opaque config has the field {_show(key)} twice."
        findings.append(Finding("NEU404", _key(key), message, "Keep one of them.", _key(key)))
    if len(repeated) > _MOST_FIELDS:
        message = f"The opaque config has {len(repeated) - _MOST_FIELDS} more fields twice."
        findings.append(Finding("NEU404", "", message, "Keep one of each."))
    findings += _check_api_version(value)
    kind, found = _check_kind(value)
    findings += found
    if kind is not None:
        findings += _check_fields(value, kind)
    errors = any(finding.severity is Severity.ERROR for finding in findings)
    config = None if errors or kind is None else kind.make(int(value[kind.field]))
    return Decoded(config, tuple(findings))


def _check_api_version(value: Mapping[str, object]) -> list[Finding]:
    current = names.CONFIG_API_VERSION
    if "apiVersion" not in value:
        return [Finding("NEU405", "apiVersion", "The opaque config has no apiVersion.", f"Add apiVersion: {current}.")]
    version = value["apiVersion"]
    if version == current:
        return []
    if isinstance(version, str) and version in OLDER_API_VERSIONS:
        message = f"The apiVersion {_show(version)} of the opaque config is an older spelling."
        return [warning("NEU411", "apiVersion", message, f"Write apiVersion: {current}.", str(version))]
    if not isinstance(version, str):
        message = f"The apiVersion of the opaque config is {_described(version)}, not a string."
        return [Finding("NEU409", "apiVersion", message, f"Write apiVersion: {current}.", _show(version))]
    message = f"The apiVersion {_show(version)} of the opaque config is not known.{_suggest(version, [current])}"
    return [Finding("NEU405", "apiVersion", message, f"Write apiVersion: {current}.", _key(version))]


def _check_kind(value: Mapping[str, object]) -> tuple[_Kind | None, list[Finding]]:
    """The kind by which to check the fields: as written, or else the most similar one."""
    by_field = next((kind for kind in _KINDS.values() if kind.field in value), None)
    if "kind" not in value:
        hint = f" Did you mean '{by_field.name}'?" if by_field else ""
        finding = Finding("NEU406", "kind", f"The opaque config has no kind.{hint}", _ONE_OF)
        return by_field, [finding]
    name = value["kind"]
    if not isinstance(name, str):
        message = f"The kind of the opaque config is {_described(name)}, not a string."
        return by_field, [Finding("NEU409", "kind", message, _ONE_OF, _show(name))]
    kind = _KINDS.get(name)
    if kind is not None:
        return kind, []
    meant = _closest(name, _KINDS)
    suggestion = f" Did you mean '{meant}'?" if meant else ""
    finding = Finding(
        "NEU406",
        "kind",
        f"The opaque config kind {_show(name)} is not known.{suggestion}",
        _ONE_OF,
        _key(name),
    )
    return _KINDS.get(meant, by_field), [finding]


def _check_fields(value: Mapping[str, object], kind: _Kind) -> list[Finding]:
    known = (*_META, kind.field)
    unknown = [str(key) for key in value if key not in known]
    findings = [_unknown_field(key, kind) for key in unknown[:_MOST_FIELDS]]
    if len(unknown) > _MOST_FIELDS:
        message = f"{kind.name} has {len(unknown) - _MOST_FIELDS} more unknown fields."
        findings.append(Finding("NEU407", "", message, f"Its fields are {_listed(known, 'and')}."))
    if kind.field not in value:
        if any(_closest(key, known) == kind.field for key in unknown[:_MOST_FIELDS]):
            return findings  # reported as an unknown field: the field is misspelt
        message = f"The {kind.name} has no {kind.field}."
        return [*findings, Finding("NEU408", kind.field, message, f"Set {kind.field} to {kind.choices}.")]
    setting = value[kind.field]
    if isinstance(setting, bool) or not isinstance(setting, int):
        message = f"{kind.field} is {_described(setting)}, not an integer."
        quoted = ", without quotes" if isinstance(setting, str) else ""
        fix = f"Set it to {kind.choices}{quoted}."
        return [*findings, Finding("NEU409", kind.field, message, fix, _show(setting))]
    if setting not in kind.allowed:
        message = f"{kind.field} is {_show(setting)}, which does not exist."
        findings.append(Finding("NEU410", kind.field, message, f"Set it to {kind.choices}.", _show(setting)))
    return findings


def _unknown_field(key: str, kind: _Kind) -> Finding:
    owner = next((other for other in _KINDS.values() if other.field == key), None)
    if owner is not None:
        message = f"{kind.name} has no field {_show(key)}: it belongs to {owner.name}."
        fix = f"Give the claim a second config entry of kind {owner.name}."
        return Finding("NEU407", _key(key), message, fix, _key(key))
    fields = (*_META, kind.field)
    message = f"{kind.name} has no field {_show(key)}.{_suggest(key, fields)}"
    fix = f"Its fields are {_listed(fields, 'and')}; a newer field needs a newer version of this program."
    return Finding("NEU407", _key(key), message, fix, _key(key))


def _not_an_object(value: object) -> Finding:
    what = "null" if value is None else "a list" if isinstance(value, list | tuple) else _type_of(value)
    shown = "" if value is None else _show(value)
    return Finding("NEU402", "", f"The opaque config is {what}, not a JSON object.", _ONE_OF, shown)


def _unreadable(reason: str) -> Finding:
    return Finding("NEU401", "", f"The opaque config is not readable JSON: {short(reason)}.", "Correct the JSON.")


def _too_long(length: int | str) -> Finding:
    message = f"The opaque config has {length} bytes; Kubernetes allows {MAX_PARAMETERS_LENGTH}."
    return Finding("NEU403", "", message, _ONE_OF, str(length))


def _type_of(value: object) -> str:
    named = next((name for kind, name in _JSON_TYPES if isinstance(value, kind)), None)
    return named or ("a list" if isinstance(value, list | tuple) else "an object")


def _described(value: object) -> str:
    return "null" if value is None else f"{_show(value)}, {_type_of(value)}"


def _show(value: object) -> str:
    """The value as JSON, ASCII only and short enough for a message."""
    if isinstance(value, str):
        value = value[: _SHOWN + 1]
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # A number with too many digits for str() (possible in YAML), or a list that contains itself.
        text = _type_of(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _key(key: object) -> str:
    """A user's word for `Finding.path` or `Finding.value`: ASCII and short."""
    return _show(str(key))[1:-1]


def _closest(word: str, known: Iterable[str]) -> str:
    """The most similar known word, or an empty text. A word that differs only in case is always found."""
    known = list(known)
    word = word[:256]
    folded = next((candidate for candidate in known if candidate.casefold() == word.casefold()), "")
    return folded or closest_word(word, known)


def _suggest(word: str, known: Iterable[str]) -> str:
    meant = _closest(word, known)
    return f" Did you mean '{meant}'?" if meant else ""


def _listed(words: Iterable[str], conjunction: str) -> str:
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last


# --- which configs are in force ---------------------------------------------------------------------------


class ConfigSource(enum.StrEnum):
    """Origin of a config (`AllocationConfigSource`)."""

    FROM_CLASS = "FromClass"
    FROM_CLAIM = "FromClaim"


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config and where it applies.

    Attributes:
        requests: names of requests (`req`) or alternatives (`req/sub`); empty: all.
    """

    source: ConfigSource
    requests: tuple[str, ...]
    config: OpaqueConfig


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigsInForce:
    """Settings of one request. None: not set, the hardware's default applies."""

    logical_neuron_core: int | None = None
    ultraserver_mode: int | None = None


def covers(requests: Iterable[str], request: str) -> bool:
    """Whether a config or constraint that names `requests` applies to `request`.

    An empty list applies to all requests; `req` includes all alternatives `req/sub` (resource.k8s.io/v1,
    `DeviceAllocationConfiguration.requests`).
    """
    named = frozenset(requests)
    return not named or request in named or request.partition("/")[0] in named


def configs_in_force(configs: Iterable[ConfigEntry], request: str) -> ConfigsInForce:
    """The settings in force for a request.

    The claim takes precedence over the class, and a later entry over an earlier one of the same source
    (resource.k8s.io/v1, `DeviceAllocationResult.config`). The two kinds are independent.

    Args:
        configs: in the order of the API object.
        request: `req`, or `req/sub` as allocation results write it.
    """
    lnc = mode = None
    for entry in sorted(configs, key=lambda entry: entry.source is ConfigSource.FROM_CLAIM):
        if not covers(entry.requests, request):
            continue
        match entry.config:
            case NeuronConfig():
                lnc = entry.config.logical_neuron_core
            case UltraServerConfig():
                mode = entry.config.ultraserver_mode
    return ConfigsInForce(lnc, mode)
