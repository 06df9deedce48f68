"""Splits files into YAML or JSON documents, one at a time, as kubectl splits them: at lines that begin with `---`.

A file that begins with `{` may contain several JSON objects. A document is parsed when its data is needed. A long List
is read item by item (`commands.objects.long_lists`).
"""

import bisect
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple

import orjson

from commands.objects.long_lists import LONG, JsonObjects, ListPart, LongList, Piece, Reading, pieces, plain, recognise
from commands.objects.yaml_items import ItemShape, Look, YamlItems
from runtime.yaml_nodes import Mapping_, Sequence_, YamlError, YamlNode, YamlSyntaxError, compose, resolve

MARK: Final = "\ufeff"
"""Byte order mark."""

_SEPARATOR: Final = re.compile(r"---(\s|$)")
_END: Final = re.compile(r"\.\.\.(\s|$)")
_JSON_SPACE: Final = " \t\n\r"
_NO_CONTENT: Final = re.compile(r"(---|\.\.\.)?\s*(#.*)?\s*|%.*\s*")
# JSON of which YAML has another reading, or none: escapes of characters, and characters that YAML does not print.
_ODD_JSON: Final = re.compile(r"[^\n\r\x20-\x7e]|\\[u/]")
_BETWEEN: Final = re.compile(r"[ \t\n\r,:]*")
_decode: Final = json.JSONDecoder().raw_decode


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


@dataclasses.dataclass(eq=False)
class Document:
    """One document of a file, or a part of a long List.

    Attributes:
        number: among the documents with content, counted from 1. The parts of a List have one number.
        text: its part of the file, with the line `---` before it; all parts together are the file.
        line: of the file where the text begins, counted from 1.
        json: whether the file is JSON.
        column: of the line where the text begins, counted from 0.
        left_out: whether it cannot be read, which was reported: it has no content then.
        part: what it is of a List; None for a whole document. Only an item has content.
        place: path of an item in its List.
        after: text of the file between it and the next one.
        reading: of an item in JSON.
        value: of an item in YAML, if it comes from an item of the same shape.
        shape: of that item.
        learn: of an item in YAML: keeps the shape of its text.
    """

    number: int
    text: str
    line: int
    json: bool = False
    column: int = 0
    left_out: bool = False
    part: ListPart | None = None
    place: tuple[str | int, ...] = ()
    after: str = ""
    reading: Reading | None = None
    value: dict[str, object] | None = None
    shape: ItemShape | None = None
    learn: Callable[[str, Look | None, YamlNode], None] | None = None

    @functools.cached_property
    def _content(self) -> "_Content":
        if self.left_out or self.part in (ListPart.HEAD, ListPart.TAIL):
            return _Content(None, None)
        value = plain(self.text) if self.reading else self.value
        if value is None and self.json:
            # The places of values are found when they are asked for; nodes take forty times as long.
            found = JsonObjects().certain(self.text)
            value = found if isinstance(found, dict) else None
        return self._parsed if value is None else _Content(value, None)

    @functools.cached_property
    def _parsed(self) -> "_Content":
        return _parse(self)

    @property
    def data(self) -> dict[str, object] | None:
        """The object; None if there are only comments.

        Raises:
            ManifestError: it is not YAML, or not a mapping.
        """
        return self._content.data

    @property
    def repeated(self) -> "Sequence[RepeatedKey]":
        """The keys that stand twice in a mapping. Raises as `data`."""
        return self._content.repeated

    @property
    def tree(self) -> YamlNode | None:
        """The nodes of its text; None without content, and for JSON. Raises as `data`."""
        return None if self.json else self._content.root if self.shape is None else self._parsed.root

    @property
    def root(self) -> YamlNode | None:
        """The node of its object; None without content, and for JSON. Raises as `data`."""
        tree = self.tree
        return tree.items[0] if self.part is not None and isinstance(tree, Sequence_) else tree

    @functools.cached_property
    def is_yaml(self) -> bool:
        """Whether it is YAML: JSON may have escapes and characters that YAML does not have."""
        if not self.json or (self._content.root is None and not _ODD_JSON.search(self.text)):
            return True
        try:
            return compose(self.text, repeated=[]) is not None
        except YamlError:
            return False

    @functools.cached_property
    def look(self) -> Look | None:
        """Its text for comparison with others; None for JSON and for a long text."""
        return None if self.json else Look.at(self.text)

    def line_of(self, path: Sequence[str | int]) -> int:
        """Line of the value at a path, or of its nearest existing ancestor."""
        if self.shape is not None:
            return self.line + self.shape.line_of(self.value, path)
        root = self.root or self._content.root
        if root is not None:
            offset = _locate(root, path)
        elif self.json:
            offset = self._json_places.offset(path)
        else:
            return self.line
        if offset < LONG:
            return self.line + self.text.count("\n", 0, offset)
        return self.line + bisect.bisect_left(self._line_ends, offset)

    @functools.cached_property
    def _json_places(self) -> "_JsonPlaces":
        return _JsonPlaces(self.text, unique=not self.repeated)

    @functools.cached_property
    def _line_ends(self) -> list[int]:
        """Offsets of the line breaks: a List may have thousands of findings."""
        lengths = map(len, self.text.split("\n"))
        return [end + number for number, end in enumerate(itertools.accumulate(lengths))][:-1]

    def position(self, index: int) -> tuple[int, int]:
        """Line and column in the file of an offset in the text, counted from 1."""
        line, column = _position(self.text, index)
        return self.line + line - 1, column + (self.column if line == 1 else 0)


@dataclasses.dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A key that stands twice in a mapping. The last value counts, as for kubectl.

    Attributes:
        path: of the mapping, in the document.
        lines: of the file, where the key stands; empty if they are not known.
        ignored: the value that does not count.
        value: the last one.
    """

    path: tuple[str | int, ...]
    key: str
    lines: tuple[int, ...]
    ignored: object
    value: object


class _Content(NamedTuple):
    data: dict[str, object] | None
    root: YamlNode | None
    repeated: "Sequence[RepeatedKey]" = ()


class TextBudget:
    """How many characters of parsed documents may be kept, so that small inputs are parsed once."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, amount: int) -> bool:
        """Reserve an amount; False if there is not enough left."""
        if amount > self._left:
            return False
        self._left -= amount
        return True


class Documents:
    """The documents of a file. Each iteration reads the file; a small file is read and parsed once.

    Attributes:
        long: the List of which the iteration yields the parts; known after its first step.
    """

    def __init__(self, opened: Callable[[], BinaryIO], budget: TextBudget) -> None:
        self._open = opened
        self._budget = budget
        self._kept: list[Document] | None = None
        self._left_out: set[tuple[int, int]] = set()
        self._as_one = False
        self._items = YamlItems()
        self.mark = ""
        self.long: LongList | None = None

    def leave_out(self, document: Document) -> None:
        """Give a document, which cannot be read, without content from now on."""
        document.left_out = True
        self._left_out.add((document.line, document.column))

    def as_one(self) -> None:
        """Read a long List as one document from now on: a part of it cannot be read."""
        self.long, self._as_one = None, True

    def __iter__(self) -> Iterator[Document]:
        """Raises ManifestError and OSError."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Document] | None = []
        with self._open() as file:
            if self.long is None and not self._as_one:
                self._as_one = len(file.read(LONG)) < LONG
                file.seek(0)
            if self.long is None and not self._as_one:
                self.long = recognise(file)
                self._as_one = self.long is None
                file.seek(0)
            if self.long is not None:
                yield from _parts(pieces(file, self.long), None if self.long.json else self._items)
                return
            lines = _decoded(file)
            first = next(lines, "")
            self.mark = MARK if first.startswith(MARK) else ""
            for document in split(itertools.chain([first.removeprefix(MARK)] if first else [], lines)):
                document.left_out = (document.line, document.column) in self._left_out
                if kept is not None and self._budget.take(len(document.text)):
                    kept.append(document)
                else:
                    kept = None
                yield document
        self._kept = kept


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            column = len(line[: error.start].decode("utf-8")) + 1
            raise ManifestError(f"byte 0x{line[error.start]:02x} is not UTF-8", number, column) from error


def _parts(found: Iterable[Piece], items: YamlItems | None) -> Iterator[Document]:
    """The parts of a long List. `items`: the known shapes of those in YAML; None: it is JSON."""
    line, column = 1, 0
    numbers = itertools.count()
    for piece in found:
        made = Document(1, piece.text, line, items is None, column, False, piece.part, after=piece.after)
        if piece.part is ListPart.ITEM:
            made.place = ("items", next(numbers))
            made.reading = piece.reading
            if items is not None:
                made.learn = items.learn
                if (known := items.find(made.look)) is not None:
                    made.shape, made.value = known
        yield made
        whole = piece.text + piece.after
        line += whole.count("\n")
        column = len(whole) - whole.rfind("\n") - 1 if "\n" in whole else column + len(whole)


def split(lines: Iterator[str]) -> Iterator[Document]:
    """The documents of a text, given by its lines with their line breaks."""
    leading = list[str]()
    for line in lines:
        leading.append(line)
        if line.strip():
            break
    lines = itertools.chain(leading, lines)
    if leading and leading[-1].lstrip().startswith("{"):
        text = "".join(lines)
        parts = _json_parts(text)
        if parts is not None:
            yield from _json_documents(parts)
            return
        lines = iter(re.findall(r"[^\n]*\n|[^\n]+", text))
    number, at = 0, 1
    for part in _yaml_parts(lines):
        number += any(not _NO_CONTENT.fullmatch(each) for each in part)
        yield Document(number, "".join(part), at)
        at += len(part)


def _json_documents(parts: Iterable[str]) -> Iterator[Document]:
    line, column = 1, 0
    for number, part in enumerate(parts, start=1):
        yield Document(number, part, line, json=True, column=column)
        line += part.count("\n")
        column = len(part) - part.rfind("\n") - 1 if "\n" in part else column + len(part)


def _json_parts(text: str) -> list[str] | None:
    """The JSON objects of a text, each with the white space after it; None if the text is not JSON."""
    decoder = json.JSONDecoder()
    starts = []
    position = len(text) - len(text.lstrip(_JSON_SPACE))
    while position < len(text):
        starts.append(position)
        try:
            _, end = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError):
            return None
        position = len(text) - len(text[end:].lstrip(_JSON_SPACE))
    bounds = [0, *starts[1:], len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def _yaml_parts(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines of each document: it begins with its line `---`, or with the directives before that line."""
    part: list[str] = []
    directives = ended = False
    for line in lines:
        separator = line.startswith("---") and bool(_SEPARATOR.match(line))
        if part and (ended or (separator and not directives)):
            yield part
            part, directives = [], False
        if separator:
            directives = False
        elif line.startswith("%") and not any(map(_is_content, part)):
            directives = True
        ended = line.startswith("...") and bool(_END.match(line))
        part.append(line)
    if part:
        yield part


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#") and not line.startswith("%")


def _parse(document: Document) -> _Content:
    text = document.text
    mappings: list[Mapping_] = []
    repeated: Sequence[RepeatedKey] = ()
    try:
        root = compose(text, repeated=mappings)
        data = root and root.value
    except YamlError as error:
        if not (document.json and isinstance(error, YamlSyntaxError)):
            line, _ = _position(text, error.index)
            hint = "; render a template first" if "{{" in text.split("\n")[line - 1] else ""
            raise ManifestError(error.problem + hint, *document.position(error.index)) from error
        root, (data, repeated) = None, _json_data(document)
    if document.part is not None:
        data = _only_item(document, root)
    if data is not None and not isinstance(data, dict):
        problem = f"the document is a {_type_name(data)}, not a mapping with apiVersion and kind"
        raise ManifestError(problem, *document.position(root.start if root else 0))
    if root is not None and mappings:
        repeated = list(_repeated(document, root.items[0] if isinstance(root, Sequence_) else root))
    elif isinstance(root, Sequence_) and document.learn is not None:
        document.learn(document.text, document.look, root.items[0])
    return _Content(data, root, repeated)


def _only_item(document: Document, root: YamlNode | None) -> object:
    """The value of a part of a List: in YAML, its text is a sequence of one item."""
    if document.json:
        return root and root.value
    if not isinstance(root, Sequence_) or len(root.items) != 1 or not isinstance(root.items[0].value, dict):
        raise ManifestError("it is no item of a list", *document.position(0))
    return root.items[0].value


def _repeated(document: Document, root: YamlNode) -> Iterator[RepeatedKey]:
    """The keys of a document that stand twice, in the order of the text."""
    pending: list[tuple[YamlNode, tuple[str | int, ...]]] = [(root, ())]
    while pending:
        node, path = pending.pop()
        if isinstance(node, Mapping_):
            merged = [entry for entry in node.entries if entry.merge]
            last = {entry.name: entry for entry in node.entries}
            for each in sorted([*node.hidden, *merged[:-1]], key=lambda entry: entry.key.start):
                shown = last[each.name]
                lines = tuple(document.position(entry.key.start)[0] for entry in (each, shown))
                yield RepeatedKey(path, each.name, lines, each.node.value, shown.node.value)
            pending += [(entry.node, (*path, entry.name)) for entry in reversed(node.entries) if not entry.merge]
        elif isinstance(node, Sequence_):
            pending += [(item, (*path, index)) for index, item in reversed(list(enumerate(node.items)))]


def _json_data(document: Document) -> tuple[object, Sequence[RepeatedKey]]:
    """Parse JSON that is not valid YAML, such as escapes of characters above U+FFFF. Places of keys are not known."""
    repeated: list[RepeatedKey] = []

    def fault(problem: str) -> ManifestError:
        return ManifestError(problem, *document.position(0))

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) < len(pairs):
            last = {name: at for at, (name, _) in enumerate(pairs)}
            found = [(name, item) for at, (name, item) in enumerate(pairs) if last[name] != at]
            repeated.extend(RepeatedKey((), name, (), item, value[name]) for name, item in found)
        return value

    def constant(name: str) -> object:
        raise fault(f"{name} is not a JSON value")

    data = json.loads(
        document.text, object_pairs_hook=members, parse_int=resolve, parse_float=resolve, parse_constant=constant
    )
    try:
        # The limits of orjson apply to all later steps.
        orjson.dumps(data)
    except orjson.JSONEncodeError as error:
        raise fault(str(error)) from error
    return data, repeated


class _JsonPlaces:
    """Finds values in JSON. Each object or array is read once, as far as the places that are asked for."""

    def __init__(self, text: str, *, unique: bool) -> None:
        """`unique`: whether no key stands twice. Of two with one name, the last one counts."""
        self._text = text
        self._unique = unique
        self._members: dict[int, dict[str | int, tuple[int, int]]] = {}
        """Offset of an object or array -> key or index -> offset of the member, and of its value."""
        self._unread: dict[int, Iterator[tuple[str | int, tuple[int, int]]]] = {}
        """Offset of an object or array -> its other members."""

    def offset(self, path: Sequence[str | int]) -> int:
        """Offset of the nearest value on the way to a path: as `_locate`."""
        offset = at = _next_token(self._text, 0)
        for step in path:
            is_index = self._text.startswith("[", at) and str(step).isdecimal()
            found = self._member(at, int(step) if is_index else step)
            if found is None:
                break
            offset, at = found
        return offset

    def _member(self, at: int, name: str | int) -> tuple[int, int] | None:
        known = self._members.setdefault(at, {})
        unread = self._unread.setdefault(at, self._read(at))
        if name not in known or not self._unique:
            for each, found in unread:
                known[each] = found
                if each == name and self._unique:
                    break
        return known.get(name)

    def _read(self, at: int) -> Iterator[tuple[str | int, tuple[int, int]]]:
        """The members of a value; none if it is no object or array."""
        is_object = self._text.startswith("{", at)
        if not is_object and not self._text.startswith("[", at):
            return
        at = _next_token(self._text, at + 1)
        number = 0
        text = self._text
        while text[at] not in "}]":
            start, key = at, None
            if is_object:
                key, at = _decode(text, at)
                at = _next_token(text, at)
            yield number if key is None else key, (start, at)
            _, at = _decode(text, at)
            at = _next_token(text, at)
            number += 1


def _next_token(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _position(text: str, index: int) -> tuple[int, int]:
    """Line and column of an offset, counted from 1."""
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


def _type_name(value: object) -> str:
    match value:
        case list():
            return "list"
        case str():
            return "string"
        case bool():
            return "boolean"
        case _:
            return "number"


def _locate(root: YamlNode, path: Sequence[str | int]) -> int:
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
