"""Recognises documents that differ only in values on which no decision depends, such as the name of the object.

A file often has thousands of them. A document is cut into spans and the rest, as items are read (`YamlItems`).
Documents with the same rest, and the same values in the spans that matter, have the same result: conversion is computed
once, and its changes are moved to the other documents. The spans that do not matter are found by parsing the first
document: each is exactly one scalar at a path that conversion does not read.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from commands.objects.documents import Document
from commands.objects.manifests import Manifest
from commands.objects.text_edits import Splice
from commands.objects.yaml_items import ByLook, Look, spans_of, text_of
from conversion.objects.kinds import KINDS, holds_claims
from conversion.objects.pod_places import Path, matches
from conversion.objects.queues import ALL_KEYS
from neuron import names
from runtime.yaml_nodes import Mapping_, Scalar, Sequence_, YamlNode

Span: TypeAlias = tuple[int, int]
"""Offsets in a text."""

_LIST_ITEMS: Final = ("command", "args")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded(Generic[_T]):
    """A result, and the document for which it was computed.

    Attributes:
        spans: of that document.
        name: number of the span that is the object's name; None if the name is not in a span that may differ.
        first: the object's name in that document.
    """

    spans: Sequence[Span]
    result: _T
    name: int | None
    first: str

    def splices(self, splices: tuple[Splice, ...], to: Look) -> list[Splice]:
        """Changes of the first document, moved to another one."""
        starts = [start for start, _ in self.spans]
        longer = [len(value) - (end - start) for value, (start, end) in zip(to.values, self.spans, strict=True)]
        moved = [0, *itertools.accumulate(longer)]
        by = [moved[bisect.bisect_left(starts, each.start)] for each in splices]
        return [
            Splice(each.start + before, each.end + moved[bisect.bisect_left(starts, each.end)], each.text)
            for each, before in zip(splices, by, strict=True)
        ]

    def subject(self, subject: str, to: Look) -> str:
        """What names the object of the first document, for that of another one."""
        return subject if self.name is None else subject.removesuffix(self.first) + text_of(to.values[self.name])


class Shapes(Generic[_T]):
    """Results by what the documents have in common."""

    def __init__(self) -> None:
        self._results = ByLook[Recorded[_T]]()

    def find(self, look: Look) -> Recorded[_T] | None:
        """The result of a document that differs only in values that do not matter."""
        return self._results.find(look)

    def record(
        self, look: Look, document: Document, found: Sequence[Manifest], splices: tuple[Splice, ...], result: _T
    ) -> None:
        """Keep the result of a document, unless other documents cannot be compared with it.

        Args:
            found: its objects. Only a document with one object, and without a key that stands twice, is compared.
        """
        root = document.root
        if root is None or len(found) != 1 or document.repeated:
            return
        [manifest] = found
        if manifest.path or not holds_claims(manifest.group, manifest.kind) or manifest.kind == "LeaderWorkerSet":
            return
        spans = spans_of(document.text)
        paths = {span: path for span, path in _scalars(root) if _is_free(manifest, path)}
        free = {
            at
            for at, span in enumerate(spans)
            if span in paths and not any(each.start < span[1] and each.end > span[0] for each in splices)
        }
        # A name that is no text counts as none.
        name = next(
            (at for at in free if paths[spans[at]] == _NAME and text_of(look.values[at]) == manifest.name), None
        )
        self._results.keep(look, free, Recorded(spans, result, name, manifest.name))


_NAME: Final = ("metadata", "name")
_READ_LABELS: Final = frozenset({names.LABEL_CONVERTED, *ALL_KEYS})


def _scalars(root: YamlNode) -> Iterator[tuple[Span, Path]]:
    """Place and path of every scalar that is a value; those of merge keys and aliases are left out."""
    pending: list[tuple[YamlNode, Path]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        if isinstance(node, Mapping_):
            pending += [(entry.node, (*path, entry.name)) for entry in node.entries if not entry.merge]
        elif isinstance(node, Sequence_):
            pending += [(item, (*path, index)) for index, item in enumerate(node.items)]
        elif isinstance(node, Scalar) and not node.anchor:
            yield (node.start, node.end), path


def _is_free(manifest: Manifest, path: Path) -> bool:
    """Whether nothing that conversion decides or says depends on the value at a path."""
    if path == _NAME or _is_label(path):
        return True
    for pattern in KINDS[manifest.group, manifest.kind].templates:
        inner = path[len(pattern) :]
        if (_is_label(inner) or _is_free_in_pod(inner)) and matches(path[: len(pattern)], pattern):
            return True
    return False


def _is_label(path: Path) -> bool:
    """Whether it is a label or annotation that nothing reads. All annotations of ours have our domain."""
    match path:
        case ("metadata", "labels", key):
            return key not in _READ_LABELS
        case ("metadata", "annotations", str(key)):
            return key not in ALL_KEYS and key != names.ANNOTATION_MIRROR_POD and "neuron" not in key
        case _:
            return False


def _is_free_in_pod(path: Path) -> bool:
    match path:
        case ("spec", "containers" | "initContainers", int(), "image" | "workingDir"):
            return True
        case ("spec", "containers" | "initContainers", int(), field, int()):
            return field in _LIST_ITEMS
        case ("spec", "containers" | "initContainers", int(), "env", int(), "value"):
            return True
        case _:
            return False
