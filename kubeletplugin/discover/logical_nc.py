"""The node's default size of a logical NeuronCore: a file of one line `NAME=VALUE`, which AWS's device plugin reads.

Containers do not see the file. The runtime in them uses the type's default, unless a claim's config says otherwise.
"""

import dataclasses
import re
from pathlib import Path
from typing import Final

from neuron import names
from neuron.api.environment import LNC_VARIABLES

_LINE: Final = re.compile(r"\s*(?:export\s+)?([A-Z_]+)\s*=\s*[\"']?([0-9]{1,3})[\"']?\s*", re.ASCII)
_LONGEST: Final = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class LogicalNcFile:
    """The file.

    Attributes:
        size: physical cores of a logical one; None if the file does not say.
        problem: why it does not say, although it exists; empty if there is no file.
    """

    path: Path
    size: int | None = None
    problem: str = ""


NO_FILE: Final = LogicalNcFile(Path(names.LOGICAL_NC_FILE))
"""A node without the file, at its usual place."""


def read(path: Path) -> LogicalNcFile:
    """Read the file. Comments and empty lines are skipped."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return LogicalNcFile(path)
    except OSError as error:
        return LogicalNcFile(path, None, f"it cannot be read: {error.strerror}")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = [match for line in lines if (match := _LINE.fullmatch(line)) is not None and match[1] in LNC_VARIABLES]
    sizes = {int(match[2]) for match in found}
    if len(sizes) == 1:
        return LogicalNcFile(path, sizes.pop())
    why = "sets different values" if sizes else f"has no line {LNC_VARIABLES[0]}=<number>"
    return LogicalNcFile(path, None, f"it {why}: {' '.join(text.split())[:80]!r}")
