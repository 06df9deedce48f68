"""The kubelet under the driver's tests is a real one."""

from tests.cluster.api import Api
from tests.cluster.kubelet import Kubelet
from tests.cluster.manifests import container, pod
from tests.cluster.nodes import resource_slice
from tests.cluster.processes import eventually


def wait_running(api: Api, namespace: str, name: str) -> None:
    def attempt() -> bool:
        status = api.get("Pod", name, namespace)["status"]
        assert status["phase"] == "Running", status
        return True

    eventually(f"{name} to run", attempt, timeout=40)


def test_a_pod_runs_with_the_environment_and_mounts_of_its_containers(
    api: Api, namespace: str, kubelet: Kubelet
) -> None:
    environment = [{"name": "GREETING", "value": "hello"}]
    init = container("init", command=["true"])
    api.create(pod("p", container(env=environment), initContainers=[init]), namespace)
    wait_running(api, namespace, "p")
    made = kubelet.runtime.created(namespace, "p")
    assert list(made) == ["init", "main"]
    assert made["main"].sees.env["GREETING"] == "hello"
    assert "/etc/hosts" in made["main"].sees.mounts
    api.delete("Pod", "p", namespace)
    eventually("the pod to be gone", lambda: api.find("Pod", "p", namespace) is None, timeout=40)


def test_a_starting_kubelet_deletes_the_slices_of_its_node(api: Api, kubelet: Kubelet) -> None:
    made = resource_slice(kubelet.node, "trn2.48xlarge")
    api.create(made)
    kubelet.restart()
    name = made["metadata"]["name"]
    eventually("the slice to be gone", lambda: api.find("ResourceSlice", name) is None, timeout=40)
