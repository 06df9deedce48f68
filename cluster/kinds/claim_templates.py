"""ResourceClaimTemplates: their requests, and whether the webhook made them.

A cluster has many that differ in little: of 100,000, most field paths and classes are equal. Equal parts (texts,
tuples, sets and records) are kept once.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec import Struct, structs
from msgspec.structs import force_setattr

from cluster.bounded_objects import KEPT, Bounds
from conversion.claims import templates
from neuron import names
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec
from runtime.api_server import RESOURCE_GROUP

T = TypeVar("T")


class SharedParts:
    """A table of parts. For one thread. A field of a record has values of one type, so equal records are the same."""

    def __init__(self, most: int = KEPT.parts) -> None:
        """Keep at most `most` parts."""
        self._most = most
        self._parts: dict[object, object] = {}

    def __len__(self) -> int:
        """Number of parts."""
        return len(self._parts)

    def of(self, value: T) -> T:
        """An equal value, whose parts are shared with those of earlier values. The fields of its records are set.

        Args:
            value: a frozen dataclass or Struct that no other thread has.
        """
        shared: T = self._inside(value)
        return shared

    def _inside(self, value: object) -> Any:
        """The value, with shared parts."""
        if isinstance(value, tuple | frozenset):
            return type(value)(map(self._part, value)) if len(value) <= KEPT.part else value
        kind: Any = type(value)
        assign: Any = force_setattr if issubclass(kind, Struct) else object.__setattr__
        for name in _fields(kind):
            part = getattr(value, name)
            kept = self._part(part)
            if kept is not part:
                assign(value, name, kept)
        return value

    def _part(self, value: Any) -> Any:
        """The part that stands for all equal ones."""
        kind: object = type(value)
        if kind is str:
            if len(value) > KEPT.part:
                return value
        elif kind is tuple or kind is frozenset or _fields(kind):
            value = self._inside(value)
        else:
            return value
        key = (kind, value)
        try:
            kept = self._parts.get(key)
        except TypeError:  # it contains parsed JSON, which has no hash
            return value
        if kept is None:
            if len(self._parts) >= self._most:
                self._parts.clear()
            kept = self._parts[key] = value
        return kept


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass or Struct; empty for another type."""
    if issubclass(kind, Struct):
        return kind.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()


_OBJECT: Final = 64
"""Bytes of a Python object and of the reference to it (CPython, 64 bits)."""


def footprint(value: object) -> int:
    """Bytes of a value of dataclasses, Structs, containers, texts and numbers. Shared parts count at every use."""
    size = 0
    pending: list[object] = [value]
    while pending:
        each = pending.pop()
        size += _OBJECT
        if isinstance(each, str | bytes):
            size += len(each)
        elif isinstance(each, Mapping):
            pending += each.keys()
            pending += each.values()
        elif isinstance(each, tuple | list | frozenset | set):
            pending += each
        elif isinstance(each, Struct):
            pending += structs.astuple(each)
        elif dataclasses.is_dataclass(each):
            pending += [getattr(each, field.name) for field in dataclasses.fields(each)]
    return size


_API_VERSION: Final = f"{RESOURCE_GROUP}/v1"


class TemplateFacts(Struct, frozen=True, gc=False):
    """What is kept of one ResourceClaimTemplate.

    Attributes:
        digest: `templates.digest` of its spec; empty if neither its name nor an annotation marks it as made by the
            webhook.
        managed: whether its label marks it as generated.
        spec: its requests; None if unknown: the spec cannot be read, or is larger than the cache keeps.
        prune_after: time of its removal, from its annotation; empty if it is not marked.
        version: as of `templates.version_of`.
    """

    digest: str
    managed: bool
    spec: ClaimSpec | None
    prune_after: str = ""
    version: int = 0

    @property
    def device_classes(self) -> frozenset[str]:
        """DeviceClasses that it requests, including alternatives; empty if its requests are unknown."""
        return self.spec.device_classes if self.spec is not None else frozenset()

    @property
    def ultraserver_mode(self) -> int | None:
        """The mode of its first readable UltraServerConfig; None if there is none."""
        return next(iter(self.spec.ultraserver_modes), None) if self.spec is not None else None


UNREADABLE_TEMPLATE: Final = TemplateFacts("", False, None)
"""A template that exists, with unknown content."""


_SHARED: Final = SharedParts()
"""Templates repeat field paths, classes and whole requests."""


BOUNDS: Final[Bounds[TemplateFacts]] = Bounds(
    KEPT.templates,
    KEPT.templates_of_one,
    weigh=lambda facts: footprint(facts.spec),
    shorten=lambda facts: structs.replace(facts, spec=None),
)


def project_template(item: Mapping[str, Any]) -> TemplateFacts:
    """Facts of a ResourceClaimTemplate (`resource.k8s.io/v1`)."""
    metadata, spec = item["metadata"], item["spec"]
    facts = TemplateFacts(
        templates.digest(spec) if _is_compared(metadata) else "",
        (metadata.get("labels") or {}).get(names.LABEL_MANAGED_BY) == names.MANAGER,
        read_claim("ResourceClaimTemplate", _API_VERSION, spec)[0],
        ((metadata.get("annotations") or {}).get(names.ANNOTATION_PRUNE_AFTER) or "")[: KEPT.value],
        templates.version_of(item),
    )
    return _SHARED.of(facts)


def _is_compared(metadata: Mapping[str, Any]) -> bool:
    """Whether a template can be one that the webhook made. No other one is compared with a demand by its hash."""
    annotated = names.ANNOTATION_TEMPLATE_DIGEST in (metadata.get("annotations") or {})
    return annotated or metadata["name"].startswith(names.TEMPLATE_PREFIX)
