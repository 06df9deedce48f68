"""Reads YAML text as plain data, with the line of every value.

Scalars follow sigs.k8s.io/yaml where admins notice it: times stay strings, and a duplicate key is an error.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

Path = tuple[str | int, ...]
"""Keys and list positions from the document's root."""

_MAX_DEPTH: Final = 100
_MAX_VALUES: Final = 200_000
_MAX_EVENTS: Final = 500_000
"""YAML events (starts, ends and scalars) of one file."""
_LONGEST_PLAIN: Final = 64
"""Characters of a scalar that is not a string: a number, a boolean, null."""
_MERGE: Final = "tag:yaml.org,2002:merge"
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_NULL: Final = "tag:yaml.org,2002:null"
_TEXT: Final = "tag:yaml.org,2002:str"


class _Loader(yaml.CSafeLoader):
    """YAML 1.1 without times: `expires: 2026-12-31` is a string to Kubernetes."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
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
        message: one sentence.
    """

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One YAML document.

    Attributes:
        file: its path.
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

    def problem(self, path: Path, message: str) -> Problem:
        """A problem at a path of this document."""
        return Problem(self.file, self.line(path), message)


def read(file: str, content: bytes) -> Iterator[Document]:
    """The documents of one file, without empty ones.

    Args:
        file: its name, for messages.
        content: of the file.

    Raises:
        DocumentError: it is not UTF-8, not YAML, nests too deeply, or has a key twice.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(1, f"the file is not UTF-8: {error.reason}.") from error
    try:
        _check_nesting(text)
        yield from _documents(file, text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DocumentError(mark.line + 1 if mark else 1, f"this is not YAML: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise DocumentError(1, f"this is not YAML: {error}.") from error
    except RecursionError as error:
        raise DocumentError(1, f"values are nested deeper than {_MAX_DEPTH} levels.") from error


def _check_nesting(text: str) -> None:
    """Reject deep nesting before the YAML composer recurses into it: its recursion in C would end the process.

    The event parser does not recurse.
    """
    depth = events = 0
    loader: Any = _Loader(text)
    try:
        while (event := loader.get_event()) is not None:
            events += 1
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MAX_DEPTH:
                line = event.start_mark.line + 1
                raise DocumentError(line, f"values are nested deeper than {_MAX_DEPTH} levels.")
            if events > _MAX_EVENTS:
                line = event.start_mark.line + 1
                raise DocumentError(line, f"the file has more than {_MAX_VALUES} values; split it.")
            if isinstance(event, yaml.StreamEndEvent):
                return
    finally:
        loader.dispose()


def _documents(file: str, text: str) -> Iterator[Document]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            root: Any = loader.get_node()
            builder = _Builder(loader)
            data = builder.build(root, (), root.start_mark.line + 1)
            if data is not None:
                yield Document(file, data, builder.lines, builder.text_lines)
    finally:
        loader.dispose()


class _Builder:
    """Converts the YAML nodes of one document to data."""

    def __init__(self, loader: yaml.CSafeLoader) -> None:
        self._loader = loader
        self._values = 0
        self.lines: dict[Path, int] = {}
        self.text_lines: dict[Path, int] = {}

    def build(self, node: Any, path: Path, line: int) -> Any:
        self._values += 1
        if len(path) > _MAX_DEPTH:
            raise DocumentError(line, f"values are nested deeper than {_MAX_DEPTH} levels.")
        if self._values > _MAX_VALUES:
            raise DocumentError(line, f"the document has more than {_MAX_VALUES} values after aliases are expanded.")
        self.lines[path] = line
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, at), item.start_mark.line + 1) for at, item in enumerate(node.value)]
        self.text_lines[path] = node.start_mark.line + (2 if node.style in ("|", ">") else 1)
        return self._scalar(node)

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                raise DocumentError(line, "merge keys (<<) are not supported in policy files; repeat the fields.")
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if isinstance(key, bool | int | float):
                key = key_node.value
            if not isinstance(key, str):
                raise DocumentError(line, "a field name must be text.")
            if key in found:
                raise DocumentError(line, f"the field '{key}' is here twice.")
            found[key] = self.build(value_node, (*path, key), line)
        return found

    def _scalar(self, node: Any) -> Any:
        if node.tag != _TEXT and len(node.value) > _LONGEST_PLAIN:
            # Python parses long numbers in quadratic time, or rejects them.
            kind = node.tag.rpartition(":")[2]
            message = f"{node.value[:_LONGEST_PLAIN]!r}… is too long for a value of type {kind}."
            raise DocumentError(node.start_mark.line + 1, message)
        value = self._construct(node)
        if node.tag == _NULL or isinstance(value, bool | int | float | str):
            return value
        raise DocumentError(
            node.start_mark.line + 1, f"{str(node.value)[:64]!r} has the tag {node.tag}, which JSON does not have."
        )

    def _construct(self, node: Any) -> Any:
        try:
            return self._loader.construct_object(node)
        except (ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
            message = f"{str(node.value)[:64]!r} cannot be read as a number or another plain type; put it in quotes."
            raise DocumentError(node.start_mark.line + 1, message) from error
