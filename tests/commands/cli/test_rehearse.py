"""`neuron-dra rehearse` and `fit`: files and clusters in, text and JSON out, exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from tests.support.fake_api import FakeApi
from tests.support.invoking import invoke, printed
from tests.support.rehearsing import Object, as_list, budget, driver_nodes, node, pods

CLUSTER = [
    node("n1", "a"),
    node("n2", "b"),
    *pods("serve", "n1", "n1"),
    *pods("odd", "n2", count=6, namespace="team-b"),
]
PLURALS = {
    "Node": "nodes",
    "Pod": "pods",
    "ResourceSlice": "resourceslices",
    "ResourceClaim": "resourceclaims",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "ReplicaSet": "replicasets",
    "NodePool": "nodepools",
}


def run_without_cluster(*arguments: str | Path, stdin: str | None = None) -> Result:
    return invoke(*arguments, stdin=stdin, environment={"KUBECONFIG": "/nowhere"})


@pytest.fixture
def api() -> Iterator[FakeApi]:
    api = FakeApi()
    api.kinds = [
        *api.kinds,
        ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", True),
        ("apps", "v1", "ReplicaSet", "replicasets", True),
    ]
    with api.serve_in_thread() as served:
        yield served


def put(api: FakeApi, *items: Object) -> None:
    for item in items:
        api.put(PLURALS[item["kind"]], item)


class TestRehearse:
    def test_text_is_one_screen_with_steps_waits_and_fixes(self) -> None:
        result = run_without_cluster("rehearse", "-f", "-", stdin=as_list(CLUSTER))
        assert result.exit_code == 1
        told = (
            "2 node groups (eks.amazonaws.com/nodegroup) with 2 nodes and 32 devices of the device plugin; 3 pods use"
        )
        assert told in " ".join(result.stdout.split())
        assert "denied: 1 pod of ReplicaSet team-b/odd, at the end" in result.stdout
        assert "-> Nearest valid counts: 4 or 8." in result.stdout
        assert "Cannot know" in result.stdout
        assert len(result.stdout.splitlines()) < 50

    def test_details_have_every_pod(self) -> None:
        result = run_without_cluster("rehearse", "-f", "-", "--details", stdin=as_list(CLUSTER))
        assert "  team-a/serve-0: n1 -> n2, converted" in result.stdout
        assert "  team-b/odd-0: n1 -> waits" in result.stdout

    def test_json_has_numbers_of_pods_and_reasons(self) -> None:
        found = printed(run_without_cluster("rehearse", "-f", "-", "-o", "json", stdin=as_list(CLUSTER)))
        assert [each["name"] for each in found["pods"]] == ["serve-0", "serve-1", "odd-0"]
        assert found["steps"][-1]["waiting"] == [
            {
                "pod": 2,
                "cause": "denied",
                "reason": found["waits"][0]["reason"],
                "fix": found["waits"][0]["fix"],
            }
        ]
        assert found["spares"] == {"given": {}, "needed": {}, "why": ""}
        assert (found["well"], found["allOrdersTried"], len(found["otherOrders"])) == (False, True, 1)

    def test_a_migration_in_which_nothing_waits_is_0(self) -> None:
        result = run_without_cluster(
            "rehearse", "-f", "-", stdin=as_list([node("n1"), *driver_nodes("d"), *pods("serve", "n1")])
        )
        assert result.exit_code == 0
        assert "Nothing waits at any time, and nothing is denied." in result.stdout

    def test_a_pod_that_waits_today_and_would_be_denied_is_1_as_in_a_report(self) -> None:
        odd = pods("odd", "", count=6, namespace="team-b")
        text = as_list([node("n1"), *driver_nodes("d"), *pods("serve", "n1"), *odd])
        result = run_without_cluster("rehearse", "-f", "-", stdin=text)
        reported = run_without_cluster("report", "-f", "-", "--families", "trn1", stdin=text)
        assert (result.exit_code, reported.exit_code) == (1, 1)
        assert "1 pod that waits today is denied." in result.stdout
        assert "denied: 1 pod of ReplicaSet team-b/odd, at the end" in result.stdout
        waits = as_list([node("n1"), *driver_nodes("d"), *pods("serve", "n1"), *pods("x", "", nodeSelector={"a": "b"})])
        assert run_without_cluster("rehearse", "-f", "-", stdin=waits).exit_code == 0

    def test_a_folder_is_read(self, tmp_path: Path) -> None:
        for number, item in enumerate(CLUSTER):
            (tmp_path / f"{number}.json").write_text(json.dumps(item))
        found = printed(run_without_cluster("rehearse", tmp_path, "-o", "json"))
        assert len(found["pods"]) == 3

    def test_yaml_and_json_give_the_same(self, tmp_path: Path) -> None:
        busy = pods("busy", "d", namespace="x")[0]
        busy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100"}}
        objects = [*CLUSTER, *driver_nodes("d"), busy, budget("serve", maxUnavailable=1)]
        (tmp_path / "a.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": objects}))
        found = printed(run_without_cluster("rehearse", tmp_path / "a.yaml", "-o", "json"))
        assert (
            found["steps"]
            == printed(run_without_cluster("rehearse", "-f", "-", "-o", "json", stdin=as_list(objects)))["steps"]
        )

    def test_an_input_that_cannot_be_read_is_2(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("a: [")
        (tmp_path / "b.json").write_text(as_list(CLUSTER))
        result = run_without_cluster("rehearse", tmp_path)
        assert result.exit_code == 2
        assert "Not complete, could not be" in result.stdout

    def test_a_node_of_a_wrong_form_is_2(self) -> None:
        bad = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": {"key": "a"}}}
        result = run_without_cluster("rehearse", "-f", "-", stdin=as_list([*CLUSTER, bad]))
        assert result.exit_code == 2
        assert "spec.taints: Node n cannot be read" in " ".join(result.stdout.split())

    def test_spare_order_namespace_and_mode_change_the_play(self) -> None:
        text = as_list([node("n1"), *pods("a", "n1", "n1"), *pods("b", "n1", namespace="team-b")])
        assert run_without_cluster("rehearse", "-f", "-", stdin=text).exit_code == 1
        assert run_without_cluster("rehearse", "-f", "-", "--spare", "trn1.32xlarge=1", stdin=text).exit_code == 0
        only = printed(run_without_cluster("rehearse", "-f", "-", "-o", "json", "-n", "team-a", stdin=text))
        assert [each["cause"] for each in only["steps"][-1]["waiting"]] == ["no plugin node left"]
        off = printed(run_without_cluster("rehearse", "-f", "-", "-o", "json", "--mode", "off", stdin=text))
        assert len(off["steps"][-1]["waiting"]) == 3
        ordered = printed(
            run_without_cluster("rehearse", "-f", "-", "-o", "json", "--order", "b,a", stdin=as_list(CLUSTER))
        )
        assert [each[-1] for each in ordered["order"]] == ["b", "a"]

    def test_policies_decide(self, tmp_path: Path) -> None:
        (tmp_path / "off.yaml").write_text(
            "apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ConversionPolicy\nmetadata: {name: none}\n"
            "spec: {order: 1, match: {namespaces: [team-a]}, mode: 'off'}\n"
        )
        text = as_list([node("n1"), *pods("a", "n1")])
        found = printed(run_without_cluster("rehearse", "-f", "-", "-o", "json", "--policies", tmp_path, stdin=text))
        assert [each["cause"] for each in found["steps"][-1]["waiting"]] == ["no plugin node left"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--spare", "trn1.32xlarge"], "'trn1.32xlarge' is not TYPE=N, such as trn2.48xlarge=1"),
            (["--spare", "trn1.32xlarge=0"], "'trn1.32xlarge=0' is not TYPE=N"),
            (["--spare", "trn1.32xlarge=1001"], "with N from 1 to 1000"),
            (["--spare", "m5.large=1"], "'m5.large' is no instance type with Neuron devices"),
            (["--order", "z"], "there is no node group 'z': the groups are eks.amazonaws.com/nodegroup=a"),
            (["--context", "x"], "Arguments, -f and -k read files; --kubeconfig and --context read a cluster."),
            (["-n", "A_b"], "'A_b' is not a valid namespace name"),
        ],
    )
    def test_a_wrong_flag_is_told(self, arguments: list[str], message: str) -> None:
        result = run_without_cluster("rehearse", "-f", "-", *arguments, stdin=as_list(CLUSTER))
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr

    def test_a_cluster_is_read_and_not_changed(self, api: FakeApi, tmp_path: Path) -> None:
        put(api, *CLUSTER, *driver_nodes("d"), budget("serve", maxUnavailable=1))
        kubeconfig = api.kubeconfig(tmp_path)
        live = printed(run_without_cluster("rehearse", f"--kubeconfig={kubeconfig}", "-o", "json"))
        objects = [*CLUSTER, *driver_nodes("d"), budget("serve", maxUnavailable=1)]
        file = printed(run_without_cluster("rehearse", "-f", "-", "-o", "json", stdin=as_list(objects)))
        assert live["problems"] == []
        assert live["steps"] == file["steps"]
        assert {seen.verb for plural in PLURALS.values() for seen in api.calls("list", plural)} <= {"list"}
        assert not [each for plural in PLURALS.values() for each in api.calls("create", plural)]

    def test_what_may_not_be_read_is_told(self, api: FakeApi, tmp_path: Path) -> None:
        put(api, *CLUSTER)
        api.forbid("list", "poddisruptionbudgets", "policy")
        result = run_without_cluster("rehearse", f"--kubeconfig={api.kubeconfig(tmp_path)}")
        assert result.exit_code == 2
        assert "as if there were no PodDisruptionBudgets" in " ".join(result.stdout.split())
        api.forbid("list", "nodes")
        result = run_without_cluster("rehearse", f"--kubeconfig={api.kubeconfig(tmp_path)}")
        assert (result.exit_code, result.stdout) == (2, "")


def node_pool(name: str, *types: str, labels: Object | None = None, group: str = "x", **spec: Any) -> Object:
    """A NodePool of instance types in one of two zones."""
    requirements = [
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]},
    ]
    template = {
        "metadata": {"labels": labels or {}},
        "spec": {"requirements": requirements, "nodeClassRef": {"group": group, "kind": "Class", "name": "c"}},
    }
    spec["template"] = template
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name, "uid": f"pool-{name}"},
        "spec": spec,
    }


def of_pool(pool: str, made: Object, **labels: str) -> Object:
    """The node as one that Karpenter made for a pool."""
    found = made["metadata"]["labels"]
    del found["eks.amazonaws.com/nodegroup"]
    found |= {"karpenter.sh/nodepool": pool, **labels}
    return made


TRN1 = "trn1.32xlarge"
POOLED = [
    of_pool("static", node("n1")),
    *pods("serve", "n1", "n1", "n1", "n1"),
    node_pool("static", TRN1, replicas=1, limits={"nodes": "1"}),
    node_pool("dra", TRN1, labels={"neuron.aws.com/driver": "dra"}),
    node_pool("mixed", TRN1, "trn2.48xlarge"),
    node_pool("cpu", "m5.large"),
    node_pool("auto", TRN1, group="eks.amazonaws.com"),
]


class TestPool:
    def test_a_pool_is_played_as_if_it_had_more_nodes_with_the_driver(self) -> None:
        result = run_without_cluster("rehearse", "-f", "-", "--pool", "dra=1", stdin=as_list(POOLED))
        told = " ".join(result.stdout.split())
        assert result.exit_code == 0, result.output
        assert (
            "Assumed (--pool): NodePool dra has 1 node of trn1.32xlarge, 1 more than it has, with the driver, and is"
            " a static pool (`replicas`)."
        ) in told
        assert "Which topology.kubernetes.io/zone the assumed nodes of NodePool dra have: no pod that selects" in told
        assert run_without_cluster("rehearse", "-f", "-", stdin=as_list(POOLED)).exit_code == 1

    def test_nodes_of_a_pool_on_the_plugin_join_with_the_plugin_and_move_with_it(self) -> None:
        two = node("n2", "b")
        found = printed(
            run_without_cluster(
                "rehearse", "-f", "-", "-o", "json", "--pool", "static=3", stdin=as_list([*POOLED, two])
            )
        )
        added = ["static-assumed-1", "static-assumed-2"]
        assert found["groups"][1] == {
            "name": "karpenter.sh/nodepool=static",
            "nodes": ["n1", *added],
            "instanceTypes": [TRN1],
        }
        assert found["pools"] == [
            {
                "pool": "NodePool static",
                "nodes": 3,
                "added": added,
                "instanceType": TRN1,
                "driver": False,
                "wasDynamic": False,
                "openLabels": ["topology.kubernetes.io/zone"],
            }
        ]
        assert found["start"]["plugin"] == 4 * 16
        assert found["summary"][0] == (
            "Assumed (--pool): NodePool static has 3 nodes of trn1.32xlarge, 2 more than it has, with the device"
            " plugin."
        )

    def test_nodes_join_a_pool_whose_nodes_have_the_driver_with_the_driver_labels_and_taints(self) -> None:
        nodes = [of_pool("static", each, zone="z") for each in driver_nodes("d")[:1]] + driver_nodes("d")[1:]
        [pod] = pods("serve", "", nodeSelector={"zone": "z", "team": "x"}, count=16)
        pod["spec"]["tolerations"] = [{"key": "only", "operator": "Exists"}]
        pool = node_pool("static", TRN1, labels={"team": "x"}, replicas=1)
        pool["spec"]["template"]["spec"]["taints"] = [{"key": "only", "effect": "NoSchedule"}]
        [held] = pods("held", "p", count=16, namespace="team-b")
        objects = [*nodes, pool, node("p", "b"), pod, held]
        found = printed(
            run_without_cluster("rehearse", "-f", "-", "-o", "json", "--pool", "static=2", stdin=as_list(objects))
        )
        [step] = found["steps"]
        # The taint keeps team-b off the new node, the labels of the pool and of its nodes let team-a onto it.
        assert [(each["pod"], each["to"]) for each in step["moves"]] == [(0, "d"), (1, "static-assumed-1")]
        assert found["pools"][0]["driver"]

    def test_a_dynamic_pool_leaves_pods_and_as_a_static_one_has_them_converted(self) -> None:
        objects = [
            of_pool("dra", node("n1")),
            *pods("serve", "n1", nodeSelector={"karpenter.sh/nodepool": "dra"}),
            node_pool("dra", TRN1, labels={"neuron.aws.com/driver": "dra"}),
        ]
        today = printed(run_without_cluster("rehearse", "-f", "-", "-o", "json", stdin=as_list(objects)))
        assert [each["cause"] for each in today["steps"][-1]["waiting"]] == ["no plugin node left"]
        found = printed(
            run_without_cluster("rehearse", "-f", "-", "-o", "json", "--pool", "dra=2", stdin=as_list(objects))
        )
        assert [(each["to"], each["converted"]) for each in found["steps"][-1]["moves"]] == [("dra-assumed-1", True)]
        assert found["well"]

    def test_the_page_tells_and_draws_the_assumed_nodes(self) -> None:
        result = run_without_cluster("rehearse", "-f", "-", "-o", "html", "--pool", "dra=1", stdin=as_list(POOLED))
        assert "<li>Assumed (--pool): NodePool dra has 1 node of trn1.32xlarge, 1 more than it has" in result.stdout
        assert '["dra-assumed-1","karpenter.sh/nodepool=dra","trn1.32xlarge","driver"' in result.stdout

    def test_pools_of_a_cluster_are_read(self, api: FakeApi, tmp_path: Path) -> None:
        api.kinds = [*api.kinds, ("karpenter.sh", "v1", "NodePool", "nodepools", False)]
        put(api, *POOLED)
        argv = ("--pool", "dra=1", "-o", "json")
        live = printed(run_without_cluster("rehearse", f"--kubeconfig={api.kubeconfig(tmp_path)}", *argv))
        file = printed(run_without_cluster("rehearse", "-f", "-", *argv, stdin=as_list(POOLED)))
        assert live["problems"] == []
        assert (live["steps"], live["pools"]) == (file["steps"], file["pools"])
        assert live["well"]
        api.forbid("list", "nodepools", "karpenter.sh")
        result = run_without_cluster("rehearse", f"--kubeconfig={api.kubeconfig(tmp_path)}", *argv)
        assert result.exit_code == 2
        assert "there is no NodePool 'dra': none is known (" in result.stderr

    @pytest.mark.parametrize(
        ("pool", "message"),
        [
            ("x=2", "there is no NodePool 'x': known are auto, cpu, dra, mixed, static."),
            ("static=0", "NodePool static has 1 node: name at least that many, not 0."),
            ("static=many", "'static=many' is not NAME=N, such as neuron-pool=4, with N from 0 to 1000"),
            ("static=1001", "'static=1001' is not NAME=N"),
            ("static", "'static' is not NAME=N"),
            (
                "mixed=2",
                "NodePool mixed makes nodes of several types (trn1.32xlarge, trn2.48xlarge): require one of them in"
                " node.kubernetes.io/instance-type, or play nodes of one with --spare TYPE=N.",
            ),
            ("cpu=2", "NodePool cpu makes no nodes of a type with Neuron devices."),
            ("auto=2", "NodePool auto is of EKS Auto Mode, on whose nodes the driver cannot run."),
        ],
    )
    def test_a_pool_that_cannot_be_assumed_is_told(self, pool: str, message: str) -> None:
        result = run_without_cluster("rehearse", "-f", "-", "--pool", pool, stdin=as_list(POOLED))
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


class TestFit:
    def test_count_and_type_on_the_cluster_of_files(self) -> None:
        text = as_list([*driver_nodes("d"), node("n1"), *pods("x", "n1", count=16)])
        result = run_without_cluster("fit", "--count", "8", "--type", "trn1", "-f", "-", stdin=text)
        assert result.exit_code == 0
        assert "now: on d (devices 0-7)" in result.stdout
        assert "2 such pods at the same time" in " ".join(result.stdout.split())
        assert "after pods end: on n1, when team-a/x-0 ends" in result.stdout

    def test_json(self) -> None:
        text = as_list([node("n1"), *pods("x", "n1", count=16)])
        result = run_without_cluster("fit", "--count", "8", "-f", "-", "-o", "json", stdin=text)
        found = printed(result)
        assert result.exit_code == 1
        assert (found["fits"], found["driver"]["why"]["cause"]) == (False, "no driver node yet")
        assert found["plugin"]["afterEnd"] == [{"node": "n1", "pods": ["team-a/x-0"]}]

    def test_a_pod_of_a_file_on_a_live_cluster(self, api: FakeApi, tmp_path: Path) -> None:
        put(api, *driver_nodes("d"))
        [pod] = pods("x", "", kind="")
        del pod["metadata"]["uid"], pod["status"]
        (tmp_path / "pod.json").write_text(json.dumps(pod))
        result = run_without_cluster("fit", "-f", tmp_path / "pod.json", f"--kubeconfig={api.kubeconfig(tmp_path)}")
        assert (result.exit_code, "now: on d" in result.stdout) == (0, True), result.output

    @pytest.mark.parametrize(
        ("arguments", "stdin", "message"),
        [
            ([], None, "Name what to fit: --count N, with --type, or -f with a pod or workload."),
            (["--count", "8", "--type", "p5", "-f", "-"], as_list(CLUSTER), "'p5' is no instance type or family"),
            (["-f", "-"], as_list(CLUSTER), "the files have no pod or workload that requests Neuron devices"),
            (["--count", "8", "--context", "x", "-f", "-"], as_list(CLUSTER), "The files have Nodes"),
        ],
    )
    def test_a_wrong_use_is_told(self, arguments: list[str], stdin: str | None, message: str) -> None:
        result = run_without_cluster("fit", *arguments, stdin=stdin)
        assert (result.exit_code, message in result.stderr) == (2, True), result.output
