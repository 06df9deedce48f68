"""What reviews remember, counted in bytes.

A cache that counts entries holds as much as its largest entries make of it, and tenants choose how large those are.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

OVERHEAD: Final = 512
"""Bytes that an entry costs beside what its caller counts: the key's object, the entry of the dictionary."""
_SHARE: Final = 8
"""One entry is at most this part of the whole: a few large objects do not push out everything else."""


class Remembered(Generic[Key, Value]):
    """Values by key, the least recently used forgotten first. Belongs to one thread: the event loop's."""

    def __init__(self, most: int) -> None:
        """Hold entries of at most `most` bytes together."""
        self._most = most
        self._size = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value of a key; None where it was never put, or is forgotten."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Remember a value, in place of the key's last one.

        Args:
            key: small; of something long take the `fingerprint`.
            value: whatever is to be remembered; not None.
            size: bytes that the key and the value hold, as far as their length is a caller's choice. An entry that
                would be more than an eighth of the whole is not kept.
        """
        self._forget(key)
        size += OVERHEAD
        if size * _SHARE > self._most:
            return
        self._entries[key] = (value, size)
        self._size += size
        while self._size > self._most:
            _, (_, freed) = self._entries.popitem(last=False)
            self._size -= freed

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._size = 0

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes, as `put` counts them."""
        return self._size

    def _forget(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry[1]


def fingerprint(*parts: bytes) -> bytes:
    """32 bytes that stand for the parts, in a key that would otherwise hold a copy of them."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))  # The parts (ab, c) are not the parts (a, bc).
        digest.update(part)
    return digest.digest()
