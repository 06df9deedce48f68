"""The memory that the processes of one replica share: a slot per worker, without locks.

A slot is sixteen 8-byte words, two cache lines, so that writers do not slow each other:

| word | what | written by |
|---|---|---|
| 0 | process id; 0: nobody is there | supervisor |
| 1 | how often a worker was started here | supervisor |
| 2 | heartbeat, `time.monotonic_ns()`, which is one clock for all processes | worker; supervisor before it starts one |
| 3 | flags: `READY`, `DRAINING`, `SERVED` | same |
| 4 | open connections | same |
| 5-8 | 32 bytes: digest of what the worker has taken; zero: nothing yet | same |

Every word has one writer at any time: the supervisor clears a slot while no worker is in it. An aligned word is stored
at once, so no reader sees half of one. The digest is four words, and a reader may see it half written; it is only ever
compared, and a mixture of two digests equals neither: "not yet", which was true a moment ago.
"""

import mmap
import struct
from typing import Final

WORDS: Final = 16
WORD_BYTES: Final = 8
DIGEST_BYTES: Final = 32
MOST_WORKERS: Final = 64

READY: Final = 1
"""All of the worker's own checks pass."""
DRAINING: Final = 2
"""The worker was told to stop."""
SERVED: Final = 4
"""The worker has been serving since it was started, whatever came after."""

_PID, _STARTS, _BEAT, _FLAGS, _CONNECTIONS, _DIGEST = range(6)
_DIGEST_WORDS: Final = struct.Struct("=4Q")


class Slot:
    """One worker's part of the page."""

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        """View `WORDS` words of format `Q`."""
        self._words = words

    @property
    def pid(self) -> int:
        """Process id of the worker; 0 while there is none."""
        return self._words[_PID]

    @pid.setter
    def pid(self, value: int) -> None:
        self._words[_PID] = value

    @property
    def starts(self) -> int:
        """How often a worker was started here."""
        return self._words[_STARTS]

    @property
    def beat(self) -> int:
        """The last heartbeat, monotonic nanoseconds."""
        return self._words[_BEAT]

    @beat.setter
    def beat(self, value: int) -> None:
        self._words[_BEAT] = value

    @property
    def flags(self) -> int:
        """`READY`, `DRAINING`, `SERVED`."""
        return self._words[_FLAGS]

    @flags.setter
    def flags(self, value: int) -> None:
        self._words[_FLAGS] = value

    @property
    def connections(self) -> int:
        """Open connections, those whose handshake is under way included."""
        return self._words[_CONNECTIONS]

    @connections.setter
    def connections(self, value: int) -> None:
        self._words[_CONNECTIONS] = value

    @property
    def digest(self) -> bytes:
        """What the worker has taken; zeros: nothing. May be half written: compare it, do not keep it."""
        return _DIGEST_WORDS.pack(*self._words[_DIGEST : _DIGEST + 4])

    @digest.setter
    def digest(self, value: bytes) -> None:
        for offset, word in enumerate(_DIGEST_WORDS.unpack(value)):
            self._words[_DIGEST + offset] = word

    def prepare(self, now: int) -> None:
        """Make the slot that of a worker about to be started: only while no worker is there."""
        starts = self.starts + 1
        for index in range(WORDS):
            self._words[index] = 0
        self._words[_STARTS] = starts
        self.beat = now


class Page:
    """Slots in anonymous memory, shared with every process that is forked from here on."""

    def __init__(self, size: int) -> None:
        """Have `size` slots, 1 to `MOST_WORKERS`."""
        if not 1 <= size <= MOST_WORKERS:
            raise ValueError(f"a page has 1 to {MOST_WORKERS} slots, not {size}")
        words = memoryview(mmap.mmap(-1, size * WORDS * WORD_BYTES)).cast("Q")
        self.slots = tuple(Slot(words[index * WORDS : (index + 1) * WORDS]) for index in range(size))
