"""Named formats of Kubernetes: `format.dns1123Label().validate(text)` and `format.named(name)`.

Source: k8s.io/apiserver/pkg/cel/library/format.go and the validations that it calls
(k8s.io/apimachinery/pkg/util/validation, k8s.io/apimachinery/pkg/api/validate/content,
k8s.io/kube-openapi/pkg/validation/strfmt).
"""

import dataclasses
import datetime as dt
import json
import math
import re
from collections.abc import Callable
from typing import ClassVar, Final

from kubecel.budget import Budget
from kubecel.checking import PATTERN, TRAVERSAL, function, method
from kubecel.errors import CelRuntimeError, quoted
from kubecel.library import urls
from kubecel.types import FORMAT, STRING, Type, list_of, optional_of
from kubecel.values import NONE, OpaqueValue, Optional, some, utf8

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = f"({_KEY})?"
_LONGEST_LABEL: Final = 63
_KEY_RULE: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character"
)
_UUID: Final = r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
_UUID_PATTERN_LENGTH: Final = 70
_TIME: Final = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))"
_TIME_PATTERN_LENGTH: Final = 71
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})", re.ASCII)


def _fullmatch(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _rule(rule: str, pattern: str, *examples: str) -> str:
    # Two spaces before "or", as in apimachinery (pkg/util/validation, RegexError).
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {shown}regex used for validation is '{pattern}')"


def _too_long(text: str, most: int, unit: str = "characters") -> list[str]:
    return [f"must be no more than {most} {unit}"] if len(utf8(text)) > most else []


def label(text: str) -> list[str]:
    """What is wrong with a label of RFC 1123."""
    found = _too_long(text, _LONGEST_LABEL)
    if not _fullmatch(_LABEL, text):
        rule = (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and"
            " end with an alphanumeric character"
        )
        dotted = _fullmatch(_SUBDOMAIN, text)
        found.append("must not contain dots" if dotted else _rule(rule, _LABEL, "my-name", "123-abc"))
    return found


def subdomain(text: str, unit: str = "characters") -> list[str]:
    """What is wrong with a subdomain of RFC 1123."""
    found = _too_long(text, 253, unit)
    if not _fullmatch(_SUBDOMAIN, text):
        rule = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must"
            " start and end with an alphanumeric character"
        )
        found.append(_rule(rule, _SUBDOMAIN, "example.com"))
    return found


def _label_1035(text: str) -> list[str]:
    found = _too_long(text, _LONGEST_LABEL)
    if not _fullmatch(_LABEL_1035, text):
        rule = (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic"
            " character, and end with an alphanumeric character"
        )
        found.append(_rule(rule, _LABEL_1035, "my-name", "abc-123"))
    return found


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """A check of a beginning of names: the last two characters of a text that ends with a dash count as one letter."""
    return lambda text: check(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    examples = ("MyName", "my.name", "123-abc")
    if len(parts) > 2:
        rule = _rule(_KEY_RULE, _KEY, *examples)
        return [f"a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    found = []
    *prefix, name = parts
    if prefix == [""]:
        found.append("prefix part must be non-empty")
    elif prefix:
        found += [f"prefix part {each}" for each in subdomain(prefix[0], "bytes")]
    if not name:
        found.append("name part must be non-empty")
    else:
        found += [f"name part {each}" for each in _too_long(name, _LONGEST_LABEL, "bytes")]
    if not _fullmatch(_KEY, name):
        found.append(f"name part {_rule(_KEY_RULE, _KEY, *examples)}")
    return found


def _label_value(text: str) -> list[str]:
    found = _too_long(text, _LONGEST_LABEL, "bytes")
    if not _fullmatch(_VALUE, text):
        found.append(_rule(_VALUE_RULE, _VALUE, "MyValue", "my_value", "12345"))
    return found


def _uri(text: str) -> list[str]:
    try:
        urls.split(text)
    except CelRuntimeError:
        shown = json.dumps(quoted(text)[1:-1], ensure_ascii=False)
        return [f"parse {shown}: {'invalid URI for request' if text else 'empty url'}"]
    return []


def _uuid(text: str) -> list[str]:
    return [] if _fullmatch(_UUID, text.lower()) else ["does not match the UUID format"]


def _byte(text: str) -> list[str]:
    return [] if _BASE64.fullmatch(text) else ["invalid base64"]


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        dt.date.fromisoformat(text if not text.startswith("0000") else f"2000{text[4:]}")
    except ValueError:
        return False
    return True


def _date(text: str) -> list[str]:
    return [] if _is_date(text) else ["invalid date"]


def _datetime(text: str) -> list[str]:
    date, _, rest = text.lower().partition("t")
    time = re.fullmatch(_TIME, rest.partition("t")[0], re.ASCII)
    valid = time is not None and _is_date(date) and time[1] <= "23" and time[2] <= "59" and time[3] <= "59"
    return [] if valid else ["invalid datetime"]


@dataclasses.dataclass(frozen=True, slots=True)
class Format(OpaqueValue):
    """A named format: what is wrong with a text, and the length of a pattern by which the API server charges it."""

    name: str
    check: Callable[[str], list[str]] = dataclasses.field(compare=False)
    pattern: int = dataclasses.field(compare=False)
    cel_type: ClassVar[Type] = FORMAT


FORMATS: Final = {
    each.name: each
    for each in (
        Format("dns1123Label", label, 30),
        Format("dns1123Subdomain", subdomain, 60),
        Format("dns1035Label", _label_1035, 30),
        Format("qualifiedName", _qualified_name, 60),
        Format("dns1123LabelPrefix", _prefix(label), 30),
        Format("dns1123SubdomainPrefix", _prefix(subdomain), 60),
        Format("dns1035LabelPrefix", _prefix(_label_1035), 30),
        Format("labelValue", _label_value, 40),
        Format("uri", _uri, 1103),
        Format("uuid", _uuid, _UUID_PATTERN_LENGTH),
        Format("byte", _byte, 84),
        Format("date", _date, _TIME_PATTERN_LENGTH),
        Format("datetime", _datetime, _TIME_PATTERN_LENGTH),
    )
}


def _named(name: str) -> Optional:
    found = FORMATS.get(name)
    return NONE if found is None else some(found)


def _validate(budget: Budget, named: Format, text: str) -> Optional:
    cost = math.ceil((1 + len(text)) * TRAVERSAL) * math.ceil(named.pattern * PATTERN)
    budget.spend(cost - 1)
    budget.read(len(text))
    found = named.check(text)
    return some(found) if found else NONE


def _constant(found: Format) -> Callable[[], Format]:
    return lambda: found


OVERLOADS: Final = (
    function("format.named", STRING, result=optional_of(FORMAT), call=_named),
    *(function(f"format.{name}", result=FORMAT, call=_constant(each)) for name, each in FORMATS.items()),
    method("validate", FORMAT, STRING, result=optional_of(list_of(STRING)), call=_validate, budgeted=True),
)
