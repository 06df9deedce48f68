"""Keeps the policies in force: loads them from a folder, watches it, and replaces the whole set.

A new set is read, compiled and tested in a thread while reviews go on; then one assignment replaces the old set. If the
new set has a problem, the old set stays, and log, metrics and readiness report the problem.
"""

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from policies.files.folders import Fingerprint, PolicyError, digest, fingerprint, read_folder
from policies.files.loader import load
from policies.judging.policy_set import PolicySet
from policies.schema.documents import Problem

log = logging.getLogger(__name__)

WallClock = Callable[[], dt.datetime]

_POLL_SECONDS: Final = 1.0
_PROBLEMS_LOGGED: Final = 20


class PolicyStore:
    """The set of policies in force.

    Attributes:
        current: the set. A reload replaces it, so keep one reference during a review.
        loaded_at: when it was loaded.
        problems: why a newer set was rejected; empty if none was.
        reloads: number of reloads by result, "success" or "failure".
    """

    def __init__(self, folder: Path, now: WallClock, first: PolicySet, seen: str, look: Fingerprint) -> None:
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
            PolicyError: a file has a problem; there is no older set to keep.
        """
        look = fingerprint(folder)
        files = read_folder(folder)
        found = load(files)
        log.info("policies loaded", extra={"folder": str(folder), "files": found.files, "policies": len(found.rules)})
        return cls(folder, now, found, digest(files), look)

    def check(self) -> tuple[bool, str]:
        """For `/readyz`: always ready; the detail says if the folder's policies were rejected."""
        since = self.loaded_at.isoformat(timespec="seconds")
        known = f"{len(self.current.rules)} in force since {since}"
        problem = self.problem
        return True, f"{known}; the folder has changed and was rejected: {problem}" if problem else known

    @property
    def digest(self) -> str:
        """Digest of the policies in force; differs between replicas that have different policies."""
        return self.current.digest

    @property
    def problem(self) -> str:
        """Why the current content of the folder was rejected, in one line; empty if it was not."""
        if not self.problems:
            return ""
        first = str(self.problems[0]).partition("\n")[0]
        return first + (f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else "")

    async def watch(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Poll the folder until cancelled.

        A change is loaded when two polls in a row find the same state: this debounces a change of several files.
        """
        pending: Fingerprint | None = None
        while True:
            await sleep(_POLL_SECONDS)
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
        """Load the folder, or keep the set in force and report why."""
        try:
            files = await asyncio.to_thread(read_folder, self._folder)
            content = digest(files)
            if content == self._seen and not self.problems:
                return
            found = await asyncio.to_thread(load, files)
        except PolicyError as error:
            self._refuse(error.problems)
        except Exception:
            # The set in force stays, and the watch goes on.
            log.exception("policies not reloaded", extra={"folder": str(self._folder)})
            self._refuse((Problem(str(self._folder), 0, "loading failed; see the log."),), logged=True)
        else:
            self._seen = content
            self.current, self.loaded_at, self.problems = found, self._now(), ()
            self.reloads["success"] += 1
            log.info("policies reloaded", extra={"files": found.files, "policies": len(found.rules)})

    def _refuse(self, problems: tuple[Problem, ...], *, logged: bool = False) -> None:
        self.problems = problems
        self.reloads["failure"] += 1
        if not logged:
            shown = [str(problem) for problem in problems[:_PROBLEMS_LOGGED]]
            log.error(
                "policies not reloaded: the set in force stays", extra={"problems": shown, "number": len(problems)}
            )
