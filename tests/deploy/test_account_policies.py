"""What the chart's ValidatingAdmissionPolicies let each of our ServiceAccounts write."""

import pytest

from tests.deploy.account_requests import DRIVER, DRIVER_REQUESTS, NODE, Request
from tests.deploy.admission import POD_NODE, Policies
from tests.deploy.charts import render


@pytest.fixture(scope="module")
def policies() -> Policies:
    return Policies(render())


def refusals(policies: Policies, request: Request) -> list[str]:
    group, _, plural = request.resource.split("/")
    extra = {POD_NODE: NODE} if request.account == DRIVER else {}
    return policies.refusals(
        request.account,
        request.operation,
        f"{group}/{plural}",
        None if request.verb == "DELETE" else request.new,
        request.old,
        extra=extra,
        dry_run=request.dry_run,
    )


@pytest.mark.parametrize("request_", DRIVER_REQUESTS, ids=lambda each: each.name)
def test_the_driver_writes_what_is_of_its_node(policies: Policies, request_: Request) -> None:
    said = refusals(policies, request_)
    if request_.said:
        assert any(request_.said in each for each in said), said
    else:
        assert said == []


def test_a_token_without_a_node_writes_no_slice(policies: Policies) -> None:
    own = DRIVER_REQUESTS[0]
    said = policies.refusals(DRIVER, "CREATE", "resource.k8s.io/resourceslices", own.body)
    assert any("names no node" in each for each in said)
