"""A guide whose commands are run as they stand: `##` steps, `###` parts, and blocks of shell."""

import dataclasses
import re
from pathlib import Path
from typing import Final

_STEP: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_PART: Final = re.compile(r"^### (.+)$", re.MULTILINE)
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One `##` of a guide.

    Attributes:
        title: its heading.
        parts: heading -> blocks of shell, in order.
    """

    title: str
    parts: dict[str, tuple[str, ...]]

    @property
    def slug(self) -> str:
        """The title as part of a Python name."""
        return re.sub(r"\W+", "_", self.title.lower()).strip("_")


def _sections(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    pieces = pattern.split(text)
    return list(zip(pieces[1::2], pieces[2::2], strict=True))


def read(path: Path) -> tuple[Step, ...]:
    """The steps of a guide, in order."""
    return tuple(
        Step(title, {part: tuple(_BLOCK.findall(inner)) for part, inner in _sections(_PART, body)})
        for title, body in _sections(_STEP, path.read_text())
    )
