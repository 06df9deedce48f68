"""What may be logged of a policy that failed."""

import re
from typing import Final

_CAUSE: Final = re.compile(r"(.*?(?: failed| resulted in error)): .*?( \(line \d+, column \d+\))?", re.DOTALL)


def place(error: str) -> str:
    """Which expression failed, and where in it.

    Without what the engine says of it: that may quote the object ("'hunter2' is not an int"), and is only for the user
    who sent the object. `neuron-dra policy explain` says it all.
    """
    found = _CAUSE.fullmatch(error)
    return error if found is None else found[1] + (found[2] or "")
