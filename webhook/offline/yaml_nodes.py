"""YAML text to nodes that know what they mean and where they stand, so that a change can be made in the text itself.

libyaml does the parsing: kubectl's parser is a port of it, so both accept and refuse the same texts. (PyYAML's own
parser, in Python, refuses tabs in JSON and is 16 times slower.)
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from webhook.offline import yaml_scalars

MAX_DEPTH: Final = 200
"""Levels of nesting. No Kubernetes object comes near it, and JSON libraries give up not far above."""
MAX_VALUES: Final = 2_000_000
"""Values of one document with its aliases written out: some texts of a few lines would be billions of them."""

_MERGE: Final = "<<"
BLOCK_STYLES: Final = ("|", ">")
"""Of scalars that are written line by line."""


class YamlError(ValueError):
    """A text is not the YAML of an object.

    Attributes:
        index: where, as an offset into the text.
        problem: what is wrong there, as a clause.
    """

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index
        self.problem = problem


class YamlSyntaxError(YamlError):
    """It is no YAML at all; other faults are of YAML that no Kubernetes object can be."""


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """A node of one document.

    Attributes:
        start: offset of its first character; properties (`&anchor`, `!tag`) belong to it.
        end: offset behind its last character; comments and line breaks that follow do not belong to it.
        value: what it means, with aliases and merge keys resolved: JSON-like data. Shared between aliases, and never
            to be changed.
        anchor: its anchor's name, or "".
        weight: values that it would be, written out.
        refers: whether it is or holds an alias.
    """

    start: int
    end: int
    value: Any = None
    anchor: str = ""
    weight: int = 1
    refers: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class Scalar(Node):
    """A scalar. `style` is its quote or block indicator, empty for a plain one."""

    style: str = ""


@dataclasses.dataclass(slots=True, eq=False)
class Alias(Node):
    """An alias. `target` is the anchored node; never None once it is made."""

    target: Node = dataclasses.field(default_factory=lambda: Node(0, 0))


@dataclasses.dataclass(slots=True, eq=False)
class Sequence_(Node):  # noqa: N801 - `Sequence` is the abstract type
    """A sequence."""

    items: list[Node] = dataclasses.field(default_factory=list)
    flow: bool = False


@dataclasses.dataclass(slots=True, frozen=True)
class Entry:
    """A key with its value; `name` is the key as JSON has it, `<<` for a merge."""

    key: Node
    node: Node
    name: str
    merge: bool

    @property
    def end(self) -> int:
        """Offset behind its last character."""
        return max(self.key.end, self.node.end)


@dataclasses.dataclass(slots=True, eq=False)
class Mapping_(Node):  # noqa: N801
    """A mapping, with its entries in the order of the text."""

    entries: list[Entry] = dataclasses.field(default_factory=list)
    flow: bool = False


def compose(text: str) -> Node | None:
    """Read one document; None where there is nothing but comments.

    Args:
        text: without characters that YAML does not allow.

    Raises:
        YamlError: it is not YAML, nests too deeply, has a key twice, or holds a second document.
    """
    composer = _Composer(text)
    try:
        for event in yaml.parse(text, Loader=yaml.CLoader):
            composer.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.problem, error.context)))
        raise YamlSyntaxError(mark.index if mark else 0, problem) from error
    return composer.root


class _Composer:
    """Builds nodes out of parser events, without recursion."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._open: list[Mapping_ | Sequence_] = []
        self._keys: list[Node | None] = []
        self._anchors: dict[str, Node] = {}
        self._documents = 0
        self.root: Node | None = None

    def take(self, event: Any) -> None:
        """Take the next event."""
        start, end = event.start_mark.index, event.end_mark.index
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise YamlError(start, "a second document begins here without a line '---'")
            case yaml.ScalarEvent():
                self._place(self._scalar(event, start, end), event.anchor)
            case yaml.AliasEvent():
                self._place(self._alias(str(event.anchor), start, end), None)
            case yaml.MappingStartEvent():
                self._enter(Mapping_(start, end, flow=bool(event.flow_style)), event.anchor)
            case yaml.SequenceStartEvent():
                self._enter(Sequence_(start, end, flow=bool(event.flow_style)), event.anchor)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._leave(end)

    def _scalar(self, event: Any, start: int, end: int) -> Scalar:
        style = event.style or ""
        if style in BLOCK_STYLES:
            end = start + len(_block_scalar(self._text[start:end]))
        try:
            if event.tag is not None and event.tag != "!":
                value = yaml_scalars.resolve_tagged(event.tag, event.value)
            else:
                value = yaml_scalars.resolve(event.value) if event.implicit[0] else event.value
        except ValueError as error:
            raise YamlError(start, str(error)) from error
        return Scalar(start, end, value, style=style)

    def _alias(self, anchor: str, start: int, end: int) -> Alias:
        target = self._anchors.get(anchor)
        if target is None:
            raise YamlError(start, f"alias *{anchor} has no anchor &{anchor} before it")
        if target in self._open:
            raise YamlError(start, f"alias *{anchor} is inside of what it stands for")
        return Alias(start, end, target.value, weight=target.weight, refers=True, target=target)

    def _enter(self, node: Mapping_ | Sequence_, anchor: str | None) -> None:
        if len(self._open) == MAX_DEPTH:
            raise YamlError(node.start, f"nests more than {MAX_DEPTH} levels deep")
        if anchor:
            node.anchor = anchor
            self._anchors[anchor] = node
        self._open.append(node)
        self._keys.append(None)

    def _leave(self, end: int) -> None:
        node = self._open.pop()
        self._keys.pop()
        children: list[Node]
        if isinstance(node, Mapping_):
            children = [part for entry in node.entries for part in (entry.key, entry.node)]
            node.value = _merged(node)
        else:
            children = node.items
            node.value = [item.value for item in children]
        if node.flow:
            node.end = end
        else:
            node.end = max([child.end for child in children], default=node.start)
        node.weight = 1 + sum(child.weight for child in children)
        node.refers = any(child.refers for child in children)
        if node.weight > MAX_VALUES:
            raise YamlError(node.start, f"is more than {MAX_VALUES:,} values with its aliases written out")
        self._place(node, None)

    def _place(self, node: Node, anchor: str | None) -> None:
        """Give a finished node to its parent."""
        if anchor:
            node.anchor = anchor
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent, Sequence_):
            parent.items.append(node)
        elif self._keys[-1] is None:
            self._keys[-1] = node
        else:
            parent.entries.append(_entry(self._keys[-1], node))
            self._keys[-1] = None


def _block_scalar(text: str) -> str:
    """A block scalar without the line breaks behind it: the parser lets it end where the next token begins."""
    header = text.splitlines()[0].partition("#")[0]
    if "+" in header:
        return text.removesuffix("\n").removesuffix("\r")
    return text.rstrip()


def _entry(key: Node, node: Node) -> Entry:
    if isinstance(key, Mapping_ | Sequence_) or isinstance(key.value, dict | list):
        raise YamlError(key.start, "a key must be a string, a number or a boolean")
    if isinstance(key, Scalar) and key.value == _MERGE and not key.style:
        return Entry(key, node, _MERGE, merge=True)
    try:
        return Entry(key, node, yaml_scalars.key_text(key.value), merge=False)
    except ValueError as error:
        raise YamlError(key.start, str(error)) from error


def _merged(node: Mapping_) -> dict[str, Any]:
    """The mapping that a node means: its own entries win over merged ones, and the first merged over the later."""
    value: dict[str, Any] = {}
    seen: set[tuple[str, bool]] = set()
    for entry in node.entries:
        if (entry.name, entry.merge) in seen:
            raise YamlError(entry.key.start, f"the key {entry.name!r} is there twice")
        seen.add((entry.name, entry.merge))
        if not entry.merge:
            value[entry.name] = entry.node.value
    for entry in node.entries:
        if entry.merge:
            for source in merge_sources(entry):
                value = {**value, **{name: item for name, item in source.value.items() if name not in value}}
    return value


def merge_sources(entry: Entry) -> Sequence[Node]:
    """The mappings that a merge entry takes in.

    Raises:
        YamlError: they are no mappings.
    """
    target = entry.node.target if isinstance(entry.node, Alias) else entry.node
    sources = target.items if isinstance(target, Sequence_) else [entry.node]
    for source in sources:
        if not isinstance(source.value, dict):
            raise YamlError(source.start, "a merge key '<<' takes a mapping or a list of mappings")
    return sources


def anchored(node: Node) -> Iterator[Node]:
    """The nodes with an anchor in a subtree, itself included; what is behind its aliases is elsewhere."""
    return (each for each in _walk(node) if each.anchor)


def aliases(node: Node) -> Iterator[Alias]:
    """The aliases in a subtree."""
    return (each for each in _walk(node) if isinstance(each, Alias))


def _walk(node: Node) -> Iterator[Node]:
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        if isinstance(current, Mapping_):
            pending += [part for entry in current.entries for part in (entry.key, entry.node)]
        elif isinstance(current, Sequence_):
            pending += current.items
