"""Builds this replica's report for its Lease from readiness checks and policies."""

import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from cluster.kinds.replicas import LONGEST_CONDITION, ReplicaStatus, UnsentStatus
from webhook.edge.health import Check

if TYPE_CHECKING:
    # Policies take 20 MiB: loaded only where there are some.
    from policies.judging.coverage import Unsent

_WITH_DETAIL: Final = ("caches", "policy rules", "policy permissions")
"""Checks whose detail is reported although they pass: such a problem does not make the replica unready."""
_NO_TYPES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})


class PolicyState(Protocol):
    """The state of the policies."""

    @property
    def digest(self) -> str:
        """Digest of the policies in force."""

    @property
    def problem(self) -> str:
        """Why a newer set was not loaded; empty if there is none."""

    @property
    def older_since(self) -> dt.datetime | None:
        """When the older set was loaded of which files are in force; None: all files of the folder are."""

    @property
    def unsent(self) -> "tuple[Unsent, ...]":
        """What policies with Deny see only if the webhook configuration was changed for them."""

    @property
    def templates(self) -> tuple[str, ...]:
        """The templates of ClaimTemplate policies, as `NAME=VERSION`."""


def report(
    version: str,
    mode: str,
    checks: Mapping[str, Check],
    policies: PolicyState | None,
    types: Mapping[str, tuple[str, ...]] = _NO_TYPES,
) -> ReplicaStatus:
    """A report without `bundle`, `serving` and `not_after`, which `Certificates.report` adds.

    Args:
        mode: default mode of conversion.
        checks: readiness checks by name.
        policies: None: no policies.
        types: instance types that other replicas should know.
    """
    ready, problems = True, []
    for name, check in checks.items():
        passed, detail = check()
        ready = ready and passed
        if not passed:
            problems.append(f"{name}: {detail}" if detail else name)
        elif detail and name in _WITH_DETAIL:
            problems.append(detail)
    # Bounded, so that the whole report fits into an annotation.
    return ReplicaStatus(
        version=version,
        mode=mode,
        ready=ready,
        problems=tuple(problem[:500] for problem in problems[:10]),
        policies=policies.digest if policies else "",
        policies_problem=policies.problem[:500] if policies else "",
        policies_since=_text(policies.older_since) if policies else "",
        unsent=tuple(map(_status, policies.unsent[:16])) if policies else (),
        templates=policies.templates[:64] if policies else (),
        types=dict(types),
    )


def _status(each: "Unsent") -> UnsentStatus:
    return UnsentStatus(
        policy=each.policy,
        group=each.group,
        resource=each.resource,
        operation=each.operation,
        condition=each.condition[:LONGEST_CONDITION],
    )


def _text(moment: dt.datetime | None) -> str:
    return "" if moment is None else moment.isoformat(timespec="seconds")
