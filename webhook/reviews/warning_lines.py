"""Splits findings into warnings of at most 120 characters (`AdmissionResponse.warnings`)."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from neuron.findings import Finding

COMFORTABLE_WARNING: Final = 120
"""Characters. The API's documentation recommends this length (AdmissionResponse.warnings)."""
_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z])")


def fitting(finding: Finding) -> tuple[Finding, ...]:
    """The finding, or one finding per line of its sentences, so that no warning is too long."""
    room = COMFORTABLE_WARNING - len(f"{finding.code}: ")
    if max(len(finding.message), len(finding.fix)) <= room:
        return (finding,)
    text = f"{finding.message} {finding.fix}".rstrip()
    return tuple(dataclasses.replace(finding, message=line, fix="") for line in _lines(text, room))


def _lines(text: str, room: int) -> Iterator[str]:
    """Lines of whole sentences; a sentence that is too long is broken between words."""
    line = ""
    for sentence in _SENTENCE_END.split(text):
        for part in _broken(sentence, room):
            if line and len(line) + 1 + len(part) > room:
                yield line
                line = ""
            line = f"{line} {part}".lstrip()
    if line:
        yield line


def _broken(sentence: str, room: int) -> Iterator[str]:
    while len(sentence) > room:
        cut = sentence.rfind(" ", 0, room + 1)
        cut = cut if cut > 0 else room
        yield sentence[:cut]
        sentence = sentence[cut:].lstrip()
    yield sentence
