"""The table of rules for policies, and generated policies: the API server refuses what the loader refuses."""

from typing import Any

import pytest
import yaml

from tests.cluster.api import Api, ApiError
from tests.policies.policy_files import problems
from tests.support.policy_probes import BINDING, BINDING_PROBES, POLICY, PROBES, generated, with_value

_GROUP = "/apis/admissionregistration.k8s.io/v1"
_NO_POLICY = "no file has a policy of that name"
_COUNT = 400
_SEED = 20261127


def refused(api: Api, data: dict[str, Any]) -> str:
    """Why the API server refuses an object on a dry run; empty if it accepts it."""
    plural = "validatingadmissionpolicies" if data["kind"].endswith("Policy") else "validatingadmissionpolicybindings"
    try:
        api.request("POST", f"{_GROUP}/{plural}?dryRun=All&fieldValidation=Strict", json=data)
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("path", "value", "accepted"), PROBES.values(), ids=PROBES)
def test_policies(api: Api, path: str, value: Any, accepted: bool) -> None:
    why = refused(api, with_value(POLICY, path, value))
    assert (not why) is accepted, why


@pytest.mark.parametrize(("path", "value", "accepted"), BINDING_PROBES.values(), ids=BINDING_PROBES)
def test_bindings(api: Api, path: str, value: Any, accepted: bool) -> None:
    why = refused(api, with_value(BINDING, path, value))
    assert (not why) is accepted, why


def test_generated_policies(api: Api) -> None:
    different = []
    for policy in generated(_COUNT, _SEED):
        theirs, ours = refused(api, policy), problems(yaml.safe_dump(policy))
        if bool(theirs) is not bool(ours):
            different.append((policy["spec"], theirs, ours))
    assert different == []
