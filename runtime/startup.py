"""The start of a program: the error that ends it, and imports without garbage collection."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

COULD_NOT_START: Final = 3
"""Exit code of both programs; uvicorn's STARTUP_FAILURE is the same."""


class StartupError(Exception):
    """The program cannot start; the message has the value, the place and the fix."""


def not_installed(error: ModuleNotFoundError, extra: str) -> str:
    """The message for a module of a program whose extra was not installed with the wheel."""
    return (
        f"The Python module {error.name!r} is not installed: install the package with its extra {extra!r}, "
        f"as in `pip install 'neuron-dra[{extra}]'`."
    )


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import modules in this context. Collections would find nothing, and are a seventh of the imports of the server.

    A context inside another one changes nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
