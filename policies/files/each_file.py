"""Loads changed policy files one by one: a faulty file does not keep the others from loading.

The last good version of a faulty file stays. A new file with a problem is left out, and then removed files stay in
force too: the new file may be a removed one under another name.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from policies.files.folders import PolicyError
from policies.judging.policy_set import PolicySet
from policies.schema.documents import PolicyProblem

Load = Callable[[Mapping[str, bytes]], PolicySet]


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


def load_each(
    files: Mapping[str, bytes], unreadable: Sequence[PolicyProblem], good: Mapping[str, bytes], load: Load
) -> Loaded:
    """Load every file that can be loaded, and the last good version of the others.

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
