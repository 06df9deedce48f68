"""Data as YAML in whatever way people write it."""

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from runtime.yaml_nodes import write_string

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.sampled_from([0.5, 1.5, 2.25]),
    st.sampled_from(["a", "x y", "", "yes", "0o10", "1e3", "é", "#no", "a: b", "'q\"", "~", "- a", "multi\nline\n"]),
)
DATA = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcdefgh"), inner, max_size=4)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abcdefgh"), DATA, min_size=1, max_size=5)


class Writer:
    """Writes documents with random indents, quotes, comments, anchors and flow collections."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._indent = chance.choice([2, 2, 4])
        self._dash = chance.choice([0, 2])
        self._numbers = itertools.count(1)
        self._anchors: list[tuple[str, Any]] = []
        self._json = chance.random() < 0.15

    def write(self, document: dict[str, Any]) -> str:
        """One document."""
        if self._json:
            indent = self._chance.choice([None, 2, 4, "\t"])
            return json.dumps(document, indent=indent, ensure_ascii=False) + self._chance.choice(["", "\n"])
        newline = self._chance.choice(["\n", "\n", "\r\n"])
        end = self._chance.choice([newline, newline, f"{newline}# end{newline}", ""])
        return newline.join(self._block(document, 0)) + end

    def _maybe(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _comment(self) -> str:
        return f"# c{next(self._numbers)}"

    def _block(self, value: Any, at: int) -> Iterator[str]:
        pad = " " * at
        members = value.items() if isinstance(value, dict) else [(None, item) for item in value]
        for name, item in members:
            if self._maybe(0.1):
                yield " " * self._chance.choice([0, at]) + self._comment()
            if self._maybe(0.05):
                yield ""
            if name is not None:
                yield from self._member(f"{pad}{write_string(name, self._quote())}:", item, at)
            elif isinstance(item, dict) and item and self._maybe(0.8):
                lines = list(self._block(item, at + 2))
                first = next(index for index, line in enumerate(lines) if line.strip() and line.strip()[0] != "#")
                lines[first] = f"{pad}- {lines[first][at + 2 :]}"
                yield from lines
            else:
                yield from self._member(f"{pad}-", item, at)

    def _member(self, start: str, value: Any, at: int) -> Iterator[str]:
        comment = f" {self._comment()}" if self._maybe(0.2) else ""
        if not isinstance(value, dict | list) or not value:
            yield from self._scalar(start, value, at, comment)
            return
        known = next((name for name, anchored in self._anchors if json.dumps(anchored) == json.dumps(value)), None)
        if known and self._maybe(0.7):
            yield f"{start} *{known}{comment}"
            return
        anchor = f" &x{next(self._numbers)}" if self._maybe(0.2) else ""
        if self._maybe(0.75):
            step = 2 if start.endswith("-") else self._indent if isinstance(value, dict) else self._dash
            yield f"{start}{anchor}{comment}"
            yield from self._block(value, at + step)
        else:
            yield f"{start}{anchor} {self._flow(value)}{comment}"
        if anchor:
            # Only now: an alias inside of its own anchor is no YAML.
            self._anchors.append((anchor.strip(" &"), value))

    def _scalar(self, start: str, value: Any, at: int, comment: str) -> Iterator[str]:
        if value is None and self._maybe(0.5):
            yield f"{start}{comment}"
        elif isinstance(value, str) and value.endswith("\n") and self._maybe(0.6):
            yield f"{start} |"
            yield from (" " * (at + 2) + line for line in value[:-1].split("\n"))
        else:
            yield f"{start} {self._flow(value)}{comment}"

    def _flow(self, value: Any) -> str:
        match value:
            case dict():
                inner = ", ".join(
                    f"{write_string(name, self._quote())}: {self._flow(item)}" for name, item in value.items()
                )
                return f"{{{inner}{',' if value and self._maybe(0.2) else ''}}}"
            case list():
                return f"[{', '.join(map(self._flow, value))}]"
            case str():
                return write_string(value, self._quote())
            case _:
                return json.dumps(value)

    def _quote(self) -> str:
        return self._chance.choice(["", "", "'", '"'])


def written(value: dict[str, Any]) -> st.SearchStrategy[str]:
    """The texts of a document."""
    return st.randoms(use_true_random=False).map(lambda chance: Writer(chance).write(value))


def changed(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """Other data that is not too different."""
    new = [True, 7, "new", "multi\nline\n", [], {}, {"x": [1]}, ["y", {"z": None}]]
    match value:
        case dict():
            result = {
                name: chance.choice(new) if chance.random() < 0.1 else changed(item, chance, depth + 1)
                for name, item in value.items()
                # The document itself keeps something.
                if chance.random() > 0.15 or (depth == 0 and name == next(iter(value)))
            }
            return (
                {"first": 1, **result}
                if chance.random() < 0.1
                else result | ({"last": chance.choice(new)} if chance.random() < 0.3 else {})
            )
        case list():
            kept = [changed(item, chance, depth + 1) for item in value if chance.random() > 0.1]
            return kept + ([chance.choice(new)] if chance.random() < 0.3 else [])
        case _:
            return value
