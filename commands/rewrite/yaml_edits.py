"""Edits a YAML document in its text: unchanged parts keep their bytes, comments and quotes.

Nodes are compared with the wanted data, and only differences are written. A changed collection in flow style is
rewritten as a whole, in place. An alias or a merge key is replaced by its value where that is no longer the value of
its anchor, and stays elsewhere. The result is parsed again, so that a text with another value is never returned.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Final

import orjson

from commands.objects.text_edits import (
    OverlapError,
    Splice,
    TextLayout,
    apply,
    column,
    flow,
    line_end,
    line_start,
    next_line,
)
from runtime.yaml_nodes import (
    BLOCK_STYLES,
    Alias,
    Mapping_,
    MappingEntry,
    Scalar,
    Sequence_,
    YamlError,
    YamlNode,
    aliases,
    anchored,
    compose,
    write_scalar,
    write_string,
)

_SORTED: Final = orjson.OPT_SORT_KEYS


class EditError(ValueError):
    """The text cannot be edited in place; the document must be rewritten."""


def edit(text: str, root: YamlNode, wanted: object) -> list[Splice]:
    """The splices that change the value of a document to `wanted`.

    Args:
        root: `compose(text)`. Of a mapping that changes, entries that do not count are removed.
        wanted: JSON-like data.

    Raises:
        EditError: the document must be rewritten.
    """
    editor = _Editor(text, root)
    editor.change(root, wanted, _ROOT)
    editor.expand()
    editor.finish()
    try:
        edited = compose(apply(text, editor.splices), repeated=[])
    except (YamlError, OverlapError) as error:
        raise EditError(str(error)) from error
    if edited is None or not _same(edited.value, wanted):
        raise EditError("the edited text has another value")
    return editor.splices


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """The place of a node.

    Attributes:
        at: column of its key or dash.
        behind: offset after the colon or dash before it.
        kind: `root`, `member` of a block mapping, `item` of a block sequence, or `flow`.
    """

    at: int
    behind: int
    kind: str


_ROOT: Final = _Place(0, 0, "root")
_IN_FLOW: Final = _Place(0, 0, "flow")


class _Editor:
    """One pass over a document."""

    def __init__(self, text: str, root: YamlNode) -> None:
        self._text = text
        self._root = root
        self._layout = TextLayout.of(text, root)
        self._used = {id(alias.target) for alias in aliases(root)}
        self._anchored: dict[int, object] = {}
        """Anchored node that is changed in place -> its new value."""
        self._gone: set[int] = set()
        """Anchored nodes whose text is removed."""
        self._aliased: dict[int, object] = {}
        """Alias whose value changes -> the new value."""
        self._merged: dict[int, dict[str, object]] = {}
        """Mapping of which merged members change -> what they become."""
        self._extended = False
        self.splices: list[Splice] = []

    def change(self, node: YamlNode, wanted: object, place: _Place) -> None:
        """Change the value of a node to `wanted`.

        Raises:
            EditError: the document must be rewritten.
        """
        if _same(node.value, wanted):
            return
        if isinstance(node, Alias):
            self._aliased[id(node)] = wanted
            return
        if id(node) in self._used:
            self._anchored[id(node)] = wanted
        match node, wanted:
            case (Mapping_(flow=True, entries=[_, *_]), dict()) | (Sequence_(flow=True, items=[_, *_]), list()):
                self._drop(node)
                self._splice(node.start, node.end, self._flow(node, wanted))
            case Mapping_(), dict() if node.entries and wanted:
                self._change_mapping(node, wanted, place)
            case Sequence_(), list() if node.items and wanted:
                self._change_sequence(node, wanted, place)
            case _:
                self._replace(node, wanted, place)

    def _splice(self, start: int, end: int, text: str) -> None:
        self.splices.append(Splice(start, end, text))

    def _drop(self, *nodes: YamlNode) -> None:
        """Note that the text of nodes is removed, with its anchors."""
        self._gone |= {id(found) for node in nodes for found in anchored(node) if id(found) in self._used}

    # --- mappings -------------------------------------------------------------------------------------------

    def _change_mapping(self, node: Mapping_, wanted: dict[str, object], place: _Place) -> None:
        kept = [entry for entry in node.entries if entry.merge or entry.name in wanted]
        several = sum(entry.merge for entry in node.entries) > 1
        if not kept or several or any(self._is_explicit(entry) for entry in node.written):
            self._replace(node, wanted, place)
            return
        merged = _merged_members(node)
        if any(name not in wanted or not _same(value, wanted[name]) for name, value in merged.items()):
            self._merged[id(node)] = {name: wanted[name] for name in merged if name in wanted}
        if self._nest(node, wanted):
            return
        for entry in kept:
            if not entry.merge:
                self.change(entry.node, wanted[entry.name], self._member_place(entry))
        self._drop(*(part for entry in node.written if entry not in kept for part in (entry.key, entry.node)))
        self._remove_members(node, kept)
        own = {entry.name for entry in node.entries if not entry.merge}
        added = {name: value for name, value in wanted.items() if name not in own and name not in merged}
        leading = set(itertools.takewhile(added.__contains__, wanted))
        self._add_members(node, kept, {name: value for name, value in added.items() if name in leading}, front=True)
        self._add_members(node, kept, {name: value for name, value in added.items() if name not in leading})

    def _nest(self, node: Mapping_, wanted: dict[str, object]) -> bool:
        """Move members with their comments into one new mapping, if that is the whole change. Returns whether it is."""
        if node.hidden or any(entry.merge for entry in node.entries):
            return False
        own = {entry.name: entry.node.value for entry in node.entries}
        added = [name for name in wanted if name not in own]
        moved = {name: value for name, value in own.items() if name not in wanted}
        if len(added) != 1 or not moved or not _same(wanted[added[0]], moved):
            return False
        if not all(_same(own[name], wanted[name]) for name in wanted if name in own):
            return False
        start, newline = node.entries[0].key.start, self._layout.newline
        lines: list[str] = []
        place = -1
        inner: list[str] = []
        for entry, block in zip(node.entries, self._blocks(node), strict=True):
            if entry.name in moved:
                place = len(lines) if place < 0 else place
                inner += [" " * self._layout.indent + line if line else line for line in block]
            else:
                lines += block
        at = column(self._text, start)
        lines[place:place] = [f"{' ' * at}{write_string(added[0])}:", *inner]
        end = self._end_with_comments(node)
        ended = self._text[start:end].endswith("\n")
        self._splice(start, end, newline.join(lines)[at:] + (newline if ended else ""))
        return True

    def _blocks(self, node: Mapping_) -> list[list[str]]:
        """The lines of each entry of a block mapping, with the comments before it and behind the last one."""
        text, start = self._text, node.entries[0].key.start
        ends = [next_line(text, entry.end) for entry in node.entries[:-1]] + [self._end_with_comments(node)]
        parts = [text[begin:end] for begin, end in itertools.pairwise([start, *ends])]
        parts[0] = " " * column(text, start) + parts[0]
        return [[line.rstrip("\r") for line in part.removesuffix("\n").split("\n")] for part in parts]

    def _end_with_comments(self, node: Mapping_) -> int:
        """The offset after a block mapping and the comments below it that are indented like its keys."""
        text, at = self._text, column(self._text, node.entries[0].key.start)
        end = position = next_line(text, node.entries[-1].end)
        while position < len(text):
            behind = next_line(text, position)
            line = text[position:behind]
            content = line.strip()
            if content and not (content.startswith("#") and len(line) - len(line.lstrip(" ")) >= at):
                break
            position = behind
            end = behind if content else end
        return end

    def _is_explicit(self, entry: MappingEntry) -> bool:
        """Whether a key is introduced by `?`."""
        return self._text[line_start(self._text, entry.key.start) : entry.key.start].rstrip().endswith("?")

    def _member_place(self, entry: MappingEntry) -> _Place:
        return _Place(column(self._text, entry.key.start), self._text.index(":", entry.key.end) + 1, "member")

    def _remove_members(self, node: Mapping_, kept: Sequence[MappingEntry]) -> None:
        text = self._text
        removed = [entry for entry in node.written if entry not in kept]
        first = node.written[0]
        if first in removed and self._shares_line(first.key.start):
            # This mapping is a list item: its dash stays, and the next member moves after it.
            until = kept[0].key.start
            moved = [entry for entry in removed if entry.key.start < until]
            behind = next_line(text, moved[-1].end)
            if "#" in text[behind:until]:
                dash = len(text[: first.key.start].rstrip(" "))
                self._splice(dash, line_end(text, moved[-1].end), "")
            else:
                self._splice(first.key.start, until, "")
            removed = removed[len(moved) :]
        for entry in removed:
            self._splice(line_start(text, entry.key.start), next_line(text, entry.end), "")

    def _add_members(
        self, node: Mapping_, kept: Sequence[MappingEntry], added: dict[str, object], *, front: bool = False
    ) -> None:
        if not added:
            return
        at = column(self._text, node.written[0].key.start)
        lines = self._layout.join(self._layout.members(added, at))
        if front:
            first = kept[0].key.start
            self._splice(first, first, f"{lines.lstrip(' ')}{self._layout.newline}{' ' * at}")
        else:
            self._insert_lines(kept[-1].end, lines)

    def _shares_line(self, offset: int) -> bool:
        return bool(self._text[line_start(self._text, offset) : offset].strip())

    def _insert_lines(self, behind: int, lines: str) -> None:
        """Insert lines after the line of an offset."""
        at = next_line(self._text, behind)
        unended = at == len(self._text) and not self._text.endswith("\n")
        self._splice(at, at, (self._layout.newline if unended else "") + lines + self._layout.newline)
        self._extended = self._extended or unended

    # --- aliases --------------------------------------------------------------------------------------------

    def expand(self) -> None:
        """Write the value of each alias and merge key that is no longer the value of its anchor.

        Raises:
            EditError: a merge key has nothing left to merge, or is in flow style.
        """
        if not (self._anchored or self._gone or self._aliased or self._merged):
            return
        replaced = sorted((each.start, each.end) for each in self.splices if each.end > each.start)
        waiting: list[tuple[YamlNode, _Place]] = [(self._root, _ROOT)]
        while waiting:
            node, place = waiting.pop()
            if isinstance(node, Alias):
                if self._is_stale(node) and not _is_inside(node.start, replaced):
                    wanted = self._aliased.get(id(node), node.value)
                    if place is _IN_FLOW:
                        self._splice(node.start, node.end, flow(wanted))
                    else:
                        self._replace(node, wanted, place)
            elif isinstance(node, Mapping_):
                self._expand_merge(node, replaced)
                waiting += [
                    (each.node, _IN_FLOW if node.flow else self._member_place(each))
                    for each in node.entries
                    if not each.merge
                ]
            elif isinstance(node, Sequence_) and node.items:
                dashes = [] if node.flow else self._dashes(node)
                waiting += (
                    (item, _Place(column(self._text, dashes[0]), dashes[at] + 1, "item") if dashes else _IN_FLOW)
                    for at, item in enumerate(node.items)
                )

    def _is_stale(self, alias: Alias) -> bool:
        """Whether the anchor no longer has the value that the alias must have."""
        target = id(alias.target)
        wanted = self._aliased.get(id(alias), alias.value)
        return target in self._gone or not _same(self._anchored.get(target, alias.value), wanted)

    def _expand_merge(self, node: Mapping_, replaced: Sequence[tuple[int, int]]) -> None:
        for entry in node.entries:
            stale = entry.merge and (id(node) in self._merged or any(map(self._is_stale, aliases(entry.node))))
            if not stale or _is_inside(entry.key.start, replaced):
                continue
            members = self._merged.get(id(node), _merged_members(node))
            if node.flow or not members or sum(each.merge for each in node.entries) > 1:
                raise EditError("a merge key cannot be replaced by its members")
            lines = self._layout.join(self._layout.members(members, column(self._text, entry.key.start)))
            self._splice(entry.key.start, entry.end, lines.lstrip(" "))

    def finish(self) -> None:
        """Keep the value of a block scalar at the end of a text without a line break, if lines were added after it."""
        last = _last_leaf(self._root)
        if not self._extended or not isinstance(last, Scalar) or last.style not in BLOCK_STYLES:
            return
        if all(splice.end <= last.start or splice.start >= last.end for splice in self.splices):
            # The block scalar had no line break at its end; the indicator `-` keeps it so.
            indicator = self._text.index(last.style, last.start) + 1
            self._splice(indicator, indicator + self._text.startswith(("+", "-"), indicator), "-")

    # --- sequences ------------------------------------------------------------------------------------------

    def _change_sequence(self, node: Sequence_, wanted: list[object], place: _Place) -> None:
        pairs: list[tuple[int, int]] = []
        for index, item in enumerate(node.items):
            position = len(pairs)
            spare = len(node.items) - index > len(wanted) - position
            if position < len(wanted) and (not spare or _same(item.value, wanted[position])):
                pairs.append((index, position))
        kept = {index for index, _ in pairs}
        dashes = self._dashes(node)
        if not kept or (len(kept) < len(node.items) and self._shares_line(dashes[0])):
            self._replace(node, wanted, place)
            return
        for index, position in pairs:
            item_place = _Place(column(self._text, dashes[0]), dashes[index] + 1, "item")
            self.change(node.items[index], wanted[position], item_place)
        self._drop(*(item for index, item in enumerate(node.items) if index not in kept))
        added = wanted[len(pairs) :]
        last = node.items[max(kept)]
        for index, item in enumerate(node.items):
            if index not in kept:
                end = max(item.end, dashes[index] + 1)
                self._splice(line_start(self._text, dashes[index]), next_line(self._text, end), "")
        if added:
            lines = self._layout.join(self._layout.block(added, column(self._text, dashes[0])))
            self._insert_lines(max(last.end, dashes[max(kept)] + 1), lines)

    def _dashes(self, node: Sequence_) -> list[int]:
        """Offsets of the dashes of a block sequence."""
        dashes: list[int] = []
        position = node.start
        for item in node.items:
            while not self._text.startswith("-", position):
                if position >= item.start:
                    raise EditError(f"no dash before offset {item.start}")
                position = self._skip(position)
            dashes.append(position)
            position = max(item.end, position + 1)
        return dashes

    def _skip(self, position: int) -> int:
        """The offset after a comment, a property or a space."""
        match self._text[position]:
            case "#":
                return next_line(self._text, position)
            case "&" | "!":
                return position + len(self._text[position:].split(maxsplit=1)[0])
            case _:
                return position + 1

    def _flow(self, node: YamlNode, wanted: object) -> str:
        """A node of a flow collection on one line; unchanged parts keep their text."""
        text = self._text
        match node, wanted:
            case _ if _same(node.value, wanted):
                return " ".join(text[node.start : node.end].split()) if isinstance(node, Scalar) else flow(wanted)
            case Mapping_(flow=True), dict():
                kept = [entry for entry in node.entries if entry.name in wanted and not entry.merge]
                names = {entry.name for entry in kept}
                parts = [f"{write_string(entry.name)}: {self._flow(entry.node, wanted[entry.name])}" for entry in kept]
                parts += [f"{write_string(name)}: {flow(wanted[name])}" for name in wanted if name not in names]
                return f"{{{', '.join(parts)}}}"
            case Sequence_(flow=True), list() if len(node.items) <= len(wanted):
                parts = list(map(self._flow, node.items, wanted))
                return f"[{', '.join([*parts, *map(flow, wanted[len(node.items) :])])}]"
            case _:
                return flow(wanted)

    # --- whole nodes ----------------------------------------------------------------------------------------

    def _replace(self, node: YamlNode, wanted: object, place: _Place) -> None:
        self._drop(node)
        if place.kind == "root":
            raise EditError("the whole document changes")
        if not (isinstance(wanted, dict | list) and wanted):
            self._replace_inline(node, wanted, place)
            return
        text = self._text
        step = 2 if place.kind == "item" else self._layout.indent if isinstance(wanted, dict) else self._layout.dash
        lines = self._layout.join(self._layout.block(wanted, place.at + step))
        end = line_end(text, node.end)
        comment = text[node.end : end].strip()
        if "\n" in text[place.behind : node.start]:
            if comment:
                lines = f"{' ' * (place.at + step)}{comment}{self._layout.newline}{lines}"
            self._splice(line_start(text, node.start), end, lines)
        elif place.kind == "item" and not comment:
            self._splice(place.behind, end, f" {lines.lstrip(' ')}")
        else:
            self._splice(place.behind, end, f"{' ' if comment else ''}{comment}{self._layout.newline}{lines}")

    def _replace_inline(self, node: YamlNode, wanted: object, place: _Place) -> None:
        if isinstance(node, Scalar) and isinstance(wanted, str):
            written = write_scalar(wanted, node.style if node.style in ("'", '"') else "")
        else:
            written = flow(wanted)
        in_block = isinstance(node, Mapping_ | Sequence_) and not node.flow
        start = place.behind if in_block else node.start
        separated = self._text[start - 1 : start].isspace()
        self._splice(start, node.end, written if separated else f" {written}")


def _merged_members(node: Mapping_) -> dict[str, object]:
    """The members that a mapping has by its merge key alone."""
    own = {entry.name for entry in node.entries if not entry.merge}
    value: dict[str, object] = node.value if len(own) < len(node.entries) else {}
    return {name: item for name, item in value.items() if name not in own}


def _is_inside(offset: int, parts: Sequence[tuple[int, int]]) -> bool:
    """Whether one of the sorted parts of a text has the offset."""
    at = bisect.bisect(parts, (offset, math.inf)) - 1
    return at >= 0 and offset < parts[at][1]


def _last_leaf(node: YamlNode) -> YamlNode:
    """The node at the end of a text."""
    while True:
        match node:
            case Mapping_(entries=[*_, entry]):
                node = entry.node
            case Sequence_(items=[*_, item]):
                node = item
            case _:
                return node


def _same(left: object, right: object) -> bool:
    """Whether two values are equal in JSON; in Python, True == 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict | list):
        return orjson.dumps(left, option=_SORTED) == orjson.dumps(right, option=_SORTED)
    return bool(left == right)
