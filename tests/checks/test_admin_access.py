"""adminAccess to Neuron devices is reported; to devices of other drivers it is not."""

from typing import Any

import pytest

from tests.support.validation import claim, devices, first_available, judge, request


def test_admin_access_is_reported() -> None:
    spec = claim(request("mine", 1), request("looks", None, mode="All", adminAccess=True))
    (finding,) = [each for each in judge(spec) if each.code == "NEU544"]
    assert (str(finding.severity), finding.path) == ("warning", "spec.devices.requests[1].exactly.adminAccess")
    assert str(finding).startswith("NEU544: adminAccess gives its containers Neuron devices that other claims hold.")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(claim(request("mine", 1)), id="none"),
        pytest.param(claim(request("mine", 1, adminAccess=False)), id="false"),
        pytest.param(
            claim(request("other", 1, adminAccess=True, deviceClassName="gpu.example.com")), id="other driver"
        ),
        pytest.param(
            claim(first_available("any", one={**devices(1), "adminAccess": True})), id="the API server drops it"
        ),
    ],
)
def test_requests_without_admin_access_are_not_reported(spec: Any) -> None:
    assert "NEU544" not in [each.code for each in judge(spec)]
