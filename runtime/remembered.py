"""A cache for reviews, bounded in bytes: tenants choose the size of entries, so a number of entries is no bound."""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

OVERHEAD: Final = 512
"""Bytes of an entry that its caller does not count: the key's object, the entry of the dictionary."""
_SHARE: Final = 8
"""An entry may have at most this part of the cache, so that a few large ones do not evict all others."""


class Remembered(Generic[Key, Value]):
    """Values by key; the least recently used is evicted first. For one thread: the event loop's."""

    def __init__(self, most: int) -> None:
        """`most` is the bound of all entries together, in bytes."""
        self._most = most
        self._size = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value of a key; None if it is not cached."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Cache a value; it replaces the key's last one.

        Args:
            key: small; use the `fingerprint` of long data.
            value: not None.
            size: bytes of key and value, as far as tenants choose them. An entry of more than an eighth of the cache is
                not kept.
        """
        before = self._entries.pop(key, None)
        if before is not None:
            self._size -= before[1]
        size += OVERHEAD
        if size * _SHARE > self._most:
            return
        self._entries[key] = (value, size)
        self._size += size
        while self._size > self._most:
            _, (_, freed) = self._entries.popitem(last=False)
            self._size -= freed

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._size = 0

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes, as `put` counts them."""
        return self._size


def fingerprint(*parts: bytes) -> bytes:
    """A digest of the parts, 32 bytes, for keys that would otherwise contain a copy of them."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))  # The parts (ab, c) are not the parts (a, bc).
        digest.update(part)
    return digest.digest()
