"""Findings cut to what a warning may be: the API asks for 120 characters (`AdmissionResponse.warnings`)."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from neuron.findings import Finding

COMFORTABLE_WARNING: Final = 120
"""Up to here kubectl shows a warning on one line; the API's documentation asks for no more (AdmissionResponse)."""
_SENTENCE_END = re.compile(r"(?<=[.?!]) (?=[A-Z])")


def fitting(finding: Finding) -> tuple[Finding, ...]:
    """The finding, or its sentences one by one, so that each is a warning of its own and none is too long."""
    room = COMFORTABLE_WARNING - len(f"{finding.code}: ")
    if max(len(finding.message), len(finding.fix)) <= room:
        return (finding,)
    text = f"{finding.message} {finding.fix}".rstrip()
    return tuple(dataclasses.replace(finding, message=line, fix="") for line in _lines(text, room))


def _lines(text: str, room: int) -> Iterator[str]:
    """Sentences, as many to a line as fit; one that does not fit alone is broken between words."""
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
