"""Recognises documents that differ only in values on which no decision depends, such as the name of the object.

A file often has thousands of them. A document is cut into spans (quoted texts and words after a colon) and the rest.
Documents with the same rest, and the same values in the spans that matter, have the same result: conversion is computed
once, and its changes are moved to the other documents. The spans that do not matter are found by parsing the first
document: each is exactly one scalar at a path that conversion does not read.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Final, Generic, TypeAlias, TypeVar

from commands.objects.manifests import Manifest
from commands.objects.text_edits import Splice
from conversion.objects.kinds import KINDS, holds_claims
from conversion.objects.pod_places import Path, matches
from conversion.objects.queues import ALL_KEYS
from neuron import names
from runtime.yaml_nodes import Mapping_, Scalar, Sequence_, YamlNode
from runtime.yaml_scalars import is_word

Span: TypeAlias = tuple[int, int]
"""Offsets in a text."""

_SPAN: Final = re.compile(
    r'"[ !#-\[\]-~]*"|(?<=: )[A-Za-z](?:[\w./:@-]*[\w/@-])?(?=[ \t]*$|[ \t]+#)', re.ASCII | re.MULTILINE
)
_LONGEST: Final = 16 * 1024
"""Characters of a document that is compared."""
_MOST: Final = 1024
"""Results that are kept."""
_LIST_ITEMS: Final = ("command", "args")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """A document, cut into spans and the rest.

    Attributes:
        rest: the text, with a mark in place of each span.
    """

    rest: str
    spans: tuple[Span, ...]
    values: tuple[str, ...]

    @classmethod
    def at(cls, text: str) -> "Look | None":
        """Cut a text; None if it is too long to be compared."""
        if len(text) > _LONGEST:
            return None
        found = [each for each in _SPAN.finditer(text) if text[each.start()] == '"' or not is_word(each[0])]
        rest, position = [], 0
        for each in found:
            rest += [text[position : each.start()], "\0q" if each[0][0] == '"' else "\0w"]
            position = each.end()
        return cls("".join(rest) + text[position:], tuple(m.span() for m in found), tuple(m[0] for m in found))

    def moved(self, offset: int, to: "Look") -> int:
        """The offset in another text with the same rest."""
        before = sum(end <= offset for _, end in self.spans)
        return offset + (to.spans[before - 1][1] - self.spans[before - 1][1] if before else 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded(Generic[_T]):
    """A result, and the document for which it was computed.

    Attributes:
        name: number of the span that is the object's name; None if the name is not in a span that may differ.
    """

    look: Look
    result: _T
    name: int | None

    def splices(self, splices: tuple[Splice, ...], to: Look) -> list[Splice]:
        """Changes of the first document, moved to another one."""
        return [Splice(self.look.moved(each.start, to), self.look.moved(each.end, to), each.text) for each in splices]

    def name_in(self, to: Look) -> str | None:
        """The name of another document's object; None if it is the same."""
        return None if self.name is None else to.values[self.name].strip('"')


class Shapes(Generic[_T]):
    """Results by what the documents have in common."""

    def __init__(self) -> None:
        self._free: dict[str, tuple[bool, ...]] = {}
        self._results: dict[tuple[str, tuple[str, ...]], Recorded[_T]] = {}

    def find(self, look: Look) -> Recorded[_T] | None:
        """The result of a document that differs only in values that do not matter."""
        free = self._free.get(look.rest)
        return None if free is None else self._results.get((look.rest, _fixed(look, free)))

    def record(self, look: Look, root: YamlNode, manifest: Manifest, splices: tuple[Splice, ...], result: _T) -> None:
        """Keep the result of a document with one object, unless other documents cannot be compared with it."""
        if manifest.path or not holds_claims(manifest.group, manifest.kind) or manifest.kind == "LeaderWorkerSet":
            return
        paths = {span: path for span, path in _scalars(root) if _is_free(manifest, path)}
        kept = [span in paths and not any(_touches(each, span) for each in splices) for span in look.spans]
        free = self._free.setdefault(look.rest, tuple(kept))
        if any(mine and not own for mine, own in zip(free, kept, strict=True)):
            return
        if len(self._results) >= _MOST:
            self._results.clear()
        name = next((at for at, span in enumerate(look.spans) if paths.get(span) == _NAME and free[at]), None)
        self._results[look.rest, _fixed(look, free)] = Recorded(look, result, name)
        if len(self._free) > _MOST:
            self._free.clear()
            self._results.clear()


_NAME: Final = ("metadata", "name")
_READ_LABELS: Final = frozenset({names.LABEL_CONVERTED, *ALL_KEYS})


def _fixed(look: Look, free: tuple[bool, ...]) -> tuple[str, ...]:
    return tuple(value for value, varies in zip(look.values, free, strict=True) if not varies)


def _touches(splice: Splice, span: Span) -> bool:
    return splice.start < span[1] and splice.end > span[0]


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
        if matches(path[: len(pattern)], pattern) and (_is_label(inner) or _is_free_in_pod(inner)):
            return True
    return False


def _is_label(path: Path) -> bool:
    return len(path) == 3 and path[:2] == ("metadata", "labels") and path[2] not in _READ_LABELS


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
