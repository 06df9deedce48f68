"""Our policies answer recorded requests as the API server did (tests/cluster/test_policy_requests.py records them)."""

import json
from typing import Any, Final

import pytest

from policies.judging.rules import PolicySet
from tests.support.policy_requests import POLICIES, RECORD, our_warnings, ours

RECORDED: Final[dict[str, Any]] = json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    return ours()


@pytest.mark.parametrize("name", RECORDED)
def test_warnings_equal_those_that_the_api_server_sent(policies: PolicySet, name: str) -> None:
    recorded = RECORDED[name]
    assert our_warnings(policies, recorded["review"], recorded["namespace"]) == recorded["warned"]


def test_every_policy_warned_of_at_least_one_request() -> None:
    never = set(POLICIES) - {policy for each in RECORDED.values() for policy in each["warned"]}
    assert never == NEVER


NEVER: Final = {
    # Rules that name a kind: requests match by resource.
    *("evictions-of-policy", "scale-of-autoscaling", "scales"),
    # Fields of a Namespace that the API server leaves out of `namespaceObject`, or that this Namespace does not have.
    *("ns-conditions", "ns-deleted", "ns-finalizers", "ns-kind", "ns-no-annotation", "ns-uid"),
}
"""Policies whose rules must match nothing, or whose expression holds for every request."""
