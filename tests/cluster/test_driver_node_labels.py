"""Pods of a LeaderWorkerSet find the nodes of one UltraServer by labels that the drivers set."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.driver import Driver, bare_node, install_rbac, opaque, whole_node
from tests.cluster.manifests import claim_template, container, pod, wait_scheduled
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually

TYPE = "trn2u.48xlarge"
PREFIX = "neuron.amazonaws.com/ultraserver-"
SERVER = f"{PREFIX}server-id-4"
GROUP = "leaderworkerset.sigs.k8s.io/group-key"
NODES, MEMBERS = 8, 4


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Paths of sockets are short."""
    path = Path(tempfile.mkdtemp(prefix="us-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def drivers(control_plane: ControlPlane, fleet: Fleet, short_path: Path) -> Iterator[dict[str, Driver]]:
    """Eight nodes of two UltraServers, each with its driver; every second node belongs to the same."""
    install_rbac(control_plane.admin)
    made: dict[str, Driver] = {}
    try:
        for number in range(NODES):
            name = fleet.add(TYPE, publish=False)
            directories = bare_node(name, short_path / str(number) / "k")
            flags = (
                "--registration-wait=0",
                f"--emulate-ultraserver=us-{number % 2}",
                f"--emulate-node-id={number // 2}",
            )
            made[name] = Driver(control_plane, directories, TYPE, flags=flags)
            made[name].process.start()
        for driver in made.values():
            driver.process.wait_ready(lambda driver=driver: len(driver.devices()) == 17)  # type: ignore[misc]
        yield made
    finally:
        for driver in made.values():
            driver.process.stop()


def labels(api: Api, node: str) -> dict[str, str]:
    """The UltraServer labels of a node, without their prefix."""
    found = api.get("Node", node)["metadata"]["labels"]
    return {key.removeprefix(PREFIX): value for key, value in found.items() if key.startswith(PREFIX)}


def member(name: str, group: str, *, leader: bool, server: str = "") -> Object:
    """A pod of a LeaderWorkerSet with the annotation `exclusive-topology`, as its controller makes it.

    The leader seeks a domain without other groups; the workers are bound to the domain of their leader.
    """
    own = {"matchExpressions": [{"key": GROUP, "operator": "In", "values": [group]}]}
    others = {
        "matchExpressions": [
            {"key": GROUP, "operator": "Exists"},
            {"key": GROUP, "operator": "NotIn", "values": [group]},
        ]
    }
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    placement: Object = {"nodeSelector": {SERVER: server}}
    if leader:
        affinity = {
            "podAffinity": {required: [{"labelSelector": own, "topologyKey": SERVER}]},
            "podAntiAffinity": {required: [{"labelSelector": others, "topologyKey": SERVER}]},
        }
        placement = {"affinity": affinity}
    return pod(
        name,
        container(resources={"claims": [{"name": "neuron"}]}),
        labels={GROUP: group},
        resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": "us-4"}],
        **placement,
    )


@pytest.mark.timeout(240)
@pytest.mark.needs("counters")
def test_each_group_of_a_leaderworkerset_gets_the_nodes_of_one_ultraserver(
    api: Api, namespace: str, drivers: dict[str, Driver]
) -> None:
    def labelled() -> bool:
        for name in drivers:
            found = labels(api, name)
            assert set(found) == {"mode", "server-id-2", "server-id-4", "node-id-2", "node-id-4"}, (name, found)
        return True

    eventually("every node to be labelled", labelled, timeout=30)
    servers = {name: labels(api, name)["server-id-4"] for name in drivers}
    assert sorted(list(servers.values()).count(server) for server in set(servers.values())) == [MEMBERS, MEMBERS]

    api.create(claim_template("us-4", whole_node(opaque("UltraServerConfig", ultraserverMode=4))), namespace)
    used = []
    for group in ("a", "b"):
        api.create(member(f"{group}-0", group, leader=True), namespace)
        places = [wait_scheduled(api, namespace, f"{group}-0")["spec"]["nodeName"]]
        server = api.get("Node", places[0])["metadata"]["labels"][SERVER]
        for number in range(1, MEMBERS):
            api.create(member(f"{group}-{number}", group, leader=False, server=server), namespace)
        places += [
            wait_scheduled(api, namespace, f"{group}-{number}")["spec"]["nodeName"] for number in range(1, MEMBERS)
        ]
        print(f"group {group}: {places} on UltraServer {server}")  # noqa: T201 - shown with -s
        assert len(set(places)) == MEMBERS
        assert {servers[place] for place in places} == {server}
        used.append(server)
    assert used[0] != used[1], "the domain is exclusive"


@pytest.mark.timeout(240)
@pytest.mark.needs("counters")
def test_labels_follow_the_membership_and_are_restored(api: Api, drivers: dict[str, Driver]) -> None:
    name, driver = next(iter(drivers.items()))
    files = driver.sysfs / "class/neuron_device"
    before = eventually("the labels", lambda: labels(api, name))
    api.merge("Node", name, {"metadata": {"labels": {SERVER: "wrong", f"{PREFIX}mode": None}}})
    eventually("the labels to be back", lambda: labels(api, name) == before, timeout=10)
    (files / "server_id_4").write_text("00000000deadbeef\n")
    eventually("the new server", lambda: labels(api, name).get("server-id-4") == "00000000deadbeef", timeout=10)
    (files / "node_id_4").write_text("-1\n")
    gone = {"server-id-4", "node-id-4"}
    eventually("the labels of the set of four to go", lambda: not gone & labels(api, name).keys(), timeout=10)
    assert labels(api, name)["server-id-2"] == before["server-id-2"]
    driver.process.stop()
    assert labels(api, name)["server-id-2"] == before["server-id-2"], "the membership is true without the driver"
