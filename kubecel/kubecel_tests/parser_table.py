"""The stored parser table of kubecel: `python -m kubecel_tests.parser_table` (`make grammar`) writes it again."""

import json
from collections.abc import Mapping
from typing import Any

from lark.grammar import Rule
from lark.lexer import TerminalDef

from kubecel import grammar

ANY = 2**32 - 1
"""The width of a terminal of any length: Python's figure depends on its version."""


def content() -> str:
    """The table of the installed Lark and grammar. Equal grammars give equal texts."""
    digest, parser = grammar.computed()
    data, memo = parser.memo_serialize([TerminalDef, Rule])
    del data["options"]["transformer"]
    for entry in memo.values():
        if "_width" in entry.get("pattern", ()):
            entry["pattern"]["_width"] = [min(width, ANY) for width in entry["pattern"]["_width"]]
    stored = {"digest": digest, **_ordered(json.loads(json.dumps(data)), json.loads(json.dumps(memo)))}
    return json.dumps(stored, sort_keys=True, separators=(",", ":")) + "\n"


def _ordered(data: Any, memo: Mapping[str, Any]) -> dict[str, Any]:
    """What Lark serialized, numbered by content: Lark's numbers depend on the order of sets."""
    numbers = {old: new for new, old in enumerate(sorted(memo, key=lambda old: json.dumps(memo[old], sort_keys=True)))}
    table = data["parser"]["parser"]
    tokens = sorted(table["tokens"].values())
    actions = {
        state: {table["tokens"][token]: action for token, action in row.items()}
        for state, row in table["states"].items()
    }
    [start] = table["start_states"].values()
    states = [start]
    for state in states:  # grows
        row = actions[str(state)]
        states += [row[token][1] for token in sorted(row) if row[token][0] == 0 and row[token][1] not in states]

    def action(kind: int, target: Any) -> list[Any]:
        return [kind, states.index(target) if kind == 0 else _renumbered(target, numbers)]

    table["tokens"] = dict(enumerate(tokens))
    table["states"] = {
        number: {tokens.index(token): action(*each) for token, each in actions[str(state)].items()}
        for number, state in enumerate(states)
    }
    for ends in ("start_states", "end_states"):
        table[ends] = {rule: states.index(state) for rule, state in table[ends].items()}
    for holder, name in (
        (data, "rules"),
        (data["parser"]["parser_conf"], "rules"),
        (data["parser"]["lexer_conf"], "terminals"),
    ):
        holder[name] = sorted(_renumbered(holder[name], numbers), key=lambda each: each["@"])
    return {"data": data, "memo": {numbers[old]: value for old, value in memo.items()}}


def _renumbered(value: Any, numbers: Mapping[str, int]) -> Any:
    if isinstance(value, list):
        return [_renumbered(each, numbers) for each in value]
    return {"@": numbers[str(value["@"])]}


if __name__ == "__main__":
    grammar.TABLE.write_text(content(), encoding="utf-8")
