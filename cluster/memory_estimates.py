"""Approximate memory of a projection."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, structs

_OBJECT: Final = 64
"""Bytes of a Python object and of the reference to it (CPython, 64 bits)."""


def footprint(value: object) -> int:
    """Bytes of a value of dataclasses, Structs, containers, texts and numbers. Shared parts count at every use."""
    size = 0
    pending: list[object] = [value]
    while pending:
        each = pending.pop()
        size += _OBJECT
        if isinstance(each, str | bytes):
            size += len(each)
        elif isinstance(each, Mapping):
            pending += each.keys()
            pending += each.values()
        elif isinstance(each, tuple | list | frozenset | set):
            pending += each
        elif isinstance(each, Struct):
            pending += structs.astuple(each)
        elif dataclasses.is_dataclass(each):
            pending += [getattr(each, field.name) for field in dataclasses.fields(each)]
    return size
