"""What the driver publishes on a real API server that tells a version with known faults (`neuron.known_faults`)."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import USER, Driver, bare_node, install_rbac
from tests.cluster.nodes import Fleet
from tests.cluster.other_version import telling
from tests.cluster.processes import eventually

pytestmark = pytest.mark.needs("counters", "shares")
TYPE = "trn2u.48xlarge"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Paths of sockets are short."""
    with tempfile.TemporaryDirectory(prefix="wh-") as path:
        yield Path(path)


@pytest.mark.parametrize(
    ("version", "counters", "shares", "said"),
    [
        pytest.param("v1.36.1-eks-1a2b3c4", False, True, "kubernetes/kubernetes#138882", id="counters are withheld"),
        pytest.param("v1.35.6", True, False, "kubernetes/kubernetes#139034", id="shares are withheld"),
        pytest.param("v1.36.2", True, True, "", id="nothing is withheld"),
    ],
)
def test_the_version_decides_which_fields_are_published(
    control_plane: ControlPlane,
    fleet: Fleet,
    short_path: Path,
    version: str,
    said: str,
    *,
    counters: bool,
    shares: bool,
) -> None:
    """The API server keeps all of it: only the version that it tells differs."""
    install_rbac(control_plane.admin)
    node = bare_node(fleet.add(TYPE, publish=False), short_path / "k")
    flags = ("--registration-wait=0", "--share-cores=on")
    with telling(control_plane, version, USER) as kubeconfig:
        driver = Driver(control_plane, node, TYPE, flags=flags, kubeconfig=kubeconfig)
        driver.start_alone()
        try:
            single = eventually("the devices to be published", lambda: _settled(driver, 17 if counters else 16))
            assert any(each["spec"].get("sharedCounters") for each in driver.slices()) is counters
            assert all("consumesCounters" in each for each in single) is counters
            assert any("consumesCounters" in each for each in single) is counters
            assert {each.get("allowMultipleAllocations", False) for each in single} == {shares}
            log = driver.process.log.read_text()
            assert "publishing is limited" in log if said else "publishing is limited" not in log
            assert said in log
        finally:
            driver.process.stop()


def _settled(driver: Driver, number: int) -> list[dict[str, object]]:
    """The single devices, when so many devices are published; empty before."""
    found = driver.devices()
    kinds = {each["name"]: each["attributes"]["resourceType"]["string"] for each in found}
    return [each for each in found if kinds[each["name"]] == "neuron_device"] if len(found) == number else []
