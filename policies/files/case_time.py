"""Bounds the time that the embedded test cases of all files may take while a set of policies is loaded.

Without a bound, a file of some KiB could delay the start of a server by minutes, and block every reload.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kubecel.budget import Clock
from policies.files.cases import AnyRule, number_of_cases, run_cases
from policies.files.folders import PolicyError
from policies.judging.knowledge import CountPods, no_kind_known
from policies.judging.rules import MutatingRule
from policies.schema.documents import PolicyProblem

CASE_SECONDS: Final = 5.0
"""For all cases of all files together, in one load of the folder."""


class SupersededError(Exception):
    """The load was cancelled: the folder has a newer state."""


class CaseTime:
    """The time for embedded cases in one load of the folder, also if it tries several sets of files.

    Files whose cases have passed before are not tested again: a case depends only on its own file.

    Attributes:
        passed: digests of the contents of files whose cases passed.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: float = CASE_SECONDS,
        passed: Iterable[str] = (),
        cancelled: Callable[[], bool] = lambda: False,
        count_pods: CountPods = no_kind_known,
    ) -> None:
        self._clock = clock
        self._left = self._seconds = seconds
        self._until = 0.0
        self._cancelled = cancelled
        self._count_pods = count_pods
        self.passed = set(passed)

    def run(self, rules: Iterable[AnyRule], files: Mapping[str, bytes]) -> None:
        """Run the cases of all rules; files with few cases are first, so that a long one does not keep them waiting.

        Raises:
            PolicyError: cases fail, or are not finished in time.
            SupersededError: the load was cancelled.
        """
        by_file: dict[str, list[AnyRule]] = {}
        for rule in rules:
            by_file.setdefault(rule.document.file, []).append(rule)
        digests = {name: _digest(files[name]) for name in by_file}
        waiting = [name for name in by_file if digests[name] not in self.passed]
        waiting.sort(key=lambda name: (sum(number_of_cases(rule) for rule in by_file[name]), name))
        spent: dict[str, float] = {}
        failures: list[PolicyProblem] = []
        self._until = self._clock() + self._left
        for at, name in enumerate(waiting):
            if self._cancelled():
                raise SupersededError
            found, finished = self._run(by_file[name], spent, name)
            self._left = self._until - self._clock()
            failures += found
            if not finished:
                late = [self._late(by_file[each][0], spent) for each in waiting[at:]]
                raise PolicyError([*failures, *late])
            # A case of a mutating policy depends on the files of its bindings and cases, too.
            if not found and not any(isinstance(rule, MutatingRule) and rule.tests for rule in by_file[name]):
                self.passed.add(digests[name])
        if failures:
            raise PolicyError(failures)

    def passed_of(self, files: Mapping[str, bytes]) -> frozenset[str]:
        """The digests of these files whose cases passed."""
        return frozenset(map(_digest, files.values())) & self.passed

    def _run(self, rules: Iterable[AnyRule], spent: dict[str, float], name: str) -> tuple[list[PolicyProblem], bool]:
        """Failures of the cases of one file, and whether all were run in time."""
        failures: list[PolicyProblem] = []
        for rule in rules:
            left = self._time_left
            cases = run_cases(rule, self._clock, left, lapses=True, count_pods=self._count_pods)
            for result in cases:
                spent[name] = spent.get(name, 0.0) + result.seconds
                if self._cancelled():
                    raise SupersededError
                # The result of a case that had too little time proves nothing.
                if self._clock() >= self._until:
                    return failures, False
                if result.failure is not None:
                    failures.append(result.failure)
        return failures, True

    def _time_left(self) -> float:
        return self._until - self._clock()

    def _late(self, rule: AnyRule, spent: Mapping[str, float]) -> PolicyProblem:
        """The problem of a file with cases that were not finished in time."""
        slowest = max(spent, key=lambda name: spent[name], default="")
        used = f"; {slowest} used {spent[slowest]:.1f} s of it" if slowest else ""
        message = (
            f"the embedded tests of all files together took longer than {self._seconds:g} s{used}, and tests of this"
            " file were not finished. Write fewer tests, or smaller objects in them; `neuron-dra policy test` runs them"
            " without this limit."
        )
        return rule.document.problem(("spec", "tests"), message)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
