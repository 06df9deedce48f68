"""The YAML reader: text to nodes with values and offsets, so that messages have lines and a text can be edited.

libyaml parses. kubectl's parser is a port of it, so both accept the same texts. (PyYAML's own parser, in Python,
refuses tabs in JSON and is 16 times slower.)

Scalars have the values that kubectl reads. It uses sigs.k8s.io/yaml, which follows go-yaml v2 (`resolve.go`): YAML 1.1
with `yes` and `on`, also octals as `0o17`, no base 60, and times as strings. YAML libraries of Python follow other
rules: kubectl would read a name that they write as `y` as `true`.
"""

import base64
import binascii
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

import yaml

MAX_DEPTH: Final = 200
MAX_VALUES: Final = 2_000_000

_MERGE: Final = "<<"
BLOCK_STYLES: Final = ("|", ">")
"""Styles of block scalars."""
UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufeff\uff00-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML does not allow."""


@dataclasses.dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Bounds of one document.

    Attributes:
        depth: levels of nesting. No Kubernetes object comes near 200, and JSON libraries fail not far above.
        values: without keys, aliases expanded: a few lines of aliases may stand for billions of values.
    """

    depth: int = MAX_DEPTH
    values: int = MAX_VALUES


_LIMITS: Final = DocumentLimits()


class YamlError(ValueError):
    """A text is not valid for a Kubernetes object.

    Attributes:
        index: offset of the error in the text.
        problem: the error, as a clause.
    """

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index
        self.problem = problem


class YamlSyntaxError(YamlError):
    """The text is not YAML."""


class YamlKeyTwiceError(YamlError):
    """A mapping has a key twice.

    Attributes:
        key: as in JSON.
    """

    def __init__(self, index: int, key: str) -> None:
        super().__init__(index, f"the key {key!r} is there twice: remove one; kubectl uses the last one")
        self.key = key


class YamlScalarError(YamlError):
    """A scalar has no value of its type."""

    def __init__(self, index: int, problem: str, text: str) -> None:
        super().__init__(index, problem)
        self.text = text


@dataclasses.dataclass(slots=True, eq=False)
class YamlNode:
    """A node of one document.

    Attributes:
        start: offset of its first character, including properties (`&anchor`, `!tag`).
        end: offset after its last character, without following comments and line breaks.
        value: JSON-like data, with aliases and merge keys resolved. Aliases share it, so callers must not change it.
        anchor: name of its anchor, or "".
        weight: number of values, aliases expanded.
        refers: whether it is or contains an alias.
    """

    start: int
    end: int
    value: Any = None
    anchor: str = ""
    weight: int = 1
    refers: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Scalar(YamlNode):
    """A scalar.

    Attributes:
        style: quote or block indicator; empty for a plain scalar.
        text: before it is resolved to a value.
        tag: explicit tag, or "".
    """

    style: str = ""
    text: str = ""
    tag: str = ""


@dataclasses.dataclass(slots=True, eq=False)
class Alias(YamlNode):
    """An alias. `target` is the anchored node, which is never an alias."""

    target: YamlNode = dataclasses.field(default_factory=lambda: YamlNode(0, 0))


@dataclasses.dataclass(slots=True, eq=False)
class Sequence_(YamlNode):  # noqa: N801 - `Sequence` is the abstract type
    """A sequence."""

    items: list[YamlNode] = dataclasses.field(default_factory=list)
    flow: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class MappingEntry:
    """A key with its value; `name` is the key as in JSON, `<<` for a merge."""

    key: YamlNode
    node: YamlNode
    name: str
    merge: bool

    @property
    def end(self) -> int:
        """Offset after its last character."""
        return max(self.key.end, self.node.end)


@dataclasses.dataclass(slots=True, eq=False)
class Mapping_(YamlNode):  # noqa: N801
    """A mapping, with its entries in the order of the text.

    Attributes:
        hidden: entries whose key stands again below, so that they do not count.
    """

    entries: list[MappingEntry] = dataclasses.field(default_factory=list)
    flow: bool = False
    hidden: list[MappingEntry] = dataclasses.field(default_factory=list)

    @property
    def written(self) -> list[MappingEntry]:
        """All entries, in the order of the text."""
        return sorted([*self.entries, *self.hidden], key=lambda each: each.key.start) if self.hidden else self.entries


def compose(text: str, *, repeated: list[Mapping_] | None = None) -> YamlNode | None:
    """Read one document; None if there are only comments.

    Args:
        repeated: receives the mappings that have a key twice; the last value counts, as for kubectl. None: a key that
            stands twice is an error.

    Raises:
        YamlError: it is not YAML, exceeds a limit, has a key twice, or contains a second document.
    """
    composer = _Composer(text, _LIMITS, repeated)
    for event in _events(text):
        composer.take(event)
    return composer.root


def compose_all(text: str, limits: DocumentLimits = _LIMITS) -> Iterator[YamlNode]:
    """Read the documents of a text one by one.

    Raises:
        YamlError: see `compose`.
    """
    composer = _Composer(text, limits)
    for event in _events(text):
        if isinstance(event, yaml.DocumentStartEvent):
            composer = _Composer(text, limits)
        composer.take(event)
        if isinstance(event, yaml.DocumentEndEvent) and composer.root is not None:
            yield composer.root


def _events(text: str) -> Iterator[object]:
    unprintable = UNPRINTABLE.search(text)
    if unprintable:
        raise YamlSyntaxError(unprintable.start(), f"the character {unprintable[0]!r} is not allowed")
    loader = yaml.CLoader(text)
    try:
        while (event := loader.get_event()) is not None:
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.problem, error.context)))
        raise YamlSyntaxError(mark.index if mark else 0, problem) from error
    finally:
        loader.dispose()


class _Composer:
    """Builds nodes out of parser events, without recursion."""

    def __init__(self, text: str, limits: DocumentLimits, repeated: list[Mapping_] | None = None) -> None:
        self._text = text
        self._limits = limits
        self._repeated = repeated
        self._values = 0
        self._open: list[Mapping_ | Sequence_] = []
        self._keys: list[YamlNode | None] = []
        self._anchors: dict[str, YamlNode] = {}
        self._documents = 0
        self.root: YamlNode | None = None

    def take(self, event: Any) -> None:
        # By type and not with `match`: this runs for every value of every file.
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._place(self._scalar(event), event.anchor)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            self._leave(event.end_mark.index)
        elif kind is yaml.MappingStartEvent:
            self._enter(
                Mapping_(event.start_mark.index, event.end_mark.index, flow=bool(event.flow_style)), event.anchor
            )
        elif kind is yaml.SequenceStartEvent:
            sequence = Sequence_(event.start_mark.index, event.end_mark.index, flow=bool(event.flow_style))
            self._enter(sequence, event.anchor)
        elif kind is yaml.AliasEvent:
            self._place(self._alias(str(event.anchor), event.start_mark.index, event.end_mark.index), None)
        elif kind is yaml.DocumentStartEvent:
            self._documents += 1
            if self._documents > 1:
                raise YamlError(event.start_mark.index, "a second document begins here without a line '---'")

    def _scalar(self, event: Any) -> Scalar:
        start, end, style = event.start_mark.index, event.end_mark.index, event.style or ""
        text, tag = event.value, event.tag
        if style in BLOCK_STYLES:
            end = start + len(_block_scalar(self._text[start:end]))
        try:
            if tag is not None and tag != "!":
                value = resolve_tagged(tag, text)
            else:
                value = resolve(text) if event.implicit[0] else text
        except ValueError as error:
            raise YamlScalarError(start, str(error), text) from error
        return Scalar(start, end, value, "", 1, False, style, text, tag or "")

    def _alias(self, anchor: str, start: int, end: int) -> Alias:
        target = self._anchors.get(anchor)
        if target is None:
            raise YamlError(start, f"alias *{anchor} has no anchor &{anchor} before it")
        if target in self._open:
            raise YamlError(start, f"alias *{anchor} is inside its own anchor")
        return Alias(start, end, target.value, weight=target.weight, refers=True, target=target)

    def _enter(self, node: Mapping_ | Sequence_, anchor: str | None) -> None:
        if len(self._open) == self._limits.depth:
            raise YamlError(node.start, f"values are nested deeper than {self._limits.depth} levels")
        if anchor:
            node.anchor = anchor
            self._anchors[anchor] = node
        self._open.append(node)
        self._keys.append(None)

    def _leave(self, end: int) -> None:
        node = self._open.pop()
        self._keys.pop()
        last, weight, refers = node.start, 1, False
        if isinstance(node, Mapping_):
            for entry in node.entries:
                key, child = entry.key, entry.node
                last = max(last, key.end, child.end)
                weight += child.weight
                refers = refers or key.refers or child.refers
            node.value = self._merged(node)
        else:
            for child in node.items:
                last = max(last, child.end)
                weight += child.weight
                refers = refers or child.refers
            node.value = [item.value for item in node.items]
        node.end = end if node.flow else last
        node.weight = weight
        node.refers = refers
        if weight > self._limits.values:
            self._too_many(node)
        self._place(node, None)

    def _merged(self, node: Mapping_) -> dict[str, object]:
        """The value of a mapping; keys that stand twice are refused or noted."""
        value = {entry.name: entry.node.value for entry in node.entries if not entry.merge}
        if len(value) == len(node.entries):
            return value
        if len({(entry.name, entry.merge) for entry in node.entries}) == len(node.entries):
            return _value_of(node)
        if self._repeated is None:
            raise _twice(node)
        last = {entry.name: entry for entry in node.entries if not entry.merge}
        shown = [entry for entry in node.entries if entry.merge or last[entry.name] is entry]
        node.hidden = [entry for entry in node.entries if not entry.merge and last[entry.name] is not entry]
        node.entries = shown
        self._repeated.append(node)
        return _value_of(node)

    def _too_many(self, node: YamlNode) -> NoReturn:
        raise YamlError(node.start, f"it has more than {self._limits.values:,} values, aliases expanded")

    def _place(self, node: YamlNode, anchor: str | None) -> None:
        if anchor:
            node.anchor = anchor
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent, Sequence_):
            parent.items.append(node)
            self._values += 1
        elif self._keys[-1] is None:
            self._keys[-1] = node
        else:
            parent.entries.append(_entry(self._keys[-1], node))
            self._keys[-1] = None
            self._values += 1
        if self._values > self._limits.values:
            self._too_many(node)


def _block_scalar(text: str) -> str:
    """A block scalar without the line breaks after it: for the parser it ends where the next token begins."""
    header = text.splitlines()[0].partition("#")[0]
    if "+" in header:
        return text.removesuffix("\n").removesuffix("\r")
    return text.rstrip()


def _entry(key: YamlNode, node: YamlNode) -> MappingEntry:
    if isinstance(key, Scalar) and type(key.value) is str and key.value != _MERGE:
        return MappingEntry(key, node, key.value, False)
    if isinstance(key, Mapping_ | Sequence_) or isinstance(key.value, dict | list):
        raise YamlError(key.start, "a key must be a string, a number or a boolean")
    if isinstance(key, Scalar) and key.value == _MERGE and not key.style:
        return MappingEntry(key, node, _MERGE, merge=True)
    try:
        return MappingEntry(key, node, key_text(key.value), merge=False)
    except ValueError as error:
        raise YamlError(key.start, str(error)) from error


def _value_of(node: Mapping_) -> dict[str, object]:
    """The value of a mapping, read in the order of its text, as kubectl's parser does: the last value of a key counts.

    So a merge key wins over the members before it. Of the mappings that one merge key names, the first wins.
    """
    value: dict[str, object] = {}
    for entry in node.entries:
        if entry.merge:
            for source in reversed(merge_sources(entry)):
                value.update(source.value)
        else:
            value[entry.name] = entry.node.value
    return value


def _twice(node: Mapping_) -> YamlKeyTwiceError:
    seen: set[tuple[str, bool]] = set()
    for entry in node.entries:
        if (entry.name, entry.merge) in seen:
            break
        seen.add((entry.name, entry.merge))
    return YamlKeyTwiceError(entry.key.start, entry.name)


def merge_sources(entry: MappingEntry) -> Sequence[YamlNode]:
    """The mappings that a merge key merges.

    Raises:
        YamlError: one is not a mapping.
    """
    target = entry.node.target if isinstance(entry.node, Alias) else entry.node
    sources = target.items if isinstance(target, Sequence_) else [entry.node]
    for source in sources:
        if not isinstance(source.value, dict):
            raise YamlError(source.start, "a merge key '<<' takes a mapping or a list of mappings")
    return sources


def anchored(node: YamlNode) -> Iterator[YamlNode]:
    """The nodes with an anchor in a subtree, including its root; aliases are not followed."""
    return (each for each in _walk(node) if each.anchor)


def aliases(node: YamlNode) -> Iterator[Alias]:
    return (each for each in _walk(node) if isinstance(each, Alias))


def _walk(node: YamlNode) -> Iterator[YamlNode]:
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        if isinstance(current, Mapping_):
            pending += [part for entry in current.entries for part in (entry.key, entry.node)]
        elif isinstance(current, Sequence_):
            pending += current.items


# --- scalars --------------------------------------------------------------------------------------------------

TAG_PREFIX: Final = "tag:yaml.org,2002:"

_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NOT_JSON: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER: Final = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|0[bB]([01]+)|([1-9][0-9]*|0))", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_BASES: Final = (16, 8, 2, 10)
_LONGEST_INTEGER: Final = 400
"""Characters. A longer number exceeds every float, and Python parses it in quadratic time."""
_TYPES: Final = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}

_PLAIN: Final = re.compile(r"[A-Za-z_/][-A-Za-z0-9_./]*", re.ASCII)
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def is_word(text: str) -> bool:
    """Whether a plain scalar is null or a boolean by its word."""
    return text in _WORDS


def resolve(text: str) -> object:
    """The value of a plain scalar.

    Raises:
        ValueError: it is `.inf` or `.nan`, which JSON does not have.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] == ".":
        if _NOT_JSON.fullmatch(text):
            raise ValueError(f"{text} is not a JSON value")
        return _float(text)
    if text[0] not in "+-0123456789":
        return text
    if _NOT_JSON.fullmatch(text):
        raise ValueError(f"{text} is not a JSON value")
    digits = text.replace("_", "")
    integer = _INTEGER.fullmatch(digits)
    if integer and len(digits) <= _LONGEST_INTEGER:
        sign, *forms = integer.groups()
        number = next(int(form, base) for form, base in zip(forms, _BASES, strict=True) if form)
        if number < 1 << (63 if sign else 64):
            return -number if sign == "-" else number
    value = _float(digits)
    return text if value is digits else value


def _float(text: str) -> int | float | str:
    """A number as in JSON: without a fraction it is an integer."""
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if math.isinf(number):
        return text
    return int(number) if number.is_integer() and abs(number) < 1 << 63 else number


def resolve_tagged(tag: str, text: str) -> object:
    """The value of a scalar with a tag; with a tag that kubectl does not know, a string.

    Raises:
        ValueError: the text is not a value of that tag.
    """
    name = tag.removeprefix(TAG_PREFIX) if tag.startswith(TAG_PREFIX) else ""
    if name == "binary":
        try:
            return base64.b64decode(text, validate=False).decode("utf-8", "replace")
        except binascii.Error as error:
            raise ValueError(f"!!binary {text[:32]!r} is not base64") from error
    if name not in _TYPES:
        return text
    value = resolve(text)
    if isinstance(value, _TYPES[name]):
        return value
    raise ValueError(f"{text[:32]!r} is no !!{name}")


def key_text(value: object) -> str:
    """A mapping key as in JSON.

    Raises:
        ValueError: it is null, a list or a mapping.
    """
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case _:
            raise ValueError("a key must be a string, a number or a boolean")


def write_string(text: str, quote: str = "") -> str:
    """A string in YAML, on one line: plain if every reader reads it as a string, else quoted.

    Args:
        quote: preferred quote, `'` or `"`.
    """
    if not quote and _PLAIN.fullmatch(text) and text not in _WORDS:
        return text
    prefers_single = quote == "'" or ('"' in text and quote != '"')
    if prefers_single and "'" not in text and text.isprintable():
        return f"'{text}'"
    return escape_unprintable(json.dumps(text, ensure_ascii=False))


def escape_unprintable(text: str) -> str:
    """Escape the characters that YAML allows only as escapes."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def write_scalar(value: object, quote: str = "") -> str:
    """A scalar in YAML, on one line."""
    return write_string(value, quote) if isinstance(value, str) else json.dumps(value)
