"""Reads objects of the Kubernetes API: the base of the typed ones, their error, metadata, and values of any type.

Objects from files, and the parts that tenants write, may have a value of any type anywhere. A typed reader refuses such
an object with the path of the value; the functions here take the value for absent.

Source of `namespaceObject`: k8s.io/apiserver/pkg/admission/plugin/cel, CreateNamespaceObject.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")


_OBJECT: Final = (dict, Mapping)
"""For isinstance: it compares with a class much faster than with an abstract one, and parsed JSON has the first."""
_NO_OBJECT: Final = (str, int, float, list, type(None))
"""What else parsed JSON has: not compared with the abstract class."""
_LIST: Final = (list, tuple)


class WrongFormError(Exception):
    """An object has another form than the API's; the message says what is wrong, and at which path."""


class Fields(msgspec.Struct, frozen=True, rename="camel"):
    """An object as the API writes it. Fields that are not declared are ignored."""


def read(data: object, form: type[T]) -> T:
    """An object of parsed JSON or YAML as a struct.

    Raises:
        WrongFormError: a value has another type than its field; the message ends with the path, such as
            `$.spec.pool.name`.
    """
    try:
        return msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        raise WrongFormError(str(error)) from error


def readable(items: Iterable[object], reader: Callable[[object], T]) -> Iterator[T]:
    """The objects that a reader accepts, read; the others are left out."""
    for item in items:
        try:
            yield reader(item)
        except WrongFormError:
            continue


def mapping(value: object) -> Mapping[str, object]:
    """The value if it is an object, else an empty one."""
    return (
        value if isinstance(value, dict) or (not isinstance(value, _NO_OBJECT) and isinstance(value, Mapping)) else {}
    )


def mappings(value: object) -> Iterator[Mapping[str, object]]:
    """The entries of a list that are objects."""
    entries = value if isinstance(value, _LIST) else ()
    return (each for each in entries if isinstance(each, _OBJECT))


def sequence(value: object) -> Sequence[object]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, _LIST) else ()


def text(value: object) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


class OwnerReference(Fields, frozen=True):
    """`metav1.OwnerReference`."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(Fields, frozen=True):
    """`metav1.ObjectMeta`. Fields that are absent are empty, or None where null and absent differ from empty."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls the object; None without one."""
        return next((each for each in self.owner_references or () if each.controller), None)


class Namespace(Fields, frozen=True):
    """The form of a Namespace."""

    metadata: ObjectMeta


class _Hard(Fields, frozen=True):
    hard: dict[str, object] | None = None
    scopes: list[str] | None = None
    scope_selector: dict[str, object] | None = None


class ResourceQuota(Fields, frozen=True):
    """The form of a ResourceQuota."""

    spec: _Hard | None = None


class _Limit(Fields, frozen=True):
    type: str
    min: dict[str, object] | None = None
    max: dict[str, object] | None = None
    max_limit_request_ratio: dict[str, object] | None = None


class _Limits(Fields, frozen=True):
    limits: list[_Limit] | None = None


class LimitRange(Fields, frozen=True):
    """The form of a LimitRange."""

    spec: _Limits | None = None


_METADATA: Final = (
    *("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "finalizers"),
)


def namespace_value(data: Mapping[str, object]) -> dict[str, Any]:
    """The fields of a Namespace that policies see; `data` is the object, whole or in part."""
    metadata = data.get("metadata")
    kept = metadata if isinstance(metadata, dict) else {}
    made: dict[str, object] = {"metadata": {field: kept[field] for field in _METADATA if kept.get(field) is not None}}
    return made | {field: data[field] for field in ("spec", "status") if isinstance(data.get(field), dict)}


def namespace_named(name: str) -> dict[str, Any]:
    """One of which only the name is known, with the label that every Namespace has."""
    return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
