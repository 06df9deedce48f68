"""Values of YAML texts that differ from an earlier one only in texts: the items of a long List.

Most of them do, and to parse YAML takes a hundred times as long as JSON. A text is cut into spans (quoted texts without
escapes, and words after a colon) and the rest. Of the first text with a rest, the parser tells which spans are
values, and the object is kept as JSON with a gap for each of them.
"""

import itertools
import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import orjson

from runtime.yaml_nodes import Mapping_, Scalar, Sequence_, YamlNode
from runtime.yaml_scalars import is_word

_SPAN: Final = re.compile(
    r"""("[ !#-\[\]-~]*"|'[ !#-&(-\[\]-~]*'|(?<=: )[A-Za-z](?:[\w./:@-]*[\w/@-])?(?=[ \t]*$|[ \t]+#))""",
    re.ASCII | re.MULTILINE,
)
_QUOTES: Final = ("'", '"')
_LONGEST: Final = 16 * 1024
"""Characters of a text that is compared."""
_MOST: Final = 2048
"""Shapes that are kept."""
_Cut: TypeAlias = tuple[tuple[str, str], list[str]]
"""What texts of one shape have in common, and the spans."""
_Path: TypeAlias = tuple[str | int, ...]


class ItemShape:
    """What texts of one shape have in common."""

    def __init__(self, parts: Sequence[str], gaps: Sequence[int], lines: "array[int]") -> None:
        """Prepare.

        Args:
            parts: JSON around the gaps.
            gaps: the number of the span in each of them.
            lines: line of each value in the order of the text, counted from 0.
        """
        self._parts = parts
        self._gaps = gaps
        self._lines = lines
        self._known: dict[_Path, int] = {}

    def value(self, spans: Sequence[str]) -> dict[str, object] | None:
        """The object of a text with these spans."""
        values = [f'"{_text_of(spans[gap])}"' for gap in self._gaps]
        found = orjson.loads("".join([each for pair in zip(self._parts, (*values, ""), strict=True) for each in pair]))
        return found if isinstance(found, dict) else None

    def line_of(self, value: object, path: Sequence[str | int]) -> int:
        """Line of the value at a path, or of its nearest existing ancestor, counted from 0. `value`: of any text."""
        key = tuple(path)
        if key not in self._known:
            self._known[key] = self._lines[_place_of(value, path)]
        return self._known[key]


def _place_of(value: object, path: Sequence[str | int]) -> int:
    """The number of the value at a path, or of its nearest existing ancestor, in the order of the text."""
    place = 0
    for step in path:
        if isinstance(value, dict):
            if step not in value:
                break
            for key, each in value.items():
                if key == step:
                    break
                place += _values_in(each)
            place += 1
            value = value[step]
        elif isinstance(value, list) and str(step).isdecimal() and int(step) < len(value):
            place += 1 + sum(map(_values_in, value[: int(step)]))
            value = value[int(step)]
        else:
            break
    return place


def _values_in(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_values_in, inner))


class YamlItems:
    """The shapes of the items of one file."""

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], tuple[int, ...]] = {}
        self._shapes: dict[tuple[tuple[str, str], tuple[str, ...]], ItemShape] = {}

    def find(self, text: str) -> tuple[ItemShape, dict[str, object]] | None:
        """The shape and the object of a text whose shape is known."""
        if len(text) > _LONGEST:
            return None
        rest, spans = _cut(text)
        fixed = self._fixed.get(rest)
        shape = None if fixed is None else self._shapes.get((rest, tuple([spans[each] for each in fixed])))
        value = None if shape is None else shape.value(spans)
        return None if shape is None or value is None else (shape, value)

    def learn(self, text: str, root: YamlNode) -> None:
        """Keep the shape of a text. `root`: the node of its object, which has no key twice."""
        if len(text) > _LONGEST or root.refers:
            return
        rest, spans = _cut(text)
        places = {each.span(): number for number, each in enumerate(_SPAN.finditer(text))}
        found = _Json(text, places)
        try:
            found.add(root, root.start)
        except (TypeError, orjson.JSONEncodeError):
            return  # It has keys or values that JSON does not have.
        fixed = tuple(sorted(set(range(len(spans))).difference(found.gaps)))
        shape = found.shape()
        if self._fixed.get(rest, fixed) != fixed or shape.value(spans) != root.value:
            return
        if len(self._shapes) >= _MOST:
            self._shapes.clear()
            self._fixed.clear()
        self._fixed[rest] = fixed
        self._shapes[rest, tuple([spans[each] for each in fixed])] = shape


def _cut(text: str) -> _Cut:
    parts = _SPAN.split(text)
    spans = parts[1::2]
    # Null and booleans are no texts.
    kinds = [each if is_word(each) else each[0] if each[0] in _QUOTES else "w" for each in spans]
    return ("\0".join(parts[::2]), "\0".join(kinds)), spans


def _text_of(span: str) -> str:
    return span[1:-1] if span[0] in _QUOTES else span


class _Json:
    """JSON of a text, with gaps in place of spans."""

    def __init__(self, text: str, places: Mapping[tuple[int, int], int]) -> None:
        """Prepare. `places`: number of the span at each place of the text."""
        self._text = text
        self._places = places
        self._parts = [""]
        self._starts: list[int] = []
        self.gaps: list[int] = []

    def add(self, node: YamlNode, start: int) -> None:
        """Add a node, whose key or text begins at `start`. Raises TypeError: it has a merge key."""
        self._starts.append(start)
        if isinstance(node, Mapping_):
            self._write("{")
            for number, entry in enumerate(node.entries):
                if entry.merge:
                    raise TypeError("a merge key")
                self._write(f"{',' if number else ''}{orjson.dumps(entry.name).decode()}:")
                self.add(entry.node, entry.key.start)
            self._write("}")
        elif isinstance(node, Sequence_):
            self._write("[")
            for number, item in enumerate(node.items):
                self._write("," if number else "")
                self.add(item, item.start)
            self._write("]")
        else:
            self._add_scalar(node)

    def _add_scalar(self, node: YamlNode) -> None:
        place = self._places.get((node.start, node.end))
        is_text = isinstance(node, Scalar) and not (node.anchor or node.tag)
        if place is not None and is_text and node.value == _text_of(self._text[node.start : node.end]):
            self.gaps.append(place)
            self._parts.append("")
        else:
            self._write(orjson.dumps(node.value).decode())

    def _write(self, text: str) -> None:
        self._parts[-1] += text

    def shape(self) -> ItemShape:
        """The shape of the text."""
        ends = [0, *self._starts]
        between = [self._text.count("\n", *each) for each in itertools.pairwise(ends)]
        return ItemShape(self._parts, self.gaps, array("I", itertools.accumulate(between)))
