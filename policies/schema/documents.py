"""YAML text to plain data with the line of every value. Values are those that kubectl reads (`runtime.yaml_nodes`)."""

import bisect
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from runtime.yaml_nodes import (
    BLOCK_STYLES,
    TAG_PREFIX,
    Alias,
    DocumentLimits,
    Mapping_,
    Scalar,
    Sequence_,
    YamlError,
    YamlNode,
    YamlScalarError,
    YamlSyntaxError,
    compose_all,
)

Path = tuple[str | int, ...]
"""Keys and list positions from the document's root."""

_LIMITS: Final = DocumentLimits(depth=100, values=200_000)
_NUMBER: Final = re.compile(r"[-+.0-9][-+.:_0-9eExXoOa-fA-F]*", re.ASCII)
_LINE_BREAK: Final = re.compile("\n")
_TAGS: Final = frozenset({"", "!", *(TAG_PREFIX + name for name in ("str", "int", "float", "bool", "null"))})


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One problem of policy files, with its place.

    Attributes:
        file: path as the user knows it; empty if the problem is in no file.
        line: from 1; 0 for the whole file.
        message: one sentence with the value and the fix.
    """

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        """`file:line: message`, as compilers print it."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.message}" if place else self.message


class DocumentError(Exception):
    """A text is not YAML, or has a value that no Kubernetes object can have.

    Attributes:
        line: from 1.
    """

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyDocument:
    """One YAML document.

    Attributes:
        data: its content, JSON-like.
        lines: line of every value, from 1, by its path; for a value in a mapping, the line of its key.
        text_lines: line on which the text of a scalar begins: below its key for `|` and `>`.
    """

    file: str
    data: Any
    lines: Mapping[Path, int]
    text_lines: Mapping[Path, int]

    def line(self, path: Path) -> int:
        """Line of a value, or of its closest parent in the document."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, path: Path, message: str) -> PolicyProblem:
        return PolicyProblem(self.file, self.line(path), message)


def read(file: str, content: bytes) -> Iterator[PolicyDocument]:
    """The documents of one file, without empty ones.

    Args:
        file: its name, for messages.

    Raises:
        DocumentError: it is not UTF-8, not YAML, nests too deeply, or has a key twice.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(1, f"the file is not UTF-8: {error.reason}.") from error
    try:
        for root in compose_all(text, _LIMITS):
            builder = _Builder(text)
            data = builder.build(root, (), root.start)
            if data is not None:
                yield PolicyDocument(file, data, builder.lines, builder.text_lines)
    except YamlError as error:
        raise DocumentError(text.count("\n", 0, error.index) + 1, _message(error)) from error


def _message(error: YamlError) -> str:
    match error:
        case YamlSyntaxError():
            return f"this is not YAML: {error.problem}."
        case YamlScalarError():
            return f"{error.text[:64]!r} cannot be read as a number or another plain type; put it in quotes."
        case _:
            return f"{error.problem}."


class _Builder:
    """Converts the nodes of one document to data with lines. Aliases are expanded, because every path has a line."""

    def __init__(self, text: str) -> None:
        self._breaks = [match.start() for match in _LINE_BREAK.finditer(text)]
        self.lines: dict[Path, int] = {}
        self.text_lines: dict[Path, int] = {}

    def _line(self, offset: int) -> int:
        return bisect.bisect_left(self._breaks, offset) + 1

    def build(self, node: YamlNode, path: Path, start: int) -> Any:
        """Data of a node; `start` is the offset that gives the line of the path."""
        line = self.lines[path] = self._line(start)
        if len(path) > _LIMITS.depth:
            raise DocumentError(line, f"values are nested deeper than {_LIMITS.depth} levels.")
        target = node.target if isinstance(node, Alias) else node
        match target:
            case Mapping_():
                return self._mapping(target, path)
            case Sequence_():
                return [self.build(item, (*path, at), item.start) for at, item in enumerate(target.items)]
            case Scalar():
                self.text_lines[path] = self._line(target.start) + (target.style in BLOCK_STYLES)
                return self._scalar(target)
        return target.value

    def _mapping(self, node: Mapping_, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for entry in node.entries:
            if entry.merge:
                line = self._line(entry.key.start)
                raise DocumentError(line, "merge keys (<<) are not supported in policy files; repeat the fields.")
            found[entry.name] = self.build(entry.node, (*path, entry.name), entry.key.start)
        return found

    def _scalar(self, node: Scalar) -> object:
        if node.tag not in _TAGS:
            tag = node.tag.removeprefix("!").removeprefix(TAG_PREFIX)
            message = f"{node.text[:64]!r} has the YAML tag '!{tag}', which Kubernetes does not read; remove the tag."
            raise DocumentError(self._line(node.start), message)
        if not node.style and len(node.text) > 64 and _NUMBER.fullmatch(node.text):
            message = f"{node.text[:64]!r}… is too long for a value of type int."
            raise DocumentError(self._line(node.start), message)
        return node.value
