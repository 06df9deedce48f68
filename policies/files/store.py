"""Keeps the policies in force: loads them from a folder, watches it, and replaces the set.

A new set is read, compiled and tested in a thread while reviews go on; then one assignment replaces the old set. If a
file has a problem, its last good version stays (or the whole old set, if the admin says so), and log, metrics and
readiness report the problem.
"""

import asyncio
import dataclasses
import datetime as dt
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kubecel.budget import Clock
from policies.files.api_types import Served, nothing_served
from policies.files.cases import CaseTime, SupersededError
from policies.files.folders import (
    Fingerprint,
    KeepError,
    KeptSet,
    PolicyError,
    PolicyKeeper,
    digest,
    fingerprint,
    kept_set,
    pack,
    read_files,
    read_folder,
)
from policies.files.loader import load
from policies.judging.coverage import Unsent, unsent_by_deny
from policies.judging.rules import PolicySet
from policies.schema.documents import PolicyProblem
from runtime.retries import Once
from runtime.text import counted

log = logging.getLogger(__name__)

WallClock = Callable[[], dt.datetime]

_POLL_SECONDS: Final = 1.0
_PROBLEMS_LOGGED: Final = 20
_KEEP_LOOKS: Final = 10
"""A set is kept at every tenth look at the folder, if it has to be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """What is in force after a change of the folder.

    Attributes:
        files: content by name of the files that it was loaded from.
        problems: of the files that were not loaded.
    """

    policies: PolicySet
    files: Mapping[str, bytes]
    problems: tuple[PolicyProblem, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a folder is loaded.

    Attributes:
        now: the time of day.
        together: whether a later change is loaded completely or not at all.
        clock: bounds the time of embedded cases, in seconds.
        keeper: where `watch` keeps each complete set for the next start.
        served: the schemas of kinds that Kubernetes does not have; see `load`.
    """

    now: WallClock
    together: bool = False
    clock: Clock = time.monotonic
    keeper: PolicyKeeper | None = None
    served: Served = nothing_served

    def loaded(self, files: Mapping[str, bytes]) -> tuple[Loaded, frozenset[str]]:
        """The set of these files, and the policies whose cases passed.

        Raises:
            PolicyError: a file has a problem.
        """
        case_time = CaseTime(self.clock)
        return Loaded(load(files, case_time=case_time, served=self.served), files), case_time.passed_of(files)


class PolicyStore:
    """The set of policies in force.

    Attributes:
        current: the set. A reload replaces it, so keep one reference during a review.
        problems: why newer files were rejected; empty if none was.
        reloads: number of reloads by result, "success" or "failure".
        keep_problem: why the set in force cannot be kept for the next start; empty if it can.
        older_since: when the last complete set of the folder was loaded, if files of it had to stay in force or were
            restored at the start; None if all files of the folder are in force.
    """

    def __init__(
        self, folder: Path, options: StoreOptions, first: Loaded, look: Fingerprint, passed: frozenset[str]
    ) -> None:
        self._folder = folder
        self._options = options
        self._good = first.files
        self._seen = digest(first.files)
        self._unsent: tuple[Unsent, ...] = ()
        self._unsent_of: PolicySet | None = None
        self._look = look
        self.current = first.policies
        self.loaded_at = options.now()
        self.problems: tuple[PolicyProblem, ...] = ()
        self.older_since: dt.datetime | None = None
        self._keeps_all = True
        self.reloads = {"success": 0, "failure": 0}
        self._passed = passed
        self._kept = ""
        self._keep_logged: Once[str] = Once()
        self.keep_problem = ""
        self._looks = 0
        self._superseded = threading.Event()

    @classmethod
    def open(cls, folder: Path, options: StoreOptions, kept: KeptSet | None = None) -> "PolicyStore":
        """Load a folder for the first time.

        Args:
            kept: the set that was in force before, for a folder that cannot be loaded; `watch` then loads the files of
                the folder that have no problem.

        Raises:
            PolicyError: a file has a problem, and there is no older set that can be loaded.
        """
        look = fingerprint(folder)
        try:
            first, passed = options.loaded(read_folder(folder))
        except PolicyError as error:
            if kept is None:
                raise
            return cls._restored(folder, options, kept, error)
        found = first.policies
        extra = {"folder": str(folder), "files": found.files, "policies": len(found.rules)}
        log.info("policies loaded", extra=extra)
        _log_notes(found)
        return cls(folder, options, first, look, passed)

    @classmethod
    def _restored(cls, folder: Path, options: StoreOptions, kept: KeptSet, why: PolicyError) -> "PolicyStore":
        """A store with a set that was kept; it is checked like the files of the folder.

        Raises:
            PolicyError: why the folder cannot be loaded, and this set neither.
        """
        try:
            first, passed = options.loaded(kept.within(folder))
        except PolicyError as error:
            also = f"the set that was kept cannot be loaded either: {error.problems[0].message}"
            raise PolicyError([*why.problems, PolicyProblem(str(folder), 0, also)]) from error
        # No look at the folder is like this one, so the watch loads what it can.
        store = cls(folder, options, first, (), passed)
        store.loaded_at = store.older_since = kept.since
        store.problems = why.problems
        extra = {
            "since": kept.since.isoformat(timespec="seconds"),
            "files": sorted(kept.files),
            "problems": [str(problem) for problem in why.problems[:_PROBLEMS_LOGGED]],
        }
        log.error("policies restored: the folder cannot be loaded, and an older set is in force", extra=extra)
        return store

    def check(self) -> tuple[bool, str]:
        """For `/readyz`: always ready; the detail says if the folder's policies were rejected."""
        since = self.loaded_at.isoformat(timespec="seconds")
        known = f"{len(self.current.rules)} in force since {since}"
        return True, "; ".join(
            filter(None, (known, self.problem, self.keep_problem and f"not kept: {self.keep_problem}"))
        )

    @property
    def digest(self) -> str:
        """Digest of the policies in force; differs between replicas that have different policies."""
        return self.current.digest

    @property
    def unsent(self) -> tuple[Unsent, ...]:
        """What the policies in force deny and the shipped webhook configuration does not send."""
        current = self.current
        if current is not self._unsent_of:
            self._unsent, self._unsent_of = tuple(unsent_by_deny(current.validating)), current
        return self._unsent

    @property
    def templates(self) -> tuple[str, ...]:
        """The templates of ClaimTemplates in force, as `NAME=VERSION`."""
        return tuple(f"{each.template.name}={each.template.version}" for each in self.current.templates)

    @property
    def rejected(self) -> tuple[str, ...]:
        """Names of the files in the folder that are not in force."""
        return tuple(dict.fromkeys(problem.file for problem in self.problems))

    @property
    def problem(self) -> str:
        """Why files in the folder are not in force, in one line; empty if all are."""
        if not self.problems:
            return ""
        first = str(self.problems[0]).partition("\n")[0]
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        if self._keeps_all:
            return f"the folder has changed and was rejected: {first}{more}"
        kept = sum(1 for name in self.rejected if name in self._good)
        left_out = len(self.rejected) - kept
        parts = [f"the last good version of {counted(kept, 'file')} stays"] if kept else []
        parts += [f"{counted(left_out, 'new file')} {'is' if left_out == 1 else 'are'} left out"] if left_out else []
        return f"{', '.join(parts)}: {first}{more}"

    async def watch(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Poll the folder until cancelled.

        A change is loaded when two polls in a row find the same state: this debounces a change of several files.
        """
        pending: Fingerprint | None = None
        while True:
            await sleep(_POLL_SECONDS)
            await self._keep()
            look = await asyncio.to_thread(fingerprint, self._folder)
            if look == self._look:
                pending = None
            elif look == pending:
                pending = None
                self._look = look
                await self._reload_unless_newer()
            else:
                pending = look

    async def _keep(self) -> None:
        """Keep the set in force for the next start, if it is complete and not kept yet; try again after a while."""
        self._looks += 1
        keeper = self._options.keeper
        if keeper is None or self.problems or self._kept == self.digest or self._looks % _KEEP_LOOKS != 1:
            return
        kept = kept_set(self._good, self._folder, self.loaded_at)
        try:
            await keeper.write(pack(kept), kept.digest)
        except KeepError as error:
            self.keep_problem = str(error)
            if self._keep_logged.first(self.keep_problem):
                log.warning("policies not kept for the next start: %s", error)
        else:
            self._kept, self.keep_problem = self.digest, ""

    async def _reload_unless_newer(self) -> None:
        """Reload; if the folder changes meanwhile, cancel that, because the result would be old."""
        loading = asyncio.create_task(self.reload())
        try:
            while not loading.done():
                await asyncio.wait([loading], timeout=_POLL_SECONDS)
                if not loading.done() and await asyncio.to_thread(fingerprint, self._folder) != self._look:
                    self._superseded.set()
                    await loading
            await loading
        finally:
            self._superseded.set()
            loading.cancel()

    async def reload(self) -> None:
        """Load the folder, or keep in force what was, and report why."""
        self._superseded.clear()
        try:
            loaded = await asyncio.to_thread(self._load)
        except SupersededError:
            log.info("loading cancelled: the folder has changed again", extra={"folder": str(self._folder)})
        except PolicyError as error:
            self._refuse(error.problems)
        except Exception:
            # The set in force stays, and the watch goes on.
            log.exception("policies not reloaded", extra={"folder": str(self._folder)})
            self._refuse((PolicyProblem(str(self._folder), 0, "loading failed; see the log."),), logged=True)
        else:
            if loaded is not None:
                self._take(loaded)

    def _load(self) -> Loaded | None:
        """The files of the folder, loaded; None if they are those in force.

        Raises:
            PolicyError: the set in force has to stay.
            SupersededError: the folder has a newer state.
        """
        options = self._options
        files, unreadable = read_files(self._folder)
        if not unreadable and digest(files) == self._seen:
            return None if not self.problems else Loaded(self.current, files)
        if options.together and unreadable:
            raise PolicyError(unreadable)
        case_time = CaseTime(options.clock, passed=self._passed, cancelled=self._superseded.is_set)

        def load_files(chosen: Mapping[str, bytes]) -> PolicySet:
            """The set of these files; the one in force if the files are the same."""
            if digest(chosen) == self._seen:
                return self.current
            return load(chosen, case_time=case_time, served=options.served)

        loaded = (
            Loaded(load_files(files), files)
            if options.together
            else load_each(files, unreadable, self._good, load_files)
        )
        self._passed = case_time.passed_of(loaded.files)
        return loaded

    def _take(self, loaded: Loaded) -> None:
        complete_at = self.loaded_at
        if loaded.policies is not self.current:
            _log_notes(loaded.policies)
            self.current, self.loaded_at = loaded.policies, self._options.now()
            self._good, self._seen = loaded.files, digest(loaded.files)
        if loaded.problems:
            self._refuse(loaded.problems, all_stay=False, complete_at=complete_at)
            return
        self.problems = ()
        self.older_since = None
        self.reloads["success"] += 1
        extra = {"files": self.current.files, "policies": len(self.current.rules)}
        log.info("policies reloaded", extra=extra)

    def _refuse(
        self,
        problems: tuple[PolicyProblem, ...],
        *,
        all_stay: bool = True,
        logged: bool = False,
        complete_at: dt.datetime | None = None,
    ) -> None:
        if self.older_since is None:
            self.older_since = complete_at or self.loaded_at
        self.problems = problems
        self._keeps_all = all_stay
        self.reloads["failure"] += 1
        if logged:
            return
        shown = [str(problem) for problem in problems[:_PROBLEMS_LOGGED]]
        extra = {"problems": shown, "number": len(problems)}
        if all_stay:
            log.error("policies not reloaded: the set in force stays", extra=extra)
        else:
            log.error("policy files not loaded: last good versions stay, new files are left out", extra=extra)


def load_each(
    files: Mapping[str, bytes],
    unreadable: Sequence[PolicyProblem],
    good: Mapping[str, bytes],
    load: Callable[[Mapping[str, bytes]], PolicySet],
) -> Loaded:
    """Load every file that can be loaded, and the last good version of the others.

    A new file with a problem is left out, and then removed files stay in force too: the new file may be a removed one
    under another name.

    Args:
        files: content by name of the files that can be read.
        unreadable: problems of the files that cannot be read.
        good: the files of the set in force.

    Raises:
        PolicyError: the last good versions do not fit the changed files, or a problem is of no file; the set in force
            has to stay.
    """
    problems = list(unreadable)
    chosen = dict(files)
    settled: set[str] = set()
    faulty = {problem.file for problem in unreadable}
    while True:
        if faulty & settled or not faulty <= chosen.keys() | good.keys() | {each.file for each in unreadable}:
            raise PolicyError(problems)
        settled |= faulty
        for name in faulty:
            if name in good and chosen.get(name) != good[name]:
                chosen[name] = good[name]
            else:
                chosen.pop(name, None)
        if faulty - good.keys():
            removed = {name: content for name, content in good.items() if name not in files}
            settled |= removed.keys()
            chosen |= removed
        try:
            return Loaded(load(chosen), chosen, tuple(problems))
        except PolicyError as error:
            problems += error.problems
            faulty = {problem.file for problem in error.problems}


def _log_notes(found: PolicySet) -> None:
    """Log the warnings about files that are in force."""
    for note in found.notes[:_PROBLEMS_LOGGED]:
        log.warning("policy files: %s", note)
