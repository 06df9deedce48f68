"""Names that users chose, in messages of policies."""

from typing import Final

_SHOWN: Final = 60


def name_text(name: str) -> str:
    """A name for a message: cut, and on one line."""
    return ascii(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")
