"""UltraServer nodes whose devices consume shared counters: converted pods get free groups beside devices in use."""

import pytest

from neuron.hardware.windows import Line
from tests.cluster.api import Api
from tests.cluster.manifests import container, pod, scheduled_devices, unschedulable_message
from tests.cluster.nodes import INSTANCE_TYPE, Fleet
from tests.support import mixtures
from tests.support.mixtures import Hardware

pytestmark = pytest.mark.needs("counters")

TRN2U = Hardware("trn2u.48xlarge", Line(16, wraps=False), 8, whole=True, logical=2)


def run(api: Api, namespace: str, name: str, count: int) -> None:
    api.create(pod(name, container(neuron=count), nodeSelector={INSTANCE_TYPE: TRN2U.name}), namespace)


@pytest.mark.usefixtures("webhook")
def test_groups_are_allocated_beside_a_device_in_use(api: Api, namespace: str, fleet: Fleet) -> None:
    """With the attribute of the group, Kubernetes 1.36.2 refuses each of them (kubernetes/kubernetes#140436)."""
    fleet.add_publishing(TRN2U.name, mixtures.slices(TRN2U))
    run(api, namespace, "one", 1)
    assert scheduled_devices(api, namespace, "one") == [0]
    run(api, namespace, "eight", 8)
    assert scheduled_devices(api, namespace, "eight") == list(range(8, 16))
    run(api, namespace, "four", 4)
    assert scheduled_devices(api, namespace, "four") == [4, 5, 6, 7]
    run(api, namespace, "another", 4)
    unschedulable_message(api, namespace, "another", "cannot allocate all claims")
    api.delete("Pod", "one", namespace, force=True)
    assert scheduled_devices(api, namespace, "another") == [0, 1, 2, 3]


@pytest.mark.usefixtures("webhook")
def test_two_containers_get_a_group_each(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add_publishing(TRN2U.name, mixtures.slices(TRN2U))
    run(api, namespace, "one", 1)
    assert scheduled_devices(api, namespace, "one") == [0]
    both = [container("large", neuron=8), container("small", neuron=4)]
    api.create(pod("both", *both, nodeSelector={INSTANCE_TYPE: TRN2U.name}), namespace)
    assert scheduled_devices(api, namespace, "both") == list(range(4, 16))
