"""Parses manifests: files of YAML or JSON documents, the objects in them, and their pod templates.

Files are split as kubectl splits them, at lines that begin with `---`. A file that begins with `{` may contain several
JSON objects.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from runtime.yaml_nodes import Mapping_, Node, Sequence_, YamlError, YamlSyntaxError, compose
from runtime.yaml_scalars import resolve
from webhook.decisions.pod_templates import Path, pod_templates

DEFAULT_NAMESPACE: Final = "default"
"""Namespace of objects that set none, as in kubectl."""

_WRAPPER: Final = ("workload.codeflare.dev", "AppWrapper")
_SEPARATOR: Final = re.compile(r"---(\s|$)")
_END: Final = re.compile(r"\.\.\.(\s|$)")
_STEP: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


class ManifestError(ValueError):
    """A file does not contain Kubernetes manifests.

    Attributes:
        line: of the error, counted from 1.
        column: counted from 1; line and column are 0 if the error has no place.
        problem: the error, as a clause.
    """

    def __init__(self, problem: str, line: int = 0, column: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.column = column


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One document of a file.

    Attributes:
        number: among the documents with content, counted from 1.
        text: its part of the file, with the line `---` before it; all parts together are the file.
        line: of the file where the text begins, counted from 1.
        data: the object; None if there are only comments.
        root: its nodes; None without content, or for JSON that is not valid YAML.
        json: whether the file is JSON.
    """

    number: int
    text: str
    line: int
    data: dict[str, Any] | None
    root: Node | None
    json: bool = False

    def line_of(self, path: Sequence[str | int]) -> int:
        """Line of the value at a path, or of its nearest existing ancestor."""
        if self.root is None:
            return self.line
        return self.line + self.text.count("\n", 0, _locate(self.root, path))


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a document.

    Attributes:
        path: in the document; empty unless the document is a list.
        data: the object. Items of typed lists get their kind from the list.
        group: API group.
        kind: kind.
        written_namespace: `metadata.namespace`, or that of the AppWrapper around it, or "".
        namespace: the namespace in which it is created: for an object that sets none, that of the command line.
        name: name, or generateName with a star.
    """

    path: Path
    data: dict[str, Any]
    group: str
    kind: str
    written_namespace: str
    namespace: str
    name: str

    @property
    def wraps(self) -> bool:
        """Whether it is an AppWrapper: the objects that it holds are listed after it."""
        return (self.group, self.kind) == _WRAPPER

    def __str__(self) -> str:
        """`Kind namespace/name`."""
        name = f"{self.written_namespace}/{self.name}" if self.written_namespace else self.name
        return f"{self.kind} {name}".rstrip()

    def pod_templates(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Its pod templates, with their paths in the object. A Pod is its own template."""
        return pod_templates(self.data, self.group, self.kind)


def read(content: bytes) -> tuple[str, list[Document]]:
    """Read a file.

    Returns:
        Its byte order mark or "", and its documents.

    Raises:
        ManifestError: it is not UTF-8, not YAML, or a document is not a mapping.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        raise ManifestError(
            f"byte 0x{content[error.start]:02x} is not UTF-8", *_position(before, len(before))
        ) from error
    mark, text = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    parts = _json_parts(text)
    documents = []
    offset = number = 0
    line = 1
    for part in parts or _yaml_parts(text):
        data, root = _content(text, offset, part, is_json=parts is not None)
        number += data is not None
        documents.append(Document(number, part, line, data, root, parts is not None))
        offset += len(part)
        line += part.count("\n")
    return mark, documents


def _content(text: str, offset: int, part: str, *, is_json: bool) -> tuple[dict[str, Any] | None, Node | None]:
    try:
        root = compose(part)
        data = root and root.value
    except YamlError as error:
        if not (is_json and isinstance(error, YamlSyntaxError)):
            where = _position(text, offset + error.index)
            hint = "; render a template first" if "{{" in text.split("\n")[where[0] - 1] else ""
            raise ManifestError(error.problem + hint, *where) from error
        root, data = None, _json_data(text, offset, part)
    if data is not None and not isinstance(data, dict):
        where = _position(text, offset + (root.start if root else 0))
        raise ManifestError(f"the document is a {_type_name(data)}, not a mapping with apiVersion and kind", *where)
    return data, root


def _json_data(text: str, offset: int, part: str) -> Any:
    """Parse JSON that is not valid YAML, such as escapes of characters above U+FFFF."""

    def fault(problem: str) -> ManifestError:
        return ManifestError(problem, *_position(text, offset))

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            names = [name for name, _ in pairs]
            raise fault(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
        return value

    def constant(name: str) -> Any:
        raise fault(f"{name} is not a JSON value")

    data = json.loads(part, object_pairs_hook=members, parse_int=resolve, parse_float=resolve, parse_constant=constant)
    try:
        # The limits of orjson apply to all later steps.
        orjson.dumps(data)
    except orjson.JSONEncodeError as error:
        raise fault(str(error)) from error
    return data


def _json_parts(text: str) -> list[str] | None:
    """The JSON objects of a text, each with the white space after it; None if the text is not JSON."""
    if not text.lstrip().startswith("{"):
        return None
    decoder = json.JSONDecoder()
    starts = []
    position = len(text) - len(text.lstrip())
    while position < len(text):
        starts.append(position)
        try:
            _, end = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError):
            return None
        position = len(text) - len(text[end:].lstrip())
    bounds = [0, *starts[1:], len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def _yaml_parts(text: str) -> list[str]:
    """The documents of a text: each begins with its line `---`, or with the directives before that line."""
    parts: list[str] = []
    lines: list[str] = []
    directives = ended = False
    # str.splitlines would split at more characters than kubectl does.
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        separator = bool(_SEPARATOR.match(line))
        if lines and (ended or (separator and not directives)):
            parts.append("".join(lines))
            lines, directives = [], False
        if separator:
            directives = False
        elif line.startswith("%") and not any(map(_is_content, lines)):
            directives = True
        ended = bool(_END.match(line))
        lines.append(line)
    return [*parts, "".join(lines)] if lines else parts


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#") and not line.startswith("%")


def _position(text: str, index: int) -> tuple[int, int]:
    """Line and column of an offset, counted from 1."""
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


def _type_name(value: Any) -> str:
    match value:
        case list():
            return "list"
        case str():
            return "string"
        case bool():
            return "boolean"
        case _:
            return "number"


# --- objects ------------------------------------------------------------------------------------------------


def manifests(document: Document, namespace: str = DEFAULT_NAMESPACE) -> Iterator[Manifest]:
    """The objects of a document: itself, the items of a list, or the objects that an AppWrapper holds.

    Args:
        document: the document.
        namespace: of objects that set none.
    """
    if document.data is not None:
        yield from _manifests((), document.data, namespace)


def _manifests(path: Path, data: dict[str, Any], namespace: str, outer: str = "") -> Iterator[Manifest]:
    kind, version = data.get("kind"), data.get("apiVersion")
    items = data.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        # Items of typed lists may omit apiVersion and kind; items of a plain List may not.
        defaults = {} if kind == "List" else {"apiVersion": version, "kind": kind.removesuffix("List")}
        for index, item in enumerate(items):
            if isinstance(item, dict):
                yield from _manifests((*path, "items", index), {**defaults, **item}, namespace, outer)
        return
    metadata = data.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    written = _text(known.get("namespace")) or outer
    manifest = Manifest(
        path,
        data,
        group=version.rpartition("/")[0] if isinstance(version, str) else "",
        kind=kind if isinstance(kind, str) else "",
        written_namespace=written,
        namespace=written or namespace,
        name=_text(known.get("name")) or (f"{_text(known.get('generateName'))}*" if known.get("generateName") else ""),
    )
    yield manifest
    for steps, wrapped in _wrapped(manifest):
        # The wrapper creates its objects in its own namespace, if they set none.
        yield from _manifests((*path, *steps), wrapped, namespace, written)


def _wrapped(manifest: Manifest) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The objects that an AppWrapper creates."""
    if not manifest.wraps:
        return
    spec = manifest.data.get("spec")
    components = spec.get("components") if isinstance(spec, dict) else None
    for index, component in enumerate(components if isinstance(components, list) else ()):
        wrapped = component.get("template") if isinstance(component, dict) else None
        if isinstance(wrapped, dict):
            yield ("spec", "components", index, "template"), wrapped


def _text(value: Any) -> str:
    """A name; empty for a value of another type, such as `no` in YAML."""
    return value if isinstance(value, str) else ""


# --- paths --------------------------------------------------------------------------------------------------


def path_steps(text: str) -> Path:
    return tuple(bracketed or name for bracketed, name in _STEP.findall(text))


def _locate(root: Node, path: Sequence[str | int]) -> int:
    """Offset of the nearest node on the way to a path: of a member's key, of an item, of the document."""
    node, offset = root, root.start
    for step in path:
        if isinstance(node, Mapping_):
            entry = next((entry for entry in node.entries if entry.name == step and not entry.merge), None)
            if entry is None:
                break
            node, offset = entry.node, entry.key.start
        elif isinstance(node, Sequence_) and str(step).isdecimal() and int(step) < len(node.items):
            node = node.items[int(step)]
            offset = node.start
        else:
            break
    return offset
