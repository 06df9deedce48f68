"""The policies in force: loaded from a folder, watched, and swapped as a whole.

A new set is read, compiled and tested in a thread, beside the reviews that go on; only then does it take the old one's
place, in one assignment. Where anything is wrong with it the old set stays, and is said to: log, metric, readiness.
"""

import asyncio
import datetime as dt
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from policies.files.loader import PolicyError, digest, load, read_folder
from policies.judging.policy_set import PolicySet
from policies.schema.documents import Problem

log = logging.getLogger(__name__)

WallClock = Callable[[], dt.datetime]

_SECONDS_BETWEEN_LOOKS: Final = 1.0
_PROBLEMS_LOGGED: Final = 20
_MOST_ENTRIES: Final = 10_000
_Fingerprint = tuple[tuple[str, int, int, int], ...]


class PolicyStore:
    """The set of policies in force.

    Attributes:
        current: the set; replaced as a whole, so hold on to it for as long as one review lasts.
        loaded_at: when it was loaded.
        problems: why a newer set was not taken; empty where there is none.
        reloads: how often a changed folder was loaded, and how often in vain.
    """

    def __init__(self, folder: Path, now: WallClock, first: PolicySet, seen: str, look: "_Fingerprint") -> None:
        self._folder = folder
        self._now = now
        self._seen = seen
        self._look = look
        self.current = first
        self.loaded_at = now()
        self.problems: tuple[Problem, ...] = ()
        self.reloads = {"success": 0, "failure": 0}

    @classmethod
    def open(cls, folder: Path, now: WallClock) -> "PolicyStore":
        """Load a folder for the first time.

        Raises:
            PolicyError: something is wrong with it; there is no older set to fall back on.
        """
        look = fingerprint(folder)
        files = read_folder(folder)
        found = load(files)
        log.info("policies loaded", extra={"folder": str(folder), "files": found.files, "policies": len(found.rules)})
        return cls(folder, now, found, digest(files), look)

    def check(self) -> tuple[bool, str]:
        """For `/readyz`: old policies are no reason to be taken out of service, but one to say so."""
        since = self.loaded_at.isoformat(timespec="seconds")
        known = f"{len(self.current.rules)} in force since {since}"
        problem = self.problem
        return True, f"{known}; the folder has changed and was not taken: {problem}" if problem else known

    @property
    def digest(self) -> str:
        """What differs where replicas have different policies in force."""
        return self.current.digest

    @property
    def problem(self) -> str:
        """Why the folder as it is now was not taken, in a line; empty where it was."""
        if not self.problems:
            return ""
        first = str(self.problems[0]).partition("\n")[0]
        return first + (f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else "")

    async def watch(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look at the folder for ever.

        A change is taken once two looks in a row find the same: a change of several files is taken as a whole.
        """
        pending: _Fingerprint | None = None
        while True:
            await sleep(_SECONDS_BETWEEN_LOOKS)
            look = await asyncio.to_thread(fingerprint, self._folder)
            if look == self._look:
                pending = None
            elif look == pending:
                pending = None
                self._look = look
                await self.reload()
            else:
                pending = look

    async def reload(self) -> None:
        """Take what is in the folder, or say why not."""
        try:
            files = await asyncio.to_thread(read_folder, self._folder)
            content = digest(files)
            if content == self._seen and not self.problems:
                return
            found = await asyncio.to_thread(load, files)
        except PolicyError as error:
            self._refuse(error.problems)
        except Exception:
            # Whatever it is, the set in force stays, and the watch goes on.
            log.exception("policies not reloaded", extra={"folder": str(self._folder)})
            self._refuse((Problem(str(self._folder), 0, "loading failed; the log has the reason."),), logged=True)
        else:
            self._seen = content
            self.current, self.loaded_at, self.problems = found, self._now(), ()
            self.reloads["success"] += 1
            log.info("policies reloaded", extra={"files": found.files, "policies": len(found.rules)})

    def _refuse(self, problems: tuple[Problem, ...], *, logged: bool = False) -> None:
        self.problems = problems
        self.reloads["failure"] += 1
        if not logged:
            told = [str(problem) for problem in problems[:_PROBLEMS_LOGGED]]
            log.error(
                "policies not reloaded: the set in force stays", extra={"problems": told, "number": len(problems)}
            )


def fingerprint(folder: Path) -> _Fingerprint:
    """What changes when a file does: names, times, sizes and identities, through links as in a mounted ConfigMap.

    Only asks for what the file system knows: nothing is opened. Of a folder with more than `_MOST_ENTRIES` the rest is
    not looked at; `read_folder` refuses it.
    """
    found = []
    generation = os.path.realpath(folder / "..data")
    for directory, directories, names in os.walk(folder):
        directories[:] = [name for name in directories if not name.startswith(".")]
        for name in names:
            path = os.path.join(directory, name)  # noqa: PTH118 - this runs every second
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:
                found.append((path, 0, 0, 0))
            else:
                found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
        if len(found) > _MOST_ENTRIES:
            break
    return ((generation, 0, 0, 0), *sorted(found))
