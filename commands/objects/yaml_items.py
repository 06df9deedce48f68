"""Values of YAML texts that differ from an earlier one only in texts: the items of a long List.

Most of them do, and to parse YAML takes a hundred times as long as JSON. A text is cut into spans (quoted texts without
escapes, and plain texts after a colon or the dash of an item) and the rest. Of the first text with a rest, the parser
tells which spans are values, and the object is kept as JSON with a gap for each of them.
"""

import dataclasses
import functools
import itertools
import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

import orjson

from runtime.yaml_nodes import Mapping_, Scalar, Sequence_, YamlNode, is_word, resolve

# It begins with the few characters after which a value stands, which the engine finds quickly. Without a comma in plain
# text: in a list in brackets it would end the text.
_SPAN: Final = re.compile(
    r"""([-:,[] ?)("[ !#-\[\]-~]*"|'[ !#-&(-\[\]-~]*'"""
    r"""|(?<=[:-] )-{0,2}[A-Za-z0-9](?:[\w./:@=-]*[\w/@-])?(?=[ \t]*$|[ \t]+#))""",
    re.ASCII | re.MULTILINE,
)
_QUOTES: Final = ("'", '"')
_LONGEST: Final = 16 * 1024
"""Characters of a text that is compared."""
_LONGEST_WORD: Final = len("false")
_MOST: Final = 1024
"""Results that are kept."""
_Path: TypeAlias = tuple[str | int, ...]


_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """A text, cut into spans and the rest.

    Attributes:
        rest: what texts of one form have in common: the text without its spans, and what kind of text each of them is.
        values: the spans.
    """

    rest: tuple[str, str]
    values: list[str]

    @classmethod
    def at(cls, text: str) -> "Look | None":
        """Cut a text; None if it is too long to be compared."""
        if len(text) > _LONGEST:
            return None
        parts = _SPAN.split(text)
        values = parts[2::3]
        rest = "\0".join((*parts[::3], *parts[1::3]))
        return cls((rest, "\0".join(map(_kind_of, values))), values)


def spans_of(text: str) -> list[tuple[int, int]]:
    """The places of the spans of a text."""
    return [each.span(2) for each in _SPAN.finditer(text)]


def text_of(span: str) -> str:
    """The text that a span stands for, if it is one scalar."""
    return span[1:-1] if span[0] in _QUOTES else span


@functools.lru_cache(maxsize=256)
def _kind_of(span: str) -> str:
    """The quote, or that it is plain text; null, a boolean and a number are of no kind but their own."""
    first = span[0]
    if first in _QUOTES:
        return first
    if first.isalpha():
        return span if len(span) <= _LONGEST_WORD and is_word(span) else "w"
    return "w" if isinstance(resolve(span), str) else span


class ByLook(Generic[_T]):
    """Results by what texts have in common: the rest, and the spans that matter for the result."""

    def __init__(self) -> None:
        self._fixed: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = {}
        self._results: dict[tuple[int, str], _T] = {}

    def find(self, look: Look) -> _T | None:
        """The result of a text that differs only in spans that do not matter."""
        known = self._fixed.get(look.rest)
        return None if known is None else self._results.get(_key(look, *known))

    def keep(self, look: Look, free: Collection[int], result: _T) -> None:
        """Keep a result, unless an earlier text with the same rest can be compared by more spans than this one.

        Args:
            free: numbers of the spans that do not matter.
        """
        if len(self._results) >= _MOST:
            self._results.clear()
            self._fixed.clear()
        own = tuple(at for at in range(len(look.values)) if at not in free)
        number, fixed = self._fixed.setdefault(look.rest, (len(self._fixed), own))
        if set(own) <= set(fixed):
            self._results[_key(look, number, fixed)] = result


def _key(look: Look, number: int, fixed: Iterable[int]) -> tuple[int, str]:
    values = look.values
    return number, "\0".join([values[at] for at in fixed])


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
        values = [f'"{text_of(spans[gap])}"' for gap in self._gaps]
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
        self._shapes = ByLook[ItemShape]()

    def find(self, look: Look | None) -> tuple[ItemShape, dict[str, object]] | None:
        """The shape and the object of a text whose shape is known."""
        shape = None if look is None else self._shapes.find(look)
        if look is None or shape is None:
            return None
        value = shape.value(look.values)
        return None if value is None else (shape, value)

    def learn(self, text: str, look: Look | None, root: YamlNode) -> None:
        """Keep the shape of a text. `root`: the node of its object, which has no key twice."""
        if look is None or root.refers:
            return
        found = _Json(text, {place: number for number, place in enumerate(spans_of(text))})
        try:
            found.add(root, root.start)
        except (TypeError, orjson.JSONEncodeError):
            return  # It has keys or values that JSON does not have.
        shape = found.shape()
        if shape.value(look.values) == root.value:
            self._shapes.keep(look, frozenset(found.gaps), shape)


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
        if place is not None and is_text and node.value == text_of(self._text[node.start : node.end]):
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
