"""Unified diffs, applied."""

import re
from typing import Final

NO_NEWLINE: Final = "\\ No newline at end of file"


def patched(text: str, diff: str) -> str:
    """Apply a unified diff of one file as strictly as git does: all context and all numbers have to be right."""
    if not diff:
        return text
    old = re.findall(r"[^\n]*\n|[^\n]+", text)
    new: list[str] = []
    position = 0
    _, _, *lines = re.findall(r"[^\n]*\n", diff)
    while lines:
        header = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n", lines.pop(0))
        assert header
        start, count, new_start, new_count = (1 if number is None else int(number) for number in header.groups())
        start -= bool(count)
        new += old[position:start]
        assert len(new) == new_start - bool(new_count)
        position, produced = start, len(new)
        while lines and not lines[0].startswith("@@"):
            line = lines.pop(0)
            body = line[1:]
            if lines and lines[0].rstrip("\n") == NO_NEWLINE:
                lines.pop(0)
                body = body.removesuffix("\n")
            if line[0] in " -":
                assert old[position] == body
                position += 1
            if line[0] in " +":
                new.append(body)
        assert position - start == count
        assert len(new) - produced == new_count
    return "".join(new + old[position:])
