"""What this replica reports in its Lease (`webhook.cluster.replicas.ReplicaStatus`)."""

from collections.abc import Mapping
from typing import Final, Protocol

from webhook.cluster.replicas import ReplicaStatus
from webhook.edge.health import Check

_TELLING: Final = ("caches",)
"""Checks that pass in spite of what they say: a cache that falls behind is no reason to send reviews elsewhere."""
_MOST: Final = 10
_LONGEST: Final = 500
"""Characters of a problem, as many as fit into an annotation along with the others."""


class Policies(Protocol):
    """What is known of the policies in force."""

    @property
    def digest(self) -> str:
        """Of the set in force."""

    @property
    def problem(self) -> str:
        """Why a newer set was refused; empty where none was."""


def report(version: str, mode: str, checks: Mapping[str, Check], policies: Policies | None) -> ReplicaStatus:
    """A replica's report, but for its certificates: `bundle`, `serving` and `not_after` are the keeper's to fill in.

    Args:
        version: of the program.
        mode: what conversion does by default.
        checks: what readiness depends on, by name.
        policies: None where there are none.
    """
    ready, problems = True, []
    for name, check in checks.items():
        passed, detail = check()
        ready = ready and passed
        if not passed:
            problems.append(f"{name}: {detail}" if detail else name)
        elif detail and name in _TELLING:
            problems.append(detail)
    return ReplicaStatus(
        version=version,
        mode=mode,
        ready=ready,
        problems=tuple(problem[:_LONGEST] for problem in problems[:_MOST]),
        policies=policies.digest if policies else "",
        policies_problem=policies.problem[:_LONGEST] if policies else "",
    )
