"""What `make release` writes for clusters, on one: `install.yaml` by kubectl, the chart from its OCI layout by Helm."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import helm_python
import pytest
import yaml

from deploy import release
from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.helm import Helm
from tests.cluster.kubectl import Kubectl
from tests.cluster.processes import eventually
from tests.deploy import registry

ROOT: Final = Path(__file__).resolve().parents[2]
NAMESPACE: Final = "neuron-dra"
REGISTRY: Final = "registry.example.com/neuron"
DIGESTS: Final = {"webhook": f"sha256:{'a' * 64}", "kubeletPlugin": f"sha256:{'b' * 64}"}
"""No pod starts here: nothing is pulled."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "deploy.release", folder, "--unpinned", f"--registry={REGISTRY}"]
    command += [f"--{value}={digest}" for value, digest in DIGESTS.items()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def kubectl(own_control_plane: ControlPlane) -> Iterator[Kubectl]:
    """An admin's; nothing is left of the installation afterwards."""
    made = own_control_plane.kubectl().within("")
    yield made
    label = "-lapp.kubernetes.io/name=neuron-dra"
    made.must("delete", "mutatingwebhookconfigurations,validatingwebhookconfigurations", label)
    kinds = made.must("api-resources", "--verbs=delete,list", "-o", "name").stdout.split()
    made.must("delete", ",".join(kinds), "-A", label, "--ignore-not-found", "--wait=false")
    eventually("nothing to be left", lambda: not made.must("get", "namespaces", label, "-o", "name").stdout, timeout=60)


def images(kubectl: Kubectl) -> dict[str, str]:
    """Image by component, of pods and of what makes them."""
    listed = kubectl.within(NAMESPACE).get("deployments,daemonsets", "-lapp.kubernetes.io/name=neuron-dra")["items"]
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["spec"]["containers"][0][
            "image"
        ]
        for each in listed
    }


PINNED: Final = {
    "webhook": f"{REGISTRY}/neuron-dra@{DIGESTS['webhook']}",
    "kubelet-plugin": f"{REGISTRY}/neuron-dra-kubelet-plugin@{DIGESTS['kubeletPlugin']}",
}


def replicas(kubectl: Kubectl) -> list[Object]:
    found: list[Object] = kubectl.within(NAMESPACE).get("pods", "-lapp.kubernetes.io/component=webhook")["items"]
    return found


def test_install_yaml_is_accepted_and_applying_it_again_changes_nothing(dist: Path, kubectl: Kubectl) -> None:
    file = str(dist / "install.yaml")
    objects = [each for each in yaml.safe_load_all((dist / "install.yaml").read_text()) if each]
    [namespace] = [each for each in objects if each["kind"] == "Namespace"]
    assert kubectl.feed("apply --server-side", namespace).ok  # A dry run makes none for the objects in it.
    tried = kubectl.must("apply", "--server-side", "--dry-run=server", "-f", file)
    assert (len(tried.stdout.splitlines()), tried.warnings) == (len(objects), ())
    assert images(kubectl) == {}
    applied = kubectl.must("apply", "--server-side", "-f", file)
    assert applied.warnings == ()
    assert len(kubectl.must("get", "-f", file, "-o", "name").stdout.split()) == len(objects)
    assert images(kubectl) == PINNED
    assert eventually("the replicas", lambda: len(replicas(kubectl)) == 2, timeout=60)
    again = kubectl.run("diff", "--server-side", "-f", file)
    assert (again.code, again.stdout) == (0, ""), again.stderr
    kubectl.must("delete", "-f", file)


def test_helm_installs_the_chart_that_is_in_the_layout(
    dist: Path, kubectl: Kubectl, own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    version = release.check_versions(ROOT)
    with registry.serving() as served:
        served.upload(dist)
        chart = f"oci://{served.address}/{release.CHART_REPOSITORY}"
        helm_python.pull(chart, version=version, destination=tmp_path, plain_http=True)
    kubectl.must("create", "namespace", NAMESPACE)
    kubectl.must("label", "namespace", NAMESPACE, "app.kubernetes.io/name=neuron-dra")  # So that it is cleared.
    helm = Helm(own_control_plane, NAMESPACE)
    try:
        helm.install({"image": {"registry": REGISTRY}}, chart=tmp_path / f"neuron-dra-{version}.tgz")
        assert images(kubectl) == PINNED
        assert eventually("the replicas", lambda: len(replicas(kubectl)) == 2, timeout=60)
        helm.uninstall()
        assert images(kubectl) == {}
    finally:
        helm.close()
