"""Claims in words."""

from typing import Any

import pytest

from commands.explain.render import claim_lines
from neuron import names
from neuron.api.claim_reader import claim_spec
from neuron.api.claim_specs import ClaimSpec

CLASS = {"deviceClassName": names.DEVICE_CLASS}


def spec(*requests: dict[str, Any], **more: Any) -> ClaimSpec:
    return claim_spec(
        {"devices": {"requests": [{"name": f"n{at}", **each} for at, each in enumerate(requests)], **more}}
    )


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"exactly": CLASS}, "n0: 1 device of neuron.aws.com"),
        ({"exactly": {**CLASS, "count": 3}}, "n0: 3 devices of neuron.aws.com"),
        ({"exactly": {**CLASS, "allocationMode": "All"}}, "n0: all devices of neuron.aws.com"),
        (
            {"exactly": {**CLASS, "allocationMode": "All", "adminAccess": True}},
            "n0: all devices of neuron.aws.com, with adminAccess",
        ),
        (
            {"exactly": {**CLASS, "capacity": {"requests": {"neuroncores": "2"}}}},
            "n0: 1 device of neuron.aws.com, 2 neuroncores of each",
        ),
        (
            {"firstAvailable": [{"name": "a", **CLASS}, {"name": "b", "deviceClassName": "other"}]},
            "n0: 1 device of neuron.aws.com, or 1 device of other",
        ),
        (
            {"firstAvailable": [{"name": each, **CLASS, "count": 2} for each in "abc"]},
            "n0: 2 devices of neuron.aws.com, connected (by device id or by device id or 1 more way)",
        ),
    ],
)
def test_each_request_is_described(request_: dict[str, Any], text: str) -> None:
    assert list(claim_lines(spec(request_))) == [text]


def test_constraints_are_described_at_the_requests_that_they_cover() -> None:
    constraint = {"matchAttribute": names.device_group_attribute(4), "requests": ["n1"]}
    exact = {"exactly": {**CLASS, "count": 4}}
    assert list(claim_lines(spec(exact, exact, constraints=[constraint]))) == [
        "n0: 4 devices of neuron.aws.com",
        "n1: 4 devices of neuron.aws.com, connected (devicegroup4_id)",
    ]


def test_configs_of_the_driver_are_described() -> None:
    parameters = {"apiVersion": names.CONFIG_API_VERSION, "kind": "NeuronConfig", "logicalNeuronCore": 1}
    ours = {"opaque": {"driver": names.DRIVER, "parameters": parameters}}
    other = {"opaque": {"driver": "dra.net", "parameters": {"kind": "X"}}}
    assert list(claim_lines(spec(config=[ours, other]))) == ['config: NeuronConfig {"logicalNeuronCore":1}']


def test_the_requests_of_a_config_are_named_if_it_is_not_for_all() -> None:
    def config(lnc: int, *requests: str) -> dict[str, Any]:
        parameters = {"apiVersion": names.CONFIG_API_VERSION, "kind": "NeuronConfig", "logicalNeuronCore": lnc}
        return {"requests": list(requests), "opaque": {"driver": names.DRIVER, "parameters": parameters}}

    one = {"exactly": CLASS}
    several = {"firstAvailable": [{"name": name, **CLASS} for name in ("a", "b")]}
    configs = [config(1, "n0", "n1/a", "n1/b"), config(2, "n2"), config(2, "n0", "n1/a", "n1/b", "n2"), config(1)]
    assert list(claim_lines(spec(one, several, one, config=configs)))[-4:] == [
        'config of n0, n1: NeuronConfig {"logicalNeuronCore":1}',
        'config of n2: NeuronConfig {"logicalNeuronCore":2}',
        'config: NeuronConfig {"logicalNeuronCore":2}',
        'config: NeuronConfig {"logicalNeuronCore":1}',
    ]
