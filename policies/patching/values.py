"""Values of CEL as JSON, and the operations and configurations that mutations return.

Source: k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch/json_patch.go,
k8s.io/apiserver/pkg/cel/mutation/dynamic/objects.go, and the conversions to structpb.Value of cel-go.
"""

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubecel.library.standard import text_of_duration
from kubecel.library.times import text_of_timestamp
from kubecel.types import JSON_PATCH
from kubecel.values import Duration, ObjectValue, Timestamp, is_list, name_of
from policies.patching.json_patch import MISSING, PatchError, PatchOperation

_MOST_VALUES: Final = 100_000
_MOST_LEVELS: Final = 100
_SAFE: Final = 2**53 - 1
"""The largest whole number that every JSON parser keeps; cel-go writes larger ones as text."""


def operations(listed: object) -> list[PatchOperation]:
    """The operations of a JSON patch that an expression returned.

    Raises:
        PatchError: an item is no `JSONPatch{…}`, or a value has no JSON.
    """
    found = []
    writer = _Writer()
    for item in listed if isinstance(listed, list | tuple) else [listed]:
        if not isinstance(item, ObjectValue) or item.type != JSON_PATCH:
            raise PatchError(f"the expression returned a list with a {name_of(item)}, and not only JSONPatch{{…}}")
        fields = item.fields
        value: Any = MISSING
        if "value" in fields:
            given = fields["value"]
            if isinstance(given, ObjectValue):
                _check_types(given)
            value = writer.plain(given)
        op, path, source = (str(fields.get(name, "")) for name in ("op", "path", "from"))
        found.append(PatchOperation(op, path, source, value))
    return found


def configuration(value: object) -> dict[str, Any]:
    """The fields of an apply configuration that an expression returned.

    Raises:
        PatchError: it is no `Object{…}`, types do not fit their fields, or a value has no JSON.
    """
    if not isinstance(value, ObjectValue):
        raise PatchError(f"the expression returned a {name_of(value)}, and not Object{{…}}")
    _check_types(value)
    found: dict[str, Any] = _Writer().plain(value)
    return found


def _check_types(value: ObjectValue) -> None:
    wrong = next(_misnamed(value, value.type.name), None)
    if wrong is not None:
        raise PatchError(wrong)


def _misnamed(value: object, path: str) -> Iterator[str]:
    """Objects whose type is not that of the field in which they are (CheckTypeNamesMatchFieldPathNames)."""
    if isinstance(value, ObjectValue):
        if value.type.name != path:
            yield f"type mismatch: {value.type}{{…}} is the value of a field of type {path}: write {path}{{…}}"
        for name, each in value.fields.items():
            yield from _misnamed(each, f"{path}.{name}")
    elif is_list(value):
        for each in value:  # type: ignore[attr-defined]
            yield from _misnamed(each, path)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _misnamed(each, path)


class _Writer:
    """Writes values of one expression as JSON, up to a number of values: parts that are shared count each time."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def plain(self, value: object, depth: int = 0) -> Any:
        """The value as JSON.

        Raises:
            PatchError: it has none, or is too large.
        """
        self._left -= 1
        if self._left < 0 or depth > _MOST_LEVELS:
            raise PatchError(f"the expression returned more than {_MOST_VALUES} values, or {_MOST_LEVELS} levels")
        if isinstance(value, ObjectValue):
            return {name: self.plain(each, depth + 1) for name, each in value.fields.items()}
        if isinstance(value, Mapping):
            return {self._key(key): self.plain(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(each, depth + 1) for each in value]
        return _scalar(value)

    def _key(self, key: object) -> str:
        if isinstance(key, str):
            return key
        raise PatchError(f"the key of a map in a patch must be text, and is a {name_of(key)}")


def _scalar(value: object) -> Any:
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value) if abs(value) <= _SAFE else str(int(value))
        case float() if math.isfinite(value):
            return int(value) if value.is_integer() and abs(value) <= _SAFE else value
        case bytes():
            return base64.b64encode(value).decode()
        case Timestamp():
            return text_of_timestamp(value)
        case Duration():
            return text_of_duration(value)
    raise PatchError(f"a {name_of(value)} has no form in JSON: write string(…) of it")
