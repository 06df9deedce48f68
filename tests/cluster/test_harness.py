"""The control plane under the other tests is a real one: what they rely on, shown without the webhook."""

import dataclasses
import itertools
import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster import failure_logs, ordering
from tests.cluster.api import Answer, Api, ApiError, Object
from tests.cluster.controlplane import Assets, AssetsMissingError, ControlPlane
from tests.cluster.manifests import (
    claim_of,
    claim_template,
    container,
    devices_request,
    events,
    pod,
    scheduled_devices,
    unschedulable_message,
    wait_scheduled,
)
from tests.cluster.nodes import DRIVER, Fleet
from tests.cluster.planes import Planes
from tests.cluster.processes import eventually, free_ports, own_ports

HERE = Path(__file__).parent


def test_absent_binaries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    (tmp_path / "etcd").touch(mode=0o755)
    with pytest.raises(AssetsMissingError) as refused:
        Assets.locate()
    assert str(refused.value) == (
        f"no control plane to test on: {tmp_path} lacks kube-apiserver, kube-controller-manager, "
        "kube-scheduler, kubectl (there or on the PATH); "
        "set KUBEBUILDER_ASSETS to a folder that has them (docs/how-to/emulate.md)"
    )


# --- order, ownership, logs ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Listed:
    """A collected test."""

    file: str
    number: int
    in_order: bool


FILES = st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=8)


@given(FILES, st.integers(0, 2**32))
def test_a_seed_gives_one_order_in_which_files_stay_together(files: list[tuple[int, bool]], seed: int) -> None:
    tests = [Listed(f"f{file}", n, ordered) for file, (count, ordered) in enumerate(files) for n in range(count)]
    found = ordering.shuffled(tests, seed)
    assert sorted(found, key=lambda each: (each.file, each.number)) == tests
    assert found == ordering.shuffled(tests, seed)
    blocks = [file for file, _ in itertools.groupby(found, key=lambda each: each.file)]
    assert len(blocks) == len(set(blocks))
    for file, (count, ordered) in enumerate(files):
        numbers = [each.number for each in found if each.file == f"f{file}"]
        assert not ordered or numbers == list(range(count))


def test_another_seed_gives_another_order() -> None:
    tests = [Listed(f"f{file}", number, file == 0) for file in range(6) for number in range(6)]
    orders = {tuple(ordering.shuffled(tests, seed)) for seed in range(5)}
    assert len(orders) == 5


def test_long_files_come_first() -> None:
    tests = [Listed(file, number, False) for file in ("a", *reversed(ordering.LONG), "b") for number in range(2)]
    found = [file for file, _ in itertools.groupby(ordering.long_first(tests), key=lambda each: each.file)]
    assert found == [*ordering.LONG, "a", "b"]
    assert all((HERE / f"{file}.py").is_file() for file in ordering.LONG)


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/cluster/test_map.py::test_a", "tests/cluster/test_map.py"),
        ("tests/cluster/test_map.py::TestA::test_a[x::y]", "tests/cluster/test_map.py"),
        ("tests/cluster/test_soak.py::test_no_review_fails_without_disturbance", "tests/cluster/test_soak.py"),
        ("tests/cluster/test_soak.py::test_sigterm_under_load", "tests/cluster/test_soak.py::replicas"),
        (
            "tests/cluster/test_tutorials.py::test_the_commands_of_a_tutorial_print_its_output[pending]",
            "tests/cluster/test_tutorials.py::test_the_commands_of_a_tutorial_print_its_output[pending]",
        ),
    ],
    ids=["file", "class", "rest-of-a-file", "part-of-a-file", "case"],
)
def test_a_worker_takes_a_file_or_a_part_of_it(nodeid: str, unit: str) -> None:
    assert ordering.unit(nodeid) == unit


@pytest.mark.parametrize("name", ordering.APART)
def test_every_test_that_runs_apart_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert f"def {test}(" in (HERE / f"{file}.py").read_text()


class FakePlane:
    """A control plane that holds Nodes only; the API as `Planes` needs it."""

    def __init__(self) -> None:
        self.nodes: list[Object] = []
        self.stopped = False
        self.admin = self

    def request(self, method: str, path: str, **_: Any) -> Answer:
        if method == "DELETE":
            self.nodes = [each for each in self.nodes if path != f"/api/v1/nodes/{each['metadata']['name']}"]
        return Answer({"items": self.nodes if path == "/api/v1/nodes" else []}, ())

    def list(self, _kind: str) -> list[Object]:
        return []

    def delete_all(self, _kind: str, _namespace: str) -> None:
        """There are no Events."""

    def stop(self) -> None:
        self.stopped = True


def test_a_file_that_leaves_objects_is_reported_and_the_next_gets_a_new_plane() -> None:
    made = [FakePlane(), FakePlane()]
    rest = iter(made)
    planes = Planes(lambda: cast("ControlPlane", next(rest)), going=0)
    made[0].nodes = [{"metadata": {"name": name}, "spec": {}} for name in ("kept", "changed", "removed")]
    assert planes.take() is planes.take()
    made[0].nodes[0]["status"] = {"phase": "other"}
    made[0].nodes[0]["metadata"]["resourceVersion"] = "2"
    assert planes.give_back() == []
    assert not made[0].stopped
    added = {"metadata": {"name": "added"}}
    made[0].nodes = [made[0].nodes[0], {**made[0].nodes[1], "spec": {"unschedulable": True}}, added]
    assert planes.give_back() == ["added: nodes added", "changed: nodes changed", "removed: nodes removed"]
    assert made[0].stopped
    assert planes.take() is cast("ControlPlane", made[1])


@pytest.mark.parametrize("changed", [False, True], ids=["added", "added-and-changed"])
def test_objects_that_a_file_adds_to_a_lent_control_plane_are_deleted(changed: bool) -> None:
    made = [FakePlane(), FakePlane()]
    rest = iter(made)
    planes = Planes(lambda: cast("ControlPlane", next(rest)), going=0.5)
    kept = {"metadata": {"name": "kept"}, "spec": {}}
    made[0].nodes = [kept]
    planes.take()
    made[0].nodes = [{**kept, "spec": {"unschedulable": changed}} if changed else kept, {"metadata": {"name": "added"}}]
    assert planes.give_back(tidy=True) == (["added: nodes added", "changed: nodes kept"] if changed else [])
    assert len(made[0].nodes) == 1 + changed
    assert made[0].stopped == changed
    assert planes.take() is cast("ControlPlane", made[changed])


def test_logs_that_were_written_to_lie_in_a_folder_of_the_test(tmp_path: Path) -> None:
    source, target = tmp_path / "run", tmp_path / "logs"
    (source / "plane").mkdir(parents=True)
    for name, written in (("plane/apiserver.log", 2), ("plane/old.log", 1), ("plane/etcd.db", 2)):
        (source / name).write_text(name)
        os.utime(source / name, (written, written))
    name = failure_logs.folder_name("tests/cluster/test_modes.py::test_a_mode[of a/b, c]")
    assert name == "test_modes/test_a_mode-of-a-b-c"
    failure_logs.collect(target / name, source, 1.5, [])
    assert [str(each.relative_to(target)) for each in target.rglob("*.log")] == [f"{name}/plane-apiserver.log"]
    assert (target / name / "plane-apiserver.log").read_text() == "plane/apiserver.log"


def test_workers_take_ports_from_ranges_of_their_own() -> None:
    mine, theirs = (set(itertools.islice(own_ports(f"gw{number}", 7), 5_000)) for number in range(2))
    assert len(mine) == len(theirs) == 2_000
    assert not mine & theirs
    [taken] = free_ports(1)
    with socket.create_server(("127.0.0.1", taken)):
        # As many as there may be, beside those that control planes of this process listen on.
        assert taken not in free_ports(1_900)


# --- the control plane --------------------------------------------------------------------------------------------


def connected(count: int, *, request: str = "n0") -> Object:
    constraint = {"requests": [request], "matchAttribute": f"resource.aws.com/devicegroup{count}_id"}
    return {"devices": {"requests": [devices_request(request, count=count)], "constraints": [constraint]}}


def with_claim(name: str, template: str) -> Object:
    using = container(resources={"claims": [{"name": "neuron"}]})
    return pod(name, using, resourceClaims=[{"name": "neuron", "resourceClaimTemplateName": template}])


def test_the_scheduler_allocates_connected_devices_of_a_fake_node(api: Api, namespace: str, fleet: Fleet) -> None:
    node = fleet.add("trn2.48xlarge")
    api.create(claim_template("four", connected(4)), namespace)
    for index in range(4):
        api.create(with_claim(f"p{index}", "four"), namespace)
    bound = [wait_scheduled(api, namespace, f"p{index}") for index in range(4)]
    assert {each["spec"]["nodeName"] for each in bound} == {node}
    groups = sorted(scheduled_devices(api, namespace, f"p{index}") for index in range(4))
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_pod_without_its_template_waits_until_the_template_comes(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2.3xlarge")
    api.create(with_claim("early", "late"), namespace)
    eventually("the event", lambda: events(api, namespace, "early", "FailedResourceClaimCreation"))
    api.create(claim_template("late", {"devices": {"requests": [devices_request("n0")]}}), namespace)
    assert scheduled_devices(api, namespace, "early") == [0]


def test_an_unguarded_lookup_of_a_missing_attribute_aborts_scheduling_although_another_node_fits(
    api: Api, namespace: str, fleet: Fleet
) -> None:
    # Why every generated selector is guarded: trn2u devices publish no topology_x.
    fleet.add("trn2u.48xlarge")
    fleet.add("trn2.48xlarge")
    unguarded = f'device.attributes["{DRIVER}"].topology_x == 0'
    guarded = f'"topology_x" in device.attributes["{DRIVER}"] && {unguarded}'
    for name, selector in (("unguarded", unguarded), ("guarded", guarded)):
        request = devices_request("n0", selectors=(selector,))
        api.create(claim_template(name, {"devices": {"requests": [request]}}), namespace)
        api.create(with_claim(name, name), namespace)
    assert scheduled_devices(api, namespace, "guarded") == [0]
    assert "no such key: topology_x" in unschedulable_message(api, namespace, "unguarded", "no such key")


def test_an_unselective_request_is_given_a_whole_ultraserver_node(api: Api, namespace: str, fleet: Fleet) -> None:
    # Why every generated request excludes what is not a single device.
    fleet.add("trn2u.48xlarge")
    api.create(claim_template("one", {"devices": {"requests": [devices_request("n0")]}}), namespace)
    api.create(with_claim("one", "one"), namespace)
    claim = claim_of(api, namespace, wait_scheduled(api, namespace, "one"))
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "neuron-node"


@pytest.mark.parametrize(
    ("instance_type", "size"), [("trn1.32xlarge", 16), ("trn1n.32xlarge", 8), ("trn3.48xlarge", 4)]
)
def test_every_trainium_family_publishes_device_groups(
    api: Api, namespace: str, fleet: Fleet, instance_type: str, size: int
) -> None:
    fleet.add(instance_type)
    api.create(claim_template("group", connected(size)), namespace)
    api.create(with_claim("group", "group"), namespace)
    assert scheduled_devices(api, namespace, "group") == list(range(size))


def test_a_restricted_user_has_only_the_rights_of_rbac(control_plane: ControlPlane, namespace: str) -> None:
    kubectl = control_plane.kubectl(control_plane.user_kubeconfig("nobody")).within(namespace)
    refused = kubectl.run("get", "pods")
    assert not refused.ok
    assert 'User "nobody" cannot list resource "pods"' in refused.stderr


def test_refusals_of_the_api_server_keep_their_status(api: Api, namespace: str) -> None:
    with pytest.raises(ApiError, match="Invalid value") as refused:
        api.create(pod("Not_A_Name"), namespace)
    assert refused.value.code == 422
