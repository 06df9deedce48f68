"""ResourceClaims of the API server: allocation, reservations, status of devices."""

from typing import Any

import pytest

from neuron import names
from neuron.api.fields import WrongFormError
from neuron.api.stored_claims import Allocation, StoredClaim, read_stored_claim

RESULT = {"driver": names.DRIVER, "request": "r", "pool": "a", "device": "d0", "shareID": "s", "newer": 1}


def claim_with_status(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r"}]}}, "status": status}


def test_a_claim_without_a_status_is_not_allocated() -> None:
    found = read_stored_claim({"metadata": {"name": "c", "ownerReferences": None}, "status": None})
    assert (found.allocation, found.ours, found.pods, found.spec) == (None, (), (), {})
    assert isinstance(found, StoredClaim)


def test_what_an_allocated_claim_says() -> None:
    allocation = {"devices": {"results": [RESULT, {**RESULT, "driver": "dra.net"}], "config": None}}
    users = [{"resource": "pods", "name": "p", "uid": "u"}, {"resource": "jobs", "name": "j"}]
    found = read_stored_claim(claim_with_status(allocation=allocation, reservedFor=users))
    assert [(each.device, each.share_id, each.cores) for each in found.ours] == [("d0", "s", None)]
    assert [each.name for each in found.pods] == ["p"]
    assert found.spec == {"devices": {"requests": [{"name": "r"}]}}
    assert read_stored_claim(claim_with_status(allocation={})).allocation == Allocation()


@pytest.mark.parametrize("spelling", names.CORES_SPELLINGS)
def test_cores_of_a_share_in_both_spellings(spelling: str) -> None:
    result = {**RESULT, "consumedCapacity": {spelling: "2"}}
    [found] = read_stored_claim(claim_with_status(allocation={"devices": {"results": [result]}})).ours
    assert found.cores == "2"


def test_another_form_is_refused_with_its_path() -> None:
    body = claim_with_status(allocation={"devices": {"results": [{**RESULT, "pool": 1}]}})
    with pytest.raises(WrongFormError, match=r"got `int` - at `\$\.status\.allocation\.devices\.results\[0\]\.pool`"):
        read_stored_claim(body)
